"""Time the launch parameters of depthwise convolutions on a GPU.

    python -m benchmarks.tune_depthwise [monarch] [images] [rows] [errors]

`monarch` times sequences and images by Monarch transforms, `images` the Toeplitz products in 2D, and `rows` those of
whole rows of tiles, next to those of single tiles. For each kernel, some launches are tried while all others keep their
values in `flexconv._fast`; the fastest is marked. `errors` compares the results of `monarch` with float64. Times are
milliseconds in bf16, as replayed CUDA graphs. Compiling takes most of the time of the program: about a minute each.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from flexconv import ops
from flexconv._fast import monarch, toeplitz
from flexconv.bench import measure
from flexconv.bench.timing import as_in_training
from flexconv.ops import _tiles

CUDA = torch.device("cuda")
SHORT, LONG = (64, 768, 4096), (16, 768, 16384)
IMAGES = [((64, 96, 32, 32), 33), ((64, 384, 56, 56), 31)]

MONARCH = {
    "convolve_chunk": [
        monarch.Launch(samples, registers=registers, stages=stages)
        for samples, registers, stages in (
            (16, 168, 1), (16, None, 1), (16, 128, 1), (64, 168, 1), (4, 168, 1), (16, 168, 2), (16, None, 2),
        )
    ],
    "differentiate_chunk": [
        monarch.Launch(samples, registers=registers)
        for samples, registers in ((16, None), (64, None), (8, None), (16, 168), (16, 128))
    ],
    "transform": [
        monarch.Launch(samples, registers=registers, stages=stages)
        for samples, registers, stages in ((8, None, 1), (4, None, 1), (16, None, 1), (8, 128, 1), (8, None, 2))
    ],
    "combine": [
        monarch.Launch(samples, registers=registers)
        for samples, registers in ((8, None), (4, None), (16, None), (8, 128))
    ],
    "correlate": [monarch.Launch(samples, warps, stages) for samples, warps, stages in (
        (64, 4, 2), (64, 4, 1), (64, 4, 4), (64, 2, 2), (16, 4, 2), (8, 4, 2),
    )],
}  # fmt: skip
MULTIPLY = [
    toeplitz.Launch(rows, warps, stages)
    for rows, warps, stages in (
        (64, 4, 3), (64, 4, 4), (64, 4, 2), (128, 4, 3), (128, 8, 3), (128, 4, 4), (128, 8, 4), (256, 8, 3),
    )
]  # fmt: skip
CORRELATE = [
    toeplitz.Launch(rows, warps, stages)
    for rows, warps, stages in ((64, 4, 3), (64, 4, 2), (64, 4, 4), (64, 4, 5), (128, 4, 2), (128, 4, 3), (32, 4, 4))
]
ROWS = [toeplitz.Launch(64, warps, stages) for warps, stages in ((4, 1), (4, 2), (8, 1), (8, 2), (4, 3))]
ROW_CASES = [((64, 96, 32, 32), 33), ((64, 96, 32, 32), 17)]


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"errors": compare_errors, "monarch": tune_monarch, "images": tune_images, "rows": tune_rows}
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one of {', '.join(parts)} (default: all)")
    for name in parser.parse_args().parts or parts:
        begin = time.perf_counter()
        parts[name]()
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)


def compare_errors() -> None:
    """Print errors of the output and of both gradients, relative to the FFT in float64."""
    cases = [
        (3, 4, 4096, 4096, "causal"),
        (3, 4, 5000, 301, "same"),
        (2, 3, 16384, 16384, "causal"),
        (2, 3, 900, 77, "same"),
    ]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for batch, channels, size, taps, padding in cases:
            x = torch.randn(batch, channels, size, device=CUDA).to(dtype).requires_grad_()
            w = (torch.randn(channels, 1, taps, device=CUDA) / taps**0.5).to(dtype).requires_grad_()
            conv = partial(ops.conv1d, padding=padding, groups=channels)
            y, expected = conv(x, w, algorithm="monarch"), conv(x.double(), w.double(), algorithm="fft")
            grad = torch.randn_like(y)
            found = y, *torch.autograd.grad(y, (x, w), grad)
            wanted = expected, *torch.autograd.grad(expected, (x, w), grad.double())
            errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, wanted, strict=True)]
            print(f"{dtype!s:15} {size:6} samples {taps:6} taps: " + " ".join(f"{each:.1e}" for each in errors))


def tune_monarch() -> None:
    """Time the kernels for sequences, causal, and for images, centered."""
    sequences = [((*shape[:2], shape[2:]), shape[2:], ((shape[2] - 1, 0),)) for shape in (SHORT, LONG)]
    images = [((*shape[:2], shape[2:]), (taps, taps), ((taps // 2, taps // 2),) * 2) for shape, taps in IMAGES]
    for (batch, channels, size), taps, pads in sequences + images:
        x = torch.randn(batch, channels, *size, device=CUDA, dtype=torch.bfloat16)
        w = torch.randn(channels, *taps, device=CUDA, dtype=torch.bfloat16) / math.prod(taps) ** 0.5
        chunks = monarch._cut(size, taps, pads)
        y, kernels = torch.empty_like(x), monarch._kernel_spectra(w, chunks)
        print(batch, channels, size, taps, chunks)
        passes = {
            "forward": partial(monarch.convolve, x, w, None, pads),
            "backward": partial(monarch.gradients, x, w, x, pads),
            "transform_kernel": partial(monarch._kernel_spectra, w, chunks),
        }
        report("  passes", passes.items())
        tune = partial(tune_kernel, columns=chunks.columns)
        if monarch._is_single(chunks):
            tune("convolve_chunk", partial(monarch._convolve_chunk, x, kernels, None, y, chunks, adjoint=False))
            tune("differentiate_chunk", partial(monarch._differentiate_chunk, x, x, kernels, y, taps, chunks))
        if len(size) == 1:
            spectra = monarch.make_spectra(x, chunks)
            tune("transform", partial(monarch.make_spectra, x, chunks))
            tune("combine", partial(monarch._combine, spectra, kernels, None, y, chunks, adjoint=False))
            tune("correlate", partial(monarch._correlate, spectra, spectra, x, taps, chunks))
            del spectra
        del x, y, passes
        torch.cuda.empty_cache()


def tune_kernel(name: str, call: Callable[[], object], columns: int) -> None:
    """Time one function of `monarch` with several launches of a kernel."""
    key = name, columns
    tried = ((str(tuple(launch)), partial(_with, monarch.LAUNCHES, key, launch, call)) for launch in MONARCH[name])
    report(f"  {name}", tried)


def tune_images() -> None:
    """Time shapes of tiles and launches of the kernels for images, one after the other."""
    shapes = _tiles.SHAPES[2]
    for shape, taps in IMAGES:
        x = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
        w = torch.randn(shape[1], taps, taps, device=CUDA, dtype=torch.bfloat16) / taps
        pads = ((taps // 2, taps // 2),) * 2
        print(*shape, taps)

        forward = partial(toeplitz.convolve, x, w, None, pads)
        of_weight = partial(toeplitz.weight_gradient, x, x, pads, w.shape[1:])
        for tile in shapes[:3]:
            _tiles.SHAPES[2] = (tile,)
            toeplitz.cached_tiles.cache_clear()
            calls = (("forward", forward), ("of weight", of_weight))
            report(f"  tiles {tile}", calls)
        _tiles.SHAPES[2] = shapes
        toeplitz.cached_tiles.cache_clear()
        packing = partial(toeplitz.make_blocks, x, toeplitz._cut(x.shape[2:], w.shape[1:], pads).shape)
        report("  packing", [("x", packing)])
        report(
            "  multiply", ((str(tuple(each)), partial(_with, toeplitz.MULTIPLY, 2, each, forward)) for each in MULTIPLY)
        )
        report(
            "  correlate",
            ((str(tuple(each)), partial(_with, toeplitz.CORRELATE, 2, each, of_weight)) for each in CORRELATE),
        )


def tune_rows() -> None:
    """Time the kernel for rows of tiles, and all passes with and without the best launch of it."""
    lines = []
    for shape, taps in ROW_CASES:
        x = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
        w = torch.randn(shape[1], taps, taps, device=CUDA, dtype=torch.bfloat16) / taps
        pads = ((taps // 2, taps // 2),) * 2
        tiles = toeplitz._cut(x.shape[2:], w.shape[1:], pads)
        forward, passes = partial(toeplitz.convolve, x, w, None, pads), partial(_both_passes, x, w, pads)
        print(*shape, taps, tiles)
        report("  packing", [("x", partial(toeplitz.make_blocks, x, tiles.shape))])
        tried = {"single tiles": None, **{str(tuple(each)): each for each in ROWS}}
        with_launch = partial(_with, toeplitz.MULTIPLY_ROWS, (tiles.inputs[1], toeplitz._reach(tiles)))
        times = report("  forward", ((name, partial(with_launch, each, forward)) for name, each in tried.items()))
        for name in dict.fromkeys(("single tiles", min(times, key=times.__getitem__))):
            call = as_in_training(partial(with_launch, tried[name], passes), CUDA)
            ms = measure({name: call}, CUDA, seconds=0.03)[name].ms
            lines.append(f"{shape}, {taps} taps, forward and backward with {name}: {ms:.4f} ms")
    print(*lines, sep="\n")


def _both_passes(x: torch.Tensor, w: torch.Tensor, pads: Any) -> object:
    return toeplitz.convolve(x, w, None, pads), toeplitz.gradients(x, w, x, pads)


def report(title: str, calls: Iterable[tuple[str, Callable[[], object]]]) -> dict[str, float]:
    """Print and return the milliseconds of calls. Those that fail, such as for lack of memory, are shown as such."""
    times: dict[str, float] = {}
    for name, call in calls:
        try:
            times[name] = measure({name: as_in_training(call, CUDA)}, CUDA, seconds=0.03)[name].ms
        except Exception as failure:  # also of the compiler
            print(f"{title} {name}: {str(failure).splitlines()[0][:100]}")
            torch.cuda.synchronize()
    best = min(times, key=lambda name: times[name], default=None)
    cells = (f"{name}{'*' if name == best else ''} {ms:.4f}" for name, ms in times.items())
    print(f"{title}: " + ", ".join(cells), flush=True)
    return times


def _with(launches: dict[Any, Any], key: Any, launch: Any, call: Callable[[], object]) -> object:
    """Call a function while another launch is in place."""
    usual = dict(launches)
    launches[key] = launch
    try:
        return call()
    finally:
        launches.clear()
        launches.update(usual)


if __name__ == "__main__":
    main()
