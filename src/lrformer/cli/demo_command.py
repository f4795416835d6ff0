"""`lrformer demo`: what a newcomer runs first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lrformer.metrics import SeedInterval
    from lrformer.recipes.comparison import ComparisonRow
    from lrformer.recipes.demo import Demo


def demo(
    out: Annotated[Path, typer.Option(help="Folder for runs, report, picture and record.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option(help="Trainings of each model.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="On digits.", show_default="20")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Trainings at a time.", show_default="one for each core"),
    ] = None,
) -> None:
    """Train a plain transformer and LRFormer side by side on digits 0 to 4, and ask both about 5 to 9.

    Then both see two moons. No network and no GPU is needed. Runs that are finished in OUT are kept.

    Example: lrformer demo --seeds 1
    """
    from rich.console import Console

    from lrformer.recipes.demo import DemoConfig, run_demo

    config = (
        DemoConfig(num_seeds=seeds)
        if epochs is None
        else DemoConfig(num_seeds=seeds, epochs=epochs)
    )
    console = Console(soft_wrap=True, highlight=False)
    console.print("Training on digits 0 to 4; digits 5 to 9 are kept for the end, as the unknown.")
    with _progress() as show:
        measured = run_demo(out, config, num_workers=workers, show=show)
    _show(measured, console)


def _show(measured: "Demo", console: Any) -> None:
    from rich import box
    from rich.table import Table

    from lrformer.recipes.comparison import verdicts
    from lrformer.recipes.demo import OURS, PLAIN
    from lrformer.recipes.figure1 import write_interval

    num_seeds = measured.rows[0].ours.num_seeds
    table = Table(
        title="Known and unknown digits: "
        + (f"mean and 95% interval over {num_seeds} seeds" if num_seeds > 1 else "one seed"),
        title_justify="left",
        caption=f"Unknown digits are found by {measured.scores[PLAIN]} ({PLAIN}) and {measured.scores[OURS]} ({OURS}), "
        "chosen on outliers made of validation images; the report lists every score.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    for title in (PLAIN, OURS, "difference"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in measured.rows:
        table.add_row(_title(row), *_cells(row))
    console.print(table)
    for sentence in verdicts(measured.rows, ours=OURS):
        console.print(sentence)
    console.print()
    for row in measured.moons:
        console.print(
            f"Two moons, {row.title}: {row.accuracy.mean:.1%} of the test points right; uncertainty "
            f"({row.score}) tells them from the empty plane with AUROC {write_interval(row.auroc)}, "
            f"and follows the distance to the data with rank correlation "
            f"{write_interval(row.rank_correlation)}."
        )
    console.print()
    console.print(f"Report: {measured.report}")
    console.print(f"Two moons: {measured.picture}")
    console.print(f"Every figure: {measured.record}")
    console.print(f"This took {measured.seconds:.0f} seconds.")


def _title(row: "ComparisonRow") -> str:
    return f"{row.metric.title} {'↑' if row.metric.is_higher_better else '↓'}"


def _cells(row: "ComparisonRow") -> list[str]:
    digits = row.metric.digits

    def cell(interval: "SeedInterval", sign: str) -> str:
        text = f"{interval.mean:{sign},.{digits}f}"
        if interval.high is None:
            return text
        return f"{text} ± {interval.high - interval.mean:,.{digits}f}"

    return [cell(row.theirs, ""), cell(row.ours, ""), cell(row.difference, "+")]


def _progress():
    """Return a context that gives a function of what is trained and its epochs; silent where nobody watches."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    @contextmanager
    def context():
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description:<18}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} epochs"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            tasks: dict[str, Any] = {}

            def show(kind: str, done: int, total: int) -> None:
                if kind not in tasks:
                    tasks[kind] = progress.add_task(kind, total=total)
                progress.update(tasks[kind], completed=done, total=total)

            yield show

    return context()
