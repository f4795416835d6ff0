"""Where the weights of a run start: drawn, from timm, or from the backbone of an earlier run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from lrformer.core import ConfigError
from lrformer.data import Split
from lrformer.methods.base import BackboneMethod
from lrformer.models.spectral import fold_spectral_norm
from lrformer.training.backbone import backbone_img_size, create_backbone, is_timm_name
from lrformer.training.config import TrainConfig
from lrformer.training.opening import load
from lrformer.training.run_folder import Run


def backbone_factory(config: TrainConfig, split: Split) -> Callable[[], nn.Module]:
    """Return what makes the backbones of a run, each with the weights that it starts from."""

    def make() -> nn.Module:
        backbone = create_backbone(config, split)
        if config.start is not None and not is_timm_name(config.start):
            copy_backbone(Path(config.start), backbone)
        return backbone

    return make


def copy_backbone(folder: Path, target: nn.Module) -> None:
    """Put the weights of the run or model in `folder` into `target`, interpolated to its image size."""
    loaded = load(folder)
    source: Any = loaded
    if isinstance(loaded, Run):
        if not isinstance(loaded.method, BackboneMethod):
            raise ConfigError(
                f"{folder} holds a {type(loaded.method).__name__}, which has no single backbone to "
                "start from; take the run of another method."
            )
        source = loaded.method.backbone
        fold_spectral_norm(source)
    size = backbone_img_size(target)
    if size is not None and size != backbone_img_size(source) and hasattr(source, "set_input_size"):
        source.set_input_size(size)
    wanted = target.state_dict()
    found = {name: value for name, value in source.state_dict().items() if name in wanted}
    for name, value in wanted.items():
        if name not in found or found[name].shape != value.shape:
            there = f"has shape {tuple(found[name].shape)}" if name in found else "is missing"
            raise ConfigError(
                f"{folder} cannot start this model: '{name}' of shape {tuple(value.shape)} {there} "
                "there; take the same model and the same overrides."
            )
    # Alpha belongs to the new run's settings, not to the old weights.
    kept = {name: wanted[name] for name in wanted if name.rpartition(".")[2] == "alpha"}
    target.load_state_dict({**found, **kept})
