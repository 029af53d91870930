"""The recipes of SepFlexNet train, on few samples of noise with the shapes of their data."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from flexconv import create_model, data
from flexconv.data import Samples
from flexconv.data._missing import SEED, drop_steps, fill_dropped, observed_statistics
from flexconv.nn import FlexConvNd
from flexconv.spectrum import alias_report, energy_beyond_nyquist
from flexconv.train import (
    CrossResolutionRecipe,
    RunFolder,
    Trainer,
    build_model,
    list_recipes,
    load_recipe,
    make_fabric,
)
from flexconv.train.display import Display

NAMES = sorted(name for name in list_recipes() if name.startswith("sepflexnet"))
SHORT = {1: (64,), 2: (16, 16)}
CHANNELS = {"smnist": 1, "pmnist": 1, "speech_commands_raw": 1, "speech_commands_raw_v0.01": 1}


def noise(recipe):
    """Eight samples: images, series, or series of different lengths of which steps are missing."""
    generator = torch.Generator().manual_seed(0)
    size = SHORT[2 if "cifar10" in recipe.data.name and not recipe.data.name.startswith("s") else 1]
    inputs = torch.randn(8, CHANNELS.get(recipe.data.name, 3), *size, generator=generator)
    labels = torch.arange(8) % 4
    lengths = torch.randint(30, 65, (8,)) if recipe.data.name == "character_trajectories" else None
    samples = Samples(inputs, labels, lengths)
    if missing := recipe.data.options.get("missing"):
        (samples,) = drop_steps([samples], missing)
        samples = fill_dropped(samples, observed_statistics(samples)[0])
    split = data.Split(samples.inputs, labels, lengths)
    return data.DataSplits("noise", split, None, None, tuple("abcd"))


@pytest.mark.parametrize("name", NAMES)
def test_recipe_trains(name, tmp_path):
    recipe = load_recipe(name, ["model.width=6", "batch_size=4", "data.augment=false", "precision=fp32"])
    depth = dataclasses.replace(recipe.model, options={**recipe.model.options, "depth": 1})
    recipe = dataclasses.replace(recipe, model=depth)
    samples = noise(recipe)
    fabric, display = make_fabric(recipe, "cpu"), Display(None, epochs=1, steps_per_epoch=2)
    trainer = Trainer(build_model(recipe, samples), samples, recipe, RunFolder(tmp_path), fabric, display)
    trainer.forward_model.train()
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    for batch in trainer.train_batches.iterate(epoch=0):
        trainer.step(batch)
    after = [p for p in trainer.model.parameters() if p.requires_grad]
    assert all(p.isfinite().all() for p in after)
    assert any(not torch.equal(p, q) for p, q in zip(before, after, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_honest_and_fast(name):
    recipe = load_recipe(name)
    own = recipe.data.name.startswith(("speech", "character"))  # these have a validation part of their own
    assert own or 0.08 < recipe.data.validation < 0.11
    assert (recipe.data.protocol, recipe.engine) == ("honest", "auto")
    assert recipe.precision == ("fp32" if recipe.data.name == "character_trajectories" else "bf16")
    assert recipe.data.augment == ("cifar10" in recipe.data.name)
    assert recipe.model.options["parametrization"] == "scaled"
    assert not isinstance(recipe, CrossResolutionRecipe) or recipe.finetune_epochs == 0


def test_only_high_frequencies_start_above_the_nyquist_frequency():
    names = ["sepflexnet-scifar10", "sepflexnet-scifar10/high-frequencies"]
    totals = []
    for name in names:
        options = {**load_recipe(name).model.options, "width": 8}
        torch.manual_seed(0)
        model = create_model("sepflexnet_tiny", in_channels=3, num_classes=10, length=1024, **options)
        totals.append(alias_report(model, 2).total)
    assert totals[0] < 0.05
    assert totals[1] > 0.5


@pytest.mark.parametrize(
    ("name", "channels", "size"),
    [
        ("scifar10", 3, {"length": 1024}),
        ("scifar10/per-channel", 3, {"length": 1024}),
        ("smnist", 1, {"length": 784}),
        ("cifar10", 3, {"image_size": 32}),
        ("cross-resolution-cifar10", 3, {"image_size": 16}),
        ("character-trajectories/missing-30", 4, {"length": 182}),
    ],
)
def test_layers_start_with_little_energy_beyond_the_nyquist_frequency(name, channels, size):
    torch.manual_seed(0)
    model = create_model(
        "sepflexnet_tiny",
        in_channels=channels,
        num_classes=10,
        **{**load_recipe(f"sepflexnet-{name}").model.options, **size, "width": 16},
    )
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    assert max(map(energy_beyond_nyquist, layers)) < 0.01


def test_steps_are_dropped_as_in_ckconv():
    x, labels = torch.randn(3, 2, 20) + 5, torch.zeros(3, dtype=torch.int64)
    (part,) = drop_steps([Samples(x, labels, torch.tensor([20, 9, 1]))], 0.7)
    assert part.inputs.shape == (3, 3, 20)
    assert (part.inputs[:, 2] == 0).sum(1).tolist() == [14, 6, 0]
    first = torch.randperm(20, generator=torch.Generator().manual_seed(SEED))[:14]
    assert not part.inputs[0, 2, first].any()
    mean, std = observed_statistics(part)
    assert (mean[2], std[2]) == (0.0, 1.0)
    there = torch.cat([x[0][:, part.inputs[0, 2] > 0], x[1][:, :9][:, part.inputs[1, 2, :9] > 0], x[2][:, :1]], 1)
    torch.testing.assert_close(torch.tensor(mean[:2]), there.mean(1))
    filled = fill_dropped(part, mean)
    assert torch.equal(filled.inputs[0, :2, first], torch.tensor(mean[:2])[:, None].expand(2, 14))
    kept = part.inputs[:, 2:] > 0
    assert torch.equal(torch.where(kept, filled.inputs[:, :2], 0), torch.where(kept, x, 0))
