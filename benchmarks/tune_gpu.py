"""Choices inside the transforms, timed on a GPU: how long sequences are split, how complex products are cut.

    python -m benchmarks.tune_gpu [splits] [products]

`splits`: microseconds of analysis and synthesis of sequences for every length of rows, and what `make_plan` takes.
`products`: microseconds of the three products of a training step by frequencies per program and warps.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch

from flexconv.bench import measure
from flexconv.bench._timing import as_in_training
from flexconv.ops._complex_product import _room
from flexconv.ops._complex_product_triton import launch
from flexconv.ops._dft import make_plan, shortest_circle
from flexconv.ops._dft_matrices import Points
from flexconv.ops._dft_transform import _analyse, _synthesise

CUDA = torch.device("cuda")
SEQUENCES = [(32, 30, 16000, 16000), (32, 30, 16000, 2400), (64, 30, 8192, 8192), (16, 64, 4096, 4096)]
PRODUCTS = {
    "16,000 steps": (16384, 32, 30, 30, "long"),
    "32×32, 24 channels": (2048, 64, 24, 24, "whole"),
    "32×32, 48 channels": (2048, 64, 48, 48, "whole"),
    "32×32, 512 images": (2048, 512, 48, 48, "whole"),
    "1,024 steps": (1024, 64, 30, 30, "whole"),
}


def microseconds(function: object) -> float:
    def several() -> None:
        for _ in range(4):
            function()  # type: ignore[operator]

    return 250 * measure({"": as_in_training(several, CUDA)}, CUDA, seconds=0.01)[""].ms


def splits() -> None:
    for batch, channels, length, taps in SEQUENCES:
        points = Points(length, 0, 1), Points(taps, 1 - taps, 1), Points(length, 0, 1)
        least = shortest_circle(*points)
        plan = make_plan((length,), (taps,), (length,), (taps - 1,), (1,), (1,))
        assert plan is not None
        rows = []
        for inner in (*range(48, 168, 8), 192, 256):
            for even in (2, 16, 64):
                outer = -(-least // (even * inner)) * even
                circles = outer, inner
                if (circles not in (each[1] for each in rows)) and outer * inner <= 1.15 * least:
                    rows.append((_split_times(batch, channels, length, circles), circles))
        rows.sort()
        taken = next((sum(times) for times, circles in rows if circles == plan.x.circles), float("nan"))
        print(f"{batch} × {channels} × {length}, {taps} taps: {plan.x.circles} takes {taken:.0f} µs; best:")
        for times, (outer, inner) in rows[:10]:
            print(f"  {outer:4d} × {inner:3d} = {outer * inner}: {times[0]:6.1f} + {times[1]:6.1f} µs", flush=True)


def _split_times(batch: int, channels: int, length: int, circles: tuple[int, int]) -> tuple[float, float]:
    inner = circles[1]
    whole = -(-length // inner) * inner
    rows = whole // inner
    down = torch.randn(circles[0], -(-rows // 8) * 8, device=CUDA, dtype=torch.bfloat16)[:, :rows]
    matrices = [down, torch.randn(circles[0] // 2, 2 * inner, 2 * inner, device=CUDA, dtype=torch.bfloat16)]
    x = torch.randn(batch, channels, length, device=CUDA, dtype=torch.bfloat16)

    def forth() -> torch.Tensor:
        return _analyse(torch.nn.functional.pad(x, (0, whole - length)) if whole > length else x, matrices, "long")

    spectra = forth()

    def back() -> torch.Tensor:
        y = _synthesise(spectra, matrices, [whole], "long")
        return y[..., :length].contiguous() if whole > length else y

    return microseconds(forth), microseconds(back)


def products() -> None:
    ways = list(itertools.product((1, 2, 4, 8), (1, 2, 4, 8)))
    print("frequencies per program, warps:", *(f"{f},{w}" for f, w in ways), sep=" | ")
    for name, case in PRODUCTS.items():
        for what, a, b, c, conjugate in _products(*case):
            times = [
                microseconds(lambda f=f, w=w: launch(a, b, c, conjugate, per_program=f, warps=w))  # noqa: B023
                for f, w in ways
            ]
            best = ways[min(range(len(ways)), key=times.__getitem__)]
            print(f"{name}, {what}: best {best}", *(f"{each:.1f}" for each in times), sep=" | ", flush=True)


def _products(
    frequencies: int, batch: int, channels: int, out: int, style: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor, bool]]:
    """y = x g, ∂x = ∂y g*, ∂gᵀ = ∂yᵀ x*, stored as in a step."""

    def spectra(rows: int, columns: int) -> torch.Tensor:
        shape = (frequencies, 2, rows, columns) if style == "long" else (2, frequencies, rows, columns)
        values = torch.randn(shape, device=CUDA, dtype=torch.bfloat16)
        return (values.transpose(0, 1) if style == "long" else values).unsqueeze(2)

    x, dy, gains = spectra(batch, channels), spectra(batch, out), spectra(out, -(-channels // 8) * 8)
    yield "forward", x, gains.mT, _room(x, out, False), False
    yield "to the input", dy, gains, _room(dy, channels, False), True
    yield "to the kernel", dy.mT, x, _room(dy.mT, gains.shape[-1], True), True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["splits", "products"])
    for name in parser.parse_args().what:
        {"splits": splits, "products": products}[name]()
