"""The table commands as a person uses them: options, mistakes, what is printed."""

import inspect
import re
import sys

import pytest
from typer.testing import CliRunner

from lrformer.cli import reproduce_tables
from lrformer.cli.main import app, main
from lrformer.core import ConfigError
from lrformer.recipes import TABLES, table_check, table_engine
from lrformer.recipes.sharing import take_in_hand
from lrformer.training.splits import load_splits
from tests.evaluation.made_run import write_image_folder
from tests.recipes.made_table import SMALL, made_run, write_arrays

RUNNER = CliRunner()
MODEL = [f"--model-option={name}={value}" for name, value in SMALL.items()]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_arrays(tmp_path_factory.mktemp("tiny") / "shades")


@pytest.fixture
def unbuilt(monkeypatch):
    """No model is built before the runs: the tiny data are too few for some recipes."""
    for name in ("check_data", "check_run"):
        monkeypatch.setattr(table_check, name, lambda config: load_splits(config)[0])


@pytest.fixture
def made(monkeypatch, unbuilt):
    """Runs are made up; the list holds what was asked for."""
    calls = []

    def make(planned, folder, how, trained=None):
        calls.append((planned, folder, how))
        return made_run(planned, how, nll=0.61 + planned.config.seed / 100)

    monkeypatch.setattr(table_engine, "make_run", make)
    return calls


def invoke(*words: object, code: int = 0):
    result = RUNNER.invoke(app, ["reproduce", *map(str, words)])
    if code == 0 and result.exception is not None:
        raise result.exception
    return result


def test_there_is_a_command_for_every_table():
    assert sorted(reproduce_tables.SUMMARIES) == sorted(TABLES.names())
    for name in TABLES.names():
        shown = invoke(name, "--help")
        assert reproduce_tables.SUMMARIES[name][:30] in shown.output


@pytest.mark.parametrize("name", sorted(reproduce_tables.SUMMARIES))
def test_a_table_shows_the_options_that_it_takes(name):
    taken = inspect.signature(TABLES[name]).parameters
    shown = invoke(name, "--help").output
    for option, tables in reproduce_tables.OPTIONS.items():
        assert (name in tables) == (option in taken)
        assert (f"--{option} " in shown) == (option in taken)


def test_a_small_table_is_trained_on_the_cpu_and_printed(data, tmp_path):
    words = ["references", "--data", data, "--out", tmp_path, "--seeds", 1, "--epochs", 1]
    words += ["--rows", "deterministic", "--batch-size", 8, "--draws", 5, "--device", "cpu"]
    words += ["--ood", f"{data}:ood-stripes", "--model-option", "depth=10"]
    words += ["--model-option", "widen_factor=1", "--model-option", "img_size=8"]
    shown = invoke(*words).output
    assert "WRN-28-10" in shown
    assert "shortened to 1 of 250 epochs" in " ".join(shown.split())
    assert "AUROC ood-stripes" in shown
    assert "1 of 1 runs are finished" in shown
    assert invoke(*words, "--list").output.count("missing") == 0


def test_the_printed_table_has_the_papers_figure_ours_and_the_difference(
    made, data, tmp_path, monkeypatch
):
    for name in ("check_runs", "check_unknown_sets"):
        monkeypatch.setattr(table_engine, name, lambda *_: None)
    shown = invoke("ablation", "--out", tmp_path, "--rows", "transformer,lrformer").output
    assert [call[0].name for call in made] == [
        f"{row}, seed {seed}" for seed in range(3) for row in ("transformer", "lrformer")
    ]
    assert made[0][2].ood == ("svhn", "cifar100")
    words = " ".join(shown.split())
    assert "0.6200 ± 0.025" in words  # 4.303 * 0.01 / sqrt(3)
    assert "paper 0.4447" in words
    assert "+0.1753" in words
    assert "6 of 6 runs are finished" in words


