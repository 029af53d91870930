"""flexconv export"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._files import refuse_existing, refuse_unwritable
from ..errors import ArgumentError
from ._common import Root, print_table, say
from ._model import ModelName, Scorer, load_model, load_with_data, part_of
from ._resample import sizes

if TYPE_CHECKING:
    from ..data import DataSplits, Split
    from ..export import ExportReport
    from ..models import Model


def export(
    model: ModelName,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="onnx, pt2 (for torch.export) or conv (safetensors). [default: by the suffix of --out, or onnx]",
        ),
    ] = None,
    resolution: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Resolution to sample kernels for: an image size (64, 48x64) or a length."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write, with the suffix .onnx, .pt2 or .safetensors. [default: the name of the model, in this "
            "folder]",
        ),
    ] = None,
    preprocessing: Annotated[
        bool | None,
        typer.Option(
            "--preprocessing/--no-preprocessing",
            help="Include the standardization, so that the file accepts raw pixels or samples, or export the bare "
            "network for standardized inputs. [default: included if the model knows its statistics]",
        ),
    ] = None,
    logits: Annotated[bool, typer.Option("--logits", help="Return logits instead of probabilities.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Quantize to 8-bit integers. Only for onnx.")] = False,
    half: Annotated[
        bool, typer.Option("--half", help="Store weights and compute in float16. Only for onnx and pt2.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    test: Annotated[
        bool, typer.Option("--test", help="Evaluate the model and the file on the test data of its training run.")
    ] = False,
    root: Root = None,
) -> None:
    """Export a trained model for use without flexconv.

    An .onnx or .pt2 file takes raw pixels or samples and returns the probabilities of the classes. A .safetensors file
    contains the bare network. The metadata describe inputs and outputs. The exported network is run and compared with
    the model before the file is written.
    """
    from .. import export as exporting
    from ..export import SUFFIXES, format_of

    format = format_of("", format or "onnx") if out is None or out.is_dir() else format_of(out, format)  # noqa: A001
    if int8 and format != "onnx":
        raise ArgumentError(f"--int8 needs --format onnx; got --format {format}")
    if test and resolution is not None:
        raise ArgumentError(
            "--test evaluates at the resolution of the training: leave out either --resolution or --test"
        )
    name = Path(model).resolve().name
    file = out or Path(name + SUFFIXES[format])
    refuse_unwritable(file, name + SUFFIXES[format])  # before anything is loaded
    if not force:
        refuse_existing(file)
    network, recipe, data = load_with_data(model, None, root) if test else (*load_model(model), None)
    split = None
    if data is not None:
        _check_testable(data, network, bare=preprocessing is False or format == "conv")
        split = part_of(data, "test")
    report = exporting.export(
        network.float(),  # a network may have been trained in float64
        file,
        format=format,
        scale=None if resolution is None else _scale(network, model, resolution),
        preprocessing=preprocessing,
        output="logits" if logits else None,
        name=name,
        quantize=int8,
        half=half,
        force=force,
    )
    say(str(report))
    if split is not None:
        _test(network, report, split, Scorer(recipe, device="cpu", batch_size=None))


def _check_testable(data: DataSplits, network: Model, *, bare: bool) -> None:
    """Raise an error if the file could not be evaluated on the samples of a data set."""
    if data.train.lengths is not None:
        raise ArgumentError(
            f"{data.name} has series of unequal length, which exported files do not accept: leave out --test"
        )
    inputs = network.inputs
    if not bare and inputs is not None and (inputs.mfcc_rate is not None or inputs.images is not None):
        raw, read = ("waves", "MFCCs") if inputs.images is None else ("images", "series")
        raise ArgumentError(
            f"the file accepts raw {raw}, but {data.name} is read as {read}: add --no-preprocessing or omit --test"
        )


def _test(network: Model, report: ExportReport, split: Split, scorer: Scorer) -> None:
    """Print the accuracy of the model and of the file."""
    from ..export import ExportedFile

    file: Any = ExportedFile(report, logits=True)
    raw = report.metadata["preprocessing"] == "included"
    scores = {
        "model": scorer(network, scorer.batches(split, network)),
        "file": scorer(file, scorer.batches(_raw(split) if raw else split, network)),
    }
    titles = ("", "test accuracy", "loss", "samples")
    rows = [(name, f"{100 * s.accuracy:.2f} %", f"{s.loss:.4f}", f"{s.count:,}") for name, s in scores.items()]
    print_table(titles, rows, right=titles[1:])


def _raw(split: Split) -> Split:
    """The split without standardization."""
    import torch

    return replace(split, scale=1.0, mean=torch.zeros(()), std=torch.ones(()))


def _scale(network: Model, name: str, resolution: str) -> list[float]:
    """Ratio of the requested resolution to that of the training, per axis."""
    from ..models import trained_size

    before = trained_size(network)
    if before is None:
        raise ArgumentError(f"{name} does not say which resolution it was trained at: --resolution cannot be used")
    return [new / old for new, old in zip(sizes(resolution, len(before), "--resolution"), before, strict=True)]
