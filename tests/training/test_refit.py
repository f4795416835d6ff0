"""A run that takes the weights of another ends where its own training would have ended."""

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from lrformer.core import ConfigError
from lrformer.data import load_dataset
from lrformer.evaluation.run_evaluation import _about
from lrformer.methods import Temperature, posthoc
from lrformer.methods.lrformer import LRFormerConfig
from lrformer.methods.sngp import SNGPConfig
from lrformer.training import load_run, running, train, update_metrics
from lrformer.training.atomic_files import read_json, read_tensors, write_json
from lrformer.training.claim import first_difference
from lrformer.training.loop import Training
from lrformer.training.refit import training_of
from lrformer.training.splits import load_splits
from tests.training.small import QUIET, small, weights

FITTED = {"head": "fitted", "feature_scale": "calibrate", "num_random_features": 64}
CHOSEN = {**FITTED, "choose_length_scale": True}


def config(overrides=FITTED, **changes):
    return small(method_overrides=overrides, **{"epochs": 2, **changes})


def refit(asked, out: Path, source: Path):
    return train(asked, out, runtime=QUIET, weights_of=source)


def metrics(folder: Path) -> dict:
    return read_json(folder / "metrics.json")["training"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "source"
    train(config(), folder, runtime=QUIET)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"choose_length_scale": True},
        {"length_scale": 1.0, "ridge": 0.1},
        {"approximation": "monte_carlo", "num_samples": 3},
        {"likelihood": "softmax", "mean_field_factor": 3.0},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_it_equals_to_the_bit_a_run_that_was_trained_anew(source, tmp_path, changes):
    asked = config({**FITTED, **changes})
    refit(asked, tmp_path / "refitted", source)
    train(asked, tmp_path / "anew", runtime=QUIET)
    assert weights(tmp_path / "refitted") == weights(tmp_path / "anew") != weights(source)
    ours, theirs = metrics(tmp_path / "refitted"), metrics(tmp_path / "anew")
    circumstances = {"seconds", "images_per_second"}
    assert ours.pop("weights_of") == os.path.relpath(source, tmp_path / "refitted")
    assert {key: ours[key] for key in ours if key not in circumstances} == {
        key: theirs[key] for key in theirs if key not in circumstances
    }
    assert load_run(tmp_path / "refitted").config == load_run(tmp_path / "anew").config


def test_a_temperature_by_variance_reaches_predictions_metrics_and_words(
    source, tmp_path, monkeypatch
):
    # The small model has little to gain by it.
    monkeypatch.setattr(posthoc, "_LEAST_GAIN", -math.inf)
    asked = config({**FITTED, "temperature_by_variance": True})
    run = load_run(refit(asked, tmp_path / "grown", source).path)
    slope = run.decision.variance_slope
    assert slope > 0
    temperature = Temperature(value=run.decision.temperature, variance_slope=slope)
    _, val = load_splits(asked)
    raw = run.predict(val.x[:], is_calibrated=False)
    calibrated = run.predict(val.x[:])
    assert torch.equal(calibrated.logits, temperature(raw).logits)
    assert not torch.allclose(calibrated.logits, raw.logits / run.decision.temperature)
    loss = torch.nn.functional.nll_loss(calibrated.log_probs, torch.from_numpy(val.y[:]))
    assert metrics(run.path)["validation_calibrated"]["nll"] == pytest.approx(float(loss), rel=1e-4)
    words = f"{run.decision.temperature:.4g} * sqrt(1 + {slope:.4g} * variance)"
    assert _about(run, val, is_calibrated=True, is_own=True)["temperature"] == words
    assert _about(run, val, is_calibrated=True, is_own=True)["started from"].startswith(
        "the weights of ../"
    )
    monkeypatch.setattr(posthoc, "_LEAST_GAIN", math.inf)
    flat = load_run(refit(asked, tmp_path / "flat", source).path)
    assert (
        "no gain on validation" in _about(flat, val, is_calibrated=True, is_own=True)["temperature"]
    )
    plain = load_run(source)
    assert "gain" not in _about(plain, val, is_calibrated=True, is_own=True)["temperature"]
    assert plain.decision.variance_slope == 0
    assert "sqrt" not in _about(plain, val, is_calibrated=True, is_own=True)["temperature"]


