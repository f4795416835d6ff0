# Two commands do everything on a fresh clone: `make demo` and `make test`. Both make the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CODE := src tests benchmarks docs/conf.py
CHECKED := lrformer.attention,lrformer.models.block,lrformer.models.tokenizer,lrformer.models.pool,beartype.beartype

.DEFAULT_GOAL := help
.PHONY: help setup demo test docs format lint types contracts unit clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY) ## make the virtual environment in .venv

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY) ## train a small LRFormer beside a plain transformer on digits and print the figures
	@$(BIN)/lrformer demo

test: lint types contracts docs unit ## format, lint, types, import contracts, the pages, all tests

docs: $(READY) ## make the site of the documentation in docs/_build
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --builder html docs docs/_build

lint: $(READY)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(READY)
	$(BIN)/pyright --warnings

contracts: $(READY)
	$(BIN)/lint-imports --no-cache

# Shapes in signatures are checked while the tests run. The hook that does it cannot be traced by
# torch.compile and would catch wrong shapes before the code does, so some tests run without it.
# Without a GPU Triton interprets its kernels, which it must be told before it is imported.
unit: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "not unhooked" --jaxtyping-packages=$(CHECKED)
	$(BIN)/pytest -n 2 --dist worksteal -m "unhooked and not kernel"
	TRITON_INTERPRET=1 $(BIN)/pytest -n 2 --dist worksteal -m kernel

format: $(READY) ## rewrite the files in the project's format
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean: ## remove the environment and every cache
	rm -rf $(VENV) .ruff_cache .hypothesis build dist docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
