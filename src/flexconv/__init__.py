"""flexconv: PyTorch convolutions that learn how large they are.

    from flexconv import FlexConv2d
    layer = FlexConv2d(3, 16, kernel_size=33)       # at most 33 × 33, starts small, grows if that helps
    layer.extent                                    # (5, 5)

`flexconv.nn` holds layers, masks and kernel generators, `flexconv.ops` the convolutions as plain functions,
`flexconv.models` the paper's networks, `flexconv.spectrum` how high a kernel's frequencies reach, `flexconv.resolution`
how to run a model at another resolution. `flexconv.data`, `flexconv.train` and `flexconv.viz` need extras.
"""

from . import compat as compat
from . import models as models
from . import nn as nn
from . import ops as ops
from . import resolution as resolution
from . import spectrum as spectrum
from . import testing as testing
from ._registry import load_fast_versions
from ._version import __version__ as __version__
from .convert import ConversionReport as ConversionReport
from .convert import convert as convert
from .materialize import materialize as materialize
from .models import create_model as create_model
from .models import from_pretrained as from_pretrained
from .models import list_models as list_models
from .models import list_pretrained as list_pretrained
from .models import save_pretrained as save_pretrained
from .nn import FlexConv1d as FlexConv1d
from .nn import FlexConv2d as FlexConv2d
from .nn import FlexConv3d as FlexConv3d
from .nn import GaussianMask as GaussianMask
from .nn import RotatedGaussianMask as RotatedGaussianMask
from .nn import Streaming as Streaming
from .nn import refresh_extents as refresh_extents
from .resolution import at_resolution as at_resolution
from .resolution import recalibrate_batchnorm as recalibrate_batchnorm
from .spectrum import alias_penalty as alias_penalty

# no modules: `from flexconv import *` leaves torch's nn alone
__all__ = [
    "ConversionReport",
    "FlexConv1d",
    "FlexConv2d",
    "FlexConv3d",
    "GaussianMask",
    "RotatedGaussianMask",
    "Streaming",
    "alias_penalty",
    "at_resolution",
    "convert",
    "create_model",
    "from_pretrained",
    "list_models",
    "list_pretrained",
    "materialize",
    "recalibrate_batchnorm",
    "refresh_extents",
    "save_pretrained",
]

load_fast_versions()
