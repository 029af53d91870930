"""The eager forward pass of a layer, compared with the plain one. Without a GPU, Triton interprets the kernels."""

import copy
import functools
import gc
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

pytest.importorskip("triton")

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, _registry
from flexconv._fast import eager, eager_dft, eager_fft, eager_kernel, fused_sampler, products, sampler_launches
from flexconv.nn.kernels import FourierNet, MAGNet
from flexconv.ops._select import launches_are_free
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = functools.partial(MAGNet, hidden=9, layers=1)

LAYERS = {
    "1D": lambda **o: FlexConv1d(3, 4, 21, generator=SMALL, **o),
    "causal": lambda **o: FlexConv1d(3, 4, 21, padding="causal", generator=SMALL, **o),
    "2D": lambda **o: FlexConv2d(3, 4, (9, 13), generator=SMALL, **o),
    "larger than the input": lambda **o: FlexConv2d(3, 4, 33, generator=SMALL, mask=GaussianMask(2, sigma=2.0), **o),
    "strided": lambda **o: FlexConv2d(3, 4, 9, stride=(2, 1), dilation=(1, 2), generator=SMALL, **o),
    "negative padding": lambda **o: FlexConv2d(3, 4, 9, padding="valid", generator=SMALL, **o),
    "groups": lambda **o: FlexConv2d(4, 6, 9, groups=2, generator=SMALL, **o),
    "depthwise": lambda **o: FlexConv2d(4, 4, 9, groups=4, generator=SMALL, **o),
    "3D": lambda **o: FlexConv3d(2, 3, 5, generator=SMALL, **o),
    "fourier": lambda **o: FlexConv2d(3, 4, 9, generator=functools.partial(FourierNet, hidden=9, layers=1), **o),
    "no bias": lambda **o: FlexConv2d(3, 4, 9, bias=False, generator=SMALL, **o),
    "no mask": lambda **o: FlexConv2d(3, 4, 9, mask=None, generator=SMALL, **o),
    "rotated": lambda **o: FlexConv2d(3, 4, 9, mask=RotatedGaussianMask(sigma=0.4, angle=0.3), generator=SMALL, **o),
    "authors": lambda **o: FlexConv2d(3, 4, 9, mask=GaussianMask(2, sigma=0.4, form="authors"), generator=SMALL, **o),
}
LEFT_TO_THE_PLAIN_VERSION = {
    "direct": (),
    "dft": ("depthwise", "negative padding", "3D"),
    "fft": ("depthwise", "negative padding", "strided"),
}


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_sampler, "supports_device", lambda _: True)
    fused_sampler._grids.clear()


@pytest.fixture
def computed(monkeypatch):
    """Whether each convolution so far was computed here."""
    results = []

    def recorded(*args):
        y = eager.convolve(*args)
        results.append(y is not NotImplemented)
        return y

    monkeypatch.setitem(_registry._versions, "nn.convolve", recorded)
    return results


def input_of(layer, size=12):
    return torch.randn(2, layer.in_channels, *(size,) * layer.dims, device=DEVICE, dtype=layer.dtype)


def plain(monkeypatch, function):
    """The result of a function without the fast versions."""
    with monkeypatch.context() as patch:
        for name in ("nn.convolve", "nn.sample", "ops.complex_product", "ops.row_product"):
            patch.delitem(_registry._versions, name)
        return function()


