"""The tables of docs/performance.md, each a function of one record of `lrformer bench`."""

from typing import Any

Record = dict[str, Any]


def _markdown(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("| --- ", "|---") for cells in lines)


def _rows(record: Record, part: str) -> list[Record]:
    return [row for row in record["rows"] if row["part"] == part]


def _shape(row: Record) -> str:
    shape = row["shape"]
    return f"{shape['batch']} x {shape['num_heads']} x {shape['num_tokens']}"


def _fastest(row: Record, attention: str) -> Record | None:
    """Return the contender of that attention that took least, as a CUDA graph if there is one."""
    for kind in ("graph", "forward_backward"):
        timed = [e for e in row["contenders"] if e["attention"] == attention and kind in e]
        if timed:
            return min(timed, key=lambda e: e[kind]["ms"])
    return None


def _milliseconds(entry: Record) -> str:
    """Return the time of forward and backward, as a CUDA graph if there is one."""
    return f"{entry.get('graph', entry['forward_backward'])['ms']:.2f}"


def _called(entry: Record) -> str:
    how = ", compiled" if entry["is_compiled"] else ""
    return f"{entry['backend']}{how}"


def _against(value: float | None, goal: float, *, is_least: bool, num_digits: int = 2) -> str:
    """Return a rounded ratio, in bold where it misses its goal."""
    if value is None:
        return ""
    is_met = value >= goal if is_least else value <= goal
    text = f"{value:.{num_digits}f}"
    return text if is_met else f"**{text}**"


def ratio_table(record: Record) -> str:
    """Return, for every shape and width, the fastest of torch's and of ours, and the ratios to the goals."""
    speed, memory = record["settings"]["speed_goal"], record["settings"]["memory_goal"]
    titles = ["batch x heads x tokens", "width", "dot product", "ms", "LRSA", "ms"]
    titles += [
        f"ratio (goal {speed})",
        "called one by one",
        "forward alone, called",
        f"memory (goal {memory})",
    ]
    rows = []
    for row in _rows(record, "goal"):
        rival, ours = _fastest(row, "dot_product"), _fastest(row, "lrsa")
        if rival is None or ours is None:
            rows.append([_shape(row), str(row["shape"]["head_dim"]), *[""] * 8])
            continue
        ratios = [
            _against(ours.get(kind, {}).get("ratio"), speed, is_least=True)
            for kind in ("graph", "forward_backward", "forward")
        ]
        rows.append(
            [
                _shape(row),
                str(row["shape"]["head_dim"]),
                _called(rival),
                _milliseconds(rival),
                _called(ours),
                _milliseconds(ours),
                *ratios,
                _against(ours.get("peak_ratio"), memory, is_least=False),
            ]
        )
    return _markdown(titles, rows) + _provenance(record)


def _provenance(record: Record) -> str:
    """Return what the record says of the sources it was measured with, if it says something."""
    return f"\n\n{record['provenance']}" if "provenance" in record else ""


def contender_table(record: Record, *, width: int = 64) -> str:
    """Return the milliseconds of every contender at one head width, one column a shape."""
    chosen = [row for row in _rows(record, "goal") if row["shape"]["head_dim"] == width]
    names = list(dict.fromkeys(e["name"] for row in chosen for e in row["contenders"]))
    titles = ["forward and backward, ms (GiB)", *map(_shape, chosen)]
    rows = []
    for name in names:
        cells = []
        for row in chosen:
            entry = next((e for e in row["contenders"] if e["name"] == name), None)
            cells.append("" if entry is None else _time_and_memory(entry))
        rows.append([name.replace("_", " "), *cells])
    return _markdown(titles, rows)


def _time_and_memory(entry: Record) -> str:
    if "forward_backward" not in entry:
        return entry["status"]
    peak = f" ({entry['peak_bytes'] / 2**30:.2f})" if "peak_bytes" in entry else ""
    return f"{entry['forward_backward']['ms']:.2f}{peak}"


