"""Fitting generators to kernels that exist: so that a trained convolution becomes a function of position.

A kernel is known at its taps only; a generator says what is in between, and at another resolution that is what counts.
The function through the taps that answers to every frequency below Nyquist as they do, and to none above, is
c(p) = Σ_t kernel[t] · Π_d sinc(p_d − t_d), distances in taps. That is the target, up to half a tap beyond the outer
ones. Under the window w of the mask, which stays as it is,

    minimise  Σ_p (w(p) · generator(p) − c(p))²      over points p between the taps, and far more heavily over the taps

The last map of a generator is linear: for given hidden features it is solved for at every step, and Adam shapes the
features under the best map they have. With as many features as taps the kernel is met exactly. And only the space that
the kernels of a layer span matters, which has no more dimensions than taps: kernels = Q R, R is fitted, and Q goes into
the map. A layer of 512 × 512 channels costs what one of 9 does. Generators that end otherwise are learned as a whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from ..nn import Affine, Axis, FlexConvNd, TapRange, effective_sigma, mesh
from ..nn.kernels import KernelGenerator

POINTS_PER_TAP = {1: 4, 2: 4, 3: 2}  # along an axis, by the number of axes; even, so that taps are among the points
LONG = 5  # axes of more taps than this have 2 points per tap
TAP_WEIGHT = 1e8  # of the squared error at a tap, against that at a point in between
LEARNING_TAP_WEIGHT = 100.0  # the same while features are learned: heavier taps make for a narrow valley
RIDGE = 1e-10  # of the mean squared feature: keeps weights of the last map small enough for float32
LEARNING_RATE = 1e-2
VALUES_AT_ONCE = 1 << 22  # values of features or targets of the layers fitted side by side

Advance = Callable[[int], None]


def fit_kernels(
    layers: Sequence[FlexConvNd], kernels: Sequence[torch.Tensor], *, steps: int, advance: Advance | None = None
) -> list[float]:
    """Fit every layer's generator, in place, to a kernel [out, in/groups, *taps in force] → relative errors ‖·‖/‖·‖.

    Layers of like generators, grids and masks are fitted side by side. `advance(n)` is told of every n layer-steps.
    """
    groups: dict[object, list[_Problem]] = {}
    for layer, kernel in zip(layers, kernels, strict=True):
        problem = _Problem(layer, kernel)
        groups.setdefault(problem.likeness(), []).append(problem)
    for members in groups.values():
        at_once = max(1, VALUES_AT_ONCE // members[0].values)
        for start in range(0, len(members), at_once):
            chosen = members[start : start + at_once]
            for problem, learned in zip(chosen, _learn(chosen, steps, advance), strict=True):
                problem.write(learned)
    return [relative_error(layer, kernel) for layer, kernel in zip(layers, kernels, strict=True)]


@torch.no_grad()
def relative_error(layer: FlexConvNd, kernel: torch.Tensor) -> float:
    """‖layer's kernel − kernel‖ / ‖kernel‖; for a kernel of zeros, the norm of what the layer has."""
    wanted = kernel.double()
    distance = (layer.kernel().double() - wanted).norm().item()
    return distance / (wanted.norm().item() or 1.0)


def output_map(generator: KernelGenerator) -> Affine | None:
    """The linear map that ends a generator; None where there is none to be found, or its rows are normalised."""
    last = generator.output_map
    return None if last is None or last.weight_norm or last.out_features != generator.channels else last


class _Problem:
    """One layer's fit: what to learn, where, and what it has to be there.

    `learner` is the generator without its last map, from points [D, *grid] to features [hidden, *grid]; or, where it
    has no such map, the generator itself.
    """

    def __init__(self, layer: FlexConvNd, kernel: torch.Tensor) -> None:
        layer._follow()
        self.layer, self.taps, device = layer, layer._extent.taps, kernel.device
        self.learner = copy.deepcopy(layer.generator).float()
        target = kernel.detach().flatten(0, 1).flatten(1).double()  # [channels, taps]
        self.basis = None
        if self.solvable:
            _drop_output_map(self.learner)
            if target.shape[0] > target.shape[1]:
                self.basis, target = torch.linalg.qr(target)
        lines = [_points(axis, window, layer.dims) for axis, window in zip(layer.axes, self.taps, strict=True)]
        surface = torch.ones(1, 1, dtype=torch.float64)
        for (start, stop), line in zip(self.taps, lines, strict=True):
            surface = torch.kron(surface, _interpolation(stop - start, len(line)))  # [points, taps]
        self.points = mesh(lines).to(device, torch.float64)
        self.is_tap = (surface == 1).any(1).to(device)
        self.target = target @ surface.T.to(device)  # [channels, points]
        self.window = _window(layer, self.points).flatten()
        self.norm = self.target.square().mean().sqrt().item() or 1.0

    @property
    def solvable(self) -> bool:
        return output_map(self.layer.generator) is not None

    @property
    def values(self) -> int:
        """How many numbers a step works on, about."""
        return self.target.shape[1] * max(self.target.shape[0], 4 * self.learner.channels)

    def likeness(self) -> object:
        """What layers must share to be fitted side by side."""
        shapes = [(name, p.shape) for name, p in self.learner.named_parameters()]
        kind = type(self.layer), type(self.learner), self.solvable, str(shapes)
        return *kind, self.layer.axes, self.taps, self.target.shape, self.target.device

    @torch.no_grad()
    def write(self, learned: dict[str, torch.Tensor]) -> None:
        """Give the layer its generator: what was learned, and the best last map to that."""
        for name, value in learned.items():
            self.layer.generator.get_parameter(name).copy_(value)
        last = output_map(self.layer.generator)
        if last is None:
            return
        learner = copy.deepcopy(self.layer.generator).double()  # with rounded parameters, as the layer will use them
        _drop_output_map(learner)
        hidden = _with_ones(learner(self.points).flatten(1).unsqueeze(0), self.window)[0]  # [points, hidden + 1]
        root = self._weights(TAP_WEIGHT).sqrt().unsqueeze(1)
        ridge = (RIDGE * hidden.square().mean() * len(hidden)).sqrt() * torch.eye(hidden.shape[1]).to(hidden)
        wanted = torch.cat([self.target.T * root, ridge.new_zeros(len(ridge), len(self.target))])
        solution = torch.linalg.lstsq(torch.cat([hidden * root, ridge]), wanted).solution.T  # [channels, hidden + 1]
        if self.basis is not None:
            solution = self.basis @ solution
        last.weight.copy_(solution[:, :-1])
        last.bias.copy_(solution[:, -1])

    def _weights(self, of_taps: float) -> torch.Tensor:
        return torch.where(self.is_tap, of_taps, 1.0).double()


