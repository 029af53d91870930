"""flexconv eval"""

from __future__ import annotations

from typing import Annotated

import typer

from ._common import Device, Root, say
from ._model import BatchSize, DataName, DataOptions, ModelName, Scorer, load_with_data, part_of


def evaluate(
    model: ModelName,
    data: DataName = None,
    options: DataOptions = None,
    part: Annotated[
        str, typer.Option(metavar="PART", help="Part of the data to use: test, validation or train.")
    ] = "test",
    batch_size: BatchSize = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Measure the accuracy of a trained model.

    For a run folder this gives the number in its results.json. Models are always evaluated in float32.
    """
    network, recipe, splits = load_with_data(model, data, root, options)
    split = part_of(splits, part)
    scorer = Scorer(recipe, device=device, batch_size=batch_size)
    score = scorer(network, scorer.batches(split, network))
    top5 = "" if score.top5_accuracy is None else f", top-5 {100 * score.top5_accuracy:.2f} %"
    say(f"{splits.name} {part}: {100 * score.accuracy:.2f} % of {score.count:,}{top5}, loss {score.loss:.4f}")
    if splits.note:
        say(f"note: {splits.note}")
