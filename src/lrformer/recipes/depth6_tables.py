"""The three tables that are made with one small transformer of depth 6: ablation, attentions, alpha."""

import dataclasses
from typing import Any

from lrformer.recipes.optimization import MODERN, PAPER, with_optimizer
from lrformer.recipes.paper import SAME_GP, alpha_for, depth6
from lrformer.recipes.printed import ABLATION, ALPHA, ATTENTIONS, printed_on, printed_row
from lrformer.recipes.table import TABLES, Table, TableRow

PLAIN = "dot_product"
DEPTH = 6
# Of the M variant, whose alpha is the tau of docs/lipschitz.md: a good start, not tuned.
M_TAU = 16.0
BEST_PRINTED_ALPHA = 100.0
ALPHAS = (1.0, 10.0, 100.0, 500.0, 1000.0)
# The alphas of table 4 belong to 224 pixels: 14 x 14 patches and the class token.
PRINTED_TOKENS = 197
SAME_HEAD = "a linear head for every attention, so that the rows differ in the attention alone."
ON_CIFAR100 = "the paper has this table on CIFAR-100 alone."


@TABLES.register("ablation")
def ablation(
    *,
    data: str = "cifar10",
    optimizer: str | None = None,
    pixels: int = 32,
    alpha: float | None = None,
) -> Table:
    """Return the comparison of methods on one transformer (table 6).

    The paper has no `transformer_gp`: LRFormer's GP head on plain attention, which tells LRSA's share from the head's.
    """
    optimizer = optimizer or PAPER
    rows = []
    for name, title, method, changes in (
        ("transformer", "Transformer", "deterministic", {}),
        ("sngp", "SNGP + Transformer", "sngp", {}),
        ("due", "DUE + Transformer", "due", {}),
        ("transformer_gp", "Transformer, LRFormer's GP head", "dnn_gp", SAME_GP),
        ("lrformer_linear", "LRFormer, linear head", "lrformer", {"head": "linear"}),
        ("lrformer", "LRFormer, GP head", "lrformer", {}),
    ):
        experiment = with_optimizer(depth6(data=data, method=method, pixels=pixels), optimizer)
        config = experiment.config
        if method == "lrformer" and alpha is not None:
            config = _with_attention(config, alpha=alpha)
        config = dataclasses.replace(
            config, method_overrides={**config.method_overrides, **changes}
        )
        rows.append(
            TableRow(
                name=name,
                title=title,
                experiment=dataclasses.replace(experiment, config=config),
                printed=printed_row(ABLATION, data, name),
            )
        )
    return Table(
        name="ablation",
        title="Methods on one transformer",
        depth=DEPTH,
        data=data,
        rows=tuple(rows),
        place="table 6",
        printed_on=printed_on(ABLATION, data),
        baseline="transformer",
        pivot="transformer",
        num_seeds=_num_seeds(pixels),
        variant=_variant(optimizer, pixels, alpha),
    )


@TABLES.register("attentions")
def attentions(
    *,
    data: str = "cifar10",
    optimizer: str | None = None,
    pixels: int = 32,
    alpha: float | None = None,
) -> Table:
    """Return the comparison of attentions under one head (table 3)."""
    optimizer = optimizer or MODERN
    taken = alpha_for(data) if alpha is None else alpha
    best: dict[str, Any] = {"attention": "lrsa", "alpha": BEST_PRINTED_ALPHA}
    rows = [
        ("dot_product", "Dot product", {"attention": PLAIN}),
        ("l2", "L2", {"attention": "l2"}),
        ("scsa", "SCSA", {"attention": "scsa"}),
        ("lrsa", f"LRSA, alpha {taken:g}", {"attention": "lrsa", "alpha": taken}),
        *([] if taken == BEST_PRINTED_ALPHA else [("lrsa_100", "LRSA, alpha 100", best)]),
        (
            "lrsa_m",
            "LRSA, normalizer m",
            {"attention": "lrsa", "normalizer": "m", "alpha": M_TAU},
        ),
    ]
    return Table(
        name="attentions",
        title="Attentions under a linear head",
        depth=DEPTH,
        data=data,
        rows=_attention_rows(rows, ATTENTIONS, data, optimizer, pixels),
        place="table 3",
        printed_on=printed_on(ATTENTIONS, data),
        baseline="dot_product",
        pivot="dot_product",
        num_seeds=_num_seeds(pixels),
        variant=_variant(optimizer, pixels, alpha),
    )


@TABLES.register("alpha")
def alpha_table(*, data: str = "cifar10", optimizer: str | None = None, pixels: int = 32) -> Table:
    """Return the effect of alpha (table 4): as printed, and free of the number of tokens.

    `free_100` has the temperature that the printed 100 has at 224 pixels, whatever the size here.
    """
    optimizer = optimizer or MODERN
    rows = [("dot_product", "Dot product", {"attention": PLAIN})]
    rows += [
        (f"alpha_{value:g}", f"alpha {value:g}", {"attention": "lrsa", "alpha": value})
        for value in ALPHAS
    ]
    rows += [
        (
            f"free_{value:g}",
            f"alpha {value:g} / sqrt({PRINTED_TOKENS}), length-free",
            {"attention": "lrsa", "alpha": value / PRINTED_TOKENS**0.5, "length_free": True},
        )
        for value in ALPHAS
    ]
    return Table(
        name="alpha",
        title="The effect of alpha, linear head",
        depth=DEPTH,
        data=data,
        rows=_attention_rows(rows, ALPHA, data, optimizer, pixels),
        place="table 4",
        printed_on=printed_on(ALPHA, data),
        baseline="dot_product",
        pivot=f"alpha_{BEST_PRINTED_ALPHA:g}",
        num_seeds=_num_seeds(pixels),
        variant=_variant(optimizer, pixels, None),
    )


def _attention_rows(
    rows: Any, printed: Any, data: str, optimizer: str, pixels: int
) -> tuple[TableRow, ...]:
    """Return rows that differ in the attention alone, from (name, title, overrides of the model)."""
    plain = with_optimizer(depth6(data=data, method="deterministic", pixels=pixels), optimizer)
    choices = (*plain.choices, SAME_HEAD, *(() if data == "cifar100" else (ON_CIFAR100,)))
    return tuple(
        TableRow(
            name=name,
            title=title,
            experiment=dataclasses.replace(
                plain, config=_with_attention(plain.config, **overrides), choices=choices
            ),
            printed=printed_row(printed, data, name),
        )
        for name, title, overrides in rows
    )


def _with_attention(config: Any, **overrides: Any) -> Any:
    return dataclasses.replace(config, model_overrides={**config.model_overrides, **overrides})


def _num_seeds(pixels: int) -> int:
    return 3 if pixels == 32 else 1


def _variant(optimizer: str, pixels: int, alpha: float | None) -> dict[str, Any]:
    variant: dict[str, Any] = {"optimizer": optimizer, "pixels": pixels}
    return variant if alpha is None else {**variant, "alpha": alpha}
