"""A folder of images and a run that was trained on it, made once for all tests of this folder."""

from pathlib import Path

import pytest

from lrformer.training import Run, load_run
from tests.evaluation.made_run import write_image_folder, write_run


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    """Return a directory with `data`, `run` and `cache` in it; tests only read `run`."""
    place = tmp_path_factory.mktemp("evaluation")
    data = write_image_folder(place / "data")
    write_run(place / "run", data, root=place / "cache")
    return place


@pytest.fixture
def run(workspace) -> Run:
    return load_run(workspace / "run")
