import json
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from lrformer.cli import evaluate_command
from lrformer.cli.main import app
from lrformer.core import ConfigError
from lrformer.evaluation import Results, load_scores
from tests.evaluation.made_run import write_image_folder, write_images, write_run

FAST = ["--draws", "10", "--device", "cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    data = write_image_folder(place / "data")
    write_run(place / "run", data, root=place / "cache")
    write_images(place / "pink", (250, 120, 180), 6, seed=5)
    return place


@pytest.fixture
def run(place, tmp_path):
    return shutil.copytree(place / "run", tmp_path / "run")


def change_config(run, **changes):
    path = run / "config.json"
    record = json.loads(path.read_text())
    record["config"]["train"] |= changes
    path.write_text(json.dumps(record))


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_run_is_measured_shown_and_kept_with_its_report(run):
    result = invoke("evaluate", run, *FAST)
    assert result.exit_code == 0, result.output
    scores = load_scores(run)
    assert f"{100 * scores('accuracy'):.2f}%" in result.output
    assert f"uncertainty by {scores.default_score}" in result.output
    assert "ood-gray" in result.output
    assert (run / "report.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("part", "note"),
    [
        (":train", "the run was trained on this one"),
        ("/train", "the run was trained on this one"),
        (":val", "temperature and threshold were fitted on this one"),
        ("/val", "temperature and threshold were fitted on this one"),
    ],
)
def test_figures_on_what_the_run_has_learned_from_are_shown_with_a_warning(run, place, part, note):
    result = invoke("evaluate", run, "--data", f"{place / 'data'}{part}", *FAST)
    assert result.exit_code == 0, result.output
    name = load_scores(run).test_set
    said = f"Warning: {name} is not new to the run: {note}. Figures on new data can be worse.\n"
    assert said in result.stdout
    assert said.removeprefix("Warning: ").strip() in (run / "report.html").read_text()


def test_figures_on_data_that_are_new_to_the_run_have_no_warning(run):
    result = invoke("evaluate", run, *FAST)
    assert "Warning" not in result.output
    assert "not new to the run" not in (run / "report.html").read_text()


def test_unknown_files_that_cannot_be_decoded_are_left_out_where_that_is_asked_for(run, tmp_path):
    pictures = tmp_path / "pictures"
    write_images(pictures, (250, 120, 180), 6, seed=5)
    (pictures / "000.png").write_bytes(b"no image")
    words = ["evaluate", run, "--ood", pictures, "--no-report", *FAST]
    refused = invoke(*words)
    assert "000.png: not a readable image; replace it or remove it. Pass" in str(refused.exception)
    result = invoke(*words, "--skip-unreadable")
    assert result.exit_code == 0, result.output
    assert "warning: pictures/test: 1 of 6 images cannot be read and are left out" in result.stderr
    assert len(Results.load(run).ood["pictures"].probs) == 5


def test_on_a_narrow_screen_no_figure_is_cut(run, monkeypatch):
    wide = invoke("evaluate", run, "--no-report", *FAST).stdout
    monkeypatch.setenv("COLUMNS", "50")
    narrow = invoke("evaluate", run, "--no-report", *FAST).stdout
    intervals = re.compile(r"[0-9.]+\u2013[0-9.]+")
    figures = intervals.findall(wide)
    assert len(figures) > 5
    assert intervals.findall(narrow) == figures
    assert "\u2026" not in narrow


def test_a_mean_over_runs_that_have_learned_from_the_data_has_the_warning_too(run, place, tmp_path):
    other = shutil.copytree(place / "run", tmp_path / "other")
    change_config(other, seed=1)
    data = ("--data", f"{place / 'data'}:train", "--no-report")
    result = invoke("evaluate", run, other, *data, *FAST)
    after = result.stdout.partition("2 runs")[2]
    assert after.count("Warning: data/train is not new to the run") == 1


def test_an_evaluation_that_will_be_replaced_is_named_before_anything_is_predicted(
    run, place, tmp_path, monkeypatch
):
    first = invoke("evaluate", run, "--no-report", *FAST)
    assert "replaced" not in first.output
    with monkeypatch.context() as patch:
        patch.setattr("lrformer.evaluation.evaluate_run", None)
        stopped = invoke("evaluate", run, *FAST)
    said = f"The earlier evaluation on data/test in {run} is replaced when this one is finished; "
    assert f"{said}--out FOLDER keeps it.\n" in stopped.stderr
    before = (run / "metrics.json").read_bytes()
    out = tmp_path / "results"
    apart = ("--data", f"{place / 'data'}:val", "--out", out, "--no-report")
    assert "replaced" not in invoke("evaluate", run, *apart, *FAST).output
    assert (run / "metrics.json").read_bytes() == before
    again = invoke("evaluate", run, *apart, *FAST)
    assert (
        f"on data/val in {out} is replaced when this one is finished; another --out FOLDER"
        in again.stderr
    )


def test_of_several_runs_each_is_named_that_has_an_evaluation(run, place, tmp_path):
    other = shutil.copytree(place / "run", tmp_path / "other")
    change_config(other, seed=1)
    assert invoke("evaluate", other, "--no-report", *FAST).exit_code == 0
    result = invoke("evaluate", run, other, "--no-report", *FAST)
    said = "is replaced when this one is finished; --out FOLDER keeps it.\n"
    assert result.stderr.count("is replaced when this one is finished") == 1
    assert f"in {other} {said}" in result.stderr


def test_an_evaluation_that_cannot_be_read_is_replaced_and_said_to_be(run):
    metrics = json.loads((run / "metrics.json").read_text())
    (run / "metrics.json").write_text(json.dumps({**metrics, "evaluation": {"schema": 0}}))
    result = invoke("evaluate", run, "--no-report", *FAST)
    assert result.exit_code == 0, result.output
    assert (
        f"The earlier evaluation in {run} is replaced when this one is finished; " in result.stderr
    )


def test_unknown_sets_are_those_of_the_place_that_is_measured_and_none_is_said(run, place):
    data = place / "data"
    whole = invoke("evaluate", run, "--data", f"{data}:train", "--no-report", *FAST)
    assert "ood-gray" in whole.stdout
    assert "Unknown data" not in whole.stdout
    part = invoke("evaluate", run, "--data", data / "train", "--no-report", *FAST)
    assert "ood-gray" not in part.stdout
    assert (
        "Unknown data: none was measured; name some by --ood, or have some made for a first check by --ood made.\n"
        in part.stdout
    )


def test_what_was_measured_is_kept_where_it_cannot_be_shown(run, place, tmp_path, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(evaluate_command, "_show", closed)
    assert invoke("evaluate", run, *FAST).exit_code != 0
    assert 0 <= load_scores(run)("accuracy") <= 1
    assert (run / "report.html").exists()
    monkeypatch.setattr(evaluate_command, "_finish", lambda *_, **__: None)
    twin = shutil.copytree(run, tmp_path / "twin")
    change_config(twin, seed=1)
    out = tmp_path / "seeds"
    assert invoke("evaluate", run, twin, "--out", out, *FAST).exit_code != 0
    assert json.loads((out / "seeds.json").read_text())["num_seeds"] == 2


def test_arrays_of_another_model_do_not_take_the_place_of_a_runs_figures(run, tmp_path):
    np.save(tmp_path / "probs.npy", np.full((4, 2), 0.5))
    np.save(tmp_path / "labels.npy", np.array([0, 1, 0, 1]))
    before = (run / "metrics.json").read_bytes()
    result = invoke("evaluate", "--arrays", tmp_path / "probs.npy", tmp_path / "labels.npy", "--out", run)  # fmt: skip
    assert isinstance(result.exception, ConfigError)
    assert "is a run, with figures of its own" in str(result.exception)
    assert (run / "metrics.json").read_bytes() == before


def test_figures_of_one_run_are_not_put_into_another(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    assert invoke("evaluate", other, "--no-report", *FAST).exit_code == 0
    before = (other / "metrics.json").read_bytes()
    twin = shutil.copytree(run, tmp_path / "twin")
    change_config(twin, seed=1)
    for runs in ([run], [run, twin]):
        result = invoke("evaluate", *runs, "--out", other, *FAST)
        assert isinstance(result.exception, ConfigError)
        assert "other is another run, with figures of its own" in str(result.exception)
    assert (other / "metrics.json").read_bytes() == before
    assert invoke("evaluate", run, "--out", run, "--no-report", *FAST).exit_code == 0


def test_several_unknown_sets_may_follow_one_option_or_each_its_own(run, place, tmp_path):
    out = tmp_path / "results"
    arguments = ("--ood", f"{place / 'data'}:ood-gray", place / "pink", "--out", out, "--no-report")
    assert invoke("evaluate", run, *arguments, *FAST).exit_code == 0
    assert list(Results.load(out).ood) == ["ood-gray", "pink"]
    assert not (out / "report.html").exists()
    with_corruptions = ("--ood", place / "pink", "--corruptions", "fog:1", "contrast:2")
    assert invoke("evaluate", run, *with_corruptions, "--out", out, "--no-report", *FAST).exit_code == 0  # fmt: skip
    scores = load_scores(out)
    assert [entry.name for entry in scores.sets] == [
        "data/test", "pink", "fog-1", "contrast-2", "corrupted (mean)",
    ]  # fmt: skip


def test_several_runs_are_averaged_over_their_seeds(run, place, tmp_path):
    other = shutil.copytree(place / "run", tmp_path / "other")
    change_config(other, seed=1)
    result = invoke("evaluate", run, other, "--no-report", *FAST)
    assert result.exit_code == 0, result.output
    assert "2 runs" in result.output
    assert load_scores(run).metrics == load_scores(other).metrics


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_figures_of_several_runs_that_go_elsewhere_leave_the_runs_as_they_are(run, place, tmp_path):
    other = shutil.copytree(place / "run", tmp_path / "other")
    change_config(other, seed=3)
    assert invoke("evaluate", run, "--no-report", *FAST).exit_code == 0
    before = contents(run) | contents(other)
    out = tmp_path / "results"
    arguments = ("evaluate", run, other, "--data", f"{place / 'data'}:val", "--out", out)
    result = invoke(*arguments, *FAST)
    assert result.exit_code == 0, result.output
    assert contents(run) | contents(other) == before
    assert json.loads((out / "seeds.json").read_text())["num_seeds"] == 2
    assert [load_scores(out / name).test_set for name in ("seed-0", "seed-3")] == ["data/val"] * 2
    assert load_scores(out / "seed-3").about["seed"] == 3
    assert "results, seed-3" in (out / "seed-3" / "report.html").read_text()
    again = invoke(*arguments, "--no-report", *FAST)
    for name in ("seed-0", "seed-3"):
        assert (
            f"in {out / name} is replaced when this one is finished; another --out FOLDER keeps it.\n"
            in again.stderr
        )
    several = invoke("report", out)
    assert "holds several seeds, and no evaluation of one. " in str(several.exception)
    assert f"such as {out / 'seed-0'}." in str(several.exception)


@pytest.fixture
def seeds(place, tmp_path):
    """Return a folder as `train --seeds` makes it, with more than nine seeds and something else in it."""
    folder = tmp_path / "seeds"
    for seed in (2, 10):
        change_config(shutil.copytree(place / "run", folder / f"seed-{seed}"), seed=seed)
    (folder / "seed-of-doubt").mkdir()
    (folder / "seed-11").mkdir()
    return folder


def test_the_folder_of_several_seeds_is_evaluated_as_its_seeds(seeds, run):
    result = invoke("evaluate", seeds, "--no-report", *FAST)
    assert result.exit_code == 0, result.output
    assert result.stdout.index("seed-2/metrics") < result.stdout.index("seed-10/metrics")
    assert "2 runs" in result.stdout
    with_another = invoke("evaluate", seeds, run, "--no-report", *FAST)
    assert "3 runs" in with_another.stdout
    twice = invoke("evaluate", seeds, seeds / "seed-2", *FAST)
    assert "a run is named twice" in str(twice.exception)


def test_a_seed_that_is_not_finished_is_found_before_any_is_evaluated(seeds):
    (seeds / "seed-10" / "model.safetensors").unlink()
    result = invoke("evaluate", seeds, "--no-report", *FAST)
    assert "model.safetensors is missing: the run was finished." in str(result.exception)
    assert "evaluation" not in json.loads((seeds / "seed-2" / "metrics.json").read_text())
    assert result.stdout == ""


def test_figures_of_seeds_are_not_put_into_other_seeds(seeds, run, place, tmp_path):
    twin = shutil.copytree(place / "run", tmp_path / "twin")
    change_config(twin, seed=2)
    before = contents(seeds)
    result = invoke("evaluate", run, twin, "--out", seeds, "--no-report", *FAST)
    assert "seed-2 is another run, with figures of its own" in str(result.exception)
    assert contents(seeds) == before
    own = invoke("evaluate", seeds, "--out", seeds, "--no-report", *FAST)
    assert own.exit_code == 0, own.output
    assert (seeds / "seeds.json").is_file()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "has the seed of"),
        ({"seed": 1, "epochs": 77}, "is no seed of the experiment of .*: epochs is 77 in"),
    ],
)
def test_runs_that_are_no_seeds_of_one_experiment_are_not_averaged(
    run, place, tmp_path, changes, message
):
    other = shutil.copytree(place / "run", tmp_path / "other")
    change_config(other, **changes)
    result = invoke("evaluate", run, other, "--no-report", *FAST)
    assert isinstance(result.exception, ConfigError)
    assert re.search(message, str(result.exception))


