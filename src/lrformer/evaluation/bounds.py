"""`lrformer.bounds`: the Lipschitz constants of a model, proved where they can be and measured beside."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lrformer.core import ConfigError, NotFiniteError
from lrformer.core.modes import evaluating
from lrformer.core.patches import patches_of
from lrformer.evaluation.bound_balls import with_balls
from lrformer.evaluation.bound_ends import embedding_constants, head_constant, pool_constants
from lrformer.evaluation.bound_local import layer_scale
from lrformer.evaluation.bound_measurements import (
    Measurements,
    Progress,
    exact_outputs,
    first_not_finite,
    measure,
    pair_distortions,
)
from lrformer.evaluation.bound_modules import (
    Constants,
    attention_constants,
    is_layer_norm,
    is_linear,
    mlp_constants,
    norm_constants,
    norm_output_radius,
    printed_attention,
    same,
    unwrap_attention,
)
from lrformer.evaluation.bound_structure import (
    BlockParts,
    Structure,
    Unread,
    is_certified,
    read_structure,
    split_method,
    with_tokens_of,
)
from lrformer.evaluation.bound_types import is_nothing, uncompiled
from lrformer.evaluation.bounds_report import BoundsReport, DepthPoint, ModuleRow
from lrformer.lipschitz import (
    Bound,
    Chain,
    Stage,
    certified_radius,
    network,
    printed,
    spectral_norm,
)
from lrformer.lipschitz.network import has_margins, margins
from lrformer.methods import Method
from lrformer.models.certified import CertifiedTransformer
from lrformer.training.posterior import PosteriorClassifier
from lrformer.training.run_folder import Run

PATCHED = (
    "it may change anything, and no constant holds for it. Remove it (what Accelerate prepared: unwrap_model); for "
    "norms of weights take torch.nn.utils.parametrizations"
)


def bounds(
    model: nn.Module | Run,
    x: Tensor | None = None,
    *,
    radius: float | None = None,
    pairs: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    num_steps: int = 20,
    batch_size: int = 64,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> BoundsReport:
    """Return the Lipschitz report of `model`: a run, or a model of ours, timm's or transformers', converted or not.

    Args:
        x: a batch of inputs at which to measure local constants and radii; without it the report
            holds the sound constants alone.
        radius: of an L2 ball around each input of `x`, in the units of `x`; sound constants are then
            also given for these balls.
        pairs: pairs of inputs by name (known and known, known and unknown, augmented), for the
            distances that the features keep between them.
        num_steps: steps of the power iteration behind each measured figure.
        batch_size: inputs that are measured at once.
        progress: called before each measurement with its name, how many are done and how many there are.
    """
    model = uncompiled(model.method if isinstance(model, Run) else model)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model (a {type(model).__name__}) must be a module or a run; open a folder with lrformer.load, build a name "
            f"with lrformer.create_model."
        )
    if radius is not None and (x is None or not 0 < radius < math.inf):
        raise ConfigError(
            f"radius ({radius}) must be positive and finite, and x must hold the inputs it is around."
        )
    _check_finite(model)
    for name, inputs in _named_inputs(x, pairs):
        if not inputs.is_floating_point():
            raise ConfigError(
                f"{name} (a tensor of {inputs.dtype}) must hold what the model computes with, floating-point numbers; of raw "
                "images a run makes them with run.preprocess."
            )
        if (first := first_not_finite(inputs)) is not None:
            raise ConfigError(
                f"{name} holds NaN or infinity in input {first}; nothing can be measured there. Leave that input out."
            )
    is_certifiable = _predicts_by_logits(model)
    if type(model) is PosteriorClassifier:
        # A posterior gives a variance; the mean logits are the model's.
        model = model.model
    # Throughout: in training mode a spectrally normalized weight changes whenever it is read.
    with evaluating(model):
        structure, report = _sound_report(model, x)
        if pairs:
            report = replace(report, distortions=pair_distortions(model, pairs))
        report = _with_data(report, model, x, num_steps, batch_size, generator, progress)
        if radius is not None and x is not None:
            report = with_balls(report, model, structure, x, radius, batch_size)
    return report if is_certifiable else _without_radii(report)


def _named_inputs(
    x: Tensor | None, pairs: Mapping[str, tuple[Tensor, Tensor]] | None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every batch of inputs that a user has given, with what to call it."""
    if x is not None:
        yield "x", x
    for name, pair in (pairs or {}).items():
        yield from ((f"pairs['{name}'][{place}]", inputs) for place, inputs in enumerate(pair))


def _check_finite(model: nn.Module) -> None:
    """Raise for a weight that is no number: it has no norm."""
    for name, weight in model.named_parameters():
        if not weight.isfinite().all():
            raise NotFiniteError(
                f"the weight {name} holds NaN or infinity, so that the model has no constants; it has diverged and must "
                "be trained anew."
            )


def _sound_report(model: nn.Module, x: Tensor | None) -> tuple[Structure | None, BoundsReport]:
    """Return what was read of a model that has local theorems, and the constants of any model."""
    if patches := patches_of(model):
        return None, _unknown_report(model, f"{patches[0]}: {PATCHED}")
    if is_certified(model):
        return None, _certified_report(model, split_method(model)[0])
    structure = read_structure(model)
    if isinstance(structure, Unread):
        return None, _unknown_report(model, structure.reason)
    if x is not None:
        structure = with_tokens_of(structure, model, x)
    return structure, _transformer_report(model, structure)