def results_of(layer, x, *, half=False):
    """The output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        y = layer(x)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(y.shape, generator=generator).to(y)
    y.backward(gradient)
    return {"y": y, "x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}


def compare(monkeypatch, layer, x, *, half=False):
    """Check that errors are below a limit, or below twice those of the plain version if this is more."""
    layer = layer.to(DEVICE)
    other, precise = copy.deepcopy(layer), copy.deepcopy(layer).double()
    found = results_of(layer, x, half=half)
    expected = plain(monkeypatch, lambda: results_of(other, x, half=half))
    truth = plain(monkeypatch, lambda: results_of(precise, x.double()))
    for name, value in expected.items():
        assert (found[name] is None) == (value is None), name
        if value is not None:
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            limit = 1e-5 if name == "y" else 1e-3 if name.startswith("mask.") else 1e-4
            limit = max(limit, 2 * relative_error(value.double(), truth[name]))
            assert relative_error(found[name].double(), truth[name]) < limit, name


@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
@pytest.mark.parametrize(
    ("name", "parametrization"),
    [*((name, "scaled") for name in LAYERS), ("causal", "paper"), ("2D", "paper"), ("no mask", "paper")],
)
def test_equals_the_plain_version(monkeypatch, computed, name, algorithm, parametrization):
    layer = LAYERS[name](algorithm=algorithm, parametrization=parametrization)
    compare(monkeypatch, layer, input_of(layer))
    assert computed == [name not in LEFT_TO_THE_PLAIN_VERSION[algorithm]]


@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["autocast", "bfloat16"])
def test_half_precision(monkeypatch, computed, algorithm, dtype):
    layer = FlexConv2d(9, 5, 17, generator=SMALL, algorithm=algorithm, mask=GaussianMask(2, sigma=0.6), dtype=dtype)
    compare(monkeypatch, layer, input_of(layer, 16), half=dtype == torch.float32)
    assert computed == [True]


@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
@pytest.mark.parametrize("parametrization", ["scaled", "paper"])
def test_second_derivatives(monkeypatch, computed, algorithm, parametrization):
    options = {"algorithm": algorithm, "parametrization": parametrization, "mask": GaussianMask(2, sigma=0.4)}
    layer = FlexConv2d(2, 3, 9, generator=SMALL, **options).to(DEVICE)
    x = input_of(layer, 9)

    def second(layer):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        trained = [given, *(p for p in layer.parameters() if p.requires_grad)]
        gradients = torch.autograd.grad(layer(given).square().sum(), trained, create_graph=True)
        sum(g.square().sum() for g in gradients).backward()
        return [each.grad for each in trained]

    expected = plain(monkeypatch, lambda: second(copy.deepcopy(layer)))
    for found, other in zip(second(layer), expected, strict=True):
        assert relative_error(found, other) < 1e-3
    assert computed == [True]


@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
def test_other_memory_formats(monkeypatch, computed, algorithm):
    layer = FlexConv2d(4, 4, 9, generator=SMALL, algorithm=algorithm).to(DEVICE)
    x = input_of(layer).to(memory_format=torch.channels_last).requires_grad_()
    gradient = torch.randn_like(x)

    def results():
        y = layer(x)
        return y, *torch.autograd.grad(y, [x, layer.bias, layer.generator.output.weight], gradient)

    for found, expected in zip(results(), plain(monkeypatch, results), strict=True):
        assert relative_error(found, expected) < 1e-4
    assert computed == [True]


def test_only_wanted_gradients(monkeypatch, computed):
    for algorithm in ("direct", "dft", "fft"):
        layer = FlexConv2d(2, 3, 9, generator=SMALL, algorithm=algorithm)
        layer.mask.requires_grad_(False)
        layer.generator.output.weight.requires_grad_(False)
        compare(monkeypatch, layer, input_of(layer, 9))
        layer.requires_grad_(False)
        compare(monkeypatch, layer, input_of(layer, 9))
    assert computed == [True] * 6


# --- changes of a layer -----------------------------------------------------------------------------------------------


def change_stride(layer):
    layer.stride = (2, 2)


def change_mask(layer):
    layer.mask = GaussianMask(2, sigma=0.9).to(DEVICE)


def change_threshold(layer):
    layer.mask.threshold = None


def change_sigma(layer):
    layer.mask.set_(sigma=0.8)


def change_generator(layer):
    layer.generator = SMALL(2, 12).to(DEVICE)


def change_features(layer):
    with torch.no_grad():
        layer.generator.phase += 1.0


def change_basis(layer):
    with torch.no_grad():
        layer.generator.output.basis *= 2.0


def change_algorithm(layer):
    layer.algorithm = "dft"


def train_features(layer):
    layer.generator.requires_grad_()


def replace_weight(layer):
    layer.generator.output.weight = nn.Parameter(2 * layer.generator.output.weight.detach())


def load(layer):
    torch.manual_seed(5)
    layer.load_state_dict(FlexConv2d(3, 4, 9, generator=SMALL).state_dict())


CHANGES = [
    change_stride, change_mask, change_threshold, change_sigma, change_generator, change_features, change_basis,
    change_algorithm, train_features, replace_weight, load,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_a_layer(monkeypatch, computed, change):
    layer = FlexConv2d(3, 4, 9, generator=SMALL, algorithm="direct").to(DEVICE)
    x = input_of(layer)
    for _ in range(2):
        layer(x).sum().backward()
    change(layer)
    compare(monkeypatch, layer, x)
    compare(monkeypatch, layer, input_of(layer, 10))
    assert all(computed)


def test_training_follows_the_masks(monkeypatch, computed):
    layer = FlexConv2d(2, 2, 33, generator=SMALL, algorithm="direct").to(DEVICE)
    other = copy.deepcopy(layer)
    x, sizes = torch.randn(1, 2, 20, 20, device=DEVICE), set()

    def train(layer):
        optimizer = torch.optim.Adam(layer.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            (layer(x).square().mean() - 5 * layer.mask.growth.sum()).backward()
            sizes.add(layer.window)
            optimizer.step()
        return [p.detach() for p in layer.parameters()]

    for found, expected in zip(train(layer), plain(monkeypatch, lambda: train(other)), strict=True):
        assert relative_error(found, expected) < 1e-3
    assert len(sizes) > 1
    assert all(computed)


# --- what is left to the plain version --------------------------------------------------------------------------------


class OtherPads(FlexConv2d):
    def pads_for(self, window):
        return super().pads_for(window)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: FlexConv2d(3, 4, 9, generator="siren"),
        lambda: FlexConv2d(3, 4, 9, dtype=torch.float64),
        lambda: FlexConv2d(3, 4, 9, padding_mode="circular"),
        lambda: FlexConv1d(3, 4, 5, generator=SMALL, algorithm="reference"),
        lambda: OtherPads(3, 4, 9),
        lambda: FlexConv2d(3, 4, 9, dtype=torch.float16),
    ],
    ids=["siren", "float64", "padding mode", "reference", "subclass", "float16"],
)
def test_other_layers(monkeypatch, computed, layer):
    layer = layer()
    if layer.dtype == torch.float16 and DEVICE == "cuda":
        pytest.skip("float16 has its own limits")
    compare(monkeypatch, layer, input_of(layer))
    assert computed == [False]


def test_without_triton_and_on_other_devices(monkeypatch):
    monkeypatch.undo()  # ask for the device, and for Triton
    monkeypatch.setattr(fused_sampler, "has_triton", lambda: False)
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    x = input_of(layer).requires_grad_()
    assert eager.convolve(layer, x, layer.bias) is NotImplemented
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()  # twice
    assert x.grad is not None
    empty = FlexConv2d(3, 4, 9, generator=SMALL, device="meta")
    assert empty(x.to("meta")).shape == (2, 4, 12, 12)


def test_hooks_are_called(computed):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    layer(input_of(layer))
    calls = []
    hook = layer.mask.register_forward_hook(lambda *_: calls.append("mask"))
    layer(input_of(layer))
    hook.remove()
    layer(input_of(layer))
    assert calls == ["mask"]
    assert computed == [True, False, True]


def test_evaluation_without_gradients_keeps_its_kernel(computed):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE).eval()
    with torch.no_grad():
        layer(input_of(layer))
        kept = layer._provider._cache._entry
        layer(input_of(layer))
    assert kept is not None
    assert layer._provider._cache._entry is kept
    assert computed == [True, True]  # by `evaluation.py`


def test_function_transforms(computed):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    parameters = dict(layer.named_parameters())
    x = input_of(layer)
    torch.func.grad(lambda given: torch.func.functional_call(layer, given, (x,)).square().sum())(parameters)
    assert computed == [False]


@pytest.mark.parametrize(("shape", "word"), [((2, 5, 9, 9), "in_channels"), ((2, 3, 9), "shape"), ((9,), "shape")])
def test_errors_are_those_of_the_plain_version(shape, word):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    layer(input_of(layer))
    with pytest.raises(ValueError, match=word):
        layer(torch.randn(shape, device=DEVICE))
    with pytest.raises(TypeError, match="float64"):
        layer(torch.randn(2, 3, 9, 9, device=DEVICE, dtype=torch.float64))


def test_inputs_without_a_batch(monkeypatch):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    x = input_of(layer)[0]
    assert layer(x).shape == (4, 12, 12)
    assert relative_error(layer(x), plain(monkeypatch, lambda: layer(x))) < 1e-5


def test_launches_that_are_free(computed):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    with launches_are_free():
        layer(input_of(layer))
    assert computed == [False]


@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
def test_captured_graphs_own_what_they_read(monkeypatch, computed, algorithm):
    layer = FlexConv2d(3, 4, 9, generator=SMALL, algorithm=algorithm).to(DEVICE)
    x = input_of(layer)
    layer(x).sum().backward()
    (problem,) = layer._provider._cache.path._problems.values()
    grids = []
    sample_basis = eager_kernel.sample_basis

    def recorded(sampling, features, *args, **kwargs):
        kept = fused_sampler._constant_features[layer.generator].features
        grids.append((sampling.grid is problem.sampling.grid, features is kept))
        return sample_basis(sampling, features, *args, **kwargs)

    for module in (eager_kernel, eager_dft, eager_fft):
        monkeypatch.setattr(module, "sample_basis", recorded)
    for module in (eager, fused_sampler, eager_fft):
        monkeypatch.setattr(module, "capturing", lambda _: True)
    y = layer(x)
    y.sum().backward()
    assert grids == [(False, False)]
    assert relative_error(y, plain(monkeypatch, lambda: layer(x))) < 1e-4
    assert computed == [True, True]


def test_checkpoints(monkeypatch):
    for algorithm in ("direct", "dft", "fft"):
        layer = FlexConv2d(3, 4, 9, generator=SMALL, algorithm=algorithm).to(DEVICE)
        x = input_of(layer).requires_grad_()
        gradients = []
        for again in (False, True):
            y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if again else layer(x)
            gradients.append(torch.autograd.grad(y.square().sum(), [x, layer.mask.growth, layer.bias]))
        for found, expected in zip(*gradients, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("part", [None, "generator", "mask"])
def test_nothing_keeps_a_layer_alive(part):
    layer = FlexConv2d(3, 4, 9, generator=SMALL).to(DEVICE)
    if part is not None:
        getattr(layer, part).register_forward_hook(functools.partial(_do_nothing, layer))
    layer(input_of(layer)).sum().backward()
    reference = weakref.ref(layer)
    del layer
    gc.collect()
    assert reference() is None


def _do_nothing(*_):
    """A hook."""


# --- on a GPU ---------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # parameters are used on several streams
@pytest.mark.parametrize("algorithm", ["direct", "dft", "fft"])
def test_captured_steps(computed, algorithm):
    layer = FlexConv2d(3, 4, 9, generator=SMALL, algorithm=algorithm).cuda()
    x = input_of(layer)
    parameters = [layer.mask.growth, layer.bias, layer.generator.output.weight]

    def step():
        y = layer(x)
        return y, *torch.autograd.grad(y.square().sum(), parameters)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        layer.generator.output.weight *= 2.0
        x.mul_(3.0)
    layer._provider._cache.path = None
    fused_sampler._grids.clear()
    fused_sampler._constant_features.clear()
    torch.full((1 << 20,), torch.nan, device="cuda")
    graph.replay()
    for found, expected in zip(captured, step(), strict=True):
        assert relative_error(found, expected) < 1e-4
    assert all(computed)


@gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_steps_on_a_gpu_equal_those_without_direct_launches(monkeypatch, half, full):
    from flexconv._fast import launches

    losses = []
    for direct in (True, False):
        torch.manual_seed(0)
        for cached in (sampler_launches._mask_launch, sampler_launches._mask_backward_launch, products._complex_plan):
            cached.cache_clear()
        monkeypatch.setattr(launches, "ENABLED", direct)
        net = nn.Sequential(FlexConv2d(3, 16, 33), nn.ReLU(), FlexConv2d(16, 16, 33, parametrization="paper")).cuda()
        if full:
            for layer in (net[0], net[2]):
                layer.mask.set_(sigma=2.0)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
        x = torch.randn(16, 3, 32, 32, device="cuda")
        found = []
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = net(x).float().square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
