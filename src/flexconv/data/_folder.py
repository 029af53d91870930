"""Your own images or recordings, with one folder per class.

The layout is PATH/train/CLASS/*.png, PATH/test/CLASS/*.png and, optionally, PATH/validation/… or PATH/val/…, in upper
or lower case. The layout PATH/CLASS/*.png also works; a fixed fifth of the samples becomes the test set. Images may be
PNG, JPEG, GIF, TIFF, WebP, BMP, PPM or TGA files. Recordings are *.wav files with 16 bits. Other files, and names that
start with a dot, are ignored.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from .._arguments import check_name, per_axis
from ..errors import ArgumentError
from ._dataset import Dataset, Source
from ._files import DamagedDataError, MissingDataError
from ._image_files import image_suffixes, read_image
from ._recordings import FEATURES, FULL_SCALE, read_recordings
from ._resize import resize_images
from ._splits import Samples
from ._table_file import is_table
from ._user_data import SPLIT_NAMES, TEST_SHARE, assemble, dataset_for, find

MODES = {"color": "RGB", "gray": "L", "colour": "RGB", "grey": "L"}


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    image_size: int | tuple[int, int] | None = None,
    mode: str = "color",
    features: str = "waves",
    test_share: float = TEST_SHARE,
) -> Source:
    """Read a folder of images or recordings.

    Options:
        path: the folder, as a path or relative to the data root.
        image_size: images are resized to this size without keeping their aspect ratio. If it is None, all images must
            have the same size.
        mode: "color" or "gray", for images.
        features: "waves", or "mfcc" for 20 coefficients per channel every 1/160 s, for recordings.
        test_share: the share of the samples that becomes the test set, if the folder has none.

    """
    check_name("mode", mode, MODES)
    check_name("features", features, FEATURES)
    folder = find(path, root)
    roots = _split_folders(folder)
    names = tuple(sorted(p.name for p in roots["train"].iterdir() if p.is_dir() and not p.name.startswith(".")))
    files = {part: _files(place, names) for part, place in roots.items()}
    suffixes = {p.suffix.lower() for paths, _ in files.values() for p in paths}
    if suffixes == {".wav"}:
        if image_size is not None or MODES[mode] != "RGB":
            raise ArgumentError(
                f"image_size and mode are options for images, but {folder} contains recordings: remove them"
            )
        parts, rate = read_recordings(files, features)
        if features == "waves":
            return replace(assemble(parts, names, test_share=test_share, scale=1 / FULL_SCALE, place=folder), rate=rate)
        return replace(assemble(parts, names, test_share=test_share, scale=1.0, place=folder), mfcc_rate=rate)
    if ".wav" in suffixes:
        raise MissingDataError(f"{folder} contains both recordings and images: a data set must have one kind")
    if features != "waves":
        raise ArgumentError(
            f"features is an option for recordings, but {folder} contains images: remove features={features!r}"
        )
    size = None if image_size is None else per_axis("image_size", image_size, 2, minimum=1)
    parts = {part: _images(paths, labels, size, MODES[mode]) for part, (paths, labels) in files.items()}
    shapes = {part: tuple(images.inputs.shape[1:]) for part, images in parts.items()}
    if len(set(shapes.values())) > 1:
        raise DamagedDataError(f"{folder}: image sizes differ between the splits, {shapes}; set data.image_size")
    return assemble(parts, names, test_share=test_share, scale=1 / 255, place=folder)


def _split_folders(folder: Path) -> dict[str, Path]:
    """The folder of every split, or the folder itself as the training set if it contains classes."""
    if not folder.is_dir():
        kind = dataset_for(folder)
        if kind != "folder":
            raise MissingDataError(f"{folder} is a file, expected a folder; set data.name={kind} to read it")
        arrays = "; numpy.savez writes train_inputs and train_labels into one .npz file"
        raise MissingDataError(
            f"{folder}: unknown kind of file, expected .csv, .tsv, .txt, .parquet, .npz, an IDX file, or a folder with "
            f"one folder per class{arrays if folder.suffix.lower() == '.npy' else ''}"
        )
    found: dict[str, Path] = {}
    others: list[Path] = []
    for place in sorted(p for p in folder.iterdir() if p.is_dir()):
        part = SPLIT_NAMES.get(place.name.lower())
        if part is None:
            others.append(place)
            continue
        if part in found:
            raise MissingDataError(f"{folder} has both {found[part].name} and {place.name}: remove one of them")
        found[part] = place
    if found and "train" not in found:
        place = next(iter(found.values()))
        raise MissingDataError(f"{folder} has a folder {place.name}, but none called train: add it, or rename {place}")
    if found:
        _check_no_other_split(found["train"], others)
    return found or {"train": folder}


def _check_no_other_split(train: Path, others: list[Path]) -> None:
    """Raise an error if one of the folders that would be ignored has folders for classes of the training set."""
    classes = {p.name for p in train.iterdir() if p.is_dir() and not p.name.startswith(".")}
    for place in others:
        shared = sorted(name for name in classes if (place / name).is_dir())
        if shared:
            raise MissingDataError(
                f"{place} contains a folder for the class {shared[0]}, but would be ignored: rename it to validation "
                "or test, or move it somewhere else"
            )


def _files(place: Path, names: tuple[str, ...]) -> tuple[list[Path], torch.Tensor]:
    """Paths of the images or recordings of one split in a fixed order, and their labels.

    Only the training set must have every class. A class folder must not be empty.
    """
    unknown = sorted({p.name for p in place.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(names))
    if unknown:
        raise MissingDataError(f"{place / unknown[0]}: the training set has no such class")
    paths, labels = [], []
    for label, name in enumerate(names):
        if not (place / name).is_dir():
            continue
        members = _members(place / name)
        paths += members
        labels += [label] * len(members)
    if not paths:
        tables = sorted(each for each in place.iterdir() if is_table(each) or each.suffix.lower() == ".npz")
        hint = f"; to read {tables[0].name}, set data.path={tables[0]}" if tables else ""
        raise MissingDataError(f"{place}: no class folder contains images or .wav files{hint}")
    return paths, torch.tensor(labels)


def _members(folder: Path) -> list[Path]:
    """Paths of the images or recordings of one class."""
    below = sorted(p for p in folder.rglob("*") if not any(x.startswith(".") for x in p.relative_to(folder).parts))
    files = [p for p in below if p.is_file()]
    members = [p for p in files if p.suffix.lower() == ".wav" or p.suffix.lower() in image_suffixes()]
    if not members:
        found = ", ".join(sorted({p.suffix or p.name for p in files})[:5])
        raise MissingDataError(
            f"{folder}: this class has no samples; the folder {f'contains {found}' if found else 'is empty'}, expected "
            "images such as .png, or .wav files"
        )
    return members


def _images(paths: list[Path], labels: torch.Tensor, size: tuple[int, ...] | None, mode: str) -> Samples:
    images = []
    for path in paths:
        image = read_image(path, mode=mode)
        if size is not None:
            image = resize_images(image[None], (size[0], size[1]))[0]
        if images and image.shape != images[0].shape:
            height, width = image.shape[1:]
            first = f"{images[0].shape[2]} × {images[0].shape[1]}"
            raise DamagedDataError(
                f"{path}: {width} × {height} pixels, but {paths[0]} has {first}; set data.image_size"
            )
        images.append(image)
    return Samples(torch.stack(images), labels)


DATASETS = (
    Dataset(
        "folder",
        "Your own images or recordings, one folder per class",
        _read,
        "own",
        licence="",
        citation="",
        protocols=("honest",),
        needs_files=False,
    ),
)
