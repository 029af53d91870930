"""What the registry knows about a data set before any of its files is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ._files import DataFile
from ._layout import Layout
from ._splits import Samples

Statistics = Literal["channel", "time"] | tuple[tuple[float, ...], tuple[float, ...]]
PROTOCOLS = ("honest", "paper")


@dataclass(frozen=True)
class Download:
    """One file to fetch: what it is called, where it can be had, its checksum, and where it goes.

    checksum: "sha256:…" or "md5:…" as published; None where nobody published one: then the reader's checks of the
    contents stand guard, and the SHA-256 of the first fetch is remembered.
    into: folder below the data root that an archive is unpacked in, or a plain file put in.
    members: of an archive, only these files, by their last names, without its folders; None takes all as they are.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None
    into: str = "."
    members: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """What a reader returns.

    statistics: "channel" or "time" (computed on the training part), or fixed numbers (means, stds) per channel.
    moments: Σx and Σx² per image and channel [N, C, 2] of `train`, where reading all of it would take long.
    tail, layout, mfcc_rate: of series, see `Split`.
    """

    train: Samples
    test: Samples | None
    class_names: tuple[str, ...]
    validation: Samples | None = None
    scale: float = 1.0
    statistics: Statistics = "channel"
    moments: np.ndarray | None = None
    tail: torch.Tensor | None = None
    layout: Layout | None = None
    mfcc_rate: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Dataset:
    """A data set of the registry.

    `read(root, *, protocol, seed, verify, **options)` → Source; its other keyword arguments are the set's options.
    files: those of the published layout that must be there, or a function that names them after a look at the root.
    instructions: how to get the files by hand, where they cannot be downloaded.
    """

    name: str
    title: str
    read: Callable[..., Source]
    kind: Literal["images", "series", "fitting", "own"]
    licence: str
    citation: str
    files: tuple[DataFile, ...] | Callable[[Path], tuple[DataFile, ...]] = ()
    downloads: tuple[Download, ...] = ()
    instructions: str = ""
    protocols: tuple[str, ...] = PROTOCOLS
    needs_files: bool = True

    def files_in(self, root: Path) -> tuple[DataFile, ...]:
        return self.files(root) if callable(self.files) else self.files
