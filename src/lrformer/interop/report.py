"""What a conversion did: the settings of every layer and how far the outputs moved."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One converted layer.

    `attention` is the relative movement of the attention's output when old and new get the same input;
    `tokens` that of the block's output when the whole models run. Both are norms of the difference over
    norms of the original on the calibration batch, and None without one. `alpha` has one value a head,
    and is empty for attentions without alpha.
    """

    name: str
    alpha: tuple[float, ...]
    attention: float | None
    tokens: float | None


@dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """A conversion layer by layer; `outputs` is the relative movement of the model's own outputs.

    `agreement` is the share of the calibration batch whose largest output is still the same. `has_untied_lrsa` says
    that queries and keys of LRSA are apart under a normalizer that needs them tied for a Lipschitz constant.
    """

    attention: str
    layers: tuple[LayerReport, ...]
    outputs: float | None
    agreement: float | None
    has_untied_lrsa: bool = False

    def __str__(self) -> str:
        width = max([len(layer.name) for layer in self.layers] + [len("outputs")])
        lines = [
            f"converted to {self.attention}; relative movement on the calibration batch",
            f"{'layer':<{width}}  {'attention':>9}  {'tokens':>9}  alpha",
        ]
        for layer in self.layers:
            movement = f"{_percent(layer.attention):>9}  {_percent(layer.tokens):>9}"
            lines.append(f"{layer.name:<{width}}  {movement}  {_range(layer.alpha)}")
        lines.append(f"{'outputs':<{width}}  {'':>9}  {_percent(self.outputs):>9}")
        if self.agreement is not None:
            lines.append(f"same class for {self.agreement:.1%} of the batch")
        else:
            lines.append("no calibration batch was given: nothing was measured")
        if self.has_untied_lrsa:
            lines.append(
                "queries and keys stay apart, which keeps what was learned; so converted, LRSA has no Lipschitz constant "
                "(tie_qk=True has one)"
            )
        return "\n".join(lines)


def _percent(value: float | None) -> str:
    """Return a share as text, a dash where it was not measured."""
    return "-" if value is None else f"{value:.1%}"


def _range(values: tuple[float, ...]) -> str:
    """Return the smallest and the largest of `values`."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
