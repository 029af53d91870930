"""A FlexConv layer as a torch module: copies, state, dtypes, devices, distributed training."""

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
from flexconv.errors import UsageError
from flexconv.models import FlexTCN
from flexconv.nn import GENERATORS, ChannelGaussianMask, MAGNet
from tests.conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
small_magnet = partial(MAGNet, hidden=4, layers=1)


def make_layer(dims=1, in_channels=2, out_channels=3, kernel_size=9, *, sigma=0.2, **options):
    options = {"generator": small_magnet, "mask": GaussianMask(dims, sigma=sigma, dtype=options.get("dtype"))} | options
    return LAYERS[dims](in_channels, out_channels, kernel_size, **options).requires_grad_()


def noise(dims=1, *, batch=2, channels=2, **options):
    return torch.randn(batch, channels, *(13, 11, 7)[:dims], **options)


def after_backward(layer):
    """Run a forward and a backward pass, and return the layer."""
    layer(noise(layer.dims)).square().sum().backward()
    return layer


# --- copies and state -------------------------------------------------------------------------------------------------


def pickled(layer):
    return pickle.loads(pickle.dumps(layer))


def saved_and_loaded(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved_and_loaded])
@pytest.mark.parametrize(
    "prepare",
    [lambda layer: layer, after_backward, lambda layer: refresh_extents(layer) and layer],
    ids=["new", "after backward", "refreshed"],
)
def test_copies_are_equal_and_independent(dims, copied, prepare):
    layer = prepare(make_layer(dims, padding=["causal"] + ["same"] * (dims - 1), generator=MAGNet))
    twin, x = copied(layer), noise(dims)
    assert twin.extent == layer.extent
    torch.testing.assert_close(twin(x), layer(x), rtol=0, atol=0)
    twin.mask.set_(sigma=2.0)
    assert twin.extent != layer.extent
    assert after_backward(twin).mask.growth.grad is not None


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", ["gaussian", None])
def test_state_dict_round_trip(generator, mask):
    layer = after_backward(make_layer(generator=generator, mask=mask))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1)
    other = make_layer(generator=generator, mask=mask)
    assert other.load_state_dict(layer.state_dict(), strict=True) == ([], [])
    x = noise()
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    assert other.extent == layer.extent


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_state_dict_of_the_papers_layers_contains_only_parameters(dims):
    layer = after_backward(make_layer(dims, parametrization="paper"))
    refresh_extents(layer)
    parameters = dict(layer.named_parameters())
    assert layer.state_dict().keys() == parameters.keys()
    assert not list(layer.buffers())
    assert all(v.numel() == parameters[k].numel() for k, v in layer.state_dict().items())
    assert {"mask.mean", "mask.sigma", "bias"} <= parameters.keys()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_state_dict_contains_parameters_and_constants(dims):
    layer = LAYERS[dims](2, 3, 9)
    constants = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    assert constants.keys() == {"mask.start", "generator.output.basis"}
    after_backward(layer)
    refresh_extents(layer)
    assert layer.state_dict().keys() == dict(layer.named_parameters()).keys() | constants.keys()
    assert all(torch.equal(layer.state_dict()[name], value) for name, value in constants.items())
    assert {"mask.shift", "mask.growth", "bias"} <= dict(layer.named_parameters()).keys()


def test_strict_load_of_other_architecture_raises():
    with pytest.raises(RuntimeError, match=r"mask\.growth"):
        make_layer(mask=None).load_state_dict(make_layer().state_dict())


