"""A step of fitting multiplicative filter networks as one GPU kernel, by Triton.

The compiled twin in `fit_group.py` writes every hidden layer to memory and reads it back several times; a picture of
half a million points is then limited by that. Here a program takes some points through the whole network, the loss, and
back. Only the maps' outputs u_l leave the registers, for a place that stays in the cache; filters are computed again:

    forward     h_0 = g_0,   u_l = A_l h_{l−1} + a_l,   h_l = g_l ⊙ u_l,   y = A h_n + a,   E = Σ (y − target)² / count
    backward    ∂u = ∂h ⊙ g,   ∂g = ∂h ⊙ u,   ∂A_l = ∂uᵀ h_{l−1},   ∂h_{l−1} = ∂u A_l
    filters     g = e · sin(W x + b),   e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)

Every program adds its gradients up in a place of its own; their sum over programs is one operation at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..nn.kernels import FourierNet, GaborNet, MAGNet

POINTS = 64  # that a program works on at a time
PROGRAMS = 264  # for all pictures together: two for each multiprocessor of an H200
WARPS = 4
PRECISION = "tf32x3"  # of products: three on tensor cores, exact to a few units of float32
WIDEST = 64  # hidden layer
CHANNELS = 16  # of the output: the smallest matrix that Triton multiplies


class Sizes(NamedTuple):
    """How many of everything, and where the gradients of each parameter begin in a program's place."""

    filters: int
    hidden: int  # a power of two
    frequency: int
    phase: int
    mu: int
    gamma: int
    mix_weight: int
    mix_bias: int
    output_weight: int
    output_bias: int
    total: int

    @classmethod
    def of(cls, filters: int, hidden: int) -> Sizes:
        """Sizes for so many filters of so many channels."""
        hidden = max(16, triton.next_power_of_2(hidden))
        vectors = filters * hidden
        lengths = [2 * vectors, vectors, 2 * vectors, 2 * vectors, (vectors - hidden) * hidden, vectors - hidden]
        lengths += [CHANNELS * hidden, CHANNELS]
        starts = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
        return cls(filters, hidden, *starts)


