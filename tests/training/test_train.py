"""Whole runs: what they write, that they learn, and that equal things are equal."""

import dataclasses
import json
import math
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from lrformer.core import ConfigError, MissingExtraError
from lrformer.data import SHIFT_AND_FLIP, AugmentConfig, DeviceBatches, Split
from lrformer.heads import DUQHead, Predictive
from lrformer.methods import METHODS, list_methods
from lrformer.training import RuntimeConfig, TrainConfig, load_run, running, train
from lrformer.training.atomic_files import read_tensors
from lrformer.training.claim import claim_folder
from lrformer.training.metrics_file import update_metrics
from lrformer.training.running import check_run, resolve
from lrformer.training.step import OptimizerStep
from lrformer.training.validation import rough_temperature, weak_classes
from tests.evaluation.made_run import write_image_folder, write_images
from tests.tolerance import assert_close
from tests.training.small import PLAIN, QUIET, SMALL, flat, small, weights

OVERRIDES = {
    "mcd_gp": {"num_random_features": 32},
    "dnn_gp": {"num_random_features": 32},
    "sngp": {"num_random_features": 32},
    "lrformer": {"num_random_features": 32},
    "duq": {"centroid_dim": 8, "gamma": 0.9, "length_scale": 0.3},
    "deep_ensemble": {"num_members": 2},
}


@pytest.mark.parametrize("method", list_methods())
def test_every_method_trains_and_predicts_from_its_folder(tmp_path, method):
    smoothing = SMALL.label_smoothing if METHODS[method].uses_criterion else 0.0
    overrides = OVERRIDES.get(method, {})
    config = small(method=method, method_overrides=overrides, epochs=1, label_smoothing=smoothing)
    run = train(config, tmp_path / "run", runtime=QUIET)
    files = {path.name for path in run.path.iterdir()}
    assert files == {
        "config.json",
        "decision.json",
        "log.jsonl",
        "metrics.json",
        "model.safetensors",
        "posterior.safetensors",
    }
    again = load_run(run.path)
    raw = torch.zeros(3, 8, 8, 1, dtype=torch.uint8)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    first = run.predict(raw, generator=generators[0])
    second = again.predict(raw, generator=generators[1])
    assert torch.equal(first.logits, second.logits)
    assert first.logits.isfinite().all()


@pytest.mark.parametrize(
    ("name", "lr"), [("adamw", 1e-2), ("sgd", 0.1), ("lamb", 3e-2), ("muon", 1e-2)]
)
def test_every_optimizer_learns_the_digits(tmp_path, name, lr):
    config = small(PLAIN, name=name, lr=lr, epochs=12, batch_size=32, label_smoothing=0.0)
    train(config, tmp_path, runtime=QUIET)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    assert log[-1]["val_accuracy"] > 0.6  # chance is a quarter
    metrics = json.loads((tmp_path / "metrics.json").read_text())["training"]
    assert metrics["validation"]["accuracy"] == pytest.approx(log[-1]["val_accuracy"])
    # The imagined input of fit_temperature can cost a little on so few images.
    assert metrics["validation_calibrated"]["nll"] <= 1.05 * metrics["validation"]["nll"]


def test_what_is_left_to_the_data_is_chosen_and_written_down(tmp_path):
    tiny = {"depth": 1, "embed_dim": 16, "num_heads": 2}
    left_open = TrainConfig(
        data="digits", classes=(0, 1, 2, 3), model_overrides=tiny, method="deterministic", epochs=1
    )
    run = train(left_open, tmp_path / "open", runtime=QUIET)
    chosen = run.config.train
    assert chosen.model == "lrformer_digits"
    assert chosen.model_overrides == {"patch_size": 4, **tiny}
    assert chosen.batch_size == 16  # 517 training images
    assert (chosen.optimizer.lr, chosen.optimizer.weight_decay) == (1e-3, 0.05)
    assert train(left_open, tmp_path / "open", runtime=QUIET).config == run.config
    said = dataclasses.replace(left_open, batch_size=128, model_overrides={**tiny, "patch_size": 2})
    kept = train(said, tmp_path / "said", runtime=QUIET).config.train
    assert (kept.batch_size, kept.model_overrides) == (128, {**tiny, "patch_size": 2})
    named = dataclasses.replace(left_open, model="lrformer_digits")
    assert train(named, tmp_path / "named", runtime=QUIET).config.train.model_overrides == tiny


