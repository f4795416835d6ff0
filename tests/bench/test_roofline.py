import pytest
import torch

from lrformer.bench.attention_contenders import draw_inputs
from lrformer.bench.place import Place
from lrformer.bench.roofline import Ceilings, Floor, floor_of, measure_ceilings
from lrformer.bench.shapes import AttentionShape, parse_shapes
from lrformer.core import ConfigError

SHAPE = AttentionShape(batch=2, num_heads=3, num_tokens=5, head_dim=4)


@pytest.mark.parametrize("attention", ["dot_product", "lrsa", "l2"])
def test_the_least_bytes_are_those_of_the_tensors_that_go_in_and_out(attention):
    inputs = draw_inputs(SHAPE, torch.bfloat16, Place("cpu"), 0)
    leaves = list(inputs.leaves(attention).values())
    row_sums = 4 * 2 * 3 * 5
    one = inputs.q.nbytes
    forward = sum(leaf.nbytes for leaf in leaves) + one + row_sums
    # Going back, x is read nowhere but at its largest token.
    read = [leaf for leaf in leaves if leaf is not inputs.x] + [inputs.grad, inputs.grad]
    backward = sum(t.nbytes for t in read) + sum(leaf.nbytes for leaf in leaves) + row_sums
    assert floor_of(attention, SHAPE, 2, backward=False).num_bytes == forward
    assert floor_of(attention, SHAPE, 2, backward=True).num_bytes == forward + backward


def test_operations_are_two_for_each_multiply_add_of_seven_products():
    product = 2 * (2 * 3) * 5 * 5 * 4
    assert floor_of("lrsa", SHAPE, 2, backward=False).num_operations == 2 * product
    assert floor_of("lrsa", SHAPE, 2, backward=True).num_operations == 7 * product


def test_a_call_at_the_ceiling_reaches_all_of_it():
    ceilings = Ceilings(bytes_per_second=1e9, operations_per_second=1e12)
    floor = Floor(num_bytes=2_000_000, num_operations=10**9)
    shares = ceilings.fractions(floor, 2.0)
    assert shares == {"of_bandwidth": pytest.approx(1.0), "of_operations": pytest.approx(0.5)}


def test_ceilings_are_measured_and_recorded():
    ceilings, record = measure_ceilings(Place("cpu"), torch.float32)
    assert record["copy_gb_per_second"] == ceilings.bytes_per_second / 1e9 > 0.1
    assert record["matmul_tflop_per_second"] == ceilings.operations_per_second / 1e12 > 1e-4


def test_shapes_are_taken_at_every_width():
    found = [str(shape) for shape in parse_shapes(("2x3x5", "1X1X7"), (8, 16))]
    assert found == ["2x3x5x8", "2x3x5x16", "1x1x7x8", "1x1x7x16"]


@pytest.mark.parametrize("text", ["2x3", "2x3x5x4", "axbxc", "2x0x5", "2x-1x5", ""])
def test_a_shape_that_is_none_is_refused_with_an_example(text):
    with pytest.raises(ConfigError, match="such as 64x6x1024"):
        parse_shapes((text,), (8,))


def test_a_width_below_one_is_refused():
    with pytest.raises(ConfigError, match=r"widths \(0\)"):
        parse_shapes(("2x3x5",), (0,))
