"""PyTorch convolutions that learn how large they are.

    from flexconv import FlexConv2d
    layer = FlexConv2d(3, 16, kernel_size=33)       # starts small, can grow to 33 × 33
    layer.extent                                    # (7, 7)

Modules that need only torch, numpy and safetensors:

    nn              layers, masks and kernel generators
    ops             the convolutions as functions of tensors
    sampling        kernels and masks sampled on any grid
    spectrum        bounds on the frequencies of kernels, and a penalty on aliasing
    resolution      running a model at another resolution
    materialize     FlexConvs as plain convolutions
    convert         plain convolutions as FlexConvs
    norm_scale      kernels of moderate size, for float16
    capture         your own training step as a replayed CUDA graph
    models          the networks of the paper; saving and loading
    compat          loading networks of the authors' code
    summary         what each layer has learned, in numbers
    explorer        the same as an interactive HTML page
    export          writing a network as ONNX, for torch.export, or as plain convolutions
    audio           MFCCs of sound, and resampling
    predict         classifying files with a trained network (reading images needs the extra `train`)
    testing         assertions for your own layers and networks
    errors          the errors that flexconv raises

Modules that need extras (`pip install ".[train,viz]"`):

    data            data sets and batches (reading some files needs the extra `train`)
    train           recipes and training runs (`train`)
    bench           timings (`train`)
    viz             figures (`viz`)
"""

from typing import TYPE_CHECKING

from ._process import is_command
from ._version import __version__ as __version__

# The command imports what each subcommand needs. Without torch, its help and shell completion take a tenth of the time.
if TYPE_CHECKING or not is_command():
    from . import compat as compat
    from . import errors as errors
    from . import models as models
    from . import nn as nn
    from . import ops as ops
    from . import resolution as resolution
    from . import spectrum as spectrum
    from . import testing as testing
    from ._registry import load_fast_versions
    from .capture import capture as capture
    from .convert import ConversionReport as ConversionReport
    from .convert import convert as convert
    from .materialize import materialize as materialize
    from .models import create_model as create_model
    from .models import from_pretrained as from_pretrained
    from .models import list_models as list_models
    from .models import list_pretrained as list_pretrained
    from .models import save_pretrained as save_pretrained
    from .nn import ChannelGaussianMask as ChannelGaussianMask
    from .nn import FlexConv1d as FlexConv1d
    from .nn import FlexConv2d as FlexConv2d
    from .nn import FlexConv3d as FlexConv3d
    from .nn import GaussianMask as GaussianMask
    from .nn import RotatedGaussianMask as RotatedGaussianMask
    from .nn import SeparableFlexConv1d as SeparableFlexConv1d
    from .nn import SeparableFlexConv2d as SeparableFlexConv2d
    from .nn import SeparableFlexConv3d as SeparableFlexConv3d
    from .nn import Streaming as Streaming
    from .nn import parameter_groups as parameter_groups
    from .nn import refresh_extents as refresh_extents
    from .norm_scale import move_scale_to_norms as move_scale_to_norms
    from .resolution import at_resolution as at_resolution
    from .resolution import recalibrate_batchnorm as recalibrate_batchnorm
    from .spectrum import alias_penalty as alias_penalty

    load_fast_versions()

# without modules, so that `from flexconv import *` does not replace torch's nn
__all__ = [
    "ChannelGaussianMask",
    "ConversionReport",
    "FlexConv1d",
    "FlexConv2d",
    "FlexConv3d",
    "GaussianMask",
    "RotatedGaussianMask",
    "SeparableFlexConv1d",
    "SeparableFlexConv2d",
    "SeparableFlexConv3d",
    "Streaming",
    "alias_penalty",
    "at_resolution",
    "capture",
    "convert",
    "create_model",
    "from_pretrained",
    "list_models",
    "list_pretrained",
    "materialize",
    "move_scale_to_norms",
    "parameter_groups",
    "recalibrate_batchnorm",
    "refresh_extents",
    "save_pretrained",
]
