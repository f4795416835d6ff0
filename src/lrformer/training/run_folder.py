"""A run is a folder: what made it, its weights, its posterior, and the rule by which it abstains.

- `config.json`: everything that made the run, see `run_config`.
- `model.safetensors`: the method's `state_dict`, without the next file's tensors.
- `posterior.safetensors`: the tensors of every `LaplacePosterior`, which are fitted after training.
- `decision.json`: temperature and threshold, fitted on validation; the checksums of the two files before.
- `metrics.json`: written last by training; a run that has it is finished.
- `log.jsonl`: one line for each epoch. `state/`: what an unfinished run needs to go on.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from lrformer.core import ConfigError, choose_device, from_record, to_record
from lrformer.core.kinds import check_kinds
from lrformer.data.image_file import fit_pixels
from lrformer.data.scaling import fit_square
from lrformer.heads import Predictive
from lrformer.heads.laplace_posterior import LaplacePosterior
from lrformer.methods import AbstentionRule, Method, Temperature
from lrformer.methods.gaussian_process import GaussianProcessMethod
from lrformer.training.atomic_files import (
    checksum,
    read_json,
    read_tensors,
    replace_file,
    tensors_as_bytes,
    write_json,
    write_tensors,
)
from lrformer.training.backbone import build_method
from lrformer.training.metrics_file import is_finished
from lrformer.training.run_config import CONFIG_FILE, RunConfig, read_run_config

MODEL_FILE = "model.safetensors"
POSTERIOR_FILE = "posterior.safetensors"
DECISION_FILE = "decision.json"
LOG_FILE = "log.jsonl"
FITTED_TO = "fitted_to"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How a prediction is read: its temperature, and the score above which the model abstains.

    Attributes:
        temperature: divides the logits; fitted on validation.
        variance_slope: by how much that grows with the variance, see `Temperature`.
        score: name of the uncertainty, of the prediction after the temperature.
        threshold: inputs with a larger score count as out of distribution.
        true_positive_rate: share of the validation inputs that are accepted.
        num_validation: how many validation inputs both were fitted to; runs from before it was kept have None.
    """

    temperature: float
    score: str
    threshold: float
    true_positive_rate: float
    variance_slope: float = 0.0
    num_validation: int | None = None

    def __post_init__(self) -> None:
        check_kinds(type(self), vars(self))
        if not self.temperature > 0:
            raise ConfigError(f"temperature ({self.temperature}) must be positive.")
        as_temperature(self)  # which knows the rule of the slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A trained run, ready to predict: the method is in evaluation mode."""

    path: Path
    config: RunConfig
    method: Method
    decision: Decision

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the classes in the order of the logits."""
        return self.config.class_names

    @property
    def temperature(self) -> Temperature:
        """Return the temperature that was fitted on validation."""
        return as_temperature(self.decision)

    @property
    def rule(self) -> AbstentionRule:
        """Return the rule of abstention; it reads predictions that went through the temperature."""
        return AbstentionRule(score=self.decision.score, threshold=self.decision.threshold)

    @property
    def threshold(self) -> float:
        """Return the largest uncertainty that counts as in distribution."""
        return self.decision.threshold

    @property
    def device(self) -> torch.device:
        """Return where the weights are."""
        return next(self.method.parameters()).device

    def preprocess(
        self, raw: Shaped[Tensor, "b ..."] | Shaped[np.ndarray, "b ..."]
    ) -> Float[Tensor, "b ..."]:
        """Return model inputs from uint8 images (b, height, width, channels), or from points (b, features).

        An image of another size is cut and scaled as in training, and as `lrformer predict` does it with a file.
        """
        # A copy of an array: that of a picture is read-only, and torch cannot express that.
        if isinstance(raw, Tensor):
            tensor = raw
        else:
            try:
                array = np.array(raw)
            except ValueError:  # rows of different lengths
                array = np.array(None)
            if array.dtype.kind not in "biuf":
                raise ConfigError(
                    f"raw is a {type(raw).__name__}; give uint8 images or points as a tensor or an array (files are read by "
                    "lrformer.evaluation.predict_files)."
                )
            tensor = torch.from_numpy(array)
        return prepare_inputs(tensor.to(self.device), self.config)

    def predict(
        self,
        raw: Shaped[Tensor, "b ..."] | Shaped[np.ndarray, "b ..."],
        *,
        generator: torch.Generator | None = None,
        is_calibrated: bool = True,
    ) -> Predictive:
        """Return the prediction for raw images or points; `is_calibrated=False` leaves the temperature out."""
        predictive = self.method.predict(self.preprocess(raw), generator)
        return self.temperature(predictive) if is_calibrated else predictive

    def is_in_distribution(self, predictive: Predictive) -> Bool[Tensor, " b"]:
        """Return which inputs the run answers for, from a calibrated prediction."""
        return self.rule.accepts(predictive)


def as_temperature(decision: Decision) -> Temperature:
    """Return the temperature of a decision."""
    return Temperature(value=decision.temperature, variance_slope=decision.variance_slope)


def describe_temperature(run: Run) -> str:
    """Return the temperature in words: one number, or how it grows with the variance."""
    value, slope = f"{run.decision.temperature:.4g}", run.decision.variance_slope
    if slope:
        return f"{value} * sqrt(1 + {slope:.4g} * variance)"
    if isinstance(run.method, GaussianProcessMethod) and run.method.fits_temperature_by_variance:
        return f"{value} (for any variance: no gain on validation by a slope)"
    return value


def prepare_inputs(raw: Shaped[Tensor, "b ..."], config: RunConfig) -> Float[Tensor, "b ..."]:
    """Return what the model is fed, exactly as in training without augmentation."""
    if config.img_size is None:
        if raw.ndim != 2 or raw.shape[1] != config.channels:
            raise ConfigError(
                f"points have shape {tuple(raw.shape)}; they must be (points, {config.channels})."
            )
        points = raw.float()
        return (points - points.new_tensor(config.mean)) / points.new_tensor(config.std)
    if raw.ndim != 4 or raw.dtype != torch.uint8 or raw.shape[3] != config.channels:
        raise ConfigError(
            f"images have shape {tuple(raw.shape)} and dtype {raw.dtype}; they must be uint8 of "
            f"shape (images, height, width, {config.channels})."
        )
    is_of_size = raw.shape[1:3] == (config.img_size,) * 2
    if not is_of_size and config.is_scaled_as_files and len(raw):
        raw = torch.from_numpy(fit_pixels(raw.cpu().numpy(), config.img_size)).to(raw.device)
    mean, std = (
        torch.tensor(values, device=raw.device).view(-1, 1, 1)
        for values in (config.mean, config.std)
    )
    return fit_square((raw.permute(0, 3, 1, 2).float() / 255 - mean) / std, config.img_size)


def check_whole(folder: Path) -> None:
    """Raise where a file of the run in `folder` is missing that a prediction needs."""
    if not (folder / MODEL_FILE).is_file():
        raise ConfigError(
            f"{folder / MODEL_FILE} is missing: "
            + (
                "the run was finished. Restore it from a copy; the same train command would train it anew."
                if is_finished(folder)
                else "the run is not finished. Run the same train command again, and it goes on where it stopped."
            )
        )
    for name in (POSTERIOR_FILE, DECISION_FILE):
        if not (folder / name).is_file():
            raise ConfigError(
                f"{folder / name} is missing: run the same train command again, which fits it to the weights that are there, "
                "or restore it from a copy."
            )


def load_run(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Run:
    """Return the finished run in the folder `path`, ready to predict on `device`.

    Raises:
        ConfigError: when a file is missing, damaged or of a schema that this version cannot read.
    """
    folder, place = Path(path), choose_device(device)
    config = read_run_config(folder)
    check_whole(folder)
    method = build_method(config.backbone, config.train, config.num_classes)
    load_method(folder, method)
    decision = _read_decision(folder)
    return Run(path=folder, config=config, method=method.to(place).eval(), decision=decision)


def _read_decision(folder: Path) -> Decision:
    """Return the decision of the run in `folder`, after comparing the files that it was fitted to."""
    path = folder / DECISION_FILE
    way_out = (
        "it is damaged. Restore it from a copy, or delete it to have it fitted again to the weights that are there, by the "
        "same train command."
    )
    record = read_json(path, way_out=way_out)
    # Runs from before the checksums were kept have none.
    fitted_to = record.pop(FITTED_TO, None) if isinstance(record, dict) else None
    if fitted_to not in (None, _checksums(folder)):
        raise ConfigError(
            f"{path} was not fitted to the {MODEL_FILE} and {POSTERIOR_FILE} beside it: one of the three is damaged, or of "
            "another run. Restore them from a copy, or delete the decision and the posterior to have both fitted to these "
            "weights by the same train command."
        )
    try:
        return from_record(Decision, record)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path} holds no decision ({error}); {way_out}") from error


def save_method(folder: Path, method: Method) -> None:
    """Write the weights and the posterior of `method`; each file is replaced in one step.

    The posterior knows the checksum of the weights that it belongs to.
    """
    weights, posterior = split_state(method)
    model = tensors_as_bytes(weights)
    write_tensors(folder / POSTERIOR_FILE, posterior, metadata={"model": checksum(model)})
    replace_file(folder / MODEL_FILE, model)


def load_method(folder: Path, method: Method) -> None:
    """Put the weights and the posterior of the run in `folder` into `method`."""
    weights, _ = read_tensors(folder / MODEL_FILE)
    posterior, about = read_tensors(folder / POSTERIOR_FILE)
    load_state(method, {**weights, **posterior}, where=str(folder / MODEL_FILE))
    # Runs from before the checksum was kept have none.
    if about.get("model") not in (None, checksum((folder / MODEL_FILE).read_bytes())):
        raise ConfigError(
            f"{folder / MODEL_FILE} does not have the weights that {POSTERIOR_FILE} was fitted to: one of them is damaged, "
            f"or of another run. Restore both from a copy, or delete {POSTERIOR_FILE} to have it fitted to these weights "
            "by the same train command."
        )


def load_state(method: Method, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Put a whole `state_dict` into `method`, or raise and say what does not fit."""
    try:
        method.load_state_dict(dict(tensors))
    except RuntimeError as error:
        # torch names every tensor; the first one tells what kind of difference it is.
        _, *differences = str(error).splitlines()
        found = shorten("; ".join(map(str.strip, differences)), 200, placeholder=" ...")
        raise ConfigError(
            f"{where} does not fit the model of {CONFIG_FILE} ({found}): one of the two is damaged, or of another run. "
            "Restore it from a copy, or train into another folder."
        ) from error


def split_state(method: Method) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the `state_dict` in two: the weights, and what belongs to a `LaplacePosterior`."""
    prefixes = tuple(
        f"{name}." for name, part in method.named_modules() if isinstance(part, LaplacePosterior)
    )
    state = method.state_dict()
    posterior = {name: value for name, value in state.items() if name.startswith(prefixes)}
    weights = {name: value for name, value in state.items() if name not in posterior}
    return weights, posterior


def write_decision(folder: Path, decision: Decision) -> None:
    """Write `decision.json`; weights and posterior are there already."""
    write_json(folder / DECISION_FILE, {**to_record(decision), FITTED_TO: _checksums(folder)})


def _checksums(folder: Path) -> dict[str, str]:
    return {name: file_checksum(folder / name) for name in (MODEL_FILE, POSTERIOR_FILE)}


def file_checksum(path: Path) -> str:
    """Return the checksum of a file of a run."""
    return checksum(path.read_bytes())


def is_whole(folder: Path) -> bool:
    """Return whether every file is there that a finished run is loaded from."""
    return all((folder / name).is_file() for name in (MODEL_FILE, POSTERIOR_FILE, DECISION_FILE))
