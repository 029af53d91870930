"""Convolutions as functions of tensors, for kernels of any size.

`conv1d`, `conv2d` and `conv3d` compute the same convolution as their namesakes in `torch.nn.functional`, directly or by
Fourier transforms, whichever is faster. `Padding` is the type of their `padding` argument; `resolve_padding` turns it
into `Pads`, a (left, right) pair per axis, and `output_size` gives the number of outputs along an axis.

The other names are for the packages of flexconv that build on this one.
"""

# The convolutions; `conv_nd` also takes a factored kernel.
from ._conv import ALGORITHMS as ALGORITHMS
from ._conv import conv1d as conv1d
from ._conv import conv2d as conv2d
from ._conv import conv3d as conv3d
from ._conv import conv_nd as conv_nd

# The most padding that torch's depthwise convolutions on a CPU handle fast.
from ._direct import MOST_DEPTHWISE_PADDING as MOST_DEPTHWISE_PADDING

# Kernels given by factors, of one layer or of several layers together.
from ._factored import FactoredKernel as FactoredKernel
from ._factored import Factors as Factors
from ._factored import KernelBatch as KernelBatch
from ._factored import Source as Source
from ._factored import as_tensor as as_tensor

# Lengths for which an FFT is fast.
from ._fft import fast_length as fast_length

# Padding and output sizes.
from ._geometry import Padding as Padding
from ._geometry import Pads as Pads
from ._geometry import output_size as output_size
from ._geometry import plain_padding as plain_padding
from ._geometry import resolve_padding as resolve_padding

# Selection of algorithms for code that is captured or compiled.
from ._select import launches_are_free as launches_are_free

__all__ = ["Padding", "Pads", "conv1d", "conv2d", "conv3d", "output_size", "resolve_padding"]