def error_table(record: Record) -> str:
    """Return relative errors against float64: torch's own attention, then the fastest LRSA."""
    titles = ["batch x heads x tokens", "width", "dot product: output", "gradients"]
    titles += ["LRSA", "output", "gradients of q, v", "gradient of x"]
    rows = []
    for row in _rows(record, "goal"):
        rival, ours = _fastest(row, "dot_product"), _fastest(row, "lrsa")
        if rival is None or ours is None:
            continue
        theirs, errors = rival["errors"], ours["errors"]
        rows.append(
            [
                _shape(row),
                str(row["shape"]["head_dim"]),
                f"{theirs['out']:.1e}",
                f"{max(theirs[name] for name in 'qkv'):.1e}",
                _called(ours),
                f"{errors['out']:.1e}",
                f"{max(errors[name] for name in 'qv'):.1e}",
                f"{errors['x']:.1e}",
            ]
        )
    return _markdown(titles, rows)


def roofline_table(record: Record) -> str:
    """Return the least bytes and operations of each shape, and how much of the ceilings is reached."""
    titles = ["batch x heads x tokens", "width", "LRSA: GB", "TFLOP", "bandwidth", "operations"]
    titles += ["dot product: bandwidth", "operations"]
    rows = []
    for row in _rows(record, "goal"):
        rival, ours = _fastest(row, "dot_product"), _fastest(row, "lrsa")
        if rival is None or ours is None:
            continue
        found = ours["roofline"]
        rows.append(
            [
                _shape(row),
                str(row["shape"]["head_dim"]),
                f"{found['num_bytes'] / 1e9:.3f}",
                f"{found['num_operations'] / 1e12:.3f}",
                *(
                    f"{entry['roofline'][name]:.0%}"
                    for entry in (ours, rival)
                    for name in ("of_bandwidth", "of_operations")
                ),
            ]
        )
    ceilings = record["ceilings"]
    text = (
        f"Ceilings: a copy of {ceilings['copy_bytes'] / 2**30:g} GiB reaches "
        f"{ceilings['copy_gb_per_second']:,.0f} GB/s (read and written), a {ceilings['dtype']} product of "
        f"{ceilings['matmul_side']} x {ceilings['matmul_side']} matrices "
        f"{ceilings['matmul_tflop_per_second']:,.1f} TFLOP/s."
    )
    return f"{text}\n\n{_markdown(titles, rows)}"


def growth_table(record: Record, part: str) -> str:
    """Return the milliseconds of every contender of one sweep, `tokens` or `batch`."""
    rows = _rows(record, part)
    if not rows:
        return "Not measured yet."
    names = list(dict.fromkeys(e["name"] for row in rows for e in row["contenders"]))
    lines = []
    for row in rows:
        found = {e["name"]: e.get("graph") or e.get("forward_backward") for e in row["contenders"]}
        times = [found.get(name) for name in names]
        cells = [f"{timed['ms']:.3f}" if timed else "" for timed in times]
        lines.append([str(row["shape"]["batch"]), str(row["shape"]["num_tokens"]), *cells])
    short = [name.removesuffix(" eager").replace("_", " ") for name in names]
    return _markdown(["batch", "tokens", *short], lines)


def model_table(record: Record) -> str:
    """Return images per second of our models beside timm's, taken in turn with each."""
    titles = ["model", "batch", "images/s", "timm's", f"ratio (goal {record['settings']['goal']})"]
    titles += ["GiB", "timm's"]
    rows = []
    for row in record["rows"]:
        if row["status"] != "measured":
            rows.append([row["name"], str(row["batch"]), row["status"], *[""] * 4])
            continue
        sides = (row["ours"], row["rival"])
        peaks = [side["peak_bytes"] for side in sides]
        rows.append(
            [
                row["name"].replace("_", " "),
                str(row["batch"]),
                *(f"{side['images_per_second']:,.0f}" for side in sides),
                _against(row["ratio"], row["goal"], is_least=True, num_digits=3),
                *("" if peak is None else f"{peak / 2**30:.2f}" for peak in peaks),
            ]
        )
    return _markdown(titles, rows) + _provenance(record)


def circumstances_line(record: Record) -> str:
    """Return where and with what a record was measured."""
    return f"{record['device']}, torch {record['torch']}, lrformer {record['lrformer']}"
