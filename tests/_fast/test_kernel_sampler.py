"""`KernelSampler`: kernels of several layers sampled at once equal those of each layer."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, at_resolution, create_model
from flexconv._fast import kernel_sampler
from flexconv._fast.kernel_sampler import LONG_LINE, KernelSampler
from flexconv._fast.regions import compiled_regions
from flexconv.nn import GENERATORS, MAGNet
from flexconv.ops import conv2d
from flexconv.ops._factored import as_tensor


class Net(nn.Module):
    """Layers whose masks have different widths and means."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for number, layer in enumerate(layers):
            if layer.mask is not None:
                layer.mask.set_(sigma=0.06 * (number + 1), mean=0.1 * number)


def kernels_and_gradients(net, kernels):
    """Return the kernels without history, and the gradients of a random linear function of them."""
    net.zero_grad()
    torch.manual_seed(1)
    sum((k * torch.randn_like(k)).sum() for k in kernels).backward()
    return [k.detach() for k in kernels], {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


def assert_same_kernels(net, *, groups=None, alone=None):
    """Compare kernels and gradients of a sampler with those of each layer.

    `groups` and `alone` are the expected numbers of batches and of layers that cannot be batched.
    """
    sampler = KernelSampler(net)
    if groups is not None:
        assert (len(sampler.groups), len(sampler.alone)) == (groups, alone)
    expected = kernels_and_gradients(net, [layer.sample(layer.window) for layer in sampler.layers])
    with sampler.ahead():
        kernels = [as_tensor(layer._provider.prepared) for layer in sampler.layers]
    assert all(layer._provider.prepared is None for layer in sampler.layers)
    kernels, gradients = kernels_and_gradients(net, kernels)
    for kernel, wanted in zip(kernels, expected[0], strict=True):
        torch.testing.assert_close(kernel, wanted, rtol=1e-12, atol=1e-13)
    assert gradients.keys() == expected[1].keys()
    largest = max(wanted.abs().max().item() for wanted in expected[1].values())
    for name, wanted in expected[1].items():
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-9, atol=1e-13 * largest, msg=name)


@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
@pytest.mark.parametrize(
    ("generator", "layer"),
    [(g, layer) for g in sorted(GENERATORS) for layer in (FlexConv1d, FlexConv2d, FlexConv3d) if g != "njet"]
    + [("njet", FlexConv2d)],
)
def test_kernels_of_each_generator_equal_single_layers(generator, layer, parametrization):
    torch.manual_seed(0)
    size = 17 if layer is not FlexConv3d else 7
    mask = None if generator == "njet" else "gaussian"
    options = {"generator": generator, "mask": mask, "parametrization": parametrization, "dtype": torch.float64}
    make = functools.partial(layer, kernel_size=size, **options)
    net = Net(make(2, 3), make(3, 4), make(4, 1))
    batched = generator != "njet"  # an N-Jet has no features to share
    assert_same_kernels(net, groups=int(batched), alone=0 if batched else 3)


@pytest.mark.parametrize("mask", [GaussianMask, RotatedGaussianMask])
def test_kernels_of_scaled_layers_equal_single_layers(mask):
    torch.manual_seed(0)
    make = functools.partial(FlexConv2d, kernel_size=17, dtype=torch.float64)
    channels = (2, 3), (2, 3), (3, 4)  # with other channels, the gradients of a mask are damped otherwise
    layers = [make(*each, mask=mask(2, form="scaled", dtype=torch.float64)) for each in channels]
    net = Net(*layers)
    with torch.no_grad():
        for number, layer in enumerate(layers):
            layer.mask.growth.fill_(0.1 * number)
            layer.mask.shift.fill_(-0.05 * number)
    assert_same_kernels(net, groups=1, alone=0)


def test_scaled_layers_with_different_channels_are_sampled_together():
    torch.manual_seed(0)
    make = functools.partial(FlexConv2d, kernel_size=9, parametrization="scaled", dtype=torch.float64)
    assert_same_kernels(Net(make(2, 3), make(3, 8), make(8, 1)), groups=1, alone=0)


@pytest.mark.parametrize("taps", [LONG_LINE, LONG_LINE + 3])
def test_long_kernels_are_sampled_in_pieces(taps):
    make = functools.partial(FlexConv1d, kernel_size=taps, padding="causal", mask=None, dtype=torch.float64)
    assert_same_kernels(Net(make(1, 2), make(2, 1)), groups=1, alone=0)


