"""A step of fitting SIRENs as one GPU kernel, by Triton; as `_fused_fit.py`, which says how.

forward     v_0 = ω (W x + b),   v_l = ω (A_l sin v_{l−1} + a_l),   y = A sin v_n + a,   E = Σ (y − target)² / count
backward    ∂v = ∂h ⊙ cos v,   ∂A_l = ω ∂vᵀ sin v_{l−1},   ∂h_{l−1} = ω ∂v A_l
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..nn.kernels import SIREN, KernelGenerator
from ._fused_fit import CHANNELS, POINTS, PRECISION, PROGRAMS, STAGES, WARPS, WIDEST, _add, _compare, _sine_and_cosine


class FusedSirenStep:
    """Loss and gradients of SIRENs on a grid, for targets [pictures, channels, height, width].

    `parameters` are those of a `SIREN` in 2D with `maps` linear maps, `omegas` [pictures, maps − 1] its frequency
    factors; both stacked over the pictures.
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
        pictures, sines = omegas.shape
        self.middle = range(1, sines)
        self.hidden = parameters["maps.0.bias"].shape[1]
        self.padded = max(16, triton.next_power_of_2(self.hidden))
        lengths = [3 * self.padded, len(self.middle) * self.padded**2, len(self.middle) * self.padded]
        lengths += [CHANNELS * self.padded, CHANNELS]
        self.starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        self.programs = max(1, min(triton.cdiv(targets[0, 0].numel(), POINTS), PROGRAMS // pictures))
        like = {"device": targets.device, "dtype": torch.float32}
        self._layers = torch.empty(pictures, self.programs, sines - 1, POINTS, self.padded, **like)
        self._sums = torch.empty(pictures, self.programs, self.starts[-1], **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        given = {name: p.detach() for name, p in self.parameters.items()}
        last = len(self.middle) + 1
        empty = self.omegas  # something to point at where there are no maps in the middle
        weights = torch.stack([given[f"maps.{n}.weight"] for n in self.middle], 1) if self.middle else empty
        biases = torch.stack([given[f"maps.{n}.bias"] for n in self.middle], 1) if self.middle else empty
        self._sums.zero_()
        launch: Any = _step[(self.programs, len(self.targets))]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            self.omegas,
            given["maps.0.weight"],
            given["maps.0.bias"],
            weights,
            biases,
            given[f"maps.{last}.weight"],
            given[f"maps.{last}.bias"],
            self._layers,
            self._sums,
            self._losses,
            len(self.xs),
            len(self.ys) * len(self.xs),
            1.0 / self.targets[0].numel(),
            self.hidden,
            self.targets.shape[1],
            MIDDLE=len(self.middle),
            H=self.padded,
            C=CHANNELS,
            B=POINTS,
            AT_MIX=self.starts[1],
            AT_MIX_BIAS=self.starts[2],
            AT_OUT=self.starts[3],
            AT_OUT_BIAS=self.starts[4],
            TOTAL=self.starts[5],
            PRODUCTS=PRECISION,
            num_warps=WARPS,
            num_stages=STAGES,
        )
        self._spread(self._sums.sum(1))
        return self._losses.sum(1)

    def _spread(self, sums: torch.Tensor) -> None:
        """Cut the gradients [pictures, total] to those of each parameter."""
        first, weights, biases, last, last_bias = (
            sums[:, start:stop] for start, stop in zip(self.starts, self.starts[1:], strict=False)
        )
        hidden, colours, n = self.hidden, self.targets.shape[1], len(self.middle) + 1
        ends = first.unflatten(1, (3, self.padded))[..., :hidden]
        gradients = {"maps.0.weight": ends[:, 1:].transpose(1, 2), "maps.0.bias": ends[:, 0]}
        gradients[f"maps.{n}.weight"] = last.unflatten(1, (CHANNELS, self.padded))[:, :colours, :hidden]
        gradients[f"maps.{n}.bias"] = last_bias[:, :colours]
        for number, layer in enumerate(self.middle):
            square = weights.unflatten(1, (-1, self.padded, self.padded))[:, number]
            gradients[f"maps.{layer}.weight"] = square[:, :hidden, :hidden]
            gradients[f"maps.{layer}.bias"] = biases.unflatten(1, (-1, self.padded))[:, number, :hidden]
        for name, gradient in gradients.items():
            self.parameters[name].grad = gradient.contiguous()


@triton.jit
def _step(
    ys, xs, targets, omegas, first_weight, first_bias, weights, biases, last_weight, last_bias,
    layers, sums, losses, width, points, share, hidden, channels,
    MIDDLE: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_MIX: tl.constexpr, AT_MIX_BIAS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: blocks of points of one picture, as many programs apart as there are."""
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    targets += picture * channels * points
    omegas += picture * (MIDDLE + 1)
    first_weight += picture * hidden * 2
    first_bias += picture * hidden
    weights += picture * MIDDLE * hidden * hidden
    biases += picture * MIDDLE * hidden
    last_weight += picture * channels * hidden
    last_bias += picture * channels
    place = picture * programs + program
    layers += place * MIDDLE * B * H
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    there = channel < hidden
    square = channel[:, None] * hidden + channel[None, :]  # [out, in]
    in_square = there[:, None] & there[None, :]
    tile = tl.arange(0, B)[:, None] * H + channel[None, :]
    in_last = (colour[:, None] < channels) & there[None, :]
    last_map = tl.load(last_weight + colour[:, None] * hidden + channel[None, :], mask=in_last, other=0.0)
    last_shift = tl.load(last_bias + colour, mask=colour < channels, other=0.0)
    w0 = tl.load(first_weight + 2 * channel, mask=there, other=0.0)
    w1 = tl.load(first_weight + 2 * channel + 1, mask=there, other=0.0)
    b0 = tl.load(first_bias + channel, mask=there, other=0.0)
    loss = 0.0

    for block in range(program * B, points, programs * B):
        point = block + tl.arange(0, B)
        inside = point < points
        y = tl.load(ys + point // width, mask=inside, other=0.0)
        x = tl.load(xs + point % width, mask=inside, other=0.0)

        v = tl.load(omegas) * (y[:, None] * w0[None, :] + x[:, None] * w1[None, :] + b0[None, :])
        h, _ = _sine_and_cosine(v)
        for layer in range(MIDDLE):
            tl.store(layers + layer * B * H + tile, h)
            a = tl.load(weights + layer * hidden * hidden + square, mask=in_square, other=0.0)
            shift = tl.load(biases + layer * hidden + channel, mask=there, other=0.0)
            u = tl.dot(h, tl.trans(a), input_precision=PRODUCTS) + shift[None, :]
            h, _ = _sine_and_cosine(tl.load(omegas + layer + 1) * u)

        squared, dh = _compare(
            h, last_map, last_shift, targets, point, inside, points, channels, share, sums,
            H, C, AT_OUT, AT_OUT_BIAS, PRODUCTS,
        )  # fmt: skip
        loss += squared

        tl.debug_barrier()  # what one thread has stored, another may load
        for back in range(MIDDLE):
            layer = MIDDLE - 1 - back
            omega = tl.load(omegas + layer + 1)
            before = tl.load(layers + layer * B * H + tile)
            a = tl.load(weights + layer * hidden * hidden + square, mask=in_square, other=0.0)
            shift = tl.load(biases + layer * hidden + channel, mask=there, other=0.0)
            u = tl.dot(before, tl.trans(a), input_precision=PRODUCTS) + shift[None, :]
            _, cosine = _sine_and_cosine(omega * u)
            du = dh * cosine * omega
            gradient = tl.dot(tl.trans(du), before, input_precision=PRODUCTS)
            _add(sums + AT_MIX + layer * H * H + channel[:, None] * H + channel[None, :], gradient)
            _add(sums + AT_MIX_BIAS + layer * H + channel, tl.sum(du, 0))
            dh = tl.dot(du, a, input_precision=PRODUCTS)
        _, cosine = _sine_and_cosine(v)
        du = dh * cosine * tl.load(omegas)
        _add(sums + channel, tl.sum(du, 0))
        _add(sums + H + channel, tl.sum(du * y[:, None], 0))
        _add(sums + 2 * H + channel, tl.sum(du * x[:, None], 0))
        tl.debug_barrier()  # the next block writes where this one reads

    tl.store(losses + place, loss * share)


def can_fuse_siren(generator: KernelGenerator) -> bool:
    """Whether a generator is a SIREN that this kernel knows."""
    if type(generator) is not SIREN or generator.learn_omega_0 or generator.output_map.weight_norm:
        return False
    return generator.dims == 2 and generator.output_map.in_features <= WIDEST and generator.channels <= CHANNELS
