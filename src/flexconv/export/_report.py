"""The result of an export: how the file compares with the model, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


class ExportError(UsageError):
    """The model cannot be exported, or the exported file computes something else. No file was written."""


class Comparison(NamedTuple):
    """A comparison of the file with the model on one set of inputs."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the inputs."""
    error: float
    """‖file − model‖ / ‖model‖ of the worst output."""


@dataclass(frozen=True)
class ExportReport:
    """What was written and how well it agrees with the model. `print(report)` summarizes it."""

    path: Path
    format: str
    size: int
    """The size of the file in bytes."""
    axes: tuple[tuple[str | int, ...], ...]
    """For each input: the name of every axis that may have any size, and the size of every other axis."""
    comparisons: tuple[Comparison, ...]
    """The comparisons in float32, before quantization."""
    opset: int | None = None
    """The opset of an ONNX file."""
    quantized: tuple[Comparison, ...] = ()
    """The comparisons in int8, if the file is quantized."""

    @property
    def error(self) -> float:
        """The largest relative error in float32."""
        return max(each.error for each in self.comparisons)

    @property
    def quantization_error(self) -> float | None:
        """The largest relative error in int8; None if the file is not quantized."""
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
            lines.append(f"relative error {self.quantization_error:.1e} in int8, the format of the file")
        return "\n".join(lines)


def described(shape: tuple[str | int, ...] | tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
