"""Settings that together make no sense, or that a run would not look at: said before anything is made."""

import dataclasses

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.methods import Method
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.training.backbone import is_timm_name
from lrformer.training.config import TrainConfig


def check_pieces(config: TrainConfig, method: Method) -> None:
    """Raise where a batch in pieces would be another training than the batch."""
    gp = method.gp if isinstance(method, GaussianProcessMethod) else None
    if config.accumulate > 1 and gp is not None and gp.config.momentum is not None:
        raise ConfigError(
            f"momentum ({gp.config.momentum}) averages the precision over batches, and accumulate ({config.accumulate}) cuts "
            "each into as many; leave one of the two out."
        )


def check_used(config: TrainConfig, split: Split, method: Method) -> None:
    """Raise for a setting that this run would not look at: it would be another run for nothing."""
    default = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    unused = {}
    if not is_timm_name(config.start):
        unused["pretrained"] = (
            "is for a model of timm to start from (start=NAME, --from NAME); weights are drawn without it"
        )
    if not split.is_image:
        unused["image_size"] = f"is for images, and {split.name} holds points"
    if not method.uses_criterion:
        unused |= dict.fromkeys(
            ("loss", "label_smoothing", "class_weights"),
            f"is not for method '{config.method}', whose loss is its own",
        )
    for name, why in unused.items():
        if (value := getattr(config, name)) != default[name]:
            raise ConfigError(f"{name} ({value!r}) {why}. Leave it out.")
