"""docs/performance.md shows what the records say; here they are made up."""

import json
from pathlib import Path

import pytest

from tests.bench import made_up

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import performance_tables

    return performance_tables


def body(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_ratios_stand_beside_the_named_baseline_and_bold_means_short(tables):
    table = tables.ratio_table(made_up.attention_record())
    assert "ratio (goal 0.95)" in table
    assert "memory (goal 1.05)" in table
    met, short = body(table)
    assert met[:6] == ["8 x 6 x 197", "64", "flash", "1.80", "triton, compiled", "1.44"]
    assert met[6:] == ["1.25", "1.25", "1.25", "0.80"]
    assert short[6:] == ["**0.50**", "**0.50**", "**0.50**", "**2.00**"]


def test_who_is_fastest_is_decided_without_what_python_costs(tables):
    record = made_up.attention_record()
    eager = made_up.entry("lrsa", "sdpa", 1.0, 2.0, graph=made_up.timed(3.0, 0.6))
    record["rows"][0]["contenders"].append(eager)
    assert body(tables.ratio_table(record))[0][4:8] == ["triton, compiled", "1.44", "1.25", "1.25"]
    for entry in record["rows"][0]["contenders"]:
        entry.pop("graph", None)
    assert body(tables.ratio_table(record))[0][4:8] == ["sdpa", "1.00", "", "2.00"]


def test_every_contender_has_its_line_and_one_that_failed_says_so(tables):
    lines = body(tables.contender_table(made_up.attention_record()))
    assert lines == [
        ["dot product flash eager", "2.00 (1.00)", "2.00 (1.00)"],
        ["dot product cudnn eager", "failed", "failed"],
        ["lrsa reference eager", "40.00 (20.00)", "40.00 (20.00)"],
        ["lrsa triton compiled", "1.60 (0.80)", "4.00 (2.00)"],
    ]


def test_errors_stand_beside_those_of_torchs_own_attention(tables):
    lines = body(tables.error_table(made_up.attention_record()))
    assert lines[1][2:] == [
        "2.0e-03",
        "4.0e-03",
        "triton, compiled",
        "4.0e-03",
        "8.0e-03",
        "8.0e-03",
    ]


def test_the_roofline_names_its_ceilings(tables):
    table = tables.roofline_table(made_up.attention_record())
    assert "4,000 GB/s" in table
    assert "700.0 TFLOP/s" in table
    assert body(table)[0][2:] == ["3.000", "2.000", "25%", "50%", "25%", "50%"]


def test_sweeps_are_kept_apart(tables):
    record = made_up.attention_record()
    assert body(tables.growth_table(record, "tokens")) == [
        ["8", "64", "1.800", "", "36.000", "0.900"]
    ]
    assert body(tables.growth_table(record, "batch"))[0][1] == "197"


def test_models_stand_beside_timms(tables):
    lines = body(tables.model_table(made_up.model_record()))
    assert lines == [
        ["lrsa triton", "512", "9,180", "9,000", "1.020", "3.00", "2.00"],
        ["lrsa sdpa", "512", "7,650", "9,000", "**0.850**", "3.00", "2.00"],
        ["lrsa reference", "512", "failed", "", "", "", ""],
    ]


def test_a_model_that_is_barely_short_does_not_read_as_its_goal(tables):
    record = made_up.model_record()
    record["rows"][0] |= {"ratio": 0.9694, "goal": 0.97}
    assert body(tables.model_table(record))[0][4] == "**0.969**"


def test_a_page_without_a_record_says_how_to_make_it_and_with_one_shows_it(
    monkeypatch, tmp_path, tables
):
    import tables as pages

    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    missing = pages.bench_table("training", tables.model_table)
    assert "lrformer bench training --out benchmarks/results/bench-training-cuda.json" in missing
    record = json.dumps(made_up.model_record())
    (tmp_path / "bench-training-cuda.json").write_text(record)
    table = pages.bench_table("training", tables.model_table)
    assert table.startswith("Abacus, torch 8.8, lrformer 9.9; `benchmarks/results/bench-training")
    assert "| lrsa triton | 512 |" in table


def test_every_table_of_the_page_can_be_made(monkeypatch, tmp_path, tables):
    import tables as pages

    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    for name in ("attention", "training", "inference"):
        record = made_up.attention_record() if name == "attention" else made_up.model_record()
        (tmp_path / f"bench-{name}-cuda.json").write_text(json.dumps(record))
    for name in pages.BENCH_TABLES:
        _, make = pages.TABLES[name]
        assert len(body(make())) > 0, name
