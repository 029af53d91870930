"""`from_authors`: weights of the authors' code reproduce the outputs of the authors' code."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from flexconv import alias_penalty, refresh_extents
from flexconv.compat import from_authors
from flexconv.models import CIFARResNet, FlexNet, FlexTCN, create_model
from flexconv.nn import NSIREN, FlexConv1d, FlexConv2d, FourierNet, GaborNet, GaussianMask, MAGNet, NJet

from ..conftest import GOLDEN, relative_error

KERNELS = sorted(path.stem for path in GOLDEN.glob("kernel_*.npz"))
LAYERS = sorted(path.stem for path in GOLDEN.glob("flexconv_*.npz"))
NETWORKS = {  # horizon and generator
    "net_flexnet3": {"kernel_size": 9},
    "net_flexnet3_penalty": {"kernel_size": 9},
    "net_flextcn2_spatial": {"kernel_size": 48},
    "net_cktcn2_siren": {"kernel_size": 48, "generator": "siren"},
}
TRAINED = [name for name in NETWORKS if name != "net_cktcn2_siren"]


def generator_of(name):
    return "siren" if name == "flexconv_2d_siren" else name.split("_")[1] if name.startswith("kernel_") else "magnet"


def load(file, name, dtype=np.float64, **options):
    state = {key: value.astype(dtype) for key, value in file.state.items()}
    size = 1
    if "cfg/horizon" in file:
        horizon = str(file.arrays["cfg/horizon"])
        size = file["in/x"].shape[-1] if horizon == "same" else int(horizon)
        options = {
            "cropping": bool(file["cfg/cropping"]),
            "sampling_scale": float(file["cfg/sampling_rate_norm"]),
            **options,
        }
    return from_authors(state, kernel_size=size, generator=generator_of(name), **options)


def gradient(module, name, names):
    """The gradient of the parameter that the authors call `name`."""
    generator = module.generator if name.startswith("Kernel.") else module
    name = name.removeprefix("Kernel.")
    if name == "mask_params":
        return torch.stack([module.mask.mean.grad, module.mask.sigma.grad], 1)
    if found := re.fullmatch(r"filters\.(\d+)\.(.+)", name):
        ours = {"linear.weight": "frequency", "linear.bias": "phase"}.get(found[2], found[2])
        return getattr(generator, ours).grad[int(found[1])]
    if found := re.fullmatch(r"linear\.(\d+)\.(weight|bias)", name):
        return getattr(generator, f"mix_{found[2]}").grad[int(found[1])]
    if found := re.fullmatch(r"output_linear\.(weight|bias)", name):
        return getattr(generator.output, found[1]).grad
    if found := re.fullmatch(r"kernel_net\.(\d+)\.(.+)", name):
        indices = sorted({int(n) for n in re.findall(r"kernel_net\.(\d+)\.bias", " ".join(names))})
        return getattr(generator.maps[indices.index(int(found[1]))], found[2]).grad
    return getattr(module, name).grad


def assert_gradients_match(module, file, tolerance):
    names = [key[2:] for key in file.arrays if key.startswith("g/") and key != "g/in_x"]
    assert sum(file[f"g/{name}"].numel() for name in names) == sum(p.numel() for p in module.parameters())
    largest = max(file[f"g/{name}"].norm() for name in names)
    for name in names:
        truth = file[f"g/{name}"]
        ours = gradient(module, name, names).reshape(truth.shape)
        if name.endswith("weight_v") and truth[0].numel() == 1:  # in 1D, the gradient of a direction is 0
            assert ours.norm() < 1e-12 * largest
        else:
            assert relative_error(ours, truth) < tolerance, name


# --- generators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_generators_and_their_gradients_match(golden, name):
    file = golden(name)
    net = load(file, name)
    assert not net.training
    kernel = net(file["in/grid"])
    assert relative_error(kernel, file["out/kernel"]) < 1e-9
    (kernel * file["in/cotangent"]).sum().backward()
    assert_gradients_match(net, file, 1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_generators_in_float32_match(golden, name):
    file = golden(name)
    net = load(file, name, np.float32)
    kernel = net(file["in/grid"].float())
    assert kernel.dtype == torch.float32
    tolerance = 5e-5 if "weightnorm" in name else 1e-5  # where the arguments of sines reach 125 rad
    assert relative_error(kernel, file["out/kernel"]) < tolerance


def test_generators_have_the_right_class(golden):
    kinds = {"kernel_magnet_2d": MAGNet, "kernel_gabor_2d": GaborNet, "kernel_fourier_1d": FourierNet}
    kinds["kernel_nsiren_2d"] = NSIREN
    for name, kind in kinds.items():
        assert type(load(golden(name), name)) is kind
    assert load(golden("kernel_magnet_steerable_2d"), "kernel_magnet_steerable_2d").steerable


# --- layers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_their_gradients_match(golden, name):
    file = golden(name)
    layer = load(file, name)
    assert isinstance(layer, FlexConv1d if "_1d_" in name else FlexConv2d)
    tolerance = 1e-5 if file["cfg/use_fft"] and "fft" in name else 1e-9
    kernel = layer.kernel()
    assert kernel.shape == file["out/kernel_masked"].shape
    assert relative_error(kernel, file["out/kernel_masked"]) < 1e-9
    x = file["in/x"].requires_grad_()
    y = layer(x)
    assert relative_error(y, file["out/y"]) < tolerance
    (y * file["in/cotangent"]).sum().backward()
    assert relative_error(x.grad, file["g/in_x"]) < tolerance
    assert_gradients_match(layer, file, tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_in_float32_match(golden, name):
    file = golden(name)
    layer = load(file, name, np.float32)
    assert relative_error(layer.kernel(), file["out/kernel_masked"]) < 1e-5
    assert relative_error(layer(file["in/x"].float()), file["out/y"]) < 1e-4


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("name", ["flexconv_1d_spatial_crop", "flexconv_2d_res1", "flexconv_2d_nocrop"])
def test_both_algorithms_match_the_authors_spatial_convolution(golden, name, algorithm):
    file = golden(name)
    layer = load(file, name)
    layer.algorithm = algorithm
    assert relative_error(layer(file["in/x"]), file["out/y"]) < 1e-9


def test_sampling_scale_multiplies_the_kernel(golden):
    file = golden("flexconv_2d_res1")
    layer = load(file, "flexconv_2d_res1", sampling_scale=0.25)
    assert relative_error(layer.kernel(), file["out/kernel_masked"] / 4) < 1e-12


def test_cropping_can_be_disabled(golden):
    cropped, whole = (load(golden("flexconv_2d_res1"), "flexconv_2d_res1", cropping=c) for c in (True, False))
    assert cropped.extent == (5, 5)
    assert whole.extent == (9, 9)
    torch.testing.assert_close(whole.kernel()[..., 2:7, 2:7], cropped.kernel())


def test_layer_without_mask_params_has_no_mask(golden):
    state = golden("flexconv_1d_spatial_crop").state
    del state["mask_params"]
    layer = from_authors(state, kernel_size=64)
    assert layer.mask is None
    assert layer.kernel().shape == (4, 3, 64)


def test_state_of_tensors_is_copied(golden):
    file = golden("flexconv_1d_spatial_crop")
    state = {name: torch.tensor(value) for name, value in file.state.items()}
    kept = {name: value.clone() for name, value in state.items()}
    layer = from_authors(state, kernel_size=64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert state.keys() == kept.keys()
    assert all(torch.equal(state[name], kept[name]) for name in kept)


def test_state_may_contain_parameters(golden):
    file = golden("kernel_magnet_1d")
    state = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in file.state.items()}
    assert relative_error(from_authors(state, kernel_size=9)(file["in/grid"]), file["out/kernel"]) < 1e-9


def test_ignores_buffers_that_the_authors_layers_cache(golden):
    file = golden("flexconv_1d_spatial_crop")
    state = file.state | {"train_length": np.array([64]), "conv_kernel": np.zeros((4, 3, 14))}
    assert relative_error(from_authors(state, kernel_size=64).kernel(), file["out/kernel_masked"]) < 1e-9


def test_reads_the_mask_of_a_layer(golden):
    mask = load(golden("flexconv_2d_nocrop"), "flexconv_2d_nocrop").mask
    assert isinstance(mask, GaussianMask)
    assert (mask.form, mask.threshold) == ("authors", 0.1)
    assert mask.mean.tolist() == pytest.approx([0.1, -0.2])
    assert mask.sigma.tolist() == pytest.approx([0.5, 0.9])


# --- N-Jets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [15, 33])
def test_njets_match(golden, size):
    file = golden("njet")
    layer = from_authors(file.state, kernel_size=size)
    assert isinstance(layer.generator, NJet)
    assert layer.extent == (7, 7)
    assert relative_error(layer.kernel(), file["out/filters"]) < 1e-9
    assert relative_error(layer(file["in/x"]), file["out/y"]) < 1e-9
    with torch.no_grad():
        layer.generator.scale += 1
    assert layer.extent == (13, 13)
    assert relative_error(layer.kernel(), file["out/filters_sigma_x2"]) < 1e-9


def test_njets_in_float32_match(golden):
    file = golden("njet")
    state = {name: value.astype(np.float32) for name, value in file.state.items()}
    layer = from_authors(state, kernel_size=33)
    assert relative_error(layer.kernel(), file["out/filters"]) < 1e-5
    assert relative_error(layer(file["in/x"].float()), file["out/y"]) < 1e-5


# --- networks ---------------------------------------------------------------------------------------------------------


def our_name(name):
    """Our name of the module that the authors call `name`."""
    for theirs, ours in (
        (r"^cconv1", "stem"),
        (r"^norm1", "stem_norm"),
        (r"^backbone", "blocks"),
        (r"cconv", "conv"),
        (r"shortcut\.0", "shortcut"),
        (r"^(out_layer|finallyr)", "head"),
    ):
        name = re.sub(theirs, ours, name)
    return name


def penalty_of(name, model):
    return alias_penalty(model, formula="authors") if name.endswith("penalty") else 0.0


def split_name(name):
    """`blocks.0.cconv1.Kernel.linear.0.bias` → (`blocks.0.cconv1`, `Kernel.linear.0.bias`)."""
    if found := re.fullmatch(r"(.*cconv\d)\.(.+)", name):
        return found[1], found[2]
    module, _, parameter = name.rpartition(".")
    return module, parameter


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_networks_match(golden, name):
    file = golden(name)
    model = from_authors(file.state, **NETWORKS[name])
    assert isinstance(model, FlexNet if "flexnet" in name else FlexTCN)
    assert not model.training
    assert relative_error(model(file["in/x"]), file["out/logits_eval"]) < 1e-9
    assert list(refresh_extents(model).values()) == [tuple(size) for size in file["out/kernel_sizes"].tolist()]


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_networks_in_float32_match(golden, name):
    file = golden(name)
    state = {key: value.astype(np.float32) for key, value in file.state.items()}
    logits = from_authors(state, **NETWORKS[name])(file["in/x"].float())
    assert logits.dtype == torch.float32
    tolerance = 5e-4 if "siren" in name else 1e-4  # sines of up to 100 rad, layer after layer
    assert relative_error(logits, file["out/logits_eval"]) < tolerance


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_of_networks_match(golden, name):
    file = golden(name)
    model = from_authors(file.state, **NETWORKS[name]).train()
    logits = model(file["in/x"])
    assert relative_error(logits, file["out/logits_train_step0"]) < 1e-9
    loss = torch.nn.functional.cross_entropy(logits, file["in/labels"]) + penalty_of(name, model)
    loss.backward()
    names = [key.removeprefix("g/step0/") for key in file.arrays if key.startswith("g/step0/")]
    assert sum(file[f"g/step0/{each}"].numel() for each in names) == sum(p.numel() for p in model.parameters())
    largest = max(file[f"g/step0/{each}"].norm() for each in names)
    for each in names:
        module, parameter = split_name(each)
        truth = file[f"g/step0/{each}"]
        ours = gradient(model.get_submodule(our_name(module)), parameter, names).reshape(truth.shape)
        assert (ours - truth).norm() < TOLERANCE[name] * (truth.norm() + 1e-6 * largest), each


# the authors compute the penalty in float32
TOLERANCE = {"net_flexnet3": 1e-8, "net_flexnet3_penalty": 1e-5, "net_flextcn2_spatial": 1e-8}


@pytest.mark.parametrize("name", TRAINED)
def test_training_of_networks_matches(golden, name):
    """The losses of four Adam steps, and the masks after them."""
    file = golden(name)
    model = from_authors(file.state, **NETWORKS[name]).train()
    masks = [p for key, p in model.named_parameters() if ".mask." in key]
    rest = [p for key, p in model.named_parameters() if ".mask." not in key]
    optimizer = torch.optim.Adam([{"params": rest, "lr": 0.01}, {"params": masks, "lr": 0.001}])
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(file["in/x"]), file["in/labels"]) + penalty_of(name, model)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    truth = file["out/losses_adam_lr0.01_mask0.001_4steps"]
    assert relative_error(torch.stack(losses), truth) < (1e-6 if name.endswith("penalty") else 1e-9)
    after = [key for key in file.arrays if key.startswith("out/mask_after_4/")]
    assert len(after) == len(masks) / 2
    for key in after:
        mask = model.get_submodule(our_name(key.removeprefix("out/mask_after_4/").removesuffix(".mask_params"))).mask
        assert relative_error(torch.stack([mask.mean, mask.sigma], 1), file[key]) < 1e-9


@pytest.mark.parametrize("name", NETWORKS)
def test_config_recreates_the_network(golden, name):
    model = from_authors(golden(name).state, **NETWORKS[name])
    twin = type(model)(**model.config).double().eval()
    twin.load_state_dict(model.state_dict())
    x = golden(name)["in/x"]
    assert torch.equal(twin(x), model(x))
    assert model.config["dropout"] == 0
    assert model.config["conv"] == ("ck" if "ck" in name else "flex")
    if model.config["conv"] == "flex":
        assert model.config["mask_options"] == {"form": "authors", "threshold": 0.1}


def test_reads_networks_saved_from_data_parallel_or_after_a_forward(golden):
    """Names start with `module.`, and layers have additional buffers."""
    file = golden("net_flextcn2_spatial")
    state = {f"module.{name}": value for name, value in file.state.items()}
    state["module.backbone.0.cconv1.train_length"] = np.array([48])
    state["module.backbone.0.cconv1.conv_kernel"] = np.zeros((4, 1, 9))
    state["module.backbone.0.norm1.num_batches_tracked"] = np.array(7)
    model = from_authors(state, kernel_size=48)
    assert relative_error(model(file["in/x"]), file["out/logits_eval"]) < 1e-9
    assert model.blocks[0].norm1.num_batches_tracked == 7
    assert model.blocks[0].norm2.num_batches_tracked == 0


def test_network_with_sampling_scale_and_without_cropping(golden):
    state = golden("net_flexnet3").state
    model = from_authors(state, kernel_size=17, sampling_scale=0.25, cropping=False)
    assert set(refresh_extents(model).values()) == {(17, 17)}
    assert {model.stem.grid.scale, model.blocks[2].conv2.grid.scale} == {0.25}


def authors_state(model, names):
    """The state of one of our networks without generators, under the authors' names."""
    state = {}
    for name, value in model.state_dict().items():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        state[name] = value[..., None, None] if name == "out_layer.weight" else value
    return state