def test_options_reach_every_row_and_the_command_in_the_record(made, data, tmp_path):
    invoke(
        "attentions", "--out", tmp_path, "--data", data, "--seeds", 1, "--epochs", 7, "--batch-size", 4,
        "--optimizer", "paper", "--alpha", 55, "--weight-decay", 0, "--ood", "", *MODEL,
    )  # fmt: skip
    configs = {call[0].row.name: call[0].config for call in made}
    assert len(configs) == 6
    for config in configs.values():
        assert (config.epochs, config.batch_size, config.optimizer.name) == (7, 4, "sgd")
        assert config.optimizer.weight_decay == 0
        assert config.model_overrides["embed_dim"] == 8
    assert configs["lrsa"].model_overrides["alpha"] == 55
    how = made[0][2]
    assert how.ood == ()
    assert str(data) not in how.command
    assert "--optimizer paper" in how.command
    assert "--weight-decay 0 " in how.command
    assert not how.runtime.quiet
    assert how.runtime.seconds_between_lines == 60
    assert "--model-option embed_dim=8" in how.command
    assert not how.runtime.compile  # there is no GPU here, or it was not asked for


def test_what_is_missing_is_listed_without_running(made, data, tmp_path):
    shown = invoke("alpha", "--out", tmp_path, "--data", data, "--list", "--seeds", 1).output
    assert shown.count("missing:") == 11
    assert "0 of 11 runs are finished" in shown
    assert not made


def test_a_record_is_listed_without_a_folder_of_runs(made, data, tmp_path):
    record = tmp_path / "record.json"
    words = ["alpha", "--record", record, "--data", data, "--seeds", 1, "--epochs", 1, "--ood", ""]
    invoke(*words, "--out", tmp_path / "runs", "--rows", "dot_product")
    shown = invoke(*words, "--list").output
    assert shown.count("missing:") == 10
    assert f"1 of 11 runs are finished: {record}" in shown.replace("\n", "")


def test_runs_with_other_settings_in_the_record_are_said(made, data, tmp_path):
    words = ["references", "--out", tmp_path, "--data", data, "--seeds", 1, "--ood", ""]
    invoke(*words, "--epochs", 15)
    made_now = invoke(*words, "--epochs", 7, "--rows", "sngp").output
    assert "the record also holds 1 run with other settings; --list names them\n" in made_now
    shown = invoke(*words, "--list").output
    assert "0 of 2 runs are finished" in shown
    line = (
        "the record also holds {0} with other settings (optimizer `published`, shortened to {1} of 250 epochs; "
        "unknown sets: none): --optimizer published --epochs {1}"
    )
    assert line.format("2 runs", 15) in shown
    assert line.format("1 run", 7) in shown
    stripes = invoke(*words, "--epochs", 15, "--ood", f"{data}:ood-stripes", "--list").output
    assert line.format("2 runs", 15) in stripes
    own = invoke(*words, "--epochs", 15, "--rows", "deterministic", "--list").output
    assert "other settings" not in own
    invoke(*words[:-1], f"{data}:ood-stripes", "--epochs", 9)
    assert "--epochs 9 --ood " in invoke(*words, "--list").output.replace("\n", " ")


@pytest.mark.parametrize("spelled", ["{0}:ood-stripes", "{0}/:ood-stripes"])
def test_the_command_of_a_record_names_unknown_sets_as_they_can_be_asked_for(
    made, data, tmp_path, spelled
):
    words = ["references", "--out", tmp_path, "--data", data, "--rows", "sngp", "--seeds", 1]
    invoke(*words, "--ood", spelled.format(data))
    assert f"--ood {data.name}:ood-stripes " in made[0][2].command


def test_a_record_that_does_not_exist_is_said(made, data, tmp_path):
    record = tmp_path / "recrod.json"
    words = ["references", "--data", data, "--seeds", 1, "--record", record]
    shown = invoke(*words, "--list").output
    assert f"0 of 2 runs are finished: {record} does not exist yet\n" in shown
    made_there = invoke(*words, "--out", tmp_path, "--ood", "").output
    assert f"2 of 2 runs are finished: {record}\n" in made_there


def test_a_run_in_other_hands_is_listed_as_such(made, data, tmp_path):
    words = ["references", "--out", tmp_path, "--data", data, "--seeds", 1, "--ood", ""]
    invoke(*words, "--rows", "sngp")
    with take_in_hand(made[0][1].parents[1] / "deterministic" / "seed-0"):
        shown = invoke(*words).output
    assert "in hand: deterministic, seed 0\n" in shown
    assert "Stopped: other processes have in hand what is left (deterministic, seed 0)." in shown


