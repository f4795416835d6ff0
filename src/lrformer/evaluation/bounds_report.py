"""What `lrformer.bounds` gives back: a table, a product, radii, and words about what they mean."""

import math
from dataclasses import dataclass, field
from typing import Any

from lrformer.core import to_record
from lrformer.lipschitz import Bound, Chain, Distortion
from lrformer.models.certified import Certificate

# Above this a change of one part in a million of the input may move a logit by one.
VACUOUS_ABOVE = 1e6

_SOUND = (
    "A sound constant L holds for every pair of inputs, in the norm of its column, in evaluation "
    "mode and exact arithmetic: |f(x) - f(y)| <= L |x - y|."
)
_MEASURED = (
    "A measured figure was met at the given inputs: the true constant is at least as large. It "
    "guarantees nothing at other inputs."
)
_PRINTED = "A printed figure is the paper's formula, shown for comparison; the package trusts none."
_CONFIDENCE = (
    "A Lipschitz constant of the logits does not bound confidence: logits may still grow with the "
    "distance from the data."
)
NOT_CERTIFIABLE = (
    "No prediction has a certified radius: the constants are of the mean logits, and predictions are means over samples, "
    "shrink every class by a variance of its own, or are not known to follow them."
)
NO_CLASSES = (
    "No prediction has a certified radius: the outputs are not logits of two classes or more."
)
GUARANTEES = (_SOUND, _MEASURED, _PRINTED, _CONFIDENCE)


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """The constants of one module; `measured` is the largest local constant met, a lower bound.

    `local` is a sound constant in the Frobenius norm on the balls that a ball around an input is mapped
    into, the largest over the inputs; None where no radius was given.
    `smallest_ratio` is min Z / M over samples and heads (zero is where untied LRSA jumps) and
    `entropy` the mean entropy of the attention weights in nats; both only for our attention layers.
    """

    name: str
    kind: str
    frobenius: Bound
    max_token: Bound
    printed: Bound | None = None
    measured: float | None = None
    smallest_ratio: float | None = None
    entropy: float | None = None
    local: float | None = None


@dataclass(frozen=True, kw_only=True)
class DepthPoint:
    """Bound and measurement from the input up to one place: the sound one as a decimal logarithm.

    `local` is the largest of the sound constants on balls around the inputs. All in the Frobenius norm.
    """

    name: str
    log10_sound: float
    measured: float | None
    local: float | None = None


