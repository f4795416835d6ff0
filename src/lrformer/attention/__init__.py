"""Self-attention with four similarities, as functions on (b, h, n, d) tensors and as modules."""

from lrformer.attention.coefficient import NORMALIZERS, lrsa_coefficient
from lrformer.attention.dot_product import (
    DotProductAttention,
    DotProductConfig,
    dot_product_attention,
)
from lrformer.attention.l2 import L2Attention, L2Config, l2_attention
from lrformer.attention.lrsa import LRSA, LRSAConfig, lrsa_attention
from lrformer.attention.maps import attention_maps
from lrformer.attention.multihead import MultiheadSelfAttention, use_backend
from lrformer.attention.registry import ATTENTIONS, AttentionConfig, list_attentions
from lrformer.attention.scsa import SCSA, SCSAConfig, scsa_attention

__all__ = [
    "ATTENTIONS",
    "LRSA",
    "NORMALIZERS",
    "SCSA",
    "AttentionConfig",
    "DotProductAttention",
    "DotProductConfig",
    "L2Attention",
    "L2Config",
    "LRSAConfig",
    "MultiheadSelfAttention",
    "SCSAConfig",
    "attention_maps",
    "dot_product_attention",
    "l2_attention",
    "list_attentions",
    "lrsa_attention",
    "lrsa_coefficient",
    "scsa_attention",
    "use_backend",
]
