"""The Triton kernels against float64: on a GPU, or small and slow through Triton's interpreter.

Without a GPU the whole process must run interpreted (`TRITON_INTERPRET=1`), because Triton decides when it is
imported; `make test` has a run for that. The interpreter cannot multiply bfloat16.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lrformer.attention import LRSA, L2Attention, l2_attention, lrsa_attention, use_backend
from lrformer.attention.backends import resolve_backend
from lrformer.core import ConfigError
from tests.attention import definition
from tests.attention.inputs import KINDS
from tests.attention.kernel_runs import (
    BOUND,
    DEVICE,
    DTYPES,
    IS_INTERPRETED,
    draw,
    needs_kernels,
    norm_error,
    results,
)
from tests.tolerance import assert_close

# Tokens and head widths: whole blocks, a block and a bit, less than a block, widths that are padded.
SIZES = (
    [(197, 64), (64, 32), (1024, 64), (300, 128), (129, 48), (5, 16), (200, 96)]
    if DEVICE == "cuda"
    else [(32, 16), (19, 24), (5, 16)]
)
pytestmark = [pytest.mark.unhooked, pytest.mark.kernel]


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_tokens", "width"), SIZES)
@pytest.mark.parametrize("tie_qk", [True, False])
def test_output_and_gradients_equal_float64(num_tokens, width, dtype, tie_qk):
    _, q, k, v, grad = draw("gauss", num_tokens, width, dtype)
    ours = _coefficient_call("triton", tie_qk)
    coefficient = torch.tensor([[0.3, 0.05], [0.01, 0.1]], device=DEVICE)
    parts = (q, v, coefficient) if tie_qk else (q, k, v, coefficient)
    exact = results(
        _coefficient_call("reference", tie_qk), *(part.double() for part in parts), grad=grad
    )
    names = ("out", "q", "v", "c") if tie_qk else ("out", "q", "k", "v", "c")
    for name, actual, expected in zip(names, results(ours, *parts, grad=grad), exact, strict=True):
        # The gradient of c is a small sum of large terms.
        bound = (5 if name == "c" else 1) * BOUND[dtype]
        assert norm_error(actual, expected) < bound, name


def _coefficient_call(backend: str, tie_qk: bool):
    function = resolve_backend(backend).squared_distance if backend != "triton" else _kernels()
    if tie_qk:
        return lambda q, v, coefficient: function(q, q, v, coefficient)
    return function


def _kernels():
    return resolve_backend("triton").squared_distance


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_hard_tokens_cost_no_more_than_torchs_own_attention_pays(kind, dtype):
    """Half as much again is allowed: a tied token takes gradients as query and as key, rounded together."""
    num_tokens, width = (197, 64) if DEVICE == "cuda" else (19, 16)
    x, q, _, v, grad = draw(kind, num_tokens, width, dtype)

    def lrsa(backend: str):
        return lambda q, v, x: lrsa_attention(q, q, v, x, alpha=100.0, backend=backend)

    exact = results(lrsa("reference"), *(p.double() for p in (q, v, x)), grad=grad)
    ours = results(lrsa("triton"), q, v, x, grad=grad)

    def dot(q: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, v)

    dot_exact = results(dot, q.double(), v.double(), grad=grad)
    yardsticks = map(norm_error, results(dot, q, v, grad=grad), dot_exact)
    rounding = torch.finfo(dtype).eps
    for actual, expected, yardstick in zip(ours[:3], exact[:3], yardsticks, strict=True):
        assert torch.isfinite(actual).all()
        if float(expected.detach().norm()) > 0 and kind != "equal":
            assert norm_error(actual, expected) <= 1.5 * max(yardstick, rounding)
    assert torch.isfinite(ours[3]).all()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("tie_qk", [True, False])
def test_padding_changes_nothing(tie_qk, dtype):
    x, q, k, v, _ = draw("offset", 21, 16, dtype)
    k = q if tie_qk else k
    mask = torch.zeros(2, 21, dtype=torch.bool, device=DEVICE)
    mask[1, 13:] = True
    dirty = [part.clone() for part in (x, q, k, v)]
    for part in dirty[1:]:
        part[1, :, 13:] = float("nan")
    dirty[0][1, 13:] = float("nan")
    if tie_qk:
        dirty[2] = dirty[1]
    x_dirty, *rest = dirty
    out = lrsa_attention(*rest, x_dirty, alpha=50.0, key_padding_mask=mask, backend="triton")
    alone = definition.lrsa(
        *(part.double().cpu() for part in (q, k, v, x)), alpha=50.0, key_padding_mask=mask.cpu()
    )
    assert norm_error(out[0], alone[0]) < BOUND[dtype]
    assert norm_error(out[1, :, :13], alone[1, :, :13]) < BOUND[dtype]


@needs_kernels
def test_a_sample_that_is_all_padding_stays_finite():
    _, q, k, v, grad = draw("gauss", 9, 16, torch.float32)
    mask = torch.zeros(2, 9, dtype=torch.bool, device=DEVICE)
    mask[1] = True
    coefficient = torch.ones(2, 2, device=DEVICE)
    for part in results(
        lambda q, k, v: _kernels()(q, k, v, coefficient, key_padding_mask=mask), q, k, v, grad=grad
    ):
        assert torch.isfinite(part).all()


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("tie_qk", [True, False])
@pytest.mark.parametrize("shared", ["tokens", "values"])
def test_what_all_tokens_or_values_share_costs_the_gradients_nothing(shared, tie_qk, dtype):
    """Twenty times their spread: sums that cancel must do so as their terms were rounded."""
    _, q, k, v, grad = draw("gauss", 19, 16, dtype)
    if shared == "tokens":
        q, k = q + 20, k + 20
    else:
        v = v + 20
    coefficient = torch.full((2, 2), 0.05, device=DEVICE)
    parts = (q, v, coefficient) if tie_qk else (q, k, v, coefficient)
    exact = results(
        _coefficient_call("reference", tie_qk), *(part.double() for part in parts), grad=grad
    )
    ours = results(_coefficient_call("triton", tie_qk), *parts, grad=grad)
    *others, last = (norm_error(*pair) for pair in zip(ours, exact, strict=True))
    assert max(others) < 2 * BOUND[dtype]
    assert last < 5 * BOUND[dtype]  # the gradient of c


@needs_kernels
def test_small_gradients_survive_in_float16():
    _, q, _, v, grad = draw("gauss", 32, 16, torch.float16)
    coefficient = torch.full((2, 2), 1e-3, device=DEVICE)  # all weights near 1/n
    small = grad * 2.0**-13  # over 32 tokens below what float16 keeps in full

    def call(q: Tensor, v: Tensor) -> Tensor:
        return _kernels()(q, q, v, coefficient)

    exact = results(
        lambda q, v: resolve_backend("reference").squared_distance(q, q, v, coefficient.double()),
        q.double(), v.double(), grad=small,
    )  # fmt: skip
    assert norm_error(results(call, q, v, grad=small)[2], exact[2]) < 2e-3


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_a_blank_sample_averages_its_values_whatever_the_bias_of_its_tokens(tie_qk):
    """The tokens are zero, so c is alpha / eps, and every q and k is the bias of the projection."""
    _, q, k, v, grad = draw("equal", 9, 16, torch.float16)
    coefficient = torch.full((2, 2), 1e12, device=DEVICE)
    parts = (q, v, coefficient) if tie_qk else (q, k, v, coefficient)
    out, *gradients = results(_coefficient_call("triton", tie_qk), *parts, grad=grad)
    assert norm_error(out, v.double().mean(-2, keepdim=True).expand_as(v)) < 1e-3
    assert all(torch.isfinite(part).all() for part in gradients)


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_a_coefficient_of_zero_averages_all_values(tie_qk):
    _, q, k, v, _ = draw("gauss", 9, 16, torch.float16)
    out = _kernels()(q, q if tie_qk else k, v, torch.zeros(2, 2, device=DEVICE))
    assert norm_error(out, v.double().mean(-2, keepdim=True).expand_as(v)) < 1e-3


@needs_kernels
def test_no_samples_and_no_tokens_are_no_error():
    _, q, _, v, _ = draw("gauss", 8, 16, torch.float16)
    coefficient = torch.ones(2, 2, device=DEVICE)
    for part in (slice(0), slice(None)), (slice(None), slice(0)):
        samples, rows = part
        few_q = q[samples, :, rows].clone().requires_grad_()
        few_v = v[samples, :, rows]
        out = _kernels()(few_q, few_q, few_v, coefficient[samples])
        out.sum().backward()
        assert out.shape == few_v.shape
        assert few_q.grad is not None
        assert few_q.grad.shape == few_q.shape


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("normalizer", ["paper", "floor", "symmetric", "m"])
@pytest.mark.parametrize("tie_qk", [True, False])
def test_the_module_gives_what_its_reference_gives(normalizer, tie_qk, dtype):
    torch.manual_seed(0)
    layer = LRSA(32, 2, alpha=20.0, normalizer=normalizer, tie_qk=tie_qk).to(DEVICE, dtype)
    x = torch.randn(2, 18, 32, device=DEVICE, dtype=dtype)
    both = []
    for backend, wide in (("triton", dtype), ("reference", torch.float64)):
        layer.to(wide)
        with use_backend(layer, backend):
            leaf = x.to(wide).clone().requires_grad_()
            out = layer(leaf)
            both.append([out, *torch.autograd.grad(out.square().sum(), [leaf, layer.qkv.weight])])
    for ours, theirs in zip(*both, strict=True):
        # In float16 the sum that is differentiated is rounded too.
        assert norm_error(ours, theirs) < (1e-4 if dtype == torch.float32 else 1e-2)


@needs_kernels
def test_l2_attention_uses_the_same_kernels():
    _, q, k, v, _ = draw("offset", 18, 16, torch.float32)
    expected = definition.l2(q.double().cpu(), q.double().cpu(), v.double().cpu())
    assert_close(l2_attention(q, q, v, backend="triton").cpu(), expected, 1e-4)
    expected = definition.l2(q.double().cpu(), k.double().cpu(), v.double().cpu())
    assert_close(l2_attention(q, k, v, backend="triton").cpu(), expected, 1e-4)


@needs_kernels
def test_strided_inputs_are_read_in_place():
    """q and v as the model has them: views of one projection, (b, n, 2, h, d)."""
    packed = torch.randn(2, 17, 2, 2, 16, device=DEVICE, dtype=torch.float16)
    q, v = (part.transpose(1, 2) for part in packed.unbind(2))
    coefficient = torch.full((2, 2), 0.1, device=DEVICE)
    strided = _kernels()(q, q, v, coefficient)
    dense = q.contiguous()
    assert torch.equal(strided, _kernels()(dense, dense, v.contiguous(), coefficient))
    turned = v.mT.contiguous().mT  # even the last dimension is not contiguous
    assert torch.equal(strided, _kernels()(q, q, turned, coefficient))


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_a_large_offset_costs_float32_nothing(tie_qk):
    q, k, v = draw("gauss", 9, 16, torch.float32)[1:4]
    q, k = q + 200, k + 200
    coefficient = torch.full((2, 2), 0.05, device=DEVICE)
    k = q if tie_qk else k
    exact = resolve_backend("reference").squared_distance(
        q.double(), k.double(), v.double(), coefficient.double()
    )
    assert norm_error(_kernels()(q, k, v, coefficient), exact) < BOUND[torch.float32]


@needs_kernels
@pytest.mark.parametrize("tie_qk", [True, False])
def test_what_lies_between_the_heads_is_not_read(tie_qk):
    """Heads of 12 are read in blocks of 16 columns: here the four columns after each are NaN."""
    wide = torch.full((4, 2, 1, 19, 16), float("nan"), device=DEVICE, dtype=torch.float16)
    wide[..., :12] = torch.stack(draw("gauss", 19, 12, torch.float16, heads=1)[1:])
    q, k, v, grad = wide[..., :12]
    coefficient = torch.full((2, 1), 0.1, device=DEVICE)
    gaps = [part.requires_grad_() for part in (q.detach(), k.detach(), v.detach())]
    out = _kernels()(gaps[0], gaps[0] if tie_qk else gaps[1], gaps[2], coefficient)
    needed = gaps[::2] if tie_qk else gaps
    for part in (out, *torch.autograd.grad(out, needed, grad)):
        assert torch.isfinite(part).all()


@needs_kernels
def test_two_runs_give_the_same_bits():
    x, q, _, v, grad = draw("gauss", 33, 16, torch.float16)

    def call(q: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return lrsa_attention(q, q, v, x, alpha=100.0, backend="triton")

    first, second = (results(call, q, v, x, grad=grad) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("attention", [LRSA, L2Attention])
def test_autocast_runs_in_its_own_dtype_and_auto_takes_the_kernels(attention, monkeypatch):
    operators = resolve_backend("triton").operators
    layer = attention(64, 2).cuda()
    x = torch.randn(2, 50, 64, device="cuda")
    seen = []
    real = operators.tied_squared_distance
    monkeypatch.setattr(
        operators, "tied_squared_distance", lambda q, *more: seen.append(q.dtype) or real(q, *more)
    )
    with torch.autocast("cuda", torch.bfloat16):
        out = layer(x)
    assert seen == [torch.bfloat16]
    with use_backend(layer, "reference"):
        assert norm_error(out.float(), layer(x).double()) < 2e-2
    layer(x)  # float32 stays with torch's attention
    assert len(seen) == 1


@needs_kernels
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dropout_p": 0.1}, "has no dropout"),
        ({"is_causal": True}, "no other mask"),
        ({"width": 160}, "wider than 128"),
        ({"dtype": torch.float64}, "no kernel for torch.float64"),
        ({"num_keys": 5}, "as many keys as queries, not 5 and 8"),
        ({"value_width": 12}, "values as wide as the keys, not 12 and 16"),
        ({"unusable": "needs a newer GPU"}, "needs a newer GPU; use backend='auto' or 'sdpa'"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused(change, words, monkeypatch):
    width, dtype = change.pop("width", 16), change.pop("dtype", torch.float32)
    _, q, _, v, _ = draw("gauss", 8, width, dtype)
    k = q[:, :, : change.pop("num_keys", 8)] if "num_keys" in change else q
    v = v[..., : change.pop("value_width", width)]
    monkeypatch.setattr(resolve_backend("triton"), "UNUSABLE", change.pop("unusable", None))
    with pytest.raises(ConfigError, match=words):
        _kernels()(q, k, v, torch.ones(2, 2, device=DEVICE), **change)


@pytest.mark.skipif(IS_INTERPRETED, reason="interpreted, the kernels run on the CPU too")
def test_the_kernels_refuse_a_cpu_tensor():
    q = torch.randn(1, 1, 8, 16)
    with pytest.raises(ConfigError, match="runs on a CUDA device, and q is on cpu"):
        _kernels()(q, q, q, torch.ones(1, 1))
