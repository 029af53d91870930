"""A step of fitting multiplicative filter networks as one GPU kernel, by Triton.

The compiled twin in `fit_group.py` writes every hidden layer to memory and reads it back several times; a picture of
half a million points is then limited by that. Here a program takes some points through the whole network, the loss, and
back. Only the hidden layers h_l leave the registers, for a place that stays in the cache; the rest is computed again:

    forward     h_0 = g_0,   u_l = A_l h_{l−1} + a_l,   h_l = g_l ⊙ u_l,   y = A h_n + a,   E = Σ (y − target)² / count
    backward    ∂u = ∂h ⊙ g,   ∂g = ∂h ⊙ u,   ∂A_l = ∂uᵀ h_{l−1},   ∂h_{l−1} = ∂u A_l
    filters     g = e · sin(W x + b),   e = exp(−½ Σ_d (γ_d (x_d − μ_d))²)

A program's points lie in one row of the picture, at one y: half of each filter is the same for all of them. It adds its
gradients up in a place of its own; their sum over programs is one operation at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]  (comes with torch where there is a GPU)
import triton.language as tl  # pyright: ignore[reportMissingImports]

from ..nn.kernels import FourierNet, GaborNet, MAGNet

POINTS = 64  # that a program works on at a time, at most
PROGRAMS = 264  # for all pictures together: two for each multiprocessor of an H200
WARPS, STAGES = 4, 1  # loads ahead of their use would take registers that are short
PRECISION = "tf32x3"  # of products: three on tensor cores, exact to a few units of float32
WIDEST = 64  # hidden layer
CHANNELS = 16  # of the output: the smallest matrix that Triton multiplies


class Sizes(NamedTuple):
    """How many of everything, and where each parameter, or its gradient, begins where all are packed into one row."""

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
        self.points = min(POINTS, max(16, triton.next_power_of_2(len(xs))))
        blocks = len(ys) * triton.cdiv(len(xs), self.points)
        self.programs = max(1, min(blocks, PROGRAMS // pictures))
        like = {"device": targets.device, "dtype": torch.float32}
        self._packed = torch.zeros(pictures, self.sizes.total, **like)
        self._layers = torch.empty(pictures, self.programs, filters - 1, self.points, self.sizes.hidden, **like)
        self._sums = torch.empty(pictures, self.programs, self.sizes.total, **like)
        self._losses = torch.empty(pictures, self.programs, **like)

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        """Set `.grad` of every parameter → the mean squared error of every picture [pictures]."""
        sizes = self.sizes
        for name, place in self._places(self._packed):
            place.copy_(self.parameters[name])
        self._sums.zero_()
        launch: Any = _step[(self.programs, len(self.targets))]  # type: ignore[index]
        launch(
            self.ys,
            self.xs,
            self.targets,
            self._packed,
            self._layers,
            self._sums,
            self._losses,
            len(self.xs),
            len(self.ys) * len(self.xs),
            1.0 / self.targets[0].numel(),
            self.targets.shape[1],
            FILTERS=sizes.filters,
            ENVELOPED="gamma" in self.parameters,
            H=sizes.hidden,
            C=CHANNELS,
            B=self.points,
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
            num_stages=STAGES,
        )
        for name, place in self._places(self._sums.sum(1)):
            shared = place.sum(-1, keepdim=True) if self.parameters[name].shape[-1] < place.shape[-1] else place
            self.parameters[name].grad = shared.contiguous()
        return self._losses.sum(1)

    def _places(self, packed: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Where the parameters are in [pictures, total], in their own shapes, but a γ for each axis."""
        sizes, (pictures, filters, hidden) = self.sizes, self.parameters["phase"].shape
        shapes = {
            "frequency": (sizes.frequency, (filters, 2, sizes.hidden)),
            "phase": (sizes.phase, (filters, sizes.hidden)),
            "mu": (sizes.mu, (filters, 2, sizes.hidden)),
            "gamma": (sizes.gamma, (filters, 2, sizes.hidden)),
            "mix_weight": (sizes.mix_weight, (filters - 1, sizes.hidden, sizes.hidden)),
            "mix_bias": (sizes.mix_bias, (filters - 1, sizes.hidden)),
            "output.weight": (sizes.output_weight, (CHANNELS, sizes.hidden)),
            "output.bias": (sizes.output_bias, (CHANNELS,)),
        }
        for name, parameter in self.parameters.items():
            start, shape = shapes[name]
            whole = packed[:, start : start + torch.Size(shape).numel()].view(pictures, *shape)
            if name in ("frequency", "mu", "gamma"):
                yield name, whole[..., :hidden].transpose(2, 3)
            else:
                yield name, whole[tuple(slice(n) for n in parameter.shape)]


