"""What an export tells: how the file compares with the model, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


class ExportError(UsageError):
    """The model cannot be exported, or what was exported computes something else. No file was written."""


class Comparison(NamedTuple):
    """One run of the file beside the model."""

    shapes: tuple[tuple[int, ...], ...]
    """Of the inputs."""
    error: float
    """‖file − model‖ / ‖model‖, of the worst output."""


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how it was found to agree with the model. `print(report)` says it in a few lines."""

    path: Path
    format: str
    size: int
    """Bytes."""
    axes: tuple[tuple[str | int, ...], ...]
    """Of each input: the name of an axis that may have any size, or the size it must have."""
    comparisons: tuple[Comparison, ...]
    """In float32, before any quantisation."""
    opset: int | None = None
    """Of ONNX."""
    quantized: tuple[Comparison, ...] = ()
    """The same runs in int8, where that was asked for."""

    @property
    def error(self) -> float:
        """The largest relative error in float32."""
        return max(each.error for each in self.comparisons)

    @property
    def quantization_error(self) -> float | None:
        """The largest relative error in int8; None where the file is in float32."""
        return max(each.error for each in self.quantized) if self.quantized else None

    def __str__(self) -> str:
        inputs = ", ".join(described(each) for each in self.axes)
        shapes = "; ".join(", ".join(map(described, each.shapes)) for each in self.comparisons)
        lines = [
            f"{self.path}: {self.size:,} bytes, {self.format}" + (f" opset {self.opset}" if self.opset else ""),
            f"input {inputs}",
            f"relative error {self.error:.1e} in float32, compared for {shapes}",
        ]
        if self.quantization_error is not None:
            lines.append(f"relative error {self.quantization_error:.1e} in int8, which is what the file holds")
        return "\n".join(lines)


def described(shape: tuple[str | int, ...] | tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
