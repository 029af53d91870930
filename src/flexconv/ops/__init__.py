"""Convolutions as pure functions of tensors, for kernels of any size: direct, FFT, and a choice between them."""

from ._conv import ALGORITHMS as ALGORITHMS
from ._conv import conv1d as conv1d
from ._conv import conv2d as conv2d
from ._conv import conv3d as conv3d
from ._conv import conv_nd as conv_nd
from ._factored import FactoredKernel as FactoredKernel
from ._factored import Factors as Factors
from ._factored import KernelBatch as KernelBatch
from ._factored import Source as Source
from ._factored import as_tensor as as_tensor
from ._fft import fast_length as fast_length
from ._geometry import Padding as Padding
from ._geometry import Pads as Pads
from ._geometry import output_size as output_size
from ._geometry import plain_padding as plain_padding
from ._geometry import resolve_padding as resolve_padding

__all__ = ["conv1d", "conv2d", "conv3d"]
