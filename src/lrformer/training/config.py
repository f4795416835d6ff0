"""What a training run is asked to do, as frozen values: these make the result, and a resumed run must match them."""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

from lrformer.core import ConfigError
from lrformer.core.kinds import check_kinds
from lrformer.core.registry import did_you_mean
from lrformer.data import PLAIN, AugmentConfig
from lrformer.heads.predictive import SCORES

OPTIMIZERS = ("adamw", "sgd", "lamb", "muon")
SCHEDULES = ("cosine", "steps")
LOSSES = ("cross_entropy", "binary_cross_entropy")
CLASS_WEIGHTS = ("none", "balanced")
KEPT_EPOCHS = ("last", "best")
PRECISIONS = ("auto", "float32", "bfloat16")
# Of weights that are drawn. Trained ones get a lower rate: see docs/training.md for what was measured.
DEFAULT_RATES = {"adamw": 1e-3, "sgd": 1e-2, "lamb": 1e-3, "muon": 3e-3}
RATE_OF_TRAINED = 0.3
# As an L2 penalty, which SGD's is, .05 all but stops a transformer from learning.
DEFAULT_DECAYS = {"adamw": 0.05, "sgd": 5e-4, "lamb": 0.05, "muon": 0.05}
LONGEST_WARMUP_EPOCHS = 5.0
WARMUP_SHARE = 0.1
LARGEST_DEFAULT_BATCH = 128
SMALLEST_DEFAULT_BATCH = 8
LEAST_STEPS_PER_EPOCH = 32
# In place of the name of a score: the one that finds outliers made of validation images best.
CHOSEN_SCORE = "chosen"
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How weights follow gradients.

    Attributes:
        name: "adamw", "sgd" (with `momentum`), "lamb" or "muon" (matrices by Muon, the rest by AdamW).
        lr: learning rate after warm-up; None is `default_lr` of the run.
        weight_decay: of weight matrices only, unless `decays_vectors`. Decoupled, except in SGD, where it is an L2
            penalty. None is .05, and .0005 in SGD.
        decays_vectors: whether norms and biases are decayed too; position embeddings, class token and learned alphas
            are never.
        momentum: of SGD; that of Muon is 0.95.
        nesterov: whether the momentum of SGD looks ahead; that of Muon always does.
        betas: of AdamW, also inside Muon, and of LAMB.
        eps: of the same.
        warmup_epochs: linear rise of the rate; None is 5, or a tenth of the epochs if that is less.
        schedule: of the rate after its rise: half a "cosine", or "steps" down.
        final_lr_ratio: where the cosine ends, as a share of `lr`.
        steps_at: when the steps are taken, as shares of the epochs.
        step_factor: what each step multiplies the rate with.
        clip_norm: largest norm of the gradient of a step; None does not clip.
    """

    name: Literal["adamw", "sgd", "lamb", "muon"] = "adamw"
    lr: float | None = None
    weight_decay: float | None = None
    decays_vectors: bool = False
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_epochs: float | None = None
    schedule: Literal["cosine", "steps"] = "cosine"
    final_lr_ratio: float = 0.0
    steps_at: tuple[float, ...] = (0.3, 0.6, 0.8)
    step_factor: float = 0.2
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        check_kinds(type(self), vars(self))
        _check_choice("optimizer", self.name, OPTIMIZERS)
        if self.lr is not None and not self.lr > 0:
            raise ConfigError(f"lr ({self.lr}) must be positive.")
        if self.weight_decay is not None and self.weight_decay < 0:
            raise ConfigError(f"weight_decay ({self.weight_decay}) must not be negative.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum ({self.momentum}) must be at least 0 and below 1.")
        if self.nesterov and not (self.name == "sgd" and self.momentum > 0):
            raise ConfigError(
                f"nesterov is a way of SGD with momentum; the optimizer is '{self.name}' with momentum {self.momentum}. "
                "Leave it out."
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas ({self.betas}) must be two numbers in [0, 1).")
        if self.eps < 0:
            raise ConfigError(f"eps ({self.eps}) must not be negative.")
        if not 0 <= self.final_lr_ratio <= 1:
            raise ConfigError(f"final_lr_ratio ({self.final_lr_ratio}) must lie in [0, 1].")
        _check_choice("schedule", self.schedule, SCHEDULES)
        if self.schedule == "steps" and self.final_lr_ratio:
            raise ConfigError(
                f"final_lr_ratio ({self.final_lr_ratio}) is where a cosine ends; with schedule 'steps' leave it 0, and say by "
                "steps_at and step_factor how far the rate falls."
            )
        if not all(0 < share < 1 for share in self.steps_at) or list(self.steps_at) != sorted(
            set(self.steps_at)
        ):
            raise ConfigError(
                f"steps_at ({self.steps_at}) must be rising shares of the epochs between 0 and 1, such as (0.3, 0.6, 0.8)."
            )
        if not 0 < self.step_factor < 1:
            raise ConfigError(f"step_factor ({self.step_factor}) must lie between 0 and 1.")
        if self.warmup_epochs is not None and self.warmup_epochs < 0:
            raise ConfigError(f"warmup_epochs ({self.warmup_epochs}) must not be negative.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(
                f"clip_norm ({self.clip_norm}) must be positive; None (--clip-norm 0) does not clip."
            )

    @property
    def rate(self) -> float:
        """Return the learning rate of a run, in which it is settled."""
        assert self.lr is not None
        return self.lr

    @property
    def decay(self) -> float:
        """Return the weight decay, that of the optimizer where none was given."""
        return DEFAULT_DECAYS[self.name] if self.weight_decay is None else self.weight_decay


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole training run: data, model, method, optimization and seed.

    Attributes:
        data: a name from `list_datasets()`, or a folder of images or arrays.
        root: where prepared data are kept; None is the cache of `lrformer.data`.
        image_size: side to which images are scaled; None takes the model's.
        channels: 1 or 3 to convert image files; None takes them as they are.
        skip_unreadable: leave out image files that cannot be decoded, in training and whenever the run is evaluated.
        classes: train on these only, by name or number; None takes all.
        val_fraction: share of the training set cut off for validation, where there is no `val`.
        model: a name from `list_models()`; "auto" takes that of the folder to start from, or chooses by the data.
        model_overrides: fields of the model's config, such as `{"alpha": 1000.0}`.
        start: where the weights start: None draws them, a timm name takes its pretrained model and
            converts its attention, the folder of a run or of a model that was saved takes the backbone there.
        pretrained: whether a timm model comes with its weights; False draws them.
        method: a name from `list_methods()`.
        method_overrides: fields of the method's config.
        epochs: of every stage; an ensemble has one stage for each member.
        batch_size: images of one optimizer step, over all processes and pieces; None is `default_batch_size` of the
            training set.
        accumulate: pieces in which a process takes its part of a batch; more need less memory.
        loss: for methods without a loss of their own.
        label_smoothing: share of the target spread over all classes.
        class_weights: "balanced" lets every class count alike in the loss, however many images it has. As `loss` and
            `label_smoothing`, not for due and duq, which have a loss of their own.
        augment: how training images are varied.
        ema_decay: of the moving average of the weights (and of the statistics of batch norm), which is then what is kept;
            None is off.
        keep: the epoch whose weights are kept: the "last", or the "best", with the lowest NLL on the validation split
            after the temperature that fits it.
        precision: "auto" is bfloat16 on a GPU and float32 elsewhere; weights are always float32.
        seed: of the weights, the order, the augmentation and the validation cut.
        true_positive_rate: share of validation inputs that the kept threshold accepts.
        score: by which the threshold tells known from unknown inputs; None is the method's own, "chosen" the one that
            finds outliers made of validation images best.
    """

    data: str
    root: str | None = None
    image_size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    classes: tuple[int | str, ...] | None = None
    val_fraction: float = 0.1
    model: str = "auto"
    model_overrides: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    pretrained: bool = True
    method: str = "lrformer"
    method_overrides: dict[str, Any] = field(default_factory=dict)
    epochs: int = 30
    batch_size: int | None = None
    accumulate: int = 1
    loss: Literal["cross_entropy", "binary_cross_entropy"] = "cross_entropy"
    label_smoothing: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    augment: AugmentConfig = PLAIN
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    ema_decay: float | None = None
    keep: Literal["last", "best"] = "last"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = 0
    true_positive_rate: float = 0.95
    score: str | None = None

    def __post_init__(self) -> None:
        for name in ("data", "root", "start"):
            if isinstance(place := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(place))
        if not isinstance(self.data, str):
            raise ConfigError(
                f"data (a {type(self.data).__name__}) must be the name of a data set or a folder; arrays are trained on from "
                "a folder that holds them as train-x.npy and train-y.npy."
            )
        check_kinds(type(self), vars(self))
        for name, kind in (("optimizer", OptimizerConfig), ("augment", AugmentConfig)):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"{name} ({value!r}) must be an {kind.__name__}.")
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(self.classes))  # a record holds a list
            if len(self.classes) < 2:
                raise ConfigError(
                    f"classes ({', '.join(map(str, self.classes))}) must be at least two; leave it out for all."
                )
        if not 0 < self.val_fraction < 1:
            raise ConfigError(
                f"val_fraction ({self.val_fraction}) must lie strictly between 0 and 1; 0.1 is usual."
            )
        _check_choice("loss", self.loss, LOSSES)
        _check_choice("precision", self.precision, PRECISIONS)
        _check_choice("class_weights", self.class_weights, CLASS_WEIGHTS)
        _check_choice("keep", self.keep, KEPT_EPOCHS)
        for name in ("epochs", "batch_size", "accumulate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} ({value}) must be at least 1.")
        if self.batch_size is not None and self.batch_size % self.accumulate:
            raise ConfigError(
                f"accumulate ({self.accumulate}) must divide batch_size ({self.batch_size})."
            )
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(
                f"label_smoothing ({self.label_smoothing}) must be at least 0 and below 1."
            )
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ConfigError(
                f"ema_decay ({self.ema_decay}) must lie between 0 and 1; None (--ema 0) takes no average."
            )
        if not 0 < self.true_positive_rate <= 1:
            raise ConfigError(
                f"true_positive_rate ({self.true_positive_rate}) must be above 0 and at most 1; 0.99 accepts 99%."
            )
        if self.score is not None:
            _check_choice("score", self.score, (*SCORES, CHOSEN_SCORE))
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"seed ({self.seed}) must lie in 0..{LARGEST_SEED}.")
        if self.warmup_epochs >= self.epochs:
            raise ConfigError(
                f"warmup_epochs ({self.warmup_epochs:g}) must be below epochs ({self.epochs}); "
                "left out it is a tenth of them, at most 5."
            )

    @property
    def warmup_epochs(self) -> float:
        """Return how many epochs the learning rate rises."""
        if self.optimizer.warmup_epochs is not None:
            return self.optimizer.warmup_epochs
        return min(LONGEST_WARMUP_EPOCHS, WARMUP_SHARE * self.epochs)


