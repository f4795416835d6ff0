"""What happens to a training image on the device, as one value and one function."""

from dataclasses import dataclass

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from lrformer.core import ConfigError
from lrformer.core.kinds import check_kinds
from lrformer.core.registry import did_you_mean
from lrformer.data.crops import resized_crop, shift_and_flip
from lrformer.data.policies import aug_mix, rand_augment, trivial_augment

CROPS = ("none", "shift", "resized")
POLICIES = ("none", "trivial", "rand", "augmix")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """How training images are varied; everything off is the plain image.

    Attributes:
        crop: `shift` cuts the image from itself padded by `crop_padding` black pixels, `resized` scales a random part of
            at least `min_scale` of the area.
        flip: mirror half of the images.
        policy: `trivial` (one operation of any strength), `rand` (`num_operations` of strength `magnitude`) or `augmix`.
        magnitude: strength of `rand` and `augmix`, 0 to 1.
        erase_probability: share of images with an erased rectangle. Its center is anywhere, so that part of it may lie outside
            of the image.
        mixup_alpha: of the Beta distribution of the blend; 0 is off.
        cutmix_alpha: of the Beta distribution of the area that stays; 0 is off. With both, each image draws one.
        mix_probability: share of images that are mixed; the others keep their image and their label.
    """

    crop: str = "none"
    crop_padding: int = 4
    min_scale: float = 0.08
    flip: bool = False
    policy: str = "none"
    num_operations: int = 2
    magnitude: float = 0.3
    erase_probability: float = 0.0
    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    mix_probability: float = 1.0

    def __post_init__(self) -> None:
        check_kinds(type(self), vars(self))
        for name, known in (("crop", CROPS), ("policy", POLICIES)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(
                    f"unknown {name} '{value}'.{did_you_mean(value, known)} "
                    f"Known: {', '.join(known)}."
                )
        for name in ("magnitude", "erase_probability", "min_scale", "mix_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} ({getattr(self, name)}) must lie in [0, 1].")
        for name in ("crop_padding", "num_operations", "mixup_alpha", "cutmix_alpha"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} ({getattr(self, name)}) must not be negative.")
        if self.policy == "rand" and self.num_operations < 1:
            raise ConfigError(
                f"num_operations ({self.num_operations}) must be at least 1 with policy 'rand'."
            )

    @property
    def is_mixing(self) -> bool:
        """Return whether images are mixed with others, so that targets are soft."""
        return self.mix_probability > 0 and max(self.mixup_alpha, self.cutmix_alpha) > 0


PLAIN = AugmentConfig()
SHIFT_AND_FLIP = AugmentConfig(crop="shift", flip=True)


def augment_images(
    images: UInt8[Tensor, "b height width channel"],
    keys: Int[Tensor, " b"],
    config: AugmentConfig,
) -> Float[Tensor, "b channel height width"]:
    """Return uint8 images cropped, mirrored and varied, as float32 in [0, 1] with the channels first."""
    if config.crop != "resized" and (config.crop == "shift" or config.flip):
        padding = config.crop_padding if config.crop == "shift" else 0
        images = shift_and_flip(images, keys, padding=padding, flip=config.flip)
    pixels = images.permute(0, 3, 1, 2).float() / 255
    if config.crop == "resized":
        pixels = resized_crop(pixels, keys, min_scale=config.min_scale, flip=config.flip)
    if config.policy == "trivial":
        return trivial_augment(pixels, keys)
    if config.policy == "rand":
        return rand_augment(
            pixels, keys, num_operations=config.num_operations, magnitude=config.magnitude
        )
    if config.policy == "augmix":
        return aug_mix(pixels, keys, magnitude=config.magnitude)
    return pixels
