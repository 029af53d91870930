"""Inference with one image: FlexNet-7 and its materialized network, eager and exported.

    python -m benchmarks.inference                      on a GPU if there is one
    python -m benchmarks.inference --device cpu --profile

Times of one call in milliseconds, median of calls that take turns, with masks at their initial size and on the whole
grid. "eager" is the network under `torch.inference_mode()`. "pt2" is the file of `flexconv.export.export`, loaded with
`torch.export.load`, next to `torch.export` of the materialized network. The materialized network has plain
convolutions with the same kernels.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from flexconv import create_model, materialize
from flexconv.bench.steps import open_masks
from flexconv.export import export

ROUNDS = 30


def networks(device: str, *, full: bool, exported: bool) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    net = create_model("flexnet7", in_channels=3, num_classes=10, image_size=32).eval()
    if full:
        open_masks(net)
    found: dict[str, nn.Module] = {"eager": net, "eager, materialized": materialize(net)}
    if exported:
        example = torch.randn(2, 3, 32, 32)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "net.pt2"
            export(net, path, example=example, fixed_sizes=True)
            found["pt2"] = torch.export.load(path).module()
            shapes = ({0: torch.export.Dim("batch")},)
            plain = torch.export.export(found["eager, materialized"], (example,), dynamic_shapes=shapes)
            found["pt2, materialized"] = plain.module()
    return {name: each.to(device) for name, each in found.items()}


def milliseconds(calls: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    number = 20 if device == "cuda" else 3
    for repetition in range(ROUNDS + 2):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(number):
                call()
            if device == "cuda":
                torch.cuda.synchronize()
            if repetition >= 2:
                times[name].append(1e3 * (time.perf_counter() - began) / number)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager-only", action="store_true", help="do not export")
    parser.add_argument("--profile", action="store_true", help="print the functions of Python that take the longest")
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, FlexNet-7, batch 1, float32")
    x = torch.randn(1, 3, 32, 32, device=arguments.device)
    for full in (False, True):
        nets = networks(arguments.device, full=full, exported=not arguments.eager_only)
        with torch.inference_mode():
            times = milliseconds({key: (lambda net=net: net(x)) for key, net in nets.items()}, arguments.device)
            for way in ("eager", "pt2"):
                if way in times:
                    own, plain = times[way], times[f"{way}, materialized"]
                    masks = "whole grid" if full else "initial"
                    print(f"{way:6} {masks:10} {own:7.3f} ms, materialized {plain:7.3f} ms, ratio {own / plain:.2f}")
            if arguments.profile:
                profile = cProfile.Profile()
                profile.enable()
                for _ in range(50):
                    nets["eager"](x)
                profile.disable()
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
