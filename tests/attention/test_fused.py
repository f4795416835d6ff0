"""The fused backend is really fused, and compiling it changes nothing."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lrformer.attention import ATTENTIONS, LRSA, l2_attention, lrsa_attention, scsa_attention
from tests.attention.inputs import projections, tokens
from tests.tolerance import assert_close

DISTANCE_FUNCTIONS = {
    "lrsa": lambda q, k, v, x, **more: lrsa_attention(q, k, v, x, alpha=100.0, **more),
    "l2": lambda q, k, v, x, **more: l2_attention(q, k, v, **more),
    "scsa": lambda q, k, v, x, **more: scsa_attention(q, k, v, **more),
}


@pytest.fixture(autouse=True)
def _forget_compiled_graphs() -> None:
    torch.compiler.reset()


class LargestTensor(TorchDispatchMode):
    """Record the operators that run and the largest tensor that any of them makes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators.add(str(func))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, Tensor):
                self.num_elements = max(self.num_elements, part.numel())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", ["lrsa", "l2"])
@pytest.mark.parametrize("tie_qk", [True, False])
def test_auto_takes_the_flash_kernel_and_never_holds_a_matrix_of_weights(
    name, dtype, padded, tie_qk
):
    num_tokens = 512
    x = tokens("gauss", 1, num_tokens, 16).to(dtype)
    q, k, v = projections(x, 1, tie_qk=tie_qk)
    q = q.requires_grad_()
    mask = (torch.arange(num_tokens) > 500).unsqueeze(0) if padded else None
    with LargestTensor() as seen:
        out = DISTANCE_FUNCTIONS[name](q, q if tie_qk else k, v, x, key_padding_mask=mask)
        out.float().square().sum().backward()
    assert any("flash_attention_for_cpu" in operator for operator in seen.operators)
    assert seen.num_elements <= num_tokens * 32
    with LargestTensor() as seen:
        DISTANCE_FUNCTIONS[name](q, k, v, x, key_padding_mask=mask, backend="reference")
    assert seen.num_elements >= num_tokens * num_tokens


@pytest.mark.unhooked
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_every_attention_is_one_graph(name):
    layer = ATTENTIONS[name]().build(16, 2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=False)
    x = torch.randn(2, 9, 16)
    mask = torch.tensor([[False] * 9, [False] * 6 + [True] * 3])
    assert_close(compiled(x), layer(x), 1e-6)
    assert_close(compiled(x, key_padding_mask=mask), layer(x, key_padding_mask=mask), 1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(compiled(x), layer(x), 1e-6)


def _loss_and_gradients(function, q: Tensor, v: Tensor, x: Tensor) -> list[Tensor]:
    leaves = [part.detach().clone().requires_grad_() for part in (q, v, x)]
    out = function(leaves[0], leaves[0], leaves[1], leaves[2])
    gradients = torch.autograd.grad(out.float().square().sum(), leaves)
    return [out.detach(), torch.cat([gradient.flatten() for gradient in gradients])]


@pytest.mark.unhooked
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 2, 17, 65, 197, 1024])
def test_compiled_lrsa_equals_eager(num_tokens, dtype):
    compiled = torch.compile(
        lambda q, k, v, x: lrsa_attention(q, k, v, x, alpha=100.0), fullgraph=True, dynamic=False
    )
    for kind in ("gauss", "offset", "zero"):
        x = tokens(kind, 1, num_tokens, 32)
        q, _, v = (part.to(dtype) for part in projections(x, 2, tie_qk=True))
        eager = _loss_and_gradients(
            lambda q, k, v, x: lrsa_attention(q, k, v, x, alpha=100.0), q, v, x.to(dtype)
        )
        for ours, theirs in zip(
            _loss_and_gradients(compiled, q, v, x.to(dtype)), eager, strict=True
        ):
            assert_close(ours, theirs, 1e-4 if dtype == torch.float32 else 5e-2)


@pytest.mark.gpu
@pytest.mark.unhooked
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("backend", ["triton", "sdpa", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", [17, 64, 65, 196, 197, 200, 256, 1024])
@pytest.mark.parametrize("tie_qk", [True, False])
def test_compiled_lrsa_equals_eager_on_the_gpu(num_tokens, dtype, backend, tie_qk):
    """torch 2.11 miscompiles a broadcast row norm at 196, 197 and 200 tokens (docs/paper.md)."""
    layer = LRSA(384, 6, tie_qk=tie_qk, backend=backend).cuda().to(dtype)
    x = tokens("offset", 8, num_tokens, 384).to("cuda", dtype)

    def run(module) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        out = module(leaf)
        return [
            out.detach(),
            *torch.autograd.grad(out.float().square().sum(), [leaf, layer.qkv.weight]),
        ]

    for ours, theirs in zip(run(torch.compile(layer, dynamic=False)), run(layer), strict=True):
        assert_close(ours.cpu(), theirs.cpu(), 1e-3 if dtype == torch.float32 else 5e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_acts_on_what_all_values_share(dtype):
    x = tokens("gauss", 1, 6, 8).to(dtype)
    q, _, v = projections(x, 2, tie_qk=True)
    torch.manual_seed(0)
    ones = torch.ones_like(v)
    spread = {
        backend: torch.stack(
            [
                lrsa_attention(q, q, ones, x, alpha=1.0, dropout_p=0.5, backend=backend).float()
                for _ in range(300)
            ]
        ).std(0)
        for backend in ("reference", "sdpa")
    }
    assert_close(spread["sdpa"].mean(), spread["reference"].mean(), 0.1)


@pytest.mark.parametrize("is_autocast", [False, True])
def test_tokens_far_apart_stay_finite_in_float16(is_autocast):
    generator = torch.Generator().manual_seed(0)
    q, k, v = 200 * torch.randn(3, 1, 1, 6, 8, generator=generator)
    padding = torch.tensor([[False] * 4 + [True] * 2])
    expected = l2_attention(q, k, v, key_padding_mask=padding, backend="reference")
    with torch.autocast("cpu", torch.float16, enabled=is_autocast):
        given = (q, k, v) if is_autocast else (q.half(), k.half(), v.half())
        out = l2_attention(*given, key_padding_mask=padding, backend="sdpa")
    assert out.dtype == torch.float16
    assert_close(out.float(), expected, 1e-2)
