import dataclasses

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.evaluation import load_test_split, predict_batches, predict_run, predict_split
from lrformer.heads import Predictive


def _split(num_samples=11):
    rng = np.random.default_rng(0)
    return Split(
        name="points/test",
        x=rng.normal(size=(num_samples, 3)).astype(np.float32),
        y=rng.integers(3, size=num_samples),
        class_names=("a", "b", "c"),
        mean=(0.5, 0.0, -0.5),
        std=(1.0, 2.0, 3.0),
    )


def _predict(x, generator=None):
    """A method whose logits are its inputs and whose variance is their sum of squares."""
    return Predictive(logits=x, variance=x.square().sum(-1))


def test_batches_give_what_one_pass_over_normalized_inputs_gives():
    split = _split()
    made = predict_split(_predict, split, batch_size=4)
    x = torch.tensor((split.x - np.array(split.mean)) / np.array(split.std), dtype=torch.float32)
    whole = _predict(x.double())
    assert made.probs == pytest.approx(whole.probs.numpy(), abs=1e-6)
    assert list(made.scores) == list(whole.scores)
    for score in whole.scores:
        assert made.scores[score] == pytest.approx(whole.uncertainty(score).numpy(), abs=1e-5)
    assert made.logit_norm == pytest.approx(x.norm(dim=1).numpy(), abs=1e-5)
    assert np.array_equal(made.labels, split.y)
    assert made.class_names == split.class_names


def test_an_unknown_set_keeps_no_labels():
    assert predict_split(_predict, _split(), is_labeled=False).labels is None


def test_confidences_that_float32_cannot_tell_apart_still_have_an_order():
    logits = torch.tensor([[18.0, 0.0], [25.0, 0.0]])
    assert (1 - logits.softmax(-1).amax(-1)).unique().numel() == 1
    made = predict_batches(_predict, [(logits, None)], name="sure")
    assert made.scores["msp"][0] > made.scores["msp"][1] > 0


def test_the_draws_of_a_sampling_method_follow_the_seed():
    def sample(x, generator):
        return Predictive(logits=x, samples=x + torch.randn(5, *x.shape, generator=generator))

    first, again, other = (predict_split(sample, _split(), seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.probs, again.probs)
    assert not np.array_equal(first.probs, other.probs)


def test_progress_is_told_of_every_sample():
    told = []
    predict_split(_predict, _split(), batch_size=4, advance=told.append)
    assert told == [4, 4, 3]


def test_nothing_to_predict_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        predict_batches(_predict, [], name="none")


def test_a_run_sees_every_set_through_its_own_normalization(run, workspace):
    split = load_test_split(run.config)
    elsewhere = dataclasses.replace(split, mean=(0.9, 0.9, 0.9), std=(9.0, 9.0, 9.0))
    first, second = predict_run(run, split), predict_run(run, elsewhere)
    assert np.array_equal(first.probs, second.probs)
    raw = torch.from_numpy(np.array(split.x[np.arange(len(split))]))
    assert first.probs == pytest.approx(run.predict(raw).probs.numpy(), abs=1e-5)
    assert first.default_score == run.decision.score
    assert first.class_names == ("blue", "green", "red")


def test_the_temperature_is_applied_unless_it_is_declined(run):
    hot = dataclasses.replace(run, decision=dataclasses.replace(run.decision, temperature=3.0))
    split = load_test_split(run.config)
    plain = predict_run(hot, split, is_calibrated=False)
    warm = predict_run(hot, split)
    assert warm.logit_norm == pytest.approx(plain.logit_norm / 3, rel=1e-5)
    assert (warm.confidence <= plain.confidence + 1e-6).all()


def test_what_a_sampling_method_says_of_an_input_does_not_depend_on_the_batches():
    def predict(x, generator):
        # One draw of a function, for all inputs.
        slope = torch.randn(3, generator=generator)
        return Predictive(logits=x.flatten(1).mean(1, keepdim=True) * slope)

    large, small = (predict_split(predict, _split(), batch_size=size, seed=4) for size in (11, 3))
    np.testing.assert_allclose(small.probs, large.probs, rtol=1e-6)
    other = predict_split(predict, _split(), batch_size=3, seed=5)
    assert not np.allclose(other.probs, small.probs)
