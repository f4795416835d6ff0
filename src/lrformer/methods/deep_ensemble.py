"""Deep Ensemble: several deterministic models from different starts (Lakshminarayanan et al. 2017)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from lrformer.attention import use_backend
from lrformer.core import ConfigError, NotFittedError
from lrformer.core.full_precision import at_least_float32
from lrformer.core.modes import evaluating
from lrformer.heads import LinearHead, Predictive
from lrformer.methods.base import BackboneFactory, Method, feature_width
from lrformer.methods.registry import METHODS

# Above this a member fills a GPU by itself and stacking only costs memory.
_STACKED_PARAMETERS = 2_000_000


@dataclass(frozen=True, kw_only=True)
class DeepEnsembleConfig:
    """Settings of `DeepEnsemble`.

    Attributes:
        num_members: models in the ensemble.
        vectorize: whether a prediction stacks the members' weights and runs them in one pass;
            "auto" does so on a GPU for members of at most two million parameters.
        max_stacked_bytes: weights that are stacked at a time; more members take several passes.
    """

    num_members: int = 10
    vectorize: bool | Literal["auto"] = "auto"
    max_stacked_bytes: int = 2**30

    def __post_init__(self) -> None:
        if self.num_members < 2:
            raise ConfigError(f"num_members ({self.num_members}) must be at least 2.")


@METHODS.register("deep_ensemble")
class DeepEnsemble(Method):
    """Members are trained one after the other: each is a stage, and the finished ones are recorded.

    The record is saved with the weights, so that training goes on at the member after the last
    finished one. A prediction refuses until every member is finished.
    """

    config_class: ClassVar[type] = DeepEnsembleConfig
    num_finished: Tensor

    def __init__(
        self, backbone: BackboneFactory, num_classes: int, config: DeepEnsembleConfig
    ) -> None:
        super().__init__(backbone, num_classes, config)
        members = [_build_member(backbone, num_classes) for _ in range(config.num_members)]
        parameters = [id(parameter) for member in members for parameter in member.parameters()]
        if len(set(parameters)) < len(parameters):
            raise ConfigError("backbone() gave the same weights twice; it must build a new model.")
        self.members = nn.ModuleList(members)
        self.register_buffer("num_finished", torch.tensor(0, dtype=torch.int64))
        self._num_finished = 0
        self._stage = 0
        self.register_load_state_dict_post_hook(_read_loaded_state)
        self._stacked: dict[int, tuple[list[tuple[int, int]], tuple[dict, dict]]] = {}

    @property
    def predicted_fields(self) -> frozenset[str]:
        """The fields of a `Predictive` that a prediction has."""
        return super().predicted_fields | {"samples"}

    @property
    def num_stages(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def stage(self) -> int:
        """The first member that is not trained."""
        return self._num_finished

    def start_stage(self, index: int) -> None:
        """Train member `index` from now on."""
        super().start_stage(index)
        if index != self._num_finished:
            raise ConfigError(
                f"member {index} cannot be trained now: {self._num_finished} of {self.num_stages} "
                f"are finished, go on with start_stage({self._num_finished})."
            )
        self._stage = index

    def finish_stage(self) -> None:
        """Record that the present member is trained."""
        self._num_finished = self._stage + 1
        self.num_finished.fill_(self._num_finished)

    def stage_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the member in training."""
        return (p for p in self.members[self._stage].parameters() if p.requires_grad)

    @property
    def needs_posterior(self) -> bool:
        """Whether a member is not trained yet."""
        return self._num_finished < self.num_stages

    def loss(self, x: Shaped[Tensor, "b ..."], y: Shaped[Tensor, "b ..."]) -> Float[Tensor, ""]:
        """Return the loss of the member in training."""
        return self.criterion(self.members[self._stage](x), y)

    def forward(self, x: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b c"]:
        """Return the mean logits of all members."""
        return self._member_logits(x).mean(0)

    @torch.no_grad()
    def predict(
        self, x: Shaped[Tensor, "b ..."], generator: torch.Generator | None = None
    ) -> Predictive:
        """Return the prediction with one sample for each member; nothing is drawn."""
        del generator
        if self.needs_posterior:
            raise NotFittedError(
                f"{self._num_finished} of {self.num_stages} members are trained; go on with "
                f"start_stage({self._num_finished}), or create it with fewer num_members."
            )
        with evaluating(self):
            samples = at_least_float32(self._member_logits(x))
        return Predictive(logits=samples.mean(0), samples=samples)

    def _member_logits(self, x: Tensor) -> Float[Tensor, "s b c"]:
        """Return the logits of every member, vectorized where that is faster."""
        # Stacked weights are copies, to which no gradient of the members' comes back.
        is_differentiated = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in self.parameters()
        )
        if self.training or is_differentiated or not self._is_vectorized(x):
            return torch.stack([member(x) for member in self.members])
        first = self.members[0]
        num_bytes = sum(t.numel() * t.element_size() for t in first.state_dict().values())
        size = max(1, self.config.max_stacked_bytes // max(num_bytes, 1))
        starts = range(0, len(self.members), size)
        return torch.cat([self._stacked_logits(x, start, size) for start in starts])

    def _is_vectorized(self, x: Tensor) -> bool:
        if torch.compiler.is_exporting():  # in a graph every member stands with its own weights
            return False
        if self.config.vectorize != "auto":
            return self.config.vectorize
        count = sum(parameter.numel() for parameter in self.members[0].parameters())
        return x.is_cuda and count <= _STACKED_PARAMETERS

    def _stacked_logits(self, x: Tensor, start: int, size: int) -> Tensor:
        members = [self.members[i] for i in range(start, min(start + size, len(self.members)))]
        skeleton, state = members[0], self._stacked_members(members, start)

        def logits(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            return functional_call(skeleton, (params, buffers), (x,))

        with nullcontext() if x.is_cuda else _plain_attention(skeleton):
            return torch.vmap(logits)(*state)

    def _stacked_members(self, members: list[nn.Module], start: int) -> tuple[dict, dict]:
        """Return the stacked weights of `members`, kept under `start` until one of them changes."""
        tensors = [t for m in members for t in (*m.parameters(), *m.buffers())]
        if any(t.is_inference() for t in tensors):
            return _stacked_state(members)  # these do not tell when they change
        # What was stacked in inference mode cannot be used outside of it.
        mode = (int(torch.is_inference_mode_enabled()), 0)
        identity = [mode, *((t.data_ptr(), t._version) for t in tensors)]
        kept = self._stacked.get(start)
        if kept is None or kept[0] != identity:
            kept = (identity, _stacked_state(members))
            self._stacked[start] = kept
        return kept[1]

    def train(self, mode: bool = True) -> "DeepEnsemble":
        """Set the mode and forget the stacked weights: writing to `weight.data` leaves no trace."""
        self._stacked.clear()
        super().train(mode)
        return self

    def _apply(self, fn, recurse=True):
        self._stacked.clear()
        return super()._apply(fn, recurse)


@contextmanager
def _plain_attention(model: nn.Module) -> Iterator[None]:
    """Compute attention by matrix products: torch cannot vectorize its fused kernel on the CPU."""
    with use_backend(model, "reference"), sdpa_kernel(SDPBackend.MATH):
        yield


def _stacked_state(members: list[nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters and buffers of all members, stacked; some may be frozen and others not."""

    def stack(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.stack([state[name] for state in states]).detach() for name in states[0]}

    return (
        stack([dict(member.named_parameters()) for member in members]),
        stack([dict(member.named_buffers()) for member in members]),
    )


def _read_loaded_state(ensemble: Any, _: object) -> None:
    ensemble._num_finished = int(ensemble.num_finished)


def _build_member(backbone: BackboneFactory, num_classes: int) -> nn.Sequential:
    """Return one deterministic model."""
    features = backbone()
    return nn.Sequential(features, LinearHead(feature_width(features), num_classes))
