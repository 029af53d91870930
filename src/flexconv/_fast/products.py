"""Fast versions of the products in `flexconv.ops`: half precision on a GPU uses Triton kernels.

The kernels are imported when they are first used, since importing Triton takes long and it may not be installed.
"""

from __future__ import annotations

import functools

import torch

from .._registry import provide
from ..ops._complex_product import empty_product
from .launches import Launch
from .triton_support import fits_32_bits, triton_supports


def complex_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    """See `ops._complex_product`."""
    if not triton_supports(a):
        return NotImplemented
    shape, strides, launch = _complex_plan(
        a.shape, a.stride(), b.shape, b.stride(), a.dtype, conjugate, columns, contiguous
    )
    if launch is None:
        return NotImplemented
    c = torch.empty_strided(shape, strides, dtype=a.dtype, device=a.device)
    launch(a, b, c)
    return c


@functools.lru_cache(maxsize=1024)
def _complex_plan(
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    b_shape: tuple[int, ...],
    b_strides: tuple[int, ...],
    dtype: torch.dtype,  # noqa: ARG001  (every dtype needs its own launch)
    conjugate: bool,
    columns: int,
    contiguous: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], Launch | None]:
    """Shape and strides of the product, and the launch; None if an offset does not fit into 32 bits."""
    a, b = (torch.empty_strided(*each, device="meta") for each in ((a_shape, a_strides), (b_shape, b_strides)))
    c = empty_product(a, columns, contiguous)
    shape, strides = tuple(c.shape), c.stride()
    if not all(map(fits_32_bits, (a, b, c))):
        return shape, strides, None
    from .complex_product_triton import make_launch

    return shape, strides, make_launch(a_shape, a_strides, b_shape, b_strides, shape, strides, conjugate)


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
