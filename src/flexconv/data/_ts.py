"""The .ts text format of the UEA and UCR archives.

# comment
@key value …                        header
@classLabel true a b c
@data
1.0,2.0,3.0:4.0,5.0,6.0:a           one sequence per line: channels separated by ":", then the label
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ._files import DamagedDataError


@dataclass(frozen=True, eq=False)
class TimeSeries:
    """The contents of a .ts file.

    Attributes:
        series: one array [C, length] float32 per sequence.
        labels: index of each sequence's class in `class_names`.
        class_names: names of the classes.

    """

    series: list[np.ndarray]
    labels: np.ndarray
    class_names: tuple[str, ...]


def read_ts(path: Path) -> TimeSeries:
    """Read a labelled multivariate file without time stamps or missing values. Lengths may differ."""
    names: tuple[str, ...] = ()
    series: list[np.ndarray] = []
    labels: list[int] = []
    in_data = False
    with path.open(encoding="utf-8", errors="strict") as lines:
        try:
            for number, line in enumerate(lines, 1):
                line = line.strip()
                if not line or line.startswith("#"):
                    continue
                where = f"{path}, line {number}"
                if not in_data:
                    in_data, names = _header(line, names, where)
                else:
                    values, label = _row(line, names, where, channels=len(series[0]) if series else None)
                    series.append(values)
                    labels.append(label)
        except UnicodeDecodeError as error:
            raise DamagedDataError(f"{path}: not a text file: {error}") from error
    if not series:
        raise DamagedDataError(f"{path}: there are no sequences; the file is truncated or not a .ts file")
    return TimeSeries(series, np.array(labels, np.int64), names)


def _header(line: str, names: tuple[str, ...], where: str) -> tuple[bool, tuple[str, ...]]:
    if not line.startswith("@"):
        raise DamagedDataError(f"{where}: expected a header line that starts with @, got {line[:40]!r}")
    key, *words = line[1:].split()
    key = key.lower()
    if key == "timestamps" and words[:1] == ["true"]:
        raise DamagedDataError(f"{where}: time stamps are not supported")
    if key == "classlabel":
        if words[:1] != ["true"] or len(words) < 2:
            raise DamagedDataError(f"{where}: expected '@classLabel true NAME …', got {line[:60]!r}")
        names = tuple(words[1:])
    if key == "data" and not names:
        raise DamagedDataError(f"{where}: the header has no @classLabel line")
    return key == "data", names


def _row(line: str, names: tuple[str, ...], where: str, *, channels: int | None) -> tuple[np.ndarray, int]:
    *texts, label = line.split(":")
    if label not in names or not texts:
        raise DamagedDataError(f"{where}: the line ends with {label[-20:]!r}, which is not a class in the header")
    try:
        rows = [np.array(text.split(","), dtype=np.float32) for text in texts]
        values = np.stack(rows)
    except ValueError as error:
        raise DamagedDataError(f"{where}: {error}") from error
    if channels is not None and len(values) != channels:
        raise DamagedDataError(f"{where}: {len(values)} channels, but earlier sequences have {channels}")
    if not np.isfinite(values).all():
        raise DamagedDataError(f"{where}: a value is not finite")
    return values, names.index(label)
