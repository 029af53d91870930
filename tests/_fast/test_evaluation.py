"""Forward passes in evaluation that use what an earlier one has prepared, compared with the plain version."""

import collections
import copy
import functools
import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.host_overhead import calls, evaluation_as_on_a_gpu, small_networks
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, _registry, refresh_extents
from flexconv._fast import evaluation
from flexconv.errors import FlexConvError
from flexconv.ops._select import launches_are_free
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

LAYERS = {
    "1D": lambda: FlexConv1d(3, 4, 21),
    "causal": lambda: FlexConv1d(3, 4, 21, padding="causal"),
    "2D": lambda: FlexConv2d(3, 4, (9, 13)),
    "off-center": lambda: FlexConv2d(3, 4, 33, mask=GaussianMask(2, mean=(0.4, 0.0), sigma=0.2)),
    "larger than the input": lambda: FlexConv2d(3, 4, 33, mask=GaussianMask(2, sigma=2.0)),
    "strided": lambda: FlexConv2d(3, 4, 9, stride=(2, 1), dilation=(1, 2)),
    "negative padding": lambda: FlexConv2d(3, 4, 9, padding="valid"),
    "depthwise": lambda: FlexConv2d(4, 4, 9, groups=4),
    "3D": lambda: FlexConv3d(2, 3, 5),
    "no bias": lambda: FlexConv2d(3, 4, 9, bias=False),
    "no mask": lambda: FlexConv2d(3, 4, 9, mask=None),
    "fft": lambda: FlexConv2d(3, 4, 9, algorithm="fft"),
    "dft": lambda: FlexConv2d(3, 4, 9, algorithm="dft"),
    "float64": lambda: FlexConv2d(3, 4, 9, dtype=torch.float64),
}


def input_of(layer, size=12):
    return torch.randn(2, layer.in_channels, *(size,) * layer.dims, device=DEVICE, dtype=layer.dtype)


def plain(layer, x):
    """The output without anything that was kept."""
    version = _registry._versions.pop("nn.convolve")
    try:
        fresh = copy.deepcopy(layer)
        with torch.no_grad():
            return fresh(x)
    finally:
        _registry._versions["nn.convolve"] = version


@pytest.fixture
def prepared(monkeypatch):
    """Counts how often something was prepared: "record" for a kernel, "way" for the shape of an input."""
    found = []
    for name in ("_make_record", "_make_way"):
        original = getattr(evaluation, name)

        def counted(*given, name=name, original=original):
            found.append(name.removeprefix("_make_"))
            return original(*given)

        monkeypatch.setattr(evaluation, name, counted)
    return found


@pytest.mark.parametrize("name", LAYERS)
def test_equals_the_plain_version(name, prepared):
    layer = LAYERS[name]().to(DEVICE).eval()
    x = input_of(layer)
    expected = plain(layer, x)
    prepared.clear()
    with torch.no_grad():
        first, second = layer(x), layer(x)
    assert prepared == ["record", "way"]
    assert torch.equal(first, second)
    assert relative_error(first, expected) < 1e-6


def test_layers_with_attributes_that_can_change_unnoticed(prepared):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    layer.generator.factors = {"two": 2.0}
    layer.generator.register_forward_hook(lambda module, _, y: module.factors["two"] * y)
    x = input_of(layer)
    with torch.no_grad():
        before = layer(x) - layer.bias[:, None, None]
        layer.generator.factors["two"] = 4.0
        assert relative_error(layer(x) - layer.bias[:, None, None], 2 * before) < 1e-5
    assert prepared == ["record", "way"] * 2


def test_other_shapes_and_dtypes(prepared):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    with torch.no_grad():
        for size in (12, 7, 12, 20, 7):
            x = input_of(layer, size)
            assert relative_error(layer(x), plain(layer, x)) < 1e-6
        prepared.clear()
        x = input_of(layer)
        with torch.autocast(DEVICE, torch.bfloat16):
            y = layer(x)
            assert torch.equal(y, plain(layer, x))
        assert y.dtype is torch.bfloat16
        assert layer(x).dtype is torch.float32
        with launches_are_free():  # another algorithm may be the fastest
            layer(x)
    assert "way" in prepared