def test_flexnet_with_plain_convolutions():
    options = {"widths": [4, 6], "dropout": 0.0, "parametrization": "paper"}
    model = create_model("flexnet7_conv3", in_channels=2, num_classes=3, **options).eval()
    names = {
        "^stem_norm": "norm1",
        "^stem": "cconv1",
        r"\.conv": ".cconv",
        "shortcut": "shortcut.0",
        "^head": "out_layer",
    }
    theirs = from_authors(authors_state(model, names), kernel_size=3)
    x = torch.randn(2, 2, 9, 9)
    assert torch.equal(theirs(x), model(x))
    assert theirs.config == {**model.config, "kernel_size": [3, 3]}


@pytest.mark.parametrize("shortcut", ["pad", "conv"])
def test_cifar_resnet(shortcut):
    options = {"shortcut": shortcut, "parametrization": "paper"}
    model = create_model("cifar_resnet20", in_channels=3, num_classes=5, **options).eval()
    blocks = {rf"^blocks\.{i}\.": f"layer{i // 3 + 1}.{i % 3}." for i in range(9)}
    names = {"^stem_norm": "bn1", "^stem": "conv1", **blocks, r"\.norm": ".bn", "^head": "linear"}
    theirs = from_authors(authors_state(model, names), kernel_size=3)
    assert isinstance(theirs, CIFARResNet)
    x = torch.randn(2, 3, 16, 16)
    assert torch.equal(theirs(x), model(x))
    assert theirs.config == {**model.config, "kernel_size": [3, 3]}


