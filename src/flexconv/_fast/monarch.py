"""Launches of the kernels in `monarch_triton.py`: a depthwise convolution and its two gradients.

`ops/_monarch.py` has the equations. Spectra exist in memory only if there are several chunks.
"""

# Triton kernels are launched by subscripts.
# pyright: reportIndexIssue=false
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..ops._geometry import Pads
from ..ops._monarch import ROWS, Chunks, cached_chunks
from .toeplitz import output_size
from .triton_support import capturing

BLOCK = 512  # frequencies of a program that correlates
PROGRAMS = 1024  # a batch is split into parts such that there are at least this many programs


class Launch(NamedTuple):
    """How a kernel is launched."""

    samples: int  # of the batch per program, which loads the constant matrices once for all of them
    warps: int = 4
    stages: int = 1  # depth of the software pipeline
    registers: int | None = None  # largest number per thread, so that more programs run at the same time

    def options(self) -> dict[str, Any]:
        """Arguments of a launch."""
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers}


#: by the name of the kernel, or by its name and the columns of a chunk (`python -m benchmarks.tune_depthwise`)
LAUNCHES: dict[str | tuple[str, int], Launch] = {
    "transform": Launch(8),
    "combine": Launch(8),
    "correlate": Launch(64, stages=2),
    "convolve_chunk": Launch(16),
    ("convolve_chunk", 32): Launch(16, registers=128),
    ("convolve_chunk", 64): Launch(16, registers=168),
    "differentiate_chunk": Launch(16),
    ("differentiate_chunk", 32): Launch(16, registers=168),
    "transform_kernel": Launch(1),
    "kernel_gradient": Launch(1),
}


class Spectra(NamedTuple):
    """Transforms of the chunks of a tensor, divided by scales: `data` [channels, batch, chunks, 2, rows, columns].

    Kernels have one transform per lag in place of those per sample and chunk.
    """

    data: torch.Tensor
    scales: torch.Tensor  # [channels, batch, chunks]


class Matrices(NamedTuple):
    """The constant matrices of a transform, each with its real and its imaginary part."""

    f: torch.Tensor
    f_transposed: torch.Tensor
    twiddles: torch.Tensor
    g: torch.Tensor


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pads: Pads) -> torch.Tensor:
    """The convolution of x [batch, channels, *size] and weight [channels, *taps]."""
    outputs = output_size(x.shape[2:], weight.shape[1:], pads)
    pads = _even_pads(x, x.shape[2:], outputs, pads)
    x = _even_rows(x)
    chunks = _cut(x.shape[2:], weight.shape[1:], pads)
    y = _empty_with_even_rows(x, outputs)
    kernels = _kernel_spectra(weight, chunks)
    if _is_single(chunks):
        _convolve_chunk(x, kernels, bias, y, chunks, adjoint=False)
    else:
        _combine(make_spectra(x, chunks), kernels, bias, y, chunks, adjoint=False)
    return _crop_rows(y, outputs)


def input_gradient(grad: torch.Tensor, weight: torch.Tensor, pads: Pads, size: Sequence[int]) -> torch.Tensor:
    """The gradient of x: a convolution with the flipped kernel, whose spectrum is the conjugate one."""
    pads = _even_pads(grad, size, grad.shape[2:], pads)
    grad, found = _even_rows(grad), _empty_with_even_rows(grad, size)
    chunks = _cut(found.shape[2:], weight.shape[1:], pads)
    kernels = _kernel_spectra(weight, chunks)
    if _is_single(chunks):
        _convolve_chunk(grad, kernels, None, found, chunks, adjoint=True)
    else:
        _combine(make_spectra(grad, chunks), kernels, None, found, chunks, adjoint=True)
    return _crop_rows(found, size)


def weight_gradient(x: torch.Tensor, grad: torch.Tensor, pads: Pads, taps: Sequence[int]) -> torch.Tensor:
    """The gradient of weight: products of the spectra of x and grad, of which the sum over the batch is transformed."""
    pads = _even_pads(x, x.shape[2:], grad.shape[2:], pads)
    x, grad = _even_rows(x), _even_rows(grad)
    chunks = _cut(x.shape[2:], taps, pads)
    if _is_single(chunks):
        return _differentiate_chunk(x, grad, None, None, taps, chunks)
    return _correlate(make_spectra(x, chunks), make_spectra(grad, chunks), x, taps, chunks)