@pytest.mark.parametrize(("num_images", "is_few"), [(4095, True), (4096, False)])
def test_few_images_get_a_small_model_unless_a_run_is_to_be_continued(num_images, is_few):
    split = Split(
        name="pets/train",
        x=np.broadcast_to(np.uint8(0), (num_images, 32, 32, 3)),
        y=np.broadcast_to(np.int64(0), (num_images,)),
        class_names=("cat", "dog"),
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
    )
    config = TrainConfig(data="pets", model_overrides={"depth": 3})
    chosen = resolve(config, split)
    small_model = {"num_convs": 2, "embed_dim": 128} if is_few else {}
    assert chosen.model == "lrformer_compact_32"
    assert chosen.model_overrides == {**small_model, "depth": 3}
    continued = resolve(dataclasses.replace(config, start="."), split)
    assert continued.model_overrides == {"depth": 3}
    foreign = resolve(dataclasses.replace(config, start="vit_tiny_patch16_224"), split)
    assert (foreign.model, foreign.model_overrides) == ("auto", {"depth": 3})


def test_the_log_has_every_figure_of_every_epoch(tmp_path):
    train(small(epochs=2), tmp_path, runtime=QUIET)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == [0, 1]
    wanted = {"loss", "accuracy", "lr", "seconds", "images_per_second", "val_accuracy", "val_nll"}
    assert wanted | {"val_ece", "val_logit_norm", "val_overconfidence"} <= set(log[0])


def test_the_log_has_the_rate_of_the_last_step_of_every_epoch(tmp_path):
    config = small(PLAIN, epochs=3, lr=3e-3, warmup_epochs=1.0, final_lr_ratio=0.1)
    train(config, tmp_path, runtime=QUIET)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    num_steps = 517 // 64  # of an epoch
    cosines = [(1 + math.cos(math.pi * done / (2 * num_steps))) / 2 for done in (7, 15)]
    expected = [3e-3, *(3e-3 * (0.1 + 0.9 * cosine) for cosine in cosines)]
    assert num_steps == 8
    assert [entry["lr"] for entry in log] == pytest.approx(expected)


def test_every_member_of_an_ensemble_sees_orders_of_its_own(tmp_path, monkeypatch):
    orders, order = [], DeviceBatches.order

    def kept(batches, epoch):
        rows = order(batches, epoch)
        if len(rows) > 400:
            orders.append(tuple(rows.tolist()))
        return rows

    monkeypatch.setattr(DeviceBatches, "order", kept)
    config = small(PLAIN, method="deep_ensemble", method_overrides={"num_members": 2}, epochs=2)
    train(config, tmp_path, runtime=QUIET)
    assert len(set(orders)) >= 4


@pytest.mark.parametrize("name", ["model.safetensors", "posterior.safetensors", "decision.json"])
def test_a_file_that_was_deleted_is_made_anew_by_the_same_call(tmp_path, name):
    train(small(epochs=1), tmp_path, runtime=QUIET)
    before = weights(tmp_path)
    (tmp_path / name).unlink()
    train(small(epochs=1), tmp_path, runtime=QUIET)
    assert weights(tmp_path) == before
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_weights_are_not_trained_over_where_the_metrics_are_gone(tmp_path):
    train(small(epochs=1), tmp_path, runtime=QUIET)
    metrics, before = (tmp_path / "metrics.json").read_bytes(), weights(tmp_path)
    (tmp_path / "metrics.json").unlink()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"files of a finished run, and metrics\.json .*gone"):
            train(small(epochs=1), tmp_path, runtime=QUIET)
        update_metrics(tmp_path, "evaluation", {"of": "the run"})
    assert weights(tmp_path) == before
    (tmp_path / "metrics.json").write_bytes(metrics)
    train(small(epochs=1), tmp_path, runtime=QUIET)


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    for source, target in ((one, between), (other, one), (between, other)):
        source.rename(target)


def test_data_that_changed_are_said_to_have_changed(tmp_path):
    write_image_folder(tmp_path / "data")
    config = TrainConfig(
        data=str(tmp_path / "data"),
        root=str(tmp_path / "cache"),
        model_overrides={"depth": 1, "embed_dim": 16, "num_heads": 2},
        method="deterministic",
        epochs=1,
    )
    run = train(config, tmp_path / "run", runtime=QUIET)
    otherwise = dataclasses.replace(config, data=f"{tmp_path}/./run/../data/")
    assert train(otherwise, tmp_path / "run", runtime=QUIET).config == run.config
    # Other labels, which statistics do not see.
    swap(tmp_path / "data" / "train" / "red", tmp_path / "data" / "train" / "blue")
    with pytest.raises(ConfigError, match=r"a run on other data: their (mean|std|data_digest) is"):
        train(config, tmp_path / "run", runtime=QUIET)
    swap(tmp_path / "data" / "train" / "red", tmp_path / "data" / "train" / "blue")
    assert train(config, tmp_path / "run", runtime=QUIET).config == run.config
    digest = dataclasses.replace(run.config, data_digest="another")
    with pytest.raises(ConfigError, match="a run on other data: their data_digest is"):
        claim_folder(tmp_path / "run", digest)
    claim_folder(tmp_path / "run", dataclasses.replace(run.config, data_digest=None))
    write_images(tmp_path / "data" / "train" / "red", (10, 10, 10), 3, seed=9)
    with pytest.raises(ConfigError, match="a run on other data: their mean is"):
        train(config, tmp_path / "run", runtime=QUIET)
    changed = dataclasses.replace(config, true_positive_rate=0.5)
    with pytest.raises(ConfigError, match=r"run were trained on other data: their mean is"):
        train(changed, tmp_path / "again", runtime=QUIET, weights_of=tmp_path / "run")


