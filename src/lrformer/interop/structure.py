"""Whether two models are built alike: the same modules, settings, and shapes of weights."""

from torch import Tensor, nn

from lrformer.core.patches import patches_of

# What changes when a model is used, not when it is built.
_STATE = {
    "training",
    "backend",
    "grad_checkpointing",
    "gradient_checkpointing",
    "fused_attn",
    "fast_norm",
}


def first_difference(model: nn.Module, other: nn.Module) -> str | None:
    """Return the first thing in which `model` and `other` differ, in words, or None."""
    ours, theirs = dict(model.named_modules()), dict(other.named_modules())
    for name in sorted(ours.keys() ^ theirs.keys()):
        return f"module '{name}' is only in {'the model' if name in ours else 'its rebuilt copy'}"
    for name, module in ours.items():
        where = f"'{name}'" if name else "the model"
        if type(module) is not type(theirs[name]):
            return f"{where} is a {type(module).__name__}, rebuilt a {type(theirs[name]).__name__}"
        mine, rebuilt = _settings(module), _settings(theirs[name])
        for key in sorted(mine.keys() | rebuilt.keys()):
            if mine.get(key) != rebuilt.get(key):
                return f"{key} of {where} is {mine.get(key)!r}, rebuilt {rebuilt.get(key)!r}"
    for patch in patches_of(model):
        if patch not in patches_of(other):
            return f"{patch}, its rebuilt copy has not"
    shapes, rebuilt_shapes = (
        {key: tuple(value.shape) for key, value in part.state_dict().items()}
        for part in (model, other)
    )
    for key in sorted(shapes.keys() | rebuilt_shapes.keys()):
        if shapes.get(key) != rebuilt_shapes.get(key):
            return f"weight '{key}' has shape {shapes.get(key)}, rebuilt {rebuilt_shapes.get(key)}"
    return None


def _settings(module: nn.Module) -> dict[str, object]:
    """Return the public attributes of a module that are plain values."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _STATE and _is_plain(value)
    }


def _is_plain(value: object) -> bool:
    """Return whether a value can be compared and means a setting."""
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return isinstance(value, bool | int | float | str) and not isinstance(value, Tensor)
