"""`lrformer models`: what can be built, and how large it is."""

from typing import Annotated

import typer


def models(
    pattern: Annotated[str, typer.Argument(help="Show only names that contain this.")] = "",
) -> None:
    """List the models that can be created by name, with their number of parameters.

    Example: lrformer models patch4_32
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from lrformer.core import ConfigError
    from lrformer.core.registry import did_you_mean
    from lrformer.models import create_model, list_models

    names = [name for name in list_models() if pattern in name]
    if not names:
        raise ConfigError(
            f"no model's name contains '{pattern}'.{did_you_mean(pattern, list_models())}"
        )
    table = Table("model", "parameters")
    table.columns[1].justify = "right"
    for name in names:
        with torch.device("meta"):
            model = create_model(name)
        table.add_row(name, f"{sum(p.numel() for p in model.parameters()):,}")
    Console().print(table)
