"""flexconv predict"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._files import refuse_existing
from ..errors import ArgumentError
from ._common import Device, note, print_table, say
from ._model import ModelName, load_model, parse_options, table_options
from ._resample import sizes

if TYPE_CHECKING:
    from ..predict import Prediction

FORMATS = {".json": "json", ".csv": "csv"}


def predict(
    model: ModelName,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Pictures, .wav recordings, arrays (.npz, .npy, IDX), tables (.csv, .tsv, .parquet), or folders.",
            show_default=False,
        ),
    ],
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Number of classes to print for each file.")] = 1,
    resolution: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="trained: resize pictures and resample recordings to the resolution of the training data. native: "
            "run the network at the resolution of each file. A size (64, 48x64): resize pictures to it and run the "
            "network at it. Check with flexconv resample how accurate the network is there.",
        ),
    ] = "trained",
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Print every chunk of a recording, not only their mean.")
    ] = False,
    hop: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Distance between chunks of a recording. [default: their length, no overlap]"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a .json or .csv file instead of printing.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip files that cannot be classified. [default: stop with an error]")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--data-option",
            metavar="KEY=VALUE",
            help="Set an option for reading a table or an array, such as id=series or layout=LC. Repeatable. "
            "[default: as in training, for a table]",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Samples per batch.")] = 64,
    device: Device = "auto",
) -> None:
    """Classify files with a trained model.

    Files are prepared as the training data were. Recordings that are longer than those of the training are divided
    into chunks of that length, and the probabilities of the chunks are averaged.
    """
    form = _form(as_json, as_csv, out)
    if out is not None and not force:
        refuse_existing(out)
    from ..predict import Predictor
    from ..train import choose_device

    network, recipe = load_model(model)
    reading = table_options(recipe) | parse_options(options or [])
    size = resolution if resolution.isalpha() else sizes(resolution, network.dims, "--resolution")
    predictor = Predictor(
        network, device=choose_device(device), batch_size=batch_size, resolution=size, hop=hop, options=reading
    )
    skipped: dict[str, str] = {}

    def skip(file: str, error: Exception) -> None:
        skipped[file] = str(error)
        note(f"skipped: {error}")

    predictions = predictor(files, on_error=skip if skip_bad else None)
    if not predictions:
        raise ArgumentError(f"none of {len(skipped)} files could be classified")
    if form == "table":
        _print_table(predictions, top, chunks=chunks)
        return
    if form == "json":
        text = _json(model, predictor.classes, predictions, skipped, top)
    else:
        text = _csv(predictions, min(top, len(predictor.classes)), chunks=chunks)
    if out is None:
        say(text)
    else:
        out.write_text(f"{text}\n", "utf-8")
        say(f"wrote {out}")


def _form(as_json: bool, as_csv: bool, out: Path | None) -> str:
    """Return "table", "json" or "csv"."""
    if out is not None and not out.parent.is_dir():
        raise ArgumentError(f"--out {out}: there is no folder {out.parent}")
    if as_json and as_csv:
        raise ArgumentError("--json and --csv exclude each other")
    if as_json or as_csv:
        return "json" if as_json else "csv"
    if out is None:
        return "table"
    if out.suffix.lower() not in FORMATS:
        raise ArgumentError(f"--out must end with {' or '.join(FORMATS)}, or add --json or --csv; got {str(out)!r}")
    return FORMATS[out.suffix.lower()]


def _lines(predictions: Sequence[Prediction], *, chunks: bool) -> Iterator[Prediction]:
    """All predictions, each followed by those for its chunks if they are wanted."""
    for prediction in predictions:
        yield prediction
        if chunks:
            yield from prediction.chunks


def _print_table(predictions: Sequence[Prediction], top: int, *, chunks: bool) -> None:
    some_rows = any(each.row is not None for each in predictions)
    titles = ["file", *(["row"] if some_rows else []), *(["seconds"] if chunks else []), "class", "probability"]
    rows = []
    for each in _lines(predictions, chunks=chunks):
        (label, probability), *others = each.top(top)
        where = [each.file]
        if some_rows:
            where.append("" if each.row is None else str(each.row))
        if chunks:
            where.append("" if each.start is None else f"{each.start:.2f} – {each.stop:.2f}")
        rows.append([*where, label, f"{100 * probability:.1f} %", *(f"{name} {100 * p:.1f} %" for name, p in others)])
    titles += ["followed by", *[""] * (len(rows[0]) - len(titles) - 1)] if len(rows[0]) > len(titles) else []
    print_table(titles, rows, right=("row", "seconds", "probability"))


def _json(
    model: str,
    classes: Sequence[str],
    predictions: Sequence[Prediction],
    skipped: dict[str, str],
    top: int,
) -> str:
    entries = {
        "model": model,
        "classes": list(classes),
        "predictions": [_entry(each, top) for each in predictions],
        "skipped": [{"file": file, "reason": reason} for file, reason in skipped.items()],
    }
    return json.dumps(entries, indent=1, ensure_ascii=False)


def _entry(prediction: Prediction, top: int) -> dict[str, Any]:
    """A prediction as a dict of JSON types, without the entries that do not apply."""
    best = [{"class": name, "probability": round(value, 6)} for name, value in prediction.top(top)]
    entry: dict[str, Any] = {"file": prediction.file}
    entry |= {name: value for name in ("row", "start", "stop") if (value := getattr(prediction, name)) is not None}
    entry |= {**best[0], "top": best}
    if prediction.chunks:
        entry["chunks"] = [_entry(chunk, top) for chunk in prediction.chunks]
    return entry


def _csv(predictions: Sequence[Prediction], top: int, *, chunks: bool) -> str:
    """One line per prediction. The columns are the same for all kinds of files."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    ranks = ["", *(str(rank) for rank in range(2, top + 1))]
    columns = [f"{name}{rank}" for rank in ranks for name in ("class", "probability")]
    table.writerow(["file", "row", "start", "stop", *columns])
    for each in _lines(predictions, chunks=chunks):
        best = [value for name, probability in each.top(top) for value in (name, f"{probability:.6f}")]
        table.writerow([each.file, each.row, each.start, each.stop, *best])  # None becomes an empty cell
    return text.getvalue().rstrip("\n")
