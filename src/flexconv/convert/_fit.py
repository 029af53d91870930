"""Fit generators to existing kernels, so that a trained convolution becomes a continuous function of position.

A kernel is known only at its taps. A generator also has values between them, which matter at another resolution. The
target there is the sinc interpolation c(p) = Σ_t kernel[t] · Π_d sinc(p_d − t_d), with distances in taps. It has the
frequency response of the taps below the Nyquist frequency, and none above. It extends half a tap beyond the outer taps.
With the mask w, which is not changed,

    minimize  Σ_p weight(p) · (w(p) · generator(p) − c(p))²

over the taps and points between them, where the taps have a far larger weight than the points between them.

The last map of a generator is linear. It is solved for by least squares at every step, and Adam optimizes the features
below it. With as many features as taps, the kernel is matched exactly. Only the space spanned by the kernels of a layer
matters, whose dimension is at most the number of taps: with the decomposition kernels = Q R, R is fitted and Q is
multiplied into the map. A layer of 512 × 512 channels therefore costs as much as one of 9. If a generator does not end
in a linear map, all its parameters are optimized by Adam.
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

POINTS_PER_TAP = {1: 4, 2: 4, 3: 2}  # per axis, by the number of axes; even, so that the taps are among the points
MAX_DENSE_TAPS = 5  # axes with more taps than this have 2 points per tap
TAP_WEIGHT = 1e8  # weight of a tap relative to a point between taps, in the final least-squares solution
LEARNING_TAP_WEIGHT = 100.0  # the same during optimization, which a larger weight makes ill-conditioned
RIDGE = 1e-10  # relative to the mean squared feature; keeps the weights of the last map small enough for float32
LEARNING_RATE = 1e-2
MAX_BATCH_VALUES = 1 << 22  # values of features or targets of the layers in a batch

Advance = Callable[[int], None]


def fit_kernels(
    layers: Sequence[FlexConvNd], kernels: Sequence[torch.Tensor], *, steps: int, advance: Advance | None = None
) -> list[float]:
    """Fit the generator of every layer, in place, to a kernel [out, in/groups, *extent] → relative errors.

    Layers whose generators and grids have the same shape are fitted as a batch. `advance(n)` is called after each step
    with the number of layers in the batch.
    """
    groups: dict[object, list[_Problem]] = {}
    for layer, kernel in zip(layers, kernels, strict=True):
        problem = _Problem(layer, kernel)
        groups.setdefault(problem.batch_key(), []).append(problem)
    for members in groups.values():
        batch_size = max(1, MAX_BATCH_VALUES // members[0].values)
        for start in range(0, len(members), batch_size):
            batch = members[start : start + batch_size]
            for problem, learned in zip(batch, _optimise(batch, steps, advance), strict=True):
                problem.write(learned)
    return [relative_error(layer, kernel) for layer, kernel in zip(layers, kernels, strict=True)]


@torch.no_grad()
def relative_error(layer: FlexConvNd, kernel: torch.Tensor) -> float:
    """‖layer.kernel() − kernel‖ / ‖kernel‖; the absolute error if the kernel is 0."""
    expected = kernel.double()
    distance = (layer.kernel().double() - expected).norm().item()
    return distance / (expected.norm().item() or 1.0)


def output_map(generator: KernelGenerator) -> Affine | None:
    """The linear map at the end of a generator; None if it has none, or if its rows are normalized."""
    last = generator.output_map
    return None if last is None or last.weight_norm or last.out_features != generator.channels else last


class _Problem:
    """The fit of one layer: the parameters to optimize, the points, and the target values there.

    `learner` is the generator without its last map, from points [D, *grid] to features [hidden, *grid]. It is the
    whole generator if that does not end in a linear map.
    """

    def __init__(self, layer: FlexConvNd, kernel: torch.Tensor) -> None:
        self.layer, self.taps, device = layer, layer.taps, kernel.device
        self.learner = copy.deepcopy(layer.generator).float()
        target = kernel.detach().flatten(0, 1).flatten(1).double()  # [channels, taps]
        self.basis = None
        if self.has_output_map:
            _drop_output_map(self.learner)
            if target.shape[0] > target.shape[1]:
                self.basis, target = torch.linalg.qr(target)
        lines = [_points(axis, taps, layer.dims) for axis, taps in zip(layer.axes, self.taps, strict=True)]
        interpolation = torch.ones(1, 1, dtype=torch.float64)
        for (start, stop), line in zip(self.taps, lines, strict=True):
            interpolation = torch.kron(interpolation, _interpolation(stop - start, len(line)))  # [points, taps]
        self.points = mesh(lines).to(device, torch.float64)
        self.is_tap = (interpolation == 1).any(1).to(device)
        self.target = target @ interpolation.T.to(device)  # [channels, points]
        self.mask = _mask_values(layer, self.points).flatten()
        self.norm = self.target.square().mean().sqrt().item() or 1.0

    @property
    def has_output_map(self) -> bool:
        return output_map(self.layer.generator) is not None

    @property
    def values(self) -> int:
        """Approximate number of values that a step computes."""
        return self.target.shape[1] * max(self.target.shape[0], 4 * self.learner.channels)

    def batch_key(self) -> object:
        """Problems with equal keys can be fitted as a batch."""
        shapes = [(name, p.shape) for name, p in self.learner.named_parameters()]
        kind = type(self.layer), type(self.learner), self.has_output_map, str(shapes)
        return *kind, self.layer.axes, self.taps, self.target.shape, self.target.device

    @torch.no_grad()
    def write(self, learned: dict[str, torch.Tensor]) -> None:
        """Copy the optimized parameters to the layer's generator, and solve for its last map."""
        for name, value in learned.items():
            self.layer.generator.get_parameter(name).copy_(value)
        last = output_map(self.layer.generator)
        if last is None:
            return
        learner = copy.deepcopy(self.layer.generator).double()  # with the parameters rounded to the layer's dtype
        _drop_output_map(learner)
        hidden = _with_ones(learner(self.points).flatten(1).unsqueeze(0), self.mask)[0]  # [points, hidden + 1]
        root = self._weights(TAP_WEIGHT).sqrt().unsqueeze(1)
        ridge = (RIDGE * hidden.square().mean() * len(hidden)).sqrt() * torch.eye(hidden.shape[1]).to(hidden)
        expected = torch.cat([self.target.T * root, ridge.new_zeros(len(ridge), len(self.target))])
        solution = torch.linalg.lstsq(torch.cat([hidden * root, ridge]), expected).solution.T  # [channels, hidden + 1]
        if self.basis is not None:
            solution = self.basis @ solution
        last.weight.copy_(solution[:, :-1])
        last.bias.copy_(solution[:, -1])

    def _weights(self, tap_weight: float) -> torch.Tensor:
        return torch.where(self.is_tap, tap_weight, 1.0).double()


