"""What every other layer stands on: errors, registries, randomness and records."""

from lrformer.core.devices import choose_device
from lrformer.core.errors import (
    ConfigError,
    LRFormerError,
    MissingExtraError,
    NotFiniteError,
    NotFittedError,
    UnsupportedModelError,
    require_extra,
)
from lrformer.core.record import from_record, to_record
from lrformer.core.registry import Registry
from lrformer.core.rng import make_generator, seed_everything

__all__ = [
    "ConfigError",
    "LRFormerError",
    "MissingExtraError",
    "NotFiniteError",
    "NotFittedError",
    "Registry",
    "UnsupportedModelError",
    "choose_device",
    "from_record",
    "make_generator",
    "require_extra",
    "seed_everything",
    "to_record",
]
