"""Shapes of convolutions that calibrate and test `algorithm="auto"`, see `calibrate.py`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import NamedTuple

from flexconv.bench.layers import SHAPES as LAYERS
from flexconv.bench.ops import GPU_CASES
from flexconv.ops._cost_model import Problem
from flexconv.ops._geometry import Geometry, resolve_padding

KNOWN = 71  # random shapes for a GPU that were held out of earlier fits, and of which the design of the model made use
MAX_MULTIPLICATIONS = 1e10  # of a direct convolution on a CPU (about a second on two cores)


class Shape(NamedTuple):
    """A convolution. `out` is the number of output channels if it differs from that of input channels."""

    dims: int
    batch: int
    channels: int
    size: int
    taps: int
    groups: int = 1
    out: int | None = None

    def problem(self, device: str, precision: str) -> Problem:
        """Return the problem: causal for sequences, centered for images and volumes."""
        ones = (1,) * self.dims
        weight = (self.out or self.channels, self.channels // self.groups, *(self.taps,) * self.dims)
        pads = resolve_padding("causal" if self.dims == 1 else "same", weight[2:], ones)
        x = self.batch, self.channels, *(self.size,) * self.dims
        return Problem(device, precision, x, weight, Geometry(ones, pads, ones, self.groups))


def sweep(device: str) -> list[Shape]:
    """Return shapes from tiny to large, dense and depthwise, around the sizes where the fastest algorithm changes."""
    if device == "cpu":
        return [*cpu_shapes()]
    others = [*gpu_shapes()]
    random.Random(0).shuffle(others)  # if time runs out, all kinds of shapes have been measured
    return [*dict.fromkeys([*benchmark_shapes(), *others])]


def cpu_shapes() -> Iterator[Shape]:
    """Yield all combinations that do not take too long."""
    one = itertools.product((1, 8), (16, 48), (128, 784, 4096, 16000), (5, 17, 65, 196, 784, 4000))
    two = itertools.product((1, 16), (8, 24, 48), (16, 32, 96), (3, 5, 9, 17, 33, 65))
    three = itertools.product((2,), (8,), (16, 32), (3, 7, 15))
    for dims, cases in ((1, one), (2, two), (3, three)):
        for batch, channels, size, taps in cases:
            for groups in (1, channels):
                macs = batch * channels**2 / groups * (size * taps) ** dims
                if taps <= size + 1 and macs < MAX_MULTIPLICATIONS:
                    yield Shape(dims, batch, channels, size, taps, groups)
    yield from large_cpu_batches()


def large_cpu_batches() -> Iterator[Shape]:
    """Yield depthwise convolutions of batches as in training, which FFTs on a CPU compute in parts."""
    one = itertools.product((1,), (32, 128), (64, 140), (182, 1024), (5, 9, 15, 25, 41, 83, 181))
    two = itertools.product((2,), (64, 128), (32, 96), (16, 32), (3, 5, 7, 9, 17, 31))
    for dims, batch, channels, size, taps in itertools.chain(one, two):
        if taps <= size + 1 and batch * channels * (size * taps) ** dims < MAX_MULTIPLICATIONS:
            yield Shape(dims, batch, channels, size, taps, channels)


def benchmark_shapes() -> Iterator[Shape]:
    """Yield the shapes of `flexconv bench`: convolutions, layers, networks with small and with full masks."""
    for case in itertools.chain(*GPU_CASES):
        yield Shape(len(case.size), case.batch, case.channels, case.size[0], case.taps)
    taps_of = {
        32: (5, 33),
        1024: (83, 1024),
        16000: (1288, 16000),
    }  # taps by size: for a mask of σ = 0.075, and for a full one
    for batch, channels, size in LAYERS["cuda"]:
        for taps in taps_of[size[0]]:
            yield Shape(len(size), batch, channels, size[0], taps)
    pairs = (3, 24), (24, 24), (24, 36), (36, 36), (36, 48), (48, 48)
    for batch, taps, (channels, out) in itertools.product((64, 512), taps_of[32], pairs):
        yield Shape(2, batch, channels, 32, taps, out=out if out != channels else None)
    for batch, size, inputs in ((64, 1024, 3), (32, 16000, 1)):
        for taps in taps_of[size]:
            yield Shape(1, batch, inputs, size, taps, out=30)
            yield Shape(1, batch, 30, size, taps)


def gpu_shapes() -> Iterator[Shape]:
    """Yield shapes around those of the benchmark, depthwise convolutions and volumes."""
    grids = [  # dims, batch, channels, size, taps
        (2, (16, 128, 256), (24, 48, 96), (32,), (3, 7, 13, 21, 33)),
        (2, (512,), (24, 36), (32,), (9, 17, 25)),
        (2, (64,), (3, 24, 96), (32,), (3, 7, 13, 29)),
        (2, (16, 64), (24, 48), (64,), (3, 5, 9, 17, 33, 65)),
        (2, (16,), (16, 36), (128,), (3, 7, 17, 33, 65, 129)),
        (1, (16, 64), (30,), (182,), (9, 45, 182)),
        (1, (64,), (1, 30, 64), (784, 1024), (9, 17, 33, 128, 512)),
        (1, (16, 32), (16, 64), (4096,), (9, 64, 256, 1024, 4096)),
        (1, (16, 32), (16, 30), (16000,), (9, 33, 500, 4000)),
        (3, (2, 8), (8, 24), (16,), (3, 7, 15)),
        (2, (1,), (24,), (32, 96), (3, 9, 17, 33)),
        (1, (1, 8), (16,), (1024, 16000), (9, 65, 784)),
    ]
    for dims, *axes in grids:
        for batch, channels, size, taps in itertools.product(*axes):
            yield Shape(dims, batch, channels, size, taps)
    depthwise = [
        (2, 64, 48, 32, (3, 5, 9, 17, 33)),
        (2, 16, 24, 32, (3, 7, 13, 21, 33)),
        (2, 64, 96, 64, (3, 7, 15, 31)),
        (2, 16, 48, 96, (5, 13, 49)),
        (1, 64, 64, 1024, (3, 9, 64, 256, 1024)),
        (1, 16, 64, 4096, (5, 9, 64, 1024)),
        (1, 16, 32, 16000, (5, 9, 125, 2000, 16000)),
        (3, 8, 16, 32, (3, 7, 15)),
    ]
    for dims, batch, channels, size, each in depthwise:
        for taps in each:
            yield Shape(dims, batch, channels, size, taps, groups=channels)


def depthwise_shapes() -> Iterator[Shape]:
    """Yield depthwise convolutions, from those of networks for images to long sequences, and those of `gpu_shapes`."""
    grids = [  # dims, batch, channels, size, taps
        (1, (64,), (140, 768), (1024,), (5, 33, 129, 513, 1024)),
        (1, (16,), (140,), (784, 1024), (9, 65, 784)),
        (1, (64,), (256,), (4096,), (9, 129, 1025, 4096)),
        (1, (16,), (256,), (16384,), (33, 257, 2049, 16384)),
        (1, (1, 4), (140,), (1024, 16000), (65, 1024)),
        (1, (64,), (768,), (2048, 4096), (129, 513, 1024, 4096)),
        (1, (16,), (768,), (8192, 16384), (257, 1025, 4097, 16384)),
        (1, (4, 16), (96,), (3000, 10000, 32768), (33, 500, 3000)),
        (2, (64,), (96,), (32,), (3, 5, 9, 17, 33)),
        (2, (64,), (384,), (14,), (3, 7, 13)),
        (2, (64,), (384,), (28, 56), (3, 7, 13, 31)),
        (2, (16,), (48,), (64, 96), (3, 7, 15, 31, 63)),
        (2, (1, 4), (96,), (32, 96), (5, 17, 33)),
        (2, (16,), (64,), (7, 20, 33), (3, 7)),
        (3, (2, 8), (16, 48), (16, 32), (3, 7, 15)),
    ]
    for dims, *axes in grids:
        for batch, channels, size, taps in itertools.product(*axes):
            if taps <= size + 1:
                yield Shape(dims, batch, channels, size, taps, groups=channels)
    yield from (shape for shape in gpu_shapes() if shape.groups > 1)


def random_shapes(number: int = 120, seed: int = 1) -> list[Shape]:
    """Return random shapes for a GPU, half of them depthwise."""
    rng = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < number:
        dims, depthwise = rng.choice((1, 1, 2, 2, 2, 3)), len(shapes) % 2 == 0
        batch = rng.choice((1, 4, 8, 16, 32, 64, 128))
        channels = rng.choice((32, 48, 64, 96, 192, 384) if depthwise else (16, 24, 30, 32, 48, 64))
        size = round(2 ** rng.uniform(*{1: (6, 14), 2: (3, 6.6), 3: (3, 5)}[dims]))
        taps = min(size, round(2 ** rng.uniform(1, math.log2(size)))) | 1
        elements = batch * channels * size**dims
        work = elements * taps**dims * (1 if depthwise else channels)
        if 2**14 <= elements <= 2**27 and work <= 2**41:
            shapes.append(Shape(dims, batch, channels, size, taps, groups=channels if depthwise else 1))
    return shapes


def grouped_shapes() -> Iterator[Shape]:
    """Yield convolutions in 2 to 32 groups of several channels each."""
    grids = [  # dims, batch, channels, groups, size, taps
        (1, (64,), (64, 128), (4, 16), (1024,), (9, 65, 1024)),
        (1, (16,), (96,), (8,), (8192,), (33, 1025)),
        (2, (64,), (64, 128), (2, 8, 32), (32,), (3, 7, 17)),
        (2, (16,), (96, 256), (8, 32), (56,), (3, 7, 31)),
        (3, (4,), (32,), (4,), (16,), (3, 7)),
    ]
    for dims, *axes in grids:
        for batch, channels, groups, size, taps in itertools.product(*axes):
            yield Shape(dims, batch, channels, size, taps, groups)


def random_grouped_shapes(number: int = 40, seed: int = 2) -> list[Shape]:
    """Return random convolutions in groups for a GPU."""
    rng = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < number:
        dims, groups, batch = rng.choice((1, 2, 2)), rng.choice((2, 4, 8, 16)), rng.choice((4, 16, 64))
        channels = groups * rng.choice((2, 4, 8, 16))
        size = round(2 ** rng.uniform(*{1: (7, 13), 2: (3, 6.3)}[dims]))
        taps = min(size, round(2 ** rng.uniform(1, math.log2(size)))) | 1
        work = batch * channels**2 / groups * (size * taps) ** dims
        if channels <= 128 and batch * channels * size**dims <= 2**25 and work <= 2**38:
            shapes.append(Shape(dims, batch, channels, size, taps, groups))
    return shapes


def random_cpu_shapes(number: int = 110, seed: int = 3) -> list[Shape]:
    """Return random shapes for a CPU, dense, depthwise and in groups."""
    rng = random.Random(seed)
    shapes: list[Shape] = []
    while len(shapes) < number:
        dims, kind = rng.choice((1, 1, 2, 2, 2, 3)), len(shapes) % 5
        batch, channels = rng.choice((1, 2, 4, 8, 16)), rng.choice((8, 16, 24, 32, 48, 64))
        groups = channels if kind in (1, 3) else rng.choice((2, 4, 8)) if kind == 4 else 1
        size = round(2 ** rng.uniform(*{1: (6, 13), 2: (3, 6.5), 3: (3, 5)}[dims]))
        taps = min(size, round(2 ** rng.uniform(1, math.log2(size)))) | 1
        work = batch * channels**2 / groups * (size * taps) ** dims
        if 2**12 <= batch * channels * size**dims <= 2**21 and work <= MAX_MULTIPLICATIONS / 10:
            shapes.append(Shape(dims, batch, channels, size, taps, groups))
    return shapes


def held_out_shapes(device: str) -> list[Shape]:
    """Return random shapes that no fit uses. Counts of the cost model are not chosen by their times, either.

    That grouped convolutions needed further counts was known from them.
    """
    if device == "cpu":
        return random_cpu_shapes(seed=4)
    return _alternate(random_shapes(135)[KNOWN:], random_grouped_shapes())


def more_shapes(device: str) -> list[Shape]:
    """Return other random shapes, for a fit."""
    if device == "cpu":
        return [*random_cpu_shapes(seed=13), *random_cpu_shapes(seed=3)]
    return _alternate([*random_shapes(KNOWN), *random_shapes(seed=11)], random_grouped_shapes(seed=12))


def _alternate(first: list[Shape], second: list[Shape]) -> list[Shape]:
    """Distribute the shapes of the second list over the first one, so that both are measured if time runs out."""
    step = -(-len(first) // len(second))
    parts = ((*first[step * i : step * (i + 1)], shape) for i, shape in enumerate(second))
    return [*itertools.chain.from_iterable(parts)]


SMOKE = [Shape(1, 2, 3, 24, 5), Shape(1, 2, 4, 24, 24, 4), Shape(2, 2, 3, 8, 3, out=4), Shape(2, 2, 8, 8, 7)]
