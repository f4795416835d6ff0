"""A comparison as a person reads it: rows of plain text, and what they mean in sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

from lrformer.evaluation.words import ARROWS, words_of, write_value
from lrformer.training.seed_folders import is_seed_folder

if TYPE_CHECKING:
    from lrformer.evaluation.comparison import ComparedSide, Comparison
    from lrformer.evaluation.comparison_figures import ComparedFigure

NO_SPREAD = "no spread"

Row = tuple[str, str, str, str, str, str, str]


def comparison_title(comparison: "Comparison") -> str:
    """Return what stands above the table."""
    return f"{_long_name(comparison.ours)} against {_long_name(comparison.theirs)}, on {comparison.test_set}"


def comparison_head(comparison: "Comparison") -> Row:
    """Return the names of the columns."""
    ours, theirs = _short_names(comparison)
    return (
        "set",
        "metric",
        ours,
        theirs,
        "difference",
        f"{100 * comparison.level:.4g}% interval",
        f"{ours} is",
    )


def comparison_rows(comparison: "Comparison") -> list[Row]:
    """Return one row for each figure; a set is named in each of its rows."""
    return [
        (
            figure.dataset,
            _metric(figure),
            write_value(figure.name, figure.ours),
            write_value(figure.name, figure.theirs),
            _signed(figure.name, figure.difference, has_unit=True),
            _interval(figure),
            figure.verdict,
        )
        for figure in comparison.figures
    ]


def comparison_lines(comparison: "Comparison") -> list[str]:
    """Return what stands below the table: which interval it is, what the marks say, and what is not in it."""
    ours, theirs = _short_names(comparison)
    level = f"{100 * comparison.level:.4g}%"
    if comparison.seeds:
        seeds = ", ".join(map(str, comparison.seeds))
        interval = (
            f"Intervals: Student's t ({level}) of the differences seed by seed over {len(comparison.seeds)} common "
            f"seeds ({seeds}). Values are means over these."
        )
    else:
        interval = (
            f"Intervals: paired bootstrap ({level}) over the same test samples, {comparison.num_draws:,} draws that "
            "both see, known and unknown samples drawn apart. They are of these two trainings, and do not say what other "
            "seeds would give."
        )
    count = len(comparison.figures)
    marked = sum(bool(figure.verdict) for figure in comparison.figures)
    by_chance = (1 - comparison.level) * count
    marks = (
        f"Marked: intervals without zero, {marked} of {count}. So many figures are tested at once that, of two methods alike, "
        f"about {by_chance:.2g} would be marked by chance, several together since they are of the same samples; nothing "
        "is corrected for it."
    )
    lines = [
        f"Difference: {ours} minus {theirs} (pp: percentage points).",
        interval,
        marks,
    ]
    if not all(figure.has_spread for figure in comparison.figures):
        lines.append(f"{NO_SPREAD}: every seed has the same difference; so few say nothing of how it varies, and it is not marked.")  # fmt: skip
    if any(figure.is_by_own_score and figure.score != figure.their_score for figure in comparison.figures):  # fmt: skip
        own = [" or ".join(side.default_scores) for side in (comparison.ours, comparison.theirs)]
        lines.append(f"Own score, that of the threshold: {own[0]} of {ours}, {own[1]} of {theirs}.")
    if comparison.left_out:
        lines.append(f"Not compared, since one lacks it or it has no interval: {', '.join(comparison.left_out)}.")  # fmt: skip
    return [*lines, *(f"Note: {note}" for note in comparison.notes)]


def comparison_text(comparison: "Comparison") -> str:
    """Return the table with its title and what stands below it, in plain columns."""
    rows = [comparison_head(comparison)]
    before = None
    for dataset, *cells in comparison_rows(comparison):
        rows.append(("" if dataset == before else dataset, *cells))  # pyright: ignore[reportArgumentType]
        before = dataset
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if 2 <= column <= 5 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([comparison_title(comparison), *lines, *comparison_lines(comparison)])


def _long_name(side: "ComparedSide") -> str:
    return side.name if side.method is None else f"{side.name} ({side.method})"


def _short_names(comparison: "Comparison") -> tuple[str, str]:
    """Return a name of each side for a column: that of its folder, where they differ."""
    short = [_short(side.places) for side in (comparison.ours, comparison.theirs)]
    if short[0] == short[1]:
        return comparison.ours.name, comparison.theirs.name
    return short[0], short[1]


def _short(places: tuple[str, ...]) -> str:
    path = Path(places[0]).resolve()
    # Every run of many is called seed-0.
    first = f"{path.parent.name}/{path.name}" if is_seed_folder(path) else path.name
    return first if len(places) == 1 else f"{first} (+{len(places) - 1})"


def _metric(figure: "ComparedFigure") -> str:
    title = f"{words_of(figure.name).title} {ARROWS[figure.direction]}".strip()
    if figure.score is None:
        return title
    return f"{title} {figure.score if figure.score == figure.their_score else 'own score'}"


def _interval(figure: "ComparedFigure") -> str:
    if not figure.has_spread:
        return NO_SPREAD
    return f"{_signed(figure.name, figure.low)} to {_signed(figure.name, figure.high)}"


def _signed(name: str, value: float, *, has_unit: bool = False) -> str:
    """Return a difference with its sign; of shares it is in percentage points."""
    if words_of(name).is_percent:
        return f"{100 * value:+.2f}{' pp' if has_unit else ''}"
    return f"{value:+.4f}" if abs(value) < 10 else f"{value:+.4g}"
