import math

import numpy as np
import pytest

from lrformer.core import ConfigError
from lrformer.evaluation import Predictions, from_arrays
from tests.evaluation.made_run import random_logits


def _softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_what_is_saved_comes_back_to_the_bit_and_needs_no_pickle(tmp_path):
    logits, labels = random_logits(7, 3, seed=0)
    made = from_arrays(
        _softmax(logits), labels, logits=logits, name="näme/test", class_names=("a", "b", "c")
    )
    made.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as file:
        assert all(file[key].dtype != object for key in file)
    back = Predictions.load(tmp_path / "p.npz")
    assert (back.name, back.default_score, back.class_names) == (
        made.name, made.default_score, made.class_names,
    )  # fmt: skip
    assert list(back.scores) == list(made.scores)
    for name in made.scores:
        assert np.array_equal(back.scores[name], made.scores[name])
    assert np.array_equal(back.probs, made.probs)
    assert np.array_equal(back.labels, labels)
    assert np.array_equal(back.logit_norm, made.logit_norm)
    assert list(tmp_path.iterdir()) == [tmp_path / "p.npz"]


def test_a_set_without_labels_and_logits_comes_back_without_them(tmp_path):
    from_arrays(np.array([[0.25, 0.75]])).save(tmp_path / "p.npz")
    back = Predictions.load(tmp_path / "p.npz")
    assert back.labels is None
    assert back.logit_norm is None


def test_scores_of_plain_probabilities_have_the_values_of_their_definitions():
    made = from_arrays(np.array([[0.25, 0.75], [1.0, 0.0]]))
    assert list(made.scores) == ["msp", "entropy"]
    assert made.scores["msp"] == pytest.approx([0.25, 0])
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert made.scores["entropy"] == pytest.approx([entropy, 0])
    assert made.predicted.tolist() == [1, 0]
    assert made.confidence.tolist() == [0.75, 1.0]


def test_energy_and_norm_come_from_logits_and_not_from_probabilities():
    logits = np.array([[3.0, 4.0], [0.0, 0.0]])
    made = from_arrays(_softmax(logits), logits=logits)
    assert made.logit_norm == pytest.approx([5, 0])
    assert made.scores["energy"] == pytest.approx(
        [-math.log(math.exp(3) + math.exp(4)), -math.log(2)]
    )
    evidence = math.exp(3) + math.exp(4)
    assert made.scores["dempster_shafer"] == pytest.approx([2 / (2 + evidence), 0.5])


def test_members_of_an_ensemble_are_averaged_and_give_their_disagreement():
    members = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
    made = from_arrays(members)
    assert made.probs == pytest.approx(np.full((2, 2), 0.5))
    assert made.scores["mutual_information"] == pytest.approx([math.log(2), 0], abs=1e-12)
    assert made.scores["variance"] == pytest.approx([0.25, 0], abs=1e-12)


def test_scores_of_ones_own_join_the_others_and_can_be_the_default():
    made = from_arrays(
        np.array([[0.5, 0.5]]), scores={"distance": np.array([3])}, default_score="distance"
    )
    assert made.uncertainty().tolist() == [3.0]


def test_arrays_that_do_not_belong_together_are_refused_by_name(tmp_path):
    probs = np.array([[0.5, 0.5], [0.1, 0.9]])
    with pytest.raises(ConfigError, match=r"labels has shape \(3,\)"):
        from_arrays(probs, np.array([0, 1, 1]))
    with pytest.raises(ConfigError, match="Were these logits"):
        from_arrays(np.array([[3.0, -1.0]]))
    with pytest.raises(ConfigError, match=r"no score 'entorpy'. Did you mean 'entropy'"):
        from_arrays(probs, default_score="entorpy")
    with pytest.raises(ConfigError, match="3 class_names for 2"):
        from_arrays(probs, class_names=("a", "b", "c"))
    (tmp_path / "x.npz").write_bytes(b"not a zip file")
    with pytest.raises(ConfigError, match=r"x\.npz cannot be read as predictions"):
        Predictions.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", probs=np.array([None, {}], dtype=object))
    with pytest.raises(ConfigError, match=r"y\.npz cannot be read as predictions"):
        Predictions.load(tmp_path / "y.npz")
    from_arrays(probs).save(tmp_path / "z.npz")
    whole = (tmp_path / "z.npz").read_bytes()
    for share in (0.3, 0.6, 0.9):
        (tmp_path / "z.npz").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ConfigError, match=r"z\.npz cannot be read as predictions"):
            Predictions.load(tmp_path / "z.npz")


def test_lists_are_arrays():
    listed = from_arrays([[0.9, 0.1], [0.3, 0.7]], [0, 1])
    np.testing.assert_allclose(listed.probs, [[0.9, 0.1], [0.3, 0.7]])
    assert listed.labels is not None
    assert listed.labels.tolist() == [0, 1]
