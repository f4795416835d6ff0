"""An exported file says what its run says: on held-out data, in both formats, without this package."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

import lrformer
from lrformer.core import ConfigError, MissingExtraError, UnsupportedModelError
from lrformer.evaluation.export import export
from lrformer.evaluation.export_check import DisagreementError
from lrformer.interop.predictor_file import FORMATS, open_predictor
from lrformer.methods import list_methods
from lrformer.training.run_folder import file_checksum, save_method
from tests.evaluation.short_run import held_out, short_run, with_decision
from tests.training.small import SMALL

# torch cannot trace the hook that checks shapes.
pytestmark = pytest.mark.unhooked

GP = {"num_random_features": 32}
TINY = {"depth": 1, "embed_dim": 16, "num_heads": 2}
WIDE = {"depth": 10, "widen_factor": 1, "img_size": 8}
CASES = {
    "deterministic": {"method": "deterministic"},
    "dnn_sn": {"method": "dnn_sn", "method_overrides": {"spectral_bound": 0.5}},
    "dnn_gp": {"method": "dnn_gp", "method_overrides": GP},
    "sngp": {"method": "sngp", "method_overrides": {**GP, "spectral_bound": 0.5}},
    "duq": {"method": "duq", "method_overrides": {"centroid_dim": 16, "length_scale": 0.3}},
    "deep_ensemble": {
        "method": "deep_ensemble",
        "method_overrides": {"num_members": 2, "vectorize": True},
    },
    "lrformer": {
        "method": "lrformer",
        "method_overrides": {**GP, "temperature_by_variance": True, "feature_scale": "calibrate"},
    },
    "fitted, a variance for each class": {
        "method": "lrformer",
        "method_overrides": {**GP, "head": "fitted", "likelihood": "softmax"},
    },
    "wide_resnet": {
        "method": "dnn_sn",
        "method_overrides": {"spectral_bound": 0.5},
        "model": "wide_resnet28_10",
        "model_overrides": WIDE,
    },
    "certified": {"model": "certified_digits", "model_overrides": TINY},
    "timm": {
        "method": "lrformer",
        "method_overrides": GP,
        "model": "auto",
        "start": "vit_tiny_patch16_224",
        "pretrained": False,
        "model_overrides": {**TINY, "img_size": 16, "patch_size": 8},
    },
    "points": {
        "data": "two_moons",
        "classes": None,
        "method": "lrformer",
        "method_overrides": GP,
        "model": "lrformer_two_moons",
        "model_overrides": {"depth": 1},
    },
}
SAMPLERS = {
    "mc_dropout": {"model_overrides": SMALL.model_overrides},
    "mcd_gp": {"model_overrides": SMALL.model_overrides, "method_overrides": GP},
    "due": {},
    "lrformer": {"method_overrides": {**GP, "approximation": "monte_carlo"}},
    "sngp": {"method_overrides": {**GP, "approximation": "monte_carlo"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def simple(place):
    """Return a run of one method, for what does not depend on the method."""
    return short_run(place / "simple", **CASES["lrformer"])


@pytest.fixture(scope="module")
def files(simple, tmp_path_factory):
    """Return what that run was written to, by suffix."""
    place = tmp_path_factory.mktemp("files")
    return {suffix: export(simple, place / f"predictor{suffix}") for suffix in (".onnx", ".pt2")}


every_format = pytest.mark.parametrize("suffix", [".onnx", ".pt2"])


def run_file(path, inputs):
    """Return the outputs of a file, by its own package and nothing of ours."""
    if path.suffix == ".pt2":
        outputs = torch.export.load(path).module()(inputs)
        return {name: value.numpy() for name, value in outputs.items()}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"inputs": inputs.numpy()}), strict=True))


def expected_outputs(run, inputs):
    predictive = run.predict(inputs)
    uncertainty = predictive.uncertainty(run.decision.score)
    outputs = {
        "probs": predictive.probs,
        "uncertainty": uncertainty,
        "in_distribution": uncertainty <= run.decision.threshold,
        "logits": predictive.logits,
    }
    if predictive.variance is not None:
        outputs["variance"] = predictive.uncertainty("variance")
    return {name: value.numpy() for name, value in outputs.items()}


def assert_same(actual, expected):
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype
        if name == "in_distribution":
            assert (actual[name] == value).all()
        else:
            scale = np.abs(value).max()
            np.testing.assert_allclose(actual[name] / scale, value / scale, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_file_says_of_held_out_data_what_the_run_says(case, place):
    run = short_run(place / "run", **CASES[case])
    if run.predict(held_out(run)[:1]).variance is not None:
        run = with_decision(run, variance_slope=0.8)
    inputs = held_out(run)
    whole = expected_outputs(run, inputs)
    assert 0.2 < whole["in_distribution"].mean() < 0.8  # otherwise the flags would show nothing
    weights = {name: value.clone() for name, value in run.method.state_dict().items()}
    for suffix in (".onnx", ".pt2"):
        written = export(run, place / f"{case}{suffix}")
        assert written.agreement.is_close
        for size in (1, 7, len(inputs)):
            found = run_file(written.path, inputs[:size])
            assert_same(found, {name: value[:size] for name, value in whole.items()})
    # The run is as it was.
    assert_same(expected_outputs(run, inputs), whole)
    assert weights.keys() == run.method.state_dict().keys()
    for name, value in run.method.state_dict().items():
        assert torch.equal(value, weights[name])


@every_format
def test_temperature_slope_score_and_threshold_are_in_the_graph(simple, files, tmp_path, suffix):
    inputs = held_out(simple)
    plain = run_file(files[suffix].path, inputs)
    for name, changes in {
        "hot": {"temperature": 3.0},
        "grown": {"variance_slope": 5.0, "score": "variance"},
    }.items():
        run = with_decision(simple, **changes)
        found = run_file(export(run, tmp_path / f"{name}{suffix}").path, inputs)
        assert_same(found, expected_outputs(run, inputs))
        assert 0.2 < found["in_distribution"].mean() < 0.8
        assert np.abs(found["probs"] - plain["probs"]).max() > 0.01
        assert (found["uncertainty"] == found["variance"]).all() == (name == "grown")


@every_format
def test_a_file_says_what_it_is(simple, files, suffix):
    written = files[suffix]
    about = open_predictor(written.path).about
    assert about == written.about
    decision = simple.decision
    assert about["class_names"] == ["0", "1", "2", "3"]
    assert (about["score"], about["threshold"]) == (decision.score, decision.threshold)
    assert (about["temperature"], about["variance_slope"]) == (0.6, 0.0)
    assert about["true_positive_rate"] == 0.95
    assert (about["image_size"], about["channels"]) == (8, 1)
    assert about["input"].startswith("images: uint8 (batch, 8, 8, 1)")
    assert (about["method"], about["model"]) == ("lrformer", "lrformer_digits")
    assert about["lrformer"] == lrformer.__version__


def test_the_checksums_are_those_of_the_files_of_the_run(simple, files, tmp_path):
    save_method(tmp_path, simple.method)
    about = files[".pt2"].about
    assert about["model_sha256"] == file_checksum(tmp_path / "model.safetensors")
    assert about["posterior_sha256"] == file_checksum(tmp_path / "posterior.safetensors")


def test_what_a_prediction_does_not_read_is_not_in_a_file(simple, files):
    stored = torch.export.load(files[".pt2"].path).state_dict
    assert stored["method.head.posterior.root"].numel() == 32 * 32
    assert stored["method.head.posterior.precision"].numel() == 1
    assert simple.method.head.posterior.precision.numel() == 32 * 32


def test_the_free_dimension_of_onnx_is_called_batch(files):
    session = onnxruntime.InferenceSession(files[".onnx"].path)
    (given,) = session.get_inputs()
    assert (given.name, given.shape, given.type) == ("inputs", ["batch", 8, 8, 1], "tensor(uint8)")
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == {
        "probs": ["batch", 4],
        "uncertainty": ["batch"],
        "in_distribution": ["batch"],
        "logits": ["batch", 4],
        "variance": ["batch"],
    }


@every_format
def test_nothing_in_a_file_tells_where_it_was_made(files, suffix):
    path = files[suffix].path
    content = path.read_bytes()
    for place in (str(path.parent), torch.__path__[0], lrformer.__path__[0], ".py"):
        assert place.encode() not in content


RUNS_ONNX = """
import onnxruntime
session = onnxruntime.InferenceSession(path)
probs = session.run(["probs"], {"inputs": inputs})[0]
"""
RUNS_PT2 = """
import torch
probs = torch.export.load(path).module()(torch.from_numpy(inputs))["probs"].numpy()
"""


@pytest.mark.parametrize(
    ("suffix", "program", "hidden"),
    [
        (".onnx", RUNS_ONNX, ("lrformer", "timm", "onnx", "onnxscript", "torch")),
        (".pt2", RUNS_PT2, ("lrformer", "timm", "onnxruntime")),
    ],
)
def test_a_file_runs_where_this_package_cannot_be_imported(
    simple, files, tmp_path, suffix, program, hidden
):
    inputs = held_out(simple)[:5]
    np.save(tmp_path / "inputs.npy", inputs.numpy())
    code = (
        f"import sys\nfor name in {hidden!r}: sys.modules[name] = None\n"
        f"import numpy\npath, inputs = {str(files[suffix].path)!r}, numpy.load('inputs.npy')\n"
        f"{program}\nprint(probs.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = simple.predict(inputs).probs.numpy()
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=5e-6)


@pytest.mark.parametrize("method", SAMPLERS)
def test_a_method_that_draws_samples_is_refused_by_name(place, tmp_path, method):
    if method == "due":
        pytest.importorskip("gpytorch")
    run = short_run(place / "sampler", method=method, **SAMPLERS[method])
    out = tmp_path / "predictor.pt2"
    with pytest.raises(UnsupportedModelError, match=f"method '{method}' draws samples") as raised:
        export(run, out)
    is_gp = "approximation" in SAMPLERS[method].get("method_overrides", {})
    assert ("--method-option approximation=mean_field" in str(raised.value)) == is_gp
    assert not out.exists()


def test_every_method_is_either_exported_or_refused_here():
    covered = {settings.get("method", "deterministic") for settings in CASES.values()}
    assert covered | set(SAMPLERS) == set(list_methods())


@every_format
def test_a_file_that_disagrees_is_not_kept_and_an_old_one_stays(
    simple, files, tmp_path, monkeypatch, suffix
):
    """The file of a run is written for another one, whose logits are divided by a hundredth more."""
    content = files[suffix].path.read_bytes()
    monkeypatch.setattr(FORMATS[suffix], "to_bytes", lambda program, about: content)
    monkeypatch.setattr("lrformer.evaluation.export.trace", lambda *_, **__: None)
    other = with_decision(simple, temperature=simple.decision.temperature * 1.01)
    out = tmp_path / f"predictor{suffix}"
    with pytest.raises(DisagreementError, match="does not say what the run says"):
        export(other, out)
    assert list(tmp_path.iterdir()) == []
    out.write_bytes(b"old")
    with pytest.raises(DisagreementError, match="so it is not kept"):
        export(other, out)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


@every_format
def test_a_file_that_cannot_be_read_is_not_kept(simple, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(FORMATS[suffix], "to_bytes", lambda program, about: b"rubbish")
    monkeypatch.setattr("lrformer.evaluation.export.trace", lambda *_, **__: None)
    with pytest.raises(DisagreementError, match="cannot be run"):
        export(simple, tmp_path / f"predictor{suffix}")
    assert list(tmp_path.iterdir()) == []


@every_format
def test_a_file_that_says_something_else_of_itself_is_not_kept(
    simple, files, tmp_path, monkeypatch, suffix
):
    content = files[suffix].path.read_bytes()
    monkeypatch.setattr(FORMATS[suffix], "to_bytes", lambda program, about: content)
    monkeypatch.setattr("lrformer.evaluation.export.trace", lambda *_, **__: None)
    config = dataclasses.replace(simple.config, class_names=("a", "b", "c", "d"))
    with pytest.raises(DisagreementError, match="does not say of itself"):
        export(dataclasses.replace(simple, config=config), tmp_path / f"predictor{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_file_is_checked_leaves_nothing(simple, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lrformer.evaluation.export.check_agreement", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(simple, tmp_path / "predictor.pt2")
    assert list(tmp_path.iterdir()) == []


def test_an_old_file_is_replaced_by_one_that_agrees_and_may_be_read_by_others(simple, tmp_path):
    out = tmp_path / "predictor.pt2"
    out.write_bytes(b"old")
    export(simple, out)
    assert out.stat().st_mode & 0o777 == 0o644
    assert open_predictor(out).about["method"] == "lrformer"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("predictor.pb", r"suffix '.pb', .* must be one of \.onnx, \.pt2"),
        ("predictor.onx", r"Did you mean '\.onnx'"),
        ("predictor", "has the suffix ''"),
        ("gone/predictor.pt2", "gone is not a folder"),
        ("folder.pt2", "it is a folder"),
    ],
)
def test_a_wrong_place_is_told_before_the_run_is_opened(tmp_path, out, message):
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises((ConfigError, OSError), match=message):
        export(tmp_path / "no run at all", tmp_path / out)
    assert not (tmp_path / "gone").exists()


def test_without_its_packages_onnx_is_refused_with_the_way_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"onnxscript .* pip install 'lrformer\[export\]'"):
        export(tmp_path / "no run at all", tmp_path / "predictor.onnx")


def test_what_is_not_a_run_is_refused_by_its_kind(tmp_path, simple):
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        export(tmp_path / "gone", tmp_path / "predictor.pt2")
    with pytest.raises(ConfigError, match="a LaplacePosterior"):
        export(simple.method.head.posterior, tmp_path / "predictor.pt2")
    lrformer.save(lrformer.create_model("lrformer_digits", depth=1), tmp_path / "model")
    with pytest.raises(ConfigError, match="holds a model without a run"):
        export(tmp_path / "model", tmp_path / "predictor.pt2")


def test_a_run_that_predicts_nothing_finite_is_named_as_the_culprit(simple, tmp_path):
    broken = dataclasses.replace(simple, config=dataclasses.replace(simple.config, std=(0.0,)))
    with pytest.raises(ConfigError, match="not finite"):
        export(broken, tmp_path / "predictor.pt2")
    assert list(tmp_path.iterdir()) == []