def test_pieces_of_a_batch_are_the_batch(tmp_path):
    whole = train(small(PLAIN, name="sgd", lr=0.05), tmp_path / "a", runtime=QUIET)
    pieces = train(small(PLAIN, name="sgd", lr=0.05, accumulate=4), tmp_path / "b", runtime=QUIET)
    one, other = (flat(run.path, "model.safetensors") for run in (whole, pieces))
    assert_close(other, one, 1e-6)


def test_the_same_seed_is_the_same_run_and_another_is_not(tmp_path):
    runs = [
        train(small(epochs=1, seed=seed), tmp_path / str(index), runtime=QUIET)
        for index, seed in enumerate((0, 0, 1))
    ]
    first, second, third = ((run.path / "model.safetensors").read_bytes() for run in runs)
    assert first == second
    assert first != third


def test_a_finished_run_is_only_loaded(tmp_path, monkeypatch):
    config = small(PLAIN, epochs=1)
    train(config, tmp_path, runtime=QUIET)
    monkeypatch.setattr("lrformer.training.loop.Training.run", None)
    run = train(config, tmp_path, runtime=QUIET)
    assert run.class_names == ("0", "1", "2", "3")


def test_the_threshold_accepts_the_stated_share_of_validation(tmp_path):
    from lrformer.training.splits import load_splits

    config = small(PLAIN, epochs=1, true_positive_rate=0.8)
    run = train(config, tmp_path, runtime=QUIET)
    _, val = load_splits(config)
    accepted = run.is_in_distribution(run.predict(torch.from_numpy(val.x[:])))
    assert 0.8 <= float(accepted.float().mean()) < 0.8 + 2 / len(val)


def test_a_run_starts_from_the_backbone_of_another_at_another_size(tmp_path):
    first = train(small(epochs=2), tmp_path / "a", runtime=QUIET)
    larger = {**first.config.train.model_overrides, "img_size": 16}
    config = small(epochs=1, start=str(first.path), model_overrides=larger, lr=1e-9)
    second = train(config, tmp_path / "b", runtime=QUIET)
    kept = "backbone.blocks.0.mlp.fc1.weight"
    one, other = (read_tensors(run.path / "model.safetensors")[0] for run in (first, second))
    assert_close(other[kept], one[kept], 1e-4)
    assert one["backbone.pos_embed"].shape[1] == 16
    assert other["backbone.pos_embed"].shape[1] == 64
    deeper = {**first.config.train.model_overrides, "depth": 2}
    config = small(start=str(first.path), model_overrides=deeper)
    with pytest.raises(ConfigError, match="cannot start this model"):
        train(config, tmp_path / "c", runtime=QUIET)


def test_points_are_trained_on_too(tmp_path):
    overrides = {"depth": 1, "embed_dim": 16, "num_heads": 2}
    config = small(PLAIN, data="two_moons", classes=None, model="auto", model_overrides=overrides)
    config = small(config, epochs=2)
    run = train(config, tmp_path, runtime=QUIET)
    assert run.config.train.model == "lrformer_two_moons"
    assert run.predict(torch.zeros(2, 2)).logits.shape == (2, 2)


def test_points_are_not_varied_as_images_are(tmp_path):
    config = small(PLAIN, data="two_moons", classes=None, model="auto", model_overrides={})
    varied = dataclasses.replace(config, augment=SHIFT_AND_FLIP)
    for refusing in (
        lambda: train(varied, tmp_path / "run", runtime=QUIET),
        lambda: check_run(varied),
    ):
        with pytest.raises(
            ConfigError,
            match=r"augment \(crop='shift', flip=True\) is for images, but two_moons/train",
        ):
            refusing()
    assert not (tmp_path / "run").exists()


