"""`lrformer train`: from a data set to a run folder."""

import dataclasses
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lrformer.data import AugmentConfig
    from lrformer.training import TrainConfig

# Names, so that --help needs no torch; the config knows what they stand for.
AUGMENTATIONS = {
    "none": {},
    "basic": {"crop": "shift", "flip": True},
    "trivial": {"crop": "shift", "flip": True, "policy": "trivial"},
    "rand": {"crop": "shift", "flip": True, "policy": "rand"},
    "strong": {
        "crop": "shift",
        "flip": True,
        "policy": "trivial",
        "erase_probability": 0.25,
        "mixup_alpha": 0.2,
        "cutmix_alpha": 1.0,
    },
}
# Settings of the run, and not of its method, by the option that they have.
OWN_OPTIONS = {"true_positive_rate": "--true-positive-rate", "score": "--score"}
TruePositiveRate = Annotated[
    float | None,
    typer.Option(
        help="Share of validation inputs that the threshold accepts.", show_default="0.95"
    ),
]
Score = Annotated[
    str | None,
    typer.Option(
        help="Of the threshold: entropy, energy, msp, variance, ..., or chosen: the one that finds outliers made of "
        "validation images best.",
        show_default="the method's own",
    ),
]
EPILOG = (
    "Example: lrformer train digits --method lrformer --out runs/digits --epochs 30. "
    "Run the same command again after any interruption: it goes on where it stopped."
)


