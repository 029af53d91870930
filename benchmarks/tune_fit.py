"""Choices inside the kernels that fit pictures, on a GPU and the Kodak images.

    python -m benchmarks.tune_fit [VARIANT ...] [--root DIR] [--steps 2000]

First milliseconds of a step of five pictures, by how many points a program takes at once, its warps, how many programs
there are, and the precision of products. Then decibels after some steps, by precision and seed.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingImports]

from flexconv import train
from flexconv.bench import measure
from flexconv.train import _fused_parts as parts
from flexconv.train.fit_group import FitGroup
from flexconv.train.fitting import _errors, _generator_maker
from flexconv.train.recipe import FitRecipe
from flexconv.train.targets import load_targets

IMAGES = ["kodim01", "kodim05", "kodim08", "kodim15", "kodim23"]
CUT = ("POINTS", "WARPS", "PROGRAMS")  # of `_fused_parts.py`
CUTS = [(64, 2, 1056), (64, 2, 528), (32, 2, 1056), (32, 1, 1056), (64, 4, 528)]


def group_of(variant: str, root: str | None, seed: int = 0) -> FitGroup:
    recipe = train.load_recipe(variant, [f"seed={seed}"])
    assert isinstance(recipe, FitRecipe)
    targets = load_targets("kodak", root=root, images=IMAGES)
    make = _generator_maker(recipe, targets)
    return FitGroup([make(n) for n in range(len(IMAGES))], targets.values.cuda(), recipe)


def choose(**choices: Any) -> None:
    for name, value in choices.items():
        setattr(parts, name, value)


def speeds(variant: str, root: str | None) -> None:
    print("ms per step", *CUTS, f"{CUTS[0]}, tf32x3", sep=" | ")
    found = []
    for cut, precision in [*((cut, "tf32") for cut in CUTS), (CUTS[0], "tf32x3")]:
        choose(PRECISION=precision, **dict(zip(CUT, cut, strict=True)))
        try:
            times = measure({variant: group_of(variant, root).step}, torch.device("cuda"), seconds=0.3)
            found.append(f"{times[variant].ms:.2f}")
        except OutOfResources:
            found.append("–")
    print(variant, *found, sep=" | ", flush=True)


def qualities(variant: str, root: str | None, steps: int) -> None:
    print(f"dB after {steps} steps", "mean", *IMAGES, sep=" | ")
    for precision in ("tf32", "tf32x3"):
        for seed in (0, 1):
            choose(PRECISION=precision)
            group = group_of(variant, root, seed)
            for _ in range(steps):
                group.step()
            found = [_errors(*pair, pictures=True)["psnr"] or float("nan") for pair in group.errors()]
            numbers = [f"{value:.3f}" for value in (sum(found) / len(found), *found)]
            print(f"{variant}, {precision}, seed {seed}", *numbers, sep=" | ", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", default=["kodak", "kodak/fourier", "kodak/siren"])
    parser.add_argument("--root")
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    taken = {name: getattr(parts, name) for name in (*CUT, "PRECISION")}
    for variant in arguments.variants:
        speeds(variant, arguments.root)
        choose(**taken)
        if arguments.steps:
            qualities(variant, arguments.root, arguments.steps)
