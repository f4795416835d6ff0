"""The Triton kernels under what torch does to functions: compile, export, vmap, torch.func."""

import pytest
import torch
from torch import Tensor

from lrformer.attention import LRSA
from lrformer.attention.backends import resolve_backend
from tests.attention.kernel_runs import BOUND, DEVICE, draw, needs_kernels, norm_error
from tests.tolerance import assert_close

pytestmark = [pytest.mark.unhooked, pytest.mark.kernel]


@needs_kernels
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("tie_qk", [True, False])
def test_compile_export_and_vmap_see_through_the_operators(tie_qk):
    torch.compiler.reset()
    torch.manual_seed(0)
    layer = LRSA(16, 1, tie_qk=tie_qk, backend="triton").to(DEVICE)
    x = torch.randn(1, 17, 16, device=DEVICE, requires_grad=True)
    expected = layer(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    backend = "inductor" if DEVICE == "cuda" else "aot_eager"
    out = torch.compile(layer, fullgraph=True, backend=backend)(x)
    assert_close(out, expected, 1e-4)
    assert_close(torch.autograd.grad(out.square().sum(), x)[0], gradient, 1e-4)

    exported = torch.export.export(layer, (x.detach(),))
    assert any("lrformer" in str(node.target) for node in exported.graph.nodes)
    assert_close(exported.module()(x.detach()), expected, 1e-4)

    members = {name: torch.stack([p, 2 * p]) for name, p in layer.named_parameters()}
    both = torch.vmap(lambda p: torch.func.functional_call(layer, p, (x,)))(members)
    assert_close(both[0], expected, 1e-5)
    doubled = {name: part[1] for name, part in members.items()}
    assert_close(both[1], torch.func.functional_call(layer, doubled, (x,)), 1e-5)


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_reverse_mode_of_torch_func_equals_the_reference(tie_qk):
    """With a batch of one: what vmap does not map over must not be read as if there were more samples."""
    q, k, v = (part[:1] for part in draw("gauss", 3, 2, torch.float16, heads=1)[1:4])
    coefficient = torch.full((1, 1), 0.1, device=DEVICE)
    both = []
    for name in ("triton", "reference"):
        function = resolve_backend(name).squared_distance

        def call(q: Tensor, k: Tensor = k, v: Tensor = v, function=function) -> Tensor:
            return function(q, q if tie_qk else k, v, coefficient)

        gradient = torch.func.grad(lambda q, call=call: call(q).float().square().sum())(q)
        both.append(torch.cat([torch.func.jacrev(call)(q).flatten(), gradient.flatten()]))
    assert norm_error(both[0], both[1].double()) < 2 * BOUND[torch.float16]


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_derivatives_that_the_kernels_do_not_have_raise(tie_qk):
    _, q, k, v, _ = draw("gauss", 3, 16, torch.float32)
    coefficient = torch.ones(2, 2, device=DEVICE)

    def call(q: Tensor) -> Tensor:
        return resolve_backend("triton").squared_distance(q, q if tie_qk else k, v, coefficient)

    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(call, (q,), (q,))
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(call(leaf).square().sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*use_backend"):
        gradient.sum().backward()


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_a_gradient_around_vmap_is_as_good_as_without(tie_qk):
    """Inside vmap no tensor says that a gradient will be asked for; what rounding took is kept all the same."""
    _, q, k, v, grad = draw("gauss", 12, 16, torch.float16, heads=1)
    v = v + 20

    def loss(backend: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        coefficient = torch.full((1, 1), 0.05, device=q.device)
        function = resolve_backend(backend).squared_distance

        def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q = q[None]
            return function(q, q if tie_qk else k[None], v[None], coefficient)[0]

        return (torch.func.vmap(one)(q, k, v) * grad).sum(dtype=torch.float64)

    ours = torch.func.grad(lambda q: loss("triton", q, k, v))(q)
    exact = torch.func.grad(lambda q: loss("reference", q, k.double(), v.double()))(q.double())
    assert norm_error(ours, exact) < 2 * BOUND[torch.float16]
