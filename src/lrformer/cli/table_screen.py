"""The figures of a table on a screen: whole where there is room, else in parts that each have room."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

    from lrformer.recipes.table_engine import Reproduction
    from lrformer.recipes.table_summary import Cell, SummaryRow

ANY_WIDTH = 10_000


def print_figures(result: "Reproduction", console: "Console") -> None:
    """Print every row that has runs; a file or a pipe gets one table as wide as its figures."""
    from rich.console import Console

    from lrformer.recipes.table_summary import summarize

    rows = [row for row in summarize(result.table, result.record) if row.runs]
    if not rows:
        return
    console.print(_title(result, rows), markup=False)
    places = range(len(rows[0].cells))
    room = console.width if console.is_terminal else ANY_WIDTH
    for part in _parts(rows, list(places), console, room):
        grid = _grid(rows, part)
        # A figure is not cut because the window is narrower than one column.
        wide = Console(width=max(console.width, needed_width(grid, console)), highlight=False)
        wide.print(grid)
        console.print()


def _title(result: "Reproduction", rows: list["SummaryRow"]) -> str:
    from lrformer.recipes.table import describe_variant

    table = result.table
    is_printed = any(row.row.printed for row in rows)
    below = "; below ours the paper's and the difference"
    place = f"{below} ({table.place}, {table.printed_on})" if is_printed else ""
    return f"{table.heading} ({describe_variant(table.variant)}){place}"


def _parts(
    rows: list["SummaryRow"], places: list[int], console: "Console", room: int
) -> list[list[int]]:
    """Return the columns in as few parts as fit into `room`, none of them empty."""
    parts: list[list[int]] = [[]]
    for place in places:
        if parts[-1] and needed_width(_grid(rows, [*parts[-1], place]), console) > room:
            parts.append([])
        parts[-1].append(place)
    return parts


def _grid(rows: list["SummaryRow"], places: list[int]) -> "Grid":
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    grid.add_column("row", no_wrap=True)
    for place in places:
        title = rows[0].cells[place].column.title
        title = title.replace(" by ", "\nby ").replace(" with ", "\nwith ")
        grid.add_column(escape(title), justify="right", no_wrap=True)
    for row in rows:
        cells = [_cell(row.cells[place]) for place in places]
        grid.add_row(escape(f"{row.row.title}\n{_seeds(row)}"), *cells)
    return grid


def needed_width(grid: "Grid", console: "Console") -> int:
    """Return how wide a screen must be to show a table whole."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(max_width=ANY_WIDTH), grid).maximum


def _seeds(row: "SummaryRow") -> str:
    seeds = f"{row.num_seeds} seed{'' if row.num_seeds == 1 else 's'}"
    # The score ranks unknown inputs; without a set of them nothing was ranked.
    has_unknown = any(cell.column.dataset is not None for cell in row.cells)
    return f"{seeds}, score {row.score}" if has_unknown else seeds


def _cell(cell: "Cell") -> str:
    """Return ours with its interval, the paper's figure and the difference, one below the other."""
    if cell.ours is None:
        return ""
    lines = [f"{cell.ours.mean:.4f}{cell.spread(3)}"]
    if cell.printed is not None:
        lines.append(f"paper {cell.printed.value:.4f}")
    if cell.difference is not None:
        lines.append(f"{cell.difference:+.4f}")
    return "\n".join(lines)
