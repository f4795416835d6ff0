"""Every bound beside the map it speaks of, ready for `attack`: registered by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lrformer.core import Registry
from lrformer.lipschitz import attention, layers, lrsa, maps
from lrformer.lipschitz.attack import Target
from lrformer.lipschitz.bound import Norm


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One setting to attack: tokens, widths, heads and the strength (alpha, tau or the like)."""

    n: int
    e: int
    d: int
    strength: float
    num_heads: int = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """Random free tensors and the target built from them."""

    free: tuple[Tensor, ...]
    target: Target


Maker = Callable[[Shape, Norm, torch.Generator], Case]
TARGETS: Registry[Maker] = Registry("bound to attack")
# A bound that is stated in one norm only; all others have both.
ONE_NORM: dict[str, tuple[Norm, ...]] = {
    "lrsa_inf": ("max",),
    "anchored_l2_centered": ("F",),
    "anchored_l2_centered_star": ("F",),
}


def _gaussian(*shape: int, generator: torch.Generator) -> Tensor:
    scale = shape[0] ** -0.5 if len(shape) > 1 else 1.0
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def _sigma(weight: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(weight, ord=2)


def _start(
    shape: Shape, generator: torch.Generator, *widths: tuple[int, int]
) -> tuple[Tensor, ...]:
    x = torch.randn(shape.n, shape.e, dtype=torch.float64, generator=generator)
    return (x, *(_gaussian(*width, generator=generator) for width in widths))


def _tied_lrsa(
    normalizer: maps.Normalizer, bracket, *, floor: float = 0.0, eps: float = 0.0
) -> Maker:
    def make(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
        def target(free: Sequence[Tensor]):
            x, w, w_v = free
            bound = bracket(_sigma(w), shape, norm) * _sigma(w_v)
            settings: dict[str, Any] = {"alpha": shape.strength, "floor": floor, "eps": eps}
            return (lambda y: maps.lrsa(y, w, w, w_v, normalizer=normalizer, **settings)), x, bound

        widths = ((shape.e, shape.d), (shape.e, shape.e))
        return Case(free=_start(shape, generator, *widths), target=target)

    return make


def _paper_bracket(sigma: Tensor, shape: Shape, norm: Norm):
    return lrsa.lrsa_tied(sigma, alpha=shape.strength, n=shape.n, norm=norm)


TARGETS.register("lrsa_tied")(_tied_lrsa("paper", _paper_bracket))
TARGETS.register("lrsa_tied_eps")(_tied_lrsa("paper", _paper_bracket, eps=1e-2))
TARGETS.register("lrsa_tied_floor")(
    _tied_lrsa(
        "floor",
        lambda s, shape, norm: lrsa.lrsa_tied_floor(
            s, alpha=shape.strength, floor=0.4, n=shape.n, norm=norm
        ),
        floor=0.4,
    )
)
TARGETS.register("lrsa_m")(
    _tied_lrsa("m", lambda s, shape, norm: lrsa.lrsa_m(s, tau=shape.strength, n=shape.n, norm=norm))
)
TARGETS.register("lrsa_inf")(
    _tied_lrsa(
        "inf", lambda s, shape, norm: lrsa.lrsa_inf(s, alpha=shape.strength, n=shape.n, norm=norm)
    )
)


def _untied_lrsa(normalizer: maps.Normalizer, bracket, *, floor: float = 0.0) -> Maker:
    def make(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
        def target(free: Sequence[Tensor]):
            x, w_q, w_k, w_v = free
            bound = bracket(w_q, w_k, shape, norm) * _sigma(w_v)
            settings: dict[str, Any] = {"alpha": shape.strength, "floor": floor}
            return (
                (lambda y: maps.lrsa(y, w_q, w_k, w_v, normalizer=normalizer, **settings)),
                x,
                bound,
            )

        # Injective W_Q needs at least as many columns as rows.
        d = max(shape.d, shape.e) if normalizer == "paper" else shape.d
        widths = ((shape.e, d), (shape.e, d), (shape.e, shape.e))
        return Case(free=_start(shape, generator, *widths), target=target)

    return make


TARGETS.register("lrsa_floor")(
    _untied_lrsa(
        "floor",
        lambda w_q, w_k, shape, norm: lrsa.lrsa_floor(
            _sigma(w_q), _sigma(w_k), alpha=shape.strength, floor=0.4, n=shape.n, norm=norm
        ),
        floor=0.4,
    )
)
TARGETS.register("lrsa_injective")(
    _untied_lrsa(
        "paper",
        lambda w_q, w_k, shape, norm: lrsa.lrsa_floor(
            _sigma(w_q),
            _sigma(w_k),
            alpha=shape.strength,
            floor=torch.linalg.svdvals(w_q)[-1],
            n=shape.n,
            norm=norm,
        ),
    )
)
TARGETS.register("lrsa_nested")(
    _untied_lrsa(
        "paper",
        lambda w_q, w_k, shape, norm: lrsa.lrsa_nested(
            _sigma(w_q),
            _sigma(w_k),
            kappa=_sigma(torch.linalg.pinv(w_q) @ w_k),
            alpha=shape.strength,
            n=shape.n,
            norm=norm,
        ),
    )
)
TARGETS.register("lrsa_symmetric")(
    _untied_lrsa(
        "symmetric",
        lambda w_q, w_k, shape, norm: lrsa.lrsa_symmetric(
            _sigma(w_q),
            _sigma(w_k),
            _sigma(torch.cat([w_q, w_k], dim=1)),
            alpha=shape.strength,
            n=shape.n,
            norm=norm,
        ),
    )
)


def _biased_lrsa(normalizer: maps.Normalizer, *, is_shared: bool = False) -> Maker:
    """Return untied heads with biases; shared ones leave the distances as they are, but not Z."""

    def make(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
        settings: dict[str, Any] = {"alpha": shape.strength, "n": shape.n, "norm": norm}

        def target(free: Sequence[Tensor]):
            x, w_q, w_k, w_v, b_q, b_k = free
            b_k = b_q if is_shared else b_k
            if normalizer == "floor":
                gap = 0.0 if is_shared else torch.linalg.vector_norm(b_q - b_k)
                biases: dict[str, Any] = {
                    "query_bias": torch.linalg.vector_norm(b_q),
                    "bias_gap": gap,
                }
                sigmas = (_sigma(w_q), _sigma(w_k))
                bracket = lrsa.lrsa_floor_biased(*sigmas, floor=0.4, **biases, **settings)
            else:
                sigmas = (_sigma(w_q), _sigma(w_k), _sigma(torch.cat([w_q, w_k], dim=1)))
                bracket = lrsa.lrsa_symmetric(*sigmas, has_biases=True, **settings)
            options: dict[str, Any] = {
                "alpha": shape.strength,
                "floor": 0.4,
                "b_q": b_q,
                "b_k": b_k,
            }
            return (
                (lambda y: maps.lrsa(y, w_q, w_k, w_v, normalizer=normalizer, **options)),
                x,
                bracket * _sigma(w_v),
            )

        start = _start(shape, generator, *((shape.e, shape.d),) * 2, (shape.e, shape.e))
        biases = (_gaussian(shape.d, generator=generator) for _ in range(2))
        return Case(free=(*start, *biases), target=target)

    return make


TARGETS.register("lrsa_floor_biased")(_biased_lrsa("floor"))
TARGETS.register("lrsa_floor_shared_bias")(_biased_lrsa("floor", is_shared=True))
TARGETS.register("lrsa_symmetric_biased")(_biased_lrsa("symmetric"))


@TARGETS.register("lrsa_multi_head")
def _multi_head(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
    """Return several tied heads and an output matrix."""
    h, e, d = shape.num_heads, shape.e, shape.d

    def target(free: Sequence[Tensor]):
        x, w_q, w_v, w_o = free
        qs, vs, outs = w_q.chunk(h, dim=1), w_v.chunk(h, dim=1), w_o.chunk(h, dim=0)
        bound = attention.multi_head(
            [_paper_bracket(_sigma(w), shape, norm) for w in qs],
            sigma_v=[_sigma(w) for w in vs],
            sigma_o=_sigma(w_o),
            sigma_vo=[_sigma(v @ o) for v, o in zip(vs, outs, strict=True)],
        )

        def function(y: Tensor) -> Tensor:
            pairs = zip(qs, vs, strict=True)
            parts = [maps.lrsa(y, w, w, v, alpha=shape.strength) for w, v in pairs]
            return torch.cat(parts, dim=-1) @ w_o

        return function, x, bound

    widths = ((e, h * d), (e, h * d), (h * d, e))
    return Case(free=_start(shape, generator, *widths), target=target)


@TARGETS.register("l2_multi_head")
def _l2(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
    """Return several L2 heads whose values are functions of their queries."""
    h, e, d = shape.num_heads, shape.e, shape.d

    def target(free: Sequence[Tensor]):
        x, w, t, w_o = free
        ws, ts, outs = w.chunk(h, dim=1), t.chunk(h, dim=1), w_o.chunk(h, dim=0)

        def head(u: Tensor, v: Tensor):
            sigmas = (_sigma(u), _sigma(v), _sigma(u @ v))
            return attention.l2_attention(*sigmas, n=shape.n, norm=norm)

        bound = attention.multi_head_l2(
            [head(u, v) for u, v in zip(ws, ts, strict=True)],
            sigma_o=_sigma(w_o),
            effective_heads=[head(u, v @ o) for u, v, o in zip(ws, ts, outs, strict=True)],
        )

        def function(y: Tensor) -> Tensor:
            parts = [maps.l2_attention(y, u, v) for u, v in zip(ws, ts, strict=True)]
            return torch.cat(parts, dim=-1) @ w_o

        return function, x, bound

    widths = ((e, h * d), (d, h * d), (h * d, e))
    return Case(free=_start(shape, generator, *widths), target=target)


def _full_prior(shape: Shape, generator: torch.Generator) -> Tensor:
    prior = torch.rand(shape.n, shape.n, dtype=torch.float64, generator=generator) + 0.1
    return prior + shape.strength * torch.eye(shape.n, dtype=torch.float64)


def _star_prior(shape: Shape, _: torch.Generator) -> Tensor:
    """Return a prior whose tokens look at themselves and at the first one only: the heaviest column."""
    prior = torch.eye(shape.n, dtype=torch.float64)
    prior[1:, 0] = shape.strength
    return prior


def _anchored(
    shape: Shape,
    norm: Norm,
    generator: torch.Generator,
    *,
    is_centered: bool = False,
    make_prior: Callable[[Shape, torch.Generator], Tensor] = _full_prior,
) -> Case:
    n, h = shape.n, shape.num_heads
    prior = make_prior(shape, generator)
    center = attention.anchored_center(prior) if is_centered else 0.0
    bound = (
        attention.centered_anchored_l2_attention(prior)
        if is_centered
        else attention.anchored_l2_attention(prior, norm=norm, num_heads=h)
    )

    def target(free: Sequence[Tensor]):
        q, log_temperature = free
        temperature = log_temperature.exp()
        return (
            (lambda y: maps.anchored_l2_attention(y, prior, temperature) - center * y),
            q,
            bound,
        )

    q = torch.randn(n, h * shape.d, dtype=torch.float64, generator=generator)
    return Case(free=(q, _gaussian(h, generator=generator)), target=target)


TARGETS.register("anchored_l2")(_anchored)
TARGETS.register("anchored_l2_centered")(partial(_anchored, is_centered=True))
TARGETS.register("anchored_l2_star")(partial(_anchored, make_prior=_star_prior))
TARGETS.register("anchored_l2_centered_star")(
    partial(_anchored, is_centered=True, make_prior=_star_prior)
)


@TARGETS.register("scsa")
def _scsa(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
    """Return one cosine head with normalized values."""
    settings = {"tau": shape.strength, "nu": 1.0, "eps": 0.1}

    def target(free: Sequence[Tensor]):
        x, w_q, w_k, w_v = free
        sigmas = (_sigma(w_q), _sigma(w_k), _sigma(w_v))
        bound = attention.scsa(*sigmas, n=shape.n, norm=norm, **settings)
        return (lambda y: maps.scsa(y, w_q, w_k, w_v, **settings)), x, bound

    widths = ((shape.e, shape.d), (shape.e, shape.d), (shape.e, shape.e))
    return Case(free=_start(shape, generator, *widths), target=target)


@TARGETS.register("dot_product_ball")
def _dot_product(shape: Shape, norm: Norm, generator: torch.Generator) -> Case:
    """Return one dot-product head on tokens held in a ball of radius sqrt(strength)."""

    def target(free: Sequence[Tensor]):
        x, w_q, w_k, w_v = free
        radius = torch.linalg.vector_norm(x, dim=-1).amax()
        bracket = attention.dot_product_on_ball(
            _sigma(w_q @ w_k.T), radius=radius, head_dim=shape.d, n=shape.n, norm=norm
        )
        return (lambda y: maps.dot_product(y, w_q, w_k, w_v)), x, bracket * _sigma(w_v)

    widths = ((shape.e, shape.d), (shape.e, shape.d), (shape.e, shape.e))
    return Case(free=_start(shape, generator, *widths), target=target)


@TARGETS.register("layer_norm")
def _layer_norm(shape: Shape, _norm: Norm, generator: torch.Generator) -> Case:
    """Return LayerNorm with a free gain."""
    eps = 1e-2

    def target(free: Sequence[Tensor]):
        x, gamma = free
        width = gamma.numel()
        bound = _sigma(torch.diag(gamma) - gamma[:, None] / width) / eps**0.5
        return (lambda y: torch.nn.functional.layer_norm(y, (width,), gamma, None, eps)), x, bound

    return Case(
        free=(*_start(shape, generator), _gaussian(shape.e, generator=generator)), target=target
    )


@TARGETS.register("mlp_gelu")
def _mlp(shape: Shape, _norm: Norm, generator: torch.Generator) -> Case:
    """Return a GELU MLP with free weights and biases."""

    def target(free: Sequence[Tensor]):
        x, w_1, w_2, bias = free
        bound = layers.mlp(_sigma(w_1), _sigma(w_2))
        return (lambda y: torch.nn.functional.gelu(y @ w_1 + bias) @ w_2), x, bound

    start = _start(shape, generator, (shape.e, shape.d), (shape.d, shape.e))
    return Case(free=(*start, _gaussian(shape.d, generator=generator)), target=target)
