"""`create_model`: the networks of the paper and their parameter counts, configs, arguments and errors."""

from __future__ import annotations

import copy
import inspect
import json
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexconv import GaussianMask, at_resolution, materialize
from flexconv.models import CIFARResNet, FlexNet, FlexTCN, SepFlexNet, create_model, list_models
from flexconv.nn import GENERATORS, FlexConv1d, FlexConv2d, FlexConvNd, NJet
from tests.conftest import GOLDEN, mentions

COUNTS = json.loads((GOLDEN / "param_counts.json").read_text())
IMAGES = {"in_channels": 3, "num_classes": 10, "image_size": 8}
SEQUENCES = {"in_channels": 2, "num_classes": 4, "length": 16}


def arguments(name, **overrides):
    """Return arguments for a network with small inputs."""
    return (SEQUENCES if "tcn" in name else IMAGES) | overrides


def small(name, **overrides):
    """Return the network with few channels."""
    narrow = {"depth": 8, "width": 4} if "resnet" in name else {"widths": [4, 4, 6][: 2 if "tcn" in name else 3]}
    narrow = {"depth": 2, "width": 6} if name.startswith("sepflexnet") else narrow
    return create_model(name, **arguments(name, **narrow) | overrides)


def inputs(name, batch=2):
    return torch.randn(batch, 2, 16) if "tcn" in name else torch.randn(batch, 3, 8, 8)


def count_parameters(model):
    return sum(p.numel() for p in model.parameters())


# --- the networks of the paper ----------------------------------------------------------------------------------------


def published(row):
    """Return the network of a row of param_counts.json, on the meta device."""
    classes = 1000 if "imagenet" in row else 10
    if found := re.fullmatch(r"(flextcn\d|cktcn\d)_([a-z]+)_\w+_(\d+)ch", row):
        options = {"length": 64, "in_channels": int(found[3]), "generator": found[2]}
    elif found := re.fullmatch(r"(flexnet7_conv\d+|(?:flexnet|ckcnn)\d)(?:_c\d+\w+)?", row):
        options = {"in_channels": 1 if "mnist" in row else 3, "image_size": 32}
    elif found := re.fullmatch(r"(flexnet\d_njet)_order4_\w+", row):
        options = {"in_channels": 3, "image_size": 32}
    elif found := re.fullmatch(r"((?:flexnet|ckcnn)\d)_(\w+)", row):
        options = {"in_channels": 3, "image_size": 32, "generator": found[2]}
    else:
        depth = re.fullmatch(r"cifarresnet(\d+)(?:_imagenet)?", row)[1]
        return create_model(f"cifar_resnet{depth}", in_channels=3, num_classes=classes, device="meta")
    return create_model(found[1], num_classes=classes, device="meta", **options)


@pytest.mark.parametrize("row", COUNTS)
def test_parameter_count_equals_authors_code(row):
    assert count_parameters(published(row)) == COUNTS[row]


@pytest.mark.parametrize("name", ["cifar_resnet44_ckconv3", "cifar_resnet44_flexconv"])
def test_parameter_count_of_resnets_with_continuous_kernels_equals_paper(name):
    count = count_parameters(create_model(name, in_channels=3, num_classes=10, image_size=32, device="meta"))
    assert f"{count / 1e6:.2f}" == "2.58"


def test_create_model_returns_documented_networks():
    model = create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, generator="magnet")
    assert isinstance(model, FlexNet)
    assert model.stem.kernel_size == (33, 33)
    assert model.stem.extent == (7, 7)
    model = create_model("flextcn6", in_channels=1, num_classes=10, length=784)
    assert isinstance(model, FlexTCN)
    assert model.blocks[0].conv1.kernel_size == (784,)
    assert len(model.blocks) == 6


def test_list_models_is_sorted_and_filters_by_pattern():
    names = list_models()
    assert names == sorted(names)
    assert {"flexnet3", "flexnet5", "flexnet7", "ckcnn3", "ckcnn7", "flextcn2", "flextcn4", "flextcn6"} < set(names)
    assert {"cktcn2", "cifar_resnet20", "cifar_resnet32", "cifar_resnet44", "flexnet7_conv3", "flexnet7_njet"} < set(
        names
    )
    assert list_models("flextcn*") == ["flextcn2", "flextcn4", "flextcn6"]
    assert list_models("nothing") == []


# --- training ---------------------------------------------------------------------------------------------------------