def test_layers_with_different_settings_are_sampled_separately():
    double = {"dtype": torch.float64}
    net = Net(
        FlexConv2d(2, 3, 9, **double),
        FlexConv2d(3, 3, 9, **double),
        FlexConv2d(3, 3, (9, 7), **double),  # another kernel_size
        FlexConv2d(3, 3, 9, generator="siren", **double),
        FlexConv2d(3, 3, 9, mask=None, **double),
        FlexConv2d(3, 3, 9, mask=RotatedGaussianMask(2, **double), **double),
        FlexConv2d(3, 3, 9, mask=GaussianMask(2, threshold=0.3, **double), **double),
        FlexConv2d(3, 3, 9, mask=GaussianMask(2, form="authors", **double), **double),
        FlexConv2d(4, 4, 9, groups=4, **double),  # batched with the first two; channels may differ
    )
    assert_same_kernels(net, groups=7, alone=0)


def test_layer_with_forward_hook_is_sampled_alone():
    net = Net(FlexConv2d(1, 1, 9, dtype=torch.float64), FlexConv2d(1, 1, 9, dtype=torch.float64))
    net.layers[0].generator.register_forward_hook(lambda *everything: 2 * everything[-1])
    assert_same_kernels(net, groups=1, alone=1)


@pytest.mark.parametrize("submodule", ["mask", "generator.output"])
def test_layer_with_hook_on_submodule_is_sampled_alone(submodule):
    net = Net(*(FlexConv2d(1, 1, 9, dtype=torch.float64) for _ in range(3)))
    net.layers[1].get_submodule(submodule).register_forward_hook(lambda *everything: 2 * everything[-1])
    assert_same_kernels(net, groups=1, alone=1)
    layer, x = net.layers[1], torch.randn(2, 1, 9, 9, dtype=torch.float64)
    expected = conv2d(x, layer.kernel(), layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-14)


def test_layers_with_custom_masks_are_sampled_alone():
    class Softened(nn.Module):
        def forward(self, sigma):
            return nn.functional.softplus(sigma)

    class Unguarded(GaussianMask):
        def guarded(self, mean, sigma, axes):  # noqa: ARG002
            return mean, sigma

    double = {"parametrization": "paper", "dtype": torch.float64}
    net = Net(*(FlexConv2d(1, 1, 9, **double) for _ in range(2)))
    net.layers.append(FlexConv2d(1, 1, 9, mask=Unguarded(2, sigma=0.01, dtype=torch.float64), **double))
    parametrize.register_parametrization(net.layers[1].mask, "sigma", Softened())
    assert_same_kernels(net, groups=1, alone=2)


def test_generators_with_different_attributes_are_sampled_separately():
    class Bent(MAGNet):
        bend: list[Callable[[torch.Tensor], torch.Tensor]]

        def features(self, points):
            return self.bend[0](super().features(points))

    layers = [FlexConv2d(1, 1, 9, generator=Bent(2, 1, dtype=torch.float64), dtype=torch.float64) for _ in range(3)]
    for layer, bend in zip(layers, (torch.tanh, torch.tanh, torch.sin), strict=True):
        layer.generator.bend = [bend]
    assert_same_kernels(Net(*layers), groups=2, alone=0)


def test_forward_without_gradients_keeps_gradients_of_next_forward():
    net = nn.Sequential(FlexConv2d(1, 2, 9, algorithm="dft"), FlexConv2d(2, 1, 9, algorithm="dft"))
    x = torch.randn(2, 1, 9, 9)
    with KernelSampler(net).ahead(), torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            net(x)
        net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters() if parameter.requires_grad)


def test_sampled_kernel_is_not_cached():
    net = nn.Sequential(FlexConv2d(1, 1, 9)).eval()
    x = torch.randn(1, 1, 9, 9)
    with torch.no_grad():
        with KernelSampler(net).ahead():
            nn.init.constant_(net[0].generator.output.weight, 0.5)  # after the kernel was sampled
            net(x)
        torch.testing.assert_close(net(x), conv2d(x, net[0].kernel(), net[0].bias))


