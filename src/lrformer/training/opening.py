"""`lrformer.save` and `lrformer.load`: whatever this package makes as a folder, and back, ready to predict."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrformer.core import ConfigError, NotFittedError, choose_device, from_record, to_record
from lrformer.heads import RandomFeatureGPConfig
from lrformer.interop import load as load_model
from lrformer.interop import save as save_model
from lrformer.interop.hub import WEIGHTS_FILE
from lrformer.training.atomic_files import (
    checksum,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from lrformer.training.posterior import PosteriorClassifier
from lrformer.training.run_config import check_there, is_run
from lrformer.training.run_folder import POSTERIOR_FILE, Run, load_run

POSTERIOR_CONFIG_FILE = "posterior.json"
SCHEMA = 1
_WAY_OUT = "save the model again."


def save(
    model: nn.Module, folder: str | os.PathLike[str], *, model_kwargs: dict[str, Any] | None = None
) -> Path:
    """Return `folder`, in which `model` now stands whole; `load` brings it back.

    The model is one of this package's, a timm or transformers model, converted or not, or what `fit_posterior` made of
    one: then the posterior lies beside the model, and `lrformer.interop.load` opens the model without it.

    Args:
        model_kwargs: Arguments of the model's constructor that cannot be read off the model, such as
            `{"drop_path_rate": 0.1}`.
    """
    if not isinstance(model, PosteriorClassifier):
        path = save_model(model, folder, model_kwargs=model_kwargs)
        _forget_posterior(path)
        return path
    if model.needs_posterior:
        raise NotFittedError("the posterior is not fitted; call fit_posterior before saving.")
    path = save_model(model.model, folder, model_kwargs=model_kwargs)
    _forget_posterior(path)
    write_tensors(path / POSTERIOR_FILE, model.head.state_dict())
    # Last: without it the folder is that of the model alone.
    record = {
        "schema": SCHEMA,
        "classifier": model.classifier_name,
        "config": to_record(model.head.config),
        "files": {name: _checksum(path / name) for name in (WEIGHTS_FILE, POSTERIOR_FILE)},
    }
    write_json(path / POSTERIOR_CONFIG_FILE, record)
    return path


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Run | nn.Module:
    """Return what the folder `path` holds: a trained `Run`, or a model that `lrformer.save` wrote.

    Which of the two it is stands in its `config.json`, under `kind`.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"path ({path!r}) must be the folder of a run or of a saved model.")
    folder = Path(path)
    check_there(folder)
    if is_run(folder):
        return load_run(folder, device=device)
    model = load_model(folder)
    if (folder / POSTERIOR_CONFIG_FILE).is_file():
        model = _with_posterior(model, folder)
    return model.to(choose_device(device))


def _with_posterior(model: nn.Module, folder: Path) -> PosteriorClassifier:
    path = folder / POSTERIOR_CONFIG_FILE
    record = read_json(path, way_out=_WAY_OUT)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        found = record.get("schema") if isinstance(record, dict) else None
        raise ConfigError(
            f"{path} has schema {found!r}, and this version reads {SCHEMA}; update lrformer, or {_WAY_OUT}"
        )
    for name, expected in record["files"].items():
        if _checksum(folder / name) != expected:
            raise ConfigError(
                f"{folder / name} is not the file that {path.name} belongs to: its checksum differs; {_WAY_OUT}"
            )
    with torch.random.fork_rng(devices=[]):
        fitted = PosteriorClassifier(model, from_record(RandomFeatureGPConfig, record["config"]))
    if fitted.classifier_name != record["classifier"]:
        raise ConfigError(
            f"the classifier of the model in {folder} is {fitted.classifier_name}, and the posterior was fitted to what "
            f"{record['classifier']} sees; {_WAY_OUT}"
        )
    fitted.head.load_state_dict(read_tensors(folder / POSTERIOR_FILE)[0])
    return fitted.eval()


def _forget_posterior(folder: Path) -> None:
    for name in (POSTERIOR_CONFIG_FILE, POSTERIOR_FILE):
        (folder / name).unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    if not path.is_file():
        raise ConfigError(f"{path} is missing; {_WAY_OUT}")
    return checksum(path.read_bytes())
