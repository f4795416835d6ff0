"""`report.html`: everything that an evaluation found, in one file made for a person."""

import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from lrformer.core import ConfigError
from lrformer.evaluation import Results, Scores
from lrformer.evaluation.gallery import CONFIDENT_STRANGER, CONFIDENTLY_WRONG, MOST_UNCERTAIN
from lrformer.reports.class_tables import class_section
from lrformer.reports.figures import (
    histogram_figure,
    reliability_figure,
    risk_coverage_figure,
    roc_figure,
    severity_figure,
)
from lrformer.reports.findings import caution, findings, tiles
from lrformer.reports.images import image_grid
from lrformer.reports.page import figure, page
from lrformer.reports.tables import corrupted_table, known_table, ood_table, score_table, table
from lrformer.reports.training_figures import training_figures
from lrformer.training.atomic_files import replace_file
from lrformer.training.seed_folders import is_seed_folder

REPORT_FILE = "report.html"
Section = tuple[str, str, str]


def _name(folder: Path) -> str:
    """Return the name of a run; one of several seeds is named with the folder that holds them."""
    return f"{folder.parent.name}, {folder.name}" if is_seed_folder(folder) else folder.name


def write_report(
    results: Results | str | Path, path: str | Path | None = None, *, title: str | None = None
) -> Path:
    """Return the path of the report, which is written in one step.

    Args:
        results: of an evaluation, or the folder that holds them.
        path: of the file; `report.html` in that folder by default.
    """
    if not isinstance(results, Results):
        path = path or Path(results) / REPORT_FILE
        title = title or f"How far to trust {_name(Path(results).resolve())}"
        results = Results.load(results)
    if path is None:
        raise ConfigError(
            "path is missing; say where the report of these results is to be written."
        )
    replace_file(
        Path(path), render_report(results, title=title or "How far to trust this model").encode()
    )
    return Path(path)


def render_report(results: Results, *, title: str) -> str:
    """Return the report as the text of one HTML page."""
    scores = results.scores
    said = "".join(f"<li>{sentence}</li>" for sentence in findings(scores))
    sections = [_known_section(results)]
    if scores.classes:
        sections.append(("classes", "Class by class", class_section(scores)))
    if results.ood:
        sections.append(_unknown_section(results))
    if scores.of_role("made"):
        sections.append(_made_section(scores))
    if scores.of_role("corrupted"):
        sections.append(_corrupted_section(scores))
    if results.gallery.entries:
        sections.append(_image_section(results))
    if curves := training_figures(results.history):
        sections.append(_training_section(results, curves))
    sections += [_run_section(scores), _convention_section(scores)]
    warning = caution(scores)
    said_first = f"<p><strong>Warning:</strong> {escape(warning)}</p>" if warning else ""
    opening = f'{said_first}{tiles(scores)}<ul class="findings">{said}</ul>'
    return page(title=title, sections=sections, opening=opening)


def _known_section(results: Results) -> Section:
    scores, test = results.scores, results.test
    drawn = figure(
        reliability_figure(test, num_bins=scores.config.num_bins),
        title="Reliability",
        meaning="When the model says 80%, is it right 80% of the time? Bars on the dashed line say yes; "
        "orange is missing accuracy (too sure), green is accuracy it did not promise (too modest). Below: how often each confidence occurs.",
    ) + figure(
        risk_coverage_figure(test),
        title="Risk and coverage",
        meaning="If the model answers only the share of the images of which it is most certain, how many "
        "of those answers are wrong? A good score keeps the curve near zero for long.",
    )
    content = (
        f"<p>Measured on {escape(scores.noted_test_set)}, {len(test):,} samples of {scores.num_classes} classes. "
        "Arrows point to the better side; below each value is its interval.</p>"
        f'{known_table(scores)}<div class="figures">{drawn}</div>'
        f"<h3>Answering only when certain</h3>{score_table(scores, dataset=test.name)}"
    )
    return "known", "Known data", content


def _unknown_section(results: Results) -> Section:
    scores, score = results.scores, results.scores.default_score
    drawn = figure(
        roc_figure(results.test, results.ood, score=score),
        title="ROC",
        meaning=f"Flag everything whose {score} is above a threshold, and lower the threshold: how many of the "
        "unknown images are caught for how many false alarms? The upper left corner is perfect, the dashed line is chance.",
    ) + "".join(
        figure(
            histogram_figure(results.test, outside, name=name, score=score),
            title=f"Known against {name}",
            meaning=f"The {score} of known and of unknown images. The less the two overlap, the better the "
            "unknown can be told from the known. The last bin holds everything beyond it.",
        )
        for name, outside in results.ood.items()
    )
    details = "".join(
        f"<h3>{escape(name)}, by every score</h3>{score_table(scores, dataset=name)}"
        for name in results.ood
    )
    content = (
        "<p>These images are of a kind that the model was never trained on, so that no answer is right; a model "
        f"that can be trusted is uncertain of them. By the default score, {escape(score)}:</p>"
        f'{ood_table(scores)}<div class="figures">{drawn}</div>{details}'
    )
    return "unknown", "Unknown data", content


