"""Choices inside the kernels that fit pictures, on a GPU and the Kodak images.

    python -m benchmarks.tune_fit [VARIANT ...] [--root DIR] [--steps 2000]

First milliseconds of a step of five pictures, by how many points a program takes at once, its warps, how many programs
there are, the precision of products and of what is kept for the way back. Then decibels after some steps, by both
precisions and seed.
"""

from __future__ import annotations

import argparse
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
from flexconv.train.fitting import _errors, _generator_maker
from flexconv.train.recipe import FitRecipe
from flexconv.train.targets import load_targets

IMAGES = ["kodim01", "kodim05", "kodim08", "kodim15", "kodim23"]
CUTS = [(64, 2, 1056), (64, 2, 528), (32, 2, 1056), (32, 1, 1056), (64, 4, 528)]
PRECISIONS = [("tf32", torch.bfloat16), ("tf32", torch.float32), ("tf32x3", torch.float32)]


def group_of(variant: str, root: str | None, seed: int = 0) -> FitGroup:
    recipe = train.load_recipe(variant, [f"seed={seed}"])
    assert isinstance(recipe, FitRecipe)
    targets = load_targets("kodak", root=root, images=IMAGES)
    make = _generator_maker(recipe, targets)
    return FitGroup([make(n) for n in range(len(IMAGES))], targets.values.cuda(), recipe)


@contextmanager
def chosen(precisions: tuple[str, torch.dtype], cut: tuple[int, int, int] | None = None) -> Iterator[None]:
    """Steps that are made here have kernels with these choices."""
    products, kept = precisions
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(parts, PRECISION=products, KEPT=kept))
        if cut is not None:
            stack.enter_context(patch.object(parts, "PROGRAMS", cut[2]))
            for step in (FusedStep, FusedSirenStep):
                stack.enter_context(patch.object(step, "cut", cut[:2]))
        yield


def name(precisions: tuple[str, torch.dtype]) -> str:
    return f"{precisions[0]}, {precisions[1]}".replace("torch.", "")


def speeds(variant: str, root: str | None) -> None:
    tried = [(cut, PRECISIONS[0]) for cut in CUTS] + [(CUTS[0], precisions) for precisions in PRECISIONS[1:]]
    print("ms per step", *(f"{cut} {name(precisions)}" for cut, precisions in tried), sep=" | ")
    found = []
    for cut, precisions in tried:
        with chosen(precisions, cut):
            try:
                times = measure({variant: group_of(variant, root).step}, torch.device("cuda"), seconds=0.3)
                found.append(f"{times[variant].ms:.2f}")
            except OutOfResources:
                found.append("–")
    print(variant, *found, sep=" | ", flush=True)


def qualities(variant: str, root: str | None, steps: int) -> None:
    print(f"dB after {steps} steps", "mean", *IMAGES, sep=" | ")
    for precisions in PRECISIONS:
        for seed in (0, 1):
            with chosen(precisions):
                group = group_of(variant, root, seed)
                for _ in range(steps):
                    group.step()
            found = [_errors(*pair, pictures=True)["psnr"] or float("nan") for pair in group.errors()]
            numbers = [f"{value:.3f}" for value in (sum(found) / len(found), *found)]
            print(f"{variant}, {name(precisions)}, seed {seed}", *numbers, sep=" | ", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=["kodak", "kodak/fourier", "kodak/siren"])
    parser.add_argument("--root")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    for variant in arguments.variants:
        speeds(variant, arguments.root)
        if arguments.steps:
            qualities(variant, arguments.root, arguments.steps)