def test_a_run_on_points_that_stores_an_augmentation_goes_on(tmp_path, monkeypatch):
    overrides = {"depth": 1, "embed_dim": 16, "num_heads": 2}
    config = small(PLAIN, data="two_moons", classes=None, model="auto", model_overrides=overrides)
    config = small(config, epochs=1, augment=SHIFT_AND_FLIP)
    with monkeypatch.context() as patched:
        patched.setattr(running, "check_augment", lambda *_: None)
        train(config, tmp_path, runtime=QUIET)
    assert train(config, tmp_path, runtime=QUIET).config.train.augment == SHIFT_AND_FLIP


def test_mixed_images_have_soft_targets_and_train(tmp_path):
    from lrformer.data import AugmentConfig

    augment = AugmentConfig(mixup_alpha=0.2, cutmix_alpha=1.0)
    config = small(PLAIN, epochs=1, augment=augment, loss="binary_cross_entropy")
    run = train(config, tmp_path, runtime=QUIET)
    assert run.method.num_classes == 4


def test_a_compiled_run_compiles_the_augmentation_of_its_steps_and_nothing_else(
    tmp_path, monkeypatch
):
    called = set()

    def compiled(function):
        def run(images, *rest, **settings):
            called.add((function.__name__, len(images)))
            return function(images, *rest, **settings)

        return run

    monkeypatch.setattr("lrformer.data.batches._compiled", compiled)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: None)
    config = small(augment=AugmentConfig(crop="shift", mixup_alpha=0.5), epochs=1)
    train(config, tmp_path / "plain", runtime=QUIET)
    assert not called
    train(config, tmp_path / "compiled", runtime=dataclasses.replace(QUIET, compile=True))
    # Only whole batches of training: what is validated or fitted to comes in other sizes.
    assert called == {("finish_images", 64), ("mix_images", 64)}
    assert weights(tmp_path / "plain") == weights(tmp_path / "compiled")


def test_bfloat16_trains_with_float32_weights(tmp_path):
    run = train(small(epochs=1, precision="bfloat16"), tmp_path, runtime=QUIET)
    dtypes = {parameter.dtype for parameter in run.method.parameters()}
    assert dtypes == {torch.float32}


