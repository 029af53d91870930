"""What the measured energy of its kernels means for a network at another resolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from .._arguments import per_axis_floats
from ..sampling import flexconv_layers
from ._energy import MUCH_FOLDED_ENERGY, energy_beyond_nyquist, folded_energy

#: A network whose layers have more folded energy in total is not band-limited. docs/alias-free.md shows why.
MUCH_TOTAL_ENERGY = 0.1
#: With less than this, the networks in docs/alias-free.md lost at most one point of accuracy; with more, a few points.
SOME_TOTAL_ENERGY = 0.004


@dataclass(frozen=True)
class AliasReport:
    """The energy of the kernels of a network beyond a Nyquist frequency, as shares by the names of the layers."""

    beyond: dict[str, float]  # `energy_beyond_nyquist`
    folded: dict[str, float]  # `folded_energy`

    @property
    def total(self) -> float:
        """The sum of the folded energies. The changes of all layers add up in the output of the network."""
        return sum(self.folded.values())

    @property
    def band_limited(self) -> bool:
        """Whether the kernels cost little accuracy at the other resolution; False if one is not finite."""
        return self.total <= MUCH_TOTAL_ENERGY

    @property
    def expected_loss(self) -> str:
        """What the kernels are expected to cost at the other resolution: "none", "a few points" or "much"."""
        if not self.band_limited:
            return "much"
        return "none" if self.total <= SOME_TOTAL_ENERGY else "a few points"

    @property
    def aliased(self) -> list[str]:
        """The layers with much folded energy, the worst first."""
        much = {name: share for name, share in self.folded.items() if not share <= MUCH_FOLDED_ENERGY}
        return sorted(much, key=lambda name: -much[name])


def alias_report(model: nn.Module, scale: float | Sequence[float] = 1.0) -> AliasReport:
    """Measure whether a model will compute the same at `scale` times its resolution.

        report = alias_report(model, 2)
        report.expected_loss    # "none": at_resolution(model, 2) is expected to be as accurate as model
        report.aliased          # otherwise: the layers that cause much of the difference

    The energy is measured beyond the Nyquist frequency of the coarser of the two grids, which is that of the model if
    `scale` is at least 1. The networks are compared on the same signal: detail that a lower resolution removes from the
    data is not part of the report.

    Arguments:
        model: a model with FlexConv layers, or a layer.
        scale: ratio of the new to the old number of samples, a number or one per axis.

    """
    layers = flexconv_layers(model, "alias_report")
    limits = {name: [min(1.0, s) for s in per_axis_floats("scale", scale, x.dims)] for name, x in layers.items()}
    return AliasReport(
        beyond={name: energy_beyond_nyquist(layer, scale=limits[name]) for name, layer in layers.items()},
        folded={name: folded_energy(layer, scale=limits[name]) for name, layer in layers.items()},
    )
