import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.evaluation import EvaluationConfig, evaluate, from_arrays
from lrformer.evaluation.plain_arrays import evaluate_arrays
from tests.evaluation.test_evaluate import LABELS, PROBS, UNKNOWN

FEW = EvaluationConfig(num_draws=10)


@pytest.fixture
def arrays(tmp_path):
    for name, array in (("probs", PROBS), ("labels", LABELS), ("far", UNKNOWN)):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def test_files_of_arrays_give_what_the_arrays_give(arrays):
    results = evaluate_arrays(
        arrays / "probs.npy",
        arrays / "labels.npy",
        ood=[str(arrays / "far.npy"), f"again={arrays / 'far.npy'}"],
        config=FEW,
    )
    expected = evaluate(
        from_arrays(PROBS, LABELS, name="probs"),
        ood={"far": from_arrays(UNKNOWN), "again": from_arrays(UNKNOWN)},
        config=FEW,
    )
    assert results.scores.metrics == expected.metrics
    assert list(results.ood) == ["far", "again"]


def test_files_that_are_no_arrays_are_refused_by_name(arrays):
    np.save(arrays / "pickled.npy", np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match=r"pickled\.npy cannot be read"):
        evaluate_arrays(arrays / "pickled.npy", arrays / "labels.npy")
    (arrays / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ConfigError, match="is an archive"):
        evaluate_arrays(arrays / "cut.npz", arrays / "labels.npy")
    np.savez(arrays / "several.npz", a=PROBS)
    with pytest.raises(ConfigError, match="holds several arrays"):
        evaluate_arrays(arrays / "several.npz", arrays / "labels.npy")
    with pytest.raises(ConfigError, match="two OOD sets are named 'far'"):
        evaluate_arrays(arrays / "probs.npy", arrays / "labels.npy", ood=[str(arrays / "far.npy")] * 2)  # fmt: skip
