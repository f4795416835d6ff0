"""What torch says of its own code while it traces, writes and reads a graph; what comes of it is compared with the run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_SPEAKERS = r"(torch|onnx|onnxscript|onnx_ir)(\.|$)"
# torch 2.11 uses what it has deprecated itself; said in the name of the module that copies it.
_OWN_DEPRECATION = r"`isinstance\(treespec, LeafSpec\)` is deprecated"


@contextmanager
def silenced() -> Iterator[None]:
    """Run the block without the warnings that torch and its ONNX packages give of their own code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=_SPEAKERS)
        warnings.filterwarnings("ignore", message=_OWN_DEPRECATION)
        yield
