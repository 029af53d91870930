"""A step of fitting SIRENs as one GPU kernel, by Triton; as `_fused_fit.py`, which says how.

forward     u_0 = W x + b,   h_l = sin ω_l u_l,   u_l = A_l h_{l−1} + a_l,   y = A h_n + a,  E = Σ (y − target)² / count
backward    ∂u_l = ∂h_l ⊙ ω_l cos ω_l u_l,   ∂A_l = ∂u_l h_{l−1}ᵀ,   ∂h_{l−1} = A_lᵀ ∂u_l
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..nn.kernels import SIREN, KernelGenerator
from . import _fused_parts as parts
from ._fused_parts import CHANNELS, add, compare, find, sine_and_cosine


class FusedSirenStep:
    """Loss and gradients of SIRENs on a grid, for targets [pictures, channels, height, width].

    `parameters` are those of a `SIREN` in 2D, `omegas` [pictures, sines] its frequency factors; both stacked over the
    pictures.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        omegas: torch.Tensor,
        targets: torch.Tensor,
        ys: torch.Tensor,
        xs: torch.Tensor,
    ) -> None:
        self.parameters, self.omegas, self.targets = parameters, omegas.contiguous(), targets.contiguous()
        self.ys, self.xs = ys.contiguous(), xs.contiguous()
        pictures, self.sines = omegas.shape
        self.hidden = max(16, triton.next_power_of_2(parameters["maps.0.bias"].shape[1]))
        middle = self.sines - 1
        lengths = [3 * self.hidden, middle * self.hidden**2, middle * self.hidden, CHANNELS * self.hidden, CHANNELS]
        self.starts = [0, *itertools.accumulate(lengths)]
        self.points, self.programs = parts.share_out(len(xs), len(ys), pictures, parts.SIREN_CUT)
        like = {"device": targets.device, "dtype": torch.float32}
        self._packed = torch.zeros(pictures, self.starts[-1], **like)
        self._layers = torch.empty(pictures, self.programs, self.sines, self.hidden, self.points, **like)
        self._sums = torch.empty(pictures, self.programs, self.starts[-1], **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        for name, place in self._places(self._packed):
            place.copy_(self.parameters[name])
        self._sums.zero_()
        launch: Any = _step[(self.programs, len(self.targets))]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            self.omegas,
            self._packed,
            self._layers,
            self._sums,
            self._losses,
            len(self.xs),
            len(self.ys),
            1.0 / self.targets[0].numel(),
            self.targets.shape[1],
            SINES=self.sines,
            H=self.hidden,
            C=CHANNELS,
            B=self.points,
            AT_MIX=self.starts[1],
            AT_MIX_BIAS=self.starts[2],
            AT_OUT=self.starts[3],
            AT_OUT_BIAS=self.starts[4],
            TOTAL=self.starts[5],
            PRODUCTS=parts.PRECISION,
            num_warps=parts.SIREN_CUT.warps,
            num_stages=1,
        )
        for name, place in self._places(self._sums.sum(1)):
            self.parameters[name].grad = place.contiguous()
        return self._losses.sum(1)

    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Where the parameters are in [pictures, total], in their own shapes."""
        first, weights, biases, last, last_bias = (
            packed[:, start:stop] for start, stop in itertools.pairwise(self.starts)
        )
        first = first.unflatten(1, (3, self.hidden))
        wholes = {"maps.0.bias": first[:, 0], "maps.0.weight": first[:, 1:].transpose(1, 2)}
        for layer in range(1, self.sines):
            at = (layer - 1) * self.hidden
            wholes[f"maps.{layer}.bias"] = biases[:, at : at + self.hidden]
            square = weights[:, at * self.hidden : (at + self.hidden) * self.hidden]
            wholes[f"maps.{layer}.weight"] = square.unflatten(1, (self.hidden, self.hidden))
        wholes[f"maps.{self.sines}.weight"] = last.unflatten(1, (CHANNELS, self.hidden))
        wholes[f"maps.{self.sines}.bias"] = last_bias
        for name, parameter in self.parameters.items():
            yield name, wholes[name][tuple(slice(n) for n in parameter.shape)]


@triton.jit
def _step(
    ys, xs, targets, omegas, packed, layers, sums, losses, width, height, share, channels,
    SINES: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MIX: tl.constexpr, AT_MIX_BIAS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: blocks of points of one picture, as many programs apart as there are."""
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    place = picture * programs + program
    targets += picture * channels * width * height
    omegas += picture * SINES
    packed += picture * TOTAL
    layers += place * SINES * H * B
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    tile = channel[:, None] * B + tl.arange(0, B)[None, :]
    last_map = tl.load(packed + AT_OUT + colour[:, None] * H + channel[None, :])
    last_bias = tl.load(packed + AT_OUT_BIAS + colour)
    loss = 0.0

    for block in range(program, height * tl.cdiv(width, B), programs):
        row, column, inside, y, x = find(block, width, ys, xs, B)
        of_row = tl.load(packed + channel) + y * tl.load(packed + H + channel)
        u = of_row[:, None] + tl.load(packed + 2 * H + channel)[:, None] * x[None, :]
        tl.store(layers + tile, u)
        h, _ = sine_and_cosine(tl.load(omegas) * u)
        for layer in range(1, SINES):
            a = tl.load(packed + AT_MIX + (layer - 1) * H * H + square)
            bias = tl.load(packed + AT_MIX_BIAS + (layer - 1) * H + channel)
            u = tl.dot(a, h, input_precision=PRODUCTS) + bias[:, None]
            tl.store(layers + layer * H * B + tile, u)
            h, _ = sine_and_cosine(tl.load(omegas + layer) * u)

        squared, dh = compare(
            h, last_map, last_bias, targets, row * width + column, inside, width * height, channels, share, sums,
            H, C, AT_OUT, AT_OUT_BIAS, PRODUCTS,
        )  # fmt: skip
        loss += squared

        tl.debug_barrier()  # what one thread has stored, another may load
        omega = tl.load(omegas + SINES - 1)
        _, cosine = sine_and_cosine(omega * tl.load(layers + (SINES - 1) * H * B + tile))
        for back in range(1, SINES):
            layer = SINES - 1 - back
            du = dh * cosine * omega
            add(sums + AT_MIX_BIAS + layer * H + channel, tl.sum(du, 1))
            omega = tl.load(omegas + layer)
            h, cosine = sine_and_cosine(omega * tl.load(layers + layer * H * B + tile))
            add(sums + AT_MIX + layer * H * H + square, tl.dot(du, tl.trans(h), input_precision=PRODUCTS))
            a = tl.load(packed + AT_MIX + layer * H * H + square)
            dh = tl.dot(tl.trans(a), du, input_precision=PRODUCTS)
        du = dh * cosine * omega
        du0 = tl.sum(du, 1)
        add(sums + channel, du0)
        add(sums + H + channel, y * du0)
        add(sums + 2 * H + channel, tl.sum(du * x[None, :], 1))
        tl.debug_barrier()  # the next block writes where this one reads

    tl.store(losses + place, loss * share)


def can_fuse_siren(generator: KernelGenerator) -> bool:
    """Whether a generator is a SIREN that this kernel knows."""
    if type(generator) is not SIREN or generator.learn_omega_0 or generator.output_map.weight_norm:
        return False
    return generator.dims == 2 and generator.output_map.in_features <= parts.WIDEST and generator.channels <= CHANNELS
