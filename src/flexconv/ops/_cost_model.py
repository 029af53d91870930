"""Cost model of the algorithms: the time of a convolution, estimated from its shapes.

    time = c₀ + Σ_i c_i · count_i

The counts are numbers of operations and of memory accesses. The coefficients are nanoseconds per call (c₀) and per
operation. They depend on the device, the precision, whether gradients are computed, and the regime, which names the
library code that would run. `benchmarks/calibrate.py` fits them to measured times and writes `_calibration_cpu.py` and
`_calibration_cuda.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import NamedTuple

from ._dft_matrices import TransformSpec
from ._dft_plan import SMALL_BATCH, make_plan
from ._fft import circular_lengths
from ._geometry import Geometry, output_sizes
from ._monarch import ROWS, cut_into_chunks, has_odd_rows
from ._tiles import TILE, cut_into_tiles

WIDE_KERNEL = 14  # taps along the last axis from which libraries use slower code
FACTORED_SPECTRUM = 0.2  # cost of a kernel's spectrum from those of its basis functions, relative to a transform
MIN_BATCH, MIN_CHANNELS, CHANNELS_LAST_TAPS = 8, 16, range(5, 10)  # see `channels_last_is_faster`
ROW_ALIGNMENT = 8  # numbers in half precision that are loaded at once
CHANNEL_TILE = {"cuda": 64, "cpu": 16}  # channels of a group are counted in multiples of these numbers
CHANNEL_ALIGNMENT = {"cuda": 8, "cpu": 16}  # tensor cores and vector units process channels in such multiples


class Problem(NamedTuple):
    """A convolution of x [batch, in, *size] and weight [out, in/groups, *taps], and where it runs."""

    device: str  # "cpu" or "cuda"
    precision: str  # "full" or "half"
    x: tuple[int, ...]
    weight: tuple[int, ...]
    geometry: Geometry
    rank: int | None = None  # number of basis functions of a `FactoredKernel`

    @property
    def outputs(self) -> tuple[int, ...]:
        """Number of outputs along each axis."""
        return output_sizes(self.x[2:], self.weight[2:], self.geometry)


class OperationCount(NamedTuple):
    """Numbers of operations, and the regime whose coefficients apply to them."""

    regime: str
    counts: tuple[float, ...]


class Calibration(NamedTuple):
    """What was measured for one device and precision, with or without gradients."""

    coefficients: dict[str, dict[str, tuple[float, ...]]]  # (c₀, c₁, …) in nanoseconds, by algorithm and regime
    overrides: dict[tuple[int, ...], str]  # the fastest algorithm where the estimate was wrong, see `_select.py`


def estimate_times(calibration: Calibration, problem: Problem) -> dict[str, float]:
    """Return the estimated nanoseconds of each algorithm that has coefficients for this problem."""
    times = {}
    for name, regimes in calibration.coefficients.items():
        operations = OPERATION_COUNTS[name](problem)
        if operations is not None and operations.regime in regimes:
            counts = (1.0, *operations.counts)
            times[name] = sum(c * count for c, count in zip(regimes[operations.regime], counts, strict=True))
    return times


def count_direct(problem: Problem) -> OperationCount:
    """Count multiplications, elements read and written, and products that are added to one output.

    Multiplications that mix channels are counted again with the channels of a group rounded up to whole tiles, because
    libraries compute whole tiles: few channels take almost as long as a tile of them.
    """
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    outputs, groups = math.prod(problem.outputs), problem.geometry.groups
    regime = library_regime(problem)
    if fan_in > 1 and groups == 1:
        regime += " aligned" if _is_aligned(problem) else " unaligned"
    tile = CHANNEL_TILE[problem.device]
    tiles = groups * -(-(out // groups) // tile) * -(-fan_in // tile) if fan_in > 1 else 0
    return OperationCount(
        regime,
        (
            batch * out * fan_in * outputs * math.prod(taps),
            batch * (channels * math.prod(size) + out * outputs),
            fan_in * math.prod(taps),
            batch * tiles * tile**2 * outputs * math.prod(taps),
        ),
    )


def count_fft(problem: Problem) -> OperationCount:
    """Count points × log₂ points of all transforms, multiplications of spectra, and points of all transforms.

    The last count is the number of matrix products that mix channels: one per frequency and group.
    """
    batch, channels, *size = problem.x
    out, fan_in, *taps = problem.weight
    lengths = circular_lengths(tuple(size), tuple(taps), problem.geometry.pads, problem.geometry.dilation)
    points = math.prod(lengths)
    freqs = math.prod(lengths[:-1]) * (lengths[-1] // 2 + 1)
    pairs = out * fan_in
    kernels = pairs if problem.rank is None else problem.rank + FACTORED_SPECTRUM * pairs
    transforms = batch * (channels + out) + kernels
    products = problem.geometry.groups * freqs if fan_in > 1 else 0
    return OperationCount(
        library_regime(problem),
        (transforms * points * math.log2(max(points, 2)), batch * pairs * freqs, transforms * points, products),
    )


def count_dft(problem: Problem) -> OperationCount | None:
    """Count multiplications to transform data, to transform the kernel and to mix channels, and elements moved.

    Multiplications to transform data are counted again if their sizes are not aligned.
    Returns None for shapes without a plan, for which `dft_conv` would use the FFT.
    """
    # index() turns symbolic sizes into integers, as in `dft_conv`
    batch, channels, *size = (index(n) for n in problem.x)
    out, fan_in, *taps = (index(n) for n in problem.weight)
    outputs = tuple(index(n) for n in problem.outputs)
    pads = [(index(left), index(right)) for left, right in problem.geometry.pads]
    used = tuple(max(1, n + min(0, left) + min(0, right)) for n, (left, right) in zip(size, pads, strict=True))
    left_padding = tuple(max(0, left) for left, _ in pads)
    plan = make_plan(
        used,
        tuple(taps),
        outputs,
        left_padding,
        problem.geometry.stride,
        problem.geometry.dilation,
        small_batch=batch * channels <= SMALL_BATCH,
    )
    if plan is None:
        return None
    for_x, for_kernel, for_y = (_transform_multiplications(spec) for spec in plan)
    spectrum, pairs = math.prod(plan.x.lengths), out * fan_in
    kernels = pairs * for_kernel if problem.rank is None else problem.rank * (for_kernel + pairs * spectrum)
    data_moved = batch * (channels * (math.prod(used) + spectrum) + out * (math.prod(outputs) + spectrum))
    # a dimension of the first and of the last matrix product
    sizes = (math.prod(used), math.prod(outputs)) if plan.kind == "single" else (used[-1], outputs[-1])
    transforms = batch * (channels * for_x + out * for_y)
    return OperationCount(
        f"{len(used)}D {plan.kind} {_channel_mixing(problem)}",
        (
            transforms,
            kernels,
            2 * batch * pairs * spectrum,
            data_moved + pairs * (math.prod(taps) + spectrum),
            *(_unaligned(problem, sizes) * count for count in (transforms, data_moved)),
        ),
    )


def count_toeplitz(problem: Problem) -> OperationCount | None:
    """Count multiplications, elements of the tiles that are moved, and elements of the matrices.

    Elements of the tiles are counted again if rows are not aligned.
    Returns None for shapes that `toeplitz_conv` leaves to torch, and for one input channel, which was not measured.
    """
    batch, channels, *size = (index(n) for n in problem.x)
    out, fan_in, *taps = (index(n) for n in problem.weight)
    stride, pads, dilation, _ = problem.geometry
    if fan_in > 1 or channels == 1 or problem.device != "cuda" or max(*stride, *dilation) > 1:
        return None
    outputs = tuple(index(n) for n in problem.outputs)
    used = tuple(max(1, n + min(0, left) + min(0, right)) for n, (left, right) in zip(size, pads, strict=True))
    left_padding = tuple(max(0, index(left)) for left, _ in pads)
    tiles = cut_into_tiles(used, tuple(taps), left_padding, outputs)
    moved = batch * TILE * (channels * math.prod(tiles.inputs) + out * math.prod(tiles.outputs))
    return OperationCount(
        f"{len(used)}D toeplitz",
        (
            batch * out * tiles.pairs * TILE**2,
            moved,
            out * math.prod(tiles.offsets) * TILE**2,
            _unaligned(problem, (used[-1], outputs[-1])) * moved,
        ),
    )


def count_monarch(problem: Problem) -> OperationCount | None:
    """Count multiplications of transforms, products of spectra, elements of x and y, and those of kernels' spectra.

    Returns None for shapes that `monarch_conv` leaves to the FFT, and for one input channel, which was not measured.
    """
    batch, channels, *size = (index(n) for n in problem.x)
    out, fan_in, *taps = (index(n) for n in problem.weight)
    stride, pads, dilation, _ = problem.geometry
    if fan_in > 1 or channels == 1 or problem.device != "cuda" or len(size) > 2 or max(*stride, *dilation) > 1:
        return None
    outputs = tuple(index(n) for n in problem.outputs)
    used = tuple(max(1, n + min(0, left) + min(0, right)) for n, (left, right) in zip(size, pads, strict=True))
    odd = problem.precision == "half" and has_odd_rows(used, outputs)
    left_padding = tuple(max(0, index(left)) for left, _ in pads)
    chunks = cut_into_chunks(used, tuple(taps), left_padding, outputs)
    single = chunks.inputs == chunks.outputs == 1
    return OperationCount(
        f"{len(used)}D {'one chunk' if single else 'several chunks'}{' odd' if odd else ''}",
        (
            batch * out * (chunks.inputs + chunks.outputs) * chunks.length * (2 * ROWS + 4 * chunks.columns),
            batch * out * chunks.pairs * chunks.length,
            batch * (channels * math.prod(used) + out * math.prod(outputs)),
            out * chunks.lags * chunks.length,
        ),
    )


OPERATION_COUNTS: dict[str, Callable[[Problem], OperationCount | None]] = {
    "direct": count_direct,
    "fft": count_fft,
    "dft": count_dft,
    "toeplitz": count_toeplitz,
    "monarch": count_monarch,
}


def library_regime(problem: Problem) -> str:
    """Return the regime of a direct convolution or an FFT: libraries have very different code for each."""
    mixing, dims = _channel_mixing(problem), len(problem.weight) - 2
    mixing = "grouped" if mixing == "dense" and problem.geometry.groups > 1 else mixing
    narrow = problem.weight[-1] < WIDE_KERNEL
    if problem.device == "cuda":
        return f"{dims}D {'narrow' if narrow else 'wide'} {mixing}"
    return mixing if narrow else f"long {mixing}" if dims == 1 else f"wide {mixing}"


def _channel_mixing(problem: Problem) -> str:
    return "dense" if problem.weight[1] > 1 else "depthwise"


def _unaligned(problem: Problem, sizes: Sequence[int]) -> int:
    """Return 1 if sizes are no multiples of what is loaded at once in half precision, else 0.

    Matrix products in half precision then take several times as long. In full precision, the difference is small.
    """
    return int(problem.precision == "half" and any(size % ROW_ALIGNMENT for size in sizes))


def _is_aligned(problem: Problem) -> bool:
    """Whether libraries use their fast code for these numbers of channels."""
    out, fan_in, step = *problem.weight[:2], CHANNEL_ALIGNMENT[problem.device]
    if problem.device == "cuda":
        return out % step == 0 and fan_in % step == 0
    return out % step == 0 or channels_last_is_faster(problem.x, problem.weight)


def channels_last_is_faster(x: Sequence[int], weight: Sequence[int]) -> bool:
    """Whether a dense 2D convolution on a CPU is faster with the channels last in memory, copies included.

    5 × 5 to 9 × 9 taps then take 0.7 to 0.9 of the time with gradients. The gradient of larger kernels can take 40
    times as long.
    """
    taps = weight[2:]
    enough = x[0] >= MIN_BATCH and weight[0] >= MIN_CHANNELS and weight[1] >= MIN_CHANNELS
    return enough and len(taps) == 2 and all(k in CHANNELS_LAST_TAPS for k in taps)


def _transform_multiplications(spec: TransformSpec) -> int:
    """Count the multiplications of one transform of one channel."""
    numbers = [positions.number for positions in spec.positions]
    if spec.kind == "two-level":  # columns, then rows
        outer, inner = spec.lengths
        return numbers[0] * outer + 2 * outer * inner**2
    *others, last = spec.lengths
    if spec.kind == "single":
        return math.prod(spec.lengths) * math.prod(numbers)
    lines = math.prod(numbers[:-1])
    total = lines * numbers[-1] * last
    for length, number in zip(reversed(others), reversed(numbers[:-1]), strict=True):  # complex from here on
        total += 2 * lines * length * last
        lines, last = lines // number, last * length
    return total
