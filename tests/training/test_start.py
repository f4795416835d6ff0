"""A run that starts from another takes its model too, unless it names one."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch

import lrformer
from lrformer import create_model
from lrformer.core import ConfigError
from lrformer.training import load_run, train
from lrformer.training.atomic_files import read_tensors
from lrformer.training.run_folder import save_method, write_decision
from lrformer.training.splits import load_splits
from lrformer.training.start import seen_validation
from tests.tolerance import assert_close
from tests.training.interruption import interrupt, stop_at
from tests.training.small import PLAIN, QUIET, small, weights

TIMM = {"depth": 1, "img_size": 16, "patch_size": 8, "embed_dim": 48, "alpha": 3.0}


def follow(first, **changes):
    """Return a config that starts from a run, names no model and hardly learns."""
    return follow_folder(first.path, **changes)


def follow_folder(folder, **changes):
    return small(
        PLAIN,
        **{
            "model": "auto",
            "model_overrides": {},
            "start": str(folder),
            "epochs": 1,
            "lr": 1e-9,
        }
        | changes,
    )


def weights_of(run) -> dict[str, torch.Tensor]:
    tensors = read_tensors(run.path / "model.safetensors")[0]
    return {name: value for name, value in tensors.items() if name.startswith("backbone.")}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """Return a run of a preset with settings of its own, the channels of the data not among them."""
    overrides = {**small().model_overrides, "alpha": 7.0}
    config = small(epochs=1, image_size=12, model_overrides=overrides)
    return train(config, tmp_path_factory.mktemp("ours"), runtime=QUIET)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    config = small(
        PLAIN, model="auto", start="vit_tiny_patch16_224", pretrained=False, model_overrides=TIMM
    )
    return train(config, tmp_path_factory.mktemp("foreign"), runtime=QUIET)


def test_the_settings_of_the_first_run_are_taken_with_its_weights(ours, tmp_path):
    config = follow(ours)
    second = train(config, tmp_path, runtime=QUIET)
    assert second.config.train.model == "lrformer_digits"
    assert second.config.train.model_overrides == ours.config.train.model_overrides
    assert second.config.img_size == 12
    for name, value in weights_of(ours).items():
        assert_close(weights_of(second)[name], value, 1e-4)
    # The same call goes on with the same run.
    assert train(config, tmp_path, runtime=QUIET).config == second.config


def test_what_the_second_run_sets_wins(ours, tmp_path):
    config = follow(ours, image_size=16, model_overrides={"alpha": 5.0})
    second = train(config, tmp_path, runtime=QUIET)
    assert second.config.img_size == 16
    assert second.config.train.model_overrides == {
        **ours.config.train.model_overrides,
        "alpha": 5.0,
    }
    alphas = {float(v.mean()) for n, v in weights_of(second).items() if n.endswith(".alpha")}
    assert alphas == {5.0}


def test_a_model_of_timm_is_taken_as_it_is_also_from_a_run_of_a_run(foreign, tmp_path):
    second = train(follow(foreign), tmp_path / "second", runtime=QUIET)
    third = train(follow(second), tmp_path / "third", runtime=QUIET)
    for run in (second, third):
        assert run.config.backbone == foreign.config.backbone
        assert run.config.train.model == "start"
        for name, value in weights_of(foreign).items():
            assert_close(weights_of(run)[name], value, 1e-4)
    raw = np.zeros((2, 8, 8, 1), np.uint8)
    loaded = load_run(third.path)
    assert torch.equal(loaded.predict(raw).logits, third.predict(raw).logits)


def test_alphas_that_are_not_those_of_the_settings_come_along(foreign, tmp_path):
    # As after a conversion that saw data: the settings say 3.
    shutil.copytree(foreign.path, tmp_path / "changed")
    changed = load_run(tmp_path / "changed")
    with torch.no_grad():
        changed.method.backbone.blocks[0].attn.alpha.mul_(2)
    save_method(changed.path, changed.method)
    write_decision(changed.path, changed.decision)
    second = train(follow(changed), tmp_path / "second", runtime=QUIET)
    alpha = weights_of(second)["backbone.blocks.0.attn.alpha"]
    assert torch.equal(alpha, torch.full_like(alpha, 6.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_overrides": {"depth": 2}},
            r"depth \(2\) cannot be set: .* that is taken as it is",
        ),
        ({"image_size": 32}, r"image_size \(32\) cannot be set: .* images of 16 pixels"),
    ],
)
def test_a_foreign_model_is_not_changed(foreign, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(follow(foreign, **changes), tmp_path / "new", runtime=QUIET)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": "runs/nowhere"}, r"start \('runs/nowhere'\) is no folder"),
        ({"start": ""}, r"start \(''\) is no folder"),
        ({"pretrained": False}, "pretrained is off, and start"),
        ({"image_size": 0}, r"img_size \(0\) must be at least 1"),
        ({"start": None, "model": "start"}, "unknown model 'start'"),
    ],
)
def test_what_cannot_be_a_start_is_said_before_anything_is_made(ours, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        train(follow(ours, **changes), tmp_path / "new", runtime=QUIET)
    assert not (tmp_path / "new").exists()


def saved_vit(folder):
    """Return a converted timm model that learned its alphas from data, saved for one channel of 16 pixels."""
    timm = pytest.importorskip("timm")
    settings = {"depth": 1, "embed_dim": 48, "img_size": 16, "patch_size": 8, "in_chans": 1}
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=7, **settings)
    model = lrformer.convert(vit, calibration=torch.randn(4, 1, 16, 16))
    lrformer.save(model, folder, model_kwargs={"patch_size": 8, "embed_dim": 48})
    return model


def saved_preset(folder, **changes):
    model = create_model("lrformer_digits", num_classes=7, depth=1, alpha=5.0, **changes)
    lrformer.save(model, folder)
    return model


@pytest.mark.parametrize("make", [saved_vit, saved_preset])
def test_a_saved_model_is_trained_on_as_it_is(make, tmp_path):
    model = make(tmp_path / "kept")
    config = dataclasses.replace(follow_folder(tmp_path / "kept"), epochs=2)
    run = train(config, tmp_path / "run", runtime=QUIET)
    assert run.config.train.model == "start"
    state = model.state_dict()
    found = weights_of(run)
    assert found
    for name, value in found.items():
        expected = state[name.removeprefix("backbone.")]
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)
    assert set(found) == {f"backbone.{name}" for name in state if not name.startswith("head.")}
    assert (run.config.backbone.conversion is None) == (make is saved_preset)
    # The run stands by itself, goes on by itself, and is itself a start.
    shutil.rmtree(tmp_path / "kept")
    assert train(config, tmp_path / "run", runtime=QUIET).config == run.config
    second = train(follow(run), tmp_path / "second", runtime=QUIET)
    assert second.config.backbone == run.config.backbone
    raw = np.zeros((2, 8, 8, 1), np.uint8)
    assert torch.equal(load_run(run.path).predict(raw).logits, run.predict(raw).logits)


def test_a_run_that_named_the_model_of_its_saved_start_goes_on_with_it(tmp_path):
    saved_preset(tmp_path / "kept")
    named = {"model": "lrformer_digits", "model_overrides": {"depth": 1}}
    first = train(follow_folder(tmp_path / "kept", **named), tmp_path / "run", runtime=QUIET)
    again = train(follow_folder(tmp_path / "kept"), tmp_path / "run", runtime=QUIET)
    assert again.config == first.config


def test_what_a_saved_model_cannot_be_used_for_is_said(tmp_path):
    saved_preset(tmp_path / "grey")
    saved_preset(tmp_path / "colour", in_chans=3)
    lrformer.save(create_model("lrformer_two_moons", num_classes=2), tmp_path / "points")
    transformers = pytest.importorskip("transformers")
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=9, intermediate_size=8, **tiny)
    )
    lrformer.save(lrformer.convert(bert), tmp_path / "text")
    wide = create_model("lrformer_two_moons", num_classes=2, num_inputs=3)
    lrformer.save(wide, tmp_path / "space")
    (tmp_path / "nothing").mkdir()
    for name, changes, message in (
        (
            "grey",
            {"model_overrides": {"depth": 2}},
            r"depth \(2\) cannot be set: .* taken as it is",
        ),
        ("colour", {}, r"has 1 channels, but the model of .*colour takes 3"),
        ("points", {}, r"holds images, but the model of .*points reads points"),
        (
            "space",
            {"data": "two_moons", "classes": None},
            "has 2 coordinates, but the model of .* takes 3",
        ),
        ("text", {}, "holds a model of transformers, which train cannot go on with"),
        ("nothing", {}, "not the folder of a run or of a saved model"),
    ):
        config = dataclasses.replace(follow_folder(tmp_path / name), **changes)
        with pytest.raises(ConfigError, match=message):
            train(config, tmp_path / "new", runtime=QUIET)
    assert not (tmp_path / "new").exists()


def test_a_wrong_name_of_a_timm_model_is_said_before_the_data_are_read(tmp_path):
    config = small(PLAIN, model="auto", model_overrides={}, start="vit_tny", data="nowhere")
    with pytest.raises(ConfigError, match=r"'vit_tny' is neither a folder nor a model of timm"):
        train(config, tmp_path / "new", runtime=QUIET)


@pytest.mark.parametrize("kind", ["ours", "foreign"])
def test_colours_for_a_grey_model_are_named(kind, request, tmp_path):
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        np.save(tmp_path / f"{split}-x.npy", generator.integers(0, 256, (20, 8, 8, 3), np.uint8))
        np.save(tmp_path / f"{split}-y.npy", np.arange(20) % 2)
    first = request.getfixturevalue(kind)
    config = follow(first, data=str(tmp_path), classes=None, batch_size=4)
    with pytest.raises(ConfigError, match=r"has 3 channels, but the model of .* takes 1"):
        train(config, tmp_path / "new", runtime=QUIET)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["ours", "foreign"])
def test_once_it_has_weights_a_run_does_not_need_the_one_it_started_from(
    kind, request, tmp_path, monkeypatch
):
    first = request.getfixturevalue(kind)
    shutil.copytree(first.path, tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    config = follow(first, start="first", method="lrformer", epochs=2, lr=1e-2)
    config = dataclasses.replace(config, method_overrides={"num_random_features": 32})
    whole = train(config, "whole", runtime=QUIET)
    with monkeypatch.context() as patched:
        stop_at(patched, 5, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config, "begun", runtime=QUIET)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    # From another place, and under another name for the same folder.
    train(dataclasses.replace(config, start="../first"), "../whole", runtime=QUIET)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("first")
    assert train(config, "whole", runtime=QUIET).config == whole.config
    train(config, "begun", runtime=QUIET)
    assert weights(tmp_path / "begun") == weights(tmp_path / "whole")
    overrides = {**config.method_overrides, "ridge": 3.0}
    asked = dataclasses.replace(whole.config.train, method_overrides=overrides)
    refitted = train(asked, "refitted", runtime=QUIET, weights_of="whole")
    for name, value in weights_of(whole).items():
        assert torch.equal(weights_of(refitted)[name], value)
    with pytest.raises(ConfigError, match="'first' is neither a folder nor a model of timm"):
        train(config, "new", runtime=QUIET)


def test_a_validation_split_that_the_first_run_was_trained_on_is_said(ours, tmp_path, capsys):
    loud = dataclasses.replace(QUIET, quiet=False)
    words = "was trained on most of this validation split"
    train(follow(ours), tmp_path / "same", runtime=loud)
    assert words not in capsys.readouterr().err
    train(follow(ours, seed=5), tmp_path / "seed", runtime=loud)
    assert words in capsys.readouterr().err
    train(follow(ours, val_fraction=0.3), tmp_path / "fraction", runtime=loud)
    assert words in capsys.readouterr().err


def test_only_runs_on_the_same_data_and_classes_spoil_a_split_and_those_before_them_too(
    ours, tmp_path
):
    def warned(**changes):
        config = follow(ours, **changes)
        return seen_validation(config, load_splits(config)[1])

    assert warned(seed=5)
    assert not warned(seed=5, classes=(5, 6, 7, 8))
    assert warned(seed=5, classes=(3, 5, 6))
    assert warned(seed=5, classes=("3", "5", "6"))
    assert not warned(seed=5, data="two_moons", classes=None)
    second = train(follow(ours, seed=5), tmp_path, runtime=QUIET)
    third = follow(second, seed=5)
    warning = seen_validation(third, load_splits(third)[1])
    assert warning is not None
    assert str(ours.path) in warning


def test_data_that_have_moved_are_known_by_what_they_are(tmp_path, capsys):
    draw = np.random.default_rng(0)
    data = tmp_path / "data"
    data.mkdir()
    np.save(data / "train-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8))
    np.save(data / "train-y.npy", np.repeat(np.arange(4), 24))
    common = {"classes": None, "epochs": 1}
    first = train(small(PLAIN, data=str(data), **common), tmp_path / "first", runtime=QUIET)
    data.rename(tmp_path / "moved")
    loud = dataclasses.replace(QUIET, quiet=False)
    second = follow(first, data=str(tmp_path / "moved"), seed=5, **common)
    train(second, tmp_path / "second", runtime=loud)
    assert "was trained on most of this validation split" in capsys.readouterr().err


def test_a_validation_set_of_its_own_is_the_same_with_every_seed(tmp_path, capsys):
    draw = np.random.default_rng(0)
    for split in ("train", "val"):
        np.save(tmp_path / f"{split}-x.npy", draw.integers(0, 255, (96, 8, 8, 1), np.uint8))
        np.save(tmp_path / f"{split}-y.npy", np.repeat(np.arange(4), 24))
    first = train(small(PLAIN, data=str(tmp_path), epochs=1), tmp_path / "first", runtime=QUIET)
    loud = dataclasses.replace(QUIET, quiet=False)
    train(follow(first, data=str(tmp_path), seed=5), tmp_path / "second", runtime=loud)
    shown = capsys.readouterr().err
    assert "validation samples" in shown
    assert "was trained on" not in shown


def test_prepared_data_are_found_from_any_directory(tmp_path, monkeypatch):
    folder = tmp_path / "here" / "prepared" / "photos"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        np.save(folder / f"{split}-x.npy", draw.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8))
        np.save(folder / f"{split}-y.npy", np.arange(40) % 4)
    monkeypatch.chdir(tmp_path / "here")
    run = train(
        small(PLAIN, data=str(folder), classes=None, root="prepared", epochs=1, batch_size=16),
        tmp_path / "run",
        runtime=QUIET,
    )
    assert run.config.train.root == str(tmp_path / "here" / "prepared")


def test_a_folder_of_a_run_with_another_start_says_so_and_not_what_follows_from_it(ours, tmp_path):
    config = follow(ours)
    train(config, tmp_path / "run", runtime=QUIET)
    other = dataclasses.replace(config, start=None, model="lrformer_digits")
    with pytest.raises(ConfigError, match="other settings: start is"):
        train(other, tmp_path / "run", runtime=QUIET)
