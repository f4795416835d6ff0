"""How far the outputs of a converted model are from those of the original, layer by layer."""

import torch
from torch import nn

from lrformer.attention import LRSA, MultiheadSelfAttention
from lrformer.core.modes import evaluating
from lrformer.interop.calibration import Recording, main_tensor, relative_movement
from lrformer.interop.projections import Site
from lrformer.interop.report import ConversionReport, LayerReport

# Normalizers whose theorems are about tied queries and keys (docs/lipschitz.md).
NEEDS_TIED = frozenset({"paper", "m"})


@torch.no_grad()
def attention_movement(site: Site, module: MultiheadSelfAttention, before: Recording) -> float:
    """Return how far the attention's output moves when its input does not."""
    args, kwargs = before.calls[site.name]
    wrapped = site.wrap(module)
    with evaluating(wrapped):
        output = main_tensor(wrapped(*args, **kwargs))
    _, padding = site.read_call(*args, **kwargs)
    return relative_movement(output, before.outputs[site.name], padding)


def report_movement(
    name: str,
    built: list[tuple[Site, MultiheadSelfAttention]],
    attention: list[float],
    before: Recording,
    after: Recording,
) -> ConversionReport:
    """Return the report of a conversion that was measured on a batch."""
    layers = []
    for (site, module), moved in zip(built, attention, strict=True):
        args, kwargs = before.calls[site.name]
        _, padding = site.read_call(*args, **kwargs)
        tokens = relative_movement(after.outputs[site.block], before.outputs[site.block], padding)
        layers.append(
            LayerReport(name=site.name, alpha=_alpha(module), attention=moved, tokens=tokens)
        )
    new, old = after.result[0], before.result[0]
    return ConversionReport(
        attention=name,
        layers=tuple(layers),
        outputs=relative_movement(new, old, None),
        agreement=float((new.argmax(-1) == old.argmax(-1)).float().mean()),
        has_untied_lrsa=_has_untied_lrsa(built),
    )


def report_unmeasured(
    name: str, built: list[tuple[Site, MultiheadSelfAttention]]
) -> ConversionReport:
    """Return the report of a conversion without data: settings, and nothing measured."""
    layers = tuple(
        LayerReport(name=site.name, alpha=_alpha(module), attention=None, tokens=None)
        for site, module in built
    )
    return ConversionReport(
        attention=name,
        layers=layers,
        outputs=None,
        agreement=None,
        has_untied_lrsa=_has_untied_lrsa(built),
    )


def _has_untied_lrsa(built: list[tuple[Site, MultiheadSelfAttention]]) -> bool:
    return any(
        isinstance(module, LRSA) and not module.tie_qk and module.normalizer in NEEDS_TIED
        for _, module in built
    )


def _alpha(module: nn.Module) -> tuple[float, ...]:
    """Return alpha of every head, nothing where the attention has none."""
    return tuple(module.alpha.tolist()) if isinstance(module, LRSA) else ()