def test_kernels_on_grid_too_coarse_for_mask_equal_single_layers():
    torch.manual_seed(0)
    net = Net(*(FlexConv1d(2, 2, 33, dtype=torch.float64) for _ in range(2)))
    coarse = at_resolution(net, 0.25)
    assert coarse.layers[0].mask.sigma < coarse.layers[0].mask.sigma_floor(coarse.layers[0].axes)[0]
    assert_same_kernels(coarse, groups=0, alone=2)


def test_kernels_of_causal_and_resampled_layers_equal_single_layers():
    torch.manual_seed(0)
    net = Net(*(FlexConv1d(2, 2, 33, padding="causal", dtype=torch.float64) for _ in range(3)))
    assert_same_kernels(net, groups=1, alone=0)
    assert_same_kernels(at_resolution(net, 2), groups=1, alone=0)


def test_layers_with_equal_windows_share_a_batch():
    net = Net(*(FlexConv2d(2, out, 9, algorithm="dft") for out in (2, 3, 4)))
    for layer, sigma in zip(net.layers, (0.1, 2.0, 2.0), strict=True):
        layer.mask.set_(sigma=sigma)
    sampler = KernelSampler(net)
    with sampler.ahead():
        first, second, third = (layer._provider.prepared for layer in net.layers)
        assert first._batch is not second._batch is third._batch
        results = [layer(torch.ones(1, 2, 9, 9)) for layer in net.layers]
    for result, layer in zip(results, net.layers, strict=True):
        torch.testing.assert_close(result, layer(torch.ones(1, 2, 9, 9)))


def test_sampler_is_not_up_to_date_after_window_changes():
    net = Net(FlexConv2d(1, 1, 33), FlexConv2d(1, 1, 33))
    sampler = KernelSampler(net)
    assert sampler.up_to_date
    net.layers[1].mask.set_(sigma=0.9)
    assert not sampler.up_to_date


def test_network_has_same_output_with_fewer_operations():
    torch.manual_seed(0)
    model = create_model("flexnet3", in_channels=3, num_classes=10, image_size=32, dropout=0.0).train()
    x = torch.randn(2, 3, 32, 32)
    expected = model(x)
    sampler = KernelSampler(model)
    with sampler.ahead():
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)

    def operations(sample):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            sample()
        return sum(event.count for event in profiler.key_averages() if event.key in ("aten::mul", "aten::add"))

    one_by_one = operations(lambda: [layer.sample(layer.window) for layer in sampler.layers])

    def at_once():
        with sampler.ahead():
            pass

    assert operations(at_once) < one_by_one / 2


def test_number_of_compiled_graphs_does_not_depend_on_layers_and_sizes(monkeypatch):
    for region in (kernel_sampler._masked_features, kernel_sampler._with_bias):
        compiled = torch.compile(region.function, backend="eager", fullgraph=True, dynamic=region.dynamic)
        monkeypatch.setitem(region.__dict__, "compiled", compiled)
    make = functools.partial(FlexConv2d, kernel_size=33, dtype=torch.float64)
    net = Net(make(3, 8), make(8, 8), make(8, 12))
    torch._dynamo.utils.counters.clear()
    for sigma in (0.075, 0.15, (0.3, 0.1), 0.9, (0.1, 0.9)):
        for layer in net.layers:
            layer.mask.set_(sigma=sigma)
        with compiled_regions():
            assert_same_kernels(net)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # raised by torch
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick_compiler")
def test_compiled_kernels_with_constant_features_follow_their_windows():
    torch.manual_seed(0)
    make = functools.partial(FlexConv1d, kernel_size=65, parametrization="scaled", dtype=torch.float64)
    small = functools.partial(MAGNet, hidden=4, layers=1)
    net = Net(make(1, 2, generator=small), make(2, 1, generator=small))
    for sigma in (0.1, 0.3):
        for layer in net.layers:
            layer.mask.set_(sigma=sigma)
        with compiled_regions():
            assert_same_kernels(net)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # raised by torch
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick_compiler")
def test_compiled_gradients_of_few_taps_and_masks_at_limits():
    torch.manual_seed(0)
    small = functools.partial(GENERATORS["siren"], hidden=4, layers=3)
    net = Net(
        *(FlexConv2d(2, 2, 9, generator=small, dtype=torch.float64) for _ in range(2))
    )  # σ is below its lower limit of 0.125
    with compiled_regions():
        assert_same_kernels(net)
    assert net.layers[0].mask.growth.grad.any()
