"""MAGNet: multiplicative anisotropic Gabor network, the paper's kernel generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ._gabor import GaborNet


class MAGNet(GaborNet):
    """A `GaborNet` with one γ per axis, drawn from Gamma(α/(l+1), β) in filter l.

    Both differences from the Gabor network are switches of their own, so the paper's ablation is four settings:
    `anisotropic` × `gamma_shape`. Arguments as in `GaborNet`.
    """

    def __init__(
        self,
        dims: int,
        channels: int,
        *,
        hidden: int = 32,
        layers: int = 3,
        anisotropic: bool = True,
        gamma_shape: str = "per_filter",
        alpha: float = 6.0,
        beta: float = 1.0,
        input_scale: float | None = None,
        center: float | Sequence[float] | None = None,
        spread: float | Sequence[float] | None = None,
        steerable: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            dims,
            channels,
            hidden=hidden,
            layers=layers,
            anisotropic=anisotropic,
            gamma_shape=gamma_shape,
            alpha=alpha,
            beta=beta,
            input_scale=input_scale,
            center=center,
            spread=spread,
            steerable=steerable,
            device=device,
            dtype=dtype,
        )
