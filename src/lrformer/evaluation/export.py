"""`lrformer.export`: the whole predictor of a run as one file that runs without this package, checked before it is kept."""

import copy
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lrformer.core import ConfigError, LRFormerError, UnsupportedModelError, make_generator
from lrformer.evaluation.export_check import (
    TOLERANCE,
    Agreement,
    DisagreementError,
    check_agreement,
    example_inputs,
)
from lrformer.evaluation.exported_predictor import RunPredictor, describe_predictor
from lrformer.interop.predictor_file import (
    FORMATS,
    first_line,
    format_of,
    open_predictor,
    trace,
)
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.training import Run, load_run
from lrformer.training.atomic_files import check_writable, replacing
from lrformer.training.run_config import check_there, is_run

SEED = 0
_WAY_OUT = f"Try the other of the formats {', '.join(FORMATS)}, and report this as a bug."


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file that was written and agrees with its run.

    Attributes:
        about: what the file says of itself.
        agreement: how far it is from the run.
    """

    path: Path
    about: dict[str, Any]
    agreement: Agreement


def export(run: Run | str | os.PathLike[str], out: str | os.PathLike[str]) -> Exported:
    """Return what is now the file `out`: the predictor of `run`, from raw inputs to probabilities and flag.

    The suffix chooses the format: `.onnx` (extra `export`) or `.pt2` (torch.export). The file is opened again and
    compared with the run, on the CPU, before it takes its place in one step.

    Args:
        run: a finished run, or its folder.

    Raises:
        ConfigError: before any compute, when there is no such run, or `out` cannot be written.
        UnsupportedModelError: for a run whose predictions are drawn, and a model that cannot be traced.
        DisagreementError: when the file does not say what the run says; nothing is left behind.
    """
    path = Path(out)
    form = format_of(path)
    _check_place(path)
    opened = _on_cpu(run if isinstance(run, Run) else _open(run))
    example = example_inputs(opened, num_inputs=2, seed=SEED)
    if draws_samples(opened):
        raise UnsupportedModelError(_refusal(opened))
    about = describe_predictor(opened)
    with torch.no_grad():
        program = trace(RunPredictor(opened), example, name=about["model"])
    with replacing(path, form.to_bytes(program, about)) as written:
        agreement = _open_and_check(written, opened, about)
    return Exported(path=path, about=about, agreement=agreement)


def draws_samples(run: Run) -> bool:
    """Return whether a prediction of `run` takes random numbers: it then moves the generator that it is given."""
    generator = make_generator(SEED)
    before = generator.get_state()
    run.predict(example_inputs(run, num_inputs=1, seed=SEED), generator=generator)
    return not torch.equal(generator.get_state(), before)


def _check_place(path: Path) -> None:
    """Raise if `path` cannot become a file; its folder is not made, for it may be a slip of the pen."""
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path.parent} is not a folder, so {path.name} cannot be written there; make it first, or choose another place."
        )
    check_writable(path)


def _open(place: str | os.PathLike[str]) -> Run:
    if not isinstance(place, str | os.PathLike):
        raise ConfigError(
            f"run (a {type(place).__name__}) must be a run, as lrformer.load returns it, or the folder of one."
        )
    folder = Path(place)
    check_there(folder)
    if not is_run(folder):
        raise ConfigError(
            f"{folder} holds a model without a run: it has neither class names nor temperature nor threshold. Train a run "
            f"that starts from it (lrformer train DATA --from {folder} --out NEW), and export that."
        )
    return load_run(folder)


def _on_cpu(run: Run) -> Run:
    """Return the run on the CPU, where a file is made and compared."""
    if run.device.type == "cpu":
        return run
    return dataclasses.replace(run, method=copy.deepcopy(run.method).cpu())


def _open_and_check(written: Path, run: Run, about: dict[str, Any]) -> Agreement:
    """Return how far the file `written` is from its run; one that cannot be run, or is too far, raises."""
    try:
        found = open_predictor(written)
        agreement = check_agreement(run, found.predict, seed=SEED)
    except LRFormerError:
        raise
    except Exception as error:  # a runtime raises whatever it meets
        raise DisagreementError(
            f"the file of {run.path} was written and cannot be run ({first_line(error)}), so it is not kept. {_WAY_OUT}"
        ) from error
    if not agreement.is_close:
        allowed = ", ".join(f"{name} {TOLERANCE[name]:g}" for name in agreement.differences)
        raise DisagreementError(
            f"the file of {run.path} does not say what the run says ({agreement.describe()}; allowed are {allowed}), so it is "
            f"not kept. {_WAY_OUT}"
        )
    if found.about != about:
        raise DisagreementError(
            f"the file of {run.path} does not say of itself what it was given, so it is not kept. {_WAY_OUT}"
        )
    return agreement


def _refusal(run: Run) -> str:
    """Return why a run whose predictions are drawn is not exported, and what to do."""
    method = run.method
    gp = method.gp if isinstance(method, GaussianProcessMethod) else None
    way_out = (
        "Train a method whose prediction is one computation (deterministic, sngp, lrformer, deep_ensemble and others), or "
        "predict with the run itself (lrformer predict)."
    )
    if gp is not None and gp.config.approximation == "monte_carlo":
        way_out = (
            f"Take the mean field in place of samples, which needs no training: lrformer refit {run.path} --out NEW "
            "--method-option approximation=mean_field, and export that."
        )
    return (
        f"{run.path} cannot be exported: every prediction of its method '{run.config.train.method}' draws samples from a "
        f"seeded generator, which a file cannot do as the run does. {way_out}"
    )