def test_inputs_without_a_batch_and_empty_batches():
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        batch = layer(x)
        assert relative_error(layer(x[0]), batch[0]) < 1e-5
        assert layer(x[:0]).shape == (0, 4, 12, 12)
        assert torch.equal(layer(x), batch)


CHANGES = {
    "parameter in place": lambda layer: layer.generator.output.weight.detach().mul_(2),
    "parameter": lambda layer: setattr(
        layer.generator.output, "weight", nn.Parameter(layer.generator.output.weight * 2)
    ),
    "data": lambda layer: setattr(
        layer.generator.output.weight, "data", 2 * layer.generator.output.weight.detach().clone()
    ),
    "mask": lambda layer: layer.mask.set_(sigma=0.7),
    "another mask": lambda layer: setattr(layer, "mask", GaussianMask(2, sigma=0.6).to(DEVICE)),
    "no mask": lambda layer: setattr(layer, "mask", None),
    "threshold": lambda layer: setattr(layer.mask, "threshold", 0.4),
    "hook": lambda layer: layer.generator.register_forward_hook(lambda *given: 2 * given[-1]),
    "stride": lambda layer: setattr(layer, "stride", (2, 2)),
    "algorithm": lambda layer: setattr(layer, "algorithm", "fft"),
    "padding mode": lambda layer: setattr(layer, "padding_mode", "circular"),
    "bias": lambda layer: layer.bias.detach().add_(1.0),
    "another bias": lambda layer: setattr(layer, "bias", nn.Parameter(layer.bias + 1.0)),
    "no bias": lambda layer: setattr(layer, "bias", None),
    "state": lambda layer: layer.load_state_dict({name: 1.1 * each for name, each in layer.state_dict().items()}),
    "reset": lambda layer: layer.reset_parameters(),
    "dtype": lambda layer: layer.double(),
    "optimizer": lambda layer: train_once(layer),
    "buffer": lambda layer: layer.generator.output.register_buffer("basis", None),
    "dictionary of hooks": lambda layer: hook_in_another_dictionary(layer.generator),
    "sample": lambda layer: setattr(layer, "sample", lambda window: 2 * type(layer).sample(layer, window)),
}


def hook_in_another_dictionary(module):
    module._forward_hooks = collections.OrderedDict()
    module.register_forward_hook(lambda *given: 2 * given[-1])


