"""A run as a folder: what is written comes back to the bit, and what is broken is named."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import lrformer.interop
from lrformer.core import ConfigError
from lrformer.data import DeviceBatches, load_dataset
from lrformer.methods import create_method
from lrformer.models import create_model
from lrformer.training import (
    Decision,
    Run,
    RunConfig,
    RuntimeConfig,
    TrainConfig,
    load,
    load_run,
    train,
    update_metrics,
)
from lrformer.training.atomic_files import (
    read_tensors,
    write_tensors,
)
from lrformer.training.backbone import backbone_img_size, describe_backbone
from lrformer.training.claim import check_same, claim_folder, sole_process
from lrformer.training.metrics_file import is_finished, read_training
from lrformer.training.run_config import read_run_config, write_run_config
from lrformer.training.run_folder import save_method, write_decision
from lrformer.training.start import backbone_factory

DIGITS = load_dataset("digits")
SMALL_GP = {"num_random_features": 32}
SMALL_MODEL = {"depth": 1, "embed_dim": 16, "num_heads": 2}
TIMM = {"depth": 1, "img_size": 16, "patch_size": 8, "embed_dim": 48}


def write_run(folder: Path, config: TrainConfig):
    """Write an untrained run with a fitted posterior; return its method and a batch of inputs."""
    make = backbone_factory(config, DIGITS)
    backbone = make()
    method = create_method(config.method, make, 10, **config.method_overrides)
    size = backbone_img_size(backbone)
    for stage in range(method.num_stages):
        method.start_stage(stage)
        method.finish_stage()
    batch = next(DeviceBatches(DIGITS, batch_size=40, image_size=size).epoch())
    method.eval().fit_posterior([batch.inputs])
    write_run_config(
        folder,
        RunConfig(
            train=config,
            backbone=describe_backbone(backbone, config),
            class_names=DIGITS.class_names,
            mean=DIGITS.mean,
            std=DIGITS.std,
            img_size=size,
        ),
    )
    save_method(folder, method)
    write_decision(
        folder, Decision(temperature=2.0, score="entropy", threshold=1.0, true_positive_rate=0.9)
    )
    return method, batch.inputs


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    config = TrainConfig(
        data="digits",
        model="lrformer_digits",
        model_overrides=SMALL_MODEL,
        method_overrides=SMALL_GP,
    )
    write_run(tmp_path / "run", config)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("method", "overrides", "start"),
    [
        ("lrformer", SMALL_GP, None),
        ("sngp", SMALL_GP, None),
        ("deep_ensemble", {"num_members": 2}, None),
        ("duq", {"centroid_dim": 4}, None),
        ("lrformer", SMALL_GP, "vit_tiny_patch16_224"),
    ],
)
def test_a_run_predicts_from_its_folder_what_it_predicted_before(
    tmp_path, method, overrides, start
):
    config = TrainConfig(
        data="digits",
        model="lrformer_digits",
        model_overrides=TIMM if start else SMALL_MODEL,
        start=start,
        pretrained=False,
        method=method,
        method_overrides=overrides,
    )
    before, inputs = write_run(tmp_path, config)
    run = load(tmp_path)
    assert isinstance(run, Run)
    raw = torch.from_numpy(DIGITS.x[:40])
    assert torch.equal(run.preprocess(raw), inputs)
    predictive = run.predict(raw, is_calibrated=False)
    assert torch.equal(predictive.logits, before.predict(inputs).logits)
    assert torch.equal(run.predict(raw).logits, predictive.logits / 2)
    assert run.config.train == config
    assert run.class_names == DIGITS.class_names
    accepted = run.is_in_distribution(run.predict(raw))
    assert torch.equal(accepted, run.predict(raw).uncertainty("entropy") <= 1.0)


def test_what_is_no_picture_is_refused_by_its_kind(run_folder):
    run = load(run_folder)
    assert isinstance(run, Run)
    with pytest.raises(ConfigError, match="raw is a str; give uint8 images"):
        run.predict("picture.png")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="they must be uint8"):
        run.predict(DIGITS.x[:2].tolist())  # pyright: ignore[reportArgumentType]


def test_weights_and_posterior_lie_in_their_own_files(run_folder):
    weights, _ = read_tensors(run_folder / "model.safetensors")
    posterior, _ = read_tensors(run_folder / "posterior.safetensors")
    names = {"precision", "root", "fitted"}
    assert {name.rpartition(".")[2] for name in posterior} == names
    assert all(".posterior." in name for name in posterior)
    assert not any(name.rpartition(".")[2] in names for name in weights)


def test_load_also_opens_a_saved_model(tmp_path):
    model = create_model("lrformer_digits", depth=1)
    lrformer.interop.save(model, tmp_path)
    loaded = load(tmp_path)
    assert isinstance(loaded, torch.nn.Module)
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(loaded(x), model.eval()(x))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "posterior.safetensors", "decision.json"]
)
def test_a_missing_or_damaged_file_is_named(run_folder, name):
    path = run_folder / name
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    way_out = "train into another folder" if name == "config.json" else "delete it"
    with pytest.raises(
        ConfigError, match=rf"{name} is not .* Restore it from a copy, or {way_out}"
    ):
        load_run(run_folder)
    with pytest.raises(ConfigError, match=rf"{name} .*Restore it from a copy, or {way_out}"):
        load(run_folder)
    path.unlink()
    is_fitted_again = name in ("posterior.safetensors", "decision.json")
    message = "run the same train command again, which fits it" if is_fitted_again else name
    with pytest.raises(ConfigError, match=message):
        load_run(run_folder)


@pytest.mark.parametrize(
    "training",
    ['{"seconds": 1}', '{"seconds": "1", "validation_calibrated": {}}',
     '{"seconds": 1, "validation_calibrated": {"accuracy": "high", "nll": 1, "ece": 0}}'],
)  # fmt: skip
def test_metrics_that_say_nothing_of_the_training_are_called_so(run_folder, training):
    whole = {"seconds": 1.0, "validation_calibrated": {"accuracy": 1, "nll": 0.1, "ece": None}}
    (run_folder / "metrics.json").write_text(json.dumps({"training": whole}))
    assert read_training(run_folder) == whole
    (run_folder / "metrics.json").write_text(f'{{"training": {training}}}')
    with pytest.raises(ConfigError, match=r"metrics.json says nothing of its training; .*delete"):
        read_training(run_folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"training": 5}'])
def test_damaged_metrics_are_said_to_be_needed_by_no_prediction(run_folder, content):
    (run_folder / "metrics.json").write_text(content)
    for use in (is_finished, lambda folder: update_metrics(folder, "test", {})):
        with pytest.raises(ConfigError, match=r"metrics.json .*delete it: predict, evaluate and"):
            use(run_folder)
    load_run(run_folder)


def test_a_folder_in_which_nothing_was_trained_takes_other_settings(run_folder, tmp_path):
    before = load_run(run_folder).config
    other = dataclasses.replace(before, train=dataclasses.replace(before.train, seed=1))
    with pytest.raises(ConfigError, match="belongs to a run with other settings"):
        claim_folder(run_folder, other)
    new = tmp_path / "new"
    claim_folder(new, before)
    (new / ".training.lock").touch()  # of a process that was killed
    with sole_process(new):
        claim_folder(new, before)
        with pytest.raises(ConfigError, match="another process trains"):
            claim_folder(new, other)
    claim_folder(new, other)
    assert read_run_config(new) == other
    (new / "log.jsonl").touch()
    with pytest.raises(ConfigError, match="belongs to a run with other settings"):
        claim_folder(new, before)


@pytest.mark.parametrize("name", ["data_digest", "class_names", "mean"])
def test_of_data_that_have_moved_it_is_the_content_that_must_be_the_same(
    run_folder, tmp_path, name
):
    def at(place: str, **changes):
        base = read_run_config(run_folder)
        moved = dataclasses.replace(base.train, data=str(tmp_path / place))
        return dataclasses.replace(base, train=moved, **{"data_digest": "one", **changes})

    there = at("old")
    others = {"data_digest": "two", name: {"class_names": ("x",), "mean": (9.0,)}.get(name, "two")}
    check_same(tmp_path, there, at("new"))
    said = rf"run on other data: .* lay in {tmp_path}/old, and .* in {tmp_path}/new are not the same, for their \w+ is"
    with pytest.raises(ConfigError, match=said):
        check_same(tmp_path, there, at("new", **others))
    # A setting is named first, and so is the place as long as the data are there or of unknown content.
    settings = dataclasses.replace(at("new").train, seed=1)
    with pytest.raises(ConfigError, match="other settings: seed is"):
        check_same(tmp_path, there, dataclasses.replace(at("new", **others), train=settings))
    with pytest.raises(ConfigError, match="other settings: data is"):
        check_same(tmp_path, there, at("new", data_digest=None))
    digits = dataclasses.replace(there, train=dataclasses.replace(there.train, data="digits"))
    with pytest.raises(ConfigError, match="other settings: data is 'digits' there"):
        check_same(tmp_path, digits, at("new", **others))
    (tmp_path / "old").mkdir()
    with pytest.raises(ConfigError, match="other settings: data is"):
        check_same(tmp_path, there, at("new", **others))


def test_a_newer_schema_is_refused_by_name(run_folder):
    path = run_folder / "config.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "schema": 99, "lrformer": "9.9"}))
    with pytest.raises(ConfigError, match=r"schema 99, written by lrformer 9\.9.*Update lrformer"):
        load_run(run_folder)
    path.write_text(json.dumps({**record, "schema": None}))
    with pytest.raises(ConfigError, match="no valid schema"):
        load_run(run_folder)


def test_a_folder_from_before_a_setting_was_there_has_its_default(run_folder):
    path = run_folder / "config.json"
    before = load_run(run_folder).config
    record = json.loads(path.read_text())
    del record["config"]["train"]["augment"]["mix_probability"]
    path.write_text(json.dumps(record))
    assert load_run(run_folder).config == before
    claim_folder(run_folder, before)


def test_weights_of_another_model_are_refused(run_folder):
    tensors, _ = read_tensors(run_folder / "model.safetensors")
    tensors.pop(next(name for name in tensors if name.startswith("backbone.")))
    write_tensors(run_folder / "model.safetensors", tensors)
    with pytest.raises(ConfigError, match="does not fit the model") as refused:
        load_run(run_folder)
    assert "Missing key" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 700


def test_weights_and_posterior_of_different_runs_are_not_taken_for_one(run_folder):
    tensors, _ = read_tensors(run_folder / "model.safetensors")
    name = next(name for name in tensors if name.startswith("backbone."))
    tensors[name].view(-1)[0] += 1
    write_tensors(run_folder / "model.safetensors", tensors)
    with pytest.raises(ConfigError, match=r"does not have the weights that posterior\.safetensors"):
        load_run(run_folder)
    # A run from before posterior and decision knew their weights is opened as it was.
    posterior, _ = read_tensors(run_folder / "posterior.safetensors")
    write_tensors(run_folder / "posterior.safetensors", posterior)
    path = run_folder / "decision.json"
    record = json.loads(path.read_text())
    del record["fitted_to"]
    path.write_text(json.dumps(record))
    assert load_run(run_folder).class_names == DIGITS.class_names


def test_a_posterior_that_was_damaged_within_is_refused(run_folder):
    path = run_folder / "posterior.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"decision\.json was not fitted to .*posterior"):
        load_run(run_folder)


def test_the_decision_of_another_run_is_refused(run_folder, tmp_path):
    other = TrainConfig(
        data="digits", model="lrformer_digits", model_overrides=SMALL_MODEL, method="deterministic"
    )
    write_run(tmp_path / "other", other)
    shutil.copyfile(tmp_path / "other" / "decision.json", run_folder / "decision.json")
    with pytest.raises(ConfigError, match=r"decision\.json was not fitted to .*of another run"):
        load_run(run_folder)


def test_inputs_of_the_wrong_kind_are_refused(run_folder):
    run = load_run(run_folder)
    with pytest.raises(ConfigError, match="uint8"):
        run.predict(torch.rand(2, 8, 8, 1))
    with pytest.raises(ConfigError, match="uint8"):
        run.predict(torch.zeros(2, 8, 8, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": "hot"}, r"decision\.json .*temperature \('hot'\) must be a number"),
        ({"temperature": 0}, r"decision\.json .*temperature \(0\) must be positive"),
        ({"threshold": None}, r"decision\.json .*threshold \(None\) must be a number"),
    ],
)
def test_a_decision_that_cannot_be_one_is_named(run_folder, changes, message):
    path = run_folder / "decision.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=message):
        load_run(run_folder)


def test_arrays_and_pictures_that_are_not_square_are_taken(run_folder):
    run = load_run(run_folder)
    wide = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 1)).astype(np.uint8)
    expected = run.predict(torch.from_numpy(wide[:, :, 2:10].copy())).probs
    wide.flags.writeable = False  # as the arrays of pictures are
    assert torch.equal(run.predict(wide).probs, expected)
    high = wide.transpose(0, 2, 1, 3).copy()
    assert torch.equal(run.predict(high).probs, run.predict(high[:, 2:10]).probs)


def test_points_are_taken_in_any_type_of_numbers(tmp_path):
    config = TrainConfig(data="two_moons", epochs=1, model_overrides={"depth": 1, "embed_dim": 16})
    run = train(config, tmp_path, runtime=RuntimeConfig(device="cpu", quiet=True))
    points = torch.tensor([[0.0, 1.0], [5.0, -2.0]])
    expected = run.predict(points).probs
    assert expected.isfinite().all()
    for dtype in (torch.float64, torch.int64, torch.bfloat16):
        assert torch.equal(run.predict(points.to(dtype)).probs, expected)


def test_a_section_of_the_metrics_leaves_the_others_alone(tmp_path):
    update_metrics(tmp_path, "training", {"loss": 1.0})
    update_metrics(tmp_path, "test", {"ece": float("nan")})
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics == {"training": {"loss": 1.0}, "test": {"ece": None}}


def test_a_path_or_a_device_that_is_none_is_refused_in_words(tmp_path):
    with pytest.raises(ConfigError, match="not the folder of a run or of a saved model"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"path \(None\) must be the folder"):
        load(None)
    with pytest.raises(ConfigError, match=r"device \('gpu'\) must be auto, cpu, cuda"):
        load_run(tmp_path, device="gpu")


def test_a_config_that_is_none_and_a_run_that_is_no_saved_model_are_told_apart(run_folder):
    with pytest.raises(ConfigError, match="is that of a run, and not of a saved model"):
        lrformer.interop.load(run_folder)
    (run_folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="is not the config of a run; it is damaged"):
        load_run(run_folder)


def test_a_path_is_a_place_and_other_things_are_no_data(tmp_path):
    assert TrainConfig(data=tmp_path, root=tmp_path) == TrainConfig(
        data=str(tmp_path), root=str(tmp_path)
    )
    for wrong in (DIGITS, (np.zeros(3), np.zeros(3)), None):
        with pytest.raises(ConfigError, match=r"must be the name of a data set or a folder"):
            TrainConfig(data=wrong)


def test_what_is_no_config_is_named_with_what_one_looks_like(tmp_path):
    with pytest.raises(ConfigError, match=r"config \(a str\) must be a TrainConfig"):
        train("digits", tmp_path)  # pyright: ignore[reportArgumentType]
