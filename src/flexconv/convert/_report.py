"""What `convert` tells about its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvertedLayer:
    """One convolution that became a FlexConv.

    name: where it is in the model; `names` are all its places, if it is used at several.
    kernel_size, grid: taps per axis of the kernel it had, and of the grid it can grow to.
    error: ‖new kernel − old kernel‖ / ‖old kernel‖; None where it was not fitted.
    parameters: how many numbers it had and has.
    note: what became of hooks or weight norm, if it had any.
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
    """What `convert` did: layer by layer, and which convolutions it left as they were and why."""

    layers: tuple[ConvertedLayer, ...]
    left: dict[str, str]

    @property
    def worst(self) -> float | None:
        """The largest relative error of a fitted layer."""
        return max((layer.error for layer in self.layers if layer.error is not None), default=None)

    def __str__(self) -> str:
        rows = [("layer", "kernel", "grid", "parameters", "error", "")]
        for each in self.layers:
            error = "–" if each.error is None else f"{each.error:.1e}"
            before, after = each.parameters
            kernel, grid = ("×".join(map(str, size)) for size in (each.kernel_size, each.grid))
            rows.append((each.name or "(the model)", kernel, grid, f"{before:,} → {after:,}", error, each.note))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, *(f"left alone: {name or '(the model)'}, {why}" for name, why in self.left.items())])
