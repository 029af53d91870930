"""Building a network whose weights are loaded afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_FILLS = {
    *("fill_", "zero_", "copy_", "normal_", "uniform_", "exponential_", "log_normal_", "random_", "bernoulli_"),
    *("add_", "sub_", "mul_", "div_", "pow_", "sqrt_", "exp_", "log_", "neg_", "abs_", "clamp_", "erfinv_"),
}


class SkipInitialization(TorchFunctionMode):
    """A context in which operations that fill a meta tensor in place do nothing.

    A meta tensor has no values, so the result is the same. But torch checks the arguments of some of these operations
    in Python, for which it imports its compiler and sympy. That takes longer than importing torch.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Return the meta tensor as it is instead of calling `func`, if `func` would only fill it."""
        fills = getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", None) in _FILLS
        if fills and args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs or {})