def gradients(
    x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, pads: Pads
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of weight together."""
    size, taps = x.shape[2:], weight.shape[1:]
    pads = _even_pads(x, size, grad.shape[2:], pads)
    x, grad, of_x = _even_rows(x), _even_rows(grad), _empty_with_even_rows(x, size)
    chunks = _cut(x.shape[2:], taps, pads)
    kernels = _kernel_spectra(weight, chunks)
    if _is_single(chunks):
        of_weight = _differentiate_chunk(x, grad, kernels, of_x, taps, chunks)
    else:
        spectra = make_spectra(grad, chunks)
        _combine(spectra, kernels, None, of_x, chunks, adjoint=True)
        of_weight = _correlate(make_spectra(x, chunks), spectra, x, taps, chunks)
    return _crop_rows(of_x, size), of_weight


# Rows of an odd length in half precision are padded by one number. Without it, numbers are loaded one by one, and the
# kernels for single chunks that Triton 3.6 compiles for that end in illegal memory accesses on an H200, though not in
# the interpreter. The cause is not known; `benchmarks/odd_rows.py` reproduces it.


def _pads_rows(x: torch.Tensor) -> bool:
    return x.element_size() == 2


def _even_rows(x: torch.Tensor) -> torch.Tensor:
    """x with a zero behind each row if rows have an odd length."""
    return torch.nn.functional.pad(x, (0, 1)) if _pads_rows(x) and x.shape[-1] % 2 else x


def _even_pads(x: torch.Tensor, size: Sequence[int], outputs: Sequence[int], pads: Pads) -> Pads:
    """The padding for which rows of an even number of inputs have an even number of outputs."""
    if not _pads_rows(x) or size[-1] % 2 == outputs[-1] % 2:
        return pads
    left, right = pads[-1]
    return (*pads[:-1], (left, right - size[-1] % 2 + outputs[-1] % 2))


def _empty_with_even_rows(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """A tensor like x of this size, with one more number per row if rows have an odd length."""
    return x.new_empty(*x.shape[:2], *size[:-1], size[-1] + (size[-1] % 2 if _pads_rows(x) else 0))


def _crop_rows(y: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """The first numbers of each row."""
    return y if y.shape[-1] == size[-1] else y[..., : size[-1]].contiguous()


def make_spectra(x: torch.Tensor, chunks: Chunks) -> Spectra:
    """The transforms of the chunks of x [batch, channels, *size], which are inputs or outputs."""
    from . import monarch_triton as kernels

    x = x.contiguous()
    batch, channels, *size = x.shape
    number, unit = chunks.number_of(tuple(size)), _unit(chunks, size)
    matrices = _matrices(x, chunks)
    data = x.new_empty(channels, batch, number, 2, ROWS, chunks.columns, dtype=matrices.f.dtype)
    scales = x.new_empty(channels, batch, number, dtype=torch.float32)
    samples, parts = _parts(_launch("transform", chunks), batch, channels * number)
    with torch.cuda.device_of(x):
        kernels.transform[(parts * number, channels)](
            x, data, scales, matrices.f, matrices.twiddles, matrices.g, batch, channels,
            *_units(size, unit), chunks.pitch // unit, number, samples, UNIT=unit,
            **_options("transform", matrices, chunks),
        )  # fmt: skip
    return Spectra(data, scales)


def _kernel_spectra(weight: torch.Tensor, chunks: Chunks) -> Spectra:
    """The transforms of the kernel: `data` [channels, lags, 2, rows, columns] and `scales` [channels, lags]."""
    from . import monarch_triton as kernels

    weight = weight.contiguous()
    channels, *taps = weight.shape
    matrices = _matrices(weight, chunks, of_kernel=True)
    data = weight.new_empty(channels, chunks.lags, 2, ROWS, chunks.columns, dtype=matrices.f.dtype)
    scales = weight.new_empty(channels, chunks.lags, dtype=torch.float32)
    with torch.cuda.device_of(weight):
        kernels.transform_kernel[(chunks.lags, channels)](
            weight, data, scales, matrices.f, matrices.twiddles, matrices.g, *_two(taps), max(1, chunks.pitch),
            chunks.largest_lag, chunks.first_lag, chunks.lags, **_options("transform_kernel", matrices, chunks),
        )  # fmt: skip
    return Spectra(data, scales)


def _combine(
    spectra: Spectra,
    kernel_spectra: Spectra,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    chunks: Chunks,
    *,
    adjoint: bool,
) -> None:
    """Fill y with the convolution, or with the gradient of its input."""
    from . import monarch_triton as kernels

    batch, channels, *size = y.shape
    unit = _unit(chunks, size)
    inputs, outputs = (chunks.outputs, chunks.inputs) if adjoint else (chunks.inputs, chunks.outputs)
    matrices = _matrices(y, chunks)
    samples, parts = _parts(_launch("combine", chunks), batch, channels * outputs)
    with torch.cuda.device_of(y):
        kernels.combine[(parts * outputs, channels)](
            *spectra, *kernel_spectra, y if bias is None else bias, y, matrices.f_transposed, matrices.twiddles,
            matrices.g, batch, channels, *_units(size, unit), chunks.pitch // unit, inputs, outputs, chunks.first_lag,
            chunks.lags, samples, UNIT=unit, ADJOINT=adjoint, BIAS=bias is not None,
            **_options("combine", matrices, chunks),
        )  # fmt: skip


def _convolve_chunk(
    x: torch.Tensor,
    kernel_spectra: Spectra,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    chunks: Chunks,
    *,
    adjoint: bool,
) -> None:
    """Fill y with the convolution, or with the gradient of its input, for sequences of one chunk."""
    from . import monarch_triton as kernels

    x = x.contiguous()
    (batch, channels, *size), size_y = x.shape, y.shape[2:]
    unit = _unit(chunks, size, size_y)
    matrices = _matrices(x, chunks)
    samples, parts = _parts(_launch("convolve_chunk", chunks), batch, channels)
    with torch.cuda.device_of(x):
        kernels.convolve_chunk[(parts, channels)](
            x, *kernel_spectra, y if bias is None else bias, y, *matrices, matrices.twiddles, batch, channels,
            *_units(size, unit), *_units(size_y, unit), chunks.pitch // unit, samples, UNIT=unit, ADJOINT=adjoint,
            BIAS=bias is not None, **_options("convolve_chunk", matrices, chunks),
        )  # fmt: skip


def _differentiate_chunk(
    x: torch.Tensor,
    grad: torch.Tensor,
    kernel_spectra: Spectra | None,
    grad_x: torch.Tensor | None,
    taps: Sequence[int],
    chunks: Chunks,
) -> torch.Tensor:
    """The gradient of weight for sequences of one chunk. Fills `grad_x` as well, if the kernel is given."""
    from . import monarch_triton as kernels

    x, grad = x.contiguous(), grad.contiguous()
    (batch, channels, *size), size_y = x.shape, grad.shape[2:]
    unit = _unit(chunks, size, size_y)
    matrices = _matrices(x, chunks)
    samples, parts = _parts(_launch("differentiate_chunk", chunks), batch, channels)
    sums = x.new_empty(parts, channels, 1, 2, ROWS, chunks.columns, dtype=torch.float32)
    with torch.cuda.device_of(x):
        kernels.differentiate_chunk[(parts, channels)](
            x, grad, *(kernel_spectra or (sums, sums)), x if grad_x is None else grad_x, sums, *matrices,
            matrices.twiddles, batch, channels, *_units(size, unit), *_units(size_y, unit), chunks.pitch // unit,
            samples, UNIT=unit, NEEDS_X=grad_x is not None, **_options("differentiate_chunk", matrices, chunks),
        )  # fmt: skip
    return _kernel_gradient(sums, x, taps, chunks)


def _correlate(x: Spectra, grad: Spectra, like: torch.Tensor, taps: Sequence[int], chunks: Chunks) -> torch.Tensor:
    """The gradient of weight from the spectra of x and of the gradient of y."""
    from . import monarch_triton as kernels

    channels, batch = x.scales.shape[:2]
    blocks = chunks.length // BLOCK
    samples, parts = _parts(_launch("correlate", chunks), batch, channels * chunks.lags * blocks)
    sums = like.new_empty(parts, channels, chunks.lags, 2, ROWS, chunks.columns, dtype=torch.float32)
    with torch.cuda.device_of(like):
        kernels.correlate[(chunks.lags * blocks, channels, parts)](
            *x, *grad, sums, batch, channels, chunks.inputs, chunks.outputs, chunks.first_lag, chunks.lags, samples,
            LENGTH=chunks.length, BLOCK=BLOCK, **_launch("correlate", chunks).options(),
        )  # fmt: skip
    return _kernel_gradient(sums, like, taps, chunks)


def _kernel_gradient(sums: torch.Tensor, like: torch.Tensor, taps: Sequence[int], chunks: Chunks) -> torch.Tensor:
    """The gradient of weight from the sums of products of spectra."""
    from . import monarch_triton as kernels

    parts, channels = sums.shape[:2]
    matrices = _matrices(like, chunks, of_kernel=True)
    found = like.new_empty(channels, *taps)
    with torch.cuda.device_of(like):
        kernels.kernel_gradient[(chunks.kernels, channels)](
            sums, found, matrices.f_transposed, matrices.twiddles, matrices.g, channels, *_two(taps),
            max(1, chunks.pitch), chunks.largest_lag, chunks.first_lag, chunks.lags, chunks.first_kernel, parts,
            **_options("kernel_gradient", matrices, chunks),
        )  # fmt: skip
    return found


def _cut(size: Sequence[int], taps: Sequence[int], pads: Pads) -> Chunks:
    left = tuple(pad for pad, _ in pads)
    return cached_chunks(tuple(size), tuple(taps), left, output_size(size, taps, pads))


def _is_single(chunks: Chunks) -> bool:
    """Whether the kernels for a single chunk apply."""
    return chunks.inputs == chunks.outputs == 1


def _launch(name: str, chunks: Chunks) -> Launch:
    return LAUNCHES.get((name, chunks.columns)) or LAUNCHES[name]


def _parts(launch: Launch, batch: int, others: int) -> tuple[int, int]:
    """The number of samples of a program, and the number of parts of the batch. There are `others` parts besides."""
    samples = max(1, min(launch.samples, batch * others // PROGRAMS, batch))
    return samples, -(-batch // samples)


def _options(name: str, matrices: Matrices, chunks: Chunks) -> dict[str, Any]:
    """Compile-time arguments of a kernel that transforms. Three products in TF32 are as accurate as one in float32."""
    full = matrices.g.dtype == torch.float32
    options = _launch(name, chunks).options()
    if full:  # which needs more registers
        options["maxnreg"] = None
    return {
        "IMAGE": chunks.pitch > 0,
        "COLUMNS": chunks.columns,
        "PRECISION": "tf32x3" if full else "tf32",
        **options,
    }


def _unit(chunks: Chunks, *sizes: Sequence[int]) -> int:
    """The largest power of two up to 8 that divides the pitch and the length of all rows.

    Triton has to know it to load several numbers at once.
    """
    return math.gcd(8, chunks.pitch, *(size[-1] for size in sizes))


def _units(size: Sequence[int], unit: int) -> tuple[int, int]:
    """The number of rows, and their length in units."""
    height, width = _two(size)
    return height, width // unit


def _two(size: Sequence[int]) -> tuple[int, int]:
    """The number of rows and columns. A sequence has one row."""
    return (1, size[0]) if len(size) == 1 else (size[0], size[1])


def _matrices(x: torch.Tensor, chunks: Chunks, *, of_kernel: bool = False) -> Matrices:
    """The constant matrices on the device of x, as operands of products for its dtype.

    If x is float16, kernels are transformed in float32, and the elements W are float32. Otherwise all roundings of the
    transforms together would be more than twice the error of a direct convolution.
    """
    half = x.dtype == torch.bfloat16 or (x.dtype == torch.float16 and not of_kernel)
    dtype = torch.float16 if half else torch.float32
    key = chunks.columns, dtype, torch.float16 if x.dtype == torch.bfloat16 else torch.float32, x.device
    if key not in _known and capturing(x.device):  # memory that is allocated now belongs to the graph
        return _build_matrices(*key)
    if key not in _known:
        with _disable_current_modes(), torch.inference_mode(False):
            _known[key] = _build_matrices(*key)
    return _known[key]


_known: dict[tuple[int, torch.dtype, torch.dtype, torch.device], Matrices] = {}


def _build_matrices(columns: int, dtype: torch.dtype, dtype_of_twiddles: torch.dtype, device: torch.device) -> Matrices:
    row, column = (torch.arange(n, device=device) for n in (ROWS, columns))
    f = _roots(4 * row[:, None] + 1, row, 4 * ROWS).to(dtype)
    twiddles = _roots(4 * row[:, None] + 1, column, 4 * ROWS * columns).to(dtype_of_twiddles)
    g = _roots(column[:, None], column, columns).to(dtype)
    return Matrices(f, f.transpose(1, 2).contiguous(), twiddles, g)


def _roots(rows: torch.Tensor, columns: torch.Tensor, number: int) -> torch.Tensor:
    """Real and imaginary parts of exp(−2πi · rows · columns / number)."""
    phases = (-2.0 * math.pi / number) * (rows * columns % number).double()
    return torch.stack((phases.cos(), phases.sin()))
