"""A cache for the matrices of `_dft.py`, per dtype and device."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import UsageError
from ._dft_matrices import Positions, TransformSpec, build_matrices

Key = tuple[TransformSpec, torch.dtype, torch.device]


class MatrixCache:
    """The most recently used matrices, up to `limit` bytes. Any number of threads may use it.

    Matrices that were used while a CUDA graph was captured are never dropped, because the graph holds their addresses.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._recent: OrderedDict[Key, list[torch.Tensor]] = OrderedDict()
        self._captured: dict[Key, list[torch.Tensor]] = {}
        self._lock = threading.Lock()

    def __call__(self, spec: TransformSpec, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
        """Return the matrices of a transform. The result must not be modified."""
        key = shared_spec(spec), dtype, device
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        matrices = self._find(key, capturing=capturing)
        if matrices is None:
            if capturing:
                raise UsageError(
                    "this convolution needs transform matrices that do not exist yet, and they cannot be created while "
                    "a CUDA graph is captured: run the same shapes once before the capture"
                )
            # without the lock, so that no thread waits for the matrices of another
            matrices = self._insert(key, _build_tensors(*key))
        if key[0] == spec:
            return matrices
        return [matrix[..., : spec.positions[0].number] for matrix in matrices]

    def _find(self, key: Key, *, capturing: bool) -> list[torch.Tensor] | None:
        """Return the matrices if they exist. If a CUDA graph is captured, keep them forever."""
        with self._lock:
            if key in self._captured or key not in self._recent:
                return self._captured.get(key)
            self._recent.move_to_end(key)
            if capturing:
                self._captured[key] = self._recent.pop(key)
                self.used -= _bytes(self._captured[key])
                return self._captured[key]
            return self._recent[key]

    def _insert(self, key: Key, matrices: list[torch.Tensor]) -> list[torch.Tensor]:
        """Add matrices and drop others, if there are too many. Return those of the thread that was first."""
        with self._lock:
            if key in self._captured:
                return self._captured[key]
            if key not in self._recent:
                self._recent[key] = matrices
                self.used += _bytes(matrices)
            while self.used > self.limit and len(self._recent) > 1:
                self.used -= _bytes(self._recent.popitem(last=False)[1])
            return self._recent.get(key, matrices)

    def __len__(self) -> int:
        return len(self._recent) + len(self._captured)


on_cpu = MatrixCache(limit=2**28)  # where "auto" never chooses this algorithm, and memory is shared with all else
on_devices = MatrixCache(limit=2**30)


def cached_matrices(spec: TransformSpec, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Return the matrices of a transform from the cache for this kind of device. They must not be modified."""
    return (on_cpu if device.type == "cpu" else on_devices)(spec, dtype, device)


def shared_spec(spec: TransformSpec) -> TransformSpec:
    """Return the transform whose matrices contain those of `spec` as their first columns.

    Sequences of similar lengths, and their outputs, have the same circular length. They differ only in how many of its
    positions they use, so they share the matrix for all of them.
    """
    (length, *others), (positions, *_) = spec.lengths, spec.positions
    if spec.kind != "single" or spec.kernel or others or positions[1:] != (0, 1):
        return spec
    return spec._replace(positions=(positions._replace(number=max(length, positions.number)),))


def constant_matrices(
    kind: str,
    lengths: tuple[int, ...],
    positions: tuple[tuple[int, int, int], ...],
    kernel: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Return cached matrices as constants of a graph that is being compiled.

    The fields of the specification are separate arguments, because Dynamo does not pass named tuples to a function that
    it evaluates as a constant.
    """
    spec = TransformSpec(kind, lengths, tuple(Positions(*each) for each in positions), kernel)
    matrices = cached_matrices(spec, dtype, device)
    for matrix in matrices:
        for tensor in (matrix, matrix._base):  # with dynamic=True, their sizes would become symbols of unknown value
            # this is what torch._dynamo.mark_static does, which cannot be called during compilation
            tensor._dynamo_static_indices = set(range(tensor.ndim))  # type: ignore[attr-defined]
    return matrices


# This is what torch.compiler.assume_constant_result does, without importing the compiler.
constant_matrices._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def _build_tensors(spec: TransformSpec, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    with _disable_current_modes(), torch.inference_mode(False):
        matrices = build_matrices(spec)
        if spec.kernel and spec.kind != "separable" and dtype.itemsize == 2:
            matrices = [_append_rounding_error(matrix, dtype) for matrix in matrices]
        return [_aligned_tensor(matrix, dtype, device) for matrix in matrices]


def _append_rounding_error(matrix: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Return [matrix, error], where error is what rounding to `dtype` loses; both are padded to a multiple of 8."""
    error = matrix - torch.from_numpy(matrix).to(dtype).double().numpy()
    padding = [(0, 0)] * (matrix.ndim - 1) + [(0, -matrix.shape[-1] % 8)]
    return np.concatenate([np.pad(matrix, padding), np.pad(error, padding)], -1)


def _aligned_tensor(matrix: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Convert a matrix, with rows that start at multiples of 16 bytes, which tensor cores need to load them fast."""
    width = matrix.shape[-1]
    padded = np.zeros((*matrix.shape[:-1], -(-width // 8) * 8))
    padded[..., :width] = matrix
    return torch.from_numpy(padded).to(dtype).to(device)[..., :width]


def _bytes(matrices: list[torch.Tensor]) -> int:
    return sum(matrix.untyped_storage().nbytes() for matrix in matrices)
