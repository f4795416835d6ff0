"""A model as a folder: `config.json` says how it is built, `model.safetensors` holds its weights."""

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lrformer._version import __version__
from lrformer.core import ConfigError, LRFormerError, UnsupportedModelError, from_record, to_record
from lrformer.core.new_file import open_beside
from lrformer.interop.convert import Conversion, conversion_of, reapply
from lrformer.interop.kinds import KINDS
from lrformer.interop.structure import first_difference

SCHEMA = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


class ModelFileError(LRFormerError, OSError):
    """A file of a model that could not be written; what stood there before is still there."""


def save(
    model: nn.Module, folder: str | os.PathLike[str], *, model_kwargs: dict[str, Any] | None = None
) -> Path:
    """Return `folder`, in which `model` now stands whole; `load` brings it back.

    The model may be one of this package's, or a timm or transformers model, converted or not. Before
    anything is written it is rebuilt without memory from what is about to be written, and refused if a
    module, a setting or the shape of a weight differs. Each file is replaced in one step, weights first.

    Args:
        model_kwargs: Arguments of the model's constructor that cannot be read off the model, such as
            `{"drop_path_rate": 0.1}`.
    """
    folder = _checked_folder(folder)
    if model_kwargs is not None and not isinstance(model_kwargs, dict):
        raise ConfigError(
            f"model_kwargs ({model_kwargs!r}) must be a dict, such as {{'drop_path_rate': 0.1}}."
        )
    kind = next((name for name in KINDS if KINDS[name].recognizes(model)), None)
    if kind is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be saved: it is none of the kinds {', '.join(KINDS)}. Keep its state_dict(), and "
            "load that into a model that is built in the same way."
        )
    conversion = conversion_of(model)
    config = {
        "schema": SCHEMA,
        "versions": _versions(),
        "kind": kind,
        "model": KINDS[kind].describe(model, model_kwargs or {}),
        "conversion": None if conversion is None else to_record(conversion),
    }
    config = json.loads(json.dumps(config))
    _check_rebuilds(model, config)

    from safetensors.torch import save as to_bytes

    weights = to_bytes(_plain_tensors(model))
    config["weights"] = {"sha256": hashlib.sha256(weights).hexdigest()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace_file(folder / WEIGHTS_FILE, weights)
        _replace_file(folder / CONFIG_FILE, (json.dumps(config, indent=1) + "\n").encode())
    except OSError as error:
        raise ModelFileError(
            f"the model cannot be saved in {folder} ({error.strerror or error}); make room, or choose "
            "a folder that can be written."
        ) from error
    return folder


def _checked_folder(folder: Any) -> Path:
    """Return where a model is to be saved, or raise if something else is there: a trained run is not written over."""
    if not isinstance(folder, str | os.PathLike):
        raise ConfigError(f"folder ({folder!r}) must be a path, such as 'models/mine'.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; a model is saved as a folder. Choose another name.")
    if (path / CONFIG_FILE).is_file():
        try:
            kind = json.loads((path / CONFIG_FILE).read_bytes()).get("kind")
        except (OSError, ValueError, AttributeError):
            kind = None
        if kind not in KINDS:
            raise ConfigError(
                f"{path} has a {CONFIG_FILE} that is not a saved model's (kind {kind!r}); choose "
                "another folder."
            )
    elif path.is_dir() and any(map(_is_foreign, path.iterdir())):
        raise ConfigError(
            f"{path} holds other files and no saved model; choose a new or an empty folder."
        )
    return path


def _is_foreign(path: Path) -> bool:
    """Return whether a file is more than what a crash left of a first save, or what a system hides."""
    return path.name != WEIGHTS_FILE and not path.name.startswith(".")


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """Return the model that `save` wrote into `folder`, on the CPU and in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    weights = _read(folder / WEIGHTS_FILE)
    if hashlib.sha256(weights).hexdigest() != config["weights"]["sha256"]:
        raise ConfigError(
            f"{folder / WEIGHTS_FILE} is not the file that {CONFIG_FILE} belongs to: its checksum "
            f"differs. It is damaged or was replaced; save the model again."
        )

    from safetensors.torch import load as from_bytes

    tensors = from_bytes(weights)
    with torch.random.fork_rng(devices=[]):
        model = _rebuild(config)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in tensors:
            tensor.data = tensor.data.to(tensors[name].dtype)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ConfigError(
            f"the weights in {folder} do not fit the model that was built again; they were saved with "
            f"{config.get('versions')}. {error}"
        ) from error
    return model.eval()


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the `config.json` of a saved model, or raise if it is missing, damaged or too new."""
    path = Path(folder) / CONFIG_FILE
    content = _read(path)
    try:
        config = json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); save the model again.") from error
    schema = config.get("schema") if isinstance(config, dict) else None
    if not isinstance(schema, int):
        raise ConfigError(f"{path} has no schema number; lrformer's save did not write it.")
    if schema > SCHEMA:
        raise ConfigError(
            f"{path} has schema {schema}; this lrformer ({__version__}) reads up to {SCHEMA}. "
            f"Update lrformer."
        )
    if config.get("kind") == "run":
        raise ConfigError(
            f"{path} is that of a run, and not of a saved model; open it by lrformer.load."
        )
    missing = [key for key in ("kind", "model", "conversion", "weights") if key not in config]
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(missing)}; save the model again.")
    return config


def _versions() -> dict[str, str]:
    """Return the versions of the packages that a saved model depends on, as far as they are installed."""
    versions = {"lrformer": __version__}
    for package in ("torch", "timm", "transformers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _rebuild(config: dict[str, Any]) -> nn.Module:
    """Return the model that `config` describes, with random weights."""
    model = KINDS[config["kind"]].build(config["model"])
    if config["conversion"] is not None:
        model = reapply(model, from_record(Conversion, config["conversion"]))
    return model


def _check_rebuilds(model: nn.Module, config: dict[str, Any]) -> None:
    """Raise unless `config` gives back the structure of `model`."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            rebuilt = _rebuild(config)
    except Exception as error:
        difference = f"building it again failed ({type(error).__name__}: {error})"
    else:
        difference = first_difference(model, rebuilt)
    if difference is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be saved: {difference}. Give the missing arguments of its "
            f"constructor, e.g. save(model, folder, model_kwargs={{'drop_path_rate': 0.1}})."
        )


def _plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the `state_dict` as contiguous tensors on the CPU that share no memory."""
    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in seen:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        tensors[name] = plain
    return tensors


def _replace_file(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and move it there in one step."""
    handle, temporary = open_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _read(path: Path) -> bytes:
    """Return the content of a file of a saved model."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is not a folder; give the one that save wrote.")
    if not path.is_file():
        raise ConfigError(
            f"{path.parent} has no {path.name}; a saved model has {CONFIG_FILE} and {WEIGHTS_FILE}."
        )
    return path.read_bytes()
