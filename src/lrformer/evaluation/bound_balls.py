"""What a report says of balls around the inputs: sound constants and radii that hold there."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from lrformer.evaluation.bound_ends import embedding_constants, head_constant, pool_constants
from lrformer.evaluation.bound_local import LocalChain, local_chain
from lrformer.evaluation.bound_modules import norm_output_radius
from lrformer.evaluation.bound_structure import Structure
from lrformer.evaluation.bound_types import is_nothing
from lrformer.evaluation.bounds_report import BoundsReport, LocalBounds
from lrformer.lipschitz.network import radius_of_margin


def with_balls(
    report: BoundsReport,
    model: nn.Module,
    structure: Structure | None,
    x: Tensor,
    radius: float,
    batch_size: int,
) -> BoundsReport:
    """Return the report with constants on balls; a model without local theorems keeps its global ones."""
    everywhere = report.chain.bound.value
    found, places, modules = [everywhere] * len(x), {}, {}
    if structure is not None:
        chains = _chains(model, structure, x, radius, batch_size)
        head = head_constant(structure.head).frobenius.value
        # What holds everywhere holds on a ball.
        pooled = torch.cat([chain.pooled for chain in chains]).tolist()
        found = [min(everywhere, constant * head) for constant in pooled]
        places, modules = (
            {
                name: max(float(getattr(chain, kind)[name].max()) for chain in chains)
                for name in getattr(chains[0], kind)
            }
            for kind in ("places", "modules")
        )
    # The global one first: beside a constant that is no number `min` keeps its first argument.
    return replace(
        report,
        rows=tuple(
            replace(r, local=min(r.frobenius.value, modules.get(r.name, math.inf)))
            for r in report.rows
        ),
        depth=tuple(
            replace(p, local=min(_power(p.log10_sound), places.get(p.name, math.inf)))
            for p in report.depth
        ),
        local=LocalBounds(
            radius=radius, constants=tuple(found), radii=_radii(report.margins, found, radius)
        ),
    )


def _chains(
    model: nn.Module, structure: Structure, x: Tensor, radius: float, batch_size: int
) -> list[LocalChain]:
    embedding = embedding_constants(structure.embedding).frobenius.value
    pool = pool_constants(structure, radius_at_pool(structure)).max_token.value
    return [
        local_chain(model, part, radius=radius, embedding=embedding, pool=pool)
        for part in x.split(batch_size)
    ]


def _radii(margins: tuple[float, ...], constants: list[float], radius: float) -> tuple[float, ...]:
    """Return within which radii predictions are held, none larger than that of the balls; none without margins."""
    if not margins:
        return ()
    margin = torch.tensor(margins, dtype=torch.float64)
    constant = torch.tensor(constants, dtype=torch.float64)
    return tuple(radius_of_margin(margin, constant=constant).clamp_max(radius).tolist())


def radius_at_pool(structure: Structure) -> float | None:
    """Return how long the tokens can be that are pooled: the last norm before says it."""
    last = structure.blocks[-1]
    if not is_nothing(structure.final_norm):
        return norm_output_radius(structure.final_norm)
    return norm_output_radius(last.norm_2) if last.order == "post" else None


def _power(log10: float) -> float:
    return 10**log10 if log10 < 300 else math.inf