def test_tensorboard_without_its_package_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="tensorboard"):
        train(small(epochs=1), tmp_path, runtime=RuntimeConfig(device="cpu", tensorboard=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "lrformer_digit"}, "Did you mean 'lrformer_digits'"),
        ({"method": "snpg"}, "Did you mean 'sngp'"),
        ({"model_overrides": {"detph": 1}}, "Did you mean 'depth'"),
        ({"method_overrides": {"ridg": 1}}, "Did you mean 'ridge'"),
        ({"start": "vit_tiny_patch16_22"}, "Did you mean 'vit_tiny_patch16_224'"),
        ({"batch_size": 4096}, "smaller batch_size"),
    ],
)
def test_a_wrong_name_is_refused_before_the_run_begins(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(small(**changes), tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small(PLAIN, pretrained=False), r"pretrained \(False\) is for a model of timm"),
        (
            TrainConfig(data="two_moons", method="deterministic", image_size=32),
            r"image_size \(32\) is for images, and two_moons/train holds points",
        ),
        (
            small(PLAIN, method="duq", method_overrides=OVERRIDES["duq"]),
            r"label_smoothing \(0.1\) is not for method 'duq', whose loss is its own",
        ),
        (
            small(PLAIN, method="due", label_smoothing=0.0, loss="binary_cross_entropy"),
            r"loss \('binary_cross_entropy'\) is not for method 'due'",
        ),
    ],
)
def test_a_setting_that_would_not_be_looked_at_is_refused(tmp_path, config, message):
    with pytest.raises(ConfigError, match=message):
        train(config, tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()


def test_a_process_that_is_not_updated_in_training_is_fitted_after_it(tmp_path):
    overrides = {"num_random_features": 32}
    later = {**overrides, "update_in_training": False}
    runs = [
        train(
            small(PLAIN, method="sngp", method_overrides=o, epochs=2),
            tmp_path / str(k),
            runtime=QUIET,
        )
        for k, o in enumerate((overrides, later))
    ]
    digits = np.zeros((3, 8, 8, 1), np.uint8)
    at_once, after = (run.predict(digits) for run in runs)
    assert_close(after.variance, at_once.variance, 1e-6)
    assert_close(after.logits, at_once.logits, 1e-6)
    log = [json.loads(line) for line in (tmp_path / "1" / "log.jsonl").read_text().splitlines()]
    assert all(math.isfinite(entry["val_nll"]) for entry in log)


def test_plain_lines_are_shown_where_there_is_no_terminal(tmp_path, capsys):
    train(small(PLAIN, epochs=1), tmp_path, runtime=RuntimeConfig(device="cpu"))
    shown = capsys.readouterr().err
    assert ": 1 epoch of " in shown
    assert "epoch 1/1  loss" in shown
    assert "images/s" in shown


def test_centroids_move_once_a_step_whatever_the_pieces(tmp_path):
    overrides = {"centroid_dim": 4, "gamma": 0.9}
    config = small(PLAIN, method="duq", method_overrides=overrides, label_smoothing=0.0)
    whole = train(config, tmp_path / "a", runtime=QUIET)
    pieces = train(dataclasses.replace(config, accumulate=4), tmp_path / "b", runtime=QUIET)
    assert isinstance(whole.method.head, DUQHead)
    assert isinstance(pieces.method.head, DUQHead)
    assert_close(pieces.method.head.counts, whole.method.head.counts, 1e-5)
    assert_close(pieces.method.head.centroids, whole.method.head.centroids, 1e-3)


@pytest.mark.parametrize(("method", "is_whole"), [("deterministic", False), ("duq", True)])
def test_pieces_are_put_together_only_for_a_method_that_follows_steps(
    tmp_path, monkeypatch, method, is_whole
):
    follow = Mock()
    monkeypatch.setattr(OptimizerStep, "_follow", follow)
    config = small(PLAIN, method=method, accumulate=2, epochs=1, label_smoothing=0.0)
    train(config, tmp_path, runtime=QUIET)
    assert follow.called == is_whole


def test_an_average_over_batches_is_not_taken_over_pieces(tmp_path):
    config = small(method_overrides={"num_random_features": 32, "momentum": 0.9}, accumulate=2)
    with pytest.raises(ConfigError, match=r"momentum \(0.9\) averages .*accumulate \(2\)"):
        train(config, tmp_path / "run", runtime=QUIET)
    assert not (tmp_path / "run").exists()


def test_validation_samples_that_are_trained_on_too_are_said(tmp_path, capsys):
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(20) % 2
    for name, times in (("once", 1), ("often", 4)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "train-x.npy", np.concatenate([images] * times))
        np.save(tmp_path / name / "train-y.npy", np.concatenate([labels] * times))
        config = small(PLAIN, data=str(tmp_path / name), classes=None, epochs=1, batch_size=4)
        loud = dataclasses.replace(QUIET, quiet=False)
        train(dataclasses.replace(config, val_fraction=0.2), tmp_path / f"run-{name}", runtime=loud)
        said = capsys.readouterr().err
        assert ("validation samples are trained on too" in said) == (times > 1)


def test_a_run_keeps_whether_its_images_were_scaled_as_files(tmp_path):
    data = write_image_folder(tmp_path / "data")
    config = small(PLAIN, classes=None, epochs=1, batch_size=8)
    files = dataclasses.replace(config, data=str(data), root=str(tmp_path / "cache"))
    assert train(files, tmp_path / "files", runtime=QUIET).config.scales_files is True
    arrays = train(small(PLAIN, epochs=1), tmp_path / "arrays", runtime=QUIET)
    assert arrays.config.scales_files is False


def test_classes_of_different_sizes_are_said_and_can_count_alike(tmp_path, capsys):
    for name, color, number in (("blue", (30, 30, 200), 60), ("red", (200, 30, 30), 12)):
        write_images(tmp_path / "data" / "train" / name, color, number, seed=number)
    loud = RuntimeConfig(device="cpu")
    data = {"data": str(tmp_path / "data"), "root": str(tmp_path / "cache"), "image_size": 8}
    config = small(PLAIN, classes=None, epochs=1, batch_size=8, **data)
    plain = train(config, tmp_path / "plain", runtime=loud)
    said = capsys.readouterr().err
    assert "classes of 11 (red) to 54 (blue) samples" in said
    balanced = train(small(config, class_weights="balanced"), tmp_path / "balanced", runtime=QUIET)
    assert weights(plain.path) != weights(balanced.path)


def test_classes_without_a_right_answer_and_few_samples_for_a_temperature_are_said():
    predictive = Predictive(logits=torch.tensor([[2.0, 1.0, 0.0]] * 4))
    names = ("ant", "bee", "cow")
    line = weak_classes(predictive, torch.tensor([0, 0, 1, 1]), names)
    assert line is not None
    assert line.endswith("is answered rightly: bee (0 of 2)")
    assert weak_classes(predictive, torch.tensor([0, 0, 0, 0]), names) is None
    assert "fitted to 4 validation samples" in str(rough_temperature(4))
    assert rough_temperature(50) is None