def test_a_command_without_a_folder_says_what_is_missing(made, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lrformer", "reproduce", "alpha"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "out, the folder of the runs, is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ablation", "--rows", "transforme"], "Did you mean 'transformer'"),
        (["ablation", "--optimizer", "adam"], "must be one of paper, modern, muon"),
        (["ablation", "--pixels", "64"], "must be 224, as printed, or 32"),
        (["main", "--pixels", "32"], "table 'main' has no --pixels"),
        (["alpha", "--alpha", "3"], "table 'alpha' has no --alpha"),
        (["references", "--model-option", "depth"], "must be NAME=VALUE"),
        (["attentions", "--data", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_trained(
    made, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.setattr(sys, "argv", ["lrformer", "reproduce", *words, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ablation", "--rows", "transformer,lrformer", "--alpha", "-1"], r"row 'lrformer' .*alpha \(-1.0\)"),
        (["ablation", "--rows", "transformer,lrformer", "--alpha", "0"], r"row 'lrformer' .*alpha \(0.0\)"),
        (["attentions", "--rows", "dot_product,lrsa", "--alpha", "0"], r"row 'lrsa' .*alpha \(0.0\)"),
        (["ablation", "--rows", "transformer,lrformer", "--alpha", "nan"], r"row 'transformer' has a setting that is not a finite number"),
        (["ablation", "--rows", "transformer", "--weight-decay", "inf"], r"weight_decay \(inf\) must be a finite number"),
        (["attentions", "--rows", "lrsa,dot_product", "--model-option", "normalizer=m"], "row 'dot_product' .*normalizer"),
        (["attentions", "--rows", ","], "rows is empty; give at least one of dot_product"),
        (["attentions", "--rows", "lrsa", "--batch-size", "500"], r"^lrformer: shades/train .*fewer than batch_size \(500\)"),
        (["attentions", "--rows", "lrsa", "--data", "nodata"], "^lrformer: 'nodata' is neither a data set nor"),
        (["attentions", "--rows", "lrsa", "--device", "gpu"], r"^lrformer: device \('gpu'\) must be"),
    ],
)  # fmt: skip
def test_what_one_row_cannot_work_with_is_said_before_any_row_is_trained(
    data, tmp_path, monkeypatch, capsys, words, message
):
    def train(*_):
        raise AssertionError("a row is trained")

    monkeypatch.setattr(table_engine, "make_run", train)
    words = ["lrformer", "reproduce", *words, *MODEL, "--ood", "", "--epochs", "1"]
    if "--batch-size" not in words:
        words += ["--batch-size", "8"]
    if "--data" not in words:
        words += ["--data", str(data)]
    words += ["--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1


def test_two_unknown_sets_of_one_name_are_refused_before_anything_is_trained(made, data, tmp_path):
    words = ["attentions", "--out", tmp_path, "--data", data, "--rows", "lrsa"]
    stripes = f"{data}:ood-stripes"
    with pytest.raises(ConfigError, match="2 unknown sets are named"):
        invoke(*words, "--ood", f"{stripes},{stripes}")
    for own in (data, f"{data}:test", f"{data}/"):
        with pytest.raises(ConfigError, match="is what the run was trained or is measured on"):
            invoke(*words, "--ood", own)
    assert not made


def test_ctrl_c_says_how_to_go_on(data, tmp_path, monkeypatch, capsys, unbuilt):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(table_engine, "make_run", interrupt)
    words = ["lrformer", "reproduce", "attentions", "--out", str(tmp_path), "--data", str(data)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert "goes on with the same command" in capsys.readouterr().err


def _fail(*_):
    raise ArithmeticError("the loss is not finite")


def test_failed_runs_end_in_exit_code_one_and_the_way_to_try_them_again(
    made, data, tmp_path, monkeypatch
):
    words = ["references", "--out", tmp_path, "--data", data, "--seeds", 1, "--ood", ""]
    invoke(*words, "--rows", "sngp")
    with monkeypatch.context() as patched:
        patched.setattr(table_engine, "make_run", _fail)
        first = invoke(*words, code=1)
    again = invoke(*words, code=1)
    for result in (first, again):
        assert result.exit_code == 1
        assert "failed: deterministic, seed 0 ArithmeticError: the loss" in result.output
        assert "\n--retry tries failed runs again\n" in result.output
    assert invoke(*words, "--list").exit_code == 0
    assert "--retry" not in invoke(*words, "--rows", "sngp").output
    assert invoke(*words, "--retry").exit_code == 0


def test_a_run_that_is_skipped_ends_in_exit_code_one(made, data, tmp_path, monkeypatch):
    def refuse(planned, folder, how, trained=None):
        raise ConfigError(f"{folder} is not empty.")

    words = ["references", "--out", tmp_path, "--data", data, "--rows", "sngp", "--ood", ""]
    monkeypatch.setattr(table_engine, "make_run", refuse)
    result = invoke(*words, code=1)
    assert result.exit_code == 1
    assert "missing: sngp, seed 0 (skipped: " in result.output


def test_unknown_sets_beside_the_data_are_named_and_not_taken(made, data, tmp_path):
    words = ["references", "--out", tmp_path, "--data", data, "--rows", "sngp"]
    line = f"the unknown sets in {data} are not looked at; --ood {data}:ood-stripes takes them\n"
    assert line in invoke(*words).stderr
    assert made[0][2].ood == ()
    assert line not in invoke(*words, "--ood", "").stderr


def test_a_depth_of_the_users_is_not_called_that_of_the_recipe(made, data, tmp_path):
    words = ["attentions", "--out", tmp_path, "--data", data, "--rows", "lrsa", "--seeds", 1]
    assert "Attentions under a linear head, depth 6 (" in invoke(*words).output
    shown = invoke(*words, "--model-option", "depth=2").output
    assert "Attentions under a linear head (" in shown
    assert "depth 6" not in shown


def test_no_figure_is_cut_where_titles_are_long(made, data, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    words = ["main", "--out", tmp_path, "--data", data, "--ood", f"{data}:ood-stripes"]
    shown = invoke(*words, "--rows", "transformer_gp_variance").output
    assert "temperature by variance" in shown
    assert "ECE, equal mass" in shown
    assert "…" not in shown


def test_settings_of_a_model_are_said_so_that_a_shell_takes_them(made, data, tmp_path):
    words = ["main", "--out", tmp_path, "--data", data, "--ood", "", "--rows", "lrformer"]
    invoke(*words, "--epochs", 9, "--model-option", "widths=[8, 16]")
    shown = invoke(*words, "--list").output
    assert "--epochs 9 --model-option 'widths=[8, 16]'\n" in shown


def test_a_folder_may_be_spelled_in_another_way_than_in_the_record(
    made, data, tmp_path, monkeypatch
):
    monkeypatch.chdir(data.parent)
    words = ["references", "--out", tmp_path, "--rows", "sngp", "--seeds", 1, "--ood", ""]
    for spelling in (data.name, f"./{data.name}/", str(data)):
        assert "1 of 1 runs are finished" in invoke(*words, "--data", spelling).output
    assert len(made) == 1


def test_files_that_cannot_be_decoded_are_left_out_by_an_option_of_every_table(
    made, tmp_path, monkeypatch
):
    photos = write_image_folder(tmp_path / "photos")
    (photos / "train" / "red" / "000.png").write_bytes(b"no image")
    (photos / "ood-gray" / "000.png").write_bytes(b"no image")
    words = ["references", "--out", tmp_path, "--data", photos, "--rows", "sngp", "--seeds", 1]
    words += ["--ood", f"{photos}:ood-gray", "--root", tmp_path / "cache"]
    with pytest.raises(ConfigError, match="--skip-unreadable"):
        invoke(*words)
    shown = invoke(*words, "--skip-unreadable").output
    assert "skip_unreadable" in shown
    (planned, _, how) = made[0][:3]
    assert planned.config.skip_unreadable is True
    assert how.command.endswith("--skip-unreadable")
    for path in (photos / "ood-gray").iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(ConfigError, match="ood-gray: no image in it can be read"):
        invoke(*words, "--skip-unreadable", "--epochs", 7)


def test_channels_are_an_option_of_every_table_and_of_the_command_in_the_record(
    made, data, tmp_path
):
    words = ["references", "--out", tmp_path, "--data", data, "--rows", "sngp", "--seeds", 1]
    assert "channels 1" in invoke(*words, "--ood", "", "--channels", 1).output
    (planned, _, how) = made[0][:3]
    assert planned.config.channels == 1
    assert how.command.endswith("--channels 1")
