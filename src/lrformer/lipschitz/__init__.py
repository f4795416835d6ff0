"""Lipschitz constants that are true: sound bounds, measured lower bounds, and the paper's own formulas.

`lrsa`, `attention`, `layers` and `network` hold the theorems as functions of spectral norms;
`weights` applies them to the matrices of a layer; `printed` keeps the paper's formulas; `measured`
and `statistics` look at inputs; `maps` and `attack` try to break all of it.
"""

from lrformer.lipschitz.attack import Attack, attack
from lrformer.lipschitz.bound import NORMS, Bound, Norm
from lrformer.lipschitz.local import lrsa_tied_on_ball, ratio_on_ball, ratios_on_ball
from lrformer.lipschitz.measured import (
    Distortion,
    distortion,
    distortion_ratios,
    local_constant,
)
from lrformer.lipschitz.network import (
    Chain,
    Stage,
    bi_lipschitz,
    certified_radius,
    network,
    random_feature_head,
    random_feature_logit_bound,
)
from lrformer.lipschitz.norms import (
    frobenius_norm,
    gram_spectral_norm,
    max_token_norm,
    smallest_singular_value,
    spectral_norm,
)
from lrformer.lipschitz.statistics import attention_entropy, singular_ratio
from lrformer.lipschitz.weights import (
    HeadWeights,
    dot_product_bound,
    l2_bound,
    lrsa_bound,
    scsa_bound,
)

__all__ = [
    "NORMS",
    "Attack",
    "Bound",
    "Chain",
    "Distortion",
    "HeadWeights",
    "Norm",
    "Stage",
    "attack",
    "attention_entropy",
    "bi_lipschitz",
    "certified_radius",
    "distortion",
    "distortion_ratios",
    "dot_product_bound",
    "frobenius_norm",
    "gram_spectral_norm",
    "l2_bound",
    "local_constant",
    "lrsa_bound",
    "lrsa_tied_on_ball",
    "max_token_norm",
    "network",
    "random_feature_head",
    "random_feature_logit_bound",
    "ratio_on_ball",
    "ratios_on_ball",
    "scsa_bound",
    "singular_ratio",
    "smallest_singular_value",
    "spectral_norm",
]
