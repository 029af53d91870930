"""How many kernels the features of a scaled layer can make, and how much of their energy lies beyond Nyquist.

    python -m benchmarks.feature_span

A step of gradient descent on the output map changes a kernel by P · gradient, where a plain convolution changes by the
gradient itself. "Directions" is the trace of P, the sum of the relative steps in all directions of kernel space. It is
printed for features whose frequencies are spread evenly, as they are, and for random ones (`--shares` are the parts of
the band that the last filter gets). "Beyond Nyquist" is the measured share of the energy of the initial kernels.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d
from flexconv.nn import FlexConvNd, MAGNet
from flexconv.nn._grid import mesh
from flexconv.nn.kernels import _mfn
from flexconv.spectrum import energy_beyond_nyquist

SEEDS = range(8)
LAYERS: dict[str, Callable[..., FlexConvNd]] = {
    "7 × 7": partial(FlexConv2d, 16, 32, 7),
    "11 × 11": partial(FlexConv2d, 16, 32, 11),
    "33 × 33": partial(FlexConv2d, 16, 32, 33),
    "101": partial(FlexConv1d, 16, 32, 101),
    "1025 causal": partial(FlexConv1d, 16, 32, 1025, padding="causal"),
    "9 × 9 × 9": partial(FlexConv3d, 4, 8, 9),
}


def random_frequencies(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like).uniform_(-1.0, 1.0)


@torch.no_grad()
def directions(layer: FlexConvNd) -> float:
    """The trace of P."""
    generator, mask = layer.generator, layer.mask
    output = generator.output_map
    assert output is not None
    assert output.basis is not None
    assert mask is not None
    lines = layer.coordinates(layer.taps)
    points = mesh(lines).flatten(1).t()
    features = torch.cat([generator.features(points), torch.ones(len(points), 1)], 1)
    masked = features * mask(lines, layer.axes).reshape(-1, 1)
    return float((masked.double() @ output.basis.t().double()).square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.8, 0.98])
    arguments = parser.parse_args()
    even = _mfn.evenly_spread
    print("grid | frequencies | share of the band | features | directions | beyond Nyquist")
    for name, make in LAYERS.items():
        for kind, draw in (("random", random_frequencies), ("even", even)):
            for share in arguments.shares:
                for hidden in (32, 64):
                    _mfn.evenly_spread, _mfn.LAST_SHARE = draw, share
                    found, beyond = [], []
                    for seed in SEEDS:
                        torch.manual_seed(seed)
                        layer = make(generator=partial(MAGNet, hidden=hidden))
                        found.append(directions(layer))
                        beyond.append(100 * energy_beyond_nyquist(layer))
                    means = f"{statistics.mean(found):.2f} | {statistics.mean(beyond):.2f} %"
                    print(f"{name} | {kind} | {share} | {hidden} | {means}", flush=True)


if __name__ == "__main__":
    main()
