"""Manners of a torch module: copies, state, precisions, devices, export, functorch, distributed."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from functools import partial

import pytest
import torch
import torch.distributed
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, refresh_extents
from flexconv.nn import GENERATORS, MAGNet
from tests.conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
tiny = partial(MAGNet, hidden=4, layers=1)


def make(dims=1, in_channels=2, out_channels=3, kernel_size=9, *, sigma=0.2, **options):
    options = {"generator": tiny, "mask": GaussianMask(dims, sigma=sigma, dtype=options.get("dtype"))} | options
    return LAYERS[dims](in_channels, out_channels, kernel_size, **options)


def noise(dims=1, *, batch=2, channels=2, **options):
    return torch.randn(batch, channels, *(13, 11, 7)[:dims], **options)


def used(layer):
    """The layer after a forward and a backward."""
    layer(noise(layer.dims)).square().sum().backward()
    return layer


# --- copies and state -------------------------------------------------------------------------------------------------


def through_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def through_torch_save(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("first", [lambda layer: layer, used, lambda layer: refresh_extents(layer) and layer])
def test_copies_compute_the_same_and_are_independent(dims, copied, first):
    layer = first(make(dims, padding=["causal"] + ["same"] * (dims - 1), generator=MAGNet))
    twin, x = copied(layer), noise(dims)
    assert twin.extent == layer.extent
    torch.testing.assert_close(twin(x), layer(x), rtol=0, atol=0)
    with torch.no_grad():
        twin.mask.sigma.fill_(2.0)
    assert twin.extent != layer.extent
    assert used(twin).mask.sigma.grad is not None


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", None])
def test_state_dict_goes_round(generator, mask):
    layer = used(make(generator=generator, mask=mask))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1)
    other = make(generator=generator, mask=mask)
    assert other.load_state_dict(layer.state_dict(), strict=True) == ([], [])
    x = noise()
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    assert other.extent == layer.extent


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_state_holds_parameters_only(dims):
    layer = used(make(dims))
    refresh_extents(layer)
    parameters = dict(layer.named_parameters())
    assert layer.state_dict().keys() == parameters.keys()
    assert not list(layer.buffers())
    assert all(v.numel() == parameters[k].numel() for k, v in layer.state_dict().items())
    assert {"mask.mean", "mask.sigma", "bias"} <= parameters.keys()


def test_a_strict_load_refuses_what_does_not_fit():
    with pytest.raises(RuntimeError, match=r"mask\.sigma"):
        make(mask=None).load_state_dict(make().state_dict())


def reachable(thing, seen):
    """Every tensor that hangs on `thing`."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from reachable(value, seen)
    elif isinstance(thing, list | tuple | set):
        for value in thing:
            yield from reachable(value, seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from reachable(vars(thing), seen)


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_forward_leaves_nothing_behind(generator):
    layer = make(2, generator=generator)
    names = [set(vars(module)) for module in layer.modules()]
    y = layer(noise(2))
    refresh_extents(layer)
    assert [set(vars(module)) for module in layer.modules()] == names
    own = {id(t) for t in [*layer.parameters(), *layer.buffers()]}
    assert {id(t) for t in reachable(layer, set())} == own
    assert all(t.grad_fn is None for t in reachable(layer, set()))
    assert y.grad_fn is not None


def test_a_layer_dies_with_its_last_reference():
    layer = used(make())
    y = layer(noise())
    extent = layer._extent
    count = sys.getrefcount(extent)
    other = layer(noise()).sum() + y.sum()
    assert sys.getrefcount(extent) == count  # graphs hold weak references only
    del layer
    other.backward()


@pytest.mark.parametrize("generator", GENERATORS)
def test_seeds_reproduce(generator):
    layers = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        layers.append(make(2, generator=generator))
    one, same, other = (torch.cat([p.flatten() for p in layer.parameters()]) for layer in layers)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    torch.manual_seed(5)
    layers[0].reset_parameters()
    torch.manual_seed(5)
    layers[2].reset_parameters()
    for a, b in zip(layers[0].parameters(), layers[2].parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_reset_parameters_brings_back_the_first_size_and_place(padding):
    layer = make(kernel_size=33, padding=padding, sigma=0.1)
    first, mean = layer.extent, layer.mask.mean.clone()
    with torch.no_grad():
        layer.mask.sigma.fill_(3.0)
        layer.mask.mean.fill_(0.3)
        layer.bias.fill_(1.0)
    assert layer.extent == (33,)
    layer.reset_parameters()
    assert layer.extent == first
    assert torch.equal(layer.mask.mean, mean)
    assert not layer.bias.any()
    assert (layer.generator.mu - mean).abs().max() <= 5 / 3 * 0.1 + 1e-6


def test_repr_shows_the_current_size_and_what_is_not_default():
    layer = make(2, kernel_size=33, sigma=0.1, mask=GaussianMask(2, sigma=0.1))
    assert "extent=7×7" in repr(layer)
    with torch.no_grad():
        layer.mask.sigma[1] = 0.3
    assert "extent=7×21" in repr(layer)
    for name in ("stride", "padding", "dilation", "groups", "bias", "algorithm"):
        assert name not in layer.extra_repr()
    shown = repr(make(2, 4, 4, stride=2, padding=("causal", 3), groups=2, bias=False, padding_mode="reflect"))
    for part in ("stride=(2, 2)", "padding=('causal', 3)", "groups=2", "bias=False", "padding_mode='reflect'"):
        assert part in shown


def test_repr_does_not_fail_where_the_size_is_lost():
    """Whoever looks for the NaN prints the model first."""
    layer = make()
    with torch.no_grad():
        layer.mask.sigma.fill_(float("nan"))
    assert "FlexConv1d" in repr(layer)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", [GaussianMask, RotatedGaussianMask, None])
def test_gradients_reach_every_parameter(generator, mask):
    mask = mask and mask(2, sigma=(0.2, 0.4))
    layer = used(make(2, kernel_size=17, generator=generator, mask=mask, padding=("causal", "same")))
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


# --- precisions and devices -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)]
)
def test_other_precisions(generator, algorithm, dtype, tolerance):
    """The kernel of rounded parameters, generated in float32, meets a rounded input."""
    layer = make(generator=generator, algorithm=algorithm)
    nn.init.uniform_(layer.bias)
    rounded = copy.deepcopy(layer).to(dtype)
    layer.load_state_dict(rounded.state_dict())  # the same numbers, in float32
    x = noise().to(dtype)
    y = rounded(x)
    assert y.dtype == dtype
    assert rounded.kernel().dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert rounded.extent == layer.extent
    assert relative_error(y, layer(x.float())) < tolerance
    y.float().sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in rounded.parameters())