@triton.jit
def _sine_and_cosine(x):
    """Both of them, for |x| up to some 10⁴, by polynomials around the nearest multiple of π/2; exact to float32.

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
def _filter(
    f, y, x, packed,
    ENVELOPED: tl.constexpr, H: tl.constexpr,
    AT_PHASE: tl.constexpr, AT_MU: tl.constexpr, AT_GAMMA: tl.constexpr,
):  # fmt: skip
    """Filter f at points x [points] of the row y → g = e sin, and e cos, both [points, hidden]."""
    channel = tl.arange(0, H)
    across, along = 2 * f * H + channel, (2 * f + 1) * H + channel
    angle = y * tl.load(packed + across) + tl.load(packed + AT_PHASE + f * H + channel)
    sine, cosine = _sine_and_cosine(x[:, None] * tl.load(packed + along)[None, :] + angle[None, :])
    if ENVELOPED:
        d0 = (y - tl.load(packed + AT_MU + across)) * tl.load(packed + AT_GAMMA + across)
        gamma1 = tl.load(packed + AT_GAMMA + along)
        d1 = x[:, None] * gamma1[None, :] - (tl.load(packed + AT_MU + along) * gamma1)[None, :]
        envelope = tl.exp(-0.5 * d1 * d1 - (0.5 * d0 * d0)[None, :])
        sine *= envelope
        cosine *= envelope
    return sine, cosine


@triton.jit
def _add(place, value):
    tl.store(place, tl.load(place) + value)


@triton.jit
def _filter_gradients(
    f, dg, g, cosine, y, x, first, packed, sums,
    ENVELOPED: tl.constexpr, H: tl.constexpr,
    AT_PHASE: tl.constexpr, AT_MU: tl.constexpr, AT_GAMMA: tl.constexpr,
):  # fmt: skip
    """Add the gradients of the parameters of filter f, given ∂g [points, hidden], by moments around the first x."""
    channel = tl.arange(0, H)
    across, along = 2 * f * H + channel, (2 * f + 1) * H + channel
    distance = (x - first)[:, None]
    turned = dg * cosine
    turned0, turned1 = tl.sum(turned, 0), tl.sum(turned * distance, 0)
    _add(sums + AT_PHASE + f * H + channel, turned0)
    _add(sums + across, y * turned0)
    _add(sums + along, first * turned0 + turned1)
    if ENVELOPED:
        shrunk = dg * g
        further = shrunk * distance
        shrunk0, shrunk1, shrunk2 = tl.sum(shrunk, 0), tl.sum(further, 0), tl.sum(further * distance, 0)
        d0, gamma0 = y - tl.load(packed + AT_MU + across), tl.load(packed + AT_GAMMA + across)
        d1, gamma1 = first - tl.load(packed + AT_MU + along), tl.load(packed + AT_GAMMA + along)
        _add(sums + AT_MU + across, gamma0 * gamma0 * d0 * shrunk0)
        _add(sums + AT_MU + along, gamma1 * gamma1 * (d1 * shrunk0 + shrunk1))
        _add(sums + AT_GAMMA + across, -gamma0 * d0 * d0 * shrunk0)
        _add(sums + AT_GAMMA + along, -gamma1 * (d1 * d1 * shrunk0 + 2.0 * d1 * shrunk1 + shrunk2))


@triton.jit
def _compare(
    h, last_map, last_bias, targets, point, inside, points, channels, share, sums,
    H: tl.constexpr, C: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """The output map and its gradients → the squared error of a block of points, and ∂h [points, hidden]."""
    channel, colour = tl.arange(0, H), tl.arange(0, C)
    drawn = tl.dot(h, tl.trans(last_map), input_precision=PRODUCTS) + last_bias[None, :]
    wanted = inside[:, None] & (colour[None, :] < channels)
    target = tl.load(targets + colour[None, :] * points + point[:, None], mask=wanted, other=0.0)
    error = tl.where(wanted, drawn - target, 0.0)
    d = error * (2.0 * share)
    _add(sums + AT_OUT + colour[:, None] * H + channel[None, :], tl.dot(tl.trans(d), h, input_precision=PRODUCTS))
    _add(sums + AT_OUT_BIAS + colour, tl.sum(d, 0))
    return tl.sum(error * error), tl.dot(d, last_map, input_precision=PRODUCTS)


@triton.jit
def _step(
    ys, xs, targets, packed, layers, sums, losses, width, points, share, channels,
    FILTERS: tl.constexpr, ENVELOPED: tl.constexpr, H: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    AT_PHASE: tl.constexpr, AT_MU: tl.constexpr, AT_GAMMA: tl.constexpr,
    AT_MIX: tl.constexpr, AT_MIX_BIAS: tl.constexpr, AT_OUT: tl.constexpr, AT_OUT_BIAS: tl.constexpr,
    TOTAL: tl.constexpr, PRODUCTS: tl.constexpr,
):  # fmt: skip
    """One program: blocks of points of one picture, as many programs apart as there are."""
    program, programs, picture = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    place = picture * programs + program
    targets += picture * channels * points
    packed += picture * TOTAL
    layers += place * (FILTERS - 1) * B * H
    sums += place * TOTAL

    channel, colour = tl.arange(0, H), tl.arange(0, C)
    square = channel[:, None] * H + channel[None, :]  # [out, in]
    tile = tl.arange(0, B)[:, None] * H + channel[None, :]
    last_map = tl.load(packed + AT_OUT + colour[:, None] * H + channel[None, :])
    last_bias = tl.load(packed + AT_OUT_BIAS + colour)
    loss = 0.0

    blocks = tl.cdiv(width, B)  # of a row
    for block in range(program, points // width * blocks, programs):
        row, start = block // blocks, block % blocks * B
        column = start + tl.arange(0, B)
        inside = column < width
        y, first = tl.load(ys + row), tl.load(xs + start)
        x = tl.load(xs + column, mask=inside, other=0.0)

        h, _ = _filter(0, y, x, packed, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
        for layer in range(FILTERS - 1):
            tl.store(layers + layer * B * H + tile, h)
            a = tl.load(packed + AT_MIX + layer * H * H + square)
            bias = tl.load(packed + AT_MIX_BIAS + layer * H + channel)
            u = tl.dot(h, tl.trans(a), input_precision=PRODUCTS) + bias[None, :]
            g, _ = _filter(layer + 1, y, x, packed, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
            h = g * u

        squared, dh = _compare(
            h, last_map, last_bias, targets, row * width + column, inside, points, channels, share, sums,
            H, C, AT_OUT, AT_OUT_BIAS, PRODUCTS,
        )  # fmt: skip
        loss += squared

        tl.debug_barrier()  # what one thread has stored, another may load
        for back in range(FILTERS - 1):
            layer = FILTERS - 2 - back
            before = tl.load(layers + layer * B * H + tile)
            a = tl.load(packed + AT_MIX + layer * H * H + square)
            bias = tl.load(packed + AT_MIX_BIAS + layer * H + channel)
            u = tl.dot(before, tl.trans(a), input_precision=PRODUCTS) + bias[None, :]
            g, cosine = _filter(layer + 1, y, x, packed, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
            _filter_gradients(
                layer + 1, dh * u, g, cosine, y, x, first, packed, sums, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA
            )
            du = dh * g
            _add(sums + AT_MIX + layer * H * H + square, tl.dot(tl.trans(du), before, input_precision=PRODUCTS))
            _add(sums + AT_MIX_BIAS + layer * H + channel, tl.sum(du, 0))
            dh = tl.dot(du, a, input_precision=PRODUCTS)
        g, cosine = _filter(0, y, x, packed, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
        _filter_gradients(0, dh, g, cosine, y, x, first, packed, sums, ENVELOPED, H, AT_PHASE, AT_MU, AT_GAMMA)
        tl.debug_barrier()  # the next block writes where this one reads

    tl.store(losses + place, loss * share)


def can_fuse(generator: Any) -> bool:
    """Whether a generator is one that this kernel knows."""
    known = type(generator) in (FourierNet, GaborNet, MAGNet) and not getattr(generator, "steerable", 0)
    return known and generator.dims == 2 and generator.hidden <= WIDEST and generator.channels <= CHANNELS
