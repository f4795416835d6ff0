"""A traced predictor as an ONNX file: the only file that knows onnx, onnxscript and onnxruntime."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.export import ExportedProgram

from lrformer.core import ConfigError, UnsupportedModelError, require_extra
from lrformer.interop.torch_warnings import silenced

EXTRA = "export"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
# Under this name the file says what it is.
ABOUT = "lrformer"
BATCH = "batch"
_MOST_BYTES = 2**31 - 2**20  # of a protobuf message, less what the graph itself takes


def check_installed() -> None:
    """Raise if a package is missing that writing or running the file needs."""
    for package in PACKAGES:
        require_extra(package, extra=EXTRA)


def check_size(num_bytes: int) -> None:
    """Raise for weights that do not fit into one ONNX file."""
    if num_bytes > _MOST_BYTES:
        raise ConfigError(
            f"the weights have {num_bytes / 2**30:.1f} GiB, and one ONNX file holds less than 2; write a .pt2 file."
        )


def to_bytes(program: ExportedProgram, about: dict[str, Any]) -> bytes:
    """Return the content of an ONNX file, weights and `about` in it."""
    check_installed()
    check_size(sum(t.numel() * t.element_size() for t in program.state_dict.values()))
    try:
        with silenced():
            written: Any = torch.onnx.export(
                program.run_decompositions({torch.ops.aten.special_entr.default: _entr}),
                (),
                dynamo=True,
                verbose=False,
                input_names=[str(name) for name in program.graph_signature.user_inputs],
                output_names=_output_names(program),
            )
            model = written.model_proto
    except Exception as error:  # a converter raises whatever it meets
        raise UnsupportedModelError(
            f"the model cannot be written as ONNX ({_reason(error)}); write a .pt2 file, which has torch's own operators."
        ) from error
    _tidy(model)
    model.metadata_props.add(key=ABOUT, value=json.dumps(about))
    return model.SerializeToString()


def open_file(
    path: Path,
) -> tuple[dict[str, Any], Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """Return what the file says of itself, and its predictor on the CPU."""
    runtime: Any = require_extra("onnxruntime", extra=EXTRA)
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    names = [output.name for output in session.get_outputs()]

    def predict(raw: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(names, {given.name: raw}), strict=True))

    return json.loads(session.get_modelmeta().custom_metadata_map[ABOUT]), predict


def _entr(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return `-p log p`, 0 at 0: torch 2.11 breaks its own rewriting of it, by a number beside a tensor in `where`."""
    return torch.where(values == 0, torch.zeros_like(values), -values * values.log())


def _output_names(program: ExportedProgram) -> list[str]:
    """Return the keys of the dict that the traced module returns, in its order."""
    spec = program.call_spec.out_spec
    assert spec is not None
    return list(spec.context)


def _tidy(model: Any) -> None:
    """Leave out what the exporter notes about its own work, and give the free dimension its name."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
    del graph.value_info[:]  # shapes in between, which a runtime works out by itself
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH


def _reason(error: Exception) -> str:
    """Return the innermost cause in one line: the outer ones tell how to report to torch."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
