"""The peak memory of a FlexConv layer in training, compared with a plain 3 × 3 convolution of the same input, and that
of networks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..models import create_model
from ..nn import FlexConv2d, FlexConvNd
from .ceilings import DTYPES
from .steps import open_masks


class Case(NamedTuple):
    """A dense layer for images with as many output as input channels, or a network for images of 3 channels."""

    batch: int
    channels: int
    size: tuple[int, int]
    network: bool = False


LAYERS = [Case(64, 64, (32, 32)), Case(256, 64, (32, 32)), Case(64, 64, (64, 64)), Case(16, 64, (128, 128))]
CASES = {
    "cuda": [*LAYERS, Case(64, 3, (32, 32), network=True)],
    "cpu": [Case(64, 64, (32, 32)), Case(16, 3, (32, 32), network=True)],
    "small": [Case(2, 3, (8, 8)), Case(2, 3, (8, 8), network=True)],
}
LARGEST_GRID = 33


def bench_memory(device: torch.device, *, small: bool = False) -> Iterator[dict[str, Any]]:
    """Measure the peak of a forward and backward pass, with the input and the output, but no optimizer.

    Yields one row per case, precision and masks (initial, or on the whole grid). A layer is compared with a 3 × 3
    convolution, and FlexNet-7 with the same network of 3 × 3 convolutions. `recomputed` is the peak with
    `recompute=True`. On a CPU, allocations of tensors are counted; what libraries allocate themselves is not.
    """
    for case in CASES["small" if small else "cuda" if device.type == "cuda" else "cpu"]:
        for precision in ("fp32", "bf16") if device.type == "cuda" else ("fp32",):
            measured = partial(peak, case=case, precision=precision, device=device)
            plain = measured(_plain(case, small=small))
            for full in (False, True):
                found = {}
                for name in ("flexconv", "recomputed"):
                    found[name] = measured(_flex(case, full=full, recompute=name == "recomputed", small=small))
                yield {"case": case._asdict(), "precision": precision, "full": full, "mib": {"torch": plain, **found}}


def _plain(case: Case, *, small: bool) -> nn.Module:
    if case.network:
        return create_model("flexnet7_conv3", in_channels=3, num_classes=10, **_widths(small))
    return nn.Conv2d(case.channels, case.channels, 3, padding=1)


def _flex(case: Case, *, full: bool, recompute: bool, small: bool) -> nn.Module:
    if case.network:
        model = create_model("flexnet7", in_channels=3, num_classes=10, image_size=case.size[0], **_widths(small))
    else:
        model = FlexConv2d(case.channels, case.channels, min(LARGEST_GRID, case.size[0] + 1 - case.size[0] % 2))
    for module in model.modules():
        if isinstance(module, FlexConvNd):
            module.recompute = recompute
    if full:
        open_masks(model)
    return model


def _widths(small: bool) -> dict[str, Any]:
    return {"widths": [2]} if small else {}


def peak(model: nn.Module, case: Case, precision: str, device: torch.device) -> float:
    """The peak memory in MiB of one training step, including the input and, for a layer, its gradient."""
    model = model.to(device)

    def step() -> object:
        x = torch.randn(case.batch, case.channels, *case.size, device=device, dtype=DTYPES[precision])
        x.requires_grad_(not case.network)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            y = model(x)
        y.backward(torch.ones_like(y))
        return y

    step()  # caches that outlive a step, such as Fourier matrices, do not count
    model.zero_grad()
    if device.type != "cuda":
        with LiveBytes() as live:
            step()
        return live.most / 2**20
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations allocate: those alive now, and the most at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage(), given)
        return result

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in given:
            return
        self._known.add(key)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._remove, key, storage.nbytes())

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