def test_a_folder_of_runs_names_them(place):
    result = invoke("evaluate", place)
    assert isinstance(result.exception, ConfigError)
    message = f"is no run, but 1 are in it: name them, such as {place / 'run'}."
    assert message in str(result.exception)


def test_a_damaged_evaluation_is_said_to_be_made_anew(run):
    assert invoke("evaluate", run, "--no-report", *FAST).exit_code == 0
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["evaluation"]["metrics"] = [5]
    (run / "metrics.json").write_text(json.dumps(metrics))
    result = invoke("report", run)
    assert isinstance(result.exception, ConfigError)
    assert "metrics.json is damaged in 'evaluation'" in str(result.exception)


def test_options_reach_the_record(run):
    options = ("--bins", 7, "--threshold", 0.6, "--level", 0.8, "--seed", 3, "--no-temperature")
    assert invoke("evaluate", run, *options, "--no-report", *FAST).exit_code == 0
    scores = load_scores(run)
    config = scores.config
    assert (config.num_bins, config.threshold, config.level, config.seed) == (7, 0.6, 0.8, 3)
    assert config.num_draws == 10
    assert "left out" in scores.about["temperature"]


def test_arrays_of_any_other_model_are_measured_without_a_run(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "probs.npy", rng.dirichlet((1, 1, 1), 30))
    np.save(tmp_path / "labels.npy", rng.integers(3, size=30))
    np.save(tmp_path / "far.npy", rng.dirichlet((9, 9, 9), 20))
    arguments = ("--arrays", tmp_path / "probs.npy", tmp_path / "labels.npy")
    result = invoke(
        "evaluate", *arguments, "--ood-arrays", f"svhn={tmp_path / 'far.npy'}",
        tmp_path / "far.npy", "--out", tmp_path / "out", "--draws", "10",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert list(Results.load(tmp_path / "out").ood) == ["svhn", "far"]
    assert (tmp_path / "out" / "report.html").is_file()
    shown_only = invoke("evaluate", *arguments, "--draws", "10")
    assert "Accuracy" in shown_only.output
    assert "none was measured; name some by --ood-arrays." in shown_only.output
    again = invoke("evaluate", *arguments, "--out", tmp_path / "out", "--draws", "10")
    assert "on probs in" in again.stderr
    assert "is replaced when this one is finished; another --out FOLDER keeps it." in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to evaluate"),
        (("RUM",), "Did you mean"),
        (("RUN", "--ood", "svnh"), "Did you mean 'svhn'"),
        (("RUN", "--corruptions", "fogg"), "Did you mean 'fog'"),
        (("RUN", "--draws", "0"), "num_draws"),
        (("RUN", "--device", "gpu"), "device"),
        (("RUN", "--device", "cuda:99"), "device is 'cuda:99', but torch sees"),
        (("RUN", "RUN"), "a run is named twice"),
        (("RUN", "--ood-arrays", "x.npy"), "belongs to --arrays"),
        (("--arrays", "no.npy", "no.npy"), "no.npy cannot be read"),
        (("RUN", "--out", "/dev/null/x"), "metrics.json cannot be written"),
        (("RUN", "--arrays", "x.npy", "y.npy"), "a run or --arrays, not both"),
        (("--arrays", "x.npy", "y.npy", "--ood", "svhn"), "by --ood-arrays"),
        (("--arrays", "x.npy", "y.npy", "--corruptions", "fog"), "--corruptions needs a run"),
        (("--arrays", "x.npy", "y.npy", "--data", "new"), "--data (new) needs a run"),
        (("RUN", "--data", "digits"), "classes that the run was not trained on"),
    ],
)
def test_a_mistake_names_the_way_out(run, arguments, message):
    given = [str(run) if a == "RUN" else str(run.parent / "rum") if a == "RUM" else a for a in arguments]  # fmt: skip
    result = invoke("evaluate", *given)
    assert message in str(result.exception)


