"""The length-scale of a fitted process is the one that finds made outliers best, and is kept with the run."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import load_dataset
from lrformer.heads import RandomFeatureGPConfig
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import RuntimeConfig, TrainConfig, load_run, train
from lrformer.training.atomic_files import read_json
from lrformer.training.length_scale import FACTORS, check_length_scale, choose_length_scale
from lrformer.training.splits import validation_batches
from tests.training.small import QUIET, small, weights

FITTED = {"head": "fitted", "feature_scale": "calibrate", "num_random_features": 64}
CHOSEN = {**FITTED, "choose_length_scale": True}


def test_a_run_keeps_the_best_of_what_was_tried_and_predicts_with_it(tmp_path):
    long = {"length_scale": 16.0}
    run = train(small(method_overrides=CHOSEN | long), tmp_path / "chosen", runtime=QUIET)
    found = read_json(tmp_path / "chosen" / "metrics.json")["training"]["length_scale"]
    assert len(found["tried"]) == len(FACTORS)
    best = max(found["tried"], key=found["tried"].__getitem__)
    assert f"{found['length_scale']:.3g}" == best
    assert found["length_scale"] < 16
    plain = train(small(method_overrides=FITTED | long), tmp_path / "plain", runtime=QUIET)
    assert "length_scale" not in read_json(tmp_path / "plain" / "metrics.json")["training"]
    ratio = run.method.gp.random_features.input_scale / plain.method.gp.random_features.input_scale
    assert ratio.item() == pytest.approx(found["length_scale"] / 16, rel=1e-5)
    images = torch.from_numpy(load_dataset("digits", split="test").x[:50])
    ours, median = run.predict(images), plain.predict(images)
    assert torch.equal(ours.logits.argmax(-1), median.logits.argmax(-1))
    assert not torch.allclose(ours.variance, median.variance)
    assert torch.equal(load_run(tmp_path / "chosen").predict(images).variance, ours.variance)


def test_a_variance_for_each_class_is_judged_by_its_mean(tmp_path):
    config = small(method_overrides={**CHOSEN, "likelihood": "softmax"}, epochs=1)
    run = train(config, tmp_path, runtime=QUIET)
    found = read_json(tmp_path / "metrics.json")["training"]["length_scale"]
    assert all(0 < aupr <= 1 for aupr in found["tried"].values())
    assert run.method.gp.posterior.precision.shape[0] == 4


@pytest.mark.filterwarnings("ignore:the variance carries no distance")
def test_the_same_run_makes_the_same_choice(tmp_path):
    for name in ("one", "other"):
        train(small(method_overrides=CHOSEN, epochs=1), tmp_path / name, runtime=QUIET)
    assert weights(tmp_path / "one") == weights(tmp_path / "other")


def test_the_choice_follows_the_outliers_and_not_the_order_of_what_is_tried(monkeypatch):
    """Features whose clusters are a tenth as wide as they are apart are seen by a short length-scale alone."""
    import lrformer.training.length_scale as module

    method, loader, known = clusters(monkeypatch)
    method.calibrate_posterior(loader)
    before = method.gp.random_features.input_scale.clone()
    choice = choose_length_scale(method, loader, known)
    assert choice is not None
    assert choice.length_scale < 2.0
    assert choice.tried[f"{choice.length_scale:.3g}"] > choice.tried["4"] + 0.1
    assert method.needs_posterior
    after = method.gp.random_features.input_scale
    assert (after / before).item() == pytest.approx(choice.length_scale / 2.0, rel=1e-5)
    monkeypatch.setattr(module, "FACTORS", FACTORS[::-1])
    method.gp.stretch((before / after).item())
    assert choose_length_scale(method, loader, known).length_scale == choice.length_scale


def test_of_length_scales_that_tell_nothing_apart_the_one_that_was_set_is_kept(monkeypatch):
    import lrformer.training.length_scale as module

    method, loader, known = clusters(monkeypatch)
    same = method.features(loader[0][0])
    monkeypatch.setattr(module, "_features", lambda method, split, like: same)
    method.calibrate_posterior(loader)
    choice = choose_length_scale(method, loader, known)
    assert choice is not None
    assert set(choice.tried.values()) == {0.5}
    assert choice.length_scale == method.config.length_scale


def clusters(monkeypatch):
    """Return a method whose features are clusters, one for each class, and lie beside them for outliers."""
    import lrformer.training.length_scale as module

    split = load_dataset("digits", split="val")
    method = create_method(
        "lrformer", lambda: create_model("lrformer_digits", num_classes=0, depth=1), 10,
        **{**CHOSEN, "num_random_features": 512},
    )  # fmt: skip
    method.eval()
    centers = torch.randn(10, method.num_features, generator=torch.Generator().manual_seed(0))

    def features(x):
        labels = x[:, 0, 0, 0].long()
        spread = torch.where(labels >= 10, 0.115, 0.1)[:, None]
        generator = torch.Generator().manual_seed(int(labels.max()))
        noise = torch.randn(len(x), method.num_features, generator=generator)
        return centers[labels % 10] + spread * noise

    monkeypatch.setattr(method, "features", features)

    def images(is_outlier):
        labels = torch.arange(400) % 10 + 10 * is_outlier
        return labels.float().view(-1, 1, 1, 1).expand(-1, 1, 8, 8)

    monkeypatch.setattr(module, "make_outliers", lambda split, kind: kind)
    monkeypatch.setattr(
        module, "_features", lambda method, split, like: features(images(isinstance(split, str)))
    )
    loader = [(images(is_outlier=False),)]
    return method, loader, validation_batches(split, image_size=None, device=torch.device("cpu"))


def test_it_is_refused_where_it_cannot_be_made(tmp_path):
    model = {"method": "lrformer", "epochs": 2}
    with pytest.raises(ConfigError, match=r"needs head='fitted' \(it is 'gp'\)"):
        create_method(
            "lrformer", lambda: create_model("lrformer_digits"), 10, choose_length_scale=True
        )
    config = TrainConfig(data="two_moons", method_overrides=CHOSEN, **model)
    with pytest.raises(ConfigError, match="choose_length_scale needs images"):
        train(config, tmp_path / "points", runtime=QUIET)
    assert not (tmp_path / "points").exists()
    make = partial(create_model, "lrformer_digits", num_classes=0)
    method = create_method("lrformer", make, 10, **CHOSEN)
    tiny = dataclasses.replace(load_dataset("digits"), x=np.zeros((9, 3, 8, 1), np.uint8))
    with pytest.raises(ConfigError, match="at least 4 pixels a side; those of digits/train have 3"):
        check_length_scale(method, tiny)


@pytest.mark.gpu
def test_a_run_on_a_gpu_makes_the_choice_too(tmp_path):
    runtime = RuntimeConfig(device="cuda", quiet=True)
    run = train(small(method_overrides=CHOSEN), tmp_path, runtime=runtime)
    found = read_json(tmp_path / "metrics.json")["training"]["length_scale"]
    assert found["tried"][f"{found['length_scale']:.3g}"] == max(found["tried"].values())
    assert run.predict(torch.zeros(2, 8, 8, 1, dtype=torch.uint8)).variance.isfinite().all()


def test_a_stretched_process_sees_inputs_as_much_nearer():
    from lrformer.heads.laplace_gp import RandomFeaturePosterior

    torch.manual_seed(0)
    head = RandomFeaturePosterior(4, 2, RandomFeatureGPConfig(feature_scale="calibrate"))
    x = torch.randn(50, 4)
    head.calibrate(x)
    before = head.random_features(x)
    head.stretch(2.0)
    assert torch.allclose(head.random_features(2 * x), before, atol=1e-5)
    assert not head.is_fitted