def test_a_decision_without_a_slope_is_one_from_before_and_a_wrong_slope_is_named(source, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    decision = read_json(folder / "decision.json")
    del decision["variance_slope"]
    write_json(folder / "decision.json", decision)
    assert load_run(folder).decision.variance_slope == 0
    for slope in (-1.0, math.inf):
        write_json(folder / "decision.json", {**decision, "variance_slope": slope})
        with pytest.raises(ConfigError, match=r"variance_slope \("):
            load_run(folder)


def test_a_chosen_length_scale_is_left_behind_with_the_process_that_had_it(source, tmp_path):
    refit(config(CHOSEN), tmp_path / "chosen", source)
    refit(config(), tmp_path / "back", tmp_path / "chosen")
    assert weights(tmp_path / "back") == weights(source)


def test_the_norms_of_a_bounded_backbone_are_taken_with_its_weights(tmp_path):
    bounded = {**FITTED, "spectral_bound": 0.5}
    train(config(bounded, epochs=1), tmp_path / "source", runtime=QUIET)
    asked = config({**bounded, "length_scale": 1.0}, epochs=1)
    refit(asked, tmp_path / "refitted", tmp_path / "source")
    train(asked, tmp_path / "anew", runtime=QUIET)
    assert weights(tmp_path / "refitted") == weights(tmp_path / "anew")


@pytest.mark.parametrize(
    "changes",
    [{"num_random_features": 48}, {"convention": "sngp"}, {"feature_scale": "layer_norm"}],
)
def test_settings_that_move_the_draws_of_a_training_leave_the_weights_of_the_source(
    source, tmp_path, changes
):
    asked = {**FITTED, **changes}
    run = refit(config(asked), tmp_path, source)
    ours, theirs = (read_tensors(folder / "model.safetensors")[0] for folder in (tmp_path, source))
    learned = [name for name in theirs if not name.startswith("head.random_features.")]
    assert {"head.linear.weight", "head.linear.bias"} < set(learned) < set(ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in learned)
    assert run.method.gp.posterior.precision.shape[-1] == asked["num_random_features"]
    images = torch.from_numpy(load_dataset("digits", split="test").x[:9])
    there = load_run(source)
    assert torch.equal(run.method(run.preprocess(images)), there.method(there.preprocess(images)))
    assert not torch.allclose(run.predict(images).variance, there.predict(images).variance)


def test_its_log_and_seconds_are_those_of_the_source_which_stays_as_it_is(source, tmp_path):
    def files():
        paths = sorted(path for path in source.rglob("*") if path.is_file())
        return [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in paths]

    before = files()
    refit(config(CHOSEN), tmp_path / "refitted", source)
    assert (tmp_path / "refitted" / "log.jsonl").read_bytes() == (source / "log.jsonl").read_bytes()
    for name in ("seconds", "images_per_second"):
        assert metrics(tmp_path / "refitted")[name] == metrics(source)[name] > 0
    assert not (tmp_path / "refitted" / "state").exists()
    assert files() == before
    assert "weights_of" not in metrics(source)


def test_one_that_was_interrupted_is_finished_by_the_same_call(source, tmp_path, monkeypatch):
    def interrupt(training):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, "_fit_posterior", interrupt)
        with pytest.raises(KeyboardInterrupt):
            refit(config(), tmp_path, source)
    refit(config(), tmp_path, source)
    assert weights(tmp_path) == weights(source)
    assert (tmp_path / "log.jsonl").read_bytes() == (source / "log.jsonl").read_bytes()


def test_a_training_that_has_begun_is_not_overwritten(source, tmp_path):
    state = tmp_path / "begun" / "state" / "training.safetensors"
    asked = config(CHOSEN)
    refit(asked, tmp_path / "begun", source)
    (tmp_path / "begun" / "metrics.json").unlink()
    state.parent.mkdir()
    state.write_bytes(b"what a training has come to")
    with pytest.raises(ConfigError, match="begun holds a training of its own that is not finished"):
        refit(asked, tmp_path / "begun", source)
    assert state.read_bytes() == b"what a training has come to"


