"""Soft spectral normalization: a layer's operator norm is held under a bound, and left alone below it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lrformer.core import ConfigError
from lrformer.core.modes import evaluating
from lrformer.core.transforms import is_traced_or_transformed

# Spectral normalization of query and key projections stops a transformer from training (Lee et al.
# 2021, quoted in the paper), and of a fused projection it would tie three unrelated norms.
ATTENTION_PROJECTIONS = (
    *("qkv", "q", "k", "v", "kv", "in_proj", "c_attn", "query", "key", "value"),
    *("q_proj", "k_proj", "v_proj", "to_q", "to_k", "to_v", "to_kv", "to_qkv"),
)

# Their forward is their own and the map is that of the weight all the same; others than these are refused.
_PLAIN_BY_NAME = ("timm.layers.linear.Linear",)

_INITIAL_ITERATIONS = 5
_SMALLEST_NORM = 1e-12


class SoftSpectralNorm(nn.Module):
    """Parametrization `W -> W min(1, bound / sigma(W))`, sigma by power iteration on the layer's map.

    In training mode every use of the weight takes `num_iterations` steps first. Power iteration
    estimates sigma from below: the bound is a training device, not a certificate. In evaluation mode
    without gradients the normalized weight is computed once and kept until the weight changes or
    `train` or `eval` is called.
    """

    left: Tensor
    right: Tensor

    def __init__(
        self, weight: Tensor, input_shape: Sequence[int], *, bound: float, num_iterations: int = 1
    ) -> None:
        super().__init__()
        if not bound > 0:
            raise ConfigError(f"bound ({bound}) must be positive.")
        if num_iterations < 1:
            raise ConfigError(f"num_iterations ({num_iterations}) must be at least 1.")
        self.bound = bound
        self.num_iterations = num_iterations
        self._kept: tuple[tuple[object, ...], Tensor] | None = None
        with torch.no_grad():
            drawn = torch.randn(1, *input_shape, device=weight.device, dtype=torch.float32)
            right = drawn / drawn.norm()
            mapped = self.apply_map(weight.float(), right)
            self.register_buffer("right", right)
            self.register_buffer("left", _unit_or(torch.zeros_like(mapped), mapped))
            self.iterate(weight, _INITIAL_ITERATIONS)

    def apply_map(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the layer's linear map of `x`, without its bias."""
        raise NotImplementedError

    def apply_adjoint(self, weight: Tensor, y: Tensor) -> Tensor:
        """Return the transpose of the map applied to `y`."""
        raise NotImplementedError

    @torch.no_grad()
    def iterate(self, weight: Tensor, num_iterations: int) -> None:
        """Take steps of power iteration with the raw `weight`."""
        with torch.autocast(device_type=weight.device.type, enabled=False):
            weight = weight.detach().float()
            left, right = self.left.float(), self.right.float()
            for _ in range(num_iterations):
                right = _unit_or(right, self.apply_adjoint(weight, left))
                left = _unit_or(left, self.apply_map(weight, right))
            self.right.copy_(right)
            self.left.copy_(left)

    def sigma(self, weight: Tensor) -> Float[Tensor, ""]:
        """Return the estimate of the operator norm, differentiable in `weight`."""
        with torch.autocast(device_type=weight.device.type, enabled=False):
            # Clones, because the next step overwrites vectors that the backward pass still needs.
            left, right = self.left.clone().to(weight.dtype), self.right.clone().to(weight.dtype)
            return (left * self.apply_map(weight, right)).sum()

    def normalize(self, weight: Tensor) -> Tensor:
        """Return the scaled weight, in its own dtype."""
        wide = weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
        scaled = wide * (1 / (self.sigma(wide) / self.bound).clamp_min(1))
        return scaled.to(weight.dtype)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the normalized weight."""
        if self.training:
            self.iterate(weight, self.num_iterations)
            self._kept = None
            return self.normalize(weight)
        if torch.is_grad_enabled() or is_traced_or_transformed():
            return self.normalize(weight)
        if weight.is_inference() or self.left.is_inference():
            return self.normalize(weight)  # these do not tell when they change
        identity = (weight.data_ptr(), weight._version, self.left._version, weight.dtype)
        if self._kept is None or self._kept[0] != identity:
            self._kept = (identity, self.normalize(weight))
        return self._kept[1]

    def train(self, mode: bool = True) -> "SoftSpectralNorm":
        """Set the mode and forget the kept weight: writing to `weight.data` leaves no trace."""
        self._kept = None
        super().train(mode)
        return self

    def _apply(self, fn, recurse=True):
        self._kept = None
        return super()._apply(fn, recurse)


class LinearSpectralNorm(SoftSpectralNorm):
    """Soft spectral normalization of the weight of an `nn.Linear`: the norm of the matrix."""

    def apply_map(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return `x W^T`."""
        return x @ weight.mT

    def apply_adjoint(self, weight: Tensor, y: Tensor) -> Tensor:
        """Return `y W`."""
        return y @ weight


