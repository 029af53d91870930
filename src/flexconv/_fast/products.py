"""Fast versions of the products in `flexconv.ops` on a GPU: half precision uses Triton kernels.

The kernels are imported when they are first used, since importing Triton takes long and it may not be installed.
"""

from __future__ import annotations

import functools

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .._context import exporting
from .._registry import provide
from ..ops._complex_product import empty_product
from .launches import Launch
from .triton_support import fits_32_bits, has_triton, triton_supports


def complex_product(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    """See `ops._complex_product`."""
    if not triton_supports(a):
        by_bmm = a.is_cuda and a.element_size() == 4 and a.shape[2] == 1 and not isinstance(a, FakeTensor)
        return four_products(a, b, conjugate, columns, contiguous) if by_bmm else NotImplemented
    shape, strides, launch = _complex_plan(
        a.shape, a.stride(), b.shape, b.stride(), a.dtype, conjugate, columns, contiguous
    )
    if launch is None:
        return NotImplemented
    c = torch.empty_strided(shape, strides, dtype=a.dtype, device=a.device)
    launch(a, b, c)
    return c


def compiled_complex_product(
    a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool
) -> torch.Tensor:
    """`ops._complex_product.complex_product` in code that is being compiled: the compiler launches the Triton kernel.

    An operator written in Python takes three times as long on the host.
    """
    if not torch.compiler.is_compiling() or exporting() or not compiler_can_launch(a):
        return NotImplemented
    register_triton_operator()
    return torch.ops.flexconv.complex_product_triton(a, b, conjugate, columns, contiguous)


def compiler_can_launch(x: torch.Tensor) -> bool:
    """Whether a compiler can launch Triton kernels for tensors like `x`."""
    return x.is_cuda and x.element_size() == 2 and has_triton()


def register_triton_operator() -> bool:
    """Import the module that registers the operator. Importing Triton takes long, so this is done when it is needed."""
    from . import complex_product_operator as complex_product_operator

    return True


# This is what torch.compiler.assume_constant_result does: an import cannot be traced.
register_triton_operator._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def four_products(a: torch.Tensor, b: torch.Tensor, conjugate: bool, columns: int, contiguous: bool) -> torch.Tensor:
    """The complex product as four real ones that write where the result belongs, for one group of channels."""
    c = empty_product(a, columns, contiguous)
    terms, filled = min(a.shape[-1], b.shape[-2]), min(columns, b.shape[-1])
    (a_real, a_imaginary), (b_real, b_imaginary) = a[:, :, 0, :, :terms], b[:, :, 0, :terms, :filled]
    real, imaginary = c[:, :, 0, :, :filled]
    sign = -1 if conjugate else 1
    torch.bmm(a_real, b_real, out=real)
    real.baddbmm_(a_imaginary, b_imaginary, alpha=-sign)
    torch.bmm(a_imaginary, b_real, out=imaginary)
    imaginary.baddbmm_(a_real, b_imaginary, alpha=sign)
    if columns > filled:
        c[..., filled:] = 0.0
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
provide("ops.differentiable_complex_product", compiled_complex_product)
provide("ops.row_product", row_product)
