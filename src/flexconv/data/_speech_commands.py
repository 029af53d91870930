"""Speech Commands: recordings of ten words, one second at 16 kHz, as waves [1, 16000] or as MFCCs [20, 161].

The paper uses version 0.02. Version 0.01 is older and smaller; results on the two cannot be compared.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .._arguments import unknown_name
from ._character_trajectories import seventy_fifteen_fifteen
from ._dataset import Dataset, Download, Source
from ._files import DamagedDataError, DataFile, MissingDataError
from ._recordings import FULL_SCALE, coefficients
from ._splits import Samples
from ._wav import read_wav

WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
RATE = SECOND = 16_000
LISTS = ("validation_list.txt", "testing_list.txt")
CLIPS = {"0.01": 23_682, "0.02": 38_546}  # number of clips of the ten words
# SHA-256 of the archives, from torchaudio
_ARCHIVES = {
    "0.01": "743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
    "0.02": "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
}
_MIRRORS = ("http://download.tensorflow.org/data/", "https://storage.googleapis.com/download.tensorflow.org/data/")


def _source(
    root: Path,
    version: str,
    features: str,
    *,
    protocol: str,
    verify: bool,
    split: str | None,
) -> Source:
    split = split or ("paper" if protocol == "paper" else "official")
    if split not in ("official", "paper"):
        unknown_name("split", split, ("official", "paper"))
    folder = root / _folder(version)
    paths = [path for word in WORDS for path in sorted((folder / word).glob("*.wav"))]
    found = {path.parent.name for path in paths}
    if found != set(WORDS):
        raise MissingDataError(f"{folder}: there are no clips of {', '.join(w for w in WORDS if w not in found)}")
    waves, whole = _clips(paths)
    samples = Samples(waves, torch.tensor([WORDS.index(path.parent.name) for path in paths]))
    note = f"{len(paths):,} of {CLIPS[version]:,} clips" if verify and len(paths) != CLIPS[version] else ""
    if split == "paper":
        parts = seventy_fifteen_fifteen(samples.rows(whole.nonzero()[:, 0]))
    else:
        parts = _official(folder, paths, samples)
    waves = features == "waves"
    train, validation, test = parts if waves else (coefficients(part, RATE) for part in parts)
    statistics = "time" if protocol == "paper" else "channel"
    return Source(
        train,
        test,
        WORDS,
        validation=validation,
        scale=1 / FULL_SCALE if waves else 1.0,
        statistics=statistics,
        mfcc_rate=None if waves else RATE,
        rate=RATE if waves else None,
        note=note,
    )


def _folder(version: str) -> str:
    return f"speech_commands_v{version}"


def _clips(paths: list[Path]) -> tuple[torch.Tensor, torch.Tensor]:
    """All clips [N, 1, 16000] int16, padded with zeros, and whether each is a full second [N]."""
    waves = np.zeros((len(paths), 1, SECOND), np.int16)
    whole = torch.ones(len(paths), dtype=torch.bool)
    for i, path in enumerate(paths):
        clip, rate = read_wav(path)
        if rate != RATE or len(clip) != 1 or not 0 < clip.shape[1] <= SECOND:
            raise DamagedDataError(
                f"{path}: {len(clip)} channels of {clip.shape[1]:,} samples at {rate} Hz, expected one channel of at "
                f"most {SECOND:,} samples at {RATE} Hz"
            )
        waves[i, :, : clip.shape[1]] = clip
        whole[i] = clip.shape[1] == SECOND
    return torch.from_numpy(waves), whole


def _official(folder: Path, paths: list[Path], samples: Samples) -> tuple[Samples, Samples, Samples]:
    """Training, validation and test set according to the lists that are part of the data set."""
    validation, test = (set((folder / name).read_text().split()) for name in LISTS)
    if overlap := validation & test:
        raise DamagedDataError(f"{folder}: {sorted(overlap)[0]} is in both {LISTS[0]} and {LISTS[1]}")
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    part_of = torch.tensor([1 if name in validation else 2 if name in test else 0 for name in names])
    for part, name in enumerate(("training", "validation", "test")):
        if not (part_of == part).any():
            raise DamagedDataError(f"{folder}: no clip of the ten words belongs to the {name} set")
    train, held, rest = (samples.rows((part_of == part).nonzero()[:, 0]) for part in range(3))
    return train, held, rest


def _dataset(name: str, version: str, title: str, features: str) -> Dataset:
    folder, archive = _folder(version), f"{_folder(version)}.tar.gz"

    def read(root: Path, *, protocol: str, seed: int, verify: bool, split: str | None = None) -> Source:  # noqa: ARG001
        """Under the "paper" protocol, the default split is the paper's, and statistics are per time index.

        Options:
            split: "official" (default) uses the two lists of the data set and pads shorter clips with zeros. "paper"
                uses only clips of a full second and divides them into 70 / 15 / 15 %.

        """
        return _source(root, version, features, protocol=protocol, verify=verify, split=split)

    return Dataset(
        name,
        title,
        read,
        "series",
        licence="CC BY 4.0",
        citation="Warden, Speech Commands: a dataset for limited-vocabulary speech recognition, 2018",
        files=tuple(DataFile(f"{folder}/{name}") for name in LISTS),
        downloads=(
            Download(archive, tuple(f"{m}{archive}" for m in _MIRRORS), f"sha256:{_ARCHIVES[version]}", into=folder),
        ),
    )


_WAVES, _COEFFICIENTS = "ten words, waves at 16 kHz", "ten words, 20 MFCCs, 161 frames"
DATASETS = (
    _dataset("speech_commands", "0.02", f"Speech Commands 0.02, {_COEFFICIENTS}", "mfcc"),
    _dataset("speech_commands_raw", "0.02", f"Speech Commands 0.02, {_WAVES}", "waves"),
    _dataset("speech_commands_v0.01", "0.01", f"Speech Commands 0.01, {_COEFFICIENTS}", "mfcc"),
    _dataset("speech_commands_raw_v0.01", "0.01", f"Speech Commands 0.01, {_WAVES}", "waves"),
)
