"""Time the parameters of the two-level transform of long sequences on a GPU.

    python -m benchmarks.tune_gpu [splits] [tiles]

`splits` prints microseconds of analysis and synthesis by row length, and the split that `make_plan` chooses.
`tiles` prints microseconds of the row product by tile configuration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingImports]

from flexconv._fast.row_product_triton import RESIDENT, STREAMED, TileConfig, launch
from flexconv.bench import measure
from flexconv.bench.timing import as_in_training
from flexconv.ops._dft_matrices import Positions
from flexconv.ops._dft_plan import make_plan, shortest_circular_length
from flexconv.ops._dft_transform import _analyse, _synthesise

CUDA = torch.device("cuda")
SEQUENCES = [(32, 30, 16000, 16000), (32, 30, 16000, 2400), (64, 30, 8192, 8192), (16, 64, 5000, 5000)]
ROW_PRODUCTS = [(960, 16000, (250, 128)), (960, 16000, (144, 128))]
CONFIGS = [
    RESIDENT,
    RESIDENT._replace(stages=3),
    RESIDENT._replace(stages=5),
    RESIDENT._replace(stages=6),
    RESIDENT._replace(warps=4),
    RESIDENT._replace(rows=128),
    RESIDENT._replace(columns=32),
    RESIDENT._replace(columns=32, stages=6),
    RESIDENT._replace(columns=32, warps=4, stages=6),
    RESIDENT._replace(columns=32, warps=4, stages=3, programs_per_multiprocessor=2),
    RESIDENT._replace(columns=128, stages=2),
    STREAMED,
]
COPY_BANDWIDTH = 4.25e12  # bytes per second on an H200, from results/bench/step_h200.json


def microseconds(function: Callable[[], object]) -> float:
    def several() -> None:
        for _ in range(4):
            function()

    return 250 * measure({"": as_in_training(several, CUDA)}, CUDA, seconds=0.01)[""].ms


def splits() -> None:
    for batch, channels, length, taps in SEQUENCES:
        positions = Positions(length, 0, 1), Positions(taps, 1 - taps, 1), Positions(length, 0, 1)
        minimum = shortest_circular_length(*positions)
        plan = make_plan((length,), (taps,), (length,), (taps - 1,), (1,), (1,))
        assert plan is not None
        found = []
        for inner in (64, 80, 96, 112, 128):
            for multiple in (2, 16, 64):
                outer = -(-minimum // (multiple * inner)) * multiple
                lengths = outer, inner
                if (lengths not in (each[1] for each in found)) and outer * inner <= 1.15 * minimum:
                    found.append((_split_times(batch, channels, length, lengths), lengths))
        found.sort()
        chosen = next((sum(times) for times, lengths in found if lengths == plan.x.lengths), float("nan"))
        print(f"{batch} × {channels} × {length}, {taps} taps: {plan.x.lengths} takes {chosen:.0f} µs; fastest:")
        for times, (outer, inner) in found[:8]:
            print(f"  {outer:4d} × {inner:3d} = {outer * inner}: {times[0]:6.1f} + {times[1]:6.1f} µs", flush=True)


def _split_times(batch: int, channels: int, length: int, lengths: tuple[int, int]) -> tuple[float, float]:
    matrices = _random_matrices(lengths, length)
    x = torch.randn(batch, channels, length, device=CUDA, dtype=torch.bfloat16)
    spectra = _analyse(x, matrices, "two-level")
    analysis = microseconds(lambda: _analyse(x, matrices, "two-level"))
    return analysis, microseconds(lambda: _synthesise(spectra, matrices, [length], "two-level"))


def _random_matrices(lengths: tuple[int, int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    outer, inner = lengths
    rows = -(-length // inner)
    columns = torch.randn(outer, -(-rows // 8) * 8, device=CUDA, dtype=torch.bfloat16)[:, :rows]
    return columns, torch.randn(outer // 2, 2 * inner, 2 * inner, device=CUDA, dtype=torch.bfloat16)


def tiles() -> None:
    print("default", *(tuple(config) for config in CONFIGS), sep=" | ")
    for number, length, (outer, inner) in ROW_PRODUCTS:
        columns, _ = _random_matrices((outer, inner), length)
        x = torch.randn(number, length, device=CUDA, dtype=torch.bfloat16)
        y = torch.randn(number, outer * inner, device=CUDA, dtype=torch.bfloat16)
        copy_time = 1e6 * (x.numel() + y.numel()) * 2 / COPY_BANDWIDTH
        for what, arguments in (("analysis", (columns, x, y, inner)), ("synthesis", (columns.T, y, x, inner))):
            times = [_try(arguments, config) for config in (None, *CONFIGS)]
            print(
                f"{length} as {outer} × {inner}, {what}; a copy takes {copy_time:.1f} µs", *times, sep=" | ", flush=True
            )


def _try(arguments: tuple[torch.Tensor, torch.Tensor, torch.Tensor, int], config: TileConfig | None) -> str:
    try:
        return f"{microseconds(lambda: launch(*arguments, config=config)):.1f}"
    except OutOfResources:
        return "–"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["tiles", "splits"])
    for name in parser.parse_args().what:
        {"splits": splits, "tiles": tiles}[name]()
