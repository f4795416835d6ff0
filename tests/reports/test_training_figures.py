"""The curves of a run are the lines of its log, for each member of an ensemble, and survive a log with holes."""

import json
import math

import numpy as np
import pytest
from matplotlib.axes import Axes

from lrformer.evaluation import EvaluationConfig, Results, evaluate, evaluate_run
from lrformer.reports import render_report, write_report
from lrformer.reports.training_figures import (
    TRAINING_CURVES,
    points_of,
    training_figure,
    training_figures,
)
from tests.evaluation.made_run import write_image_folder, write_run
from tests.reports.test_report import HISTORY, Page, _predictions


@pytest.fixture
def drawn(monkeypatch):
    """Return what is plotted, as (label, x, y), while a test draws."""
    lines = []
    plot = Axes.plot

    def spy(self, x, y, *args, **settings):
        lines.append((settings.get("label"), list(x), list(y)))
        return plot(self, x, y, *args, **settings)

    monkeypatch.setattr(Axes, "plot", spy)
    return lines


def test_the_lines_are_what_the_log_says_epoch_by_epoch(drawn):
    training_figures(HISTORY)
    assert drawn == [
        ("training loss", [1, 2, 3, 4], [2.0, 1.0, pytest.approx(2 / 3), 0.5]),
        ("validation NLL", [1, 2, 4], [1.5] * 3),
        ("training", [1, 3, 4], [0.0, pytest.approx(0.4), pytest.approx(0.6)]),
        ("validation", [1, 2, 4], [0.5] * 3),
        ("validation", [1, 2, 4], [3.0, 4.0, 6.0]),
        ("learning rate", [1, 2, 3, 4], [1e-3] * 4),
    ]


def test_every_member_of_an_ensemble_has_a_line_and_the_legend_one_entry(drawn):
    history = [{"stage": s, "epoch": e, "loss": 10 * s + e} for s in (0, 1, 2) for e in (0, 1)]
    svg = training_figure(history, TRAINING_CURVES[0])
    assert drawn == [
        ("training loss", [1, 2], [0, 1]),
        (None, [1, 2], [10, 11]),
        (None, [1, 2], [20, 21]),
    ]
    assert svg.startswith("<svg")
    test = _predictions(0, "alone")
    scores = evaluate(test, config=EvaluationConfig(num_draws=5))
    text = render_report(Results(scores=scores, test=test, history=tuple(history)), title="")
    assert "one line for each of 3 members" in text


def test_what_is_no_number_is_left_out_and_a_log_without_numbers_draws_nothing():
    history = [
        {"epoch": 0, "loss": math.nan, "lr": 0.1},
        {"epoch": 1, "loss": math.inf},
        {"epoch": 2, "loss": None},
        {"epoch": 3, "loss": "low"},
        {"epoch": 4, "loss": 1},
    ]
    assert points_of(history, "loss", stage=0) == ([5], [1.0])
    assert points_of(history, "lr", stage=0) == ([1], [0.1])
    assert training_figure(history[:4], TRAINING_CURVES[0]) == ""
    assert training_figures([]) == ""


def test_one_epoch_alone_can_be_seen():
    assert "<use" in training_figure([{"epoch": 0, "loss": 1.0}], TRAINING_CURVES[0])


def test_the_curves_of_a_run_are_in_its_report_wherever_the_results_go(tmp_path):
    data = write_image_folder(tmp_path / "data")
    run = write_run(tmp_path / "run", data, root=tmp_path / "cache")
    log = [dict(entry) for entry in HISTORY]
    (run / "log.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in log))
    found = evaluate_run(run, ood=[], config=EvaluationConfig(num_draws=5), device="cpu")
    assert list(found.history) == log
    for folder in (run, tmp_path / "elsewhere"):
        page = Page(write_report(found.save(folder)).read_text())
        assert "training" in [attrs["id"] for attrs in page.all("section")]
    # Results from before the log was kept beside them.
    (run / "evaluation" / "log.jsonl").unlink()
    assert list(Results.load(run).history) == log


def test_predictions_of_another_model_have_no_curves_even_in_the_folder_of_a_run(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(HISTORY[0]) + "\n")
    test = _predictions(0, "alone")
    scores = evaluate(test, config=EvaluationConfig(num_draws=5))
    Results(scores=scores, test=test).save(tmp_path)
    assert Results.load(tmp_path).history == ()
    assert np.all([entry["id"] != "training" for entry in Page(write_report(tmp_path).read_text()).all("section")])  # fmt: skip
