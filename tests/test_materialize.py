"""`materialize`: plain torch convolutions with the same outputs and without flexconv."""

from __future__ import annotations

import copy
import io
import pickletools
import zipfile
from functools import partial

import pytest
import torch
from torch import nn

import flexconv
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, at_resolution, materialize
from flexconv.models import SepFlexNet
from flexconv.nn import GENERATORS, MAGNet, SeparableFlexConv2d
from flexconv.testing import assert_causal

from .conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
MODES = ["zeros", "reflect", "replicate", "circular"]

tiny = partial(MAGNet, hidden=4, layers=1)


def make(dims=1, kernel_size=9, *, sigma=0.3, mean=None, channels=(2, 4), **options):
    options = {"generator": tiny, "mask": GaussianMask(dims, sigma=sigma, mean=mean)} | options
    layer = LAYERS[dims](*channels, kernel_size, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def noise(model, size=12, channels=2):
    dims = next(m.dims for m in model.modules() if isinstance(m, tuple(LAYERS.values())))
    return torch.randn(2, channels, *[size] * dims)


def assert_same(model, x, **options):
    plain = materialize(model, **options)
    source = model if not options else at_resolution(model, **options)
    assert relative_error(plain(x), source(x)) < 1e-5
    assert not [m for m in plain.modules() if type(m).__module__.startswith("flexconv")]
    return plain


# --- equality ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2},
        {"groups": 4, "channels": (4, 4)},
        {"stride": 2},
        {"dilation": 2},
        {"stride": 2, "dilation": 3},
        {"padding": "valid"},
        {"padding": 2},
        {"bias": False},
        {"mask": None},
        {"sigma": 0.05},
        {"sigma": 2.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_centred_layers_become_one_convolution(dims, options):
    layer = make(dims, 5 if dims == 3 else 9, **options)
    x = noise(layer, 13 if dims == 3 else 26, layer.in_channels)
    plain = assert_same(layer, x)
    assert type(plain) is PLAIN[dims]
    assert plain.kernel_size == layer.extent or layer.padding in ("valid", 2)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "causal"},
        {"padding": "causal", "stride": 3, "dilation": 2, "groups": 2},
        {"padding": "causal", "mean": -1.0},
        {"padding": [(5, 1)]},
        {"mean": 0.7},
        {"mean": 1.0, "sigma": 0.1},
        {"mean": -1.0, "sigma": 0.1, "dilation": 2, "stride": 2},
        {"mean": 0.7, "padding": "valid"},
        {"padding": [(-2, 3)]},
        {"padding": [(-1, -1)]},
        {"kernel_size": 8, "padding": [(4, 3)]},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES)
