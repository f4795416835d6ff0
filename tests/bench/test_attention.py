import json

import pytest
import torch

from lrformer.bench import AttentionBenchConfig, attention, attention_row, bench_attention
from lrformer.bench.attention import check_usable
from lrformer.bench.attention_contenders import make_contenders
from lrformer.bench.place import Place
from lrformer.bench.roofline import Ceilings
from lrformer.bench.shapes import AttentionShape
from lrformer.core import ConfigError
from tests.bench.pretend import PretendGpu

TINY = AttentionBenchConfig(
    shapes=("1x2x9",), widths=(8,), growth=False, repeats=2, seconds=0.001, device="cpu",
    backends=("reference", "sdpa"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Few inputs, and ceilings that are not measured."""
    monkeypatch.setattr(attention_row, "_MAX_INPUT_SETS", 2)
    ceilings = Ceilings(bytes_per_second=1e9, operations_per_second=1e9)
    found = (ceilings, {"copy_gb_per_second": 1.0})
    monkeypatch.setattr(attention, "measure_ceilings", lambda *_: found)


def entries(row):
    return {entry["name"]: entry for entry in row["contenders"]}


def test_every_contender_is_timed_against_the_fastest_fused_one_in_the_same_row(tmp_path):
    out = tmp_path / "record.json"
    record = bench_attention(TINY, out)
    assert json.loads(out.read_text()) == record
    (row,) = record["rows"]
    found = entries(row)
    assert list(found) == [
        "dot_product flash eager",
        "lrsa reference eager",
        "lrsa sdpa eager",
        "l2 sdpa eager",
    ]
    rival = found[row["baseline"]["forward_backward"]]
    assert rival["attention"] == "dot_product"
    for entry in found.values():
        for kind in ("forward_backward", "forward"):
            expected = rival[kind]["ms"] / entry[kind]["ms"]
            assert entry[kind]["ratio"] == pytest.approx(expected)
            assert len(entry[kind]["samples"]) == 2
        assert entry["errors"]["out"] < 1e-4
        flops = entry["roofline"]["num_operations"]
        assert flops == 2 * 7 * 2 * 9 * 9 * 8
        expected = flops / 1e9 / (entry["forward_backward"]["ms"] / 1000)
        assert entry["roofline"]["of_operations"] == pytest.approx(expected)
    assert record["settings"]["speed_goal"] == 0.95
    assert record["ceilings"] == {"copy_gb_per_second": 1.0}


def test_the_same_command_goes_on_with_the_rows_that_are_missing(tmp_path, monkeypatch):
    out = tmp_path / "record.json"
    first = bench_attention(TINY, out)["rows"][0]
    measured = []
    real = attention.measure_row

    def spied(place, shape, *rest):
        measured.append(str(shape))
        return real(place, shape, *rest)

    monkeypatch.setattr(attention, "measure_row", spied)
    wider = AttentionBenchConfig(**{**vars(TINY), "shapes": ("1x2x9", "1x1x5")})
    record = bench_attention(wider, out)
    assert measured == ["1x1x5x8"]
    assert record["rows"][0] == first
    assert [row["key"] for row in record["rows"]] == ["goal 1x2x9x8", "goal 1x1x5x8"]
    bench_attention(wider, out)
    assert measured == ["1x1x5x8"]


def test_an_interrupted_run_keeps_the_rows_it_has(tmp_path, monkeypatch):
    out = tmp_path / "record.json"
    real = attention.measure_row

    def stopped(place, shape, *rest):
        if shape.num_tokens == 5:
            raise KeyboardInterrupt
        return real(place, shape, *rest)

    monkeypatch.setattr(attention, "measure_row", stopped)
    config = AttentionBenchConfig(**{**vars(TINY), "shapes": ("1x2x9", "1x1x5")})
    with pytest.raises(KeyboardInterrupt):
        bench_attention(config, out)
    assert [row["key"] for row in json.loads(out.read_text())["rows"]] == ["goal 1x2x9x8"]


@pytest.mark.parametrize(
    ("name", "value"), [("torch", "1.0"), ("device", "Abacus"), ("sources", "0" * 12)]
)
def test_a_record_measured_otherwise_is_refused_by_name(tmp_path, name, value):
    out = tmp_path / "record.json"
    record = bench_attention(TINY, out)
    out.write_text(json.dumps({**record, name: value}))
    with pytest.raises(ConfigError, match=f"was measured with {name} '{value}'"):
        bench_attention(TINY, out)


def test_other_settings_are_refused_and_another_commit_is_not(tmp_path):
    out = tmp_path / "record.json"
    record = bench_attention(TINY, out)
    with pytest.raises(ConfigError, match=r"seconds 0.001, now it is 0.002"):
        bench_attention(AttentionBenchConfig(**{**vars(TINY), "seconds": 0.002}), out)
    out.write_text(json.dumps({**record, "commit": "another"}))
    assert bench_attention(TINY, out)["rows"] == record["rows"]


@pytest.mark.parametrize("content", ["[1, 2]", '{"kind": "BoundsReport", "rows": []}'])
def test_a_file_that_is_no_record_is_refused_and_kept(tmp_path, content):
    out = tmp_path / "record.json"
    out.write_text(content)
    with pytest.raises(ConfigError, match="no record of a benchmark"):
        bench_attention(TINY, out)
    assert out.read_text() == content


def test_a_contender_that_raises_is_an_entry_with_its_error(monkeypatch):
    def broken(*_, backend, **__):
        raise RuntimeError(f"no kernel\n  for {backend}")

    monkeypatch.setattr("lrformer.bench.attention_contenders.l2_attention", broken)
    (row,) = bench_attention(TINY)["rows"]
    entry = entries(row)["l2 sdpa eager"]
    assert (entry["status"], entry["reason"]) == ("failed", "RuntimeError: no kernel for sdpa")
    assert "forward_backward" not in entry
    assert "forward_backward" in entries(row)["lrsa sdpa eager"]


def test_whole_matrices_are_skipped_with_a_reason_where_memory_would_not_do(monkeypatch):
    monkeypatch.setattr(Place, "matrix_limit_bytes", 100)
    (row,) = bench_attention(TINY)["rows"]
    entry = entries(row)["lrsa reference eager"]
    assert entry["status"] == "skipped"
    assert "GiB" in entry["reason"]
    assert entries(row)["lrsa sdpa eager"]["status"] == "measured"


def test_lrsa_takes_part_compiled_beside_plain():
    names = [c.name for c in make_contenders(Place("cpu"), ("sdpa",), is_compiled=True)]
    assert names[1:] == ["lrsa sdpa eager", "lrsa sdpa compiled", "l2 sdpa eager"]


def test_growth_keeps_the_tokens_of_the_batch_and_then_the_tokens_of_a_sample():
    swept = attention._growth(Place("cpu"))
    over_tokens = [shape for part, shape in swept if part == "tokens"]
    over_batch = [shape for part, shape in swept if part == "batch"]
    assert len({shape.batch * shape.num_tokens for shape in over_tokens}) == 1
    assert len({shape.num_tokens for shape in over_batch}) == 1
    assert len(over_tokens) > 2 < len(over_batch)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backends": ("spda",)}, "Did you mean 'sdpa'"),
        ({"backends": ("auto",)}, r"backends \('auto'\)"),
        ({"backends": ()}, "at least one"),
        ({"shapes": ("2x2",)}, "such as 64x6x1024"),
        ({"widths": ()}, "at least one"),
        ({"dtype": "int8"}, r"dtype \('int8'\)"),
        ({"repeats": 0}, r"repeats \(0\)"),
        ({"seconds": 0.0}, r"seconds \(0.0\)"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(wrong, message):
    with pytest.raises(ConfigError, match=message):
        AttentionBenchConfig(**wrong)


@pytest.fixture
def triton(monkeypatch):
    """Our kernels, which do not run in Triton's interpreter here."""
    module = pytest.importorskip("lrformer.attention.backends.triton")
    monkeypatch.setattr(module, "IS_INTERPRETED", False)
    monkeypatch.setattr(module, "UNUSABLE", None)
    return module


@pytest.mark.usefixtures("triton")
def test_backends_of_which_none_can_run_are_refused_before_anything_is_measured(
    tmp_path, monkeypatch
):
    out = tmp_path / "record.json"
    config = AttentionBenchConfig(**{**vars(TINY), "backends": ("triton",)})
    message = "'triton' runs on a CUDA device, and this is cpu; name another of reference, sdpa"
    with pytest.raises(ConfigError, match=message):
        bench_attention(config, out)
    monkeypatch.setattr("lrformer.bench.place.HAS_TRITON", False)
    with pytest.raises(ConfigError, match="'triton' needs the package triton"):
        bench_attention(config, out)
    assert not out.exists()


def test_one_backend_that_can_run_is_enough(triton, monkeypatch):
    place = PretendGpu()
    check_usable(None, Place("cpu"))
    check_usable(("triton", "sdpa"), Place("cpu"))
    check_usable(("triton",), place)
    monkeypatch.setattr(triton, "UNUSABLE", "cannot start")
    with pytest.raises(ConfigError, match="'triton' cannot start"):
        check_usable(("triton",), place)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"device \('tpu'\)"):
        Place("tpu")


@pytest.fixture
def gpu(monkeypatch):
    place = PretendGpu()
    monkeypatch.setattr(attention, "Place", lambda _: place)
    monkeypatch.setattr(attention, "circumstances", lambda _: {"device": "pretended"})
    return place


def on_gpu(**changes):
    chosen = {"is_compiled": False, "dtype": "float32", **changes}
    return bench_attention(AttentionBenchConfig(**{**vars(TINY), **chosen}))


def test_on_a_gpu_graphs_and_memory_are_measured_and_each_fused_backend_takes_part(gpu):
    (row,) = on_gpu()["rows"]
    found = entries(row)
    assert [found[f"dot_product {name} eager"]["status"] for name in ("flash", "cudnn")] == [
        "measured",
        "failed",
    ]
    rival, ours = found["dot_product flash eager"], found["lrsa sdpa eager"]
    one = 2 * 9 * 8 * 4  # bytes of q, and of everything else that goes in
    assert ours["peak_bytes"] == rival["peak_bytes"] == 1000 + 4 * one
    assert ours["peak_ratio"] == 1.0
    expected = rival["graph"]["ms"] / ours["graph"]["ms"]
    assert ours["graph"]["ratio"] == pytest.approx(expected)
    assert len(gpu.captured_calls) == 4  # flash, LRSA twice, L2


def test_a_graph_that_cannot_be_captured_leaves_the_other_times(gpu, monkeypatch):
    def refuse(_):
        raise RuntimeError("not while capturing")

    monkeypatch.setattr(gpu, "captured", refuse)
    (row,) = on_gpu()["rows"]
    entry = entries(row)["lrsa sdpa eager"]
    assert entry["graph_reason"] == "RuntimeError: not while capturing"
    assert "graph" not in entry
    assert entry["forward_backward"]["ratio"] > 0


def test_what_takes_much_memory_is_not_captured(gpu):
    gpu.peak_bytes = 9 * 2**30
    (row,) = on_gpu()["rows"]
    assert not gpu.captured_calls
    assert "forward_backward" in entries(row)["lrsa sdpa eager"]


def test_the_goals_shapes_are_measured_on_a_gpu_unless_others_are_named(gpu):
    filled = AttentionBenchConfig().filled(gpu)
    assert filled.shapes == ("256x6x197", "64x6x1024", "8x12x4096")
    assert filled.widths == (32, 64, 128)
    assert filled.dtype == "bfloat16"
    assert filled.is_compiled
    assert "auto" not in filled.backends


def test_a_sweep_measures_plain_code_forward_and_backward(gpu, monkeypatch):
    shape = AttentionShape(batch=1, num_heads=1, num_tokens=5, head_dim=8)
    monkeypatch.setattr(attention, "_growth", lambda _: [("tokens", shape)])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    row = on_gpu(growth=True, is_compiled=True, shapes=("1x1x5",))["rows"][-1]
    assert row["key"] == "tokens 1x1x5x8"
    found = entries(row)
    assert not any(name.endswith("compiled") or name.startswith("l2") for name in found)
    assert set(found["lrsa sdpa eager"]) >= {"forward_backward", "graph"}
    assert "forward" not in found["lrsa sdpa eager"]
