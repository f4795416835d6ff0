"""A timm ViT trained on digits: what conversion costs, and what a short fine-tune gives back."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from lrformer.interop import conversion_report, convert

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "conversion_digits", ROOT / "benchmarks" / "conversion_digits.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_accuracy_survives_conversion_untied_and_comes_back_tied(benchmark: ModuleType) -> None:
    torch.manual_seed(0)
    _, data = benchmark.load_data()
    original = benchmark.make_vit(depth=2)
    benchmark.train(original, data, epochs=16, lr=5e-3, seed=0)
    before = benchmark.accuracy(original, data)
    assert before > 0.85

    batch = data[0][: benchmark.NUM_CALIBRATION]
    untied = convert(original, "lrsa", alpha="match", calibration=batch)
    tied = convert(original, "lrsa", alpha="match", tie_qk=True, calibration=batch)
    assert conversion_report(untied).outputs < 0.2 < conversion_report(tied).outputs
    after, after_tied = (benchmark.accuracy(model, data) for model in (untied, tied))
    assert after > before - 0.03
    assert after_tied < after

    for model in (untied, tied):
        benchmark.train(model, data, epochs=2, lr=5e-4, seed=1)
    assert benchmark.accuracy(untied, data) > before - 0.03
    assert benchmark.accuracy(tied, data) > after_tied + 0.1
    assert benchmark.accuracy(original, data) == before, "the caller's model was trained"
