"""Corruptions of the kinds of CIFAR-10-C, made locally in batches: seeded per sample, stronger with each severity.

These are not the published files. The strengths follow the published 32-pixel tables where the tables rise; a kind that
departs from its table says so.
"""

from lrformer.data.corruptions.apply import (
    CORRUPTIONS,
    SEVERITIES,
    corrupt,
    corrupt_split,
    list_corruptions,
)

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt", "corrupt_split", "list_corruptions"]
