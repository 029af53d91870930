"""The peak throughput of a machine, and the shortest time that some work could take (the roofline model)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .timing import measure

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Ceilings(NamedTuple):
    """Measured peak rates: floating-point operations per second of matrix products, bytes per second of copies."""

    products: dict[str, float]  # by precision
    copy: float

    def floor(self, work: Callable[[], object], precision: str) -> float:
        """The shortest possible time for `work`, in milliseconds.

        The time of each operation is that of its arithmetic or that of its memory traffic at the peak rate, whichever
        is longer.
        """
        with _Floor(self.products[precision], self.copy) as floor:
            work()
        return floor.milliseconds


def measure_ceilings(device: torch.device, *, small: bool = False) -> Ceilings:
    """Measure a product of two large matrices in each precision, and a copy. `small` uses small tensors, for tests."""
    n = 128 if small else 8192 if device.type == "cuda" else 1024
    seconds = 0.01 if small else 0.4
    found = {}
    for name, dtype in DTYPES.items():
        a = torch.randn(n, n, device=device, dtype=dtype)
        found[name] = 2 * n**3 / (1e-3 * measure({"mm": partial(torch.mm, a, a)}, device, seconds=seconds)["mm"].ms)
    source = torch.empty(n * n * (1 if small else 8), device=device)
    target = torch.empty_like(source)
    ms = measure({"copy": partial(target.copy_, source)}, device, seconds=seconds)["copy"].ms
    return Ceilings(found, 2 * source.nbytes / (1e-3 * ms))


class _Floor(TorchDispatchMode):
    """Adds up the shortest possible time of every operation. Views take no time."""

    def __init__(self, products_per_second: float, bytes_per_second: float) -> None:
        super().__init__()
        self.products, self.copies, self.milliseconds = products_per_second, bytes_per_second, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        schema = func._schema
        view = any(each.alias_info and not each.alias_info.is_write for each in schema.returns)
        if not view and schema.name != "aten::_unsafe_view" and "empty" not in schema.name:
            tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
            count = flop_registry.get(func.overloadpacket)
            work = count(*args, **kwargs, out_val=result) / self.products if count is not None else 0.0
            self.milliseconds += 1e3 * max(sum(map(_bytes, tensors)) / self.copies, work)
        return result


def _bytes(tensor: torch.Tensor) -> int:
    """The size in memory. Axes of stride 0, which are expanded, count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else 1
    return count * tensor.element_size()