def test_flexnet_with_njets(golden):
    jets = {}
    for name, (inputs, outputs) in {"cconv1": (2, 4), "blocks.0.cconv1": (4, 4), "blocks.0.cconv2": (4, 4)}.items():
        jets |= {f"{name}.alphas": np.random.RandomState(0).randn(15, inputs, outputs), f"{name}.scales": np.zeros(1)}
    norms = {
        f"{norm}.{part}": np.ones(4)
        for norm in ("norm1", "blocks.0.norm1", "blocks.0.norm2")
        for part in ("weight", "bias", "running_mean", "running_var")
    }
    head = {"out_layer.weight": np.ones((3, 4, 1, 1)), "out_layer.bias": np.zeros(3)}
    model = from_authors(jets | norms | head, kernel_size=33)
    assert isinstance(model.stem.generator, NJet)
    assert model.config["generator"] == "njet"
    x = torch.randn(2, 2, 20, 20).double()
    (first,) = {key: value for key, value in jets.items() if key == "cconv1.alphas"}.values()
    layer = from_authors({"alphas": first, "scales": np.zeros(1)}, kernel_size=33)
    assert torch.equal(model.stem(x), layer(x))
    assert model(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks.1.norm2.running_var": None}, r"no blocks\.1\.norm2\.running_var"),
        ({"out_layer.weight": None}, r"no out_layer\.weight"),
        ({"norm1.bias": None}, r"no norm1\.bias"),
        ({"blocks.2.cconv1.bias": None}, r"no blocks\.2\.cconv1\.bias"),
        ({"blocks.2.cconv1.mask_params": None}, r"blocks\.2\.conv1 .*first convolution"),
        ({"surplus": (3,)}, "unexpected names: surplus"),
        ({"blocks.3.norm1.bias": (3,)}, r"no tensors for blocks\.3\.cconv1"),
        ({"blocks.0.cconv2.Kernel.filters.0.surplus": (3,)}, r"blocks\.0\.cconv2: .*filters\.0\.surplus"),
        (
            {"blocks.1.shortcut.0.weight": (6, 5, 1, 1)},
            r"blocks\.1\.shortcut\.0\.weight .*\(6, 4, 1, 1\)",
        ),
        ({"out_layer.bias": (9,)}, r"out_layer\.bias .*\(10,\).*\(9,\)"),
        ({"blocks.0.norm1.weight": (5,)}, r"blocks\.0\.norm1\.weight .*\(4,\)"),
    ],
)
def test_error_names_the_tensor_that_does_not_fit_a_network(golden, change, message):
    state = golden("net_flexnet3").state
    for name, shape in change.items():
        if shape is None:
            del state[name]
        else:
            state[name] = np.zeros(shape)
    with pytest.raises(ValueError, match=message):
        from_authors(state, kernel_size=9)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "nearest"), [("magnets", "magnet"), ("sirn", "siren"), ("fourrier", "fourier")])
