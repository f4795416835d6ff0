"""Tiny data, and an engine that trains nothing."""

import pytest

from lrformer.recipes import table_engine
from tests.recipes.made_table import made_run, write_arrays


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("tiny") / "shades")


@pytest.fixture
def made(monkeypatch):
    """Runs are made up; the list says which, and an entry of `failures` is raised instead."""
    calls, failures = [], {}

    def make(planned, folder, how, trained=None):
        calls.append((planned.row.name, planned.config.seed, folder))
        failure = failures.get((planned.row.name, planned.config.seed))
        if failure is not None:
            raise failure
        return made_run(planned, how)

    monkeypatch.setattr(table_engine, "make_run", make)
    return calls, failures
