"""Bridges to other packages: conversion of timm and transformers models, saving and loading."""

from lrformer.interop.convert import Conversion, conversion_of, conversion_report, convert
from lrformer.interop.hub import load, save
from lrformer.interop.report import ConversionReport, LayerReport

__all__ = [
    "Conversion",
    "ConversionReport",
    "LayerReport",
    "conversion_of",
    "conversion_report",
    "convert",
    "load",
    "save",
]