def test_asymmetric_layers_become_padding_and_convolution(options, mode):
    layer = make(**options, padding_mode=mode)
    plain = assert_same(layer, noise(layer, 40))
    convolution = plain[-1] if isinstance(plain, nn.Sequential) else plain
    assert type(convolution) is nn.Conv1d
    assert all(type(m).__module__ == "torch.nn.modules.padding" for m in list(plain.children())[:-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_every_padding_mode(dims, mode):
    for padding, mean in (("same", None), ("causal", None), ("same", 0.8)):
        layer = make(dims, 5, padding_mode=mode, padding=padding, mean=mean)
        assert_same(layer, noise(layer, 8))
        assert_same(layer, noise(layer, 8)[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("dims", [1, 2])
def test_inputs_that_the_layer_refuses_are_refused(dims, padding, mode):
    """Reflected and periodic padding cannot be wider than the input. The current kernel would need less of it."""
    layer = make(dims, 9, padding_mode=mode, padding=padding)
    layer.mask.set_(sigma=0.1)
    plain = materialize(layer)
    accepted = [[_accepts(each, noise(layer, size)) for size in range(1, 12)] for each in (layer, plain)]
    assert accepted[0] == accepted[1]
    assert all(accepted[0]) == (mode in ("zeros", "replicate"))


def _accepts(module, x):
    try:
        module(x)
    except (ValueError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_every_generator(name):
    layer = make(2, 9, generator=name)
    assert_same(layer, noise(layer))


def test_rotated_mask_and_authors_form():
    turned = make(2, 9, mask=RotatedGaussianMask(sigma=(0.4, 0.1), angle=0.5, mean=(0.3, 0.0)))
    assert_same(turned, noise(turned))
    authors = make(2, 9, mask=GaussianMask(2, sigma=0.2, mean=0.4, form="authors"))
    assert_same(authors, noise(authors))


@pytest.mark.parametrize("scale", [2, 0.5, 1.3])
@pytest.mark.parametrize("padding", ["same", "causal"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_scale_equals_at_resolution(dims, padding, scale):
    layer = make(dims, 5 if dims == 3 else 9, padding=padding)
    x = noise(layer, 16)
    resampled = at_resolution(layer, scale)
    in_two_steps, in_one = materialize(resampled), materialize(layer, scale=scale)
    assert relative_error(in_two_steps(x), resampled(x)) < 1e-5
    assert torch.equal(in_two_steps(x), in_one(x))
    assert layer.kernel_size[0] in (5, 9)


def test_one_scale_per_axis():
    layer = make(2, 9)
    assert_same(layer, noise(layer), scale=(2, 1.5))


# --- models -----------------------------------------------------------------------------------------------------------


def model_of_two():
    return nn.Sequential(
        make(1, channels=(2, 4)), nn.BatchNorm1d(4), nn.ReLU(), make(1, channels=(4, 2), padding="causal")
    )


def test_other_layers_and_the_original_are_unchanged():
    model = model_of_two()
    x, before = noise(model), copy.deepcopy(model.state_dict())
    model.eval()
    plain = assert_same(model, x)
    assert [type(m) for m in plain] == [nn.Conv1d, nn.BatchNorm1d, nn.ReLU, nn.Sequential]
    assert isinstance(model[0], FlexConv1d)
    plain[1].running_mean.add_(1)
    with torch.no_grad():
        plain[0].weight.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(plain.state_dict())[:2] == ["0.weight", "0.bias"]


def test_shared_layer_stays_shared():
    layer = make(channels=(2, 2))
    model = nn.ModuleDict({"a": layer, "b": nn.Sequential(nn.ReLU(), layer)})
    plain = materialize(model)
    assert plain["a"] is plain["b"][1]
    assert sum(1 for _ in plain.parameters()) == 2


def test_tied_parameters_of_other_layers_stay_tied():
    model = nn.Sequential(make(channels=(2, 2)), nn.Conv1d(2, 2, 1), nn.Conv1d(2, 2, 1))
    model[2].weight = model[1].weight
    plain = assert_same(model, noise(model))
    assert plain[2].weight is plain[1].weight


def test_unregistered_references_to_a_layer_are_replaced():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = make(channels=(2, 2))
            self.layers = [self.first]  # not registered

        def forward(self, x):
            return self.layers[0](x)

    model = Model()
    x = noise(model)
    plain = materialize(model)
    assert plain.layers[0] is plain.first
    assert relative_error(plain(x), model(x)) < 1e-6


def test_causal_layers_stay_causal():
    assert_causal(materialize(make(padding="causal")), torch.randn(1, 2, 12))


def test_loads_without_flexconv():
    plain = materialize(model_of_two())
    file = io.BytesIO()
    torch.save(plain, file)
    names = {str(argument) for _, argument, _ in pickletools.genops(_pickle_of(file)) if isinstance(argument, str)}
    assert not [name for name in names if "flexconv" in name]
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = torch.randn(1, 2, 12)
    assert torch.equal(again(x), plain(x))


def _pickle_of(file):
    with zipfile.ZipFile(file) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


# --- training mode, gradients, dtype ----------------------------------------------------------------------------------


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_keeps_training_mode(padding):
    layer = make(padding=padding)
    assert all(m.training for m in materialize(layer.train()).modules())
    assert not any(m.training for m in materialize(layer.eval()).modules())


def test_keeps_requires_grad():
    layer = make()
    assert all(p.requires_grad for p in materialize(layer).parameters())
    layer.generator.requires_grad_(False)
    assert materialize(layer).weight.requires_grad  # the mask still changes it
    layer.mask.requires_grad_(False)
    plain = materialize(layer)
    assert not plain.weight.requires_grad
    assert plain.bias.requires_grad
    assert not materialize(layer.requires_grad_(False)).bias.requires_grad


def test_can_be_trained():
    plain = materialize(make(padding="causal"))
    plain(torch.randn(1, 2, 12)).square().sum().backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in plain.parameters())
    assert all(p.is_leaf for p in plain.parameters())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.bfloat16, 1e-3)])
def test_keeps_dtype(dtype, tolerance):
    layer = make(2, 9).to(dtype)
    plain, x = materialize(layer), noise(layer).to(dtype)
    assert plain.weight.dtype == dtype
    assert relative_error(plain(x), layer(x)) < tolerance


def test_autocast():
    layer = make(2, 9)
    plain, x = materialize(layer), noise(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert relative_error(plain(x), layer(x)) < 1e-2
        inside = materialize(layer)
    assert inside.weight.dtype == torch.float32
    assert torch.equal(inside.weight, plain.weight)


def test_shares_no_memory_with_the_original():
    layer = make(mask=None, kernel_size=1, padding="valid")
    plain = materialize(layer)
    ours = {p.data_ptr() for p in layer.parameters()}
    assert not ours & {p.data_ptr() for p in plain.parameters()}


def test_is_exported_by_the_package():
    assert flexconv.materialize is materialize


# --- TorchScript ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit itself
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torchscript_accepts_plain_models_and_the_error_for_others_says_how(tmp_path):
    model, x = model_of_two(), torch.randn(1, 2, 40)
    for write in (
        lambda: torch.jit.trace(model, x),
        lambda: torch.jit.script(model),
        lambda: torch.onnx.export(model, (x,), tmp_path / "a.onnx", dynamo=False),
    ):
        with pytest.raises(
            RuntimeError, match=r"FlexConv1d .*flexconv\.materialize\(model\).*flexconv\.export\.export"
        ):
            write()
    plain = materialize(model)
    torch.testing.assert_close(torch.jit.trace(plain, x)(x), model(x))
    torch.testing.assert_close(torch.jit.script(plain)(x), model(x))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_error_without_flexconv_layers():
    plain = materialize(model_of_two())
    for scale in (None, 2):
        with pytest.raises(ValueError, match=r"Sequential .*no FlexConv"):
            materialize(plain, scale=scale)


def test_error_on_the_meta_device():
    with pytest.raises(ValueError, match=r"FlexConv1d .*meta device"):
        materialize(make(device="meta", mask="gaussian", bias=False))


@pytest.mark.parametrize("scale", [0, -2, float("nan")])
def test_rejects_invalid_scale(scale):
    with pytest.raises(ValueError, match=f"scale .*{scale}"):
        materialize(make(), scale=scale)


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate", "zeros"])
@pytest.mark.parametrize("mean", [0.0, 0.6])
@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_accepts_same_sizes_as_the_model(mode, mean, sigma):
    layer = FlexConv1d(1, 1, 9, padding_mode=mode, mask=GaussianMask(1, mean=mean, sigma=sigma)).double().eval()
    plain = materialize(layer)
    for size in range(1, 12):
        x = torch.randn(1, 1, size).double()
        try:
            expected = layer(x)
        except ValueError:
            with pytest.raises(RuntimeError, match=r"[Pp]adding"):
                plain(x)
        else:
            torch.testing.assert_close(plain(x), expected)


@pytest.mark.parametrize("options", [{}, {"padding_mode": "circular"}, {"stride": 2, "mask": "per_channel"}], ids=str)
def test_separable_layers_still_accept_missing_samples(options):
    torch.manual_seed(0)
    layer = SeparableFlexConv2d(3, 4, 5, **options)
    plain = materialize(layer)
    x, observed = torch.randn(2, 3, 9, 8), torch.rand(2, 9, 8) > 0.5
    torch.testing.assert_close(plain(x, observed=observed), layer(x, observed=observed), rtol=1e-4, atol=1e-5)
    assert torch.equal(plain.propagate_observed(observed), layer.propagate_observed(observed))


@pytest.mark.parametrize("mask_channel", [True, False])
def test_networks_still_accept_lengths_and_missing_samples(mask_channel):
    torch.manual_seed(0)
    options = {"in_channels": 3, "num_classes": 4, "length": 16, "width": 6, "depth": 1, "mask_channel": mask_channel}
    model = SepFlexNet(**options).eval()
    plain = materialize(model)
    x, lengths = torch.randn(2, 3, 16), torch.tensor([16, 9])
    observed = torch.rand(2, 16) > 0.5
    x[:, -1], missing = observed.float(), {} if mask_channel else {"observed": observed}
    for given in ({}, {"lengths": lengths}):
        torch.testing.assert_close(plain(x, **given, **missing), model(x, **given, **missing), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dims", "taps"), [(1, 15), (2, 15), (1, 13)])
def test_depthwise_convolutions_with_much_padding_have_a_padding_layer(dims, taps):
    make = {1: FlexConv1d, 2: FlexConv2d}[dims]
    layer, dense = make(3, 3, taps, mask=None, groups=3), make(3, 3, taps, mask=None)
    plain = materialize(nn.Sequential(layer, dense))
    assert isinstance(plain[0], nn.Sequential) == (taps > 13)
    assert not isinstance(plain[1], nn.Sequential)
    x = torch.randn(2, 3, *(20,) * dims)
    torch.testing.assert_close(plain(x), dense(layer(x)), atol=1e-4, rtol=1e-4)
