"""What a row says about its goals, in a sentence."""

from typing import Any

from lrformer.bench.attention_row import MEMORY_GOAL, SPEED_GOAL


def best_of_ours(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fastest LRSA of a row of `bench attention`, if one ran; by its CUDA graph where there is one.

    Called one by one, short calls wait for Python, and which is fastest changes from run to run.
    """
    for kind in ("graph", "forward_backward"):
        timed = [e for e in row["contenders"] if e["attention"] == "lrsa" and kind in e]
        if timed:
            return min(timed, key=lambda e: e[kind]["ms"])
    return None


def attention_verdict(row: dict[str, Any]) -> str:
    """Return how the best of ours stands to the fastest of torch's, beside the goals."""
    best = best_of_ours(row)
    rival = row["baseline"].get("forward_backward")
    if best is None or rival is None:
        return "No ratio: " + ("no LRSA ran." if best is None else "no fused attention ran.")
    ratio = best["forward_backward"]["ratio"]
    text = f"{best['name']}: {_beside_goal(ratio, rival)}"
    if "graph" in best:
        text += f", {_beside_goal(best['graph']['ratio'], row['baseline']['graph'])} as CUDA graphs"
    if "peak_ratio" in best:
        memory = best["peak_ratio"]
        text += (
            f", memory {memory:.3f} times "
            f"(goal {MEMORY_GOAL}: {'met' if memory <= MEMORY_GOAL else 'short'})"
        )
    return f"{text}."


def _beside_goal(ratio: float, rival: str) -> str:
    return (
        f"{ratio:.3f} of {rival} (goal {SPEED_GOAL}: {'met' if ratio >= SPEED_GOAL else 'short'})"
    )
