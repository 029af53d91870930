"""The FlexConv layers, their masks and kernel generators."""

from ._channel_mask import ChannelGaussianMask as ChannelGaussianMask
from ._checks import MASKS as MASKS
from ._checks import PARAMETRIZATIONS as PARAMETRIZATIONS
from ._checks import KernelFactory as KernelFactory
from ._conv import FlexConv1d as FlexConv1d
from ._conv import FlexConv2d as FlexConv2d
from ._conv import FlexConv3d as FlexConv3d
from ._conv import FlexConvNd as FlexConvNd
from ._extent import parameters_changed as parameters_changed
from ._grid import Axis as Axis
from ._grid import KernelGrid as KernelGrid
from ._grid import TapRange as TapRange
from ._grid import coordinate_grid as coordinate_grid
from ._grid import filled as filled
from ._grid import mesh as mesh
from ._groups import parameter_groups as parameter_groups
from ._guard import effective_sigma as effective_sigma
from ._half import FLOAT16_MAX as FLOAT16_MAX
from ._half import HALF as HALF
from ._half import Convert as Convert
from ._half import as_float16 as as_float16
from ._half import check_float16 as check_float16
from ._half import computes_in_float16 as computes_in_float16
from ._half import converted_dtype as converted_dtype
from ._half import parameter_dtype as parameter_dtype
from ._lengths import can_read_values as can_read_values
from ._lengths import check_lengths as check_lengths
from ._lengths import hide_padding as hide_padding
from ._lengths import inside as inside
from ._mask import GaussianMask as GaussianMask
from ._mask import RotatedGaussianMask as RotatedGaussianMask
from ._observed import FillsMissing as FillsMissing
from ._observed import FrozenNeighbors as FrozenNeighbors
from ._observed import check_observed as check_observed
from ._observed import fill_missing as fill_missing
from ._pointwise import POINTWISE_CONVS as POINTWISE_CONVS
from ._pointwise import PointwiseConvNd as PointwiseConvNd
from ._provider import sample_together as sample_together
from ._refresh import refresh_extents as refresh_extents
from ._separable import SeparableFlexConv1d as SeparableFlexConv1d
from ._separable import SeparableFlexConv2d as SeparableFlexConv2d
from ._separable import SeparableFlexConv3d as SeparableFlexConv3d
from ._separable import SeparableFlexConvNd as SeparableFlexConvNd
from ._streaming import Streaming as Streaming
from .kernels import GENERATORS as GENERATORS
from .kernels import MLP as MLP
from .kernels import NSIREN as NSIREN
from .kernels import PAPER_INPUT_SCALE as PAPER_INPUT_SCALE
from .kernels import PAPER_TAPS as PAPER_TAPS
from .kernels import SIREN as SIREN
from .kernels import Affine as Affine
from .kernels import FourierNet as FourierNet
from .kernels import GaborNet as GaborNet
from .kernels import KernelGenerator as KernelGenerator
from .kernels import MAGNet as MAGNet
from .kernels import NJet as NJet
from .kernels import Placement as Placement

__all__ = [
    "GENERATORS",
    "MLP",
    "NSIREN",
    "SIREN",
    "Axis",
    "ChannelGaussianMask",
    "FlexConv1d",
    "FlexConv2d",
    "FlexConv3d",
    "FlexConvNd",
    "FourierNet",
    "GaborNet",
    "GaussianMask",
    "KernelGenerator",
    "MAGNet",
    "NJet",
    "RotatedGaussianMask",
    "SeparableFlexConv1d",
    "SeparableFlexConv2d",
    "SeparableFlexConv3d",
    "SeparableFlexConvNd",
    "Streaming",
    "TapRange",
    "coordinate_grid",
    "parameter_groups",
    "refresh_extents",
    "sample_together",
]
