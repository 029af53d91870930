"""Kernels sampled together are those of each layer by itself."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask, at_resolution, create_model
from flexconv._fast import kernel_sampler as _together
from flexconv._fast.kernel_sampler import LONG_LINE, KernelSampler
from flexconv._fast.regions import Region, compiled_regions
from flexconv.nn import GENERATORS, MAGNet
from flexconv.ops import conv2d
from flexconv.ops._factored import as_tensor


class Net(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        for number, layer in enumerate(layers):  # different sizes at different places
            if layer.mask is not None:
                nn.init.constant_(layer.mask.sigma, 0.06 * (number + 1))
                nn.init.constant_(layer.mask.mean, 0.1 * number)


def kernels_and_gradients(net, kernels):
    net.zero_grad()
    torch.manual_seed(1)
    sum((k * torch.randn_like(k)).sum() for k in kernels).backward()
    return [k.detach() for k in kernels], {n: p.grad for n, p in net.named_parameters() if p.grad is not None}


def compare(net, *, groups=None, alone=None):
    together = KernelSampler(net)
    if groups is not None:
        assert (len(together.groups), len(together.alone)) == (groups, alone)
    expected = kernels_and_gradients(net, [layer.sample(layer.window) for layer in together.layers])
    with together.ahead():
        kernels = [as_tensor(layer._provider.prepared) for layer in together.layers]
    assert all(layer._provider.prepared is None for layer in together.layers)
    kernels, gradients = kernels_and_gradients(net, kernels)
    for kernel, wanted in zip(kernels, expected[0], strict=True):
        torch.testing.assert_close(kernel, wanted, rtol=1e-12, atol=1e-14)
    assert gradients.keys() == expected[1].keys()
    largest = max(wanted.abs().max().item() for wanted in expected[1].values())
    for name, wanted in expected[1].items():
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-9, atol=1e-13 * largest, msg=name)


@pytest.mark.parametrize(
    ("kernel", "layer"),
    [(k, layer) for k in sorted(GENERATORS) for layer in (FlexConv1d, FlexConv2d, FlexConv3d) if k != "njet"]
    + [("njet", FlexConv2d)],
)
def test_every_generator(kernel, layer):
    torch.manual_seed(0)
    size = 17 if layer is not FlexConv3d else 7
    mask = None if kernel == "njet" else "gaussian"
    make = functools.partial(layer, kernel_size=size, generator=kernel, mask=mask, dtype=torch.float64)
    net = Net(make(2, 3), make(3, 4), make(4, 1))
    shared = kernel != "njet"  # which is no map of features
    compare(net, groups=int(shared), alone=0 if shared else 3)


@pytest.mark.parametrize("taps", [LONG_LINE, LONG_LINE + 3])
def test_lines_are_cut_into_more_pieces_where_they_are_long(taps):
    make = functools.partial(FlexConv1d, kernel_size=taps, padding="causal", mask=None, dtype=torch.float64)
    compare(Net(make(1, 2), make(2, 1)), groups=1, alone=0)


def test_what_differs_is_sampled_apart():
    double = {"dtype": torch.float64}
    net = Net(
        FlexConv2d(2, 3, 9, **double),
        FlexConv2d(3, 3, 9, **double),
        FlexConv2d(3, 3, (9, 7), **double),  # another grid
        FlexConv2d(3, 3, 9, generator="siren", **double),
        FlexConv2d(3, 3, 9, mask=None, **double),
        FlexConv2d(3, 3, 9, mask=RotatedGaussianMask(2, **double), **double),
        FlexConv2d(3, 3, 9, mask=GaussianMask(2, threshold=0.3, **double), **double),
        FlexConv2d(3, 3, 9, mask=GaussianMask(2, form="authors", **double), **double),
        FlexConv2d(4, 4, 9, groups=4, **double),  # like the first two: channels do not matter
    )
    compare(net, groups=7, alone=0)


def test_hooks_are_called():
    net = Net(FlexConv2d(1, 1, 9, dtype=torch.float64), FlexConv2d(1, 1, 9, dtype=torch.float64))
    net.layers[0].generator.register_forward_hook(lambda *everything: 2 * everything[-1])
    compare(net, groups=1, alone=1)


@pytest.mark.parametrize("where", ["mask", "generator.output"])
def test_hooks_inside_are_called_for_their_own_layer_alone(where):
    net = Net(*(FlexConv2d(1, 1, 9, dtype=torch.float64) for _ in range(3)))
    net.layers[1].get_submodule(where).register_forward_hook(lambda *everything: 2 * everything[-1])
    compare(net, groups=1, alone=1)
    layer, x = net.layers[1], torch.randn(2, 1, 9, 9, dtype=torch.float64)
    expected = conv2d(x, layer.kernel(), layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-14)


def test_masks_of_users_are_sampled_alone():
    class Softened(nn.Module):
        def forward(self, sigma):
            return nn.functional.softplus(sigma)

    class Unguarded(GaussianMask):
        def guarded(self, mean, sigma, axes):  # noqa: ARG002
            return mean, sigma

    net = Net(*(FlexConv2d(1, 1, 9, dtype=torch.float64) for _ in range(2)))
    net.layers.append(FlexConv2d(1, 1, 9, mask=Unguarded(2, sigma=0.01, dtype=torch.float64), dtype=torch.float64))
    parametrize.register_parametrization(net.layers[1].mask, "sigma", Softened())
    compare(net, groups=1, alone=2)


def test_whatever_a_generator_remembers_may_tell_it_from_others():
    class Bent(MAGNet):
        bend: list[Callable[[torch.Tensor], torch.Tensor]]

        def features(self, points):
            return self.bend[0](super().features(points))

    layers = [FlexConv2d(1, 1, 9, generator=Bent(2, 1, dtype=torch.float64), dtype=torch.float64) for _ in range(3)]
    for layer, bend in zip(layers, (torch.tanh, torch.tanh, torch.sin), strict=True):
        layer.generator.bend = [bend]
    compare(Net(*layers), groups=2, alone=0)


def test_a_look_without_gradients_takes_none_from_others():
    net = nn.Sequential(FlexConv2d(1, 2, 9, algorithm="dft"), FlexConv2d(2, 1, 9, algorithm="dft"))
    x = torch.randn(2, 1, 9, 9)
    with KernelSampler(net).ahead(), torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            net(x)
        net(x).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


def test_a_kernel_made_ahead_is_not_kept_for_later():
    net = nn.Sequential(FlexConv2d(1, 1, 9)).eval()
    x = torch.randn(1, 1, 9, 9)
    with torch.no_grad():
        with KernelSampler(net).ahead():
            nn.init.constant_(net[0].generator.output.weight, 0.5)  # too late for the one at hand
            net(x)
        torch.testing.assert_close(net(x), conv2d(x, net[0].kernel(), net[0].bias))


def test_on_a_grid_too_coarse_for_its_mask():
    torch.manual_seed(0)
    net = Net(*(FlexConv1d(2, 2, 33, dtype=torch.float64) for _ in range(2)))
    coarse = at_resolution(net, 0.25)
    assert coarse.layers[0].mask.sigma < coarse.layers[0].mask.sigma_floor(coarse.layers[0].axes)[0]
    compare(coarse, groups=0, alone=2)


def test_causal_and_at_another_resolution():
    torch.manual_seed(0)
    net = Net(*(FlexConv1d(2, 2, 33, padding="causal", dtype=torch.float64) for _ in range(3)))
    compare(net, groups=1, alone=0)
    compare(at_resolution(net, 2), groups=1, alone=0)


def test_layers_cut_alike_are_transformed_at_once():
    net = Net(*(FlexConv2d(2, out, 9, algorithm="dft") for out in (2, 3, 4)))
    for layer, sigma in zip(net.layers, (0.1, 2.0, 2.0), strict=True):
        nn.init.constant_(layer.mask.sigma, sigma)
    together = KernelSampler(net)
    with together.ahead():
        first, second, third = (layer._provider.prepared for layer in net.layers)
        assert first._batch is not second._batch is third._batch
        together_results = [layer(torch.ones(1, 2, 9, 9)) for layer in net.layers]
    for result, layer in zip(together_results, net.layers, strict=True):
        torch.testing.assert_close(result, layer(torch.ones(1, 2, 9, 9)))


def test_windows_that_change_are_noticed():
    net = Net(FlexConv2d(1, 1, 33), FlexConv2d(1, 1, 33))
    together = KernelSampler(net)
    assert together.up_to_date
    nn.init.constant_(net.layers[1].mask.sigma, 0.9)
    assert not together.up_to_date


def test_a_network_computes_the_same_with_few_operations():
    torch.manual_seed(0)
    model = create_model("flexnet3", in_channels=3, num_classes=10, image_size=32, dropout=0.0).train()
    x = torch.randn(2, 3, 32, 32)
    expected = model(x)
    together = KernelSampler(model)
    with together.ahead():
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)

    def operations(sample):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            sample()
        return sum(event.count for event in profiler.key_averages() if event.key in ("aten::mul", "aten::add"))

    one_by_one = operations(lambda: [layer.sample(layer.window) for layer in together.layers])

    def at_once():
        with together.ahead():
            pass

    assert operations(at_once) < one_by_one / 2


def test_a_region_runs_as_it_is_outside_and_compiled_inside(monkeypatch):
    calls = []
    region = Region(lambda x: x + 1, dynamic=False)
    monkeypatch.setattr(torch, "compile", lambda f, **options: lambda x: calls.append(options) or f(x))
    assert region(torch.zeros(())) == 1
    assert calls == []
    with compiled_regions():
        assert region(torch.zeros(())) == 1
    assert region(torch.zeros(())) == 1
    assert calls == [{"fullgraph": True, "dynamic": False, "options": None}]


def test_regions_are_compiled_once_for_all_layers_and_sizes(monkeypatch):
    for region in (_together._masked_features, _together._with_bias):
        compiled = torch.compile(region.function, backend="eager", fullgraph=True, dynamic=region.dynamic)
        monkeypatch.setitem(region.__dict__, "compiled", compiled)
    make = functools.partial(FlexConv2d, kernel_size=33, dtype=torch.float64)
    net = Net(make(3, 8), make(8, 8), make(8, 12))
    torch._dynamo.utils.counters.clear()
    for sigma in (0.075, 0.15, (0.3, 0.1), 0.9, (0.1, 0.9)):
        for layer in net.layers:
            with torch.no_grad():
                layer.mask.sigma.copy_(torch.tensor(sigma))
        with compiled_regions():
            compare(net)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick_compiler")
def test_compiled_gradients_of_few_taps_and_of_masks_at_their_limits():
    torch.manual_seed(0)
    small = functools.partial(GENERATORS["siren"], hidden=4, layers=3)
    net = Net(
        *(FlexConv2d(2, 2, 9, generator=small, dtype=torch.float64) for _ in range(2))
    )  # σ below its floor of 0.125
    with compiled_regions():
        compare(net)
    assert net.layers[0].mask.sigma.grad.any()
