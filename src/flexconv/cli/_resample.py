"""flexconv resample"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ._common import Device, Root, percent, print_table, say
from ._model import BatchSize, DataName, DataOptions, ModelName, Scorer, load_with_data, part_of

if TYPE_CHECKING:
    from ..data import Batch, DataSplits, DeviceBatches
    from ..models import Model
    from ..spectrum import AliasReport


def resample(
    model: ModelName,
    to: Annotated[
        str,
        typer.Option(metavar="SIZE", help="New image size (64, or 48x64 for rows and columns) or length of series."),
    ],
    data: DataName = None,
    options: DataOptions = None,
    crop: Annotated[
        str, typer.Option("--crop", metavar="CROP", help="How kernels end: taper, or hard as in the paper.")
    ] = "taper",
    recalibrate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Number of training batches to recalibrate batch norms with.")
    ] = 0,
    batch_size: BatchSize = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Evaluate a trained model at another resolution.

    Nothing is trained. Images and series are resampled linearly; to reduce the resolution, samples are averaged. Before
    the evaluation, the spectra of the kernels are measured to say whether the model is expected to lose accuracy.
    """
    from ..resolution import at_resolution, measurable_norms, recalibrate_batchnorm
    from ..spectrum import alias_report

    network, recipe, splits = load_with_data(model, data, root, options)
    before = splits.train.sample_shape[1:]
    after = sizes(to, len(before), "--to")
    _check_memory(network, splits, after)
    ratios = [new / old for new, old in zip(after, before, strict=True)]
    equal_lengths = splits.train.lengths is None
    if recalibrate and not equal_lengths:
        raise ArgumentError(f"{splits.name} has series of unequal length, which --recalibrate does not support")
    scorer = Scorer(recipe, device=device, batch_size=batch_size)
    here = scorer(network, scorer.batches(part_of(splits, "test"), network))
    resampled = at_resolution(network, ratios, crop=crop)
    if after != before:
        can_recalibrate = not recalibrate and equal_lengths and bool(measurable_norms(network))
        _say_what_to_expect(alias_report(network, ratios), before, after, can_recalibrate=can_recalibrate)
    if recalibrate:
        augment = None if recipe is None else recipe.data.augmentation  # as in training
        batches = _batches_at(after, splits, "train", scorer, resampled, shuffle=True, augment=augment)
        recalibrate_batchnorm(resampled.to(scorer.device), islice(batches, recalibrate))
    there = scorer(resampled, _batches_at(after, splits, "test", scorer, resampled))
    rows = [
        ("×".join(map(str, size)), f"{100 * score.accuracy:.2f} %", f"{score.loss:.4f}")
        for size, score in ((before, here), (after, there))
    ]
    titles = ("resolution", "test accuracy", "loss")
    print_table(titles, rows, right=titles)
    if splits.note:
        say(f"note: {splits.note}")


def _check_memory(network: Model, splits: DataSplits, size: tuple[int, ...]) -> None:
    """Raise an error for a size at which the test set or a kernel exceeds the memory of this machine."""
    from ..nn import FlexConvNd

    channels, *before = splits.train.sample_shape
    growth = math.prod(new / old for new, old in zip(size, before, strict=True))
    samples = len(part_of(splits, "test")) if len(size) == 2 else 1  # series are resampled batch by batch
    largest = samples * channels * math.prod(size)
    for layer in network.modules():
        if isinstance(layer, FlexConvNd):
            pairs = layer.out_channels * layer.in_channels // layer.groups
            largest = max(largest, pairs * math.prod(layer.kernel_size) * growth)
    needed, available = 4 * largest, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise ArgumentError(
            f"--to {'×'.join(map(str, size))} needs {needed / 2**30:,.0f} GiB of memory, and this machine has "
            f"{available / 2**30:,.0f}: choose a smaller size"
        )


def _say_what_to_expect(
    report: AliasReport, before: Sequence[int], after: Sequence[int], *, can_recalibrate: bool
) -> None:
    """Say whether accuracy will be lost, by the energy of the kernels beyond the lower of two Nyquist frequencies."""
    pairs = list(zip(before, after, strict=True))
    coarse = "×".join(str(min(pair)) for pair in pairs)
    finer = all(new >= old for old, new in pairs)
    if report.expected_loss == "none":
        loss = "about the same accuracy" if finer else "no other loss than that of detail in the data"
        say(f"band-limited at {coarse}: expect {loss}\n")
        return
    if report.expected_loss == "a few points":
        loss = "a loss of a few points" if finer else "a loss of a few points, besides that of detail in the data"
        advice = ". Pass --recalibrate 10 to recover most of it" if can_recalibrate else ""
        say(f"nearly band-limited at {coarse} (folded energies: {percent(report.total)}): expect {loss}{advice}\n")
        return
    titles = ("layer", "beyond", "folded")
    rows = [(name, percent(report.beyond[name]), percent(report.folded[name])) for name in report.folded]
    print_table(titles, rows, right=titles[1:])
    worst = max(report.folded, key=lambda name: report.folded[name])
    say(
        f"beyond: energy of the kernel beyond the Nyquist frequency at {coarse}; "
        "folded: the part that aliases to the lower half of the band\n\n"
        f"not band-limited at {coarse}: expect a loss of accuracy. The folded energy of {len(rows)} layers adds up to "
        f"{percent(report.total)}, most in {worst}."
    )
    recalibrate = "Pass --recalibrate 10 to measure the batch norms again, or train" if can_recalibrate else "Train"
    say(f"{recalibrate} with an alias penalty (docs/alias-free.md).\n")


def sizes(text: str, axes: int, option: str) -> tuple[int, ...]:
    """Parse the value of an option, such as 64 or 48x64, into one number per axis."""
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts) or len(parts) not in (1, axes):
        per_axis = " or one per axis such as 48x64" if axes > 1 else ""
        raise ArgumentError(f"{option} must be a number of samples such as 64{per_axis}; got {text!r}")
    return tuple(int(part) for part in parts) * (axes if len(parts) == 1 else 1)


def _batches_at(
    size: tuple[int, ...], splits: DataSplits, part: str, scorer: Scorer, model: Model, **settings: Any
) -> DeviceBatches:
    """Batches of a part at another resolution."""
    if len(size) == 2:
        return scorer.batches(part_of(splits.at_resolution((size[0], size[1])), part), model, **settings)
    batches = scorer.batches(part_of(splits, part), model, **settings)
    return ResampledSeries(batches, size[0])  # type: ignore[return-value]


class ResampledSeries:
    """The batches of series [B, C, L] in `batches`, resampled to `length` samples over the same time.

    A series that is shorter than the others is extended by its last value before resampling, so that no padding leaks
    into it.
    """

    def __init__(self, batches: DeviceBatches, length: int) -> None:
        self.batches, self.length = batches, length
        self.device, self.world_size = batches.device, batches.world_size

    def __iter__(self) -> Iterator[Batch]:
        import torch

        from ..data import resize_images

        for inputs, labels, lengths in self.batches:
            old = inputs.shape[-1]
            if lengths is None:
                yield resize_images(inputs[:, :, None], (1, self.length))[:, :, 0], labels, None
                continue
            time = torch.arange(old, device=inputs.device)
            held = inputs.take_along_dim(torch.minimum(time, lengths[:, None] - 1)[:, None], -1)
            outputs = resize_images(held[:, :, None], (1, self.length))[:, :, 0]
            lengths = (lengths * self.length / old).round().long().clamp(1, self.length)
            past = torch.arange(self.length, device=inputs.device) >= lengths[:, None]
            yield outputs.masked_fill(past[:, None], 0.0), labels, lengths
