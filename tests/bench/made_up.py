"""Records with figures that are made up, to see that what is shown follows from them."""

from typing import Any


def timed(ms: float, ratio: float) -> dict[str, Any]:
    return {"ms": ms, "samples": [ms], "calls_in_a_sample": 1, "ratio": ratio}


def entry(attention: str, backend: str, ms: float, ratio: float, **more: Any) -> dict[str, Any]:
    leaves = {"dot_product": "qkv", "lrsa": "qvx", "l2": "qv"}[attention]
    is_compiled = more.pop("is_compiled", False)
    return {
        "name": f"{attention} {backend} {'compiled' if is_compiled else 'eager'}",
        "attention": attention,
        "backend": backend,
        "is_compiled": is_compiled,
        "status": "measured",
        "forward_backward": timed(ms, ratio),
        "forward": timed(ms / 4, ratio),
        "graph": timed(ms * 0.9, ratio),
        "peak_bytes": int(2**30 / ratio),
        "peak_ratio": 1 / ratio,
        "errors": {"out": 1e-3 * ms, **dict.fromkeys(leaves, 0.002 * ms)},
        "roofline": {
            "num_bytes": 3 * 10**9,
            "num_operations": 2 * 10**12,
            "of_bandwidth": 0.25,
            "of_operations": 0.5,
        },
        **more,
    }


def row(part: str, tokens: int, ours: float) -> dict[str, Any]:
    """A row in which flash takes 2 ms and LRSA `ours`."""
    shape = {"batch": 8, "num_heads": 6, "num_tokens": tokens, "head_dim": 64}
    failed = {
        "name": "dot_product cudnn eager",
        "attention": "dot_product",
        "backend": "cudnn",
        "is_compiled": False,
        "status": "failed",
        "reason": "RuntimeError: No available kernel",
    }
    return {
        "key": f"{part} 8x6x{tokens}x64",
        "part": part,
        "shape": shape,
        "baseline": dict.fromkeys(("forward_backward", "graph"), "dot_product flash eager"),
        "contenders": [
            entry("dot_product", "flash", 2.0, 1.0),
            failed,
            entry("lrsa", "reference", 40.0, 0.05),
            entry("lrsa", "triton", ours, 2.0 / ours, is_compiled=True),
        ],
    }


def attention_record() -> dict[str, Any]:
    """Two shapes, one that meets its goals and one that does not, and both sweeps."""
    return {
        "schema": 1,
        "benchmark": "attention",
        "lrformer": "9.9",
        "torch": "8.8",
        "device": "Abacus",
        "settings": {"speed_goal": 0.95, "memory_goal": 1.05},
        "ceilings": {
            "copy_gb_per_second": 4000.0,
            "copy_bytes": 2**30,
            "matmul_tflop_per_second": 700.0,
            "matmul_side": 8192,
            "dtype": "bfloat16",
        },
        "rows": [
            row("goal", 197, 1.6),
            row("goal", 1024, 4.0),
            row("tokens", 64, 1.0),
            row("batch", 197, 3.0),
        ],
    }


def model_record() -> dict[str, Any]:
    """A model that meets its goal, one that does not, one that failed."""

    def measured(name: str, ratio: float) -> dict[str, Any]:
        sides = {
            "ours": {"images_per_second": 9000.0 * ratio, "peak_bytes": 3 * 2**30},
            "rival": {"images_per_second": 9000.0, "peak_bytes": 2 * 2**30},
        }
        return {
            "name": name,
            "batch": 512,
            "status": "measured",
            "ratio": ratio,
            "goal": 0.97,
            "is_goal_met": ratio >= 0.97,
            **sides,
        }

    failed = {"name": "lrsa reference", "batch": 512, "status": "failed", "reason": "out of memory"}
    return {
        "lrformer": "9.9",
        "torch": "8.8",
        "device": "Abacus",
        "settings": {
            "model": "lrformer_small_patch16_224",
            "rival": "vit_small_patch16_224",
            "dtype": "bfloat16 autocast",
            "compile": "model",
            "goal": 0.97,
        },
        "rows": [measured("lrsa triton", 1.02), measured("lrsa sdpa", 0.85), failed],
    }
