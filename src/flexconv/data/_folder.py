"""Your own images or recordings, in one folder per class.

PATH/train/CLASS/*.png, PATH/test/CLASS/*.png, and PATH/validation/… or PATH/val/… if you have one;
or PATH/CLASS/*.png alone, of which a fixed fifth becomes the test part. Images: all kinds that Pillow reads.
Recordings: *.wav, 16 bits. Other files are left alone, as is all that begins with a dot.
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
from ._own import TEST_SHARE, assemble, find
from ._pictures import picture_suffixes, read_picture
from ._recordings import FEATURES, FULL_SCALE, read_recordings
from ._resize import resize_images
from ._splits import Samples

FOLDERS = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}  # and what is in them
MODES = {"colour": "RGB", "grey": "L"}


def _read(
    root: Path,
    *,
    protocol: str,  # noqa: ARG001
    seed: int,  # noqa: ARG001
    verify: bool,  # noqa: ARG001
    path: str | os.PathLike[str],
    image_size: int | tuple[int, int] | None = None,
    mode: str = "colour",
    features: str = "waves",
    test_share: float = TEST_SHARE,
) -> Source:
    """path: the folder, as it is or below the data root. test_share: of a folder without a test part.

    Of images: mode is "colour" or "grey"; image_size is what they are brought to (shape not kept), None: they must all
    have one size already. Of recordings: features are "waves" or "mfcc", 20 coefficients per channel every 1/160 s.
    """
    check_name("mode", mode, MODES)
    check_name("features", features, FEATURES)
    folder = find(path, root)
    if (folder / "val").is_dir() and (folder / "validation").is_dir():
        raise MissingDataError(f"{folder}: has both val and validation; one of them is the validation part")
    roots = {part: folder / name for name, part in FOLDERS.items() if (folder / name).is_dir()}
    if "train" not in roots:
        roots = {"train": folder}
    names = tuple(sorted(p.name for p in roots["train"].iterdir() if p.is_dir() and not p.name.startswith(".")))
    files = {part: _files(place, names) for part, place in roots.items()}
    suffixes = {p.suffix.lower() for paths, _ in files.values() for p in paths}
    if suffixes == {".wav"}:
        if image_size is not None or mode != "colour":
            raise ArgumentError(f"image_size and mode are those of images; {folder} has recordings: leave them out")
        parts, rate = read_recordings(files, features)
        if features == "waves":
            return assemble(parts, names, test_share=test_share, scale=1 / FULL_SCALE)
        return replace(assemble(parts, names, test_share=test_share, scale=1.0), mfcc_rate=rate)
    if ".wav" in suffixes:
        raise MissingDataError(f"{folder}: has both recordings and images; one set holds one kind")
    if features != "waves":
        raise ArgumentError(f"features are those of recordings; {folder} has images: leave out features={features!r}")
    size = None if image_size is None else per_axis("image_size", image_size, 2, minimum=1)
    parts = {part: _images(paths, labels, size, MODES[mode]) for part, (paths, labels) in files.items()}
    shapes = {part: tuple(images.inputs.shape[1:]) for part, images in parts.items()}
    if len(set(shapes.values())) > 1:
        raise DamagedDataError(f"{folder}: image sizes differ between the parts, {shapes}; give image_size")
    return assemble(parts, names, test_share=test_share, scale=1 / 255)


def _files(place: Path, names: tuple[str, ...]) -> tuple[list[Path], torch.Tensor]:
    """Images or recordings of one part in a fixed order, and their labels.

    A part other than the training part need not have every class, but a folder that is there has samples in it.
    """
    strange = sorted({p.name for p in place.iterdir() if p.is_dir() and not p.name.startswith(".")} - set(names))
    if strange:
        raise MissingDataError(f"{place / strange[0]}: a class that the training part does not have")
    paths, labels = [], []
    for label, name in enumerate(names):
        if not (place / name).is_dir():
            continue
        members = _members(place / name)
        paths += members
        labels += [label] * len(members)
    if not paths:
        raise MissingDataError(f"{place}: no class folder with images or .wav files in it")
    return paths, torch.tensor(labels)


def _members(folder: Path) -> list[Path]:
    """Images or recordings of one class."""
    below = sorted(p for p in folder.rglob("*") if not any(x.startswith(".") for x in p.relative_to(folder).parts))
    files = [p for p in below if p.is_file()]
    members = [p for p in files if p.suffix.lower() == ".wav" or p.suffix.lower() in picture_suffixes()]
    if not members:
        found = ", ".join(sorted({p.suffix or p.name for p in files})[:5])
        raise MissingDataError(
            f"{folder}: a class without samples; {f'it holds {found}' if found else 'it is empty'}, "
            "expected images that Pillow reads, such as .png, or .wav files"
        )
    return members


def _images(paths: list[Path], labels: torch.Tensor, size: tuple[int, ...] | None, mode: str) -> Samples:
    images = []
    for path in paths:
        image = read_picture(path, mode=mode)
        if size is not None:
            image = resize_images(image[None], (size[0], size[1]))[0]
        if images and image.shape != images[0].shape:
            height, width = image.shape[1:]
            first = f"{images[0].shape[2]} × {images[0].shape[1]}"
            raise DamagedDataError(f"{path}: {width} × {height} pixels, {paths[0]} has {first}; give image_size")
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
