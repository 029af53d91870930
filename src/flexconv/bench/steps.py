"""The time of whole training steps: preparation of the batch, forward, backward, optimizer."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from typing import Any

import torch

from .. import data, train
from ..nn import GaussianMask, refresh_extents
from ..train import build_model, make_fabric
from ..train.display import Display

_TCN = {"name": "flextcn6", "mask_options": {"sigma": 0.075}}  # the initial masks of the authors' code
_SEPARABLE = {  # as in sepflexnet-scifar10, but with the default width
    "name": "sepflexnet_tiny",
    "parametrization": "scaled",
    "train_features": True,
    "mask_options": {"sigma": 0.3},
    "dropout": 0.1,
}
#: Name, model, shape of a sample, settings, and the milliseconds of the authors' code with initial masks and with masks
#: that cover the whole grid. These were measured on an H200, and on a CPU with two cores (initial masks: one core).
CASES = [
    ("FlexNet-7, batch 64", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 64}, (105.7, 350.8)),
    (
        "… with the exact alias penalty",
        {"name": "flexnet7"},
        (3, 32, 32),
        {"batch_size": 64, "alias": {"formula": "exact"}},
        (153.5, None),
    ),
    ("FlexNet-7, batch 512", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 512}, (None, 2173.8)),
    ("FlexTCN-6, batch 64, length 1024", _TCN, (3, 1024), {"batch_size": 64}, (None, 81.2)),
    ("FlexTCN-6, batch 32, length 16000", _TCN, (1, 16000), {"batch_size": 32}, (111.9, 105.4)),
    ("SepFlexNet tiny, batch 100, length 1024", _SEPARABLE, (3, 1024), {"batch_size": 100}, (None, None)),
]
CPU_CASES = [("FlexNet-7, batch 16", {"name": "flexnet7"}, (3, 32, 32), {"batch_size": 16}, (947.0, 121e3))]
SMALL_CASES = [("tiny", {"name": "flexnet3", "widths": [2]}, (1, 8, 8), {"batch_size": 2}, (None, None))]
GPU_WAYS = [("eager", "fp32"), ("compiled", "bf16"), ("graph", "fp32"), ("graph", "bf16")]
CPU_WAYS = [("eager", "fp32")]
EPOCHS = 8  # the first is not measured
STEPS = 30  # per epoch


def bench_steps(
    device: torch.device, *, small: bool = False, ways: Collection[tuple[str, str]] | None = None
) -> Iterator[dict[str, Any]]:
    """Time training steps with initial masks, and with masks that cover the whole grid.

    Yields one row per case, masks, and way. A way is a pair (engine, precision). By default, all ways of the device are
    measured.
    """
    ways = ways or (GPU_WAYS if device.type == "cuda" else CPU_WAYS)
    cases = SMALL_CASES if small else CASES if device.type == "cuda" else CPU_CASES
    steps = 2 if small else STEPS if device.type == "cuda" else 5
    for name, model, shape, settings, authors in cases:
        for full in (False, True):
            for engine, precision in ways:
                row = {"case": name, "full": full, "engine": engine, "precision": precision, "authors": authors[full]}
                recipe = make_recipe(model, shape, {**settings, "engine": engine, "precision": precision})
                yield row | _measure(recipe, shape, device, full=full, steps=steps)


def make_recipe(model: dict[str, Any], shape: tuple[int, ...], settings: dict[str, Any]) -> train.Recipe:
    """The recipe with which the networks of `CASES` are trained. Their layers are those of the paper by default."""
    model = {"parametrization": "paper", **model}
    tree = {"model": model, "data": {"name": "cifar10", "augment": len(shape) == 3}, "epochs": 100}
    recipe = train.build_recipe(tree | settings)
    assert isinstance(recipe, train.Recipe)
    return recipe


def _measure(
    recipe: train.Recipe, shape: tuple[int, ...], device: torch.device, *, full: bool, steps: int
) -> dict[str, Any]:
    """The milliseconds per step (median and interquartile range over epochs), memory, loss and kernel sizes."""
    images = noise(shape, recipe.batch_size * steps)
    network = build_model(recipe, images)
    if full:
        open_masks(network)
    fabric = make_fabric(recipe, device.type)
    with tempfile.TemporaryDirectory() as folder:
        display = Display(None, epochs=1, steps_per_epoch=1)
        trainer = train.Trainer(network, images, recipe, train.RunFolder(folder), fabric, display)
        trainer.forward_model.train()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [_epoch(trainer, epoch, device) for epoch in range(EPOCHS)][1:]
    quartiles = statistics.quantiles(times, n=4)
    return {
        "ms": quartiles[1],
        "spread": quartiles[2] - quartiles[0],
        "captures": getattr(trainer.engine, "captures", 0),
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None,
        "loss": trainer.sums[0].item() / (EPOCHS * steps * recipe.batch_size),
        "sizes": sorted({"×".join(map(str, size)) for size in refresh_extents(network).values()}),
    }


def _epoch(trainer: train.Trainer, epoch: int, device: torch.device) -> float:
    """Train for one epoch and return the milliseconds per step."""
    trainer.progress.batch = 0
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in trainer.train_batches.iterate(epoch=epoch):
        trainer.step(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / len(trainer.train_batches)


def open_masks(network: torch.nn.Module) -> None:
    """Widen all masks, so that every kernel covers its whole grid."""
    for module in network.modules():
        if isinstance(module, GaussianMask):
            module.set_(sigma=2.0)


def noise(shape: tuple[int, ...], count: int) -> data.DataSplits:
    """A data set of random images with random labels."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    split = data.Split(inputs, labels, scale=1 / 255)
    return data.DataSplits("noise", split, None, None, tuple("0123456789"))