def assert_trains(model, x):
    """Check output shapes in training and eval mode, and that all learned parameters receive finite gradients."""
    y = model.train()(x)
    assert y.shape == (len(x), model.num_classes)
    y.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
    assert model.eval()(x[:1]).shape == (1, model.num_classes)


@pytest.mark.parametrize("name", list_models())
def test_all_networks_train(name):
    assert_trains(small(name), inputs(name))


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("name", ["flexnet3", "flextcn2", "ckcnn3", "cktcn2", "cifar_resnet44_flexconv"])
def test_networks_train_with_each_generator(name, generator):
    model = small(name, generator=generator)
    layers = [module for module in model.modules() if isinstance(module, FlexConv1d | FlexConv2d)]
    assert {type(layer.generator) for layer in layers} == {GENERATORS[generator]}
    masked = "ck" not in name and generator != "njet"
    assert all((layer.mask is not None) == masked for layer in layers)
    assert_trains(model, inputs(name))


def test_conv_selects_kind_of_convolution():
    convs = {
        kind: [m for m in small("flexnet3", conv=kind).modules() if isinstance(m, FlexConv2d)]
        for kind in ("flex", "ck")
    }
    assert len(convs["flex"]) == len(convs["ck"]) == 7
    assert all(isinstance(layer.mask, GaussianMask) for layer in convs["flex"])
    assert all(layer.mask is None and layer.extent == (9, 9) for layer in convs["ck"])
    plain = small("flexnet7_conv3")
    assert not any(isinstance(m, FlexConv2d) for m in plain.modules())
    assert type(plain.stem) is nn.Conv2d
    jets = small("flexnet7_njet")
    assert isinstance(jets.stem.generator, NJet)
    assert jets.stem.bias is None


def test_options_are_passed_to_generator_and_mask():
    model = small(
        "flexnet3",
        kernel_size=(17, 9),
        generator="siren",
        generator_options={"omega_0": 7.0, "hidden": 5},
        mask_options={"sigma": [0.2, 0.4], "threshold": None, "form": "authors"},
        algorithm="fft",
    )
    for layer in (model.stem, model.blocks[-1].conv2):
        assert layer.kernel_size == (17, 9)
        assert layer.generator.omega_0.tolist() == [7.0, 7.0]
        assert layer.generator.maps[0].out_features == 5
        assert layer.mask.sigma.tolist() == pytest.approx([0.2, 0.4])
        assert (layer.mask.threshold, layer.mask.form, layer.algorithm) == (None, "authors", "fft")


# --- config -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_models())
def test_config_recreates_network(name):
    torch.manual_seed(1)
    model = small(name)
    config = json.loads(json.dumps(model.config))
    assert config == model.config
    torch.manual_seed(1)
    twin = type(model)(**config)
    assert twin.config == config
    assert twin.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), model.state_dict().values(), strict=True))


def test_config_does_not_share_mutable_values():
    options = {"hidden": 5}
    model = small("flexnet3", generator_options=options)
    options["hidden"] = 6
    model.config["generator_options"]["hidden"] = 7
    model.config["widths"].append(9)
    assert model.config["generator_options"] == {"hidden": 5}
    assert model.config["widths"] == [4, 4, 6]


@pytest.mark.parametrize("kind", [FlexNet, FlexTCN, CIFARResNet])
def test_config_contains_all_arguments(kind):
    accepted = set(inspect.signature(kind).parameters) - {"device", "dtype"}
    sizes = {"length": 9} if kind is FlexTCN else {"image_size": 9}
    assert set(kind(in_channels=1, num_classes=2, **sizes).config) == accepted


# --- copies, dtypes, compilation --------------------------------------------------------------------------------------

ONE_OF_EACH = ["flexnet3", "flextcn2", "cktcn2", "cifar_resnet20", "cifar_resnet44_flexconv", "flexnet7_njet"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_copies_are_equal_and_independent(name):
    model, x = small(name).eval(), inputs(name)
    model(x).sum().backward()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), model(x))
    assert twin.config == model.config
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert model(x).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_output_and_parameters_in_other_dtypes(name, dtype):
    model, x = small(name).eval(), inputs(name)
    truth = model(x)
    result = model.to(dtype)(x.to(dtype))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), truth, rtol=0.1, atol=0.1 * truth.abs().max().item())
    made = small(name, dtype=dtype)
    for each in (model, made):
        generated = {
            p for module in each.modules() if isinstance(module, FlexConvNd) for p in kernel_parameters(module)
        }
        assert {p.dtype for p in each.parameters() if p not in generated} == {dtype}
        assert {p.dtype for p in generated} <= {torch.float64 if dtype == torch.float64 else torch.float32}


