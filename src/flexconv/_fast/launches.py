"""Launches of Triton kernels without what Triton computes again for every launch.

`kernel[grid](…)` binds and inspects all arguments to find out which compiled kernel they need, which takes longer on
the host than all else that a small layer does. A `Launch` has fixed numbers and constants. The compiled kernel then
depends only on the device and on the alignment of the tensors, so the one that the first launch returned is used
directly. Tensors that are not aligned to 16 bytes, hooks of profilers and Triton's interpreter take the ordinary way,
and so does everything if a version of Triton cannot be called like this.

Set the environment variable FLEXCONV_DIRECT_LAUNCHES to 0 to launch all kernels in the ordinary way.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

ENABLED = os.environ.get("FLEXCONV_DIRECT_LAUNCHES", "1") != "0"
ALIGNMENT = 16  # bytes: what Triton's compiler may rely on, if it is so in the first launch
FAMILIAR = ("3.6.",)  # versions whose launchers are called without the method of `CompiledKernel`

Number = int | float
Start = Callable[[int, tuple[int, int, int], Sequence[int | None]], None]


class Launch:
    """A kernel with its grid, numbers and constants. Call it with the tensors, which are the first arguments.

    All calls must have tensors of the same dtypes, and None for the same arguments.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: Sequence[Number] = (),
        constants: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.kernel, self.options = kernel, options
        first, second, third = (*grid, 1, 1)[:3]
        self.grid = first, second, third
        self.numbers, self.constants = tuple(numbers), dict(constants or {})
        self._direct: dict[int, Start] = {}  # by device

    def __call__(self, *tensors: torch.Tensor | None) -> None:
        first = tensors[0]
        assert first is not None
        device = first.get_device()
        start = self._direct.get(device)
        if start is None or device != _current_device():
            self._launch(first, device, tensors)
            return
        pointers: list[int | None] = []
        bits = 0
        for tensor in tensors:
            if tensor is None:
                pointers.append(None)
            else:
                pointer = tensor.data_ptr()
                pointers.append(pointer)
                bits |= pointer
        if bits % ALIGNMENT or _is_observed():
            self._launch(first, device, tensors)
            return
        try:
            start(device, self.grid, pointers)
        except (TypeError, AttributeError):  # raised before the launch, by another version of Triton
            _disable()
            self._direct.clear()
            self._launch(first, device, tensors)

    def _launch(self, first: torch.Tensor, device: int, tensors: Sequence[torch.Tensor | None]) -> None:
        """Launch in the ordinary way, and keep the compiled kernel if it can be used for later launches."""
        with torch.cuda.device_of(first):
            compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, **self.options)
        aligned = all(tensor is None or tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)
        if ENABLED and aligned and device not in self._direct:
            start = self._direct_start(compiled)
            if start is not None:
                self._direct[device] = start

    def _direct_start(self, compiled: Any) -> Start | None:
        """A function that launches a compiled kernel on tensors at given addresses. None if there is no such way."""
        names = getattr(self.kernel, "arg_names", None)
        if names is None or any(not hasattr(compiled, name) for name in ("run", "function", "packed_metadata")):
            return None
        constants = names[len(names) - len(self.constants) :]
        if set(constants) != self.constants.keys():
            return None
        others = *self.numbers, *(self.constants[name] for name in constants)
        if _triton_version().startswith(FAMILIAR):
            return _familiar_start(compiled, others)

        def start(device: int, grid: tuple[int, int, int], pointers: Sequence[int | None]) -> None:
            compiled[grid](*pointers, *others, stream=_current_stream(device))

        return start


def _familiar_start(compiled: Any, others: tuple[Any, ...]) -> Start:
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata

    def start(device: int, grid: tuple[int, int, int], pointers: Sequence[int | None]) -> None:
        # no metadata for hooks, and no hooks
        run(*grid, _current_stream(device), function, metadata, None, None, None, *pointers, *others)

    return start


def _disable() -> None:
    global ENABLED
    ENABLED = False


def _triton_version() -> str:
    import triton

    return triton.__version__


def _is_observed() -> bool:
    """Whether a profiler has set hooks that Triton calls for every launch."""
    global _runtime
    if _runtime is None:
        try:
            from triton import knobs

            _runtime = knobs.runtime
        except ImportError:
            _runtime = object()
    hook = getattr(_runtime, "launch_enter_hook", None)
    return bool(getattr(hook, "calls", hook))


_runtime: Any = None


def _current_device() -> int:
    return torch._C._cuda_getDevice()  # pyright: ignore[reportAttributeAccessIssue]


def _current_stream(device: int) -> int:
    return torch._C._cuda_getCurrentRawStream(device)  # pyright: ignore[reportAttributeAccessIssue]
