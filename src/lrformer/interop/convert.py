"""Another attention in a pretrained transformer: everything else stays, to the bit."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from lrformer.attention import SCSA, AttentionConfig, MultiheadSelfAttention
from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.interop.calibration import Recording, record
from lrformer.interop.movement import attention_movement, report_movement, report_unmeasured
from lrformer.interop.projections import Site, Sites, refuse
from lrformer.interop.report import ConversionReport
from lrformer.interop.settings import ConversionSettings, resolve
from lrformer.interop.temperature import match_entropy, set_in_closed_form
from lrformer.interop.timm import find_sites as find_timm_sites
from lrformer.interop.transformers import find_sites as find_transformers_sites
from lrformer.interop.weights import build_attention, transfer

Model = TypeVar("Model", bound=nn.Module)
_ATTRIBUTE = "lrformer_conversion"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertedLayer:
    """Where an attention was replaced, and by what."""

    name: str
    attention: AttentionConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversion:
    """Everything that rebuilds the structure of a converted model, and what the conversion measured."""

    layers: tuple[ConvertedLayer, ...]
    report: ConversionReport


def convert(
    model: Model,
    attention: str | AttentionConfig = "lrsa",
    *,
    alpha: float | str | None = "match",
    tie_qk: bool | None = None,
    calibration: Any = None,
    normalizer: str | None = None,
    length_free: bool | None = None,
    key_scale: float = 0.25,
    num_tokens: int | None = None,
    inplace: bool = False,
) -> Model:
    """Return `model` with every self-attention replaced; it is still a timm or transformers model.

    MLP, norms, embeddings, values and output projections are kept to the bit. The rules for queries, keys,
    biases and temperature, with what they cost, are in docs/conversion.md. `conversion_report` of the
    result says how far its outputs moved.

    Args:
        model: timm's VisionTransformer family, or transformers' ViT, DeiT or BERT (extra `hf`).
        attention: A name (`lrsa`, `lrsa_m`, `l2`, `l2_provable`, `scsa`, `dot_product`) or a config.
        alpha: `match` starts at the temperature of the original: by the entropy of its attention on
            `calibration`, or in closed form without one. A number is taken as it is; None leaves what
            the config says.
        tie_qk: Tie queries and keys, which LRSA needs for a Lipschitz constant, at the price of outputs
            that move far before fine-tuning. None leaves a config as it is, and means False for a name.
        calibration: A batch of inputs (a few dozen are enough): a tensor, a tuple of arguments, or a
            dict of keyword arguments.
        normalizer: Of LRSA: `paper`, `floor`, `symmetric` or `m`.
        length_free: Of LRSA: one alpha for every number of tokens.
        key_scale: Size of untied keys against queries in LRSA. Their product does not change; the smaller
            it is, the less the norms of the keys disturb the pretrained scores.
        num_tokens: Tokens in a sample, for the closed form; None takes the model's own number.
        inplace: Change `model` itself instead of a copy.

    Raises:
        UnsupportedModelError: For a model that cannot be converted; it is left as it was.
    """
    settings = resolve(
        attention,
        alpha=alpha,
        tie_qk=tie_qk,
        normalizer=normalizer,
        length_free=length_free,
        key_scale=key_scale,
        num_tokens=num_tokens,
    )
    find_sites(model)  # raises before anything is copied or changed
    if not inplace:
        model = copy.deepcopy(model)
    found = find_sites(model)
    before = None
    if calibration is not None:
        before = record(model, [n for s in found.sites for n in (s.name, s.block)], calibration)
        _check_reached(found, before)
        _check_finite(before)
    built = [
        (site, _convert_site(site, settings, found.num_tokens, before)) for site in found.sites
    ]
    moved = [attention_movement(*part, before) for part in built] if before else []
    for site, module in built:
        _install(model, site, module)
    if before is None:
        report = report_unmeasured(settings.name, built)
    else:
        after = record(model, [site.block for site in found.sites], calibration)
        report = report_movement(settings.name, built, moved, before, after)
    layers = tuple(
        ConvertedLayer(name=site.name, attention=_settings_of(settings.attention, module))
        for site, module in built
    )
    setattr(model, _ATTRIBUTE, Conversion(layers=layers, report=report))
    return model


def _check_finite(recording: Recording) -> None:
    """Raise for a calibration batch that is empty, or on which the model gives no numbers."""
    (result,) = recording.result
    if result.shape[0] == 0:
        raise ConfigError("calibration is an empty batch; give at least one input.")
    if not bool(result.isfinite().all()):
        raise ConfigError(
            "the model's outputs on the calibration batch are not finite; look for NaN in the batch "
            "or in the weights."
        )


def conversion_report(model: nn.Module) -> ConversionReport:
    """Return what the conversion of `model` measured, layer by layer; `str` of it is a table."""
    conversion = conversion_of(model)
    if conversion is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} was not converted by lrformer.convert; it has no report."
        )
    return conversion.report


def conversion_of(model: nn.Module) -> Conversion | None:
    """Return what was done to `model`, or None if it was never converted."""
    return getattr(model, _ATTRIBUTE, None)


def reapply(model: Model, conversion: Conversion) -> Model:
    """Return `model`, freshly built, with the attentions of an earlier conversion and random projections."""
    sites = {site.name: site for site in find_sites(model).sites}
    names = [layer.name for layer in conversion.layers]
    if sorted(sites) != sorted(names):
        raise ConfigError(
            f"the conversion names other layers ({', '.join(names)}) than {type(model).__name__} has "
            f"({', '.join(sites)})."
        )
    for layer in conversion.layers:
        site = sites[layer.name]
        _install(model, site, build_attention(site.projections, _with_bias(layer.attention, site)))
    setattr(model, _ATTRIBUTE, conversion)
    return model


def find_sites(model: nn.Module) -> Sites:
    """Return every attention of `model` that `convert` can replace, or raise if there is one that it cannot."""
    finders: dict[str, Callable[[nn.Module], Sites]] = {
        "timm": find_timm_sites,
        "transformers": find_transformers_sites,
    }
    # The package is read off the class, so that neither has to be imported to refuse a model.
    for kind in type(model).__mro__:
        finder = finders.get(kind.__module__.partition(".")[0])
        if finder is not None:
            return finder(model)
    raise refuse(model, "it is neither a timm nor a transformers model.")


def _with_bias(config: AttentionConfig, site: Site) -> AttentionConfig:
    """Return `config` with biases exactly where the original has them."""
    return dataclasses.replace(config, qkv_bias=site.projections.has_bias)


def _settings_of(config: AttentionConfig, module: MultiheadSelfAttention) -> AttentionConfig:
    """Return the config that builds `module`; what is not in its `state_dict` is read back from it."""
    changes: dict[str, Any] = {"qkv_bias": module.qkv.bias is not None}
    if isinstance(module, SCSA):
        changes |= {"tau": module.tau, "nu": module.nu}
    return dataclasses.replace(config, **changes)


def _convert_site(
    site: Site, settings: ConversionSettings, num_tokens: int, before: Recording | None
) -> MultiheadSelfAttention:
    """Return the module that is to stand at `site`, weights and temperature set."""
    module = build_attention(site.projections, _with_bias(settings.attention, site))
    transfer(site.projections, module, key_scale=settings.key_scale)
    if settings.matches_temperature and before is not None:
        args, kwargs = before.calls[site.name]
        x, padding = site.read_call(*args, **kwargs)
        match_entropy(module, site.projections, x, padding)
    elif settings.matches_temperature:
        tokens = settings.num_tokens or num_tokens
        set_in_closed_form(module, site.projections, num_tokens=tokens)
    return module


def _install(model: nn.Module, site: Site, module: MultiheadSelfAttention) -> None:
    """Put `module` where the original stands, in its mode."""
    wrapped = site.wrap(module).train(model.get_submodule(site.name).training)
    model.set_submodule(site.name, wrapped)


def _check_reached(found: Sites, before: Recording) -> None:
    """Raise if the calibration batch did not pass through every attention."""
    missing = [site.name for site in found.sites if site.name not in before.calls]
    if missing:
        raise ConfigError(
            f"calibration did not reach {', '.join(missing)}; give a batch that runs the whole model."
        )
