"""Replace the convolutions of a model with FlexConvs that are fitted to their kernels."""

from ._convert import convert as convert
from ._report import ConversionReport as ConversionReport

__all__ = ["ConversionReport", "convert"]
