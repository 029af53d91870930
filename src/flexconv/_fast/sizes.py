"""Kernel sizes without waiting: mask parameters are copied to the host while the device works.

In training, every step of an optimizer changes the masks, and every layer must know the values of its own before it can
choose a window. Reading them layer by layer stalls the device once per layer, because each read waits for everything
that was launched before, such as the layers in front of this one.

Here, all masks that belong to an optimizer are copied right after its step, with one asynchronous copy to pinned memory
and an event behind it. A forward pass uses the values of that copy. It always uses these, never older ones, so a window
is never too small, whatever the optimizer did: no bound on the size of a step is needed. If the copy has not arrived,
the forward pass waits for its event, that is, until the last step of the optimizer has finished on the device. This
happens at most once per step, before the first layer, and only if the device is behind the host. It hardly costs time
then: nothing but the operations in front of the first layer could have been launched in the meantime, and a host that
is faster than the device soon has many operations in the queue again.

A copy is used only if the parameters have not changed since it was started, by the same record of versions that decides
whether a size is up to date. Otherwise, for example after `mask.set_` or a step of another optimizer, the layer reads
its parameters itself.

The record does not show writes through `parameter.data`. So the parameters are copied once more when the first layer
uses a copy, that is, at the beginning of a forward pass, and the two copies are compared in the next step, when both
have arrived. If they differ, somebody changed the masks after the step. A window may have been too small then: there is
a warning, and from then on all layers read their parameters themselves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .._registry import provide
from ..nn import GaussianMask, RotatedGaussianMask
from ..nn._crop import smallest_intervals
from ..nn._extent import SizeSource, Values, Versions
from ..nn._grid import Axis, was_resampled
from ..nn._scaled_mask import RATE
from .triton_support import capturing

MOST_LAYERS = 4096  # that are followed at the same time; the oldest are forgotten, and read their masks again
UNREAD_COPIES = 8  # a layer that has not read so many copies is not copied any more


class Copy:
    """A copy of several tensors to the host, under way or arrived."""

    def __init__(self, tensors: Sequence[torch.Tensor], previous: Copy | None = None) -> None:
        self._tensors = list(tensors)
        self._previous = previous  # of the same tensors, one step ago
        self._again: Copy | None = None  # from when the copy was used
        self._numbers: list[float] | None = None
        if previous is not None and previous._addresses == [t.data_ptr() for t in tensors]:
            self._flat, self._addresses = previous._flat, previous._addresses  # still views of the same memory
        else:
            self._flat = [t.detach().flatten() for t in tensors]
            self._addresses = [t.data_ptr() for t in self._flat]
        self._start(self._flat)

    def _start(self, tensors: Sequence[torch.Tensor]) -> None:
        with torch.cuda.device(tensors[0].device):
            packed = torch.cat(list(tensors))
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def _finish(self) -> list[float]:
        self._arrived.synchronize()
        return self._host.tolist()

    def numbers(self) -> list[float]:
        """All values, one after the other. Waits for the copy."""
        if self._numbers is None:
            self._numbers = self._finish()
        return self._numbers

    def use(self) -> bool:
        """Note that the values are used. Returns whether those of the step before were still right when used."""
        if self._again is not None:
            return True
        previous, self._previous = self._previous, None
        if not capturing(self._tensors[0].device):
            self._again = type(self)(self._tensors, self)
            self._again._previous = None  # it is compared with this copy only
        # everything that was copied before this copy has arrived as well
        return previous is None or previous._again is None or previous.numbers() == previous._again.numbers()


class _Followed:
    """Size parameters of one layer, and where their values are in the last copy.

    They are a few numbers, and may stay alive after their layer. Weak references would make torch.utils.swap_tensors
    fail.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.copy: Copy | None = None
        self.start, self.length = 0, sum(p.numel() for p in parameters)
        self.versions: Versions | None = None
        self.unread = 0

    def numbers(self, parameters: Sequence[torch.Tensor]) -> list[float] | None:
        """The current values from the last copy, one after the other, or None if it is not of the current ones."""
        if self.copy is None or self.versions is None or not self.versions.unchanged(parameters):
            return None
        self.unread = 0
        return self.copy.numbers()[self.start : self.start + self.length]

    def values(self, parameters: Sequence[torch.Tensor]) -> list[Values] | None:
        """The same, nested like the parameters."""
        numbers = self.numbers(parameters)
        if numbers is None:
            return None
        start, values = 0, []
        for parameter in parameters:
            values.append(_nested(numbers[start : start + parameter.numel()], parameter.shape))
            start += parameter.numel()
        return values

    def still_right(self) -> bool:
        """Whether the values of the step before were still right when they were used. Warns if not."""
        if self.copy is None or self.copy.use():
            return True
        warnings.warn(
            "the parameters of a mask were changed through .data after a step of an optimizer, so the last forward "
            "pass may have used a window that is too small. From now on, sizes are read in every forward pass, which "
            "is slower. Change masks with mask.set_(…), or inside torch.no_grad() without .data",
            stacklevel=2,
        )
        return False


