"""What the scripts beside the tables write: nothing is lost, and nothing is mixed."""

import argparse
from pathlib import Path

import pytest

from lrformer.core import ConfigError
from lrformer.training.atomic_files import read_json, write_json

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import certified_cifar
    import main_search

    return main_search, certified_cifar


def test_candidates_on_other_data_are_not_taken_for_those_that_are_asked_for(
    scripts, tmp_path, monkeypatch
):
    main_search, _ = scripts
    calls = []

    def make(name, arguments):
        calls.append((name, arguments.data))
        return {"name": name, "epochs": arguments.epochs, "validation": {}, "images_per_second": 1}

    monkeypatch.setattr(main_search, "run_candidate", make)

    def run(data, record):
        settings = {"data": data, "record": tmp_path / record, "out": str(tmp_path), "epochs": 2}
        main_search._run(["recipe"], argparse.Namespace(**settings))

    run("cifar10", "a.json")
    run("cifar10", "a.json")
    assert calls == [("recipe", "cifar10")]
    with pytest.raises(ConfigError, match="holds candidates on cifar10, not on cifar100"):
        run("cifar100", "a.json")
    run("cifar100", "b.json")
    assert calls[1:] == [("recipe", "cifar100")]
    assert [found["name"] for found in read_json(tmp_path / "a.json")["candidates"]] == ["recipe"]


def test_certified_models_that_a_record_has_are_kept_and_never_mixed(scripts, tmp_path):
    _, certified_cifar = scripts
    made = {"kind": "certified-cifar", "epochs": 30, "batch": 512, "rate": 1e-3, "seed": 0}
    made |= {"device": "a GPU", "torch": "2"}
    path = tmp_path / "record.json"
    assert certified_cifar.known_models(path, made) == {}
    write_json(path, {**made, "models": {"certified": {"accuracy": 0.5}}})
    assert certified_cifar.known_models(path, made) == {"certified": {"accuracy": 0.5}}
    with pytest.raises(ConfigError, match=r"has models with epochs 30, not 5; give another --out"):
        certified_cifar.known_models(path, {**made, "epochs": 5})
