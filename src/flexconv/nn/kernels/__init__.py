"""Kernel generators: networks from coordinates to kernel values, one interface for all."""

from __future__ import annotations

from collections.abc import Callable

from ._base import KernelGenerator as KernelGenerator
from ._base import Placement as Placement
from ._fourier import FourierNet as FourierNet
from ._gabor import GaborNet as GaborNet
from ._linear import Affine as Affine
from ._magnet import MAGNet as MAGNet
from ._mfn import PAPER_INPUT_SCALE as PAPER_INPUT_SCALE
from ._mfn import PAPER_TAPS as PAPER_TAPS
from ._mfn import MultiplicativeFilterNetwork as MultiplicativeFilterNetwork
from ._mlp import MLP as MLP
from ._njet import NJet as NJet
from ._siren import NSIREN as NSIREN
from ._siren import SIREN as SIREN

#: names for the argument `generator` of a layer
GENERATORS: dict[str, Callable[..., KernelGenerator]] = {
    "magnet": MAGNet,
    "gabor": GaborNet,
    "fourier": FourierNet,
    "siren": SIREN,
    "nsiren": NSIREN,
    "mlp": MLP,
    "njet": NJet,
}

__all__ = [
    "GENERATORS",
    "MLP",
    "NSIREN",
    "SIREN",
    "FourierNet",
    "GaborNet",
    "KernelGenerator",
    "MAGNet",
    "MultiplicativeFilterNetwork",
    "NJet",
    "Placement",
]
