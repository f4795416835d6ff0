"""The ten systems of the paper's tables behind one interface, registered by name."""

# The order of the imports is the order of the paper's tables.
# isort: off
from lrformer.methods.base import Method, SoftmaxMethod
from lrformer.methods.registry import METHODS, create_method, list_methods
from lrformer.methods.deterministic import Deterministic
from lrformer.methods.mc_dropout import MCDropout
from lrformer.methods.mcd_gp import MCDGP
from lrformer.methods.dnn_sn import DNNSN
from lrformer.methods.dnn_gp import DNNGP
from lrformer.methods.duq import DUQ
from lrformer.methods.due import DUE
from lrformer.methods.sngp import SNGP
from lrformer.methods.deep_ensemble import DeepEnsemble
from lrformer.methods.lrformer import LRFormer
from lrformer.methods.posthoc import AbstentionRule, Temperature, fit_abstention, fit_temperature

# isort: on

__all__ = [
    "DNNGP",
    "DNNSN",
    "DUE",
    "DUQ",
    "MCDGP",
    "METHODS",
    "SNGP",
    "AbstentionRule",
    "DeepEnsemble",
    "Deterministic",
    "LRFormer",
    "MCDropout",
    "Method",
    "SoftmaxMethod",
    "Temperature",
    "create_method",
    "fit_abstention",
    "fit_temperature",
    "list_methods",
]
