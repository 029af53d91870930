"""Fast versions of the products in `flexconv.ops`: half precision on a GPU uses Triton kernels.

The kernels are imported when they are first used, since importing Triton takes long and it may not be installed.
"""

from __future__ import annotations

import torch

from .._registry import provide
from ..ops._complex_product import empty_product
from .triton_support import fits_32_bits, triton_supports


def complex_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    """See `ops._complex_product`."""
    if not triton_supports(a):
        return NotImplemented
    c = empty_product(a, columns, contiguous)
    if not all(map(fits_32_bits, (a, b, c))):
        return NotImplemented
    from .complex_product_triton import launch

    launch(a, b, c, conjugate)
    return c


def row_product(matrix: torch.Tensor, x: torch.Tensor, width: int, length: int) -> torch.Tensor:
    """See `ops._row_product`."""
    if not triton_supports(x):
        return NotImplemented
    from .row_product_triton import launch

    y = x.new_empty(len(x), length)
    launch(matrix, x if x.stride(1) == 1 else x.contiguous(), y, width)
    return y


provide("ops.complex_product", complex_product)
provide("ops.row_product", row_product)
