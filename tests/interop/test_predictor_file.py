"""Files that run without this package: what cannot become one is refused in a line."""

import pytest
import torch
from torch import Tensor, nn

from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.interop import onnx, pt2
from lrformer.interop.predictor_file import open_predictor, trace

# torch cannot trace the hook that checks shapes.
pytestmark = pytest.mark.unhooked

EXAMPLE = torch.zeros(2, 3)


class Doubling(nn.Module):
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"second": inputs * 2, "first": inputs + 1}


class Sorting(nn.Module):
    """An operation that ONNX has no counterpart of."""

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"value": torch.special.bessel_j0(inputs)}


class Branching(nn.Module):
    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"value": inputs if float(inputs.sum()) > 0 else -inputs}


@pytest.mark.parametrize("form", [onnx, pt2], ids=["onnx", "pt2"])
def test_outputs_keep_their_names_and_their_order_for_any_batch(form, tmp_path):
    path = tmp_path / f"file{'.onnx' if form is onnx else '.pt2'}"
    path.write_bytes(form.to_bytes(trace(Doubling(), EXAMPLE, name="doubling"), {"a": [1.5, "ä"]}))
    opened = open_predictor(path)
    assert opened.about == {"a": [1.5, "ä"]}
    for size in (1, 2, 5):
        outputs = opened.predict(torch.ones(size, 3).numpy())
        assert list(outputs) == ["second", "first"]
        assert outputs["second"].shape == (size, 3)
        assert (outputs["second"] == 2).all()


def test_a_model_that_cannot_be_traced_is_named_with_the_reason(capfd):
    with pytest.raises(
        UnsupportedModelError, match=r"branching cannot be written as a graph.*Data"
    ):
        trace(Branching(), EXAMPLE, name="branching")


def test_an_operation_that_onnx_does_not_have_is_named():
    program = trace(Sorting(), EXAMPLE, name="sorting")
    with pytest.raises(UnsupportedModelError, match=r"as ONNX \(.*bessel_j0.*\.pt2") as raised:
        onnx.to_bytes(program, {})
    assert len(str(raised.value).splitlines()) == 1
    assert pt2.to_bytes(program, {})


def test_weights_that_no_onnx_file_holds_are_refused_before_they_are_converted():
    with pytest.raises(ConfigError, match=r"have 3\.0 GiB.*write a \.pt2"):
        onnx.check_size(3 * 2**30)
    onnx.check_size(2**30)
