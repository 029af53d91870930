"""Replace the convolutions of a model with FlexConv layers, optionally fitted to the kernels they replace."""

from ._convert import convert as convert
from ._report import ConversionReport as ConversionReport
from ._report import ConvertedLayer as ConvertedLayer

__all__ = ["ConversionReport", "ConvertedLayer", "convert"]
