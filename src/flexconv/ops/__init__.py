"""Convolutions as pure functions of tensors, for kernels of any size: direct, FFT, and a choice between them."""

from ._conv import conv1d as conv1d
from ._conv import conv2d as conv2d
from ._conv import conv3d as conv3d

__all__ = ["conv1d", "conv2d", "conv3d"]
