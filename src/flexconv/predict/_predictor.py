"""Classify files: find them, read them, run the network on batches of equal shape, and collect the results."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._arguments import per_axis, positive, positive_int, unknown_name
from ..data import image_suffixes, is_table, read_table
from ..errors import ArgumentError, FlexConvError, MissingPackageError, UsageError
from ..models import CONFIG, Inputs, Model, from_pretrained, input_size, list_pretrained
from ..resolution import at_resolution
from ._find import ARRAYS, RECORDINGS, TABLES, check_files, find_files
from ._pictures import read_picture
from ._prediction import Prediction
from ._recordings import read_recording
from ._rows import read_rows
from ._target import NATIVE, TRAINED, Resolution, Sample, Target

AnyPath = str | os.PathLike[str]
MOST_RESOLUTIONS = 8  # networks that are kept, because each has kernels of its own

OnError = Callable[[str, Exception], None]


def predict(
    model: nn.Module | AnyPath,
    files: AnyPath | Iterable[AnyPath],
    *,
    inputs: Inputs | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 64,
    resolution: str | int | Sequence[int] = TRAINED,
    hop: float | None = None,
    options: Mapping[str, Any] | None = None,
    on_error: OnError | None = None,
) -> list[Prediction]:
    """Classify files with a trained network. The arguments are those of `Predictor` and of its `__call__`."""
    settings: dict[str, Any] = {"device": device, "batch_size": batch_size, "hop": hop, "options": options}
    return Predictor(model, inputs=inputs, resolution=resolution, **settings)(files, on_error=on_error)


class Predictor:
    """Classifies pictures, recordings and arrays with a trained network.

        predictor = Predictor("runs/mine")
        predictor("photos")                     # a list of Prediction, one for each picture in the folder
        predictor(["one.png", "two.jpg"])

    Files are prepared as the training data were, by the `inputs` of the network:

    - Pictures (PNG, JPEG, GIF, TIFF, WebP, BMP, PPM, TGA), in color or gray as the network needs them, and of any size.
    - Recordings are 16-bit .wav files. If a recording is longer than the training samples, it is divided into chunks of
      the length of these, and the probabilities of the chunks are averaged. Shorter recordings are padded with silence,
      unless the training recordings had different lengths.
    - Arrays (.npz, .npy, IDX) and tables (.csv, .tsv, .parquet) of samples must contain the same kind of values as the
      training data. Labels in them are ignored. An .npz file with several arrays must call them `inputs` and `lengths`.

    Arguments:
        model: a network of `flexconv.models`, a run folder, a folder of weights or the name of a trained network. With
            `inputs`, any module that maps a batch to logits [batch, classes]. It is put into eval mode.
        inputs: the preprocessing. Default: that of the network.
        device: where to compute. Default: where the network is.
        batch_size: number of samples that are computed at a time.
        resolution: "trained" resizes pictures to the size of the training images and resamples recordings to their
            rate. "native" runs the network at the resolution of each file instead (see `flexconv.at_resolution`). A
            size, such as 64 or (48, 64), resizes pictures to this size and runs the network at this resolution.
        hop: seconds between the beginnings of two chunks of a recording. Default: chunks do not overlap.
        options: how to read tables and arrays: arguments of `flexconv.data.read_table`, such as `id` for a long table.
            For arrays, only `layout` is used.

    """

    def __init__(
        self,
        model: nn.Module | AnyPath,
        *,
        inputs: Inputs | None = None,
        device: torch.device | str | None = None,
        batch_size: int = 64,
        resolution: str | int | Sequence[int] = TRAINED,
        hop: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        name = f"the {type(model).__name__}" if isinstance(model, nn.Module) else str(model)
        self.model = (model if isinstance(model, nn.Module) else _load(model)).to(device).eval()
        self.batch_size = positive_int("batch_size", batch_size)
        self.target = _target(self.model, inputs, name, resolution, None if hop is None else positive("hop", hop))
        self.options = _check_options(options or {})
        self._resampled: dict[tuple[float, ...], nn.Module] = {}

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.target.inputs.classes

    def __call__(self, files: AnyPath | Iterable[AnyPath], *, on_error: OnError | None = None) -> list[Prediction]:
        """Classify files and the files in folders.

        Arguments:
            files: one path, or several. Of a folder, all pictures or recordings in it and in its subfolders are
                classified, sorted by name.
            on_error: called with the name of a file that cannot be classified, and with the error. The other files
                are classified. Default: raise the error.

        """
        on_error = on_error or _raise
        batches = _Batches(self._probabilities, self.batch_size)
        results: list[list[_Result]] = []  # of every file
        for file in find_files(
            check_files(files), in_folders=self._is_own_kind, expected=self.target.describe(), on_error=on_error
        ):
            try:
                samples = self._read(file)
            except MissingPackageError:
                raise
            except (FlexConvError, OSError) as error:
                on_error(str(file), error)
                continue
            results.append([batches.add(str(file), sample) for sample in samples])
        batches.finish()
        return [prediction for of_file in results for prediction in self._predictions(of_file)]

    def _is_own_kind(self, suffix: str) -> bool:
        """Whether files with this suffix are taken from folders."""
        if self.target.takes_recordings:
            return suffix in RECORDINGS
        return suffix in ((*ARRAYS, *TABLES) if self.target.picture_size is None else image_suffixes())

    def _read(self, file: Path) -> list[Sample]:
        suffix = file.suffix.lower()
        if suffix in RECORDINGS:
            return read_recording(file, self.target)
        if suffix not in ARRAYS and not is_table(file) and suffix in image_suffixes():
            return read_picture(file, self.target)
        return read_rows(file, self.target, self.options)

    @torch.no_grad()
    def _probabilities(self, raw: torch.Tensor, scale: tuple[float, ...]) -> torch.Tensor:
        """Raw samples [batch, C, *size] → probabilities [batch, classes] on the CPU."""
        if scale not in self._resampled:
            if len(self._resampled) == MOST_RESOLUTIONS:
                self._resampled.clear()
            same = all(each == 1 for each in scale)
            self._resampled[scale] = self.model if same else at_resolution(self.model, scale, copy=False)
        reference = next(self.model.parameters(), torch.empty(0))
        x = self.target.inputs(raw).to(reference.device, reference.dtype)
        logits = self._resampled[scale](x)
        if logits.shape != (len(raw), len(self.classes)):
            raise ArgumentError(
                f"the network is not a classifier with {len(self.classes)} classes: its output for a batch of "
                f"{len(raw)} has the shape {tuple(logits.shape)}"
            )
        return logits.to("cpu", torch.promote_types(logits.dtype, torch.float32)).softmax(1)

    def _predictions(self, results: list[_Result]) -> list[Prediction]:
        """The predictions for one file: one for each sample of an array, one for a picture or a recording."""
        parts = [
            Prediction(each.file, each.probabilities, self.classes, each.row, each.start, each.stop) for each in results
        ]
        if len(parts) == 1 or parts[0].start is None:
            return parts
        mean = torch.stack([part.probabilities for part in parts]).mean(0)
        first, last = parts[0], parts[-1]
        return [Prediction(first.file, mean, self.classes, None, first.start, last.stop, tuple(parts))]


@dataclass(eq=False)
class _Result:
    """Where a sample comes from, and its probabilities as soon as they are computed."""

    file: str
    row: str | None
    start: float | None
    stop: float | None
    probabilities: torch.Tensor


class _Batches:
    """Collects samples of equal shape and resolution, and computes a batch of them when it is full."""

    def __init__(self, compute: Callable[[torch.Tensor, tuple[float, ...]], torch.Tensor], batch_size: int) -> None:
        self.compute, self.batch_size = compute, batch_size
        self.waiting: dict[object, list[tuple[Sample, _Result]]] = {}

    def add(self, file: str, sample: Sample) -> _Result:
        result = _Result(file, sample.row, sample.start, sample.stop, torch.empty(0))
        key = (sample.raw.shape, sample.raw.dtype, sample.scale)
        batch = self.waiting.setdefault(key, [])
        batch.append((sample, result))
        if len(batch) == self.batch_size:
            self._run(self.waiting.pop(key))
        return result

    def finish(self) -> None:
        while self.waiting:
            self._run(self.waiting.popitem()[1])

    def _run(self, batch: list[tuple[Sample, _Result]]) -> None:
        raw = torch.stack([sample.raw for sample, _ in batch])
        for (_, result), row in zip(batch, self.compute(raw, batch[0][0].scale), strict=True):
            if not row.isfinite().all():
                raise UsageError(f"{result.file}: the outputs of the network are not finite; try another precision")
            result.probabilities = row


def _load(name: AnyPath) -> Model:
    """Load a network by name, from a folder of weights, or from a run folder."""
    weights = Path(name) / "weights"
    is_run = str(name) not in list_pretrained() and (weights / CONFIG).is_file()
    return from_pretrained(weights if is_run else name)


def _target(
    model: nn.Module, inputs: Inputs | None, name: str, resolution: str | int | Sequence[int], hop: float | None
) -> Target:
    """What a network takes. Raises an error if it cannot classify files."""
    own = model.inputs if isinstance(model, Model) else None
    if inputs is None:
        inputs = own
    if inputs is None:
        raise ArgumentError(
            f"{name} does not say how its inputs are standardized and what its classes are called: set model.inputs "
            "to a flexconv.models.Inputs and save it again"
        )
    if getattr(model, "readout", None) == "every":
        raise ArgumentError(f"{name} has logits for every time step (readout='every'), not one class for a sample")
    size = (input_size(model) if isinstance(model, Model) and inputs is own else None) or inputs.size
    return Target(inputs, size, _resolution(resolution, inputs, len(size)), hop)


def _resolution(resolution: str | int | Sequence[int], inputs: Inputs, dims: int) -> Resolution:
    if isinstance(resolution, str) and resolution not in (TRAINED, NATIVE):
        unknown_name("resolution", resolution, (TRAINED, NATIVE))
    if resolution != TRAINED and inputs.images is not None:
        raise ArgumentError(
            f"the network was trained on images as series, so resolution must be {TRAINED}; got {resolution!r}"
        )
    if resolution != TRAINED and inputs.mfcc_rate is not None:
        raise ArgumentError(f"the network was trained on MFCCs, so resolution must be {TRAINED}; got {resolution!r}")
    if isinstance(resolution, str):
        return resolution
    if dims == 1:
        raise ArgumentError(f"resolution must be {TRAINED} or {NATIVE} for recordings and series; got {resolution!r}")
    return per_axis("resolution", resolution if isinstance(resolution, int) else tuple(resolution), dims, minimum=1)


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    known = [name for name in inspect.signature(read_table).parameters if name != "path"]
    for name in options:
        if name not in known:
            unknown_name("option for tables and arrays", name, known)
    return dict(options)


def _raise(file: str, error: Exception) -> None:  # noqa: ARG001
    raise error
