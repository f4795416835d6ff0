"""What `lrformer reproduce all` makes, and what of it no record has: tables of docs/recipes.md and docs/results.md."""

from pathlib import Path

from lrformer.recipes.settings import usual_unknown
from lrformer.recipes.table_run import Circumstances
from lrformer.recipes.whole import PartStanding, Place, reproduce_all

RESULTS = Path(__file__).parent / "results"
DATA = "cifar10"


def plan_table() -> str:
    """Return the commands of which `lrformer reproduce all` is made, in its order, with what the records have."""
    lines = ["| | command | finished |", "|---|---|---|"]
    lines += [
        f"| {number} | `{standing.command}` | {standing.num_finished} of {len(standing.result.standings)} |"
        for number, standing in enumerate(_plan(), 1)
    ]
    return "\n".join(lines)


def left_table() -> str:
    """Return the runs of the plan that no record has."""
    lines = ["| | table, settings | left (of every row) | about |", "|---|---|---|---|"]
    lines += [
        f"| {number} | {standing.part.title(DATA)} | {standing.left_in_words} | {standing.time_in_words} |"
        for number, standing in enumerate(_plan(), 1)
        if standing.left
    ]
    return "\n".join(lines) if len(lines) > 2 else "Nothing of it."


def _plan() -> tuple[PartStanding, ...]:
    place = Place(data=DATA, out=None, records=RESULTS)
    how = Circumstances(ood=usual_unknown(DATA))
    return reproduce_all(place, how=how, is_listing=True).standings