def kernel_parameters(layer):
    return [p for name, p in layer.named_parameters() if name != "bias"]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_autocast_gives_bfloat16_output_and_float32_gradients(name):
    model, x = small(name).eval(), inputs(name)
    truth = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(x)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), truth, rtol=0.1, atol=0.1 * truth.abs().max().item())
    result.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", [n for n in ONE_OF_EACH if "tcn" not in n])
@pytest.mark.parametrize("size", [(7, 7), (9, 5), (1, 1), (13, 8)])
def test_networks_accept_images_of_other_sizes(name, size):
    model = small(name).eval()
    assert model(torch.randn(2, 3, *size)).shape == (2, 10)


@pytest.mark.parametrize("name", ["flexnet3", "flextcn2"])
def test_network_compiles_without_graph_breaks(name):
    model, x = small(name, widths=[4]).eval(), inputs(name)
    truth = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), truth, rtol=1e-4, atol=1e-5)


def test_single_block_can_be_compiled():
    model, x = small("flexnet3", dropout=0.0), inputs("flexnet3")
    twin = copy.deepcopy(model)
    model.blocks[-1].compile(fullgraph=True, backend="aot_eager")
    assert model.state_dict().keys() == twin.state_dict().keys()
    for each in (model, twin):
        each(x).square().sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["flexnet3", "flextcn2", "flexnet7_njet"])
def test_networks_can_be_resampled_and_materialized(name):
    model, x = small(name).eval(), inputs(name)
    dims = x.ndim - 2
    twice = at_resolution(model, 2)
    assert twice(x.repeat_interleave(2, -1) if dims == 1 else F.interpolate(x, scale_factor=2)).shape == model(x).shape
    torch.testing.assert_close(materialize(model)(x), model(x), rtol=1e-4, atol=1e-5)


PARTS = {
    FlexNet: ["stem", "stem_norm", "blocks.0", "blocks.1", "head"],
    FlexTCN: ["blocks.0", "blocks.0.conv1", "blocks.1", "head"],
    SepFlexNet: ["stem", "stem_norm", "blocks.0", "blocks.0.conv", "blocks.0.mix", "norm", "head"],
}


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in PARTS for part in PARTS[kind]])
def test_any_part_can_be_replaced_by_another_module(kind, part):
    torch.manual_seed(0)
    options = {"in_channels": 4, "num_classes": 3, "length" if kind is FlexTCN else "image_size": 8}
    widths = {"width": 4, "depth": 2} if kind is SepFlexNet else {"widths": [4, 4]}
    model, x = kind(**options, **widths).eval(), torch.randn(2, 4, *([8] if kind is FlexTCN else [8, 8]))
    before = model(x)
    model.set_submodule(part, nn.Identity())
    y = model(x)
    if part != "head":
        assert y.shape == before.shape
    assert not torch.equal(y, before)
    torch.testing.assert_close(materialize(model)(x), y, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(copy.deepcopy(model).half()(x.half()).float(), y, atol=0.05, rtol=0.05)
    model.train()(x).sum().backward()


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("flexnet8", "flexnet7"), ("flextcn-6", "flextcn6"), ("cifar-resnet32", "cifar_resnet32"), ("ckccn3", "ckcnn3")],
)
def test_unknown_model_suggests_similar_name(name, nearest):
    with pytest.raises(ValueError, match=mentions("model", f"'{name}'", f"'{nearest}'?")):
        create_model(name, in_channels=3, num_classes=10)


@pytest.mark.parametrize(
    ("name", "override", "nearest"),
    [
        ("flexnet3", "generatr", "generator"),
        ("flexnet3", "drop_out", "dropout"),
        ("flextcn2", "lenght", "length"),
        ("cifar_resnet20", "deph", "depth"),
    ],
)
def test_unknown_argument_suggests_similar_name(name, override, nearest):
    with pytest.raises(ValueError, match=mentions(f"'{name}'", f"'{override}'", f"'{nearest}'?")):
        create_model(name, in_channels=3, num_classes=10, **{override: 1})