def reachable_tensors(thing, seen):
    """Yield all tensors that `thing` refers to."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from reachable_tensors(value, seen)
    elif isinstance(thing, list | tuple | set):
        for value in thing:
            yield from reachable_tensors(value, seen)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from reachable_tensors(vars(thing), seen)


@pytest.mark.parametrize("generator", GENERATORS)
def test_forward_stores_no_tensors_or_attributes(generator):
    layer = make_layer(2, generator=generator)
    names = [set(vars(module)) for module in layer.modules()]
    y = layer(noise(2))
    refresh_extents(layer)
    assert [set(vars(module)) for module in layer.modules()] == names
    own = {id(t) for t in [*layer.parameters(), *layer.buffers()]}
    assert {id(t) for t in reachable_tensors(layer, set())} == own
    assert all(t.grad_fn is None for t in reachable_tensors(layer, set()))
    assert y.grad_fn is not None


def test_autograd_graph_does_not_refer_to_extent():
    layer = after_backward(make_layer())
    y = layer(noise())
    extent = layer._extent
    count = sys.getrefcount(extent)
    other = layer(noise()).sum() + y.sum()
    assert sys.getrefcount(extent) == count
    del layer
    other.backward()


@pytest.mark.parametrize("generator", GENERATORS)
def test_seed_determines_parameters(generator):
    layers = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        layers.append(make_layer(2, generator=generator))
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
def test_reset_parameters_restores_initial_extent_and_mean(padding):
    layer = make_layer(kernel_size=33, padding=padding, sigma=0.1)
    first, mean = layer.extent, layer.mask.mean.clone()
    layer.mask.set_(sigma=3.0, mean=0.3)
    torch.nn.init.ones_(layer.bias)
    assert layer.extent == (33,)
    layer.reset_parameters()
    assert layer.extent == first
    assert torch.equal(layer.mask.mean, mean)
    assert not layer.bias.any()
    assert (layer.generator.mu - mean).abs().max() <= 5 / 3 * 0.1 + 1e-6


def test_repr_shows_extent_and_non_default_arguments():
    layer = make_layer(2, kernel_size=33, sigma=0.1, mask=GaussianMask(2, sigma=0.1))
    assert "extent=7×7" in repr(layer)
    layer.mask.set_(sigma=(0.1, 0.3))
    assert "extent=7×21" in repr(layer)
    for name in ("stride", "padding", "dilation", "groups", "bias", "algorithm"):
        assert name not in layer.extra_repr()
    shown = repr(make_layer(2, 4, 4, stride=2, padding=("causal", 3), groups=2, bias=False, padding_mode="reflect"))
    for part in ("stride=(2, 2)", "padding=('causal', 3)", "groups=2", "bias=False", "padding_mode='reflect'"):
        assert part in shown


def test_repr_works_if_mask_is_nan():
    layer = make_layer()
    layer.mask.set_(sigma=float("nan"))
    assert "FlexConv1d" in repr(layer)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("mask", [GaussianMask, RotatedGaussianMask, None])
def test_all_parameters_receive_gradients(generator, mask):
    mask = mask and mask(2, sigma=(0.2, 0.4))
    layer = after_backward(make_layer(2, kernel_size=17, generator=generator, mask=mask, padding=("causal", "same")))
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


# --- dtypes and devices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-4), (torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)]
)
def test_output_and_gradients_in_other_dtypes(generator, algorithm, dtype, tolerance):
    """Kernels are generated in float32 or float64; only the convolution runs in half precision."""
    layer = make_layer(generator=generator, algorithm=algorithm)
    nn.init.uniform_(layer.bias)
    rounded = copy.deepcopy(layer).to(dtype)
    layer.load_state_dict(rounded.state_dict())  # with the rounded bias
    x = noise().to(dtype)
    y = rounded(x)
    assert y.dtype == dtype
    assert rounded.kernel().dtype == (dtype if dtype == torch.float64 else torch.float32)
    assert rounded.extent == layer.extent
    assert relative_error(y, layer(x.float())) < tolerance
    y.float().sum().backward()
    assert rounded.dtype == dtype
    kernel_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    for name, p in rounded.named_parameters():
        assert p.grad.dtype == (dtype if name == "bias" else kernel_dtype)
        assert p.grad.isfinite().all()


def test_output_dtype_follows_module_dtype():
    assert make_layer().double()(noise().double()).dtype == torch.float64
    assert make_layer().half()(noise().half()).dtype == torch.float16
    assert make_layer().bfloat16()(noise().bfloat16()).dtype == torch.bfloat16
    assert make_layer(dtype=torch.float64)(noise(dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_autocast_keeps_kernel_in_float32(algorithm):
    layer, x = make_layer(2, generator=MAGNet, algorithm=algorithm), noise(2)
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
def test_batches_can_have_one_or_zero_samples(dims, mode, algorithm):
    layer = make_layer(dims, kernel_size=5, padding_mode=mode, algorithm=algorithm, stride=2)
    x = noise(dims, batch=3)
    whole = layer(x)
    torch.testing.assert_close(layer(x[:1]), whole[:1], rtol=1e-5, atol=1e-6)
    empty = layer(x[:0].requires_grad_())
    assert empty.shape == (0, *whole.shape[1:])
    empty.sum().backward()
    assert all(not p.grad.any() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("generator", GENERATORS)
def test_layer_on_meta_device_can_be_initialized_later(generator):
    layer = make_layer(2, generator=generator, mask="gaussian", device="meta")
    assert all(p.is_meta for p in layer.parameters())
    assert layer.extent == layer.kernel_size  # there are no values to read
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    new = make_layer(2, generator=generator, mask="gaussian")
    assert layer.extent == new.extent
    assert layer(noise(2)).isfinite().all()
    assert layer.load_state_dict(new.state_dict()) == ([], [])


@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
def test_replicas_of_data_parallel_are_refused(parametrization, monkeypatch):
    """They have no parameters, so the layer would compute on the wrong device and in the wrong precision."""
    module = sys.modules["torch.nn.parallel.replicate"]
    monkeypatch.setattr(module, "_broadcast_coalesced_reshape", lambda tensors, *_, **__: [tensors] * 2)  # needs GPUs
    model = nn.Sequential(FlexConv1d(1, 1, 9, parametrization=parametrization))
    with pytest.raises(UsageError, match="DistributedDataParallel"):
        nn.parallel.replicate(model, [0, 1])


def test_layers_do_not_depend_on_torchs_default_device():
    x = torch.randn(2, 4, 20)
    with torch.device("meta"):  # every tensor that is made on this device by mistake raises an error
        for mask in (GaussianMask(1, sigma=0.2, device="cpu"), ChannelGaussianMask(1, 4, sigma=0.2, device="cpu")):
            layer = FlexConv1d(4, 4, 33, groups=4, mask=mask, device="cpu")
            layer.mask.set_(sigma=0.3)
            assert layer.extent == (21,)
            assert not layer(x, lengths=[20, 7], observed=x[:, 0] > -1).is_meta
            assert not layer.eval()(x).is_meta
        logits = FlexTCN(in_channels=4, num_classes=2, length=20, widths=[4], device="cpu")(x, lengths=[20, 7])
        assert not logits.is_meta


def test_layer_with_many_initial_sizes_on_the_meta_device():
    with torch.device("meta"):
        layer = FlexConv1d(4, 4, 33, groups=4, mask=ChannelGaussianMask(1, 4, sigma=0.1, largest_sigma=0.5))
    assert all(p.is_meta for p in layer.parameters())
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    torch.testing.assert_close(layer.mask.sigma[[0, -1], 0], torch.tensor([0.1, 0.5]))


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_meta_input_gives_output_shape(dims, algorithm):
    layer = make_layer(dims, stride=2, algorithm=algorithm, device="meta", mask="gaussian")
    y = layer(noise(dims, device="meta"))
    assert y.is_meta
    assert y.shape == make_layer(dims, stride=2)(noise(dims)).shape


def test_channels_last_input_gives_same_output():
    layer, x = make_layer(2), noise(2)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x), rtol=1e-5, atol=1e-6)


def test_inference_mode_equals_grad_mode():
    layer, x = make_layer(), noise()
    with torch.inference_mode():
        y = layer(x)
    torch.testing.assert_close(y, layer(x), rtol=0, atol=0)


# --- distributed ------------------------------------------------------------------------------------------------------


@pytest.fixture
def process_group(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
def test_ddp_has_equal_gradients(process_group, parametrization):
    layer = make_layer(parametrization=parametrization, mask="gaussian")
    twin = copy.deepcopy(layer)
    model = nn.parallel.DistributedDataParallel(layer)
    assert (parametrization == "scaled") == bool(list(model.buffers()))
    x = noise()
    for _ in range(3):
        for each in (model, twin):
            each.zero_grad()
            each(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for each in (layer, twin):
            each.mask.set_(sigma=1.5 * each.mask.sigma.detach())
    assert refresh_extents(model) == {"module": twin.extent}


@pytest.mark.parametrize("mask", [GaussianMask(2), RotatedGaussianMask(), ChannelGaussianMask(2, 2)])
def test_sharded_layer_computes_the_same_and_can_be_printed(process_group, mask):
    from torch.distributed.fsdp import fully_shard  # torch may be built without it

    layer, x = FlexConv2d(2, 2, 9, groups=2, mask=mask), noise(2)
    expected = layer(x)
    sharded = fully_shard(copy.deepcopy(layer), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    assert "threshold=0.1" in str(sharded)
    assert torch.equal(sharded(x), expected)


@pytest.mark.parametrize("name", ["magnet", "gabor", "fourier", "siren", "nsiren", "mlp", "njet"])
def test_reset_of_submodules_equals_reset_of_layer(name):
    layer = FlexConv1d(1, 2, 99, padding="causal", generator=name)
    state = torch.get_rng_state()
    layer.reset_parameters()
    expected = {key: value.clone() for key, value in layer.state_dict().items()}
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # the layer first, then its submodules
    torch.set_rng_state(state)
    layer.generator.reset_parameters()
    layer.mask.reset_parameters()
    for key, value in layer.state_dict().items():
        assert torch.equal(value, expected[key]), key


def test_reset_of_each_siren_map_keeps_its_range():
    layer = FlexConv1d(1, 64, 99, generator="siren")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    first, *later = layer.generator.maps
    assert first.weight.abs().max() > 0.5
    assert all(linear.weight.abs().max() < 0.02 for linear in later)


def test_changing_the_threshold_changes_size_and_kept_kernel():
    layer, x = FlexConv2d(1, 1, 17, mask=GaussianMask(2, sigma=0.2)).eval(), torch.randn(1, 1, 20, 20)
    with torch.no_grad():
        before = layer(x)
        assert layer.extent == (7, 7)
        layer.mask.threshold = None
        assert layer.extent == (17, 17)
        assert not torch.equal(layer(x), before)


def test_size_is_checked_again_after_a_change_of_precision():
    layer = FlexConv1d(1, 1, 33)
    layer(torch.randn(1, 1, 40))
    layer.double()
    with torch.no_grad():
        assert layer.kernel().shape[2:] == copy.deepcopy(layer).kernel().shape[2:]


def test_mask_keeps_a_loaded_mean():
    mask = GaussianMask(2)
    mask.load_state_dict({"mean": torch.tensor([0.5, -0.5]), "sigma": torch.tensor([0.1, 0.1])})
    assert FlexConv2d(1, 1, 9, mask=mask).mask.mean.tolist() == [0.5, -0.5]


def test_generator_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match=r"float32.*float64"):
        FlexConv2d(1, 1, 9, dtype=torch.float64, generator=MAGNet(2, 1))


def test_function_that_returns_no_generator_is_named():
    with pytest.raises(TypeError, match=r"KernelGenerator.*Linear"):
        FlexConv2d(1, 1, 9, generator=lambda *_, **__: nn.Linear(1, 1))
