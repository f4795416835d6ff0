"""`lrformer.bounds`: the Lipschitz constants of a model, proved where they can be and measured beside."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lrformer.core import ConfigError
from lrformer.evaluation.bound_measurements import Measurements, measure, pair_distortions
from lrformer.evaluation.bound_modules import (
    Constants,
    attention_constants,
    linear_constants,
    mlp_constants,
    norm_constants,
    norm_output_radius,
    printed_attention,
    same,
    unknown,
    unwrap_attention,
)
from lrformer.evaluation.bound_structure import BlockParts, Structure, read_structure
from lrformer.evaluation.bounds_report import BoundsReport, DepthPoint, ModuleRow
from lrformer.heads import RandomFeatureGP
from lrformer.lipschitz import (
    Bound,
    Chain,
    Stage,
    certified_radius,
    network,
    printed,
    spectral_norm,
)
from lrformer.lipschitz import layers as constants
from lrformer.models.certified import CertifiedTransformer
from lrformer.models.tokenizer import ConvEmbed

LAYER_NORM_EPS_OF_HEADS = 1e-5


def bounds(
    model: nn.Module,
    x: Tensor | None = None,
    *,
    pairs: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    num_steps: int = 20,
    batch_size: int = 64,
    generator: torch.Generator | None = None,
) -> BoundsReport:
    """Return the Lipschitz report of `model`: ours, timm's or transformers', converted or not.

    Args:
        x: a batch of inputs at which to measure local constants and radii; without it the report
            holds the sound constants alone.
        pairs: pairs of inputs by name (known and known, known and unknown, augmented), for the
            distances that the features keep between them.
        num_steps: steps of the power iteration behind each measured figure.
        batch_size: inputs that are measured at once.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model ({model!r}) must be a module; open a folder with lrformer.load, build a name with "
            f"lrformer.create_model."
        )
    backbone = getattr(model, "backbone", model)
    structure = read_structure(model)
    if isinstance(backbone, CertifiedTransformer):
        report = _certified_report(model, backbone)
    elif structure is not None:
        report = _transformer_report(model, structure)
    else:
        report = _unknown_report(model)
    if pairs:
        report = replace(report, distortions=pair_distortions(model, pairs))
    return _with_data(report, model, x, num_steps, batch_size, generator)


def _unknown_report(model: nn.Module) -> BoundsReport:
    kind, nothing = type(model).__name__, unknown(model)
    return BoundsReport(
        model=kind,
        num_tokens=None,
        rows=(_row("model", model, nothing),),
        chain=network([_stage(kind, nothing)]),
        depth=(),
    )


def _transformer_report(model: nn.Module, structure: Structure) -> BoundsReport:
    embedding = _embedding_constants(structure.embedding)
    rows = [_row("embedding", structure.embedding, embedding)]
    stages = [_stage("embedding", embedding)]
    depth = [_depth_point("embedding", stages)]
    radius: float | None = None
    for block in structure.blocks:
        block_rows, block_stages, radius = _block(block, structure.num_tokens, radius)
        rows += block_rows
        stages += block_stages
        depth.append(_depth_point(block.name, stages))
    final = norm_constants(structure.final_norm)
    if structure.final_norm is not None and not isinstance(structure.final_norm, nn.Identity):
        rows.append(_row("norm", structure.final_norm, final))
        stages.append(_stage("norm", final))
        radius = norm_output_radius(structure.final_norm)
    pooled = _pool_constants(structure, radius)
    if structure.pool in {"seq", "unknown"}:
        rows.append(_row("pool", structure.pool_score, pooled))
        stages.append(_stage("pool", pooled))
    head = head_constant(structure.head)
    rows.append(_row("head", structure.head, head))
    chain = network(
        stages,
        mean_pooled_tokens=structure.num_pooled if structure.pool == "avg" else None,
        sigma_head=head.frobenius.value,
    )
    chain = _explained(chain, rows)
    return BoundsReport(
        model=type(model).__name__,
        num_tokens=structure.num_tokens,
        rows=tuple(rows),
        chain=chain,
        depth=tuple(depth),
    )


