"""The description of a data set in the registry, and what its reader returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from ..models import ImageSeries
from ._files import DataFile
from ._layout import Layout
from ._splits import Samples

Statistics = Literal["channel", "time"] | tuple[tuple[float, ...], tuple[float, ...]]
PROTOCOLS = ("honest", "paper")


@dataclass(frozen=True)
class Download:
    """One file to download.

    Attributes:
        name: file name.
        urls: mirrors, tried in this order.
        checksum: the published "sha256:…" or "md5:…". If it is None, no checksum is published; the reader checks the
            contents, and the SHA-256 of the first download is recorded.
        into: folder in the data root in which the file is stored or the archive unpacked.
        members: file names to extract from an archive, without its folders. None extracts everything.

    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None
    into: str = "."
    members: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class Source:
    """What a reader returns.

    Attributes:
        train: the training set.
        test: the test set; None if the data set has none.
        class_names: names of the classes.
        validation: the validation set, if the data set has its own.
        scale: factor that is applied to the inputs before statistics.
        statistics: "channel" or "time" (computed on the training set), or fixed (means, stds) per channel.
        moments: Σx and Σx² per image and channel of `train`, [N, C, 2], if reading all images would take long.
        tail: of sequences, see `Split`.
        layout: of sequences, see `Split`.
        mfcc_rate: of sequences, see `Split`.
        rate: of sequences, see `Split`.
        images: of sequences, see `Split`.
        note: see `DataSplits`.

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
    rate: int | None = None
    images: ImageSeries | None = None
    note: str = ""


@dataclass(frozen=True)
class Dataset:
    """A data set in the registry.

    Attributes:
        name: the name that `load` accepts.
        title: one line for tables.
        read: a function `read(root, *, protocol, seed, verify, **options)` → Source. Its other keyword arguments are
            the options of the data set.
        kind: "images", "series", "fitting" (images to fit) or "own" (the user's files).
        licence: licence of the data.
        citation: how to cite the data.
        files: the required files of the published layout, or a function of the data root that returns them.
        downloads: where to download the files.
        instructions: how to get the files by hand, if they cannot be downloaded.
        protocols: the protocols that `load` accepts.
        needs_files: whether the data root must contain files.

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
        """The required files, given a data root."""
        return self.files(root) if callable(self.files) else self.files
