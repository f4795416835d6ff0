"""Images inside the page: PNG bytes in the text itself, with what the model said under each."""

import base64
import io
import math
from html import escape

import numpy as np
from jaxtyping import UInt8

from lrformer.evaluation import Gallery, GalleryEntry

TINY = 64
# A probability in float32 knows no more.
MOST_DECIMALS = 8


def data_uri(image: UInt8[np.ndarray, "height width channel"]) -> str:
    """Return the image as a `data:` address that holds its PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    pixels = image[:, :, 0] if image.shape[2] == 1 else image
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image_grid(gallery: Gallery, *, dataset: str, reason: str) -> str:
    """Return the images that were picked from one set for one reason, or nothing if there are none."""
    cards = [
        _card(entry, image)
        for entry, image in zip(gallery.entries, gallery.images, strict=True)
        if (entry.dataset, entry.reason) == (dataset, reason)
    ]
    return f'<div class="images">{"".join(cards)}</div>' if cards else ""


def write_probability(value: float) -> str:
    """Return a probability with three decimals, and near 1 with as many as tell it from 1, so that an order shows."""
    distance = 1 - value
    decimals = 3 if distance <= 0 else max(3, math.ceil(1 - math.log10(distance)))
    return f"{value:.{min(decimals, MOST_DECIMALS)}f}"


def _card(entry: GalleryEntry, image: UInt8[np.ndarray, "height width channel"]) -> str:
    if entry.truth is None:
        verdict = f"said <strong>{escape(entry.predicted)}</strong>"
    elif entry.truth == entry.predicted:
        verdict = f'<strong class="right">{escape(entry.predicted)}</strong>, right'
    else:
        verdict = (
            f'said <strong class="wrong">{escape(entry.predicted)}</strong>, is '
            f"<strong>{escape(entry.truth)}</strong>"
        )
    where = escape(entry.file or f"row {entry.row}")
    tiny = ' class="tiny"' if max(image.shape[:2]) <= TINY else ""
    alt = f"{entry.dataset}, row {entry.row}, predicted {entry.predicted}"
    return (
        f'<figure><img{tiny} src="{data_uri(image)}" alt="{escape(alt, quote=True)}">'
        f"<figcaption>{verdict}<br>p = {write_probability(entry.probability)}<br>uncertainty {entry.uncertainty:.3g}"
        f"<br><small>{where}</small></figcaption></figure>"
    )
