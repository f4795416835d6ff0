"""Files that are either whole or not there: JSON and safetensors, written beside their place and moved in one step."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lrformer.core import ConfigError, LRFormerError
from lrformer.core.new_file import open_beside

WAY_OUT_OF_DAMAGE = (
    "it is damaged. Restore it from a copy, or delete it to have made anew what can be."
)
WAY_OUT_OF_CONFIG = "it is damaged. Restore it from a copy, or train into another folder."


class RunFileError(LRFormerError, OSError):
    """A file of a run that could not be written; what stood there before is still there."""


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one."""
    with replacing(path, content):
        pass


@contextmanager
def replacing(path: Path, content: bytes) -> Iterator[Path]:
    """Yield where `content` lies beside `path`, and put it there in one step when the block has ended without an error.

    A link stays one: what it leads to is replaced.
    """
    temporary = None
    path = path.resolve() if path.is_symlink() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = open_beside(path)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
        temporary.replace(path)
    except OSError as error:
        _remove(temporary)
        kept = "; the file that was there is unchanged" if os.path.lexists(path) else ""
        raise RunFileError(
            f"{path} could not be written ({explain(error, path.parent)}){kept}. Make room or choose another folder, then "
            "run the same command again."
        ) from error
    except BaseException:
        _remove(temporary)
        raise


def check_writable(path: Path) -> None:
    """Raise if no file can be put at `path`, before the work whose result it will hold; its folder is made."""
    reason = "it is a folder" if path.is_dir() else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = explain(error, path.parent)
    if reason is not None:
        raise RunFileError(f"{path} cannot be written ({reason}); choose another place.")


def explain(error: OSError, folder: Path) -> str:
    """Return why nothing could be put into `folder`, naming the file that stands where a folder must be."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        for place in (folder, *folder.parents):
            if place.exists() and not place.is_dir():
                return f"{place} is a file and must be a folder"
    return error.strerror or str(error)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON; NaN has no place in JSON and becomes null."""
    text = json.dumps(_finite(value), indent=1, allow_nan=False)
    replace_file(path, f"{text}\n".encode())


def read_json(path: Path, *, way_out: str = WAY_OUT_OF_DAMAGE) -> Any:
    """Return the content of a JSON file, or raise with its name and what then helps."""
    content = _read(path)
    try:
        return json.loads(content)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON ({error}); {way_out}") from error


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors as safetensors; tensors that share memory are written twice."""
    replace_file(path, tensors_as_bytes(tensors, metadata=metadata))


def tensors_as_bytes(
    tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return what `write_tensors` writes: the same bytes for the same tensors, if `metadata` has one entry at most."""
    from safetensors.torch import save

    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        if copy.untyped_storage().data_ptr() in seen:
            copy = copy.clone()
        seen.add(copy.untyped_storage().data_ptr())
        plain[name] = copy
    return save(plain, metadata=dict(metadata or {"format": "pt"}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata; nothing is ever unpickled."""
    with _opened(path) as file:
        # Copies: the file may be replaced while its tensors are in use.
        tensors = {name: torch.clone(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        return tensors, dict(file.metadata() or {})


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; its tensors are not read."""
    with _opened(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    _check_there(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise ConfigError(
            f"{path} is not a safetensors file ({error}); {WAY_OUT_OF_DAMAGE}"
        ) from error


def checksum(content: bytes) -> str:
    """Return a digest by which a file is known again."""
    return hashlib.sha256(content).hexdigest()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _read(path: Path) -> bytes:
    _check_there(path)
    return path.read_bytes()


def _check_there(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a file.")
    if not path.is_file():
        raise ConfigError(f"{path} is missing; {path.parent} is no run folder, or not a whole one.")


def _remove(temporary: Path | None) -> None:
    if temporary is not None:
        temporary.unlink(missing_ok=True)