@pytest.mark.parametrize(
    ("name", "overrides", "parts"),
    [
        ("flexnet3", {"conv": "flexconv"}, ["2D", "'flexconv'", "'flex'?"]),
        ("flextcn2", {"conv": "plain"}, ["1D", "'plain'", "'ck'", "'flex'"]),
        ("flexnet3", {"generator": "sirn"}, ["generator", "'sirn'", "'siren'?"]),
        ("flexnet3", {"generator_options": {"hiden": 3}}, ["'magnet'", "'hiden'", "'hidden'?"]),
        ("flexnet3", {"generator_options": {"omega_0": 3}}, ["'magnet'", "'omega_0'"]),
        ("flexnet3", {"mask_options": {"sigme": 3}}, ["mask", "'sigme'", "'sigma'?"]),
        ("flexnet3", {"mask_options": {"sigma": 0}}, ["sigma", "0"]),
        ("ckcnn3", {"mask_options": {"sigma": 1}}, ["conv='ck'", "generator='siren'", "mask"]),
        ("flexnet7_njet", {"mask_options": {"sigma": 1}}, ["generator='njet'", "mask"]),
        ("flexnet7_conv3", {"generator_options": {"hidden": 1}}, ["conv='plain'", "generator"]),
        ("flexnet3", {"norm": "bach"}, ["norm", "'bach'", "'batch'?"]),
        ("flexnet3", {"dropout": 1.0}, ["dropout", "1.0"]),
        ("flexnet3", {"dropout": -0.1}, ["dropout", "-0.1"]),
        ("flexnet3", {"dropout_in": 1.0}, ["dropout_in", "1.0"]),
        ("flextcn2", {"dropout_in": "0.1"}, ["dropout_in", "'0.1'"]),
        ("flexnet3", {"widths": []}, ["widths", "[]"]),
        ("flexnet3", {"widths": [4, 0]}, ["widths[1]", "0"]),
        ("flexnet3", {"kernel_size": 8}, ["kernel_size", "odd", "8"]),
        ("flexnet3", {"kernel_size": (3, 3, 3)}, ["kernel_size", "2", "(3, 3, 3)"]),
        ("flexnet3", {"image_size": None}, ["image_size", "kernel_size"]),
        ("flextcn2", {"length": None}, ["length", "kernel_size"]),
        ("flextcn2", {"length": 0}, ["length", "0"]),
        ("flextcn2", {"readout": "first"}, ["readout", "'first'", "'every'", "'last'", "'mean'"]),
        ("flexnet3", {"num_classes": 0}, ["num_classes", "0"]),
        ("flexnet3", {"in_channels": 0}, ["in_channels", "0"]),
        ("flexnet3", {"algorithm": "ftt"}, ["algorithm", "'ftt'", "'fft'?"]),
        ("cifar_resnet20", {"depth": 21}, ["depth", "6n + 2", "21"]),
        ("cifar_resnet20", {"depth": 2}, ["depth", "6n + 2", "2"]),
        ("cifar_resnet20", {"width": 5}, ["width", "even", "5"]),
        ("cifar_resnet20", {"shortcut": "pads"}, ["shortcut", "'pads'", "'pad'?"]),
    ],
)
def test_invalid_argument_raises(name, overrides, parts):
    with pytest.raises(ValueError, match=mentions(*parts)):
        create_model(name, **arguments(name, **overrides))


@pytest.mark.parametrize(
    ("name", "overrides", "parts"),
    [
        ("flexnet3", {"mask_options": {"sigma": torch.ones(2)}}, ["mask_options", "tensor"]),
        ("flexnet3", {"generator_options": {"omega": float("nan")}}, ["generator_options", "nan"]),
        ("flexnet3", {"generator_options": [("hidden", 3)]}, ["generator_options", "[('hidden', 3)]"]),
        ("flexnet3", {"num_classes": 2.5}, ["num_classes", "2.5"]),
        ("flexnet3", {"image_size": 2.5}, ["image_size", "2.5"]),
    ],
)
def test_argument_of_wrong_type_raises(name, overrides, parts):
    with pytest.raises(TypeError, match=mentions(*parts)):
        create_model(name, **arguments(name, **overrides))


def test_missing_argument_raises():
    with pytest.raises(TypeError, match=mentions("'flextcn6'", "num_classes")):
        create_model("flextcn6", in_channels=1, length=5)


@pytest.mark.parametrize("name", ["flexnet3", "flextcn2", "flexnet7_conv3", "cifar_resnet20"])
def test_input_of_wrong_shape_raises(name):
    model, x = small(name), inputs(name)
    kind = type(model).__name__
    for wrong in (x[0], x[:, :1], x.unsqueeze(0)):
        with pytest.raises(ValueError, match=mentions(kind, f"[batch, {model.in_channels}, ", str(tuple(wrong.shape)))):
            model(wrong)
