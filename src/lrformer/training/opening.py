"""`lrformer.load`: whatever kind of folder this package wrote, opened and ready to predict."""

import os
from pathlib import Path

import torch
from torch import nn

from lrformer.core import ConfigError
from lrformer.interop import load as load_model
from lrformer.training.run_folder import CONFIG_FILE, Run, as_device, is_run, load_run


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Run | nn.Module:
    """Return what the folder `path` holds: a trained `Run`, or a model that `lrformer.save` wrote.

    Which of the two it is stands in its `config.json`, under `kind`.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"path ({path!r}) must be the folder of a run or of a saved model.")
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{folder} is the folder of neither a run nor a saved model: there is no {CONFIG_FILE} in it."
        )
    if is_run(folder):
        return load_run(folder, device=device)
    return load_model(folder).to(as_device(device))
