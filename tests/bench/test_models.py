import json

import pytest
import torch

from lrformer.attention import LRSA
from lrformer.bench import (
    InferenceBenchConfig,
    TrainingBenchConfig,
    bench_inference,
    bench_training,
    inference,
    model_contenders,
    training,
)
from lrformer.bench.model_contenders import ModelContender, compile_model, make_contenders
from lrformer.bench.place import Place
from lrformer.core import ConfigError
from tests.bench.pretend import PretendGpu

TINY = {"depth": 1, "repeats": 1, "seconds": 0.001, "device": "cpu", "backends": ("sdpa",)}


@pytest.fixture(autouse=True)
def _small_images(monkeypatch):
    """Models of 32 pixels: the published size would take seconds a step here."""
    monkeypatch.setattr(model_contenders, "IMG_SIZE", 32)
    real = ModelContender.build

    def build(self, depth):
        model = real(self, depth)
        model.set_input_size(32) if self.attention else model.set_input_size(img_size=32)
        return model

    monkeypatch.setattr(ModelContender, "build", build)


def test_training_measures_each_of_our_models_in_turn_with_timms(tmp_path):
    out = tmp_path / "record.json"
    record = bench_training(TrainingBenchConfig(batch=2, **TINY), out)
    assert json.loads(out.read_text()) == record
    assert [row["name"] for row in record["rows"]] == ["lrsa sdpa", "dot_product sdpa"]
    for row in record["rows"]:
        assert row["ratio"] == pytest.approx(
            row["ours"]["images_per_second"] / row["rival"]["images_per_second"], rel=1e-3
        )
        assert row["is_goal_met"] == (row["ratio"] >= 0.97)
        assert row["ours"]["images_per_second"] == pytest.approx(2000 / row["ours"]["ms"], rel=1e-3)
    lrsa, dot_product = (row["ours"]["num_parameters"] for row in record["rows"])
    assert lrsa < dot_product  # queries and keys share a matrix


def test_inference_measures_every_batch(tmp_path):
    out = tmp_path / "record.json"
    record = bench_inference(InferenceBenchConfig(batches=(1, 2), **TINY), out)
    keys = [row["key"] for row in record["rows"]]
    assert keys == ["lrsa sdpa 1", "dot_product sdpa 1", "lrsa sdpa 2", "dot_product sdpa 2"]
    more = bench_inference(InferenceBenchConfig(batches=(1, 2, 3), **TINY), out)
    assert more["rows"][:4] == record["rows"]
    assert [row["batch"] for row in more["rows"][4:]] == [3, 3]


def test_a_step_trains_the_model_through_the_backend_that_was_asked_for(monkeypatch):
    contender = ModelContender(attention="lrsa", backend="reference")
    model, step, held_bytes = training._training(Place("cpu"), contender, 2, 1, "none")
    before = [p.detach().clone() for p in model.parameters()]
    used = []
    real = LRSA.attend

    def attend(self, *arguments, **named):
        used.append(self.backend)
        return real(self, *arguments, **named)

    monkeypatch.setattr(LRSA, "attend", attend)
    with contender.context(model):
        step()
    assert used == ["reference"]
    pairs = zip(before, model.parameters(), strict=True)
    assert all(not torch.equal(old, new) for old, new in pairs)
    weights = sum(p.nbytes for p in model.parameters())
    assert held_bytes() >= 4 * weights  # weights, gradients, and AdamW's two


def test_inference_keeps_no_graph_and_leaves_the_weights():
    contender = ModelContender(attention="lrsa", backend="sdpa")
    model, forward, _ = inference._inference(Place("cpu"), contender, 2, 1, "none")
    logits = forward()
    assert not logits.requires_grad
    assert not model.training
    assert logits.shape == (2, 1000)


def test_a_model_that_raises_is_a_row_with_its_error(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no kernel here")

    monkeypatch.setattr(LRSA, "attend", broken)
    rows = bench_training(TrainingBenchConfig(batch=1, **TINY))["rows"]
    assert (rows[0]["status"], rows[0]["reason"]) == ("failed", "RuntimeError: no kernel here")
    assert rows[1]["status"] == "measured"


def test_timms_attention_must_be_fused(monkeypatch):
    monkeypatch.setattr("timm.layers.attention.use_fused_attn", lambda *_, **__: False)
    with pytest.raises(ConfigError, match="fused attention is switched off"):
        make_contenders(("sdpa",))[0].build(1)


def test_blocks_are_compiled_one_by_one_and_the_model_as_one():
    for way, expected in (
        ("blocks", [False, True]),
        ("model", [True, False]),
        ("none", [False] * 2),
    ):
        model = ModelContender(attention="lrsa", backend="sdpa").build(1)
        compile_model(model, way)
        modules = (model, model.get_submodule("blocks.0"))
        assert [m._compiled_call_impl is not None for m in modules] == expected, way


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, r"batch \(0\)"),
        ({"compile_way": "all"}, r"compile \('all'\)"),
        ({"depth": 0}, r"depth \(0\)"),
        ({"backends": ("tritn",)}, r"backends \('tritn'\)"),
        ({"repeats": 0}, r"repeats \(0\)"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TrainingBenchConfig(**wrong)
    if "batch" not in wrong:
        with pytest.raises(ConfigError, match=message):
            InferenceBenchConfig(**wrong)
    else:
        with pytest.raises(ConfigError, match=message):
            InferenceBenchConfig(batches=(0,))


@pytest.mark.parametrize(
    ("bench", "config"),
    [(bench_training, TrainingBenchConfig), (bench_inference, InferenceBenchConfig)],
)
def test_backends_of_which_none_can_run_are_refused(bench, config, monkeypatch):
    monkeypatch.setattr("lrformer.bench.place.HAS_TRITON", False)
    with pytest.raises(ConfigError, match="'triton' needs the package triton"):
        bench(config(**{**TINY, "backends": ("triton",)}))


@pytest.mark.parametrize("module", [training, inference])
def test_on_a_gpu_memory_is_compared_and_a_pass_is_one_graph(module, monkeypatch):
    place = PretendGpu()
    monkeypatch.setattr(module, "Place", lambda _: place)
    monkeypatch.setattr(module, "circumstances", lambda _: {"device": "pretended"})
    tiny = {**TINY, "compile_way": "none"}
    if module is training:
        record = bench_training(TrainingBenchConfig(batch=1, **tiny))
        assert not place.captured_calls
        assert record["settings"]["dtype"] == "bfloat16 autocast"
    else:
        record = bench_inference(InferenceBenchConfig(batches=(1,), **tiny))
        assert len(place.captured_calls) == 3
        assert record["settings"]["dtype"] == "bfloat16"
    for row in record["rows"]:
        assert row["status"] == "measured", row
        ours, rival = row["ours"]["peak_bytes"], row["rival"]["peak_bytes"]
        assert row["peak_ratio"] == ours / rival
        assert ours > 1000
