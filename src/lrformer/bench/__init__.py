"""What the attention costs, measured: against torch's fused attention, and whole models against timm's."""

from lrformer.bench.attention import AttentionBenchConfig, bench_attention
from lrformer.bench.inference import InferenceBenchConfig, bench_inference
from lrformer.bench.training import TrainingBenchConfig, bench_training

__all__ = [
    "AttentionBenchConfig",
    "InferenceBenchConfig",
    "TrainingBenchConfig",
    "bench_attention",
    "bench_inference",
    "bench_training",
]
