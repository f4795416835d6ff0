"""One image file as an array; whatever is wrong with it is said with its name."""

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from lrformer.core import ConfigError

if TYPE_CHECKING:
    from PIL import Image

# Also what not every Pillow reads: such a file is named in an error, and not left out without a word.
SUFFIXES = frozenset(
    {
        *(".avif", ".bmp", ".gif", ".heic", ".heif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg"),
        *(".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
    }
)
# A palette is a way to store RGB, and a bit is a way to store gray.
CHANNELS_OF_MODE = {"1": 1, "L": 1, "P": 3, "RGB": 3, "LA": 2, "RGBA": 4, "PA": 4, "CMYK": 4}
# Gray of 16 bits, in either order of bytes. Pillow's own conversion would make everything above 255 white.
WIDE_GRAY = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
# Numbers of 32 bits have no range that would say what is white.
NUMBERS = frozenset({"I", "F"})
MODE_OF_CHANNELS = {1: "L", 3: "RGB"}


class UnreadableImageError(ConfigError):
    """A file is no image that can be decoded: nothing but another file helps."""


class UnreachedImageError(ConfigError):
    """A file could not be got at, as from a disk that fails, which says nothing of the image in it."""


class OtherChannelsError(ConfigError):
    """An image has other channels than are taken as they are: they can be converted."""


def is_image_file(path: Path) -> bool:
    """Return whether the name says that this is an image."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def check_channels(channels: int | None) -> None:
    """Raise for channels that no image is converted to; None converts none."""
    if channels is not None and channels not in MODE_OF_CHANNELS:
        raise ConfigError(f"channels ({channels}) must be 1 (gray) or 3 (RGB).")


def read_image(
    path: Path, *, image_size: int | None = None, channels: int | None = None
) -> UInt8[np.ndarray, "height width channel"]:
    """Return the pixels of an image file, upright.

    Args:
        image_size: scale the shorter side to this and cut the center square; None keeps the size.
        channels: 1 or 3 to convert whatever the file holds; None takes gray or RGB as it is and refuses the rest.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    check_channels(channels)
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            image.load()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file.") from error
    except UnidentifiedImageError as error:
        raise UnreadableImageError(
            f"{path}: not a readable image; replace it or remove it."
        ) from error
    except Exception as error:  # decoders raise whatever they meet in a broken file
        if _is_of_the_machine(error):
            reason = getattr(error, "strerror", None) or "there is too little memory"
            raise UnreachedImageError(f"{path}: the file cannot be read ({reason}).") from error
        raise UnreadableImageError(
            f"{path}: not a readable image ({error}); replace it or remove it."
        ) from error
    if image.mode in NUMBERS:
        raise ConfigError(
            f"{path}: the image has mode {image.mode}, numbers of 32 bits that may mean anything; save it with 8 bits "
            "a channel."
        )
    if image.mode in WIDE_GRAY:
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    found = CHANNELS_OF_MODE.get(image.mode)
    if channels is None:
        channels = found
    if channels not in MODE_OF_CHANNELS:
        raise OtherChannelsError(
            f"{path}: the image has mode {image.mode}, {found or 'an unknown number of'} channels; "
            "1 (gray) or 3 (RGB) are expected. Pass channels=3 (--channels 3) to convert every image to RGB."
        )
    try:
        # Pillow knows a way from Lab to RGB, and none to gray.
        image = (image.convert("RGB") if image.mode == "LAB" else image).convert(
            MODE_OF_CHANNELS[channels]
        )
    except ValueError as error:
        raise ConfigError(
            f"{path}: the image has mode {image.mode}, which is not read here ({error}); save it as gray or RGB."
        ) from error
    if image_size is not None:
        image = _fit(image, image_size)
    return np.asarray(image).reshape(image.height, image.width, channels)


def _is_of_the_machine(error: Exception) -> bool:
    """Return whether a file was not read for a reason that lies outside of it: permissions, a disk, memory."""
    # A decoder that is sent to a place before the file's beginning has an invalid argument.
    is_of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
    return is_of_system or isinstance(error, MemoryError)


def fit_pixels(
    images: UInt8[np.ndarray, "b height width channel"], size: int
) -> UInt8[np.ndarray, "b size size channel"]:
    """Return the center square of every image, scaled to `size`: the pixels that its file would give."""
    from PIL import Image

    channels = images.shape[-1]
    planes = images[..., 0] if channels == 1 else images  # Pillow has no third axis in gray
    fitted = [np.asarray(_fit(Image.fromarray(plane), size)) for plane in planes]
    return np.stack(fitted).reshape(len(images), size, size, channels)


def _fit(image: "Image.Image", size: int) -> "Image.Image":
    from PIL import Image, ImageOps

    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
