import pytest
import torch
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("patient", deadline=None)


def pytest_configure() -> None:
    torch.set_num_threads(1)
    settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _same_global_seed() -> None:
    torch.manual_seed(0)