def _block(
    block: BlockParts, n: int, radius: float | None
) -> tuple[list[ModuleRow], list[Stage], float | None]:
    """Return the rows and stages of a layer, and the radius of the tokens that leave it, if any."""
    norm_1, norm_2 = norm_constants(block.norm_1), norm_constants(block.norm_2)
    entering = norm_output_radius(block.norm_1) if block.order == "pre" else radius
    attention = unwrap_attention(block.attention)
    attn = attention_constants(attention, n=n, radius=entering)
    mlp = mlp_constants(block.mlp)
    rows = [
        _row(f"{block.name}.norm1", block.norm_1, norm_1),
        _row(f"{block.name}.attn", attention, attn),
        _row(f"{block.name}.norm2", block.norm_2, norm_2),
        _row(f"{block.name}.mlp", block.mlp, mlp),
    ]
    scale_1, scale_2 = _layer_scale(block.scale_1), _layer_scale(block.scale_2)

    def residual(name: str, norm: Constants, branch: Constants, scale: float) -> Stage:
        def one(pick: Callable[[Constants], Bound]) -> float:
            inner = pick(norm).value if block.order == "pre" else 1.0
            outer = pick(norm).value if block.order == "post" else 1.0
            return outer * (1 + scale * inner * pick(branch).value)

        return Stage(
            name=name, frobenius=one(lambda c: c.frobenius), max_token=one(lambda c: c.max_token)
        )

    stages = [
        residual(f"{block.name}.attn", norm_1, attn, scale_1),
        residual(f"{block.name}.mlp", norm_2, mlp, scale_2),
    ]
    leaving = norm_output_radius(block.norm_2) if block.order == "post" else None
    return rows, stages, leaving


def _layer_scale(module: nn.Module | None) -> float:
    gamma = getattr(module, "gamma", None)
    if isinstance(gamma, Tensor):
        return float(gamma.detach().abs().max())
    return 1.0 if module is None or isinstance(module, nn.Identity) else math.inf


def _embedding_constants(module: nn.Module) -> Constants:
    if isinstance(module, nn.Linear):
        return same(spectral_norm(module.weight), "spectral norm, from the input in L2")
    if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
        upper, _ = constants.patch_embedding(module.weight)
        return same(upper, "spectral norm of a patch, from the input in L2")
    if isinstance(module, ConvEmbed):
        value = 1.0
        for conv in module.convs:
            assert isinstance(conv, nn.Conv2d)
            taps = conv.weight.detach().double().flatten(2).permute(2, 0, 1)
            # A convolution is a sum of shifted matrices; a pixel is in at most four pooling windows.
            value *= 2 * sum(spectral_norm(tap) for tap in taps)
        return same(value, "sum of the taps' spectral norms, times 2 for overlapping pools")
    return unknown(module)


def _pool_constants(structure: Structure, radius: float | None) -> Constants:
    if structure.pool == "seq" and structure.pool_score is not None and radius is not None:
        value = 1 + radius * spectral_norm(structure.pool_score.weight)
        return same(value, f"softmax pooling of tokens within {radius:.4g}")
    if structure.pool in {"token", "avg"}:
        return same(1.0, "counted in the product")
    return same(math.inf, "no constant is known for this pooling on unbounded tokens")


def head_constant(module: nn.Module) -> Constants:
    """Return the L2 constant of what maps pooled features to logits."""
    if isinstance(module, RandomFeatureGP):
        features = module.random_features
        value = features.amplitude * spectral_norm(features.weight)
        value *= spectral_norm(module.output.weight) / float(features.input_scale)
        if features.feature_scale == "layer_norm":
            value /= math.sqrt(LAYER_NORM_EPS_OF_HEADS)
        if math.isnan(value):
            return same(math.inf, "the scale of the random features is not calibrated yet")
        return same(value, "theorem 12, mean logits")
    return linear_constants(module)