def test_double_and_half_spell_the_same():
    assert make().double()(noise().double()).dtype == torch.float64
    assert make().half()(noise().half()).dtype == torch.float16
    assert make().bfloat16()(noise().bfloat16()).dtype == torch.bfloat16
    assert make(dtype=torch.float64)(noise(dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_autocast_rounds_the_convolution_and_not_the_kernel(algorithm):
    layer, x = make(2, generator=MAGNet, algorithm=algorithm), noise(2)
    kernel, y = layer.kernel(), layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer.kernel(), kernel, rtol=0, atol=0)
        result = layer(x)
        same = layer(x.bfloat16())
    assert result.dtype == same.dtype == torch.bfloat16
    assert relative_error(result, y) < 1e-2
    result.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.parametrize("algorithm", ["auto", "direct", "fft"])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_small_and_empty_batches(dims, mode, algorithm):
    layer = make(dims, kernel_size=5, padding_mode=mode, algorithm=algorithm, stride=2)
    x = noise(dims, batch=3)
    whole = layer(x)
    torch.testing.assert_close(layer(x[:1]), whole[:1], rtol=1e-5, atol=1e-6)
    empty = layer(x[:0].requires_grad_())
    assert empty.shape == (0, *whole.shape[1:])
    empty.sum().backward()
    assert all(not p.grad.any() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("generator", GENERATORS)
def test_meta_layers_are_made_without_memory_and_filled_later(generator):
    layer = make(2, generator=generator, mask="gaussian", device="meta")
    assert all(p.is_meta for p in layer.parameters())
    assert layer.extent == layer.kernel_size  # nothing to read
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    fresh = make(2, generator=generator, mask="gaussian")
    assert layer.extent == fresh.extent
    assert layer(noise(2)).isfinite().all()
    assert layer.load_state_dict(fresh.state_dict()) == ([], [])


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_meta_inputs_give_shapes(dims, algorithm):
    layer = make(dims, stride=2, algorithm=algorithm, device="meta", mask="gaussian")
    y = layer(noise(dims, device="meta"))
    assert y.is_meta
    assert y.shape == make(dims, stride=2)(noise(dims)).shape


def test_channels_last_inputs_give_the_same():
    layer, x = make(2), noise(2)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x), rtol=1e-5, atol=1e-6)


def test_inference_mode():
    layer, x = make(), noise()
    with torch.inference_mode():
        y = layer(x)
    torch.testing.assert_close(y, layer(x), rtol=0, atol=0)


# --- distributed ------------------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch without torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_ddp_trains_and_has_nothing_to_broadcast(process_group):
    layer = make()
    twin = copy.deepcopy(layer)
    model = nn.parallel.DistributedDataParallel(layer)
    assert not list(model.buffers())
    x = noise()
    for _ in range(3):
        for each in (model, twin):
            each.zero_grad()
            each(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        with torch.no_grad():
            for each in (layer, twin):
                each.mask.sigma.mul_(1.5)
    assert refresh_extents(model) == {"module": twin.extent}


@pytest.mark.parametrize("name", ["magnet", "gabor", "fourier", "siren", "nsiren", "mlp", "njet"])
def test_resetting_every_module_gives_parameters_that_suit_the_layer(name):
    layer = FlexConv1d(1, 2, 99, padding="causal", generator=name)
    state = torch.get_rng_state()
    layer.reset_parameters()
    expected = {key: value.clone() for key, value in layer.state_dict().items()}
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # the layer, then its parts
    torch.set_rng_state(state)
    layer.generator.reset_parameters()
    layer.mask.reset_parameters()
    for key, value in layer.state_dict().items():
        assert torch.equal(value, expected[key]), key


def test_resetting_siren_maps_one_by_one_keeps_their_ranges():
    layer = FlexConv1d(1, 64, 99, generator="siren")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    first, *later = layer.generator.maps
    assert first.weight.abs().max() > 0.5
    assert all(linear.weight.abs().max() < 0.02 for linear in later)
