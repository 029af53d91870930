"""Tune the Triton kernels that fit images, on a GPU and five images of Kodak.

    python -m benchmarks.tune_fit [VARIANT ...] [--root DIR] [--steps 2000]

The first table has the milliseconds per step of the five images, for several launch configurations (points per program,
warps, number of programs), precisions of matrix products, and dtypes of the activations that are stored for backward.
The second table has the PSNR in dB after a number of steps, for the same precisions and two seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingImports]

from flexconv import train
from flexconv._fast import fused_parts as parts
from flexconv._fast.fused_fit import FusedSirenStep, FusedStep
from flexconv.bench import measure
from flexconv.train.fit_group import FitGroup
from flexconv.train.fitting import generator_maker
from flexconv.train.recipe import FitRecipe
from flexconv.train.targets import load_targets

IMAGES = ["kodim01", "kodim05", "kodim08", "kodim15", "kodim23"]
LAUNCHES = [(64, 2, 1056), (64, 2, 528), (32, 2, 1056), (32, 1, 1056), (64, 4, 528)]  # points, warps, programs
PRECISIONS = [("tf32", torch.bfloat16), ("tf32", torch.float32), ("tf32x3", torch.float32)]  # products, activations


def make_group(variant: str, root: str | None, seed: int = 0) -> FitGroup:
    """The generators of a recipe and their target images."""
    recipe = train.load_recipe(variant, [f"seed={seed}"])
    assert isinstance(recipe, FitRecipe)
    targets = load_targets("kodak", root=root, images=IMAGES)
    make = generator_maker(recipe, targets)
    return FitGroup([make(n) for n in range(len(IMAGES))], targets.values.cuda(), recipe)


@contextmanager
def settings(precisions: tuple[str, torch.dtype], launch: tuple[int, int, int] | None = None) -> Iterator[None]:
    """Fitting steps that are created in this context use these precisions and this launch configuration."""
    products, kept = precisions
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(parts, PRECISION=products, KEPT=kept))
        if launch is not None:
            stack.enter_context(patch.object(parts, "PROGRAMS", launch[2]))
            for step in (FusedStep, FusedSirenStep):
                stack.enter_context(patch.object(step, "cut", launch[:2]))
        yield


def name(precisions: tuple[str, torch.dtype]) -> str:
    return f"{precisions[0]}, {precisions[1]}".replace("torch.", "")


def print_times(variant: str, root: str | None) -> None:
    tried = [(launch, PRECISIONS[0]) for launch in LAUNCHES]
    tried += [(LAUNCHES[0], precisions) for precisions in PRECISIONS[1:]]
    print("ms per step", *(f"{launch} {name(precisions)}" for launch, precisions in tried), sep=" | ")
    cells = []
    for launch, precisions in tried:
        with settings(precisions, launch):
            try:
                times = measure({variant: make_group(variant, root).step}, torch.device("cuda"), seconds=0.3)
                cells.append(f"{times[variant].ms:.2f}")
            except OutOfResources:
                cells.append("–")
    print(variant, *cells, sep=" | ", flush=True)


def print_psnrs(variant: str, root: str | None, steps: int) -> None:
    print(f"PSNR in dB after {steps} steps", "mean", *IMAGES, sep=" | ")
    for precisions in PRECISIONS:
        for seed in (0, 1):
            with settings(precisions):
                group = make_group(variant, root, seed)
                for _ in range(steps):
                    group.step()
            psnrs = [-10 * math.log10(max(clamped, 1e-12)) for _, clamped in group.errors()]
            cells = [f"{value:.3f}" for value in (sum(psnrs) / len(psnrs), *psnrs)]
            print(f"{variant}, {name(precisions)}, seed {seed}", *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=["kodak", "kodak/fourier", "kodak/siren"], help="recipes")
    parser.add_argument("--root", help="folder of the Kodak images")
    parser.add_argument("--steps", type=int, default=2000, help="steps before the PSNR; 0 omits the second table")
    arguments = parser.parse_args()
    for variant in arguments.variants:
        print_times(variant, arguments.root)
        if arguments.steps:
            print_psnrs(variant, arguments.root, arguments.steps)
