"""Your own series or flattened images in a table: CSV, TSV or Parquet.

A wide table has one row per sample, a column with the label, and one column per value. A long table has one row per
time step, a column that identifies the series, and one column per channel.

    wide    label,v0,v1,v2          long    id,time,label,x,y
            cat,0.1,0.4,0.2                 a,0,cat,0.1,7.0
            dog,0.3,0.1,0.7                 a,1,cat,0.4,7.5
                                            b,0,dog,0.3,6.1

Labels may be strings or integers. In a long table, series may have different lengths.

This module is the data set: it finds the file of every split, and numbers the classes. `_table_read.py` reads the
samples of one file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ..errors import ArgumentError
from ._dataset import Dataset, Source
from ._files import DamagedDataError
from ._splits import Samples
from ._table_columns import Column, Options
from ._table_file import TableFile, open_table
from ._table_labels import class_names, label_numbers
from ._table_read import read_part
from ._table_samples import Part, as_bytes
from ._user_data import SPLIT_NAMES, TEST_SHARE, assemble, find


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    label: Column | None = None,
    id: Column | None = None,  # noqa: A002
    time: Column | None = None,
    columns: Sequence[Column] | None = None,
    ignore: Sequence[Column] = (),
    shape: Sequence[int] | int | None = None,
    layout: str | None = None,
    split: Column | None = None,
    test_path: str | os.PathLike[str] | None = None,
    validation_path: str | os.PathLike[str] | None = None,
    test_share: float = TEST_SHARE,
    delimiter: str | None = None,
    header: bool | None = None,
) -> Source:
    """Read a table of series or flattened images.

    Options:
        path: the file (.csv, .tsv, .txt or .parquet), as a path or relative to the data root. If it is called
            train.csv or ends with _train.csv, a file with test in its place is the test set.
        label: column of the labels, by name or number. Default: a column that is called label, labels, class, target
            or category, or the only column with text.
        id: column that identifies the series, for a long table (one row per time step).
        time: column that orders the rows of a series in a long table. Default: the order in the file.
        columns: list of the columns with values. Default: all other columns.
        ignore: list of columns that are not read.
        shape: shape of a sample in a wide table (one row per sample): [H, W], [C, H, W], or [L].
        layout: meaning of the axes of the shape: L, CL, LC, HW, CHW or HWC.
        split: column that says train, validation or test.
        test_path: file of the test set.
        validation_path: file of the validation set.
        test_share: share of the samples that becomes the test set, if there is no other one.
        delimiter: character between two values of a text file. Default: it is found.
        header: whether the first line names the columns. Default: it is found.

    """
    options = Options(label, id, time, split, columns, ignore, shape, layout)
    files = _find_files(root, path, test_path, validation_path)
    if split is not None and len(files) > 1:
        others = ", ".join(str(file) for part, file in files.items() if part != "train")
        raise ArgumentError(f"data.split={split} and another file ({others}) both say what the test set is: use one")
    opened = {part: open_table(file, delimiter=delimiter, header=header) for part, file in files.items()}
    parts = _read_parts(opened, options)
    if split is not None:
        parts = _by_split(parts["train"])
    names = class_names(parts["train"])
    padded = as_bytes(_same_size(parts))
    samples = {
        part: Samples(
            torch.from_numpy(padded[part]),
            torch.from_numpy(label_numbers(table, names)),
            None if table.lengths is None else torch.from_numpy(table.lengths),
        )
        for part, table in parts.items()
    }
    scale = 1 / 255 if samples["train"].inputs.dtype == torch.uint8 else 1.0
    source = assemble(samples, names, test_share=test_share, scale=scale, place=files["train"])
    return replace(source, note="; ".join(filter(None, (source.note, parts["train"].note))))


def _find_files(
    root: Path,
    path: str | os.PathLike[str],
    test_path: str | os.PathLike[str] | None,
    validation_path: str | os.PathLike[str] | None,
) -> dict[str, Path]:
    """The file of every split."""
    files = {"train": find(path, root)}
    for part, given in (("validation", validation_path), ("test", test_path)):
        if given is not None:
            files[part] = find(given, root, option=f"{part}_path")
        elif found := _beside(files["train"], part):
            files[part] = found
    return files


def _beside(train: Path, part: str) -> Path | None:
    """The file of another split beside train.csv or NAME_train.csv, in any case."""
    stem, dot, suffix = train.name.partition(".")
    match = re.fullmatch(r"(.*[^a-z])?train(?:ing)?", stem, re.IGNORECASE)
    if match is None:
        return None
    spellings = [name for name, kind in SPLIT_NAMES.items() if kind == part]
    wanted = {f"{match[1] or ''}{name}{dot}{suffix}".lower() for name in spellings}
    found = sorted(each for each in train.parent.iterdir() if each.name.lower() in wanted)
    if len(found) > 1:
        raise DamagedDataError(f"{found[0]} and {found[1]} both seem to be the {part} set: set data.{part}_path")
    return found[0] if found else None


def _read_parts(files: Mapping[str, TableFile], options: Options) -> dict[str, Part]:
    """Read all splits. Columns of other files are those of the training set, by name if they have one."""
    train = read_part(files["train"], options, labelled=True)
    parts = {"train": train}
    names = [train.file.names[column] for column in train.roles.values]
    assert train.roles.label is not None
    for part, file in files.items():
        if part == "train":
            continue
        if file.has_header != train.file.has_header:
            with_header, without = (file, train.file) if file.has_header else (train.file, file)
            raise DamagedDataError(f"{with_header.path} has a header, but {without.path} has none: set data.header")
        same = replace(options, columns=names, label=train.file.names[train.roles.label])
        parts[part] = read_part(file, same, labelled=True)
    return parts


def _by_split(whole: Part) -> dict[str, Part]:
    assert whole.splits is not None
    assert whole.roles.split is not None
    kinds = [SPLIT_NAMES.get(value.lower()) for value in whole.splits.values]
    for code, (value, kind) in enumerate(zip(whole.splits.values, kinds, strict=True)):
        if kind is None:
            row = int(whole.first_rows[np.argmax(whole.splits.codes == code)])
            raise DamagedDataError(
                f"{whole.file.at(row, whole.roles.split)}: {value!r}, expected train, validation or test"
            )
    of = np.array(kinds)[whole.splits.codes]
    if "train" not in of:
        raise DamagedDataError(f"{whole.file.path}, {whole.file.column(whole.roles.split)}: no row says train")
    return {part: whole.rows(np.flatnonzero(of == part)) for part in ("train", "validation", "test") if part in of}


def _same_size(parts: Mapping[str, Part]) -> dict[str, np.ndarray]:
    """The inputs of all splits, padded to the longest series if their lengths differ."""
    longest = max(part.inputs.shape[-1] for part in parts.values())
    if all(part.lengths is None for part in parts.values()):
        return {name: part.inputs for name, part in parts.items()}
    return {
        name: np.pad(part.inputs, ((0, 0), (0, 0), (0, longest - part.inputs.shape[-1])))
        for name, part in parts.items()
    }


DATASETS = (
    Dataset(
        "table",
        "Your own series or flattened images in a CSV, TSV or Parquet file",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
