"""A comparison as a person reads it: a table in plain text, and what it means in sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

from lrformer.evaluation.words import ARROWS, words_of, write_value
from lrformer.training.seed_folders import is_seed_folder

if TYPE_CHECKING:
    from lrformer.evaluation.comparison import ComparedSide, Comparison
    from lrformer.evaluation.comparison_figures import ComparedFigure

NO_SPREAD = "no spread"
WIDEST_NAME = 12

Row = tuple[str, str, str, str, str, str]


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
    is_short = ours != "ours"
    said = "" if is_short else f", which are {comparison.ours.name} and {comparison.theirs.name}"
    marks = (
        f"Marked: intervals without zero, {marked} of {count}. So many figures are tested at once that, of two methods alike, "
        f"about {by_chance:.2g} would be marked by chance, several together since they are of the same samples; nothing "
        "is corrected for it."
    )
    lines = [
        f"Difference: {ours} minus {theirs}{said} (pp: percentage points).",
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
    ours, theirs = _short_names(comparison)
    interval = f"{100 * comparison.level:.4g}% interval"
    rows: list[Row | str] = [("", ours, theirs, "difference", interval, f"{ours} is")]
    before = None
    for figure in comparison.figures:
        if (heading := _heading(figure)) != before:
            rows.append(heading)  # a line of its own: further columns are too many for most screens
        before = heading
        rows.append(_row(figure))
    cells = [row for row in rows if not isinstance(row, str)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    lines = [row if isinstance(row, str) else _aligned(row, widths) for row in rows]
    title = f"{_long_name(comparison.ours)} against {_long_name(comparison.theirs)}, on {comparison.test_set}"
    return "\n".join([title, *lines, *comparison_lines(comparison)])


def _heading(figure: "ComparedFigure") -> str:
    """Return the set, and the score by which both rank."""
    if figure.score is None:
        return figure.dataset
    by = figure.score if figure.score == figure.their_score else "each one's own score"
    return f"{figure.dataset}, by {by}"


def _row(figure: "ComparedFigure") -> Row:
    return (
        f"  {words_of(figure.name).title} {ARROWS[figure.direction]}".rstrip(),
        write_value(figure.name, figure.ours),
        write_value(figure.name, figure.theirs),
        _signed(figure.name, figure.difference, has_unit=True),
        _interval(figure),
        figure.verdict,
    )


def _aligned(row: Row, widths: list[int]) -> str:
    """Return the cells in columns; figures end at the same place."""
    first, *figures, last = row
    middle = [cell.rjust(width) for cell, width in zip(figures, widths[1:-1], strict=True)]
    return "  ".join([first.ljust(widths[0]), *middle, last]).rstrip()


def _long_name(side: "ComparedSide") -> str:
    return side.name if side.method is None else f"{side.name} ({side.method})"


def _short_names(comparison: "Comparison") -> tuple[str, str]:
    """Return a name of each side for a column: that of its folder, where that is short and not the other's too."""
    ours, theirs = (_short(side.places) for side in (comparison.ours, comparison.theirs))
    if ours == theirs or max(len(ours), len(theirs)) > WIDEST_NAME:
        return "ours", "theirs"
    return ours, theirs


def _short(places: tuple[str, ...]) -> str:
    path = Path(places[0]).resolve()
    # Every run of many is called seed-0.
    first = f"{path.parent.name}/{path.name}" if is_seed_folder(path) else path.name
    return first if len(places) == 1 else f"{first} (+{len(places) - 1})"


def _interval(figure: "ComparedFigure") -> str:
    if not figure.has_spread:
        return NO_SPREAD
    return f"{_signed(figure.name, figure.low)} to {_signed(figure.name, figure.high)}"


def _signed(name: str, value: float, *, has_unit: bool = False) -> str:
    """Return a difference with its sign; of shares it is in percentage points."""
    if words_of(name).is_percent:
        return f"{100 * value:+.2f}{' pp' if has_unit else ''}"
    return f"{value:+.4f}" if abs(value) < 10 else f"{value:+.4g}"
