"""A traced predictor as a file of torch.export, which torch alone runs."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from lrformer.interop.torch_warnings import silenced

# Under this name the file says what it is.
ABOUT = "lrformer.json"


def check_installed() -> None:
    """Do nothing: torch is always there."""


def to_bytes(program: ExportedProgram, about: dict[str, Any]) -> bytes:
    """Return the content of a .pt2 file, weights and `about` in it."""
    file = io.BytesIO()
    with silenced():
        torch.export.save(program, file, extra_files={ABOUT: json.dumps(about)})
    return file.getvalue()


def open_file(
    path: Path,
) -> tuple[dict[str, Any], Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """Return what the file says of itself, and its predictor on the CPU."""
    extra: dict[str, Any] = {ABOUT: ""}
    with silenced():
        module = torch.export.load(path, extra_files=extra).module()

    def predict(raw: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = module(torch.from_numpy(raw))
        return {name: value.numpy() for name, value in outputs.items()}

    return json.loads(extra[ABOUT]), predict
