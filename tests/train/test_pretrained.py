"""Training that starts from a trained network."""

import shutil

import numpy as np
import pytest
import torch

from flexconv import from_pretrained, save_pretrained, train
from flexconv.train import _read as reading
from flexconv.train import build_model, build_recipe, load_data, load_recipe

NAME = "flexnet3-digits"


def recipe_for(data, **changes):
    return build_recipe({"model": {"name": NAME, "pretrained": True}, "data": data, "epochs": 1} | changes)


def digits(**changes):
    return recipe_for({"name": "digits", "resolution": 16}, **changes)


@pytest.fixture
def odd_and_even(tmp_path):
    """The digits with two classes, as a file."""
    data = load_data(digits())
    parts = {"train": data.train, "test": data.test}
    arrays = {f"{part}_inputs": split.inputs.numpy() for part, split in parts.items()}
    labels = {f"{part}_labels": split.labels.numpy() % 2 for part, split in parts.items()}
    np.savez(tmp_path / "parity.npz", **arrays, **labels, class_names=np.array(["even", "odd"]))
    return {"name": "npz", "options": {"path": str(tmp_path / "parity.npz")}, "resolution": 16}


def test_loads_network_unchanged_for_same_classes():
    recipe = digits()
    model, trained = build_model(recipe, load_data(recipe)), from_pretrained(NAME)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_replaces_only_the_last_layer_for_other_classes(odd_and_even):
    recipe = recipe_for(odd_and_even)
    model, again = (build_model(recipe, load_data(recipe)) for _ in range(2))
    assert model.num_classes == 2
    for name, tensor in from_pretrained(NAME).state_dict().items():
        if name.startswith("head."):
            assert model.state_dict()[name].shape[0] == 2
            assert torch.equal(model.state_dict()[name], again.state_dict()[name])
        else:
            assert torch.equal(model.state_dict()[name], tensor), name


def test_compares_number_of_classes_without_names(tmp_path):
    recipe = digits()
    trained = from_pretrained(NAME)
    trained.inputs = None
    save_pretrained(trained, tmp_path / "unnamed")
    data = load_data(recipe)
    model = build_model(digits(model={"name": str(tmp_path / "unnamed"), "pretrained": True}), data)
    assert torch.equal(model.head.weight, trained.head.weight)


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("bf16", torch.float32)])
def test_network_has_the_precision_of_the_recipe(precision, dtype, tmp_path):
    trained = from_pretrained(NAME).double()
    with torch.no_grad():
        trained.head.bias.add_(1e-9)  # lost in float32
    save_pretrained(trained, tmp_path / "double")
    recipe = digits(model={"name": str(tmp_path / "double"), "pretrained": True}, precision=precision)
    model = build_model(recipe, load_data(recipe))
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert torch.equal(model.head.bias.double(), trained.head.bias) == (dtype == torch.float64)


def test_pretrained_network_learns_faster(odd_and_even, tmp_path):
    """One epoch at a low learning rate suffices with features of digits, and not with new ones."""
    settings = {"optim": {"lr": 0.001}, "schedule": {"name": "constant", "warmup_epochs": 0}, "batch_size": 32}
    fresh = {"name": "flexnet3", "widths": [8, 12, 16], "parametrization": "paper"}
    trained = train.train(recipe_for(odd_and_even, **settings), tmp_path / "trained", device="cpu", plots=False)
    new = train.train(recipe_for(odd_and_even, model=fresh, **settings), tmp_path / "new", device="cpu", plots=False)
    assert trained["test_accuracy"] > 0.88 > 0.8 > new["test_accuracy"]
    assert from_pretrained(tmp_path / "trained/weights").inputs.classes == ("even", "odd")


def test_resumed_run_has_same_loss(odd_and_even, tmp_path):
    recipe = recipe_for(odd_and_even, batch_size=400, epochs=2, checkpoint_seconds=0.0)
    whole = train.train(recipe, tmp_path / "whole", device="cpu", plots=False)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (tmp_path / "cut/results.json").unlink()
    _before, newest = sorted((tmp_path / "cut/checkpoints").glob("*.ckpt"))
    newest.unlink()
    resumed = train.resume(tmp_path / "cut", device="cpu")
    assert resumed["test_loss"] == whole["test_loss"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": NAME}, "flexnet3-digits is a trained model.*set model.pretrained to true"),
        ({"name": "flexnet3", "pretrained": True}, "flexnet3 is an architecture.*set model.pretrained to false"),
        ({"name": "flexnet3-digit", "pretrained": True}, "flexnet3-digit'.*did you mean 'flexnet3-digits'"),
        (
            {"name": "flexnet7-cifar10", "pretrained": True},
            "flexnet7-cifar10 expects images with in_channels 3; digits has images with 1",
        ),
        (
            {"name": "flextcn6-smnist", "pretrained": True},
            "flextcn6-smnist expects series with in_channels 1; digits has images with 1",
        ),
    ],
)
def test_rejects_networks_that_do_not_fit_the_data(model, message):
    recipe = digits(model=model)
    with pytest.raises(ValueError, match=message):
        build_model(recipe, load_data(recipe))


def test_rejects_wrong_folders(tmp_path):
    save_pretrained(from_pretrained(NAME), tmp_path / "run/weights")
    recipe = digits(model={"name": str(tmp_path / "run/weights")})
    with pytest.raises(ValueError, match=r"run/weights is a trained model: .* set model\.pretrained to true"):
        build_model(recipe, load_data(recipe))
    recipe = digits(model={"name": str(tmp_path / "run"), "pretrained": True})
    with pytest.raises(FileNotFoundError, match=r"config\.json.*run/weights"):
        build_model(recipe, load_data(recipe))


def test_architecture_name_takes_precedence_over_folder(tmp_path, monkeypatch):
    (tmp_path / "flexnet3").mkdir()
    monkeypatch.chdir(tmp_path)
    recipe = digits(model={"name": "flexnet3", "widths": [4]})
    assert build_model(recipe, load_data(recipe)).config["widths"] == [4]


def test_warns_about_images_of_another_size():
    recipe = recipe_for({"name": "digits", "resolution": 12})
    with pytest.warns(UserWarning, match=r"16×16 images.*12×12.*kernels keep their size"):
        build_model(recipe, load_data(recipe))


def test_rejects_options_of_a_pretrained_model():
    with pytest.raises(ValueError, match=r"trained model.*leave out model.widths, model.dropout"):
        digits(model={"name": NAME, "pretrained": True, "widths": [3], "dropout": 0.0})
    with pytest.raises(ValueError, match=r"model.pretrained must be false.*fit"):
        load_recipe("kodak/quick", ["model.name=siren", "model.pretrained=true"])


def test_overriding_model_name_drops_its_options():
    recipe = load_recipe("digits", ["model.name=flexnet3-digits", "model.pretrained=true"])
    assert recipe.model == train.ModelRecipe(name=NAME, pretrained=True)
    assert build_recipe(reading.plain(recipe)) == recipe
    assert load_recipe("digits", ["model.pretrained=true", "model.name=flexnet3-digits"]) == recipe
