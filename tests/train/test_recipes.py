"""The recipes of the package load, have a description, and are valid for models, data and penalties."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from flexconv import alias_penalty, at_resolution
from flexconv.data import dataset, options
from flexconv.errors import ArgumentError
from flexconv.models import create_model
from flexconv.nn import GENERATORS
from flexconv.nn._conv import FlexConvNd
from flexconv.train import (
    CrossResolutionRecipe,
    FitRecipe,
    Recipe,
    build_recipe,
    default_folder,
    list_recipes,
    load_recipe,
)
from flexconv.train._read import RECIPES, plain
from flexconv.train.targets import TARGETS
from tests.conftest import GOLDEN

NAMES = sorted(list_recipes())
COUNTS = json.loads((GOLDEN / "param_counts.json").read_text())
_COLOUR = {"in_channels": 3, "num_classes": 10}
SHAPES = {  # arguments of a model that follow from the data set
    "digits": {"in_channels": 1, "num_classes": 10, "image_size": 8},
    "mnist": {"in_channels": 1, "num_classes": 10, "image_size": 28},
    "cifar10": {**_COLOUR, "image_size": 32},
    "stl10": {**_COLOUR, "image_size": 96},
    "imagenet32": {"in_channels": 3, "num_classes": 1000, "image_size": 32},
    "smnist": {"in_channels": 1, "num_classes": 10, "length": 784},
    "pmnist": {"in_channels": 1, "num_classes": 10, "length": 784},
    "scifar10": {**_COLOUR, "length": 1024},
    "npcifar10": {"in_channels": 96, "num_classes": 10, "length": 1000},
    "character_trajectories": {"in_channels": 3, "num_classes": 20, "length": 182},
    "speech_commands": {"in_channels": 20, "num_classes": 10, "length": 161},
    "speech_commands_v0.01": {"in_channels": 20, "num_classes": 10, "length": 161},
    "speech_commands_raw": {"in_channels": 1, "num_classes": 10, "length": 16000},
    "speech_commands_raw_v0.01": {"in_channels": 1, "num_classes": 10, "length": 16000},
}


def model_of(recipe, **arguments):
    size = {"image_size": recipe.source} if isinstance(recipe, CrossResolutionRecipe) else {}
    return create_model(recipe.model.name, **{**SHAPES[recipe.data.name], **size, **recipe.model.options, **arguments})


def count(name):
    return sum(p.numel() for p in model_of(load_recipe(name), device="meta").parameters())


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_valid(name):
    recipe = load_recipe(name)
    assert recipe.about, "has no description"
    assert build_recipe(plain(recipe)) == recipe
    if isinstance(recipe, FitRecipe):
        assert recipe.target in TARGETS
        GENERATORS[recipe.model.name](2, 3, **recipe.model.options)
        return
    assert isinstance(recipe, Recipe)
    data = dataset(recipe.data.name)
    assert recipe.data.protocol in data.protocols
    assert set(recipe.data.options) <= set(options(recipe.data.name))
    assert not recipe.data.augment or data.kind == "images" or recipe.data.name in ("scifar10", "npcifar10")
    model = model_of(recipe, device="meta")
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    if recipe.optim.kernel_norm or recipe.alias is not None:
        assert layers
    if recipe.schedule.name == "cosine":
        assert recipe.schedule.warmup_epochs < recipe.epochs


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("sepflexnet")])
def test_networks_have_the_parametrization_of_the_paper(name):
    recipe = load_recipe(name)
    if not isinstance(recipe, FitRecipe):
        assert recipe.model.options["parametrization"] == "paper"
        layers = [module for module in model_of(recipe, device="meta").modules() if isinstance(module, FlexConvNd)]
        assert all(layer.parametrization == "paper" for layer in layers)


@pytest.mark.parametrize("name", ["cross-resolution-cifar10", "cross-resolution-cifar10/f-flexconv-20-34"])
def test_cross_resolution_recipe_runs(name):
    recipe = load_recipe(name)
    model = model_of(recipe, widths=[4])
    assert alias_penalty(model, **plain(recipe)["alias"]) > 0
    larger = at_resolution(model, recipe.target / recipe.source, crop=recipe.crop)
    assert larger(torch.zeros(2, 3, recipe.target, recipe.target)).shape == (2, 10)
    assert larger.stem.kernel_size == (recipe.target + 1, recipe.target + 1)


def test_penalties_of_cross_resolution_recipes():
    penalties = {"": "authors", "/exact": "exact", "/exact-mask": "exact, mask", "/exact-summed": "exact, summed"}
    for variant, expected in penalties.items():
        recipe = load_recipe(f"cross-resolution-cifar10{variant}")
        parts = {"mask": recipe.alias.mask, "summed": recipe.alias.method == "per_kernel"}
        extras = [name for name, there in parts.items() if there]
        assert ", ".join([recipe.alias.formula, *extras]) == expected
        assert recipe.crop == "taper"
    imagenet = load_recipe("cross-resolution-imagenet/taper")
    assert (imagenet.alias.formula, imagenet.crop) == ("authors", "taper")


def test_all_pairs_of_figure_5_exist():
    pairs = {(s, t) for s in (16, 20) for t in (28, 30, 32, 34, 36)}
    for penalty, mask in (("f-magnet", False), ("f-flexconv", True)):
        found = [load_recipe(name) for name in NAMES if re.fullmatch(rf"cross-.*10/{penalty}(-\d+-\d+)?", name)]
        assert {(recipe.source, recipe.target) for recipe in found} == pairs
        for recipe in found:
            assert (recipe.alias.formula, recipe.alias.mask, recipe.crop) == ("authors", mask, "hard")
            assert f"{recipe.source} → {recipe.target}" in recipe.about


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("flexnet7-cifar10", "flexnet7_c24_cifar10"),
        ("flexnet5-cifar10", "flexnet5_c22_cifar10"),
        ("flexnet3-cifar10", "flexnet3_c24_cifar10"),
        ("flexnet7-cifar10/gabor", "flexnet7_gabor"),
        ("flexnet7-cifar10/siren", "flexnet7_siren"),
        ("flexnet7-cifar10/fourier", "flexnet7_fourier"),
        ("flexnet7-cifar10/conv3", "flexnet7_conv3"),
        ("flexnet7-cifar10/conv33", "flexnet7_conv33"),
        ("flexnet7-cifar10/njet", "flexnet7_njet_order4_c38"),
        ("ckcnn7-cifar10", "ckcnn7_siren"),
        ("ckcnn7-cifar10/magnet", "ckcnn7_magnet"),
        ("ckcnn3-cifar10/fourier", "ckcnn3_fourier"),
        ("flexnet7-mnist", "flexnet7_c24_mnist"),
        ("flexnet5-imagenet32", "flexnet5_c22_imagenet32"),
        ("flexnet5-imagenet32/resnet32", "cifarresnet32_imagenet"),
        ("cross-resolution-imagenet/njet", "flexnet5_njet_order4_c32_imagenet"),
        ("resnet44-cifar10", "cifarresnet44"),
        ("flextcn-smnist", "flextcn6_magnet_smnist_1ch"),
        ("flextcn-smnist/2-blocks", "flextcn2_magnet_smnist_1ch"),
        ("flextcn-scifar10/siren", "flextcn6_siren_scifar10_3ch"),
        ("flextcn-npcifar10/cktcn-gabor", "cktcn2_gabor_npcifar10_96ch"),
        ("flextcn-speech-commands/4-blocks", "flextcn4_magnet_sc_mfcc_20ch"),
        ("flextcn-speech-commands-raw/cktcn-fourier", "cktcn2_fourier_sc_raw_1ch"),
    ],
)
def test_networks_have_published_parameter_counts(name, row):
    assert count(name) == COUNTS[row]


@pytest.mark.parametrize(
    ("name", "epochs", "batch_size", "lr", "kernel_norm"),
    [
        ("flexnet7-cifar10", 350, 64, 0.01, 0),
        ("flexnet7-cifar10/siren", 350, 64, 0.001, 0),
        ("ckcnn7-cifar10/magnet", 350, 64, 0.01, 0),
        ("flexnet5-imagenet32", 350, 2048, 0.01, 1e-5),
        ("flexnet7-stl10", 100, 256, 0.01, 0),
        ("cross-resolution-cifar10/f-magnet", 100, 64, 0.01, 0),
        ("flextcn-smnist", 200, 64, 0.01, 0),
        ("flextcn-smnist/former", 200, 64, 0.01, 1e-5),
        ("flextcn-pmnist/4-blocks", 200, 64, 0.01, 0),
        ("flextcn-pmnist/2-blocks-former", 200, 64, 0.01, 1e-5),
        ("flextcn-scifar10", 200, 64, 0.001, 1e-5),
        ("flextcn-npcifar10", 300, 32, 0.01, 0),
        ("flextcn-speech-commands", 300, 32, 0.001, 0),
        ("flextcn-speech-commands-raw", 300, 32, 0.001, 0),
        ("flextcn-character-trajectories", 300, 32, 0.001, 1e-5),
    ],
)
def test_recipes_have_published_settings(name, epochs, batch_size, lr, kernel_norm):
    recipe = load_recipe(name)
    assert (recipe.epochs, recipe.batch_size, recipe.optim.lr) == (epochs, batch_size, lr)
    assert recipe.optim.kernel_norm == kernel_norm
    assert (recipe.optim.mask_factor, recipe.optim.weight_decay, recipe.schedule.warmup_epochs) == (0.1, 0, 5)


MODELS_OF_TABLE_1 = ["", "/2-blocks", "/4-blocks", "/siren", "/fourier", "/gabor", "/ckcnn"]
MODELS_OF_TABLE_1 += ["/cktcn-magnet", "/cktcn-gabor", "/cktcn-fourier"]


@pytest.mark.parametrize("variant", MODELS_OF_TABLE_1)
@pytest.mark.parametrize("data", ["smnist", "pmnist"])
def test_rows_on_mnist_sequences_drop_inputs_and_have_no_kernel_norm(data, variant):
    recipe = load_recipe(f"flextcn-{data}{variant}")
    assert (recipe.model.options["dropout_in"], recipe.optim.kernel_norm, recipe.data.augment) == (0.1, 0, False)


@pytest.mark.parametrize("variant", MODELS_OF_TABLE_1)
@pytest.mark.parametrize("data", ["scifar10", "npcifar10"])
def test_rows_on_cifar10_sequences_are_augmented(data, variant):
    recipe = load_recipe(f"flextcn-{data}{variant}")
    assert recipe.data.augmentation == "crop_flip"
    assert "dropout_in" not in recipe.model.options


@pytest.mark.parametrize(
    "name", ["former", "2-blocks-former", "dropout-0.2", "low-frequencies", "2-blocks-small-masks"]
)
@pytest.mark.parametrize("data", ["smnist", "pmnist", "scifar10", "npcifar10"])
def test_former_settings_are_variants(data, name):
    recipe = load_recipe(f"flextcn-{data}/{name}")
    assert not recipe.data.augment
    assert recipe.model.options.get("dropout_in", 0.0) == 0.0
    assert recipe.optim.kernel_norm == (0 if data == "npcifar10" else 1e-5)


def test_only_authors_variants_select_on_the_test_set():
    papers = [name for name in NAMES if getattr(load_recipe(name), "data", None) is not None]
    papers = [name for name in papers if load_recipe(name).data.protocol == "paper"]
    assert papers
    assert all(name.endswith("/authors") for name in papers)


@pytest.mark.parametrize(
    ("variant", "steps"),
    [("", 4549), ("/4-blocks", 3033), ("/2-blocks", 1517), ("/small-masks", 961), ("/2-blocks-small-masks", 321)],
)
def test_initial_receptive_field(variant, steps):
    """The image of npCIFAR10 ends 968 steps before the last step."""
    model = load_recipe(f"flextcn-npcifar10{variant}").model
    network = create_model(model.name, in_channels=96, num_classes=10, length=1000, **model.options)
    assert 1 + sum(layer.extent[0] - 1 for layer in network.modules() if isinstance(layer, FlexConvNd)) == steps


def test_every_sequence_data_set_has_all_rows():
    rows = {"authors", "2-blocks", "4-blocks", "siren", "fourier", "gabor", "ckcnn"}
    rows |= {f"cktcn-{generator}" for generator in ("magnet", "gabor", "fourier")}
    for path in RECIPES.glob("flextcn-*.yaml"):
        assert rows <= {name.partition("/")[2] for name in NAMES if name.startswith(f"{path.stem}/")}


def test_files_have_a_description_and_short_lines():
    for path in RECIPES.glob("*.yaml"):
        assert re.search(r"^about: ", path.read_text("utf-8"), re.MULTILINE), path.name
        assert all(len(line) <= 130 for line in path.read_text("utf-8").splitlines()), path.name


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("/some/a.yaml.d/mine.yml", "runs/mine"),
        ("digits", "runs/digits"),
        ("flexnet7-cifar10/gabor", "runs/flexnet7-cifar10-gabor"),
        ("/some/mine.yaml", "runs/mine"),
        ("mine.yaml/small", "runs/mine-small"),
    ],
)
def test_default_folder_is_named_after_the_recipe(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_folder(name).as_posix() == folder
    Path(folder).mkdir(parents=True)
    assert default_folder(name).as_posix() == f"{folder}-2"


def test_data_in_place_of_a_recipe_is_explained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waves.csv").write_text("label,a\nx,1\ny,2\n")
    for name in ("digits", "photos"):
        (tmp_path / name).mkdir()
    for name in ("waves.csv", "photos"):
        with pytest.raises(ArgumentError, match=rf"{name}.*not a recipe.*data\.path={name}"):
            load_recipe(name)
    assert load_recipe("digits").model.name == "flexnet3"  # a folder of this name does not hide the recipe
