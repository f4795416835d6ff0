"""`lrformer bench`: what the attention costs, against torch's fused attention and timm's model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrformer.cli.bench_tables import show_attention_row, show_growth, show_models

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    help="Measure speed, memory and error against torch's fused attention and timm's model.",
    no_args_is_help=True,
)

BackendsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Ours to measure; with commas, or repeated.",
        show_default="all that can run",
    ),
]
RepeatsOption = Annotated[int, typer.Option(help="Most samples of each figure.")]
SecondsOption = Annotated[float, typer.Option(help="About how long each figure is measured.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


@app.command("attention", short_help="LRSA beside torch's fused attention.")
def attention(
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHAPE",
            help="batch x heads x tokens, such as 64x6x1024; with commas, or repeated.",
            show_default="256x6x197,64x6x1024,8x12x4096 on a GPU, small ones on a CPU",
        ),
    ] = None,
    widths: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WIDTH",
            help="Head widths; with commas, or repeated.",
            show_default="32,64,128 on a GPU, 32,64 on a CPU",
        ),
    ] = None,
    backends: BackendsOption = None,
    compile_: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile",
            help="Measure compiled code beside plain code.",
            show_default="on a GPU",
        ),
    ] = None,
    growth: Annotated[
        bool, typer.Option(help="Also measure how cost grows with tokens and batch.")
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="bfloat16, float16 or float32.",
            show_default="bfloat16 on a GPU, float32 on a CPU",
        ),
    ] = None,
    repeats: RepeatsOption = 50,
    seconds: SecondsOption = 0.15,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path(
        "runs/bench/attention.json"
    ),
) -> None:
    """Time LRSA, norms and coefficients included, against the fastest of torch's fused attentions.

    The record is written after every shape: run the same command again
    after an interruption, and it goes on with those that are missing.

    Example: lrformer bench attention --shapes 64x6x1024 --widths 64 --backends sdpa
    """
    from lrformer.bench import AttentionBenchConfig, bench_attention

    config = AttentionBenchConfig(
        shapes=_parts(shapes),
        widths=_numbers("widths", widths),
        backends=_parts(backends),
        is_compiled=compile_,
        growth=growth,
        dtype=dtype,
        repeats=repeats,
        seconds=seconds,
        device=device,
    )
    console = _console()
    shown: set[str] = set()

    def add_row(row: dict[str, Any]) -> None:
        if row["part"] == "goal":
            show_attention_row(row, console)
            shown.add(row["key"])

    record = bench_attention(config, out, show=_progress, add_row=add_row)
    for row in record["rows"]:
        if row["part"] == "goal" and row["key"] not in shown:
            show_attention_row(row, console)
    for part in ("tokens", "batch"):
        show_growth([row for row in record["rows"] if row["part"] == part], part, console)
    ceilings = record["ceilings"]
    console.print(
        f"Ceilings measured here: copy {ceilings['copy_gb_per_second']:,.0f} GB/s, "
        f"{ceilings['dtype']} matrix product {ceilings['matmul_tflop_per_second']:,.2f} TFLOP/s."
    )
    console.print(str(out), soft_wrap=True)


CompileOption = Annotated[
    str | None,
    typer.Option(
        "--compile",
        help="What is compiled, for both alike: model, blocks or none.",
        show_default="none on a CPU",
    ),
]
NoCompileOption = Annotated[bool, typer.Option("--no-compile", help="The same as --compile none.")]
DepthOption = Annotated[
    int | None, typer.Option(help="Blocks of both models.", show_default="12, as published")
]
ModelBackendsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Ours to measure; with commas, or repeated.",
        show_default="all that can run but reference",
    ),
]


@app.command("training", short_help="Training steps of a ViT-S/16 beside timm's.")
def training(
    batch: Annotated[
        int | None, typer.Option(help="Images of a step.", show_default="512 on a GPU, 2 on a CPU")
    ] = None,
    backends: ModelBackendsOption = None,
    compile_: CompileOption = None,
    no_compile: NoCompileOption = False,
    depth: DepthOption = None,
    repeats: RepeatsOption = 30,
    seconds: SecondsOption = 2.0,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path(
        "runs/bench/training.json"
    ),
) -> None:
    """Time training steps of lrformer_small_patch16_224 against timm's vit_small_patch16_224.

    Forward, backward and AdamW on one random batch, bfloat16 autocast on a GPU,
    where both models are compiled whole unless --compile says otherwise.
    Models that OUT holds already are not measured again.

    Example: lrformer bench training --batch 256 --backends sdpa,reference
    """
    from lrformer.bench import TrainingBenchConfig, bench_training

    config = TrainingBenchConfig(
        batch=batch,
        backends=_parts(backends),
        compile_way=_way(compile_, no_compile),
        depth=depth,
        repeats=repeats,
        seconds=seconds,
        device=device,
    )
    record = bench_training(config, out, show=_progress)
    show_models(record, out, _console())


@app.command("inference", short_help="Forward passes of a ViT-S/16 beside timm's.")
def inference(
    batch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER",
            help="Images of a pass; with commas, or repeated.",
            show_default="1,64,512 on a GPU, 1,4 on a CPU",
        ),
    ] = None,
    backends: ModelBackendsOption = None,
    compile_: CompileOption = None,
    no_compile: NoCompileOption = False,
    depth: DepthOption = None,
    repeats: RepeatsOption = 50,
    seconds: SecondsOption = 0.5,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="File for the record.")] = Path(
        "runs/bench/inference.json"
    ),
) -> None:
    """Time forward passes of lrformer_small_patch16_224 against timm's vit_small_patch16_224.

    On a GPU both have bfloat16 weights, compiled blocks unless --compile says
    otherwise, and the whole pass is one CUDA graph.
    Rows that OUT holds already are not measured again.

    Example: lrformer bench inference --batch 1,64 --backends sdpa
    """
    from lrformer.bench import InferenceBenchConfig, bench_inference

    config = InferenceBenchConfig(
        batches=_numbers("batch", batch),
        backends=_parts(backends),
        compile_way=_way(compile_, no_compile),
        depth=depth,
        repeats=repeats,
        seconds=seconds,
        device=device,
    )
    record = bench_inference(config, out, show=_progress)
    show_models(record, out, _console())


def _way(chosen: str | None, is_off: bool) -> str | None:
    from lrformer.core import ConfigError

    if chosen not in (None, "none") and is_off:
        raise ConfigError(
            f"compile ({chosen!r}) and no_compile (True) contradict; give one of them."
        )
    return "none" if is_off else chosen


def _console() -> "Console":
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width, and a figure cut short is no figure
        console.width = max(console.width, 160)
    return console


def _progress(text: str) -> None:
    typer.echo(text, err=True)


def _parts(texts: list[str] | None) -> tuple[str, ...] | None:
    """Return what was given with commas or repeated; None if nothing was."""
    if texts is None:
        return None
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def _numbers(name: str, texts: list[str] | None) -> tuple[int, ...] | None:
    from lrformer.core import ConfigError

    parts = _parts(texts)
    if parts is None:
        return None
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise ConfigError(
                f"{name} ({part!r}) must be whole numbers of at least 1, as in 64,128."
            )
    return tuple(map(int, parts))
