"""A traced predictor as one file that runs without this package: which kinds of file there are, and how one is traced."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.core.registry import did_you_mean
from lrformer.interop import onnx, pt2
from lrformer.interop.torch_warnings import silenced

# Every format is a module with the same three functions: `check_installed`, `to_bytes` and `open_file`.
FORMATS: Mapping[str, ModuleType] = {".onnx": onnx, ".pt2": pt2}


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictorFile:
    """A predictor that was read from its file.

    Attributes:
        about: what the file says of itself.
        predict: from a batch of raw inputs to the outputs by name.
    """

    about: dict[str, Any]
    predict: Callable[[Shaped[np.ndarray, "b ..."]], dict[str, np.ndarray]]


def format_of(path: Path) -> ModuleType:
    """Return the format that the suffix of `path` asks for.

    Raises:
        ConfigError: for another suffix.
        MissingExtraError: when the packages of the format are not installed.
    """
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"{path} has the suffix '{path.suffix}', by which the format is chosen; it must be one of "
            f"{', '.join(FORMATS)}.{did_you_mean(path.suffix, FORMATS)}"
        )
    form = FORMATS[path.suffix]
    form.check_installed()
    return form


def open_predictor(path: Path) -> PredictorFile:
    """Return the predictor in the file `path`, run by the packages of its format alone."""
    about, predict = format_of(path).open_file(path)
    return PredictorFile(about=about, predict=predict)


def trace(predictor: nn.Module, example: Shaped[Tensor, "b ..."], *, name: str) -> ExportedProgram:
    """Return the graph of `predictor`, in which the first dimension of its one input is free.

    Args:
        example: a batch of at least two; a batch of one would be taken for a constant.
        name: of the model, for the error.

    Raises:
        UnsupportedModelError: for a model that torch cannot trace.
    """
    try:
        with silenced():
            program = torch.export.export(
                predictor, (example,), dynamic_shapes=({0: Dim("batch")},), strict=False
            )
    except Exception as error:  # tracing raises whatever it meets
        raise UnsupportedModelError(
            f"{name} cannot be written as a graph: torch.export stops at {first_line(error)}. Predict with the "
            "run itself (lrformer predict), or train another model."
        ) from error
    # Where the code of this machine stands is nobody's business, and the example is of no use.
    for part in program.graph_module.modules():
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
    program.example_inputs = None
    return program


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says; torch says much more."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
