"""What a user may ask of a conversion, checked before anything is computed."""

import dataclasses
import math
import numbers
from typing import Any

import torch

from lrformer.attention import ATTENTIONS, AttentionConfig, LRSAConfig
from lrformer.attention.registry import check_attention
from lrformer.core import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """The attention that is wanted, by name and in full, and how its temperature is found."""

    name: str
    attention: AttentionConfig
    matches_temperature: bool
    key_scale: float
    num_tokens: int | None


def resolve(
    attention: str | AttentionConfig,
    *,
    alpha: float | str | None,
    tie_qk: bool | None,
    normalizer: str | None,
    length_free: bool | None,
    key_scale: float,
    num_tokens: int | None,
) -> ConversionSettings:
    """Return the settings of a conversion, or raise for a value that cannot work."""
    by_name = isinstance(attention, str)
    config: Any = ATTENTIONS[attention]() if isinstance(attention, str) else attention
    check_attention(config)
    if isinstance(config, LRSAConfig) and by_name and tie_qk is None:
        tie_qk = False
    with torch.device("meta"):
        is_tied = config.build(8, 1).tie_qk
    changes = {"tie_qk": tie_qk, "normalizer": normalizer, "length_free": length_free}
    if isinstance(alpha, str):
        if alpha != "match":
            raise ConfigError(f"alpha ({alpha!r}) must be a positive number, 'match' or None.")
    elif alpha is not None:
        if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real):
            raise ConfigError(f"alpha ({alpha!r}) must be a positive number, 'match' or None.")
        changes["alpha"] = float(alpha)
    changes = {name: value for name, value in changes.items() if value is not None}
    if not isinstance(config, LRSAConfig):
        if changes.get("tie_qk", is_tied) == is_tied:
            changes.pop("tie_qk", None)
        if changes:
            name, value = next(iter(changes.items()))
            raise ConfigError(
                f"{name} ({value}) is a setting of lrsa; {type(config).__name__} does not have it."
            )
    if not 0 < key_scale < math.inf:
        raise ConfigError(f"key_scale ({key_scale}) must be positive and finite.")
    if num_tokens is not None and num_tokens < 1:
        raise ConfigError(f"num_tokens ({num_tokens}) must be at least 1.")
    config = dataclasses.replace(config, **changes)
    with torch.device("meta"):
        config.build(8, 1)  # checks the values
    return ConversionSettings(
        name=attention if isinstance(attention, str) else type(config).__name__,
        attention=config,
        matches_temperature=alpha == "match",
        key_scale=key_scale,
        num_tokens=num_tokens,
    )
