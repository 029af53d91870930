"""Saving and loading networks. Errors name the file and the key that is wrong."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import math
import os
import re
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

import flexconv
from flexconv import at_resolution
from flexconv.errors import ArgumentError
from flexconv.models import (
    Inputs,
    ModelCard,
    _locate,
    create_model,
    from_pretrained,
    list_models,
    list_pretrained,
    pretrained_folder,
    save_pretrained,
)

from .test_registry import inputs, small


@pytest.fixture
def folder(tmp_path):
    """A saved network."""
    save_pretrained(small("flexnet3"), tmp_path / "net")
    return tmp_path / "net"


def entries(folder):
    return json.loads((folder / "config.json").read_text())


def change(folder, **changes):
    (folder / "config.json").write_text(json.dumps(entries(folder) | changes))


def change_weights(folder, edit):
    """Edit the tensors and update the checksum in the config."""
    file = folder / entries(folder)["weights"]
    state = safetensors.torch.load_file(file)
    edit(state)
    content = safetensors.torch.save(state)
    file.write_bytes(content)
    change(folder, sha256=hashlib.sha256(content).hexdigest())


# --- save and load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_models())
def test_save_and_load_every_network(name, tmp_path):
    model, x = small(name), inputs(name)
    with torch.no_grad():
        model.train()(x)  # running statistics
        for parameter in model.parameters():
            parameter.add_(0.01)
    save_pretrained(model, tmp_path / "some" / "where")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    loaded = from_pretrained(tmp_path / "some" / "where")
    assert torch.equal(torch.get_rng_state(), before)  # no weights are initialized just to be overwritten
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert not loaded.training
    assert torch.equal(loaded(x), model.eval()(x))
    assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in model.parameters()]


@pytest.mark.parametrize("generator", flexconv.nn.GENERATORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_save_and_load_every_generator_and_precision(generator, dtype, tmp_path):
    model = small("flextcn2", generator=generator, dtype=dtype, readout="mean").eval()
    save_pretrained(model, tmp_path)
    loaded, x = from_pretrained(tmp_path), inputs("flextcn2").to(dtype)
    assert {name: p.dtype for name, p in loaded.named_parameters()} == {n: p.dtype for n, p in model.named_parameters()}
    assert {m.dtype for m in loaded.modules() if isinstance(m, flexconv.nn.FlexConvNd)} == {dtype}
    assert torch.equal(loaded(x), model(x))


def test_loaded_network_can_be_trained_copied_and_saved(folder, tmp_path):
    model, x = from_pretrained(str(folder)), inputs("flexnet3")
    optimizer = torch.optim.Adam(model.parameters())
    before = copy.deepcopy(model)(x)
    model.train()(x).square().sum().backward()
    optimizer.step()
    assert not torch.equal(model.eval()(x), before)
    save_pretrained(model, folder)
    assert torch.equal(from_pretrained(folder)(x), model(x))
    assert flexconv.refresh_extents(model).keys() == flexconv.refresh_extents(from_pretrained(folder)).keys()


def test_folder_holds_config_and_safetensors_only(folder):
    model = from_pretrained(folder)
    save_pretrained(model, folder)
    with torch.no_grad():
        model.head.bias.add_(1)
    save_pretrained(model, folder)
    files = {path.name for path in folder.iterdir()}
    assert files == {"config.json", entries(folder)["weights"]}
    assert entries(folder)["flexconv"] == flexconv.__version__
    assert safetensors.torch.load_file(folder / entries(folder)["weights"]).keys() == model.state_dict().keys()


def test_saves_networks_converted_from_the_authors(golden, tmp_path):
    file = golden("net_flexnet3")
    model = flexconv.compat.from_authors(file.state, kernel_size=9)
    save_pretrained(model, tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(file["in/x"]), model(file["in/x"]))


def test_missing_options_take_their_defaults(folder):
    config = entries(folder)["config"]
    del config["dropout"], config["dropout_in"], config["algorithm"]
    change(folder, config=config)
    loaded = from_pretrained(folder)
    assert (loaded.config["dropout"], loaded.config["dropout_in"]) == (0.2, 0.0)


# --- interrupted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "call"), [("fsync", 1), ("fsync", 3), ("replace", 1), ("replace", 2)], ids=lambda value: str(value)
)
def test_failed_save_keeps_the_previous_network(folder, monkeypatch, function, call):
    """The disk is full when weights or config are written (the second fsync is that of the folder) or renamed."""
    x = inputs("flexnet3")
    before, files = from_pretrained(folder)(x), sorted(folder.iterdir())
    owner = os if function == "fsync" else type(folder)
    original = getattr(owner, function)
    calls = []

    def full(*arguments):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments)

    monkeypatch.setattr(owner, function, full)
    with pytest.raises(OSError, match="No space left"):
        save_pretrained(small("flexnet3"), folder)
    monkeypatch.undo()
    assert torch.equal(from_pretrained(folder)(x), before)
    assert sorted(folder.iterdir()) == files


def test_kill_between_both_files_keeps_the_previous_network(folder):
    x = inputs("flexnet3")
    before = from_pretrained(folder)(x)
    (folder / "weights-000000000000.safetensors").write_bytes(b"written, but named by no config yet")
    assert torch.equal(from_pretrained(folder)(x), before)


def test_failed_first_save_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(type(tmp_path), "replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError, match="no"):
        save_pretrained(small("flexnet3"), tmp_path)
    assert not list(tmp_path.iterdir())


# --- names ------------------------------------------------------------------------------------------------------------


def write_index(root, **changes):
    """Write the index of a folder of networks; `changes` replace digests by name, None leaves a network out."""
    digests = {path.parent.name: entries(path.parent)["sha256"] for path in root.glob("*/config.json")} | changes
    networks = {name: {"weights": "-", "sha256": digest} for name, digest in digests.items() if digest is not None}
    content = {"format": 1, "networks": networks, "flexconv-weights": ["flextcn6-smnist"]}
    (root / "index.json").write_text(json.dumps(content))


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """The networks of an installed flexconv, without flexconv-weights and without a checkout."""
    root = tmp_path / "package"
    for name in ("flexnet7-cifar10", "flextcn2-characters"):
        save_pretrained(small(name.split("-")[0]), root / name)
    write_index(root)
    monkeypatch.setattr(_locate, "PACKAGE", root)
    monkeypatch.setattr(_locate, "CHECKOUT", tmp_path / "no-checkout")
    monkeypatch.chdir(tmp_path)
    return root


def test_loads_networks_of_the_package_by_name(trained):
    assert list_pretrained() == ["flexnet7-cifar10", "flextcn2-characters"]
    assert pretrained_folder("flexnet7-cifar10") == trained / "flexnet7-cifar10"
    assert from_pretrained("flextcn2-characters").config["length"] == 16
    assert from_pretrained("flexnet7-cifar10").config["image_size"] == 8


def test_loads_networks_of_flexconv_weights_and_of_a_checkout(trained, tmp_path, monkeypatch):
    site, checkout = tmp_path / "site", tmp_path / "checkout"
    for root, name in (
        (site / "flexconv_weights", "flextcn6-smnist"),
        (checkout, "mine"),
        (checkout, "flextcn6-smnist"),
    ):
        save_pretrained(small("flexnet3"), root / name)
        write_index(root)
    monkeypatch.setattr(_locate, "CHECKOUT", checkout)
    assert pretrained_folder("flextcn6-smnist") == checkout / "flextcn6-smnist"
    (site / "flexconv_weights/__init__.py").touch()
    monkeypatch.syspath_prepend(site)
    assert list_pretrained() == ["flexnet7-cifar10", "flextcn2-characters", "flextcn6-smnist", "mine"]
    assert pretrained_folder("flextcn6-smnist") == site / "flexconv_weights/flextcn6-smnist"
    for name in ("flextcn6-smnist", "mine"):
        from_pretrained(name)


def test_name_takes_precedence_over_a_folder(trained, tmp_path):
    save_pretrained(small("cktcn2"), tmp_path / "flexnet7-cifar10")
    assert from_pretrained("flexnet7-cifar10").config["generator"] == "magnet"
    assert from_pretrained("./flexnet7-cifar10").config["generator"] == "siren"
    save_pretrained(small("cktcn2"), "mine")
    assert from_pretrained("mine").config["generator"] == "siren"


def test_network_that_is_not_installed_names_the_distribution(trained):
    for load in (from_pretrained, pretrained_folder):
        with pytest.raises(FileNotFoundError, match=r"'flextcn6-smnist'.*pip install \./weights") as caught:
            load("flextcn6-smnist")
        assert "\n" not in str(caught.value)


def test_unknown_name_suggests_the_nearest(trained):
    with pytest.raises(ValueError, match=r"'flexnet7-cifar'.*'flextcn2-characters'.*did you mean 'flexnet7-cifar10'\?"):
        from_pretrained("flexnet7-cifar")
    with pytest.raises(ValueError, match=r"did you mean 'flextcn6-smnist'\?"):  # also if it is not installed
        from_pretrained("flextcn6-smnits")


@pytest.mark.parametrize("path", ["no/such/folder", "./flexnet7", "/nowhere"])
def test_missing_folder(trained, path):
    with pytest.raises(FileNotFoundError, match=re.escape(os.path.normpath(path))):
        from_pretrained(path)


def test_without_any_index_no_name_is_known(trained):
    (trained / "index.json").unlink()
    assert list_pretrained() == []
    with pytest.raises(FileNotFoundError, match="no folder flexnet7-cifar10, and no trained network"):
        from_pretrained("flexnet7-cifar10")


def test_rejects_a_network_that_differs_from_the_index(trained):
    save_pretrained(small("flexnet3"), trained / "flexnet7-cifar10")  # config and weights agree with each other
    with pytest.raises(ValueError, match=r"flexnet7-cifar10.*index\.json.*SHA-256"):
        from_pretrained("flexnet7-cifar10")
    write_index(trained)
    from_pretrained("flexnet7-cifar10")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}'])
def test_rejects_a_wrong_index(trained, content):
    (trained / "index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index\.json"):
        list_pretrained()


def test_folder_without_a_network(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"{re.escape(str(tmp_path))} holds no config.json"):
        from_pretrained(tmp_path)


# --- damaged ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_rejects_truncated_weights(folder, share):
    file = folder / entries(folder)["weights"]
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ValueError, match=rf"{re.escape(file.name)} is damaged.*SHA-256"):
        from_pretrained(folder)


def test_detects_a_flipped_bit(folder):
    file = folder / entries(folder)["weights"]
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{re.escape(file.name)} is damaged"):
        from_pretrained(folder)


def test_rejects_files_that_are_not_safetensors(folder):
    content = b"a pickle, perhaps"
    file = folder / entries(folder)["weights"]
    file.write_bytes(content)
    change(folder, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(ValueError, match=rf"{re.escape(file.name)} is not a safetensors file"):
        from_pretrained(folder)


def test_missing_weights_file(folder):
    (folder / entries(folder)["weights"]).unlink()
    with pytest.raises(FileNotFoundError, match=r"weights-\w+\.safetensors is missing: .*config\.json"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda s: s.pop("head.bias"), r"safetensors does not match its config: it lacks head\.bias"),
        (lambda s: s.update(more=torch.ones(1)), "it has the unknown entries more"),
        (
            lambda s: s.update({"head.bias": torch.ones(9)}),
            r"head\.bias has shape \(9,\), expected \(10,\)",
        ),
        (lambda s: s.update({"head.bias": torch.ones(10, dtype=torch.int64)}), r"head\.bias is torch\.int64"),
    ],
)
def test_rejects_weights_of_another_network(folder, edit, message):
    change_weights(folder, edit)
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2, "flexconv": "9.0"}, "format is 2, written by flexconv 9.0; this version reads format 1"),
        ({"format": None}, "format is None"),
        ({"architecture": "FlexNed"}, "unknown architecture 'FlexNed'.*did you mean 'FlexNet'"),
        ({"architecture": 3}, "architecture must be of type str; got 3"),
        ({"config": [1]}, r"config must be of type dict; got \[1\]"),
        ({"sha256": None}, "sha256 must be of type str; got None"),
        ({"weights": "../other/weights.safetensors"}, "weights must name a safetensors file in the same folder"),
        ({"weights": ""}, "weights must name a safetensors file in the same folder"),
        ({"weights": "model.pt"}, "weights must name a safetensors file in the same folder; got 'model.pt'"),
    ],
)
def test_rejects_wrong_config_entries(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=rf"config\.json.*{message}"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widhts": [1]}, "unknown argument 'widhts' of FlexNet.*did you mean 'widths'"),
        ({"device": "cuda"}, "unknown argument 'device' of FlexNet"),
        ({"generator": "sirn"}, "unknown generator 'sirn'"),
        ({"widths": "many"}, "widths must list"),
        ({"in_channels": None}, "in_channels must be an int"),
    ],
)
def test_rejects_wrong_arguments_in_config(folder, changes, message):
    change(folder, config=entries(folder)["config"] | changes)
    with pytest.raises(ValueError, match=rf"config\.json \(written by flexconv [\d.]+\): .*{message}"):
        from_pretrained(folder)


def test_missing_argument_in_config(folder):
    config = entries(folder)["config"]
    del config["num_classes"]
    change(folder, config=config)
    with pytest.raises(ValueError, match=r"config\.json.*'num_classes'"):
        from_pretrained(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_rejects_config_that_is_not_a_json_object(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json (is not valid JSON|must hold a JSON object)"):
        from_pretrained(folder)
    save_pretrained(small("flexnet3"), folder)  # a damaged config can be replaced
    from_pretrained(folder)


# --- networks that cannot be saved ------------------------------------------------------------------------------------


def test_save_rejects_other_modules(tmp_path):
    with pytest.raises(
        TypeError, match=r"flexconv\.models \(FlexNet, FlexTCN, CIFARResNet, SepFlexNet\); got a Linear"
    ):
        save_pretrained(nn.Linear(2, 2), tmp_path)


def test_save_rejects_modified_networks(tmp_path):
    """Loading would restore another network."""
    model = small("flexnet3")
    layer = model.blocks[1].conv2
    layer.grid = layer.grid._replace(scale=0.25)
    with pytest.raises(ValueError, match=r"the scale of blocks\.1\.conv2 is 0\.25, but 1\.0 in a model of this"):
        save_pretrained(model, tmp_path)
    model = small("flexnet3")
    model.stem = flexconv.FlexConv2d(3, 4, 17)
    with pytest.raises(ValueError, match=r"the grid of stem is .*size=17.*, but .*size=9"):
        save_pretrained(model, tmp_path)
    model = small("flexnet3")
    model.head = nn.Linear(6, 3)
    with pytest.raises(ValueError, match=r"the model does not match its config: head\.weight has shape \(3, 6\)"):
        save_pretrained(model, tmp_path)
    model = small("flexnet3")
    model.stem = nn.Conv2d(3, 4, 3)
    with pytest.raises(ValueError, match=r"does not match its config: it lacks stem\.generator.* more and has"):
        save_pretrained(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_save_and_load_resampled_networks(folder, tmp_path):
    model = flexconv.at_resolution(flexconv.at_resolution(from_pretrained(folder), 2), (1.5, 1), crop="hard")
    save_pretrained(model, tmp_path / "other")
    again = from_pretrained(tmp_path / "other")
    assert again.resampling == model.resampling
    assert again.resolution == model.resolution
    x = torch.randn(2, model.in_channels, 24, 16)
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_save_rejects_materialized_networks(folder, tmp_path):
    with pytest.raises(ValueError, match="does not match its config"):
        save_pretrained(flexconv.materialize(from_pretrained(folder)), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_save_rejects_networks_on_the_meta_device(tmp_path):
    with pytest.raises(ValueError, match="meta device"):
        save_pretrained(create_model("flexnet3", in_channels=1, num_classes=2, image_size=9, device="meta"), tmp_path)


# --- inputs -----------------------------------------------------------------------------------------------------------


def test_inputs_are_saved_and_standardise(folder, tmp_path):
    model = from_pretrained(folder)
    assert model.inputs is None
    channels = model.in_channels
    classes = ("a", "ß", *map(str, range(2, model.num_classes)))
    model.inputs = Inputs(size=(8, 8), scale=1 / 255, mean=(0.25,) * channels, std=(0.5,) * channels, classes=classes)
    save_pretrained(model, tmp_path / "fed")
    again = from_pretrained(tmp_path / "fed")
    assert again.inputs == model.inputs == at_resolution(model, 2).inputs
    raw = torch.randint(256, (2, channels, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(again.inputs(raw), (raw / 255 - 0.25) / 0.5)
    with pytest.raises(ValueError, match=rf"\[batch, {channels}, height, width\]; got \(2, 9, 8, 8\)"):
        again.inputs(torch.zeros(2, 9, 8, 8))
    card = ModelCard(data="none", recipe="none", accuracy="none").text(again, "fed")
    assert "| classes | a, ß, 2" in card
    assert "model(model.inputs(raw))" in card
    with pytest.warns(UserWarning, match="multiplied by 0.00392, but none of these exceeds 1.*up to 255"):
        again.inputs(torch.rand(2, channels, 8, 8))
    again.inputs = replace(again.inputs, classes=("a",))
    with pytest.raises(ValueError, match=f"inputs.classes has 1 names.*{model.num_classes} classes"):
        save_pretrained(again, tmp_path / "fed")


@pytest.mark.parametrize("scale", [1, 2])
def test_num_classes_replaces_only_the_last_layer(tmp_path, scale):
    trained = at_resolution(from_pretrained("flexnet3-digits"), scale).double()
    save_pretrained(trained, tmp_path / "trained")
    other = from_pretrained(tmp_path / "trained", num_classes=4)
    assert (other.num_classes, other.config["num_classes"], other.training) == (4, 4, False)
    assert other.inputs == replace(trained.inputs, classes=("0", "1", "2", "3"))
    assert other.head.weight.shape == (4, trained.head.in_features)
    state = other.state_dict()
    for name, tensor in trained.state_dict().items():
        assert state[name].dtype == tensor.dtype
        assert name.startswith("head.") or torch.equal(state[name], tensor)
    save_pretrained(other, tmp_path / "other")
    x = torch.randn(2, 1, 16 * scale, 16 * scale).double()
    torch.testing.assert_close(from_pretrained(tmp_path / "other")(x), other(x))
    with pytest.raises(ValueError, match="num_classes must be at least 1; got 0"):
        from_pretrained("flexnet3-digits", num_classes=0)


def test_rejects_wrong_inputs_entry(folder):
    change(folder, inputs={"scale": "much"})
    with pytest.raises(ValueError, match="inputs must have size, scale"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"classes": ["a", "b", "c"]}, "classes has 3 names.*10 classes"),
        ({"std": [0.0]}, r"std must be positive; got \(0\.0,\)"),
        ({"scale": -1}, "scale must be positive; got -1"),
        ({"mean": [math.nan]}, "mean must be finite; got .nan"),
        ({"mean": [0.1, 0.2]}, "one number per channel; got 2 and 1"),
        ({"mean": [0.1, 0.2], "std": [1, 1]}, "of 2 channels, but the network has 1"),
        ({"size": [8]}, r"size must have 2 numbers.*\(8,\)"),
        ({"size": [8, 0]}, r"size must be .*\(8, 0\)"),
        ({"rate": 0}, "rate must be .*got 0"),
        ({"images": {"size": [8, 8], "steps": "pixels", "noise_steps": 10**12}}, "noise_steps .*got 1000000000000"),
        ({"images": {"size": [8, 8], "steps": "pixels", "order_seed": -1}}, "order_seed .*got -1"),
    ],
)
def test_rejects_impossible_inputs(tmp_path, wrong, message):
    save_pretrained(from_pretrained("flexnet3-digits"), tmp_path)
    change(tmp_path, inputs=entries(tmp_path)["inputs"] | wrong)
    with pytest.raises(ArgumentError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rejects_weights_that_are_not_finite(folder, tmp_path, value):
    model = from_pretrained(folder)
    with torch.no_grad():
        model.head.weight[0, 0] = value
    with pytest.raises(ArgumentError, match=r"NaN or infinity in head\.weight"):
        save_pretrained(model, tmp_path / "other")
    change_weights(folder, lambda state: state["head.weight"].fill_(value))
    with pytest.raises(ArgumentError, match=r"safetensors contains NaN or infinity in head\.weight"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"kernel_size": 10**9 + 1}}, "stem has 1000000001×1000000001 taps"),
        ({"config": {"image_size": 10**9, "kernel_size": None}}, "stem has 1000000001×1000000001 taps"),
        ({"resampled": [[[1e9, 1e9], "taper"]]}, "stem has .* taps"),
        ({"resampled": [[[1, 1], "taper"]] * 101}, "101 entries"),
        ({"config": {"generator_options": {"layers": 10**9}}}, "layers is 1000000000, but .* tensors"),
    ],
)
def test_rejects_networks_that_no_machine_can_build(folder, changes, message):
    config = entries(folder)["config"]
    change(folder, **changes | {"config": config | changes.get("config", {})})
    with pytest.raises(ArgumentError, match=message):
        from_pretrained(folder)


@pytest.mark.parametrize("name", ["in_channels", "num_classes", "width"])
def test_rejects_more_channels_than_numbers(tmp_path, name):
    model = create_model(
        "sepflexnet_tiny", in_channels=1, num_classes=2, image_size=8, width=4, depth=1, mask="per_channel"
    )
    save_pretrained(model, tmp_path)
    change(tmp_path, config=entries(tmp_path)["config"] | {name: 10**9})
    with pytest.raises(ArgumentError, match=f"{name} is 1000000000, but .* numbers"):
        from_pretrained(tmp_path)


def test_rejects_negative_variances(folder):
    change_weights(folder, lambda state: state["stem_norm.running_var"].fill_(-1.0))
    with pytest.raises(ArgumentError, match=r"negative variance in stem_norm\.running_var"):
        from_pretrained(folder)


@pytest.mark.parametrize("name", ["head.weight", "stem_norm.num_batches_tracked"])
def test_rejects_complex_weights(folder, name):
    change_weights(folder, lambda state: state.update({name: state[name].to(torch.complex64)}))
    with pytest.raises(ArgumentError, match=rf"{name} is torch\.complex64"):
        from_pretrained(folder)


def test_weights_that_are_a_pipe_do_not_block(folder):
    weights = folder / entries(folder)["weights"]
    weights.unlink()
    os.mkfifo(weights)
    with pytest.raises(ArgumentError, match="not a regular file"):
        from_pretrained(folder)


def test_rejects_deeply_nested_config(folder):
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(ArgumentError, match="not valid JSON"):
        from_pretrained(folder)


@pytest.mark.parametrize("width", [2**60, 2**63, 10**19])
def test_impossible_widths_are_refused_in_one_line(tmp_path, width):
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=5, widths=[2])
    save_pretrained(model, tmp_path)
    config = tmp_path / "config.json"
    entries = json.loads(config.read_text())
    entries["config"]["widths"] = [width]
    config.write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"config\.json") as caught:
        from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)