def _certified_report(model: nn.Module, backbone: CertifiedTransformer) -> BoundsReport:
    certificate = backbone.certificate()
    names = [f"blocks.{i}.{part}" for i in range(len(backbone.blocks)) for part in ("attn", "mlp")]
    embedding = _embedding_constants(backbone.tokenizer.proj)
    no_max = "certified in the Frobenius norm only"
    rows = [_row("embedding", backbone.tokenizer.proj, embedding)]
    stages = [_stage("embedding", embedding)]
    depth = [_depth_point("embedding", stages)]
    for name, branch, constant in zip(
        names, backbone.branches(), certificate.branches, strict=True
    ):
        bound = Bound(value=constant, norm="F", reason=f"held below {branch.budget:g}")
        infinite = Bound(value=math.inf, norm="max", reason=no_max)
        kind = type(branch).__name__
        rows.append(ModuleRow(name=name, kind=kind, frobenius=bound, max_token=infinite))
        stages.append(Stage(name=name, frobenius=1 + constant, max_token=math.inf))
        if name.endswith("mlp"):
            depth.append(_depth_point(name.removesuffix(".mlp"), stages))
    top = backbone.head if backbone is model else getattr(model, "head", nn.Identity())
    head = head_constant(top)
    rows.append(_row("head", top, head))
    is_flat = backbone.config.global_pool == "flatten"
    chain = network(
        stages,
        mean_pooled_tokens=None if is_flat else backbone.num_tokens,
        sigma_head=head.frobenius.value,
    )
    return BoundsReport(
        model=type(model).__name__,
        num_tokens=backbone.num_tokens,
        rows=tuple(rows),
        chain=_explained(chain, rows),
        depth=tuple(depth),
        certificate=certificate,
    )


def _with_data(
    report: BoundsReport,
    model: nn.Module,
    x: Tensor | None,
    num_steps: int,
    batch_size: int,
    generator: torch.Generator | None,
) -> BoundsReport:
    if x is None:
        return report
    places = [point.name for point in report.depth if point.name != "embedding"]
    modules = [row.name for row in report.rows]
    seen = measure(
        model,
        x,
        places=places,
        modules=modules,
        num_steps=num_steps,
        batch_size=batch_size,
        generator=generator,
    )
    constant = report.chain.bound.value
    return replace(
        report,
        rows=tuple(_measured_row(row, seen) for row in report.rows),
        depth=tuple(replace(p, measured=seen.places.get(p.name)) for p in report.depth),
        measured=tuple(seen.logits.tolist()),
        radii=tuple(certified_radius(seen.outputs, constant=constant).tolist()),
    )


def _measured_row(row: ModuleRow, seen: Measurements) -> ModuleRow:
    module = seen.found.get(row.name)
    shown = row.printed
    x_norm = seen.input_norms.get(row.name)
    if module is not None and x_norm:
        shown = printed_attention(unwrap_attention(module), x_norm) or shown
    return replace(
        row,
        printed=shown,
        measured=seen.modules.get(row.name),
        smallest_ratio=seen.ratios.get(row.name),
        entropy=seen.entropies.get(row.name),
    )


def _row(name: str, module: nn.Module | None, found: Constants) -> ModuleRow:
    shown = None
    if isinstance(module, nn.LayerNorm) and module.weight is not None:
        shown = printed.layer_norm(module.weight, eps=module.eps)
    first, second = getattr(module, "fc1", None), getattr(module, "fc2", None)
    if isinstance(first, nn.Linear) and isinstance(second, nn.Linear):
        shown = printed.mlp(spectral_norm(first.weight), spectral_norm(second.weight))
    return ModuleRow(
        name=name,
        kind=type(module).__name__,
        frobenius=found.frobenius,
        max_token=found.max_token,
        printed=shown,
    )


def _stage(name: str, found: Constants) -> Stage:
    return Stage(name=name, frobenius=found.frobenius.value, max_token=found.max_token.value)


def _depth_point(name: str, stages: list[Stage]) -> DepthPoint:
    return DepthPoint(name=name, log10_sound=network(stages).log10, measured=None)


def _explained(chain: Chain, rows: list[ModuleRow]) -> Chain:
    """Return the chain with the modules' own reasons where it has no constant."""
    if not math.isinf(chain.log10):
        return chain
    without = [r for r in rows if not r.frobenius.is_finite and not r.max_token.is_finite]
    if not without:
        return chain
    reason = f"{', '.join(r.name for r in without)}: {without[0].frobenius.reason}"
    return replace(chain, bound=replace(chain.bound, reason=reason))
