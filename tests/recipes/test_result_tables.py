"""The pages say what the records say, and what is missing."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from lrformer.recipes import TABLES, plan_runs
from lrformer.recipes.table_record import TableRecord, read_table_record, write_table_record
from lrformer.recipes.table_run import Circumstances, failed_run
from tests.recipes.made_table import made_run

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def pages(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import result_tables

    monkeypatch.setattr(result_tables, "RESULTS", tmp_path)
    return result_tables


UNKNOWN = Circumstances(ood=("svhn", "cifar100"))


def write(
    folder: Path,
    name: str,
    rows: dict[str, list[float]],
    *,
    failed: str | None = None,
    weight_decay: float | None = None,
    shortened_to: int | None = None,
) -> None:
    """Add runs of a table with these NLLs by row and seed to its record."""
    table = TABLES[name](data="cifar10")
    if shortened_to is not None:
        table = table.changed(
            lambda config: dataclasses.replace(config, epochs=shortened_to),
            {"epochs": shortened_to, "shortened_from": 100},
        )
    if weight_decay is not None:
        table = table.changed(
            lambda config: dataclasses.replace(
                config, optimizer=dataclasses.replace(config.optimizer, weight_decay=weight_decay)
            ),
            {"weight_decay": weight_decay},
        )
    path = folder / f"cifar10-{name}.json"
    record = TableRecord(table=name, data="cifar10")
    if path.exists():
        record = read_table_record(path, table=name, data="cifar10")
    curve = {"epoch": [1, 2], "accuracy": [0.5, 0.8], "nll": [2.0, 1.0], "ece": [0.2, 0.1]}
    for run in plan_runs(table, rows=list(rows), num_seeds=len(next(iter(rows.values())))):
        record = record.add(
            made_run(run, UNKNOWN, nll=rows[run.row.name][run.config.seed], curve=curve)
        )
    if failed is not None:
        run = plan_runs(table, rows=[failed], num_seeds=1)[0]
        record = record.add(failed_run(run, ArithmeticError("not finite"), Circumstances()))
    write_table_record(path, record)


def made(pages, name: str) -> str:
    """Return a table as the page of this name has it."""
    return pages.RESULT_TABLES[name][1]()


def test_without_records_the_pages_say_that_nothing_is_measured(pages):
    for name in pages.NAMES:
        assert pages.section(name).startswith("Not measured yet.")
        assert pages.details(name) == "Not measured yet."
    assert pages.runs_table() == "None yet."
    assert pages.cost_table() == pages.readme_table() == "Not measured yet."
    assert made(pages, "main-search") == "Not measured yet."
    assert made(pages, "result-temperature") == "Not measured yet."


def test_a_section_has_figures_claims_sentences_failures_and_what_is_missing(pages, tmp_path):
    rows = {"transformer": [0.70, 0.71, 0.72], "lrformer": [0.50, 0.52, 0.51]}
    write(tmp_path, "ablation", rows, failed="due")
    text = pages.section("ablation")
    assert "**Optimizer `paper`, 32 pixels.** cpu, torch 2; 10 to 10 s of training a run." in text
    assert "| LRFormer, GP head | 3 | 0.800 ± 0.000 | 0.510 ± 0.025 |" in text
    assert "| variance | 0.610 |" in text
    assert "| LRFormer, GP head | NLL | 0.445 | 0.510 ± 0.025 | +0.065 | no | holds |" in text
    said = "- LRFormer, GP head against Transformer: better in NLL (-0.200)"
    assert said not in text
    assert said in pages.details("ablation")
    assert "- Failed: due, seed 0: ArithmeticError: not finite" in text
    assert "sngp (0 of 3)" in text
    runs = pages.runs_table().splitlines()
    assert len(runs) == 2 + 7
    assert "failed: ArithmeticError: not finite" in runs[-1]


def test_a_sentence_about_fewer_seeds_than_the_table_has_says_so(pages, tmp_path):
    rows = {"transformer": [0.70, 0.71], "lrformer": [0.50, 0.5101]}
    write(tmp_path, "ablation", rows)
    said = "- LRFormer, GP head against Transformer (2 seeds): better in NLL (-0.200)"
    assert said in pages.details("ablation")


def test_where_the_paper_is_not_confirmed_the_page_says_so(pages, tmp_path):
    write(tmp_path, "ablation", {"transformer": [0.5, 0.51, 0.52], "lrformer": [0.7, 0.71, 0.69]})
    text = pages.section("ablation")
    assert "| +0.255 | no | does not hold |" in text
    assert "worse in NLL (+0.190)" in pages.details("ablation")


def test_figures_of_other_data_are_named_and_attentions_are_matched_in_accuracy(pages, tmp_path):
    write(tmp_path, "attentions", {"dot_product": [0.6], "lrsa": [0.5]})
    text = pages.section("attentions")
    assert "| table 3 (cifar100) |" in text
    assert "| other data |  | holds (one seed) |" in text
    assert "0.500 ± 0.010*" in text
    assert "At equal accuracy: the first epoch with 80%" in text
    assert "| Dot product | 2 | 0.800 | 0.100 | 1.000 |" in text


def test_the_readme_has_the_papers_row_beside_ours(pages, tmp_path):
    write(tmp_path, "main", {"transformer": [0.2], "lrformer": [0.1]})
    lines = pages.readme_table().splitlines()
    assert (
        "| LRFormer, printed in table 1 | 0.972 | 0.100 | 0.012 | 0.993 | 0.911 |  | 10 |"
        in lines[2]
    )
    assert lines[4].startswith("| LRFormer, GP fitted after training | 0.800")
    assert "(variance) | 1 |" in lines[4]
    assert lines[3].startswith("| Transformer, same recipe | 0.800")
    assert len(lines) == 5
    assert "| lrformer | 150 epochs | 0 | 0.2 | 100 | cpu |" in pages.cost_table()


def test_the_best_model_is_shown_by_every_score_and_one_seed_is_enough(pages, tmp_path):
    write(tmp_path, "main", {"transformer": [0.2], "lrformer": [0.1]})
    text = pages.details("main")
    assert "| | score | made: mixed | SVHN | CIFAR-100 |" in text
    assert "| LRFormer, GP fitted after training | entropy | 0.600 | 0.800 | 0.800 |" in text
    assert "| LRFormer, GP fitted after training | variance (chosen) | 0.700 |" in text
    assert (
        "lrformer_median (0 of 1), lrformer_gp (0 of 1), lrformer_gp_variance (0 of 1), transformer_gp (0 of 1), transformer_gp_variance (0 of 1)."
        in pages.section("main")
    )


def test_a_temperature_by_variance_stands_beside_one_for_all_inputs_of_the_same_weights(
    pages, tmp_path
):
    write(tmp_path, "main", {"lrformer_gp": [0.3]})
    path, beside = tmp_path / "cifar10-main.json", tmp_path / "cifar10-main-temperature.json"
    record = read_table_record(path, table="main", data="cifar10")
    (one,) = record.runs
    path.unlink()
    write(tmp_path, "main", {"lrformer_gp": [0.4], "lrformer_gp_variance": [0.2]})
    for source in (None, "lrformer_gp", "lrformer_gp_variance"):
        # Only of the same weights a difference is the temperature's.
        assert made(pages, "result-temperature") == "Not measured yet."
        run = dataclasses.replace(one, training={**one.training, "weights_of": source})
        write_table_record(beside, dataclasses.replace(record, runs=(run,)))
    head, _, one, grown = made(pages, "result-temperature").splitlines()
    assert head.startswith("| temperature | NLL | ECE | ECE, equal mass | AUPR SVHN by entropy |")
    assert head.endswith("| mean confidence, SVHN | mean confidence, CIFAR-100 |")
    assert one.startswith("| one for all inputs | 0.3000 (0.2900 to 0.3100) | 0.0500 (")
    assert grown.startswith("| by variance | 0.2000 (0.1900 to 0.2100) | 0.0500 (")
    assert grown.endswith("| 0.8000 (0.7900 to 0.8100) | 0.8000 (0.7900 to 0.8100) |")
    # The record beside the table's is listed with the runs, under its own name.
    assert "| main-temperature |  | lrformer_gp | 0 | 80.00% |" in pages.runs_table()


def test_a_run_with_the_weights_of_another_row_does_not_count_its_seconds_as_its_own(
    pages, tmp_path
):
    write(tmp_path, "main", {"lrformer": [0.1], "lrformer_median": [0.2]})
    path = tmp_path / "cifar10-main.json"
    record = read_table_record(path, table="main", data="cifar10")
    own, twin = record.runs
    twin = dataclasses.replace(twin, training={**twin.training, "weights_of": "lrformer"})
    write_table_record(path, dataclasses.replace(record, runs=(own, twin)))
    assert pages.cost_table().splitlines()[2:] == [
        "| lrformer | 150 epochs | 0 | 0.2 | 100 | cpu |",
        "| lrformer_median | 150 epochs | 0 | weights of `lrformer` | | cpu |",
    ]
    first, second = pages.runs_table().splitlines()[2:]
    assert "| lrformer | 0 | 80.00% | 10 | cpu, 2 |" in first
    assert "| lrformer_median | 0 | 80.00% | weights of `lrformer` | cpu, 2 |" in second
    assert "GP fitted, median length-scale | 1 |" in pages.section("main")


def test_the_readme_has_every_row_after_the_temperature(pages, tmp_path):
    write(tmp_path, "references", {"deterministic": [0.3]})
    path = tmp_path / "cifar10-references.json"
    record = read_table_record(path, table="references", data="cifar10")
    (run,) = record.runs
    calibrated = json.loads(json.dumps(run.figures["calibrated"]).replace("0.3", "0.2"))
    run = dataclasses.replace(run, figures={**run.figures, "calibrated": calibrated})
    write_table_record(path, dataclasses.replace(record, runs=(run,)))
    ours = pages.readme_table().splitlines()[-1]
    assert ours.startswith("| WRN-28-10 |")
    assert "| 0.200 " in ours
    assert "| 0.300 " not in ours


def test_a_decay_that_only_the_plain_row_was_run_with_is_a_line_of_the_choice_alone(
    pages, tmp_path
):
    assert made(pages, "result-decay") == "Not measured yet."
    write(tmp_path, "ablation", {"transformer": [1.9], "lrformer": [1.8]})
    write(tmp_path, "ablation", {"transformer": [1.4, 1.5], "lrformer": [1.3, 1.2]}, weight_decay=0)
    write(tmp_path, "ablation", {"transformer": [1.6]}, weight_decay=0.005)
    assert made(pages, "result-decay").splitlines()[2:] == [
        "| 100 | 0 | 0.800 | 1.500 |",
        "| 100 | 0.005 | 0.800 | 1.700 |",
        "| 100 | 0.05 | 0.800 | 2.000 |",
    ]
    text = pages.section("ablation")
    assert text.count("**Optimizer") == 2
    assert "weight_decay 0.005" not in text
    assert "weight_decay 0.005" in pages.runs_table()


def test_the_place_of_the_norms_is_judged_with_each_decay(pages, tmp_path):
    assert made(pages, "result-norms") == "Not measured yet."
    record = TableRecord(table="ablation", data="cifar10")
    for options, decay, nll in (({}, 0.05, 2.0), ({"norm": "post"}, 0.0, 1.9), ({}, 0.0, 1.8)):
        table = TABLES["ablation"](data="cifar10").changed(
            lambda config, options=options, decay=decay: dataclasses.replace(
                config,
                model_overrides={**config.model_overrides, **options},
                optimizer=dataclasses.replace(config.optimizer, weight_decay=decay),
            ),
            {"model": options, "weight_decay": decay},
        )
        (run,) = plan_runs(table, rows=["transformer"], num_seeds=1)
        record = record.add(made_run(run, UNKNOWN, nll=nll))
    write_table_record(tmp_path / "cifar10-ablation-norms.json", record)
    assert made(pages, "result-norms").splitlines()[2:] == [
        "| post-norm | 0 | Transformer | 0.800 | 2.000 |",
        "| pre-norm | 0.05 | Transformer | 0.800 | 2.100 |",
        "| pre-norm | 0 | Transformer | 0.800 | 1.900 |",
    ]


def test_every_row_is_shown_at_its_best_epoch_and_at_the_end(pages, tmp_path):
    assert made(pages, "result-best-epoch") == "Not measured yet."
    losses = {
        "transformer": ([2.0, 0.5, 0.9], [2.0, 0.6, 1.0], [2.0, 0.7, 1.1]),
        "lrformer": ([1.9, 0.8, 0.7], [1.9, 0.9, 0.8], [1.9, 1.0, 0.9]),
        "lrformer_linear": ([0.4, 0.5, 0.5], [0.9, 0.9, 0.9], [0.6, 0.7, 0.6]),
    }
    table = TABLES["ablation"](data="cifar10")
    record = TableRecord(table="ablation", data="cifar10")
    for run in plan_runs(table, rows=list(losses), num_seeds=3):
        nll = losses[run.row.name][run.config.seed]
        curve = {
            "epoch": [3, 6, 9],
            "accuracy": [0.2, 0.6, 0.8],
            "nll": nll,
            "ece": [0.3, 0.1, 0.2],
        }
        record = record.add(made_run(run, UNKNOWN, nll=1.0, curve=curve))
    path = tmp_path / "cifar10-ablation.json"
    write_table_record(path, record)
    title, _, _, _, plain, linear, whole = made(pages, "result-best-epoch").splitlines()
    assert title == "**Optimizer `paper`, 32 pixels.**"
    best = "0.600 ± 0.248 | 0.100 ± 0.000 | 0.600 ± 0.000"
    end = "1.000 ± 0.248 | 0.200 ± 0.000 | 0.800 ± 0.000"
    assert plain == f"| Transformer | 3 | 6 | {best} |  | {end} |"
    assert whole.startswith("| LRFormer, GP head | 3 | 9 | 0.800 ± 0.248 |")
    assert "| **+0.200 worse** |" in whole
    # Ahead in one seed and behind in another.
    assert "| +0.033 |" in linear
    assert linear.startswith("| LRFormer, linear head | 3 | 3 | 0.633")
    # One row alone says nothing, nor does one seed of a difference.
    runs = tuple(run for run in record.runs if run.row == "transformer")
    write_table_record(path, dataclasses.replace(record, runs=runs))
    assert made(pages, "result-best-epoch") == "Not measured yet."
    runs = tuple(run for run in record.runs if run.seed == 0)
    write_table_record(path, dataclasses.replace(record, runs=runs))
    assert "| LRFormer, GP head | 1 | 9 | 0.700 | 0.200 | 0.800 | +0.200 |" in made(
        pages, "result-best-epoch"
    )


def test_each_part_of_the_system_is_compared_with_what_lacks_it_over_three_seeds(pages, tmp_path):
    assert made(pages, "result-glance") == "Not measured yet."
    write(tmp_path, "ablation", {"transformer": [0.9, 0.9], "lrformer": [0.1, 0.1]}, weight_decay=0)
    assert made(pages, "result-glance") == "Not measured yet."  # two seeds tell nothing
    noisy = {"transformer": [0.70, 0.71, 0.72], "lrformer_linear": [0.60, 0.90, 0.63]}
    write(tmp_path, "ablation", noisy | {"lrformer": [0.50, 0.52, 0.51]})
    write(tmp_path, "ablation", {"transformer": [0.5] * 3, "lrformer": [0.7] * 3}, shortened_to=15)
    whole, attention, head = made(pages, "result-glance").split("\n\n")
    title, _, printed, long, short = whole.splitlines()
    assert title.startswith("| LRFormer, whole, against the plain transformer | seeds | accuracy |")
    assert printed.startswith("| printed | 10 | -0.006 | -0.253 |  |  |  | +0.095 |")
    start = "| SGD, 32 pixels, 100 epochs | 3 | +0.000 "
    assert long.startswith(f"{start}| **-0.200 better** | **-0.200 better** |")
    assert short.startswith("| SGD, 32 pixels, 15 epochs | 3 | +0.000 | **+0.200 worse** |")
    # The paper has no row between the two, and these seeds do not tell them apart.
    assert attention.splitlines()[2:] == [f"{start}{'| +0.000 ' * 8}|"]
    assert head.startswith("| The GP head alone, both on LRSA |")
    assert f"{start}| -0.200 | -0.200 |" in head


def test_what_two_parts_do_together_is_what_neither_does_alone(pages, tmp_path):
    alone = {"transformer": [0.9, 0.8, 0.7], "lrformer_linear": [0.8, 0.7, 0.6]}
    write(tmp_path, "ablation", alone | {"lrformer": [0.5, 0.4, 0.3]})
    assert "beyond the sum" not in made(pages, "result-glance")
    # The head alone gains .1 as LRSA does; together they gain .4.
    write(tmp_path, "ablation", {"transformer_gp": [0.8, 0.7, 0.6]})
    *_, together = made(pages, "result-glance").split("\n\n")
    title, _, line = together.splitlines()
    assert title.startswith(
        "| LRSA and the GP head together, beyond the sum of what each does alone |"
    )
    assert line.startswith("| SGD, 32 pixels, 100 epochs | 3 | +0.000 | **-0.200 better** |")


def test_overconfidence_is_shown_without_a_part_and_with_it(pages, tmp_path):
    assert made(pages, "result-overconfidence") == "Not measured yet."
    table = TABLES["ablation"](data="cifar10")
    record = TableRecord(table="ablation", data="cifar10")
    for run in plan_runs(table, rows=["transformer", "lrformer"], num_seeds=3):
        seed = run.config.seed
        entry = made_run(run, UNKNOWN)
        raw, calibrated = (copy.deepcopy(entry.figures["raw"]) for _ in range(2))
        is_ours = run.row.name == "lrformer"
        test = next(iter(raw))
        raw[test]["probabilities"] |= {
            "overconfidence_rate": [(0.05 if is_ours else 0.1) + seed / 1000, None, None],
            "overconfidence_mean_confidence_when_wrong": [
                0.8 + (-1) ** seed * is_ours / 10,
                None,
                None,
            ],
        }
        calibrated[test]["probabilities"] |= {
            "overconfidence_rate": [0.03 if is_ours else 0.02, None, None],
            "overconfidence_mean_confidence_when_wrong": [None, None, None],
        }
        raw["svhn"]["probabilities"]["overconfidence_rate"] = [0.3 if is_ours else 0.4, None, None]
        figures = {"raw": raw, "calibrated": calibrated}
        record = record.add(dataclasses.replace(entry, figures=figures))
    write_table_record(tmp_path / "cifar10-ablation.json", record)
    title, _, line = made(pages, "result-overconfidence").splitlines()
    assert title.endswith(
        "| confidence when wrong | the same, with temperature | SVHN above .9 | CIFAR-100 above .9 |"
    )
    assert line == (
        "| SGD, 32 pixels, 100 epochs | 3 | 0.101 → **0.051 better** | 0.020 → **0.030 worse** | 0.800 → 0.833 |  | "
        "0.400 → **0.300 better** |  |"
    )


def test_the_rows_that_reach_the_printed_figures_are_told_from_those_that_miss_one(pages, tmp_path):
    assert made(pages, "result-reach") == "Not measured yet."
    table = TABLES["main"](data="cifar10")
    record = TableRecord(table="main", data="cifar10")
    reached = {"accuracy": 0.98, "nll": 0.08, "ece": 0.01, "aupr": 0.994}
    for run in plan_runs(table, rows=["transformer", "lrformer"], num_seeds=1):
        figures = reached | ({} if run.row.name == "transformer" else {"aupr": 0.99, "nll": 0.11})
        entry = made_run(run, UNKNOWN, aupr_variance=0.995, **figures)
        training = {**entry.training, "validation_calibrated": {"nll": 0.0812}}
        record = record.add(dataclasses.replace(entry, training=training))
    write_table_record(tmp_path / "cifar10-main.json", record)
    _, _, plain, ours = made(pages, "result-reach").splitlines()
    start = "+0.0080 | +0.0200 | +0.0020 | +0.0010 | +0.0830 | +0.0020 | +0.0840"
    assert plain == f"| Transformer, same recipe | {start} | none | none | 0.0812 | 0.700 |"
    assert "| +0.0080 | -0.0100 | +0.0020 | -0.0030 | +0.0790 | +0.0020 |" in ours
    assert ours.endswith("| NLL, AUPR SVHN | NLL | 0.0812 | 0.700 |")


def test_the_figure_marks_what_is_printed_and_what_is_told_apart(pages, tmp_path):
    import glance_figure

    rows = {"transformer": [0.70, 0.71, 0.72], "lrformer": [0.50, 0.52, 0.51]}
    write(tmp_path, "ablation", rows | {"lrformer_linear": [0.60, 0.90, 0.63]})
    lines = glance_figure.lines_of(pages.load("ablation"))
    assert [line.title for line in lines] == [
        "LRFormer, whole, against the plain transformer", "printed", "SGD, 32 pixels, 100 epochs",
        "LRSA alone, both under a linear head", "SGD, 32 pixels, 100 epochs",
        "The GP head alone, both on LRSA", "SGD, 32 pixels, 100 epochs",
    ]  # fmt: skip
    title, printed, whole, _, attention, *_ = lines
    assert title.marks == {}
    assert set(printed.marks) == {"accuracy", "nll", "auroc:svhn"}
    assert printed.marks["nll"].value == pytest.approx(-0.2525, abs=1e-6)
    assert whole.marks["nll"].verdict == "better"
    assert whole.marks["nll"].value == pytest.approx(-0.2)
    assert attention.marks["nll"].verdict is None
    save = [tmp_path / "figure.svg", tmp_path / "figure.png"]
    glance_figure.draw(lines, dict.fromkeys(glance_figure.PANELS, "a title"), save=save)
    assert "The GP head alone, both on LRSA" in save[0].read_text()
    for path in save:
        assert glance_figure.fingerprint(lines).encode() in path.read_bytes()


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_figure_of_the_page_is_that_of_the_record(monkeypatch, kind):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import glance_figure

    lines = glance_figure.lines_of(glance_figure.load("ablation"))
    picture = (ROOT / "docs" / "figures" / f"ablation.{kind}").read_bytes()
    assert glance_figure.fingerprint(lines).encode() in picture, "run benchmarks/glance_figure.py"


def test_shortened_runs_are_on_the_page_only_where_there_are_no_whole_ones(pages, tmp_path):
    write(tmp_path, "ablation", {"transformer": [1.9], "lrformer": [1.8]}, shortened_to=15)
    assert "1.900" in pages.section("ablation")
    assert pages.details("ablation") == "Nothing more."  # one seed tells nothing apart
    write(tmp_path, "ablation", {"transformer": [1.4], "lrformer": [1.3]})
    assert made(pages, "result-decay").splitlines()[2:] == [
        "| 15 | 0.05 | 0.800 | 2.000 |",
        "| 100 | 0.05 | 0.800 | 1.500 |",
    ]
    whole, shortened = pages.section("ablation"), pages.details("ablation")
    assert "1.400" in whole
    assert "shortened to 15 of 100" not in whole
    assert "1.900" in shortened
    assert "shortened to 15 of 100" in shortened


def test_an_alpha_of_ones_own_is_named_wherever_its_rows_are(pages, tmp_path):
    table = TABLES["attentions"](data="cifar10", alpha=100.0)
    record = TableRecord(table="attentions", data="cifar10")
    for run in plan_runs(table, rows=["dot_product", "lrsa"], num_seeds=3):
        nll = (0.1 if run.row.name == "lrsa" else 0.9) + run.config.seed / 1000
        record = record.add(made_run(run, UNKNOWN, nll=nll))
    write_table_record(tmp_path / "cifar10-attentions.json", record)
    for text in (pages.section("attentions"), pages.details("attentions")):
        assert "LRSA, alpha 100" in text
        assert "alpha 1000" not in text


def test_the_readme_has_what_the_two_recipes_make_each_behind_its_plain_twin(pages, tmp_path):
    names = [row.name for row in TABLES["main"](data="cifar10").rows]
    write(tmp_path, "main", {name: [0.1] for name in names})
    ours = [line.split(" | ")[0] for line in pages.readme_table().splitlines()[3:]]
    assert ours == [
        "| Transformer, same recipe",
        "| LRFormer, GP fitted after training",
        "| Transformer, GP trained end to end, temperature by variance",
        "| LRFormer, GP trained end to end, temperature by variance",
    ]


def test_the_search_lists_what_every_candidate_was_judged_by(pages, tmp_path):
    candidate = {
        "name": "fast",
        "epochs": 12,
        "optimizer": {"name": "muon", "lr": 0.008},
        "model": {"normalizer": "m", "alpha": 16.0, "widths": [8, 16]},
        "method": {"spectral_bound": 3.0},
        "augment": {"mixup_alpha": 0.8},
        "validation": {"accuracy": 0.9405, "nll": 0.19, "ece": 0.0184},
    }
    record = json.dumps({"candidates": [candidate]})
    (tmp_path / "cifar10-main-search.json").write_text(record)
    changes = "widths 8, 16, spectral bound 3, mixup and cutmix"
    line = f"| `fast` | muon | 0.008 | m, 16 | {changes} | 12 | 0.941 | 0.190 | 0.018 |"
    assert made(pages, "main-search").splitlines()[-1] == line
    candidate |= {"name": "plain", "model": {"attention": "dot_product"}}
    candidate |= {"augment": {"mixup_alpha": 0.0}, "method": {}}
    (tmp_path / "cifar10-main-search.json").write_text(json.dumps({"candidates": [candidate]}))
    assert "| `plain` | muon | 0.008 | none |  | 12 |" in made(pages, "main-search")
