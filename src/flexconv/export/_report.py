"""The result of an export: how the file compares with the model, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError


class ExportError(UsageError):
    """The model cannot be exported, or the exported file computes something else. No file was written."""


class Comparison(NamedTuple):
    """A comparison of the file with the model on one set of inputs."""

    shapes: tuple[tuple[int, ...], ...]
    """The shapes of the inputs."""
    error: float
    """‖file − model‖ / ‖model‖ of the worst output. If that is a probability, of its logarithm."""


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
    """The comparisons in float32, before quantization or conversion to float16."""
    opset: int | None = None
    """The opset of an ONNX file."""
    quantized: tuple[Comparison, ...] = ()
    """The comparisons in int8 or float16, if that is the precision of the file."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the file: name of the network, classes, and what input and output are."""

    @property
    def error(self) -> float:
        """The largest relative error in float32."""
        return max(each.error for each in self.comparisons)

    @property
    def quantization_error(self) -> float | None:
        """The largest relative error in int8 or float16; None if the file is in float32."""
        return max(each.error for each in self.quantized) if self.quantized else None

    def __str__(self) -> str:
        error = "relative error" + (" of log-probabilities" if self.metadata.get("output") == "probabilities" else "")
        shapes = "; ".join(", ".join(map(described, each.shapes)) for each in self.comparisons)
        lines = [
            f"{self.path}: {self.size:,} bytes, {self.format}" + (f" opset {self.opset}" if self.opset else ""),
            f"input {', '.join(described(each) for each in self.axes)}{self._preprocessing()}",
            *self._output(),
            f"{error} {self.error:.1e} in float32, compared for {shapes}",
        ]
        if self.quantization_error is not None:
            precision = self.metadata.get("precision", "int8")
            lines.append(f"{error} {self.quantization_error:.1e} in {precision}, the precision of the file")
        return "\n".join(lines)

    def _preprocessing(self) -> str:
        """What the values of the input are."""
        if self.metadata.get("preprocessing") != "included":
            known = "flexconv.inputs" in self.metadata
            return ", standardized" + (" as in flexconv.inputs of the metadata" if known else "") + ": no preprocessing"
        limits = self.metadata.get("input_range")
        values = "" if limits is None else f" from {limits[0]} to {limits[1]}"
        return f", raw {self.metadata['input_dtype']} values{values}: the file standardizes them"

    def _output(self) -> list[str]:
        """What the output is, if that is known."""
        output, classes = self.metadata.get("output"), self.metadata.get("classes", ())
        if output is None:
            return []
        return [f"output {output}" + (f" of {len(classes)} classes: {_listed(classes)}" if classes else "")]


def described(shape: tuple[str | int, ...] | tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 6 else [*names[:3], "…", names[-1]])
