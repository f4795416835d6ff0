"""What `lrformer bench` prints: one table a shape, one a sweep, one for whole models."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_ATTENTION_TITLES = (
    *("ms", "ratio", "graph ms", "ratio", "fwd ms", "ratio"),
    *("GiB", "ratio", "out err", "grad err", "bytes", "ops"),
)
_MODEL_TITLES = ("batch", "images/s", "timm's", "ratio", "goal", "", "GiB", "timm's")


def show_attention_row(row: dict[str, Any], console: "Console") -> None:
    """Print one shape: every contender, then how the best of ours stands to the goals."""
    from lrformer.bench.verdicts import attention_verdict

    shape = row["shape"]
    table = _table(
        f"{shape['batch']} x {shape['num_heads']} x {shape['num_tokens']}, "
        f"head width {shape['head_dim']}; forward and backward"
    )
    lines = [
        _attention_cells(entry) if entry["status"] == "measured" else [entry["status"]]
        for entry in row["contenders"]
    ]
    _fill(table, _ATTENTION_TITLES, [entry["name"] for entry in row["contenders"]], lines)
    console.print(table)
    _show_reasons(row["contenders"], console)
    console.print(attention_verdict(row), soft_wrap=True)
    console.print()


def _attention_cells(entry: dict[str, Any]) -> list[str]:
    cells = []
    for kind in ("forward_backward", "graph", "forward"):
        timed = entry.get(kind)
        cells += [f"{timed['ms']:.3f}", f"{timed.get('ratio', 0):.2f}"] if timed else ["", ""]
    if "peak_bytes" in entry:
        cells += [f"{entry['peak_bytes'] / 2**30:.2f}", f"{entry.get('peak_ratio', 0):.2f}"]
    else:
        cells += ["", ""]
    errors = entry.get("errors")
    if errors:
        gradients = max(value for name, value in errors.items() if name in "qkv")
        cells += [f"{errors['out']:.1e}", f"{gradients:.1e}"]
    else:
        cells += ["", ""]
    roofline = entry["roofline"]
    return [*cells, f"{roofline['of_bandwidth']:.0%}", f"{roofline['of_operations']:.0%}"]


def show_growth(rows: list[dict[str, Any]], part: str, console: "Console") -> None:
    """Print a sweep: milliseconds of every contender, one line a length or batch."""
    if not rows:
        return
    names = list(dict.fromkeys(e["name"] for row in rows for e in row["contenders"]))
    title = "tokens of a sample, as many in all" if part == "tokens" else "batch"
    table = _table(f"Growth with the {title}: ms of forward and backward")
    for column in ("batch", "tokens", *names):
        table.add_column(column.removesuffix(" eager"), justify="right")
    for row in rows:
        times = {
            e["name"]: (e.get("graph") or e["forward_backward"])["ms"]
            for e in row["contenders"]
            if "forward_backward" in e
        }
        cells = [f"{times[name]:.3f}" if name in times else "" for name in names]
        table.add_row(str(row["shape"]["batch"]), str(row["shape"]["num_tokens"]), *cells)
    console.print(table)
    console.print()


def show_models(record: dict[str, Any], out: Path, console: "Console") -> None:
    """Print the rows of a bench of models: images per second beside timm's in the same run."""
    settings = record["settings"]
    table = _table(
        f"{settings['model']} against timm's {settings['rival']}, {record['device']}, "
        f"{settings['dtype']}, compiled: {settings['compile']}"
    )
    lines = []
    for row in record["rows"]:
        cells = [str(row["batch"])]
        if row["status"] != "measured":
            lines.append([*cells, row["status"]])
            continue
        sides = (row["ours"], row["rival"])
        cells += [f"{side['images_per_second']:,.1f}" for side in sides]
        cells += [f"{row['ratio']:.3f}", f"{row['goal']}", "met" if row["is_goal_met"] else "short"]
        peaks = [side["peak_bytes"] for side in sides]
        cells += ["" if peak is None else f"{peak / 2**30:.2f}" for peak in peaks]
        lines.append(cells)
    _fill(table, _MODEL_TITLES, [row["name"] for row in record["rows"]], lines)
    console.print(table)
    _show_reasons(record["rows"], console)
    console.print(str(out), soft_wrap=True)


def _fill(table: Any, titles: tuple[str, ...], names: list[str], lines: list[list[str]]) -> None:
    """Put named lines under those titles that have something under them."""
    full = [[*line, *[""] * (len(titles) - len(line))] for line in lines]
    kept = [index for index in range(len(titles)) if any(line[index] for line in full)]
    table.add_column("", no_wrap=True)
    for index in kept:
        table.add_column(titles[index], justify="right", no_wrap=True)
    for name, line in zip(names, full, strict=True):
        table.add_row(name, *(line[index] for index in kept))


def _show_reasons(entries: list[dict[str, Any]], console: "Console") -> None:
    for entry in entries:
        if entry["status"] != "measured":
            text = f"{entry['name']} {entry['status']}: {entry['reason']}"
            console.print(text, soft_wrap=True, markup=False)


def _table(title: str) -> Any:
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