def _learn(problems: Sequence[_Problem], steps: int, advance: Advance | None) -> list[dict[str, torch.Tensor]]:
    """Adam on all learners at once, their parameters stacked → the best parameters of each by name.

    The learning rate falls to 0 along a cosine.
    """
    first = problems[0]
    stacked, buffers = stack_module_state([problem.learner for problem in problems])  # type: ignore[arg-type]
    parameters = {name: p.detach().clone().requires_grad_() for name, p in stacked.items()}
    skeleton, points = copy.deepcopy(first.learner).to("meta"), first.points.float()
    window = torch.stack([p.window for p in problems])
    target = torch.stack([p.target / p.norm for p in problems])
    norm = torch.tensor([p.norm for p in problems]).to(window).reshape(-1, 1, 1)
    weights = first._weights(LEARNING_TAP_WEIGHT)

    def one(values: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(skeleton, (values, constants), (points,)).flatten(1)

    def errors() -> torch.Tensor:
        drawn = vmap(one)(parameters, buffers).double()  # [layers, hidden or channels, points]
        if first.solvable:
            hidden = _with_ones(drawn, window)
            drawn = (hidden @ _best_map(hidden.detach(), target, weights)).mT
        else:
            drawn = drawn * window.unsqueeze(1) / norm
        return (drawn - target).square().mean(1) @ (weights / weights.sum())

    optimizer = torch.optim.Adam(list(parameters.values()), lr=LEARNING_RATE)
    best = torch.full((len(problems),), math.inf, dtype=torch.float64, device=window.device)
    kept = {name: p.detach().clone() for name, p in parameters.items()}
    for step in range(steps + 1):
        found = errors()
        with torch.no_grad():
            better = found < best
            best = torch.where(better, found, best)
            for name, p in parameters.items():
                kept[name][better] = p[better]
        if step == steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad(set_to_none=True)
        found.sum().backward()
        optimizer.step()
        if advance is not None:
            advance(len(problems))
    return [{name: p[index] for name, p in kept.items()} for index in range(len(problems))]


def _with_ones(features: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Features [layers, hidden, points] and a constant one, under the window → [layers, points, hidden + 1]."""
    features = torch.cat([features, torch.ones_like(features[:, :1])], 1).mT
    return features * window.unsqueeze(-1)


def _best_map(hidden: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The least-squares map from features [layers, points, h] to targets [layers, channels, points].

    The slope of the error along the map is 0 there, so features learn as if the map followed them at every step.
    → [layers, h, channels].
    """
    weighted = hidden.mT * weights
    gram = weighted @ hidden
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(gram.shape[1]).to(gram)
    return torch.linalg.solve(gram + ridge, weighted @ target.mT)


def _points(axis: Axis, window: TapRange, dims: int) -> torch.Tensor:
    """Coordinates from half a spacing before the first tap of the window to half a spacing behind the last."""
    taps = window[1] - window[0]
    first = axis.first + window[0] * axis.spacing
    if axis.size == 1:
        return torch.tensor([first])
    per_tap = POINTS_PER_TAP[dims] if taps <= LONG else 2
    return first + (torch.arange(taps * per_tap + 1) / per_tap - 0.5) * axis.spacing


def _interpolation(taps: int, points: int) -> torch.Tensor:
    """Points of one axis as mixtures of its taps → [points, taps]: sinc of the distance, in taps."""
    if points == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    position = torch.arange(points, dtype=torch.float64) * taps / (points - 1) - 0.5
    distance = position.unsqueeze(1) - torch.arange(taps)
    return torch.where(distance == distance.round(), (distance == 0).double(), torch.sinc(distance))


def _window(layer: FlexConvNd, points: torch.Tensor) -> torch.Tensor:
    """The mask's window at points [D, *grid], nothing cropped → [*grid]."""
    if layer.mask is None:
        return torch.ones_like(points[0])
    mean, sigma = (p.detach().double() for p in (layer.mask.mean, layer.mask.sigma))
    sigma = effective_sigma(sigma, torch.tensor(layer.mask.sigma_floor(layer.axes)).to(sigma))
    shape = (-1, *[1] * layer.dims)
    return torch.exp(-0.5 * ((points - mean.view(shape)) / sigma.view(shape)).square().sum(0))


def _drop_output_map(generator: KernelGenerator) -> None:
    """Leave the hidden features of a generator as what it gives."""
    last = output_map(generator)
    assert last is not None
    maps = getattr(generator, "maps", None)
    if isinstance(maps, nn.ModuleList):
        maps[-1] = nn.Identity()
    else:
        generator.output = nn.Identity()
    generator.channels = last.in_features