def train_once(layer):
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        layer(input_of(layer)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed(name):
    torch.manual_seed(0)
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    nn.init.uniform_(layer.bias)
    with torch.no_grad():
        before = layer(x)
        assert torch.equal(layer(x), before)
        CHANGES[name](layer)
        x = x.to(layer.dtype)
        after = layer(x)
        if name == "sample":  # a deep copy would call the method of this layer
            bias = layer.bias[:, None, None]
            assert relative_error(after - bias, 2 * (before - bias)) < 1e-5
        else:
            assert relative_error(after, plain(layer, x)) < 1e-6
        assert torch.equal(layer(x), after)


@pytest.mark.skipif(DEVICE == "cuda", reason="as on a GPU")
@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed_without_comparing_values(name):
    with evaluation_as_on_a_gpu():
        test_changes_are_noticed(name)


def test_lists_that_change_are_noticed(prepared):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        layer(x)
        prepared.clear()
        layer.mask.initial_sigma[0] *= 2
        layer(x)
        layer(x)
    assert prepared.count("record") == 1


@pytest.mark.parametrize("part", ["", "generator", "generator.output", "mask"])
@pytest.mark.parametrize("kind", ["attribute", "parameter", "buffer", "module", "forward hook"])
def test_additions_and_removals_are_noticed(part, kind, prepared):
    """None of these changes the kernel, but another layer or generator could use it."""
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    module = layer.get_submodule(part)
    x = input_of(layer)
    with torch.no_grad():
        y = layer(x)
        prepared.clear()
        if kind == "forward hook":
            handle = module.register_forward_hook(lambda *_: None)
        else:
            tensor = torch.zeros(2, device=DEVICE)
            added = {"attribute": 1.5, "parameter": nn.Parameter(tensor), "module": nn.Identity()}.get(kind, tensor)
            module.register_buffer("added", added) if kind == "buffer" else setattr(module, "added", added)
        assert torch.equal(layer(x), y)
        assert torch.equal(layer(x), y)
        assert prepared.count("record") == 1
        handle.remove() if kind == "forward hook" else delattr(module, "added")
        assert torch.equal(layer(x), y)
        assert torch.equal(layer(x), y)
        assert prepared.count("record") == 2


def test_center_and_width_that_are_read_between_calls(prepared):
    """Later calls check that nobody writes into them."""
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        y = layer(x)
        layer.mask.sigma  # noqa: B018  (reading it is what counts)
        assert torch.equal(layer(x), y)
        mean = layer.mask.mean
        assert torch.equal(layer(x), y)
        assert prepared.count("record") == 2  # the second one also for what is read after it
        mean.add_(0.1)
        with pytest.raises(FlexConvError, match="set_"):
            layer(x)
        assert torch.equal(layer(x), y)
        sigma = layer.mask.sigma
        assert torch.equal(layer(x), y)
        sigma.add_(0.1)
        with pytest.raises(FlexConvError, match="set_"):
            layer(x)
        assert torch.equal(layer(x), y)


@pytest.mark.skipif(DEVICE == "cuda", reason="values on a GPU are not compared")
def test_writes_through_data_are_noticed():
    layer = FlexConv2d(3, 4, 9).eval()
    x = input_of(layer)
    with torch.no_grad():
        before = layer(x)
        layer.generator.output.weight.data.mul_(2)
        assert not torch.equal(layer(x), before)
        assert torch.equal(layer(x), plain(layer, x))


def test_equal_settings_do_not_sample_again(prepared):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        layer(x)
        kept = layer._provider._cache._entry.kernel
        layer.stride = tuple(int(each) for each in layer.stride)
        refresh_extents(layer)
        layer(x)
        assert layer._provider._cache._entry.kernel is kept
        prepared.clear()
        layer(x)
    assert prepared == []


def test_training_and_gradients_are_left_to_others(prepared):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    layer(x).sum().backward()
    with torch.no_grad():
        layer.train()(x)
    assert prepared == []


def test_function_transforms_and_forward_mode():
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        y = layer(x)
        assert relative_error(torch.func.vmap(layer)(x.unsqueeze(0))[0], y) < 1e-5
        _, tangent = torch.func.jvp(layer, (x,), (x,))
        bias = layer.bias[:, None, None]
        assert relative_error(tangent, y - bias) < 1e-4
        doubled = {name: 2 * each for name, each in layer.named_parameters() if name == "generator.output.weight"}
        assert not torch.equal(torch.func.functional_call(layer, doubled, (x,)), y)
        assert torch.equal(layer(x), y)


def test_inference_mode_and_inference_tensors():
    x = torch.randn(2, 3, 12, 12, device=DEVICE)
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    with torch.inference_mode():
        y = layer(x)
        assert torch.equal(layer(x), y)
        made_inside = FlexConv2d(3, 4, 9).to(DEVICE).eval()
        before = made_inside(x)
        made_inside.generator.output.weight.mul_(2)  # has no version
        assert not torch.equal(made_inside(x), before)
    layer(x).sum().backward()
    assert layer.bias.grad is not None
    with torch.no_grad():
        layer(x)
        with torch.inference_mode():
            doubled = 2 * layer.generator.output.weight
        layer.generator.output.weight.data = doubled
        after = layer(x)
        layer._provider.clear()
        assert torch.equal(after, layer(x))
        assert not torch.equal(after, y)


@pytest.mark.parametrize(("shape", "word"), [((2, 5, 9, 9), "in_channels"), ((2, 3, 9), "shape"), ((9,), "shape")])
def test_errors_are_those_of_the_plain_version(shape, word):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    with torch.no_grad():
        layer(input_of(layer))
        with pytest.raises(ValueError, match=word):
            layer(torch.randn(shape, device=DEVICE))
        with pytest.raises(TypeError, match="float64"):
            layer(torch.randn(2, 3, 9, 9, device=DEVICE, dtype=torch.float64))
        with pytest.raises(FlexConvError, match="meta"):
            layer(torch.randn(2, 3, 9, 9, device="meta"))
        layer.mask.sigma.fill_(0.3)
        with pytest.raises(FlexConvError, match="set_"):
            layer(input_of(layer))


def test_meta_tensors_are_left_to_the_plain_version(prepared):
    layer = FlexConv2d(3, 4, 9, device="meta").eval()
    with torch.no_grad():
        assert layer(torch.randn(2, 3, 9, 9, device="meta")).shape == (2, 4, 9, 9)
    assert prepared == []


def test_direct_convolutions_elsewhere_than_on_a_cpu_call_torch():
    """On a GPU, torch's own function gets symmetric padding, and the rest is added before."""
    layer = LAYERS["off-center"]().eval()
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        expected, weight = layer(x), layer.kernel()
    layer.algorithm = "direct"
    way = evaluation._make_way(layer, x.to("meta"), weight.to("meta"))
    assert way is not None
    assert way.added is not None
    pads, cropped = way.geometry.pads, weight[(..., *(slice(size) for size in way.weight.shape[2:]))]
    assert [left - both for (left, _), both in zip(pads, way.padding, strict=True)] == way.added[::-1][1::2]
    if cropped.shape == weight.shape:  # no taps were removed
        with torch.no_grad():
            y = F.conv2d(F.pad(x, way.added), weight, layer.bias, *way.geometry[:1], way.padding)
        assert relative_error(y, expected) < 1e-5


def test_calls_of_python_functions():
    """About a quarter more than now. The plain version calls 341 on a CPU.

    On a CPU, 14 calls compare values of parameters, and 17 avoid faults of oneDNN.
    """
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        layer(x)
        number, _ = calls(lambda: layer(x))
    assert number <= {"cpu": 60, "cuda": 18}[DEVICE]


@pytest.mark.skipif(DEVICE == "cuda", reason="what only a CPU needs is left out")
def test_calls_of_python_functions_in_a_network():
    """A FlexConv calls 7 more functions than a plain convolution."""
    nets, x = small_networks(), torch.randn(1, 3, 4, 4)
    layers = sum(isinstance(module, FlexConv2d) for module in nets["FlexNet-7"].modules())
    numbers = {}
    with evaluation_as_on_a_gpu(), torch.inference_mode():
        for name, net in nets.items():
            net(x)
            numbers[name], _ = calls(lambda net=net: net(x))
    assert numbers["FlexNet-7"] - numbers["materialized"] <= 9 * layers


def test_copies_have_their_own_kernels():
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    x = input_of(layer)
    with torch.no_grad():
        y = layer(x)
        shallow = copy.copy(layer)  # shares everything, also what is kept
        assert torch.equal(shallow(x), y)
        deep = copy.deepcopy(layer)
        deep.generator.output.weight.mul_(2)
        assert torch.equal(layer(x), y)
        assert not torch.equal(deep(x), y)
        shallow.stride = (2, 2)
        assert shallow(x).shape[-1] == 6
        assert torch.equal(layer(x), y)


@pytest.mark.parametrize("hooked", [False, True])
def test_nothing_keeps_a_layer_alive(hooked):
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    if hooked:
        layer.register_forward_hook(functools.partial(_do_nothing, layer))
    with torch.no_grad():
        layer(input_of(layer))
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None


def test_training_frees_the_kernel():
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    with torch.no_grad():
        layer(input_of(layer))
    reference = weakref.ref(layer._provider._cache._entry.kernel)
    layer.train()
    gc.collect()
    assert reference() is None


def _do_nothing(*_):
    """A hook."""


def test_threads():
    layer = FlexConv2d(3, 4, 9).to(DEVICE).eval()
    inputs = [input_of(layer, size) for size in (8, 9, 10, 11)]
    with torch.no_grad():
        expected = [plain(layer, x) for x in inputs]
    wrong = []

    def run(x, y):
        with torch.no_grad():
            for _ in range(20):
                if relative_error(layer(x), y) > 1e-6:
                    wrong.append(x.shape)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(inputs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
