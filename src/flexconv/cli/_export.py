"""flexconv export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._common import say
from ._model import ModelName, load_model
from ._resample import sizes

if TYPE_CHECKING:
    from ..models import Model

SUFFIXES = {"onnx": ".onnx", "pt2": ".pt2", "conv": ".safetensors"}


def export(
    model: ModelName,
    format: Annotated[str, typer.Option(help="onnx, pt2 (torch.export) or conv (safetensors).")] = "onnx",  # noqa: A002
    resolution: Annotated[
        str | None, typer.Option(help="Image size (64, 48x64) or length to sample kernels for.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; by default named after the model, here.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise; for onnx alone.")] = False,
    rtol: Annotated[float, typer.Option(help="Largest relative error of the file against the model.")] = 1e-5,
) -> None:
    """Write a trained model for use without flexconv.

    The file is read again and compared with the model.
    """
    from .. import export as exporting

    network, _ = load_model(model)
    scale = None if resolution is None else _scale(network, model, resolution)
    name = Path(model).resolve().name + SUFFIXES.get(format, "")
    say(str(exporting.export(network, out or Path(name), format=format, scale=scale, quantize=int8, rtol=rtol)))


def _scale(network: Model, name: str, resolution: str) -> list[float]:
    """Samples at the resolution asked for per sample that the model was trained with, per axis."""
    from ..export import trained_size

    before = trained_size(network)
    if before is None:
        raise ValueError(f"{name} does not say what resolution it was trained at: --resolution has no place to start")
    return [new / old for new, old in zip(sizes(resolution, len(before), "--resolution"), before, strict=True)]