@dataclass(frozen=True, kw_only=True)
class LocalBounds:
    """Sound constants of the logits on the L2 ball of `radius` around each input.

    `radii` are those within which a prediction cannot change, none larger than `radius`; none are given where predictions
    do not follow the logits, or there are no two of them.
    """

    radius: float
    constants: tuple[float, ...]
    radii: tuple[float, ...]

    @property
    def num_held(self) -> int:
        """Return how many predictions cannot change anywhere in their ball."""
        return sum(held >= self.radius for held in self.radii)

    def verdict(self) -> str:
        """Return in words what the constants on the balls are worth."""
        ordered = sorted(self.constants)
        middle = ordered[len(ordered) // 2]
        text = (
            f"Within {self.radius:.3g} of an input (L2, in the units of the model's input) the logits "
            f"are Lipschitz with a constant from {_figure(ordered[0])} to {_figure(ordered[-1])}, median "
            f"{_figure(middle)}: proved, and about these balls alone."
        )
        if self.radii:
            text += (
                f" {self.num_held} of {len(self.radii)} predictions cannot change in their ball."
            )
        if middle > VACUOUS_ABOVE:
            text += (
                " These constants are true but vacuous: with unconstrained weights the balls outgrow "
                "what a LayerNorm or LRSA can bear after a few layers."
            )
        return text


@dataclass(frozen=True, kw_only=True)
class BoundsReport:
    """Lipschitz constants of a model: module by module, in product, and as measured.

    Attributes:
        chain: the constant from input to logits, with one change of norm.
        measured: local constants of the logits at the given inputs, one each; lower bounds.
        margins: how far the largest logit is above the second at these inputs; none, and no radii, where the outputs are
            not logits of two classes or more.
        radii: certified L2 radii of the predictions at these inputs; zeros where there is no constant, or where they are
            not `is_certifiable`.
        local: sound constants on balls around these inputs, where a radius was given.
        certificate: two-sided constants, for certified models only.
        depth: bound against measurement after each block.
        distortions: how features change distances, for each kind of pairs that was given.
        is_certifiable: whether predictions follow the logits that the constants are of. Where they are a mean over
            samples, or every class has a variance of its own, another class may win.
    """

    model: str
    num_tokens: int | None
    rows: tuple[ModuleRow, ...]
    chain: Chain
    depth: tuple[DepthPoint, ...]
    measured: tuple[float, ...] = ()
    margins: tuple[float, ...] = ()
    radii: tuple[float, ...] = ()
    local: LocalBounds | None = None
    certificate: Certificate | None = None
    distortions: dict[str, Distortion] = field(default_factory=dict)
    is_certifiable: bool = True

    @property
    def is_vacuous(self) -> bool:
        """Return whether the product says nothing that could be used."""
        return not self.chain.bound.value <= VACUOUS_ABOVE

    def verdict(self) -> str:
        """Return in words what the product is worth."""
        bound = self.chain.bound
        if math.isinf(self.chain.log10):
            return f"There is no global constant: {bound.reason}."
        size = f"{bound.value:.4g}" if bound.is_finite else f"10^{self.chain.log10:.0f}"
        if self.is_vacuous:
            return (
                f"The global constant {size} is true but vacuous: it certifies no perturbation that "
                "could be represented, let alone seen. Models that are built for a constant that can be used are the "
                "certified ones (lrformer models certified; docs/lipschitz.md says what they cost)."
            )
        text = f"The logits are {size}-Lipschitz in the L2 norm of the input, for all inputs."
        if self.certificate is not None and self.certificate.input_lower > 0:
            text += (
                f" Distances between inputs are kept within {self.certificate.input_lower:.3g} and "
                f"{self.certificate.input_upper:.3g} by the token features."
            )
        return text

    def guarantees(self) -> tuple[str, ...]:
        """Return what the figures do and do not guarantee, one sentence each."""
        return GUARANTEES

    def to_record(self) -> dict[str, Any]:
        """Return the report as JSON values; infinities become the string `inf`."""
        record = _plain(to_record(self))
        record |= {"verdict": self.verdict(), "guarantees": list(self.guarantees())}
        if self.local is not None:
            record["local"]["verdict"] = self.local.verdict()
        return record

    def __str__(self) -> str:
        header = (
            f"{'module':34}{'F':>11}{'max':>11}{'on balls':>11}{'printed':>11}{'measured':>11}  why"
        )
        lines = [f"Lipschitz constants of {self.model}", header]
        for row in self.rows:
            cells = (row.frobenius.value, row.max_token.value)
            printed = "" if row.printed is None else _figure(row.printed.value)
            measured = "" if row.measured is None else _figure(row.measured)
            local = "" if row.local is None else _figure(row.local)
            figures = "".join(f"{_figure(cell):>11}" for cell in cells)
            reason = row.frobenius.reason
            lines.append(f"{row.name:34}{figures}{local:>11}{printed:>11}{measured:>11}  {reason}")
        lines.append(self.verdict())
        if self.measured:
            lines.append(
                f"Measured at {len(self.measured)} inputs: local constants of the logits from "
                f"{min(self.measured):.4g} to {max(self.measured):.4g} (lower bounds)."
            )
        if self.measured and not self.radii:
            lines.append(NO_CLASSES)
        elif self.radii and not self.is_certifiable:
            lines.append(NOT_CERTIFIABLE)
        elif self.radii and not self.is_vacuous:
            ordered = sorted(self.radii)
            lines.append(
                f"Certified L2 radius of a prediction: median {ordered[len(ordered) // 2]:.4g}, "
                f"largest {ordered[-1]:.4g}."
            )
        if self.local is not None:
            lines.append(self.local.verdict())
        for name, kept in self.distortions.items():
            middle = dict(kept.quantiles).get(0.5, math.nan)
            lines.append(
                f"Distances kept over {kept.num_pairs} pairs ({name}): from {kept.smallest:.4g} to "
                f"{kept.largest:.4g}, median {middle:.4g}."
            )
        return "\n".join([*lines, *self.guarantees()])


def _figure(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.4g}"


def _plain(value: Any) -> Any:
    """Return JSON values without the infinities that JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
