"""What is exported of a run: from raw inputs to probabilities, uncertainty and flag, as one module and as a record."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Shaped
from torch import Tensor, nn

from lrformer._version import __version__
from lrformer.core import to_record
from lrformer.heads import Predictive
from lrformer.heads.laplace_posterior import LaplacePosterior
from lrformer.models.certified import CertifiedTransformer
from lrformer.models.spectral import fold_spectral_norm
from lrformer.training import Run
from lrformer.training.atomic_files import checksum, tensors_as_bytes
from lrformer.training.backbone import BackboneRecord, build_method
from lrformer.training.run_folder import prepare_inputs, split_state

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class PredictorRecord:
    """What an exported file says of itself.

    Attributes:
        schema: of this record.
        lrformer: version that wrote the file; it needs none to run.
        method: by its registered name.
        model: the preset or the architecture of timm.
        class_names: in the order of `probs` and `logits`.
        input: what the graph is fed, in words.
        image_size: side of the images; None for points.
        scaled_as_files: whether images of another size are to be scaled as files are read; otherwise the run was trained
            on arrays, which it scales bilinearly after they are normalized.
        channels: of an image, or coordinates of a point.
        score: what `uncertainty` is.
        threshold: above which an input counts as out of distribution.
        true_positive_rate: share of the validation inputs that are accepted.
        temperature: which is in the graph already.
        variance_slope: by how much that grows with the variance.
        model_sha256: checksum of the weights, that of the run's `model.safetensors`.
        posterior_sha256: likewise of `posterior.safetensors`.
    """

    schema: int
    lrformer: str
    method: str
    model: str
    class_names: tuple[str, ...]
    input: str
    image_size: int | None
    scaled_as_files: bool
    channels: int
    score: str
    threshold: float
    true_positive_rate: float
    temperature: float
    variance_slope: float
    model_sha256: str
    posterior_sha256: str


class RunPredictor(nn.Module):
    """A run as one module, on the CPU; what only training and fitting need is left out of it."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        config = run.config
        # Built anew: a deep copy shares the class of a normalized layer, and folding one would change the other.
        self.method = build_method(config.backbone, config.train, config.num_classes)
        self.method.load_state_dict(run.method.state_dict())
        _fold(self.method.eval().requires_grad_(requires_grad=False))

    def forward(self, inputs: Shaped[Tensor, "b ..."]) -> dict[str, Tensor]:
        """Return the outputs of an exported file by their names, from raw images or points."""
        predictive = self.method.predict(prepare_inputs(inputs, self.run.config))
        return name_outputs(self.run, self.run.temperature(predictive))


def name_outputs(run: Run, predictive: Predictive) -> dict[str, Tensor]:
    """Return what an exported file gives, from a calibrated prediction."""
    outputs = {
        "probs": predictive.probs,
        "uncertainty": predictive.uncertainty(run.decision.score),
        "in_distribution": run.is_in_distribution(predictive),
        "logits": predictive.logits,
    }
    if predictive.variance is not None:
        outputs["variance"] = predictive.uncertainty("variance")
    return outputs


def _fold(method: nn.Module) -> None:
    """Put present values where training keeps what they are computed from."""
    fold_spectral_norm(method)
    for part in method.modules():
        if isinstance(part, CertifiedTransformer):
            part.fold_scales()
        elif isinstance(part, LaplacePosterior):
            # Not empty: torch 2.11 complains of tensors without a number.
            part.precision = part.precision.new_zeros(1)


def describe_predictor(run: Run) -> dict[str, Any]:
    """Return the record of what is exported of `run`, as JSON values."""
    config, decision = run.config, run.decision
    weights, posterior = split_state(run.method)
    model_sha256 = checksum(tensors_as_bytes(weights))
    record = PredictorRecord(
        schema=SCHEMA,
        lrformer=__version__,
        method=config.train.method,
        model=_model_name(config.backbone, config.train.model),
        class_names=run.class_names,
        input=describe_input(run),
        image_size=config.img_size,
        scaled_as_files=config.is_scaled_as_files,
        channels=config.channels,
        score=decision.score,
        threshold=decision.threshold,
        true_positive_rate=decision.true_positive_rate,
        temperature=decision.temperature,
        variance_slope=decision.variance_slope,
        model_sha256=model_sha256,
        posterior_sha256=checksum(tensors_as_bytes(posterior, metadata={"model": model_sha256})),
    )
    return to_record(record)


def describe_input(run: Run) -> str:
    """Return in words what an exported file is fed."""
    size, channels = run.config.img_size, run.config.channels
    if size is None:
        return f"points: float32 (batch, {channels})"
    kind = {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")
    return (
        f"images: uint8 (batch, {size}, {size}, {channels}), height before width, {kind}, 0 to 255"
    )


def _model_name(backbone: BackboneRecord, preset: str) -> str:
    """Return the name by which a model is known: that of timm for a model of timm."""
    if backbone.family == "preset":
        return preset
    return backbone.model.get("architecture") or backbone.model["class"]
