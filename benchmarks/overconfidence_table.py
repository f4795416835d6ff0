"""The table of docs/results.md on the paper's subject: how often and how surely a row is wrong, with a part and without."""

from glance_table import CONTRASTS, settings_of, verdict
from lrformer.metrics import SeedInterval, seed_interval
from lrformer.recipes.table import SET_TITLES
from lrformer.recipes.table_record import PROBABILITIES, TableRecord
from lrformer.recipes.table_summary import SummaryRow

# Of the test set: title, metric, whether after the temperature.
KNOWN = (
    ("wrong above .9", "overconfidence_rate", False),
    ("the same, with temperature", "overconfidence_rate", True),
    ("confidence when wrong", "overconfidence_mean_confidence_when_wrong", False),
    ("the same, with temperature", "overconfidence_mean_confidence_when_wrong", True),
)
# Of each unknown set, where every answer is wrong; measured before the temperature.
UNKNOWN = "overconfidence_rate"


def overconfidence_table(ablation: TableRecord | None) -> str:
    """Return, for each part and every setting with enough seeds, both rows and what is significant between them."""
    if ablation is None:
        return "Not measured yet."
    parts = []
    for title, ours, theirs in CONTRASTS:
        shown = settings_of(ablation, ours, theirs)
        if not shown:
            continue
        sets = shown[0][1][ours].runs[0].ood
        titles = [name for name, *_ in KNOWN] + [f"{SET_TITLES.get(n, n)} above .9" for n in sets]
        lines = [f"| {title} | seeds | {' | '.join(titles)} |", "|---" * (len(titles) + 2) + "|"]
        for setting, rows in shown:
            pair = rows[ours], rows[theirs]
            cells = [_cell(*pair, metric, is_calibrated=t) for _, metric, t in KNOWN]
            cells += [_cell(*pair, UNKNOWN, dataset=name) for name in sets]
            count = len(set(_by_seed(pair[0], UNKNOWN)) & set(_by_seed(pair[1], UNKNOWN)))
            lines.append(f"| {setting} | {count} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "Not measured yet."


def _cell(
    ours: SummaryRow,
    theirs: SummaryRow,
    metric: str,
    *,
    dataset: str | None = None,
    is_calibrated: bool = False,
) -> str:
    """Return the figure without the part and with it, in bold and with a word where they differ significantly."""
    with_it, without = (
        _by_seed(row, metric, dataset=dataset, is_calibrated=is_calibrated)
        for row in (ours, theirs)
    )
    seeds = [seed for seed in with_it if seed in without]
    if not seeds:
        return ""
    means: list[SeedInterval] = [
        seed_interval([found[seed] for seed in seeds]) for found in (without, with_it)
    ]
    word = verdict(seed_interval([with_it[seed] - without[seed] for seed in seeds]), -1)
    before, after = (f"{over.mean:.3f}" for over in means)
    return f"{before} → {after}" if word is None else f"{before} → **{after} {word}**"


def _by_seed(
    row: SummaryRow, metric: str, *, dataset: str | None = None, is_calibrated: bool = False
) -> dict[int, float]:
    found = {}
    for run in row.runs:
        sets = run.figures["calibrated" if is_calibrated else "raw"]
        figures = sets.get(dataset or next(iter(sets)), {}).get(PROBABILITIES, {})
        if (figure := figures.get(metric)) is not None and figure[0] is not None:
            found[run.seed] = figure[0]
    return found
