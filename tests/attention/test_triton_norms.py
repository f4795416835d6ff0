"""What a coefficient that is made of the norm of q gives back to it: by the kernels, against float64."""

import pytest
import torch
from torch import Tensor

from lrformer.attention import lrsa_attention
from lrformer.attention.backends import norm_kernels, resolve_backend
from tests.attention.kernel_runs import (
    BOUND,
    DEVICE,
    DTYPES,
    draw,
    needs_kernels,
    norm_error,
    results,
)

pytestmark = [pytest.mark.unhooked, pytest.mark.kernel]


@needs_kernels
@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        ({}, True),
        ({"name": "reference"}, False),
        ({"name": "sdpa"}, False),
        ({"name": "auto"}, DEVICE == "cuda"),
        ({"dropout_p": 0.1}, False),
        ({"is_padded": True}, False),
        ({"is_untied": True}, False),
        ({"dtype": torch.float32}, False),
        ({"autocast": torch.bfloat16}, False),
        ({"width": 160}, False),
    ],
    ids=str,
)
def test_the_norm_of_q_is_left_to_the_kernels_only_where_they_see_the_same_q(change, is_taken):
    change = {"name": "triton", "dropout_p": 0.0, **change}
    mask = torch.zeros(2, 8, dtype=torch.bool) if change.pop("is_padded", False) else None
    dtype, autocast = change.pop("dtype", torch.float16), change.pop("autocast", None)
    _, q, k, v, _ = draw("gauss", 8, change.pop("width", 16), dtype)
    k = k if change.pop("is_untied", False) else q
    name = change.pop("name")
    with torch.autocast(DEVICE, autocast, enabled=autocast is not None):
        assert (
            norm_kernels(name, q, k, v, key_padding_mask=mask, **change) is not None
        ) == is_taken


@needs_kernels
@pytest.mark.parametrize(("num_tokens", "is_short"), [(1100, True), (150, False)])
def test_heads_of_many_steps_get_the_whole_gradient_of_their_norm(
    num_tokens, is_short, monkeypatch
):
    """The last program adds it 1,024 rows of 16 columns at a time, the pass of its own 64."""
    operators = resolve_backend("triton").operators
    from lrformer.attention.backends.triton import launching

    monkeypatch.setattr(operators, "SHORT_ELEMENTS", 65536 if is_short else 0)
    rows = {"BLOCK_M": 128, "BLOCK_N": 128} if DEVICE == "cpu" else {}
    monkeypatch.setattr(launching, "FIXED", {**(launching.FIXED or {}), **rows})
    x, q, _, _, grad = draw("gauss", num_tokens, 16, torch.float16, heads=1)
    # Values that grow with their token, so that the norm matters to every row.
    x, q, v, grad = x[:1], q[:1], 2 * q[:1], (grad + q)[:1]

    def call(backend: str):
        return lambda q, v, x: lrsa_attention(q, q, v, x, alpha=300.0, backend=backend)

    exact = results(call("reference"), *(p.double() for p in (q, v, x)), grad=grad)
    for actual, expected in zip(results(call("triton"), q, v, x, grad=grad), exact, strict=True):
        assert norm_error(actual, expected) < 2 * BOUND[torch.float16]


@needs_kernels
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    "settings",
    [
        {"normalizer": "paper"},
        {"normalizer": "symmetric", "length_free": True},
        {"normalizer": "floor", "floor": 1e-3},
        {"normalizer": "floor", "floor": 4.0},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
@pytest.mark.parametrize("is_short", [True, False])
def test_a_coefficient_gives_its_gradient_to_everything_that_it_is_made_of(
    settings, dtype, is_short, monkeypatch
):
    """Values that grow with their token: sharper weights change the output a lot, and so does the norm of q."""
    if not is_short:
        monkeypatch.setattr(resolve_backend("triton").operators, "SHORT_ELEMENTS", 0)
    x, q, _, _, grad = draw("gauss", 19, 16, dtype)
    v, grad = q * 2, grad + q
    alpha = torch.tensor([60.0, 90.0], device=DEVICE)
    is_free = settings.get("length_free", False)

    def call(backend: str):
        def attend(q: Tensor, v: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
            alpha = alpha / 19**0.5 if is_free else alpha
            return lrsa_attention(q, q, v, x, alpha=alpha, backend=backend, **settings)

        return attend

    parts = (q, v, x, alpha)
    exact = results(call("reference"), *(part.double() for part in parts), grad=grad)
    ours = results(call("triton"), *parts, grad=grad)
    names = ("out", "q", "v", "x", "alpha")
    for name, actual, expected in zip(names, ours, exact, strict=True):
        bound = (5 if name in ("x", "alpha") else 1) * BOUND[dtype]
        assert norm_error(actual, expected) < bound, name


@needs_kernels
@pytest.mark.parametrize("blank", ["q", "x"])
def test_a_sample_whose_queries_or_tokens_are_zero_has_finite_gradients(blank):
    x, q, _, v, grad = draw("gauss", 9, 16, torch.float16)
    (q if blank == "q" else x)[0] = 0

    def call(q: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return lrsa_attention(q, q, v, x, alpha=100.0, backend="triton")

    assert all(torch.isfinite(part).all() for part in results(call, q, v, x, grad=grad))