class SizeCopies:
    """Copies the size parameters of layers after each step of an optimizer that changes them."""

    copy: type[Copy] = Copy

    def __init__(self) -> None:
        self._followed: dict[tuple[int, ...], _Followed] = {}
        self._disabled = False

    def read(self, parameters: Sequence[torch.Tensor]) -> list[Values]:
        """The values of the size parameters of a layer, from the last copy if there is one of the current values."""
        if self._disabled or not self.supports(parameters):
            return NotImplemented
        key = tuple(map(id, parameters))
        followed = self._followed.get(key)
        if followed is not None:
            values = followed.values(parameters)
            if values is not None:
                self._disabled = self._disabled or not followed.still_right()
                return values
        if torch.is_grad_enabled() and any(p.requires_grad and p.is_leaf for p in parameters):
            self._follow(key, parameters)
        return NotImplemented

    def copied(self, parameters: Sequence[torch.Tensor]) -> tuple[list[float], Versions] | None:
        """The values of these tensors on one GPU, one after the other, and their record; None without a copy of them.

        Parameters that are not followed yet are left to `read`.
        """
        followed = self._followed.get(tuple(map(id, parameters)))
        if followed is None or self._disabled:
            return None
        numbers = followed.numbers(parameters)
        if numbers is None or followed.versions is None:
            return None
        self._disabled = not followed.still_right()
        return numbers, followed.versions

    def supports(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors are on one GPU."""
        first = parameters[0]
        return all(p.is_cuda and p.device == first.device and p.dtype == first.dtype for p in parameters)

    def _follow(self, key: tuple[int, ...], parameters: Sequence[torch.Tensor]) -> None:
        if len(self._followed) >= MOST_LAYERS:
            self._followed = dict(list(self._followed.items())[MOST_LAYERS // 2 :])
        self._followed[key] = _Followed(parameters)

    def after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Start a copy of all followed parameters that this optimizer has."""
        if self._disabled or not self._followed:
            return
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        groups: dict[object, list[_Followed]] = {}
        for key, followed in list(self._followed.items()):
            if own.isdisjoint(key):
                continue
            followed.unread += 1
            if followed.unread > UNREAD_COPIES:
                del self._followed[key]
            else:
                first = followed.parameters[0]
                groups.setdefault((first.device, first.dtype), []).append(followed)
        for layers in groups.values():
            if not capturing(
                layers[0].parameters[0].device
            ):  # a captured copy would say nothing about the current values
                self._start(layers)

    def _start(self, layers: Sequence[_Followed]) -> None:
        copy, start = self.copy([p for followed in layers for p in followed.parameters], layers[0].copy), 0
        for followed in layers:
            followed.copy, followed.start, followed.versions = copy, start, Versions(followed.parameters)
            start += followed.length


def _nested(numbers: list[float], shape: torch.Size) -> Values:
    """Numbers as `tolist` of a tensor with this shape returns them. Size parameters have at most two dimensions."""
    if len(shape) < 2:
        return numbers
    width = shape[1]
    return [numbers[row * width : (row + 1) * width] for row in range(shape[0])]


# --- bounds -----------------------------------------------------------------------------------------------------------


def size_bounds(source: SizeSource, values: Sequence[Any], axes: Sequence[Axis]) -> list[list[float]]:
    """`GaussianMask.bounds` in Python's numbers, which takes a tenth of the time. See `nn._extent.size_bounds`."""
    rotated = type(source) is RotatedGaussianMask
    if (type(source) is not GaussianMask and not rotated) or was_resampled(axes):
        return NotImplemented
    assert isinstance(source, GaussianMask)
    if source.threshold is None:
        return [[-math.inf, math.inf] for _ in axes]
    if source.form == "scaled":
        (start, widths), shift, growth, *others = values
        mean = [m + RATE * s * by for m, s, by in zip(start, widths, shift, strict=True)]
        sigma = [s * _exp(RATE * by) for s, by in zip(widths, growth, strict=True)]
    else:
        mean, sigma, *others = values
    reach = math.sqrt(-2.0 * math.log(source.threshold))
    if source.form == "authors":
        return [_authors_bounds(axis, m, abs(s) * reach) for axis, m, s in zip(axes, mean, sigma, strict=True)]
    mean = [min(max(m, -1.0), 1.0) for m in mean]
    sigma = [max(abs(s), floor) for s, floor in zip(sigma, source.sigma_floor(axes), strict=True)]
    if rotated:
        cos, sin = math.cos(others[0][0]), math.sin(others[0][0])
        sigma = [math.hypot(cos * s, sin * other) for s, other in zip(sigma, reversed(sigma), strict=True)]
    bounds = []
    for m, s, half, inner in zip(mean, sigma, *smallest_intervals(axes, torch.float32), strict=True):
        center = min(max(m, -inner), inner)
        bounds.append([min(m - s * reach, center - half), max(m + s * reach, center + half)])
    return bounds


def _authors_bounds(axis: Axis, mean: float, reach: float) -> list[float]:
    root = mean - reach if axis.causal else -max(abs(mean - reach), abs(mean + reach))
    low = root if abs(root) < 1 else -math.inf
    return [low, math.inf if axis.causal else -low]


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


copies = SizeCopies()
register_optimizer_step_post_hook(copies.after_step)  # after the one that counts steps
provide("nn.read_values", copies.read)
provide("nn.size_bounds", size_bounds)
