"""What a training loop and an evaluation need to know about a method, and nothing else."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lrformer.core import ConfigError, UnsupportedModelError
from lrformer.core.modes import evaluating
from lrformer.core.processes import gather_rows, join_rows
from lrformer.heads import LinearHead, Predictive
from lrformer.heads.predictive import scores_from

BackboneFactory = Callable[[], nn.Module]
Loader = Iterable[Any]


class Method(nn.Module, ABC):
    """One system of the paper's tables: a model, its loss, its posterior and its prediction.

    A training loop calls, in this order::

        method.prepare(loader)                        # once, before training
        for stage in range(method.num_stages):        # 1, except for an ensemble
            method.start_stage(stage)
            optimizer = ...(method.stage_parameters())
            for epoch in ...:
                method.train()
                method.on_epoch_start()
                for x, y in loader:
                    method.loss(x, y).backward(); optimizer.step()
                    method.after_step(x, y)
                method.refresh_posterior()            # before an evaluation between epochs
            method.finish_stage()
        method.fit_posterior(loader)                  # once, after training
        method.predict(x)

    Every hook does nothing where a method does not need it. `criterion` is the loss on logits, for
    methods that have no loss of their own; replace it to train with another.
    """

    config_class: ClassVar[type]
    default_score: ClassVar[str] = "entropy"
    # False where `loss` is the method's own.
    uses_criterion: ClassVar[bool] = True

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: Any) -> None:
        super().__init__()
        del backbone  # a subclass calls it, once or for every member
        self.num_classes = num_classes
        self.config = config
        self.criterion: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy

    @abstractmethod
    def forward(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the logits, without posterior."""

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        return frozenset({"logits"})

    @property
    def scores(self) -> tuple[str, ...]:
        """Return the names of the scores that a prediction can give."""
        return scores_from(self.predicted_fields)

    @property
    def predicts_by_logits(self) -> bool:
        """Whether the most probable class of a prediction is that of the largest logit of `forward`."""
        return False

    @abstractmethod
    def predict(
        self, x: Shaped[Tensor, "b ..."], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with its uncertainty; never keeps a graph, always in evaluation mode."""

    def loss(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> Float[Tensor, ""]:
        """Return the training loss of a batch; `y` holds class indices or rows of probabilities."""
        return self.criterion(self(x), y)

    def prepare(self, loader: Loader) -> None:
        """Set what depends on the training data before the first step."""

    def on_epoch_start(self) -> None:
        """Forget what belongs to one epoch."""

    def after_step(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> None:
        """Update what is not learned by gradients, after the optimizer's step on the same batch."""

    @property
    def needs_posterior(self) -> bool:
        """Whether `predict` would refuse until the posterior is fitted or refreshed."""
        return False

    def refresh_posterior(self) -> None:
        """Bring the posterior up to date from what training has accumulated in this epoch."""

    def fit_posterior(self, loader: Loader) -> "Method":
        """Return self, with the posterior fitted exactly to the data of `loader` with frozen weights."""
        del loader
        return self

    @property
    def num_stages(self) -> int:
        """How many times the training loop runs from start to end."""
        return 1

    @property
    def stage(self) -> int:
        """The first stage that is not finished."""
        return 0

    def start_stage(self, index: int) -> None:
        """Get ready to train stage `index`."""
        if not 0 <= index < self.num_stages:
            raise ConfigError(f"stage ({index}) must be at least 0 and below {self.num_stages}.")

    def finish_stage(self) -> None:
        """Record that the present stage is trained."""

    def stage_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that the present stage trains."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)


class BackboneMethod(Method):
    """A method that is one backbone and one head."""

    head: Any  # a module of lrformer.heads

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: Any) -> None:
        super().__init__(backbone, num_classes, config)
        self.backbone = backbone()
        self.num_features = feature_width(self.backbone)

    def features(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b e"]:
        """Return what the head sees."""
        return self.backbone(x)

    def forward(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the logits, without posterior."""
        return self.head(self.features(x))

    @torch.no_grad()
    def predict(
        self, x: Shaped[Tensor, "b ..."], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the head's prediction on the features of `x`."""
        with evaluating(self):
            return self.head.predict(self.features(x), generator)


class SoftmaxMethod(BackboneMethod):
    """A backbone with a linear head, trained by `criterion`."""

    def __init__(self, backbone: BackboneFactory, num_classes: int, config: Any) -> None:
        super().__init__(backbone, num_classes, config)
        self.head = LinearHead(self.num_features, num_classes)

    @property
    def predicts_by_logits(self) -> bool:
        """Whether the most probable class of a prediction is that of the largest logit of `forward`."""
        return True


def feature_width(backbone: nn.Module) -> int:
    """Return the width of the features that `backbone` gives.

    Raises:
        UnsupportedModelError: when it does not state one, or still has a classifier.
    """
    # timm's models with a wide last layer give head_hidden_size features, not num_features.
    width = getattr(backbone, "head_hidden_size", None) or getattr(backbone, "num_features", None)
    if not isinstance(width, int):
        raise UnsupportedModelError(
            f"{type(backbone).__name__} does not state num_features; a backbone maps inputs to "
            "(b, num_features) and says so."
        )
    if getattr(backbone, "num_classes", 0):
        raise UnsupportedModelError(
            f"{type(backbone).__name__} has a classifier for {backbone.num_classes} classes; "
            "create the backbone with num_classes=0."
        )
    return width


def inputs(loader: Loader, device: torch.device) -> Iterator[Tensor]:
    """Yield the inputs of every batch on `device`; a batch is a tensor or starts with one.

    Raises:
        ConfigError: for a loader that can be gone through only once: what is fitted looks at the data twice.
    """
    check_repeatable(loader)
    for batch in loader:
        x = batch if isinstance(batch, Tensor | Mapping) else batch[0]
        if isinstance(x, Mapping):
            raise ConfigError(
                f"a batch is a {type(x).__name__} with {', '.join(map(str, x))}; it must be a tensor, or a tuple "
                "that starts with one."
            )
        yield x.to(device, non_blocking=True)


def check_repeatable(loader: Loader, name: str = "loader") -> None:
    """Raise for a loader that can be gone through only once: what is fitted looks at the data twice."""
    if isinstance(loader, Iterator):
        raise ConfigError(
            f"{name} is a {type(loader).__name__}, which can be gone through only once; give a DataLoader or a list."
        )
    if not isinstance(loader, Iterable):
        raise ConfigError(f"{name} ({loader!r}) must give batches; give a DataLoader or a list.")
    if _is_one_batch(loader):
        raise ConfigError(
            f"{name} is a pair of tensors, whose second would be taken for a batch of inputs; it must give batches: give "
            "[(X, y)], or a DataLoader."
        )


def _is_one_batch(loader: Loader) -> bool:
    """Return whether `loader` is inputs with their labels; two batches of inputs differ in their first axis alone."""
    if not (isinstance(loader, tuple | list) and len(loader) == 2):
        return False
    x, y = loader
    return (
        isinstance(x, Tensor)
        and isinstance(y, Tensor)
        and x.shape[:1] == y.shape[:1]
        and (x.ndim, x.is_floating_point()) != (y.ndim, y.is_floating_point())
    )


@torch.no_grad()
def collect_features(
    method: BackboneMethod, loader: Loader, *, limit: int, is_part: bool = False
) -> Float[Tensor, "b e"]:
    """Return the features of the first `limit` training inputs, in the mode the method is in.

    Args:
        is_part: whether `loader` gives every process a part of its own, so that their features belong together.
    """
    device = next(method.parameters()).device
    parts = first_rows((method.features(x).float() for x in inputs(loader, device)), limit)
    return gather_rows(parts, device) if is_part else join_rows(parts)


def first_rows(batches: Iterable[Float[Tensor, "_ e"]], limit: int) -> list[Tensor]:
    """Return batches until they have `limit` rows together, the last one cut."""
    parts: list[Tensor] = []
    num_left = limit
    for batch in batches:
        parts.append(batch[:num_left])
        num_left -= parts[-1].shape[0]
        if num_left <= 0:
            break
    return parts