def test_results_that_could_not_be_kept_are_found_before_anything_is_predicted(run, monkeypatch):
    (run / "metrics.json").write_text('{"training"')
    monkeypatch.setattr("lrformer.evaluation.evaluate_run", None)
    result = invoke("evaluate", run, *FAST)
    assert "metrics.json is not valid JSON" in str(result.exception)


def test_mistakes_leave_with_exit_code_two(run, monkeypatch, capsys):
    from lrformer.cli.main import main

    monkeypatch.setattr("sys.argv", ["lrformer", "evaluate", str(run), "--ood", "svnh"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("lrformer: 'svnh' is neither")
    assert invoke("evaluate", run, "--oood", "x").exit_code == 2


def test_a_report_is_made_again_from_the_results_alone(run, tmp_path):
    unready = invoke("report", run)
    assert "has not been evaluated" in str(unready.exception)
    assert invoke("evaluate", run, "--no-report", *FAST).exit_code == 0
    for path in ("model.safetensors", "config.json"):
        (run / path).unlink()
    result = invoke("report", run, "--out", tmp_path / "mine.html", "--title", "Mine")
    assert result.exit_code == 0
    assert result.output.strip().endswith("mine.html")
    assert "<title>Mine</title>" in (tmp_path / "mine.html").read_text()


@pytest.mark.parametrize("command", ["evaluate", "predict", "report"])
def test_help_shows_an_example_and_defaults(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert f"Example: lrformer {command}" in result.output
    assert "default:" in result.output


def test_made_sets_are_shown_as_made_and_leave_the_unknown_unmeasured(run):
    result = invoke("evaluate", run, "--ood", "made", "--no-report", *FAST)
    assert result.exit_code == 0, result.output
    assert [entry.role for entry in load_scores(run).sets] == ["id", *["made"] * 4]
    assert "of images that were made, " in result.stdout
    assert "Unknown data: none was measured; name some by --ood.\n" in result.stdout
