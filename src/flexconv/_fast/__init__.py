"""Faster versions of functions of the core, found through `flexconv._registry`; everything works without them.

Importing this package registers them. It must not import Triton, Lightning or `torch._dynamo`, which take seconds.
"""

from . import adam as adam
from . import batches as batches
from . import capture as capture
from . import compiled_kernels as compiled_kernels
from . import compiled_norm as compiled_norm
from . import correlation as correlation
from . import cpu_conv as cpu_conv
from . import depthwise_conv as depthwise_conv
from . import depthwise_correlation as depthwise_correlation
from . import eager as eager
from . import engines as engines
from . import factors as factors
from . import fit as fit
from . import fused_operators as fused_operators
from . import products as products
from . import separable_blocks as separable_blocks
from . import sizes as sizes
from . import step as step
