"""MFN-Fourier: a multiplicative filter network of plain sines."""

from __future__ import annotations

import torch

from ._mfn import MultiplicativeFilterNetwork


class FourierNet(MultiplicativeFilterNetwork):
    """Filters g(x) = sin(W x + b), W ~ U(±1/√D) · input_scale/√filters, b ~ U(±π).

    `input_scale` is the same as in the Gabor networks. The authors' code always uses 256 here: pass that to reproduce
    their baseline, whose sines start above the Nyquist frequency of a 33-tap grid.
    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        input_scale: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            dims, channels, hidden=hidden, layers=layers, input_scale=input_scale, device=device, dtype=dtype
        )
        self.reset_parameters()