def _optimise(problems: Sequence[_Problem], steps: int, advance: Advance | None) -> list[dict[str, torch.Tensor]]:
    """Run Adam on all learners as a batch → the best parameters of each, by name.

    The learning rate decays to 0 along a cosine.
    """
    first = problems[0]
    stacked, buffers = stack_module_state([problem.learner for problem in problems])  # type: ignore[arg-type]
    parameters = {name: p.detach().clone().requires_grad_() for name, p in stacked.items()}
    skeleton, points = copy.deepcopy(first.learner).to("meta"), first.points.float()
    masks = torch.stack([p.mask for p in problems])
    target = torch.stack([p.target / p.norm for p in problems])
    norm = torch.tensor([p.norm for p in problems]).to(masks).reshape(-1, 1, 1)
    weights = first._weights(LEARNING_TAP_WEIGHT)

    def one(values: dict[str, torch.Tensor], constants: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(skeleton, (values, constants), (points,)).flatten(1)

    def errors() -> torch.Tensor:
        values = vmap(one)(parameters, buffers).double()  # [layers, hidden or channels, points]
        if first.has_output_map:
            hidden = _with_ones(values, masks)
            values = (hidden @ _best_map(hidden.detach(), target, weights)).mT
        else:
            values = values * masks.unsqueeze(1) / norm
        return (values - target).square().mean(1) @ (weights / weights.sum())

    optimizer = torch.optim.Adam(list(parameters.values()), lr=LEARNING_RATE)
    best = torch.full((len(problems),), math.inf, dtype=torch.float64, device=masks.device)
    best_parameters = {name: p.detach().clone() for name, p in parameters.items()}
    for step in range(steps + 1):
        current = errors()
        with torch.no_grad():
            better = current < best
            best = torch.where(better, current, best)
            for name, p in parameters.items():
                best_parameters[name][better] = p[better]
        if step == steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad(set_to_none=True)
        current.sum().backward()
        optimizer.step()
        if advance is not None:
            advance(len(problems))
    return [{name: p[index] for name, p in best_parameters.items()} for index in range(len(problems))]


def _with_ones(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Features [layers, hidden, points] and a constant feature 1, times the mask → [layers, points, hidden + 1]."""
    features = torch.cat([features, torch.ones_like(features[:, :1])], 1).mT
    return features * mask.unsqueeze(-1)


def _best_map(hidden: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The least-squares map → [layers, h, channels] from features [layers, points, h] to [layers, channels, points].

    The derivative of the error with respect to the map is 0 at the solution. The gradient of the features is therefore
    correct although the map is detached.
    """
    weighted = hidden.mT * weights
    gram = weighted @ hidden
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(gram.shape[1]).to(gram)
    return torch.linalg.solve(gram + ridge, weighted @ target.mT)


def _points(axis: Axis, taps: TapRange, dims: int) -> torch.Tensor:
    """Coordinates from half a spacing before the first of the taps to half a spacing after the last."""
    start, stop = taps
    first = axis.first + start * axis.spacing
    if axis.size == 1:
        return torch.tensor([first])
    per_tap = POINTS_PER_TAP[dims] if stop - start <= MAX_DENSE_TAPS else 2
    return first + (torch.arange((stop - start) * per_tap + 1) / per_tap - 0.5) * axis.spacing


def _interpolation(taps: int, points: int) -> torch.Tensor:
    """Interpolation weights of one axis → [points, taps]: the sinc of the distance in taps."""
    if points == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    position = torch.arange(points, dtype=torch.float64) * taps / (points - 1) - 0.5
    distance = position.unsqueeze(1) - torch.arange(taps)
    return torch.where(distance == distance.round(), (distance == 0).double(), torch.sinc(distance))


def _mask_values(layer: FlexConvNd, points: torch.Tensor) -> torch.Tensor:
    """The mask at points [D, *grid] before cropping → [*grid]."""
    if layer.mask is None:
        return torch.ones_like(points[0])
    mean, sigma = (p.detach().double() for p in (layer.mask.mean, layer.mask.sigma))
    sigma = effective_sigma(sigma, torch.tensor(layer.mask.sigma_floor(layer.axes)).to(sigma))
    shape = (-1, *[1] * layer.dims)
    return torch.exp(-0.5 * ((points - mean.view(shape)) / sigma.view(shape)).square().sum(0))


def _drop_output_map(generator: KernelGenerator) -> None:
    """Remove the last map of a generator, so that it returns its hidden features."""
    last = output_map(generator)
    assert last is not None
    maps = getattr(generator, "maps", None)
    if isinstance(maps, nn.ModuleList):
        maps[-1] = nn.Identity()
    else:
        generator.output = nn.Identity()
    generator.channels = last.in_features