def test_a_finished_one_is_only_loaded(source, tmp_path, monkeypatch):
    refit(config(), tmp_path, source)
    monkeypatch.setattr(running, "_finish", lambda *_: pytest.fail("it was fitted again"))
    assert refit(config(), tmp_path, source).config.train == config()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (config({"num_random_features": 32}), r"method_overrides\.head is 'fitted' there and None"),
        (config({**FITTED, "head": "linear"}), r"method_overrides\.head is .* and 'linear' here"),
        (config({**FITTED, "spectral_bound": 3.0}), r"spectral_bound is None there and 3\.0 here"),
        (config(epochs=3), "epochs is 2 there and 3 here"),
        (config(seed=1), "seed is 0 there and 1 here"),
        (config(lr=1e-2), r"optimizer\.lr is 0\.003 there and 0\.01 here"),
        (config(classes=(0, 1)), "classes is"),
        (config(model_overrides={"depth": 2}), r"model_overrides\.depth is 1 there and 2 here"),
        (config(CHOSEN, precision="bfloat16"), "precision is 'auto' there and 'bfloat16' here"),
    ],
    ids=["gp", "linear", "spectral_bound", "epochs", "seed", "lr", "classes", "model", "precision"],
)
def test_what_acts_in_training_is_refused_by_name_and_no_folder_is_made(
    source, tmp_path, asked, message
):
    with pytest.raises(ConfigError, match=f"weights of .* cannot be taken: .*{message}"):
        refit(asked, tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_another_head_is_named_before_the_settings_that_come_with_it(tmp_path):
    few = {"num_random_features": 64}
    train(config(few, epochs=1), tmp_path / "trained_gp", runtime=QUIET)
    with pytest.raises(
        ConfigError, match=r"method_overrides\.head is None there and 'fitted' here"
    ):
        refit(config(CHOSEN, epochs=1), tmp_path / "out", tmp_path / "trained_gp")
    # With this head the process is trained, and its settings act in training.
    asked = config({**few, "length_scale": 0.5}, epochs=1)
    with pytest.raises(ConfigError, match=r"length_scale is None there and 0\.5 here"):
        refit(asked, tmp_path / "out", tmp_path / "trained_gp")
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_missing_or_not_finished_is_refused_by_its_name(source, tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not the folder of a run"):
        refit(config(CHOSEN), tmp_path / "out", tmp_path / "nowhere")
    begun = shutil.copytree(source, tmp_path / "begun")
    (begun / "metrics.json").unlink()
    with pytest.raises(ConfigError, match="begun is not finished; run its train command again"):
        refit(config(CHOSEN), tmp_path / "out", begun)
    assert not (tmp_path / "out").exists()


def test_the_place_of_the_data_and_the_accepted_share_may_differ(source, tmp_path):
    asked = config(root=str(tmp_path / "data"), true_positive_rate=0.5)
    run = refit(asked, tmp_path / "out", source)
    there = load_run(source)
    assert run.config.train.root == str(tmp_path / "data")
    assert run.decision.true_positive_rate == 0.5
    assert run.decision.temperature == there.decision.temperature
    assert run.threshold < there.threshold


def test_a_process_that_was_trained_keeps_the_scale_that_it_was_trained_with(tmp_path):
    trained = {"feature_scale": "calibrate", "num_random_features": 64}
    run = train(config(trained, epochs=1), tmp_path / "source", runtime=QUIET)
    asked = config(trained, epochs=1, true_positive_rate=0.5)
    again = refit(asked, tmp_path / "out", tmp_path / "source")
    files = ("model.safetensors", "posterior.safetensors")
    for name in files:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "source" / name).read_bytes()
    assert again.threshold < run.threshold


@pytest.mark.parametrize("method", ["lrformer", "sngp", "dnn_gp"])
def test_the_posterior_of_a_process_that_was_trained_may_be_another(tmp_path, method):
    few = {"num_random_features": 64}
    other = {**few, "ridge": 0.1, "mean_field_factor": 5.0}
    changes = {"epochs": 1, "method": method}
    train(config(few, **changes), tmp_path / "source", runtime=QUIET)
    refit(config(other, **changes), tmp_path / "refitted", tmp_path / "source")
    train(config(other, **changes), tmp_path / "anew", runtime=QUIET)
    assert weights(tmp_path / "refitted") == weights(tmp_path / "anew")
    assert weights(tmp_path / "refitted") != weights(tmp_path / "source")
    refitted, anew = (load_run(tmp_path / name).decision for name in ("refitted", "anew"))
    assert refitted == anew


def test_a_method_without_a_process_has_no_more_than_a_threshold_to_fit_anew(tmp_path):
    plain = config({}, method="deterministic", epochs=1)
    train(plain, tmp_path / "source", runtime=QUIET)
    asked = dataclasses.replace(plain, seed=1)
    with pytest.raises(ConfigError, match="acts after it is score, true_positive_rate; everything"):
        refit(asked, tmp_path / "out", tmp_path / "source")


def test_the_settings_after_training_are_more_where_the_process_is_fitted_afterwards():
    free = LRFormerConfig(head="fitted").settings_after_training
    assert {"length_scale", "choose_length_scale", "ridge", "num_random_features"} < free
    assert not {"head", "spectral_bound"} & free
    for trained in (LRFormerConfig(), LRFormerConfig(head="linear"), SNGPConfig()):
        assert trained.settings_after_training < free
        assert {"ridge", "mean_field_factor", "likelihood"} < trained.settings_after_training
        assert not {"length_scale", "feature_scale"} & trained.settings_after_training
    assert training_of(config(CHOSEN, root="here")) == training_of(config({"head": "fitted"}))
    assert training_of(config({"length_scale": 1.0})) != training_of(config({}))


def test_a_difference_is_a_setting_and_never_an_empty_group_of_them(source):
    there = load_run(source).config

    def with_settings(overrides):
        return dataclasses.replace(there, train=config(overrides))

    assert first_difference(there, there) is None
    found = first_difference(with_settings({}), with_settings({"head": "linear"}))
    assert found == ("method_overrides.head", None, "linear")
    assert first_difference(there, with_settings({**FITTED, "ridge": 2.0})) == (
        "method_overrides.ridge", None, 2.0,
    )  # fmt: skip
    # Of several the one that a user writes first, and not a batch size that follows from the data.
    other = dataclasses.replace(there.train, data="two_moons", batch_size=7, epochs=9)
    found = first_difference(there, dataclasses.replace(there, train=other))
    assert found == ("data", "digits", "two_moons")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"data": "cifar10", "method": "sngp", "model": "auto"}, ("data", "digits", "cifar10")),
        ({"method": "sngp", "model": "auto"}, ("method", "lrformer", "sngp")),
        ({"model": "lrformer_tiny"}, ("model", "lrformer_digits", "lrformer_tiny")),
        ({}, ("model_overrides.patch_size", None, 4)),
    ],
)
def test_what_follows_from_data_method_or_model_is_named_after_them(source, changes, found):
    there = load_run(source).config
    here = dataclasses.replace(
        there.train, **changes, model_overrides={**there.train.model_overrides, "patch_size": 4}
    )
    assert first_difference(there, dataclasses.replace(there, train=here)) == found