def test_unknown_generator_gets_a_suggestion(golden, name, nearest):
    with pytest.raises(ValueError, match=f"generator '{name}'.*did you mean '{nearest}'"):
        from_authors(golden("kernel_magnet_1d").state, kernel_size=9, generator=name)


@pytest.mark.parametrize("name", ["kernel_magnet_1d", "kernel_siren_2d", "flexconv_2d_siren", "flexconv_1d_fft_full"])
def test_error_names_unexpected_tensors(golden, name):
    prefix = "Kernel." if name.startswith("flexconv") else ""
    extra = "kernel_net.0.surplus" if "siren" in name else "filters.0.surplus"
    file = golden(name)
    file.arrays[f"p/{prefix}{extra}"] = np.zeros(3)
    with pytest.raises(ValueError, match=f"unexpected names: {extra}"):
        load(file, name)


def test_error_names_unexpected_tensors_beside_a_layer(golden):
    state = golden("flexconv_2d_res1").state | {"another.weight": np.zeros(3), "a.bias": np.zeros(1)}
    with pytest.raises(ValueError, match=r"unexpected names: a\.bias, another\.weight"):
        from_authors(state, kernel_size=9)


def test_error_names_unexpected_tensors_beside_an_njet(golden):
    with pytest.raises(ValueError, match="unexpected names: bias"):
        from_authors(golden("njet").state | {"bias": np.zeros(4)}, kernel_size=33)