def _predicts_by_logits(model: nn.Module) -> bool:
    """Return whether the class of a prediction is that of the largest of the logits whose constants are given."""
    if isinstance(model, PosteriorClassifier):
        return model.head.config.keeps_class_of_mean and _predicts_by_logits(model.model)
    return not isinstance(model, Method) or model.predicts_by_logits


def _without_radii(report: BoundsReport) -> BoundsReport:
    """Return the report of a model whose predictions do not follow its logits: their constants certify none."""
    local = report.local
    if local is not None:
        local = replace(local, radii=())
    return replace(report, radii=(0.0,) * len(report.radii), local=local, is_certifiable=False)


def _unknown_report(model: nn.Module, reason: str) -> BoundsReport:
    kind, nothing = type(model).__name__, same(math.inf, reason)
    rows = [_row("model", model, nothing)]
    chain = _explained(network([_stage(kind, nothing)]), rows)
    return BoundsReport(model=kind, num_tokens=None, rows=tuple(rows), chain=chain, depth=())


def _transformer_report(model: nn.Module, structure: Structure) -> BoundsReport:
    embedding = embedding_constants(structure.embedding)
    rows = [_row("embedding", structure.embedding, embedding)]
    stages = [_stage("embedding", embedding)]
    n = structure.num_tokens
    depth = [_depth_point("embedding", stages, n)]
    radius: float | None = None
    for block in structure.blocks:
        block_rows, block_stages, radius = _block(block, n, radius)
        rows += block_rows
        stages += block_stages
        depth.append(_depth_point(block.name, stages, n))
    final = norm_constants(structure.final_norm)
    if not is_nothing(structure.final_norm):
        rows.append(_row("norm", structure.final_norm, final))
        stages.append(_stage("norm", final))
        radius = norm_output_radius(structure.final_norm)
    pooled = pool_constants(structure, radius)
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
    scale_1, scale_2 = layer_scale(block.scale_1), layer_scale(block.scale_2)

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


def _certified_report(model: nn.Module, backbone: CertifiedTransformer) -> BoundsReport:
    certificate = backbone.certificate()
    names = [f"blocks.{i}.{part}" for i in range(len(backbone.blocks)) for part in ("attn", "mlp")]
    embedding = embedding_constants(backbone.tokenizer.proj)
    no_max = "certified in the Frobenius norm only"
    rows = [_row("embedding", backbone.tokenizer.proj, embedding)]
    stages = [_stage("embedding", embedding)]
    depth = [_depth_point("embedding", stages, backbone.num_tokens)]
    for name, branch, constant in zip(
        names, backbone.branches(), certificate.branches, strict=True
    ):
        bound = Bound(value=constant, norm="F", reason=f"held below {branch.budget:g}")
        infinite = Bound(value=math.inf, norm="max", reason=no_max)
        kind = type(branch).__name__
        rows.append(ModuleRow(name=name, kind=kind, frobenius=bound, max_token=infinite))
        stages.append(Stage(name=name, frobenius=1 + constant, max_token=math.inf))
        if name.endswith("mlp"):
            depth.append(_depth_point(name.removesuffix(".mlp"), stages, backbone.num_tokens))
    head_of_method = split_method(model)[1]
    top = backbone.head if head_of_method is None else head_of_method
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
    progress: Progress | None,
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
        progress=progress,
    )
    constant = report.chain.bound.value
    report = replace(
        report,
        rows=tuple(_measured_row(row, seen) for row in report.rows),
        depth=tuple(replace(p, measured=seen.places.get(p.name)) for p in report.depth),
        measured=tuple(seen.logits.tolist()),
    )
    if not has_margins(seen.outputs):
        return report
    # Without a constant there is no radius, and a model that is not what its class says may have no copy.
    outputs = seen.outputs.double()
    if math.isfinite(constant):
        outputs = exact_outputs(model, x, seen.outputs, batch_size=batch_size)
    return replace(
        report,
        margins=tuple(margins(outputs).tolist()),
        radii=tuple(certified_radius(outputs, constant=constant).tolist()),
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
    if is_layer_norm(module) and module.weight is not None:
        shown = printed.layer_norm(module.weight, eps=module.eps)
    first, second = getattr(module, "fc1", None), getattr(module, "fc2", None)
    if is_linear(first) and is_linear(second):
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


def _depth_point(name: str, stages: list[Stage], n: int) -> DepthPoint:
    """Return the bound on tokens in the Frobenius norm, in which they are measured."""
    frobenius = [replace(stage, max_token=stage.frobenius) for stage in stages]
    # A chain that ends in the max-token norm pays sqrt(n) to be one in the Frobenius norm.
    log10 = min(network(frobenius).log10, network(stages).log10 + 0.5 * math.log10(n))
    return DepthPoint(name=name, log10_sound=log10, measured=None)


def _explained(chain: Chain, rows: list[ModuleRow]) -> Chain:
    """Return the chain with the modules' own reasons where it has no constant."""
    if not math.isinf(chain.log10):
        return chain
    without = [r for r in rows if not r.frobenius.is_finite and not r.max_token.is_finite]
    if not without:
        return chain
    reason = f"{', '.join(r.name for r in without)}: {without[0].frobenius.reason}"
    return replace(chain, bound=replace(chain.bound, reason=reason))