def _made_section(scores: Scores) -> Section:
    details = "".join(
        f"<h3>{escape(entry.name)}, by every score</h3>{score_table(scores, dataset=entry.name)}"
        for entry in scores.of_role("made")
    )
    content = (
        "<p>These sets are no real unknown data. They were made of the test images: their blocks shuffled, two of "
        "different classes mixed, inverted; and of uniform noise. This is a first "
        "check: what is noticed here need not be noticed elsewhere, and an inverted or shuffled image may still show its "
        "class. By the default score, "
        f"{escape(scores.default_score)}:</p>{ood_table(scores, role='made')}"
        f"<details><summary>By every score</summary>{details}</details>"
    )
    return "made", "Made outliers", content


def _corrupted_section(scores: Scores) -> Section:
    by_kind: dict[str, dict[int, str]] = {}
    for entry in scores.of_role("corrupted"):
        if found := re.fullmatch(r"(.*)-([1-5])", entry.name):
            by_kind.setdefault(found[1], {})[int(found[2])] = entry.name
    severities = {severity for sets in by_kind.values() for severity in sets}
    # A kind that was measured at some severities only would bend the curve where it comes in.
    whole = {kind: sets for kind, sets in by_kind.items() if sets.keys() == severities}
    drawn = ""
    if whole:
        others = "" if whole.keys() == by_kind.keys() else f" Kinds: {', '.join(whole)}."
        drawn = figure(
            severity_figure(
                scores, {level: [sets[level] for sets in whole.values()] for level in severities}
            ),
            title="Under corruption",
            meaning="As images get worse, accuracy falls; confidence should fall with it. Where confidence stays "
            f"above accuracy, the model does not notice.{others}",
        )
    content = (
        "<p>The test images again, with noise, blur, weather and the like added.</p>"
        f'{corrupted_table(scores)}<div class="figures">{drawn}</div>'
    )
    return "corrupted", "Corrupted data", content


def _image_section(results: Results) -> Section:
    test, score = results.test.name, escape(results.scores.default_score)
    below = (
        "<p>Below each image: what the model said, p, the probability that it gave to that, and its uncertainty, "
        f"{score}.</p>"
    )
    parts = [below]
    wrong = image_grid(results.gallery, dataset=test, reason=CONFIDENTLY_WRONG)
    parts.append(
        "<h3>Most confidently wrong</h3><p>Look at these first: a wrong label, an image that is truly "
        "ambiguous, or something the model has not understood. The largest p comes first.</p>"
        + (wrong or "<p>None: no test image was classified wrongly.</p>")
    )
    uncertain = image_grid(results.gallery, dataset=test, reason=MOST_UNCERTAIN)
    parts.append(
        "<h3>Most uncertain</h3><p>The test images that the model is least sure of, right or wrong. "
        "The largest uncertainty comes first.</p>" + uncertain
    )
    unknown = [(name, outside.name, "unknown") for name, outside in results.ood.items()]
    made = [(entry.name, entry.name, "made") for entry in results.scores.of_role("made")]
    for name, dataset, kind in unknown + made:
        grid = image_grid(results.gallery, dataset=dataset, reason=CONFIDENT_STRANGER)
        if grid:
            parts.append(
                f"<h3>Surest of the {kind}: {escape(name)}</h3><p>The {kind} images of which the model "
                f"is surest, whether the threshold lets them pass or not. The largest p comes first.</p>{grid}"
            )
    return "images", "Images to look at", "".join(parts)


def _training_section(results: Results, curves: str) -> Section:
    stages = {entry.get("stage", 0) for entry in results.history}
    members = f", one line for each of {len(stages)} members" if len(stages) > 1 else ""
    content = (
        f"<p>What the run wrote into its log after every epoch{members}; the temperature, which is fitted at the "
        f'end, is not in these figures.</p><div class="figures">{curves}</div>'
    )
    return "training", "How it was trained", content


def _run_section(scores: Scores) -> Section:
    rows = [(f"<code>{escape(key)}</code>", escape(text)) for key, text in _flat(scores.about)]
    content = "<p>Nothing is known about how these predictions were made.</p>"
    if rows:
        head, rest = rows[:12], rows[12:]
        content = table(("what", "value"), head, numbers_from=2)
        if rest:
            content += (
                f"<details><summary>{len(rest)} more settings</summary>"
                f"{table(('what', 'value'), rest, numbers_from=2)}</details>"
            )
    return "run", "What was run, and how", content


def _convention_section(scores: Scores) -> Section:
    said = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in scores.conventions.items()
    )
    return "conventions", "How the figures are made", f"<dl>{said}</dl>"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as dotted names and text."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield (
                f"{prefix}{key}",
                ", ".join(map(str, value)) if isinstance(value, list) else str(value),
            )
