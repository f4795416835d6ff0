"""A table is cut between its columns where a screen is narrow, and nowhere else."""

import dataclasses
import io

import pytest
from rich.console import Console

from lrformer.cli.table_screen import print_figures
from lrformer.recipes import ablation, plan_runs
from lrformer.recipes.table_engine import Reproduction
from lrformer.recipes.table_record import TableRecord
from lrformer.recipes.table_run import Circumstances
from tests.recipes.made_table import made_run

HOW = Circumstances(ood=("svhn", "cifar100"))


@pytest.fixture
def result(tmp_path):
    table = ablation()
    runs = [made_run(run, HOW) for run in plan_runs(table, num_seeds=2)]
    record = TableRecord(table=table.name, data=table.data, runs=tuple(runs))
    return Reproduction(table=table, record=record, record_path=tmp_path, standings=())


def shown(result, monkeypatch, *, width: int, is_terminal: bool) -> list[str]:
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    print_figures(result, Console(force_terminal=is_terminal, width=width, color_system=None))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_screen_every_part_has_room_and_every_figure_is_there_once(result, monkeypatch, width):
    _, *lines = shown(result, monkeypatch, width=width, is_terminal=True)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for title in ("accuracy", "AUROC SVHN", "AUROC CIFAR-100", "paper 0.4447"):
        assert text.count(title) == 1
    assert text.count("LRFormer, GP head") == text.count("row ") > 1


def test_a_score_is_named_only_where_it_ranked_something(result, monkeypatch):
    lines = shown(result, monkeypatch, width=60, is_terminal=False)
    assert any("2 seeds, score variance" in line for line in lines)
    figures = [
        {kind: {"data/test": found["data/test"]} for kind, found in run.figures.items()}
        for run in result.record.runs
    ]
    runs = tuple(map(_with_figures, result.record.runs, figures))
    without = dataclasses.replace(result, record=dataclasses.replace(result.record, runs=runs))
    lines = shown(without, monkeypatch, width=60, is_terminal=False)
    assert any("2 seeds" in line for line in lines)
    assert not any("score" in line for line in lines)


def _with_figures(run, figures):
    return dataclasses.replace(run, figures=figures)


def test_a_pipe_gets_one_table(result, monkeypatch):
    lines = shown(result, monkeypatch, width=60, is_terminal=False)
    text = "\n".join(lines)
    assert text.count("LRFormer, GP head") == text.count("row ") == 1
    assert "…" not in text
