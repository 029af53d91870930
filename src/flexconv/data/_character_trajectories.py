"""CharacterTrajectories: 2,858 pen trajectories of 20 letters, of 60 to 182 steps.

The 3 channels are the velocities in x and y, and the pen force.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .._arguments import unknown_name
from ..errors import ArgumentError
from ._dataset import Dataset, Download, Source
from ._files import DamagedDataError, DataFile
from ._holdout import stratified_holdout
from ._missing import drop_steps, fill_dropped, observed_statistics
from ._splits import Samples
from ._ts import TimeSeries, read_ts

FOLDER = "CharacterTrajectories"
LETTERS = tuple("abcdeghlmnopqrsuvwyz")
COUNTS = {"TRAIN": 1422, "TEST": 1436}
LONGEST = 182
_FILES = tuple(DataFile(f"{FOLDER}/{FOLDER}_{part}.ts") for part in COUNTS)


def _read(
    root: Path,
    *,
    protocol: str,
    seed: int,  # noqa: ARG001
    verify: bool,
    split: str | None = None,
    missing: float = 0.0,
) -> Source:
    """Under the "honest" protocol, sequences keep their lengths, and statistics are per channel.

    Under the "paper" protocol, the default split is the paper's, every sequence is extended to 182 steps with its last
    value, and statistics are per time index.

    Options:
        split: "uea" (default) is the split of the archive, 1,422 / 1,436 sequences. "paper" divides all sequences into
            70 / 15 / 15 %.
        missing: the fraction of the time steps of every sequence that are dropped at random, as in the experiments of
            CKConv. Dropped steps are 0 after standardization, statistics are those of the others, and a fourth channel
            is 1 for steps that are there and 0 for dropped ones.

    """
    if isinstance(missing, bool) or not isinstance(missing, int | float) or not 0 <= missing < 1:
        raise ArgumentError(f"missing must be a fraction of the time steps, at least 0 and below 1; got {missing!r}")
    split = split or ("paper" if protocol == "paper" else "uea")
    if split not in ("uea", "paper"):
        unknown_name("split", split, ("uea", "paper"))
    train, test = (_part(root, part, verify=verify) for part in COUNTS)
    longest = max(s.shape[1] for s in (*train.series, *test.series))
    parts = [_pad(part, longest, repeat_last=protocol == "paper") for part in (train, test)]
    if missing:
        parts = drop_steps(parts, missing)
    names = LETTERS if len(train.class_names) == len(LETTERS) else train.class_names
    training, validation, testing = parts[0], None, parts[1]
    if split == "paper":
        training, validation, testing = seventy_fifteen_fifteen(_join(*parts))
    if not missing:
        statistics = "time" if protocol == "paper" else "channel"
        return Source(training, testing, names, validation=validation, statistics=statistics)
    statistics = observed_statistics(training)
    training, testing = (fill_dropped(part, statistics[0]) for part in (training, testing))
    validation = None if validation is None else fill_dropped(validation, statistics[0])
    return Source(training, testing, names, validation=validation, statistics=statistics)


def seventy_fifteen_fifteen(samples: Samples) -> tuple[Samples, Samples, Samples]:
    """The paper's split of sequences → train, validation, test.

    30 % are held out with seed 0, and half of those with seed 1.
    """
    kept, held = stratified_holdout(samples.labels, 0.3, seed=0)
    rest = samples.rows(held)
    first, second = stratified_holdout(rest.labels, 0.5, seed=1)
    return samples.rows(kept), rest.rows(first), rest.rows(second)


def _part(root: Path, part: str, *, verify: bool) -> TimeSeries:
    path = root / FOLDER / f"{FOLDER}_{part}.ts"
    found = read_ts(path)
    channels, longest = len(found.series[0]), max(s.shape[1] for s in found.series)
    expected = (COUNTS[part], 3, len(LETTERS))
    if verify and (len(found.series), channels, len(found.class_names)) != expected:
        raise DamagedDataError(
            f"{path}: {len(found.series):,} sequences of {channels} channels in {len(found.class_names)} classes, "
            f"expected {expected[0]:,}, 3 and {expected[2]}; the file is truncated or another version"
        )
    if verify and longest > LONGEST:
        raise DamagedDataError(f"{path}: a sequence of {longest} steps; the longest published one has {LONGEST}")
    return found


def _pad(part: TimeSeries, longest: int, *, repeat_last: bool) -> Samples:
    """Pad all sequences to one length: with zeros and their lengths, or with their last value and without lengths."""
    padded = np.zeros((len(part.series), len(part.series[0]), longest), np.float32)
    for row, series in zip(padded, part.series, strict=True):
        row[:, : series.shape[1]] = series
        if repeat_last:
            row[:, series.shape[1] :] = series[:, -1:]
    lengths = None if repeat_last else torch.tensor([s.shape[1] for s in part.series])
    return Samples(torch.from_numpy(padded), torch.from_numpy(part.labels), lengths)


def _join(first: Samples, second: Samples) -> Samples:
    lengths = None
    if first.lengths is not None and second.lengths is not None:
        lengths = torch.cat([first.lengths, second.lengths])
    assert isinstance(first.inputs, torch.Tensor)
    assert isinstance(second.inputs, torch.Tensor)
    return Samples(torch.cat([first.inputs, second.inputs]), torch.cat([first.labels, second.labels]), lengths)


DATASETS = (
    Dataset(
        "character_trajectories",
        "Pen trajectories of 20 letters, 3 channels, up to 182 steps",
        _read,
        "series",
        licence="CC BY 4.0",
        citation="Williams, Character Trajectories, UCI 2008; Bagnall et al., The UEA archive, 2018",
        files=_FILES,
        downloads=(
            Download(
                "CharacterTrajectories.zip",
                (
                    "https://www.timeseriesclassification.com/aeon-toolkit/CharacterTrajectories.zip",
                    "https://www.timeseriesclassification.com/Downloads/CharacterTrajectories.zip",
                ),
                None,  # no checksum is published; counts and shapes are checked when the file is read
                into=FOLDER,
                members=tuple(Path(file.path).name for file in _FILES),
            ),
        ),
    ),
)