class ConvSpectralNorm(SoftSpectralNorm):
    """Soft spectral normalization of an `nn.Conv2d`: the norm of its true operator at one input size.

    The kernel unfolded to a matrix has another norm, which can be smaller: the map that counts is the
    convolution itself, with its stride, padding, dilation and groups.
    """

    def __init__(
        self,
        conv: nn.Conv2d,
        input_size: tuple[int, int],
        *,
        bound: float,
        num_iterations: int = 1,
    ) -> None:
        self.padding = _number_padding(conv)
        self.stride, self.dilation, self.groups = conv.stride, conv.dilation, conv.groups
        # What conv_transpose2d must add to come back to the input's size when the stride skips rows.
        self.output_padding = [
            (size + 2 * pad - dilation * (kernel - 1) - 1) % stride
            for size, pad, dilation, kernel, stride in zip(
                input_size, self.padding, conv.dilation, conv.kernel_size, conv.stride, strict=True
            )
        ]
        shape = (conv.in_channels, *input_size)
        super().__init__(conv.weight, shape, bound=bound, num_iterations=num_iterations)

    def apply_map(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return the convolution of `x`."""
        return nn.functional.conv2d(
            x,
            weight,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )

    def apply_adjoint(self, weight: Tensor, y: Tensor) -> Tensor:
        """Return the transposed convolution of `y`, of the size of the input."""
        return nn.functional.conv_transpose2d(
            y,
            weight,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            groups=self.groups,
            dilation=self.dilation,
        )


class SpectralBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose gain `max |gamma| / sqrt(running variance + eps)` is held under `bound`.

    As in DUE: the running variance decides, and its momentum is 0.01 so that the gain is steady.
    """

    def __init__(
        self, num_features: int, *, bound: float, eps: float = 1e-5, momentum: float = 0.01
    ) -> None:
        super().__init__(num_features, eps=eps, momentum=momentum)
        if not bound > 0:
            raise ConfigError(f"bound ({bound}) must be positive.")
        self.bound = bound

    @property
    def gain(self) -> Float[Tensor, ""]:
        """Return the Lipschitz constant that the plain batch norm would have."""
        assert self.running_var is not None
        return (self.weight.abs() * (self.running_var + self.eps).rsqrt()).amax()

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:  # noqa: A002
        """Return the normalized input, scaled down when the gain exceeds the bound."""
        weight = self.weight * (1 / (self.gain / self.bound).clamp_min(1))
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return nn.functional.batch_norm(
            input,
            self.running_mean,
            self.running_var,
            weight,
            self.bias,
            training=self.training,
            momentum=self.momentum if self.momentum is not None else 0.0,
            eps=self.eps,
        )


def apply_spectral_norm(
    model: nn.Module,
    *,
    bound: float,
    input_shape: tuple[int, ...] | None = None,
    num_iterations: int = 1,
    batch_norm: bool = False,
    exclude: Sequence[str] = ATTENTION_PROJECTIONS,
) -> list[str]:
    """Return the names of the layers of `model` that are now softly normalized, in place.

    Every Linear and Conv2d is, except those whose own name is in `exclude`; on a transformer that
    leaves the patch embedding, the output projection of attention and the perceptron. With
    `batch_norm` every BatchNorm2d becomes a `SpectralBatchNorm2d`.

    Args:
        input_shape: shape of one input, without batch; it says at which size each convolution runs.
            By default it is read from the model (`input_shape`, timm's `pretrained_cfg`, or an
            `img_size`); only a model with convolutions needs it.

    Raises:
        ConfigError: before anything is changed, for a layer whose forward is its own: weight
            standardization would undo the bound, a padding of its own is another map, and a batch
            norm that also activates has no counterpart here.
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and name.rpartition(".")[2] not in exclude
    }
    if not layers:
        raise ConfigError(
            f"{type(model).__name__} has no Linear or Conv2d to normalize outside its attention."
        )
    for name, layer in layers.items():
        _check_map(name, layer)
    if batch_norm:
        _check_batch_norms(model)
    convs = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Conv2d)}
    sizes = _conv_input_sizes(model, convs, input_shape) if convs else {}
    for name, layer in layers.items():
        if isinstance(layer, nn.Conv2d):
            norm = ConvSpectralNorm(layer, sizes[name], bound=bound, num_iterations=num_iterations)
        else:
            norm = LinearSpectralNorm(
                layer.weight, (layer.in_features,), bound=bound, num_iterations=num_iterations
            )
        norm.train(layer.training)
        parametrize.register_parametrization(layer, "weight", norm)
    if batch_norm:
        _replace_batch_norms(model, bound)
    return list(layers)


def fold_spectral_norm(model: nn.Module) -> None:
    """Replace every soft spectral normalization by its present weights, for export and compilation."""
    for name, norm in list(spectral_norms(model)):
        norm.eval()
        layer: Any = model.get_submodule(name)
        # A deep copy shares its class with the original, and torch takes the property off the class.
        shared = type(layer)
        own = {key: value for key, value in vars(shared).items() if not key.startswith("__dict")}
        layer.__class__ = type(shared.__name__, shared.__bases__, own)
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def spectral_norms(model: nn.Module) -> Iterator[tuple[str, SoftSpectralNorm]]:
    """Yield the name and the parametrization of every softly normalized weight."""
    for name, module in model.named_modules():
        if isinstance(module, SoftSpectralNorm):
            yield name.removesuffix(".parametrizations.weight.0"), module


def _unit_or(kept: Tensor, tensor: Tensor) -> Tensor:
    """Return `tensor` with Euclidean norm one, or `kept` in the place of zero.

    A weight may be zero for a while, as some are at the start; vectors that went to zero with it would stay there, and
    nothing would ever be bounded again.
    """
    norm = tensor.norm()
    return torch.where(norm > _SMALLEST_NORM, tensor / norm.clamp_min(_SMALLEST_NORM), kept)


def _conv_input_sizes(
    model: nn.Module, convs: dict[str, nn.Conv2d], input_shape: tuple[int, ...] | None
) -> dict[str, tuple[int, int]]:
    """Return the largest height and width that each convolution sees, from one forward pass of zeros."""
    shape = input_shape or _declared_input_shape(model, next(iter(convs.values())))
    if shape is None:
        raise ConfigError(
            f"the norm of a convolution depends on its input size, and {type(model).__name__} does "
            "not state one; pass input_shape=(channels, height, width)."
        )
    names: dict[nn.Module, str] = {conv: name for name, conv in convs.items()}
    sizes: dict[str, tuple[int, int]] = {}

    def record(conv: nn.Module, args: tuple[Tensor, ...]) -> None:
        height, width = args[0].shape[-2:]
        # One that runs at several sizes has its largest norm at the largest.
        seen = sizes.get(names[conv], (0, 0))
        sizes[names[conv]] = (max(height, seen[0]), max(width, seen[1]))

    hooks = [conv.register_forward_pre_hook(record) for conv in convs.values()]
    try:
        with torch.no_grad(), evaluating(model):
            weight = next(iter(convs.values())).weight
            model(torch.zeros(1, *shape, device=weight.device, dtype=weight.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    if unused := [name for name in convs if name not in sizes]:
        raise ConfigError(
            f"the forward pass does not use the convolutions {', '.join(unused)}; name them in exclude."
        )
    return sizes


def _declared_input_shape(model: nn.Module, first: nn.Conv2d) -> tuple[int, ...] | None:
    """Return the input shape that a model states about itself, if it does."""
    if (shape := getattr(model, "input_shape", None)) is not None:
        return tuple(shape)
    # A picture size that the model was built for beats the one that its pretrained weights had.
    for owner in model.modules():
        if (size := getattr(owner, "img_size", None)) is not None:
            height, width = (size, size) if isinstance(size, int) else size
            return (first.in_channels, height, width)
    cfg = getattr(model, "pretrained_cfg", None)
    return (first.in_channels, *cfg["input_size"][1:]) if cfg and "input_size" in cfg else None


def _check_map(name: str, layer: nn.Linear | nn.Conv2d) -> None:
    """Raise for a layer that may compute another map than that of its weight."""
    kind = parametrize.type_before_parametrizations(layer)
    plain = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.Linear
    is_plain = all(
        getattr(kind, method, None) is getattr(plain, method, None)
        for method in ("forward", "_conv_forward")
    )
    if not is_plain and f"{kind.__module__}.{kind.__qualname__}" not in _PLAIN_BY_NAME:
        raise ConfigError(
            f"{name} is a {kind.__name__} with a forward of its own: it may standardize its weight or pad its input, "
            f"and only the plain map of the weight can be bounded. Build the model with nn.{plain.__name__}, or name "
            f"'{name.rpartition('.')[2]}' in exclude."
        )
    if isinstance(layer, nn.Conv2d):
        _number_padding(layer)


def _number_padding(conv: nn.Conv2d) -> tuple[int, ...]:
    """Return the zeros around the input; raise for a padding under which the map is another, or that is a word."""
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
        raise ConfigError(
            f"padding_mode '{conv.padding_mode}' with padding {conv.padding!r} is not supported: "
            "spectral normalization of a convolution needs zero padding given by numbers."
        )
    return conv.padding


def _check_batch_norms(model: nn.Module) -> None:
    """Raise for a batch norm that has no weight to bound or no statistics, or that is more than a batch norm."""
    for name, layer in model.named_modules():
        known = (nn.BatchNorm2d, SpectralBatchNorm2d)
        if isinstance(layer, nn.BatchNorm2d) and type(layer) not in known:
            raise ConfigError(
                f"{name} is a {type(layer).__name__}; batch_norm=True bounds nn.BatchNorm2d itself and would lose what "
                "else a subclass computes, such as an activation. Leave batch_norm out, or build the model with "
                "nn.BatchNorm2d."
            )
        if type(layer) is nn.BatchNorm2d and not (layer.affine and layer.track_running_stats):
            raise ConfigError(
                f"{name} is a BatchNorm2d with affine={layer.affine} and track_running_stats={layer.track_running_stats}; "
                "batch_norm=True needs both. Leave batch_norm out, or build the model with them."
            )


def _replace_batch_norms(model: nn.Module, bound: float) -> None:
    """Put a `SpectralBatchNorm2d` with the same state in the place of every BatchNorm2d."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d:
                norm = SpectralBatchNorm2d(child.num_features, bound=bound, eps=child.eps)
                norm.to(child.weight).load_state_dict(child.state_dict())
                norm.weight.requires_grad_(child.weight.requires_grad)
                norm.bias.requires_grad_(child.bias.requires_grad)
                setattr(parent, name, norm.train(child.training))
