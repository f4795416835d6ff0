"""Everything that the page of results is made of: each table in each setting, what says most first."""

from dataclasses import dataclass, field

from lrformer.recipes.settings import Settings, make_table
from lrformer.recipes.table import Table, describe_variant

# Of the values that the paper prints, the best on validation at 32 pixels; at 224 it is the paper's own.
ALPHA = 100.0
LOOK_EPOCHS = 15


@dataclass(frozen=True, kw_only=True)
class Part:
    """One table in one setting.

    Attributes:
        table: its name.
        rows: the names of some; None is all.
    """

    table: str
    num_seeds: int
    settings: Settings = field(default_factory=Settings)
    rows: tuple[str, ...] | None = None

    def make(self, data: str) -> Table:
        """Return the table on `data`."""
        return make_table(self.table, data, self.settings)

    def title(self, data: str) -> str:
        """Return the table and its settings, for a reader."""
        return f"{self.table}: {describe_variant(self.make(data).variant)}"


def whole_plan() -> tuple[Part, ...]:
    """Return all parts in the order in which they are made."""
    return (
        Part(table="main", num_seeds=1),
        Part(table="references", num_seeds=1, settings=Settings(epochs=20)),
        _ablation(3, optimizer="modern"),
        _ablation(3, optimizer="paper", weight_decay=0.0),
        Part(table="ablation", num_seeds=1, settings=Settings(pixels=224)),
        _ablation(3, optimizer="paper"),
        Part(table="attentions", num_seeds=3, settings=Settings(epochs=LOOK_EPOCHS)),
        Part(table="alpha", num_seeds=3, settings=Settings(epochs=LOOK_EPOCHS)),
        Part(table="attentions", num_seeds=3),
        Part(
            table="ablation",
            num_seeds=1,
            settings=Settings(epochs=50, optimizer="modern", pixels=224),
        ),
        _ablation(3, epochs=LOOK_EPOCHS, optimizer="modern"),
        _ablation(3, epochs=LOOK_EPOCHS, optimizer="muon"),
        _ablation(3, epochs=LOOK_EPOCHS, optimizer="paper"),
        _ablation(3, epochs=LOOK_EPOCHS, optimizer="paper", weight_decay=0.0),
        *(
            _ablation(
                1,
                rows=("transformer",),
                epochs=LOOK_EPOCHS,
                optimizer="paper",
                weight_decay=decay,
            )
            for decay in (0.0005, 0.005)
        ),
        Part(
            table="ablation",
            num_seeds=1,
            settings=Settings(epochs=LOOK_EPOCHS, pixels=224),
        ),
        Part(
            table="main",
            num_seeds=1,
            settings=Settings(epochs=100, model_options={"widths": [192, 384]}),
            rows=("transformer", "lrformer_gp"),
        ),
        Part(
            table="references",
            num_seeds=1,
            settings=Settings(epochs=20, optimizer="cosine"),
        ),
        Part(table="main", num_seeds=3),
        _ablation(3, optimizer="muon"),
        Part(table="alpha", num_seeds=3),
        Part(table="references", num_seeds=1),
    )


def _ablation(
    num_seeds: int,
    *,
    optimizer: str,
    epochs: int | None = None,
    weight_decay: float | None = None,
    rows: tuple[str, ...] | None = None,
) -> Part:
    """Return the ablation at 32 pixels."""
    settings = Settings(optimizer=optimizer, alpha=ALPHA, epochs=epochs, weight_decay=weight_decay)
    return Part(table="ablation", num_seeds=num_seeds, settings=settings, rows=rows)
