"""Who takes part in figure 1: each method with its model, its one score and its one setting to be tuned."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from lrformer.core import Registry
from lrformer.methods import Method, create_method
from lrformer.models import create_model
from lrformer.recipes.point_training import PointTraining

NUM_MEMBERS = 5
# The paper's tiny transformer (depth 9, width 24, 8 heads), and the certified model of the same size.
MODEL = "lrformer_two_moons"
CERTIFIED_MODEL = "certified_two_moons_depth9"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One column of the figure.

    Attributes:
        title: what the picture says above it.
        method: name in the registry of methods.
        score: the uncertainty that is drawn and measured, fixed before anything was run.
        knob: the setting that is tuned, and whose config it belongs to.
        values: the three values that are tried; the middle one is taken where nothing is tuned.
        tuned_as: the contender whose choice is taken over: members of an ensemble are deterministic.
        is_in_paper: whether the paper's figure has it.
    """

    title: str
    method: str
    score: str
    knob: str
    knob_of: Literal["method", "model", "training"]
    values: tuple[float, ...]
    model: str = MODEL
    model_overrides: dict[str, Any] = field(default_factory=dict)
    method_overrides: dict[str, Any] = field(default_factory=dict)
    tuned_as: str | None = None
    is_in_paper: bool = False

    @property
    def default(self) -> float:
        """Return the middle value of the knob."""
        return self.values[len(self.values) // 2]

    def create(self, value: float) -> Method:
        """Return the method with random weights and its knob at `value`."""
        model, method = dict(self.model_overrides), dict(self.method_overrides)
        if self.knob_of != "training":
            (model if self.knob_of == "model" else method)[self.knob] = value
        return create_method(
            self.method, lambda: create_model(self.model, num_classes=0, **model), 2, **method
        )

    def training(self, base: PointTraining, value: float) -> PointTraining:
        """Return the training of `base` with the knob at `value`, if it is one of training."""
        if self.knob_of != "training":
            return base
        return dataclasses.replace(base, **{self.knob: value})


CONTENDERS: Registry[Contender] = Registry("contender")

_PLAIN: dict[str, Any] = {"attention": "dot_product"}
_WEIGHT_DECAYS = (1e-4, 1e-2, 1e-1)
# One head for LRFormer, SNGP and the certified model: that of SNGP's reference, on the features as they
# are. They differ in the backbone alone. It takes the root of the length-scale: steps of two.
_HEAD: dict[str, Any] = {"convention": "sngp", "feature_scale": "literal", "ridge": 1.0}
_LENGTH_SCALES = (1 / 32, 1 / 8, 1 / 2)

CONTENDERS.register("deep_ensemble")(
    Contender(
        title="Deep Ensemble",
        method="deep_ensemble",
        score="entropy",
        knob="weight_decay",
        knob_of="training",
        values=_WEIGHT_DECAYS,
        model_overrides=_PLAIN,
        method_overrides={"num_members": NUM_MEMBERS},
        tuned_as="deterministic",
        is_in_paper=True,
    )
)
CONTENDERS.register("due")(
    Contender(
        title="DUE",
        method="due",
        score="variance",
        knob="spectral_bound",
        knob_of="method",
        values=(1.0, 3.0, 6.0),
        model_overrides=_PLAIN,
        method_overrides={"num_inducing": 20, "initial_posterior": "prior"},
        is_in_paper=True,
    )
)
CONTENDERS.register("sngp")(
    Contender(
        title="SNGP",
        method="sngp",
        score="variance",
        knob="length_scale",
        knob_of="method",
        values=_LENGTH_SCALES,
        model_overrides=_PLAIN,
        method_overrides=_HEAD,
        is_in_paper=True,
    )
)
CONTENDERS.register("lrformer")(
    Contender(
        title="LRFormer",
        method="lrformer",
        score="variance",
        knob="length_scale",
        knob_of="method",
        values=_LENGTH_SCALES,
        method_overrides=_HEAD,
        is_in_paper=True,
    )
)
CONTENDERS.register("deterministic")(
    Contender(
        title="Deterministic",
        method="deterministic",
        score="entropy",
        knob="weight_decay",
        knob_of="training",
        values=_WEIGHT_DECAYS,
        model_overrides=_PLAIN,
    )
)
CONTENDERS.register("mc_dropout")(
    Contender(
        title="MC Dropout",
        method="mc_dropout",
        score="entropy",
        knob="proj_drop_rate",
        knob_of="model",
        values=(0.05, 0.1, 0.2),
        model_overrides=_PLAIN,
    )
)
CONTENDERS.register("duq")(
    Contender(
        title="DUQ",
        method="duq",
        score="kernel_distance",
        knob="length_scale",
        knob_of="method",
        values=(0.1, 0.3, 0.9),
        model_overrides=_PLAIN,
        # Its authors' settings on two moons.
        method_overrides={"gamma": 0.99, "gradient_penalty": 1.0, "centroid_dim": 10},
    )
)
CONTENDERS.register("certified")(
    Contender(
        title="Certified LRFormer",
        method="dnn_gp",
        score="variance",
        knob="length_scale",
        knob_of="method",
        # Its features are all eight tokens, not their mean, and as much longer.
        values=(1.0, 4.0, 16.0),
        model=CERTIFIED_MODEL,
        method_overrides=_HEAD,
    )
)