def default_lr(config: TrainConfig) -> float:
    """Return the learning rate of the optimizer, or three tenths of it where training starts from trained weights."""
    rate = DEFAULT_RATES[config.optimizer.name]
    is_trained = config.start is not None and config.pretrained
    return rate * RATE_OF_TRAINED if is_trained else rate


def default_batch_size(num_samples: int) -> int:
    """Return 128, or the largest power of two that gives a small training set 32 steps an epoch, but at least 8.

    A fixed batch would leave a thousand images with a few hundred steps in a whole run.
    """
    wanted = max(SMALLEST_DEFAULT_BATCH, num_samples // LEAST_STEPS_PER_EPOCH)
    largest = min(LARGEST_DEFAULT_BATCH, wanted, num_samples)
    return 1 << (largest.bit_length() - 1)


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """How a run is carried out: nothing here is part of what the run is, so a resumed run may change it.

    Attributes:
        device: "auto" takes a GPU if there is one.
        compile: whether the backbone and the augmentation of data on the device go through `torch.compile`.
        cuda_graph: "auto" captures the whole step on one GPU where the method allows it.
        save_seconds: how much work a crash may cost: the state is written this often.
        validate_every: epochs between two looks at the validation split; the last is always looked at, and every one
            where the best is kept.
        tensorboard: whether events are also written to `<run>/tensorboard`.
        quiet: whether the progress is not shown; `log.jsonl` is written always.
        seconds_between_lines: where there is no terminal, how much time lies between the lines of two epochs at
            least; by default every epoch has one, and the last always.
    """

    device: str = "auto"
    compile: bool = False
    cuda_graph: Literal["auto"] | bool = "auto"
    save_seconds: float = 30.0
    validate_every: int = 1
    tensorboard: bool = False
    quiet: bool = False
    seconds_between_lines: float = 0.0

    def __post_init__(self) -> None:
        if self.validate_every < 1:
            raise ConfigError(f"validate_every ({self.validate_every}) must be at least 1.")
        if self.save_seconds < 0:
            raise ConfigError(f"save_seconds ({self.save_seconds}) must not be negative.")
        if self.seconds_between_lines < 0:
            raise ConfigError(
                f"seconds_between_lines ({self.seconds_between_lines}) must not be negative."
            )


def _check_choice(kind: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise ConfigError(
            f"unknown {kind} '{name}'.{did_you_mean(name, known)} Known: {', '.join(known)}."
        )