class FusedStep:
    """Loss and gradients of generators on a grid, for targets [pictures, channels, height, width].

    `parameters` are those of a `GaborNet`, a `MAGNet` or a `FourierNet` in 2D, stacked over the pictures.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], targets: torch.Tensor, ys: torch.Tensor, xs: torch.Tensor
    ) -> None:
        self.parameters, self.targets = parameters, targets.contiguous()
        self.ys, self.xs = ys.contiguous(), xs.contiguous()
        pictures, filters, hidden, _ = parameters["frequency"].shape
        self.sizes = Sizes.of(filters, hidden)
        blocks = triton.cdiv(targets[0, 0].numel(), POINTS)
        self.programs = max(1, min(blocks, PROGRAMS // pictures))
        like = {"device": targets.device, "dtype": torch.float32}
        self._outputs = torch.empty(pictures, self.programs, filters - 1, POINTS, self.sizes.hidden, **like)
        self._sums = torch.empty(pictures, self.programs, self.sizes.total, **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        given = {name: p.detach() for name, p in self.parameters.items()}
        enveloped = "gamma" in given
        if enveloped:
            given["gamma"] = given["gamma"].expand_as(given["mu"]).contiguous()
        sizes, pictures = self.sizes, len(self.targets)
        self._sums.zero_()
        launch: Any = _step[(self.programs, pictures)]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            given["frequency"],
            given["phase"],
            given.get("mu", given["frequency"]),
            given.get("gamma", given["frequency"]),
            given["mix_weight"],
            given["mix_bias"],
            given["output.weight"],
            given["output.bias"],
            self._outputs,
            self._sums,
            self._losses,
            len(self.xs),
            len(self.ys) * len(self.xs),
            1.0 / self.targets[0].numel(),
            given["phase"].shape[2],
            self.targets.shape[1],
            FILTERS=sizes.filters,
            ENVELOPED=enveloped,
            H=sizes.hidden,
            C=CHANNELS,
            B=POINTS,
            AT_PHASE=sizes.phase,
            AT_MU=sizes.mu,
            AT_GAMMA=sizes.gamma,
            AT_MIX=sizes.mix_weight,
            AT_MIX_BIAS=sizes.mix_bias,
            AT_OUT=sizes.output_weight,
            AT_OUT_BIAS=sizes.output_bias,
            TOTAL=sizes.total,
            PRODUCTS=PRECISION,
            num_warps=WARPS,
        )
        self._spread(self._sums.sum(1))
        return self._losses.sum(1)

    def _spread(self, sums: torch.Tensor) -> None:
        """Cut the gradients [pictures, total] to those of each parameter."""
        sizes, (pictures, _, hidden) = self.sizes, self.parameters["phase"].shape
        shapes = {
            "frequency": (sizes.frequency, (sizes.filters, 2, sizes.hidden)),
            "phase": (sizes.phase, (sizes.filters, sizes.hidden)),
            "mu": (sizes.mu, (sizes.filters, 2, sizes.hidden)),
            "gamma": (sizes.gamma, (sizes.filters, 2, sizes.hidden)),
            "mix_weight": (sizes.mix_weight, (sizes.filters - 1, sizes.hidden, sizes.hidden)),
            "mix_bias": (sizes.mix_bias, (sizes.filters - 1, sizes.hidden)),
            "output.weight": (sizes.output_weight, (CHANNELS, sizes.hidden)),
            "output.bias": (sizes.output_bias, (CHANNELS,)),
        }
        for name, parameter in self.parameters.items():
            start, shape = shapes[name]
            whole = sums[:, start : start + torch.Size(shape).numel()].view(pictures, *shape)
            if name in ("frequency", "mu", "gamma"):
                gradient = whole[..., :hidden].transpose(2, 3)
                if name == "gamma" and parameter.shape[-1] == 1:
                    gradient = gradient.sum(-1, keepdim=True)
            else:
                gradient = whole[tuple(slice(n) for n in parameter.shape)]
            parameter.grad = gradient.contiguous()


@triton.jit
def _sine_and_cosine(x):
    """Both of them, for |x| up to some 10⁵, by polynomials around the nearest multiple of π/2; exact to float32.

    The library's have a way for any x at all, whose code and memory cost more than everything else here.
    """
    quarter = tl.floor(x * 0.6366197723675814 + 0.5)
    # π/2 in three parts, of which the first two have so few digits that their products are exact
    r = ((x - quarter * 1.5703125) - quarter * 4.837512969970703e-4) - quarter * 7.549789954891882e-8
    z = r * r
    s = r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    c = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    turn = quarter.to(tl.int32) & 3
    odd = (turn & 1) == 1
    sine, cosine = tl.where(odd, c, s), tl.where(odd, s, c)
    return tl.where(turn >= 2, -sine, sine), tl.where((turn == 1) | (turn == 2), -cosine, cosine)


@triton.jit
def _filter(f, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED: tl.constexpr, H: tl.constexpr):
    """Filter f at points → g = e sin, and e cos, both [points, hidden]."""
    channel = tl.arange(0, H)
    there = channel < hidden
    row = f * hidden + channel
    w0 = tl.load(frequency + 2 * row, mask=there, other=0.0)
    w1 = tl.load(frequency + 2 * row + 1, mask=there, other=0.0)
    b = tl.load(phase + row, mask=there, other=0.0)
    angle = y[:, None] * w0[None, :] + x[:, None] * w1[None, :] + b[None, :]
    sine, cosine = _sine_and_cosine(angle)
    if ENVELOPED:
        d0 = y[:, None] - tl.load(mu + 2 * row, mask=there, other=0.0)[None, :]
        d1 = x[:, None] - tl.load(mu + 2 * row + 1, mask=there, other=0.0)[None, :]
        d0 *= tl.load(gamma + 2 * row, mask=there, other=0.0)[None, :]
        d1 *= tl.load(gamma + 2 * row + 1, mask=there, other=0.0)[None, :]
        envelope = tl.exp(-0.5 * (d0 * d0 + d1 * d1))
        sine *= envelope
        cosine *= envelope
    return sine, cosine


@triton.jit
def _add(place, value):
    tl.store(place, tl.load(place) + value)


@triton.jit
def _filter_gradients(
    f, dg, g, cosine, y, x, mu, gamma, hidden, sums,
    ENVELOPED: tl.constexpr, H: tl.constexpr,
    AT_PHASE: tl.constexpr, AT_MU: tl.constexpr, AT_GAMMA: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the parameters of filter f, given ∂g [points, hidden]."""
    channel = tl.arange(0, H)
    there = channel < hidden
    turned = dg * cosine
    _add(sums + AT_PHASE + f * H + channel, tl.sum(turned, 0))
    _add(sums + 2 * f * H + channel, tl.sum(turned * y[:, None], 0))
    _add(sums + (2 * f + 1) * H + channel, tl.sum(turned * x[:, None], 0))
    if ENVELOPED:
        row = f * hidden + channel
        shrunk = dg * g
        d0 = y[:, None] - tl.load(mu + 2 * row, mask=there, other=0.0)[None, :]
        d1 = x[:, None] - tl.load(mu + 2 * row + 1, mask=there, other=0.0)[None, :]
        gamma0 = tl.load(gamma + 2 * row, mask=there, other=0.0)
        gamma1 = tl.load(gamma + 2 * row + 1, mask=there, other=0.0)
        _add(sums + AT_MU + 2 * f * H + channel, gamma0 * gamma0 * tl.sum(shrunk * d0, 0))
        _add(sums + AT_MU + (2 * f + 1) * H + channel, gamma1 * gamma1 * tl.sum(shrunk * d1, 0))
        _add(sums + AT_GAMMA + 2 * f * H + channel, -gamma0 * tl.sum(shrunk * d0 * d0, 0))
        _add(sums + AT_GAMMA + (2 * f + 1) * H + channel, -gamma1 * tl.sum(shrunk * d1 * d1, 0))


