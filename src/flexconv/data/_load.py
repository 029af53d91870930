"""`load`: verify the files of a data set, read them, hold out a validation set, and compute statistics."""

from __future__ import annotations

import inspect
import os
from typing import Any

import numpy as np
import torch

from .._arguments import unknown_name
from .._text import encodable
from ..errors import ArgumentError
from . import _registry
from ._dataset import PROTOCOLS, Dataset, Source
from ._files import data_root, describe_root
from ._holdout import stratified_holdout
from ._splits import DataSplits, Samples, Split
from ._statistics import channel_statistics, statistics_from_moments, time_statistics


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    validation: float = 0.0,
    seed: int = 0,
    protocol: str = "honest",
    verify: bool = True,
    **options: Any,
) -> DataSplits:
    """Load a data set: verify its files, split it, and compute the statistics of the training set.

    Arguments:
        name: one of `list_datasets()`.
        root: folder that contains the data sets. None means $FLEXCONV_DATA or, if that is not set, the user's cache.
        validation: share of the training set that is held out for model selection. The hold-out is stratified and
            depends on `seed`. It must be 0 for data sets that have their own validation set.
        seed: seed of the hold-out and, under the "paper" protocol, of everything that the authors drew at random.
        protocol: "honest", or "paper" for the authors' choices: fixed statistics or statistics per time index, the
            authors' split, and the test set as validation set.
        verify: compare files with the published checksums and counts. Set it to False to load your own files in a
            published layout.
        options: options of the data set, such as `path` for "folder"; see `flexconv.data.options(name)`.

    """
    chosen = _registry.dataset(name)
    if protocol not in PROTOCOLS:
        unknown_name("protocol", protocol, PROTOCOLS)
    if protocol not in chosen.protocols:
        raise ArgumentError(f"{name} is not a data set of the paper: protocol must be 'honest'; got {protocol!r}")
    if not 0 <= validation < 1:
        raise ArgumentError(f"validation is a share of the training set, at least 0 and below 1; got {validation}")
    if not 0 <= seed < 2**32:
        raise ArgumentError(f"seed must be at least 0 and below 2**32; got {seed}")
    check_options(name, options)
    folder = data_root(root)
    if chosen.needs_files:
        _registry.check_files(chosen, folder, describe_root(root), verify=verify)
    source = chosen.read(folder, protocol=protocol, seed=seed, verify=verify, **options)
    return _assemble(chosen, source, validation=validation, seed=seed, protocol=protocol)


def check_options(name: str, given: dict[str, Any]) -> None:
    """Raise an error for unknown options of a data set, and for missing required ones."""
    known = _registry.options(name)
    for option in given:
        if not known:
            raise ArgumentError(f"data set {name!r} has no options; got {option!r}")
        if option not in known:
            unknown_name("option", option, known, of=f"of data set {name!r}")
    for option, default in known.items():
        if default is inspect.Parameter.empty and option not in given:
            raise ArgumentError(
                f"data set {name!r} needs the option {option!r}: set data.{option} in a recipe, or add "
                f"--data-option {option}=… after --data"
            )


def _assemble(chosen: Dataset, source: Source, *, validation: float, seed: int, protocol: str) -> DataSplits:
    train, held_out, moments = source.train, source.validation, source.moments
    selects_on_test = protocol == "paper" and held_out is None and source.test is not None
    if validation and (held_out is not None or selects_on_test or source.test is None):
        reason = "has its own validation set" if held_out is not None else "has no test set"
        reason = "uses its test set for validation under the paper's protocol" if selects_on_test else reason
        raise ArgumentError(f"{chosen.name} {reason}: validation must be 0; got {validation}")
    if validation:
        kept, held = stratified_holdout(train.labels, validation, seed=seed)
        train, held_out = train.rows(kept), train.rows(held)
        moments = None if moments is None else moments[kept.numpy()]
    mean, std = _statistics(source, train, moments)

    def split(samples: Samples | None) -> Split | None:
        if samples is None:
            return None
        return Split(
            samples.inputs,
            samples.labels,
            samples.lengths,
            scale=source.scale,
            mean=mean,
            std=std,
            tail=source.tail,
            layout=source.layout,
            mfcc_rate=source.mfcc_rate,
            rate=source.rate,
            images=source.images,
        )

    test = split(source.test)
    training = split(train)
    assert training is not None
    return DataSplits(
        name=chosen.name,
        train=training,
        validation=test if selects_on_test else split(held_out),
        test=test,
        class_names=tuple(map(encodable, source.class_names)),
        protocol=protocol,
        note=source.note,
    )


def _statistics(source: Source, train: Samples, moments: np.ndarray | None) -> tuple[torch.Tensor, torch.Tensor]:
    if source.statistics == "time":
        return time_statistics(train, scale=source.scale)
    if source.statistics == "channel" and moments is not None:
        pixels = train.inputs.shape[2] * train.inputs.shape[3]
        return statistics_from_moments(moments, pixels, scale=source.scale)
    if source.statistics == "channel":
        return channel_statistics(train, scale=source.scale)
    shape = (-1, *[1] * (len(train.inputs.shape) - 2))
    mean, std = (torch.tensor(numbers).reshape(shape) for numbers in source.statistics)
    return mean, std