def train(
    data: Annotated[
        str,
        typer.Argument(
            help="A data set (digits, two_moons, cifar10, cifar100, svhn, imagenet), a folder of "
            "images (train/ val/ test/, one directory a class), or of arrays (train-x.npy, train-y.npy, ...)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run goes on.")],
    model: Annotated[
        str | None,
        typer.Option(help="A name from `lrformer models`.", show_default="by the data"),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="What makes the uncertainty: lrformer (needs LRSA), deterministic, mc_dropout, mcd_gp, "
            "dnn_sn, dnn_gp, duq, due, sngp or deep_ensemble.",
            show_default="lrformer",
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from a timm model, converted, or from the folder of a run or of a saved model.",
        ),
    ] = None,
    pretrained: Annotated[
        bool, typer.Option(help="Take the weights of the timm model, not only its architecture.")
    ] = True,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Begin with the paper's settings: depth6, depth12 (and _native), a3_pretrain, "
            "a3_finetune; or with best or best_gp, ours for small images. Options given beside it win."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Times through the data.", show_default="30")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Images of one step.",
            show_default="128, less on fewer than 4,096 images: 32 steps an epoch, but 8 images at least",
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adamw, sgd, lamb or muon.", show_default="adamw")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate after warm-up.",
            show_default="0.001 (sgd 0.01, muon 0.003); 0.3 of it from trained weights",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(help="Of weight matrices only.", show_default="0.05 (sgd 0.0005)"),
    ] = None,
    warmup_epochs: Annotated[
        float | None,
        typer.Option(help="Rise of the learning rate.", show_default="5, or a tenth of the epochs"),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(help="Largest gradient norm; 0 does not clip.", show_default="1.0"),
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="Pieces of a batch, to save memory.", show_default="1")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="Another attention, such as dot_product.", show_default="the model's"),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="The scalar of LRSA.", show_default="the model's")
    ] = None,
    model_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the model's config; repeatable."),
    ] = None,
    method_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of the method's config; repeatable."),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(AUGMENTATIONS)}.", show_default="none"),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="cross_entropy or binary_cross_entropy.", show_default="cross_entropy"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share spread over all classes.", show_default="0.0")
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(
            help="balanced: every class counts alike in the loss, however many images it has.",
            show_default="none",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="last, or best: the epoch with the lowest calibrated validation NLL.",
            show_default="last",
        ),
    ] = None,
    ema: Annotated[
        float | None,
        typer.Option(
            help="Decay of an average of the weights, kept instead; 0 is off.", show_default="off"
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of weights, order, augmentation and validation cut.")
    ] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train this many seeds, each in OUT/seed-N; the paper has 10."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the images.", show_default="the model's")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="1 or 3, to convert files.", show_default="the files'")
    ] = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable",
            help="Leave out image files that cannot be decoded, and say how many; also whenever the run is evaluated.",
        ),
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(help="Only these, by name or number: cat,dog.", show_default="all"),
    ] = None,
    val_fraction: Annotated[
        float | None, typer.Option(help="Cut off for validation.", show_default="0.1")
    ] = None,
    true_positive_rate: TruePositiveRate = None,
    score: Score = None,
    root: Annotated[
        str | None,
        typer.Option(help="Where prepared data are kept.", show_default="~/.cache/lrformer"),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, float32 or bfloat16.", show_default="auto: bfloat16 on a GPU"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compile_model: Annotated[
        bool,
        typer.Option("--compile/--no-compile", help="Compile the backbone and the augmentation."),
    ] = False,
    cuda_graph: Annotated[
        bool, typer.Option(help="Capture the step on a GPU where that is possible.")
    ] = True,
    validate_every: Annotated[
        int, typer.Option(help="Epochs between two looks at the validation split.")
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train a model on DATA and keep it, with its posterior and its threshold, in the folder OUT."""
    from lrformer.core import ConfigError
    from lrformer.recipes import seeded_runs
    from lrformer.recipes.optimization import shortened
    from lrformer.training import RuntimeConfig
    from lrformer.training import train as run_training
    from lrformer.training.backbone import is_timm_name
    from lrformer.training.seed_folders import seed_folder

    config = _begin(recipe, data, method)
    if epochs is not None:
        config = shortened(config, epochs)  # with a warm-up that fits, unless one is given
    if model is not None and is_timm_name(start):
        raise ConfigError(
            f"--model ({model}) and --from ({start}) name two models; leave out one of them."
        )
    overrides = {**config.model_overrides, **parse_options(model_option, "--model-option")}
    named = {"attention": attention, "alpha": alpha}
    overrides |= {name: value for name, value in named.items() if value is not None}
    optimization = given(
        name=optimizer,
        lr=lr,
        weight_decay=weight_decay,
        warmup_epochs=warmup_epochs,
        clip_norm=clip_norm,
    )
    if clip_norm == 0:
        optimization["clip_norm"] = None
    if ema == 0:
        config = dataclasses.replace(config, ema_decay=None)
    config = dataclasses.replace(
        config,
        model_overrides=overrides,
        method_overrides={
            **config.method_overrides,
            **parse_method_options(method_option),
        },
        optimizer=dataclasses.replace(config.optimizer, **optimization),
        pretrained=pretrained,
        seed=seed,
        skip_unreadable=skip_unreadable,
        **given(
            model=model,
            start=start,
            batch_size=batch_size,
            accumulate=accumulate,
            augment=_augmentation(augment),
            loss=loss,
            label_smoothing=label_smoothing,
            ema_decay=ema or None,
            image_size=image_size,
            channels=channels,
            classes=_classes(classes),
            val_fraction=val_fraction,
            true_positive_rate=true_positive_rate,
            score=score,
            root=root,
            precision=precision,
            class_weights=class_weights,
            keep=keep,
        ),
    )
    runtime = RuntimeConfig(
        device=device,
        compile=compile_model,
        cuda_graph="auto" if cuda_graph else False,
        validate_every=validate_every,
        tensorboard=tensorboard,
        quiet=quiet,
    )
    for one in seeded_runs(config, seeds or 1):
        folder = out if seeds is None else seed_folder(out, one.seed)
        report_run(folder, run_training(one, folder, runtime=runtime))


def _begin(recipe: str | None, data: str, method: str | None) -> "TrainConfig":
    """Return the config that the options are laid over."""
    from lrformer.methods import METHODS
    from lrformer.recipes import create_experiment
    from lrformer.training import TrainConfig

    method = method or "lrformer"
    METHODS[method]  # raises for a wrong name, with the nearest right one
    if recipe is None:
        return TrainConfig(data=data, method=method)
    return create_experiment(recipe, data=data, method=method).config


def given(**options: Any) -> dict[str, Any]:
    """Return the options that the user wrote."""
    return {name: value for name, value in options.items() if value is not None}


def parse_options(pairs: list[str] | None, flag: str) -> dict[str, Any]:
    """Return `NAME=VALUE` pairs; a value is JSON or a number as people write it where it can be, else the text."""
    from lrformer.core import ConfigError

    parsed: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"{flag} '{pair}' must be NAME=VALUE, such as depth=6.")
        parsed[name] = _value(text)
    return parsed


def parse_method_options(pairs: list[str] | None) -> dict[str, Any]:
    """Return the settings of a method; what is none of them, and has an option of its own, is said to have one."""
    from lrformer.core import ConfigError

    parsed = parse_options(pairs, "--method-option")
    for name in parsed.keys() & OWN_OPTIONS.keys():
        raise ConfigError(
            f"{name} is no setting of the method; give it as {OWN_OPTIONS[name]} {parsed[name]}."
        )
    return parsed


def _value(text: str) -> Any:
    """Return JSON, or what it has no way to write: `.5`, `1.`, `+1`, `True`; anything else is text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        is_decimal = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, flags=re.IGNORECASE)
        if is_decimal is None:
            return text
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _augmentation(name: str | None) -> "AugmentConfig | None":
    from lrformer.core import ConfigError
    from lrformer.core.registry import did_you_mean
    from lrformer.data import AugmentConfig

    if name is None:
        return None
    if name not in AUGMENTATIONS:
        raise ConfigError(
            f"unknown augmentation '{name}'.{did_you_mean(name, AUGMENTATIONS)} "
            f"Known: {', '.join(AUGMENTATIONS)}."
        )
    return AugmentConfig(**AUGMENTATIONS[name])


def _classes(text: str | None) -> tuple[int | str, ...] | None:
    """Return classes from `cat,dog` or `0,1,2`; what is a number and no name is known where the data are."""
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def report_run(folder: Path, run: Any) -> None:
    """Say where the run is and what it is worth; one process of many says it."""
    from accelerate.state import PartialState

    from lrformer.training.metrics_file import read_training
    from lrformer.training.run_folder import describe_temperature

    if not PartialState().is_main_process:
        return
    figures = read_training(folder)["validation_calibrated"]
    typer.echo(
        f"{folder}: validation accuracy {figures['accuracy']:.2%}, nll {figures['nll']:.4f}, "
        f"ece {figures['ece']:.4f}; temperature {describe_temperature(run)}, "
        f"{run.decision.score} threshold {run.threshold:.4f}"
    )