@pytest.mark.parametrize(
    ("name", "key", "shape", "message"),
    [
        ("kernel_magnet_2d", "output_linear.bias", (5,), r"bias of Affine .*\(6,\).*\(5,\)"),
        ("kernel_siren_1d", "kernel_net.2.weight", (8, 7, 1), r"weight of Affine .*\(8, 8\)"),
        ("kernel_siren_1d", "kernel_net.2.omega_0", (2,), "omega_0"),
        ("kernel_magnet_2d", "linear.1.weight", (8, 7, 1, 1), r"mix_weight .*\(8, 7\)"),
        ("kernel_magnet_2d", "filters.2.mu", (7, 2), r"mu .*\(7, 2\)"),
        ("flexconv_2d_res1", "mask_params", (1, 2), r"mean of GaussianMask .*\(2,\).*\(1,\)"),
        ("njet", "scales", (2,), r"scale of NJet .*\(1,\).*\(2,\)"),
    ],
)
def test_error_names_wrong_shapes(golden, name, key, shape, message):
    file = golden(name)
    prefix = "b" if key.endswith("omega_0") else "p"
    assert f"{prefix}/{key}" in file
    file.arrays[f"{prefix}/{key}"] = np.zeros(shape)
    with pytest.raises(ValueError, match=message):
        load(file, name) if name != "njet" else from_authors(file.state, kernel_size=33)


