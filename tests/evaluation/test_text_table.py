import re

from typer.testing import CliRunner

from lrformer.cli.main import app
from lrformer.evaluation import EvaluationConfig, Results, evaluate_run, load_scores, sentences
from lrformer.evaluation.text_table import text_rows
from tests.evaluation.test_evaluate import FEW, _set


def test_printed_scores_are_the_table_of_the_terminal(run, tmp_path):
    evaluate_run(run, config=EvaluationConfig(num_draws=10), device="cpu").save(tmp_path)
    said = str(load_scores(tmp_path))
    arguments = ["evaluate", str(run.path), "--draws", "10", "--device", "cpu"]
    arguments += ["--out", str(tmp_path / "again"), "--no-report"]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"}).stdout
    for row in text_rows(load_scores(tmp_path)):
        for cell in row:
            assert cell in said
            assert cell in shown
    title, *_, accepted, worst = said.splitlines()
    for line in (title, accepted, worst):
        assert line in shown
    assert accepted.startswith("At the run's threshold")
    assert worst == sentences.worst(load_scores(tmp_path))


def test_columns_stand_below_each_other():
    far = _set(1, labeled=False)
    results = Results.of(_set(0), ood={"a set with a long name": far}, config=FEW)
    title, header, *rows = str(results.scores).splitlines()
    assert title == "test; uncertainty by entropy"
    assert header.split() == ["set", "metric", "value", "interval"]
    ends = {re.match(r".* {2}\S+(?= {2})", row).end() for row in rows[:-1]}
    assert ends == {header.index("value") + len("value")}
