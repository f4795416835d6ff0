"""Random Fourier features of an RBF kernel, and the scale on which its length-scale is measured."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lrformer.core import ConfigError, NotFittedError
from lrformer.core.full_precision import (
    apply_without_rounding,
    at_least_float32,
    without_autocast,
)

Convention = Literal["paper", "sngp"]
FeatureScale = Literal["layer_norm", "calibrate", "literal"]

SNGP_WEIGHT_STD = 0.05  # the reference's setting on CIFAR
DEFAULT_LENGTH_SCALE = 2.0
TYPICAL_DISTANCE = 2.0  # to which "layer_norm" and "calibrate" bring two unrelated inputs


class RandomFourierFeatures(nn.Module):
    """Frozen random features `Phi(x)` whose inner product approximates an RBF kernel.

    Two conventions, with `x'` the rescaled input:

    - `"paper"` (docs/paper.md, Gaussian process layer): `sqrt(2/M) cos(W x' + b)`, rows of W drawn
      from `N(0, I / length_scale^2)`, so that `Phi Phi^T` approximates
      `exp(-|x'-y'|^2 / (2 length_scale^2))` and the prior variance is about 1.
    - `"sngp"` (the reference of SNGP): `cos(W x' + b)` without `sqrt(2/M)`, rows of W orthogonal in
      blocks with the lengths of Gaussian vectors of deviation 0.05, and `x' = x / sqrt(length_scale)`;
      the prior variance is about M/2.

    The input is rescaled because a length-scale means nothing without the scale of the features:
    2 on raw features of width 384 makes the kernel a delta.

    - `"literal"`: `x' = x`, unless the head is stretched.
    - `"layer_norm"`: LayerNorm without parameters, divided by `sqrt(e/2)`. Two unrelated inputs are
      then 2 apart. It forgets the length of x: an input far away along a known direction looks near.
    - `"calibrate"`: x divided by half the median distance of the training features, given once by
      `calibrate`: two typical inputs are 2 apart, and a length-scale of 2 is the median heuristic.

    With the last two the `"sngp"` convention uses deviation 1 and has no length-scale, as its reference:
    on layer-normalized inputs that is exactly its he-normal initialisation. One that is given is refused.
    """

    weight: Tensor
    bias: Tensor
    input_scale: Tensor

    def __init__(
        self,
        in_features: int,
        num_features: int = 1024,
        *,
        convention: Convention = "paper",
        length_scale: float = DEFAULT_LENGTH_SCALE,
        feature_scale: FeatureScale = "layer_norm",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if convention not in ("paper", "sngp"):
            raise ConfigError(f"convention ('{convention}') must be 'paper' or 'sngp'.")
        if feature_scale not in ("layer_norm", "calibrate", "literal"):
            raise ConfigError(
                f"feature_scale ('{feature_scale}') must be 'layer_norm', 'calibrate' or 'literal'."
            )
        if not 0 < length_scale < math.inf:
            raise ConfigError(f"length_scale ({length_scale}) must be positive and finite.")
        is_without_scale = convention == "sngp" and feature_scale != "literal"
        if is_without_scale and length_scale != DEFAULT_LENGTH_SCALE:
            raise ConfigError(
                f"length_scale ({length_scale}) has no meaning with convention 'sngp' and feature_scale "
                f"'{feature_scale}', which has no length-scale; leave it out, or take convention='paper' "
                "or feature_scale='literal'."
            )
        if num_features < 1 or in_features < 1:
            raise ConfigError(
                f"num_features ({num_features}) and in_features ({in_features}) must be positive."
            )
        self.in_features = in_features
        self.num_features = num_features
        self.feature_scale: FeatureScale = feature_scale
        if convention == "paper":
            self.amplitude = math.sqrt(2 / num_features)
            weight = torch.randn(num_features, in_features, generator=generator) / length_scale
        else:
            self.amplitude = 1.0
            is_literal = feature_scale == "literal"
            std = SNGP_WEIGHT_STD / math.sqrt(length_scale) if is_literal else 1.0
            weight = std * orthogonal_gaussian(num_features, in_features, generator=generator)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", 2 * math.pi * torch.rand(num_features, generator=generator))
        # NaN until calibrated: a forgotten calibration cannot pass for a result.
        scale = {
            "literal": 1.0,
            "layer_norm": math.sqrt(in_features) / (TYPICAL_DISTANCE / math.sqrt(2)),
            "calibrate": math.nan,
        }
        self.register_buffer("input_scale", torch.tensor(scale[feature_scale]))
        self._is_calibrated = feature_scale != "calibrate"
        self.register_load_state_dict_post_hook(_read_loaded_state)

    def _apply(self, fn, recurse=True):
        up = super()._apply
        names = ("weight", "bias", "input_scale")
        apply_without_rounding(self, names, lambda: up(fn, recurse), least=torch.float32)
        return self

    @property
    def is_calibrated(self) -> bool:
        """Whether the scale of the input is known."""
        return self._is_calibrated

    def forward(self, x: Float[Tensor, "b e"]) -> Float[Tensor, "b f"]:
        """Return the random features of `x`, in float32 or better whatever the autocast."""
        if not self._is_calibrated:
            raise NotFittedError(
                "feature_scale='calibrate' needs the scale of the training features; "
                "call calibrate(features), or prepare(loader) on the method, before training."
            )
        with without_autocast(x):
            scaled = self.rescale(at_least_float32(x))
            weight, bias = self.weight.to(scaled.dtype), self.bias.to(scaled.dtype)
            return self.amplitude * nn.functional.linear(scaled, weight, bias).cos()

    def rescale(self, x: Float[Tensor, "b e"]) -> Float[Tensor, "b e"]:
        """Return `x'`, the input on the scale on which the length-scale is measured."""
        if self.feature_scale == "layer_norm":
            x = nn.functional.layer_norm(x, (self.in_features,))
        return x / self.input_scale

    @torch.no_grad()
    def calibrate(self, features: Float[Tensor, "b e"]) -> None:
        """Set the scale of the input from the median distance between training `features`."""
        if self.feature_scale != "calibrate":
            raise ConfigError(
                f"feature_scale is '{self.feature_scale}', which has nothing to calibrate; "
                "create the head with feature_scale='calibrate'."
            )
        median = median_distance(at_least_float32(features))
        if not median > 0:
            raise ConfigError(
                f"the median distance of the features is {median:g}; calibrate on at least two "
                "different inputs."
            )
        self.input_scale.fill_(median / TYPICAL_DISTANCE)
        self._is_calibrated = True


def _read_loaded_state(features: nn.Module, _: object) -> None:
    assert isinstance(features, RandomFourierFeatures)
    features._is_calibrated = not bool(features.input_scale.isnan())


def orthogonal_gaussian(
    num_rows: int, num_columns: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, "f e"]:
    """Return rows with the lengths of standard Gaussian vectors, orthogonal in blocks of `num_columns`."""
    blocks = []
    for start in range(0, num_rows, num_columns):
        gaussian = torch.randn(num_columns, num_columns, generator=generator)
        q, r = torch.linalg.qr(gaussian)
        # The sign of R's diagonal makes Q uniform over the orthogonal group.
        blocks.append((q * r.diagonal().sign())[: num_rows - start])
    lengths = torch.randn(num_rows, num_columns, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(blocks) * lengths


def median_distance(features: Float[Tensor, "b e"], *, max_rows: int = 2048) -> float:
    """Return the median Euclidean distance between pairs of at most `max_rows` evenly chosen rows."""
    step = -(-features.shape[0] // max_rows)
    distances = nn.functional.pdist(features[::step].double().cpu())
    return float(distances.median()) if distances.numel() else 0.0