@triton.jit
def _compare(
    h, last_map, last_bias, targets, point, points, channels, share, sums,
    H: tl.constexpr, C: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """The output map and its gradients → the squared error of a block of points, and ∂h [points, hidden]."""
    channel, colour = tl.arange(0, H), tl.arange(0, C)
    drawn = tl.dot(h, tl.trans(last_map), input_precision=PRODUCTS) + last_bias[None, :]
    wanted = (point < points)[:, None] & (colour[None, :] < channels)
    target = tl.load(targets + colour[None, :] * points + point[:, None], mask=wanted, other=0.0)
    error = tl.where(wanted, drawn - target, 0.0)
    d = error * (2.0 * share)
    _add(sums + AT_OUT + colour[:, None] * H + channel[None, :], tl.dot(tl.trans(d), h, input_precision=PRODUCTS))
    _add(sums + AT_OUT_BIAS + colour, tl.sum(d, 0))
    return tl.sum(error * error), tl.dot(d, last_map, input_precision=PRODUCTS)


@triton.jit
def _step(
    ys, xs, targets, frequency, phase, mu, gamma, mix_weight, mix_bias, output_weight, output_bias,
    outputs, sums, losses, width, points, share, hidden, channels,
    FILTERS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_PHASE: tl.constexpr, AT_MU: tl.constexpr, AT_GAMMA: tl.constexpr,
    AT_MIX: tl.constexpr, AT_MIX_BIAS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: blocks of points of one picture, as many programs apart as there are."""
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    frequency += picture * FILTERS * hidden * 2
    phase += picture * FILTERS * hidden
    mu += picture * FILTERS * hidden * 2
    gamma += picture * FILTERS * hidden * 2
    mix_weight += picture * (FILTERS - 1) * hidden * hidden
    mix_bias += picture * (FILTERS - 1) * hidden
    output_weight += picture * channels * hidden
    output_bias += picture * channels
    targets += picture * channels * points
    place = picture * programs + program
    outputs += place * (FILTERS - 1) * B * H
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * hidden + channel[None, :]  # [out, in]
    in_square = (channel[:, None] < hidden) & (channel[None, :] < hidden)
    tile = tl.arange(0, B)[:, None] * H + channel[None, :]
    last = colour[:, None] * hidden + channel[None, :]  # [colour, in]
    in_last = (colour[:, None] < channels) & (channel[None, :] < hidden)
    last_map = tl.load(output_weight + last, mask=in_last, other=0.0)
    last_bias = tl.load(output_bias + colour, mask=colour < channels, other=0.0)
    loss = 0.0

    for block in range(program * B, points, programs * B):
        point = block + tl.arange(0, B)
        inside = point < points
        y = tl.load(ys + point // width, mask=inside, other=0.0)
        x = tl.load(xs + point % width, mask=inside, other=0.0)

        h, _ = _filter(0, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED, H)
        for layer in range(FILTERS - 1):
            a = tl.load(mix_weight + layer * hidden * hidden + square, mask=in_square, other=0.0)
            bias = tl.load(mix_bias + layer * hidden + channel, mask=channel < hidden, other=0.0)
            u = tl.dot(h, tl.trans(a), input_precision=PRODUCTS) + bias[None, :]
            tl.store(outputs + layer * B * H + tile, u)
            g, _ = _filter(layer + 1, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED, H)
            h = g * u

        squared, dh = _compare(
            h, last_map, last_bias, targets, point, points, channels, share, sums, H, C, AT_OUT, AT_OUT_BIAS, PRODUCTS
        )
        loss += squared

        tl.debug_barrier()  # what one thread has stored, another may load
        for back in range(FILTERS - 1):
            layer = FILTERS - 2 - back
            u = tl.load(outputs + layer * B * H + tile)
            g, cosine = _filter(layer + 1, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED, H)
            _filter_gradients(
                layer + 1, dh * u, g, cosine, y, x, mu, gamma, hidden, sums, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA
            )
            du = dh * g
            before, _ = _filter(layer, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED, H)
            if layer > 0:
                before *= tl.load(outputs + (layer - 1) * B * H + tile)
            gradient = tl.dot(tl.trans(du), before, input_precision=PRODUCTS)
            _add(sums + AT_MIX + layer * H * H + channel[:, None] * H + channel[None, :], gradient)
            _add(sums + AT_MIX_BIAS + layer * H + channel, tl.sum(du, 0))
            a = tl.load(mix_weight + layer * hidden * hidden + square, mask=in_square, other=0.0)
            dh = tl.dot(du, a, input_precision=PRODUCTS)
        g, cosine = _filter(0, y, x, frequency, phase, mu, gamma, hidden, ENVELOPED, H)
        _filter_gradients(0, dh, g, cosine, y, x, mu, gamma, hidden, sums, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
        tl.debug_barrier()  # the next block writes where this one reads

    tl.store(losses + place, loss * share)


def can_fuse(generator: Any) -> bool:
    """Whether a generator is one that this kernel knows."""
    known = type(generator) in (FourierNet, GaborNet, MAGNet) and generator.dims == 2
    return (
        known and generator.hidden <= 64 and generator.channels <= CHANNELS and not getattr(generator, "steerable", 0)
    )