@pytest.mark.parametrize("key", ["bias", "Kernel.linear.0.bias", "Kernel.filters.0.gamma", "Kernel.filters.2.mu"])
def test_error_names_a_missing_tensor_of_a_layer(golden, key):
    state = {name: value for name, value in golden("flexconv_2d_res1").state.items() if name != key}
    with pytest.raises(ValueError, match=f"no {re.escape(key)}$"):
        from_authors(state, kernel_size=9)


def test_error_for_a_layer_with_three_axes(golden):
    state = golden("flexconv_2d_res1").state
    for name in [name for name in state if re.fullmatch(r"Kernel\.filters\.\d\.(linear\.weight|mu|gamma)", name)]:
        state[name] = np.concatenate([state[name], state[name][:, :1]], 1)
    with pytest.raises(ValueError, match=r"1 or 2 axes.*has 3"):
        from_authors(state, kernel_size=9)


@pytest.mark.parametrize(
    ("name", "generator", "message"),
    [
        ("kernel_fourier_2d", "magnet", r"no filters\.0\.mu"),
        ("kernel_fourier_2d", "gabor", r"no filters\.0\.mu"),
        ("kernel_magnet_2d", "fourier", r"unexpected names: filters\.0\.gamma"),
        ("kernel_mlp_relu_nonorm_2d", "siren", r"no kernel_net\.0\.omega_0"),
        ("kernel_siren_2d", "mlp", r"unexpected names: kernel_net\.0\.omega_0"),
    ],
)
def test_similar_generator_is_an_error_and_not_partly_initialised(golden, name, generator, message):
    with pytest.raises(ValueError, match=message):
        from_authors(golden(name).state, kernel_size=9, generator=generator)


def test_anisotropic_gamma_does_not_fit_a_gabor_network(golden):
    with pytest.raises(ValueError, match=r"gamma of GaborNet .*\(4, 8, 1\).*\(4, 8, 2\)"):
        from_authors(golden("kernel_magnet_2d").state, kernel_size=9, generator="gabor")


@pytest.mark.parametrize(
    ("name", "generator"),
    [("kernel_magnet_2d", "siren"), ("kernel_magnet_2d", "mlp"), ("kernel_siren_1d", "magnet")],
)
def test_state_of_another_generator_is_an_error(golden, name, generator):
    with pytest.raises(ValueError, match=f"'{generator}'"):
        from_authors(golden(name).state, kernel_size=9, generator=generator)


@pytest.mark.parametrize(
    ("name", "missing"), [("kernel_magnet_2d", "linear.1.bias"), ("flexconv_2d_res1", "bias"), ("njet", "scales")]
)
def test_error_names_a_missing_tensor(golden, name, missing):
    state = golden(name).state
    del state[missing]
    with pytest.raises((ValueError, KeyError), match=missing):
        from_authors(state, kernel_size=9)
