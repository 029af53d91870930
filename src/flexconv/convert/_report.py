"""The report that `convert` returns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class ConvertedLayer:
    """One convolution that was replaced with a FlexConv.

    Attributes:
        name: the name of the module in the model.
        names: all names of the module, if the model uses it in several places.
        kernel_size: taps per axis of the kernel that was replaced.
        grid: taps per axis of the new grid, which is the largest size of the new kernel.
        error: ‖new kernel − old kernel‖ / ‖old kernel‖; None if the kernel was not fitted.
        parameters: the number of parameters before and after.
        note: what happened to the module's hooks or weight norm, if it had any.

    """

    name: str
    names: tuple[str, ...]
    kernel_size: tuple[int, ...]
    grid: tuple[int, ...]
    error: float | None
    parameters: tuple[int, int]
    note: str


@dataclass(frozen=True)
class ConversionReport:
    """What `convert` did. `print(report)` shows it as a table.

    Attributes:
        layers: the convolutions that were replaced.
        skipped: the selected convolutions that were not replaced: name → reason.

    """

    layers: tuple[ConvertedLayer, ...]
    skipped: dict[str, str]

    @property
    def max_error(self) -> float | None:
        """The largest relative error of a fitted kernel; None if no kernel was fitted."""
        return max((layer.error for layer in self.layers if layer.error is not None), default=None)

    @property
    def left(self) -> dict[str, str]:
        """Deprecated: use `skipped`."""
        warnings.warn("ConversionReport.left is deprecated, use skipped", DeprecationWarning, stacklevel=2)
        return self.skipped

    @property
    def worst(self) -> float | None:
        """Deprecated: use `max_error`."""
        warnings.warn("ConversionReport.worst is deprecated, use max_error", DeprecationWarning, stacklevel=2)
        return self.max_error

    def __str__(self) -> str:
        rows = [("layer", "kernel", "grid", "parameters", "error", "")]
        for each in self.layers:
            error = "–" if each.error is None else f"{each.error:.1e}"
            before, after = each.parameters
            kernel, grid = ("×".join(map(str, size)) for size in (each.kernel_size, each.grid))
            rows.append((each.name or "(the model)", kernel, grid, f"{before:,} → {after:,}", error, each.note))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"skipped {name or '(the model)'}: {why}" for name, why in self.skipped.items())])