@pytest.mark.parametrize("name", ["decision.json", "posterior.safetensors"])
@pytest.mark.parametrize("overrides", [FITTED, {}], ids=["fitted", "trained"])
def test_what_is_missing_of_a_finished_run_is_fitted_to_its_weights_again(
    tmp_path, name, overrides, monkeypatch
):
    first = train(config(overrides, epochs=1), tmp_path, runtime=QUIET)
    update_metrics(tmp_path, "evaluation", {"kept": True})
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    (tmp_path / name).unlink()
    monkeypatch.setattr(Training, "run", lambda _: pytest.fail("the run was trained again"))
    again = train(config(overrides, epochs=1), tmp_path, runtime=QUIET)
    assert again.decision == first.decision
    for kept in ("model.safetensors", "posterior.safetensors", "decision.json", "log.jsonl"):
        assert (tmp_path / kept).read_bytes() == before[kept]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["evaluation"] == {"kept": True}
    assert "weights_of" not in metrics["training"]
    assert (
        metrics["training"]["seconds"] == json.loads(before["metrics.json"])["training"]["seconds"]
    )


def test_what_was_said_of_lost_weights_is_forgotten_with_them(tmp_path):
    train(config({}, epochs=1), tmp_path, runtime=QUIET)
    update_metrics(tmp_path, "evaluation", {"of": "the old weights"})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"the run was finished. Restore it from a copy"):
        load_run(tmp_path)
    train(config({}, epochs=1), tmp_path, runtime=QUIET)
    assert list(json.loads((tmp_path / "metrics.json").read_text())) == ["training"]


def test_what_was_said_of_replaced_weights_is_forgotten_too(tmp_path):
    train(config({}, epochs=1), tmp_path / "run", runtime=QUIET)
    train(config({}, epochs=2), tmp_path / "other", runtime=QUIET)
    update_metrics(tmp_path / "run", "evaluation", {"of": "the old weights"})
    shutil.copy(tmp_path / "other" / "model.safetensors", tmp_path / "run")
    with pytest.raises(ConfigError, match="another run"):
        load_run(tmp_path / "run")
    for name in ("posterior.safetensors", "decision.json"):
        (tmp_path / "run" / name).unlink()
    train(config({}, epochs=1), tmp_path / "run", runtime=QUIET)
    assert list(json.loads((tmp_path / "run" / "metrics.json").read_text())) == ["training"]


def test_a_refitted_run_needs_its_source_no_more_and_keeps_what_is_said_of_its_training(tmp_path):
    train(config(epochs=1), tmp_path / "source", runtime=QUIET)
    asked = config({**FITTED, "ridge": 3.0}, epochs=1)
    first = refit(asked, tmp_path / "out", tmp_path / "source")
    record = read_json(tmp_path / "out" / "metrics.json")
    record["training"] |= {"device": "a GPU", "num_processes": 8}
    write_json(tmp_path / "out" / "metrics.json", record)
    shutil.rmtree(tmp_path / "source")
    (tmp_path / "out" / "decision.json").unlink()
    again = refit(asked, tmp_path / "out", tmp_path / "source")
    assert again.decision == first.decision
    assert metrics(tmp_path / "out") == record["training"]
    assert metrics(tmp_path / "out")["weights_of"] == "../source"


def test_weights_that_were_damaged_or_replaced_are_not_taken(source, tmp_path):
    damaged = shutil.copytree(source, tmp_path / "damaged")
    path = damaged / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # within the numbers: the file can be read
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors does not hold the weights"):
        refit(config({**FITTED, "ridge": 0.5}), tmp_path / "refitted", damaged)
    assert not (tmp_path / "refitted").exists()
