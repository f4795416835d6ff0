"""The documentation names only what exists."""

import re
from pathlib import Path

import pytest
import torch

import lrformer
from lrformer.attention import ATTENTIONS, MultiheadSelfAttention
from lrformer.core import ConfigError
from lrformer.methods import METHODS

ROOT = Path(__file__).parent.parent
PAPER = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_every_equation_that_a_docstring_cites_is_in_the_paper_page():
    labels = set(re.findall(r"^\| `([^`]+)` \|", PAPER, flags=re.MULTILINE))
    cited = {
        (source.name, label)
        for source in SOURCES
        for label in re.findall(r"\(eq\. ([^)]+)\)", source.read_text(encoding="utf-8"))
    }
    assert labels
    assert cited
    assert {(name, label) for name, label in cited if label not in labels} == set()


def test_every_file_that_the_paper_page_names_exists():
    named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|json))`", PAPER)
    assert named
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "src" / "lrformer" / name).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target


def test_an_attention_and_a_method_of_ones_own_are_trained_and_opened_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What is registered here is known nowhere else.
    for registry in (ATTENTIONS, METHODS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "extending.md", "exec"), names)
    run = lrformer.load("runs/laplace")
    layers = [m for m in run.method.modules() if isinstance(m, MultiheadSelfAttention)]
    assert {type(layer).__name__ for layer in layers} == {"LaplaceAttention"}
    assert type(lrformer.load("runs/logit-norm").method).__name__ == "LogitNorm"
    assert "no theorem" in str(lrformer.bounds(names["model"]))
    x = torch.randn(2, 5, layers[0].dim)
    weights = layers[0].attention_map(x)
    scores = -torch.cdist(*layers[0].project(x)[:2])
    torch.testing.assert_close(weights, scores.softmax(-1))
    del ATTENTIONS._entries["laplace"]
    with pytest.raises(ConfigError, match=r"'LaplaceConfig' is none of .* import that first"):
        lrformer.load("runs/laplace")
