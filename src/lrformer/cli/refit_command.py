"""`lrformer refit`: another posterior, temperature and threshold on the weights of a finished run."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from lrformer.cli.train_command import (
    OWN_OPTIONS,
    Score,
    TruePositiveRate,
    given,
    parse_method_options,
    report_run,
)


def refit(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    method_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Of the method's config, of what acts after training; repeatable.",
        ),
    ] = None,
    true_positive_rate: TruePositiveRate = None,
    score: Score = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where the run's data lie now, if they have moved.",
            show_default="as in the run",
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(help="Where prepared data are kept.", show_default="as in the run"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Fit the posterior of RUN anew with other settings, on the same data; nothing is trained, RUN stays as it is.

    What may differ are the settings that act after training: of any Gaussian process those of its posterior (ridge,
    mean_field_factor, ...), of one that is fitted after training (head=fitted, as in the recipe best) all.

    Example: lrformer refit runs/sngp --out runs/sngp-20 --method-option mean_field_factor=20
    """
    from lrformer.core import ConfigError
    from lrformer.data import DATASETS
    from lrformer.training import RuntimeConfig, train
    from lrformer.training.run_config import read_run_config

    there = read_run_config(place).train
    config = dataclasses.replace(
        there,
        data=data or there.data,
        root=root or there.root,
        method_overrides={
            **there.method_overrides,
            **parse_method_options(method_option),
        },
        **given(true_positive_rate=true_positive_rate, score=score),
    )
    if dataclasses.replace(config, data=there.data, root=there.root) == there:
        raise ConfigError(
            f"no setting differs from those of {place}, and the new run would be the same; name one with "
            f"--method-option NAME=VALUE, or with {' or '.join(OWN_OPTIONS.values())}."
        )
    if data is None and there.data not in DATASETS and not Path(there.data).expanduser().is_dir():
        raise ConfigError(
            f"the data of {place} are no longer in {there.data}; name the place where they lie now with --data PLACE."
        )
    runtime = RuntimeConfig(device=device)
    report_run(out, train(config, out, runtime=runtime, weights_of=place))
