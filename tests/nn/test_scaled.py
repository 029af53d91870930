"""Layers with scaled parametrization: initial kernels, steps of optimizers, masks, and states."""

import copy
import functools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexconv import (
    FlexConv1d,
    FlexConv2d,
    FlexConv3d,
    GaussianMask,
    RotatedGaussianMask,
    create_model,
    from_pretrained,
    refresh_extents,
)
from flexconv.errors import ArgumentError, UsageError
from flexconv.models import save_pretrained
from flexconv.nn import GaborNet, MAGNet, NJet
from flexconv.nn._damping import damp
from flexconv.nn._scaled_mask import RATE
from flexconv.nn.kernels._mfn import evenly_spread
from flexconv.ops import conv1d
from flexconv.spectrum import energy_beyond_nyquist, max_frequency, nyquist

GRIDS = {
    "1d": functools.partial(FlexConv1d, kernel_size=101),
    "causal": functools.partial(FlexConv1d, kernel_size=784, padding="causal"),
    "causal-wide": functools.partial(
        FlexConv1d, kernel_size=784, padding="causal", mask=GaussianMask(1, sigma=0.354, form="scaled")
    ),
    "2d": functools.partial(FlexConv2d, kernel_size=33),
    "small": functools.partial(FlexConv2d, kernel_size=3),
    "oblong": functools.partial(FlexConv2d, kernel_size=(5, 31)),
    "whole": functools.partial(FlexConv2d, kernel_size=33, mask=None),
    "rotated": functools.partial(FlexConv2d, kernel_size=15, mask=RotatedGaussianMask(form="scaled")),
    "3d": functools.partial(FlexConv3d, kernel_size=9),
}


# --- initial kernels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("generator", ["magnet", "gabor", "fourier", "njet"])
def test_initial_frequencies_are_below_nyquist(grid, generator):
    torch.manual_seed(0)
    options = {"mask": None} if generator == "njet" else {}
    layer = GRIDS[grid](4, 6, generator=generator, **options)
    limits = torch.tensor(nyquist(list(layer.kernel_size)))
    assert (max_frequency(layer) <= limits * (1 + 1e-5)).all()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_frequencies_are_spread_evenly(dims):
    """About 8 of 32 features are in each quarter of the band. With random frequencies, 5 or 11 are common."""
    worst = []
    for seed in range(20):
        torch.manual_seed(seed)
        counts = [torch.histc(along_axis, 4, -1, 1) for along_axis in evenly_spread(torch.empty(32, dims)).unbind(-1)]
        worst += [(count - 8).abs().max().item() for count in counts]
    assert sum(worst) / len(worst) < 2.5


def test_steerable_envelopes_start_below_nyquist():
    layer = FlexConv2d(2, 3, 15, generator=functools.partial(MAGNet, steerable=True))
    assert (max_frequency(layer) <= torch.tensor(nyquist([15, 15])) * (1 + 1e-5)).all()


@pytest.mark.parametrize("generator", ["magnet", "siren", "nsiren"])
@pytest.mark.parametrize("grid", ["2d", "causal-wide"])
def test_initial_kernels_have_little_energy_beyond_nyquist(grid, generator):
    torch.manual_seed(0)
    scaled = energy_beyond_nyquist(GRIDS[grid](4, 6, generator=generator))
    assert scaled < 0.05


@pytest.mark.parametrize("kernel_size", [7, 15, 33, 101])
def test_masks_start_with_seven_taps_or_more(kernel_size):
    assert min(FlexConv2d(1, 1, kernel_size).extent) >= 7
    assert min(FlexConv1d(1, 1, kernel_size, padding="causal").extent) >= 4  # the half in the past


@pytest.mark.parametrize("generator", ["magnet", "gabor", "fourier", "siren", "mlp", "njet"])
def test_outputs_are_about_as_large_as_behind_a_plain_convolution(generator):
    torch.manual_seed(0)
    mask = None if generator == "njet" else "gaussian"
    layer, plain = FlexConv2d(16, 64, 15, generator=generator, mask=mask), nn.Conv2d(16, 64, 5)
    noise, constant = torch.randn(4, 16, 32, 32), torch.randn(64, 16, 1, 1).expand(-1, -1, 17, 17)
    ratios = [layer(x)[..., 8:-8, 8:-8].var().item() / plain(x).var().item() for x in (noise, constant)]
    assert 0.2 < ratios[0] < 3.4  # less if the kernels are so smooth that constant inputs would become too large
    assert 0.6 < ratios[1] < 12


def test_arguments_for_frequencies_are_respected():
    torch.manual_seed(0)
    layer = FlexConv2d(2, 3, 15, generator=functools.partial(GaborNet, input_scale=100.0))
    assert (max_frequency(layer) > 3 * torch.tensor(nyquist([15, 15]))).all()


def test_unknown_parametrization_is_refused():
    with pytest.raises(ArgumentError, match=r"parametrization.*'authors'"):
        FlexConv2d(1, 1, 5, parametrization="authors")


# --- steps of optimizers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", ["magnet", "gabor", "fourier", "siren", "mlp"])
def test_output_map_acts_on_nearly_orthonormal_kernels(generator):
    """A step on the output map changes a kernel by a projection of the gradient, as far as its features reach."""
    torch.manual_seed(0)
    layer = FlexConv2d(1, 1, 15, generator=generator)
    weight, bias = layer.generator.output_map.weight, layer.generator.output_map.bias
    columns = []
    for parameter in (weight, bias):
        for index in range(parameter.numel()):
            with torch.no_grad():
                weight.zero_(), bias.zero_()
                parameter.view(-1)[index] = 1.0
                columns.append(layer.kernel().flatten())
    values = torch.linalg.svdvals(torch.stack(columns, 1)).square()
    assert 0.6 < values[0] < 1.0 + 1e-4
    assert (values > 0.3).sum() >= (1 if generator == "mlp" else 4)


def test_gradient_descent_changes_kernels_as_much_as_those_of_a_plain_convolution():
    torch.manual_seed(0)
    x = F.avg_pool2d(torch.randn(8, 8, 40, 40), 5, 1, 2)[..., 4:-4, 4:-4]  # smooth, like pictures
    target = torch.randn(8, 16, 32, 32)
    layer, plain = FlexConv2d(8, 16, 15), nn.Conv2d(8, 16, 7, padding=3)
    before = layer.kernel().detach(), plain.weight.detach().clone()
    for module in (layer, plain):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        (module(x) * target).sum().div(len(x) * 256).backward()  # a gradient that does not depend on the first kernel
        optimizer.step()
    change = (layer.sample(((4, 11), (4, 11))) - before[0]).norm().item()
    assert 0.3 < change / (plain.weight - before[1]).norm().item() < 2.0


def test_adam_changes_the_size_by_less_than_a_percent_per_step():
    layer = FlexConv2d(4, 8, 33)
    before = layer.mask.sigma.detach()
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    layer(torch.randn(2, 4, 16, 16)).square().sum().backward()
    optimizer.step()
    change = (layer.mask.sigma.detach() / before - 1).abs()
    torch.testing.assert_close(change, torch.full((2,), 0.004), rtol=0.01, atol=0)


@pytest.mark.parametrize("form", ["guarded", "scaled", None])
def test_weight_decay_does_not_shrink_scaled_masks(form):
    layer = FlexConv2d(1, 1, 33, mask=GaussianMask(2, sigma=0.3, form=form))
    optimizer = torch.optim.SGD(layer.mask.parameters(), lr=1.0, weight_decay=0.05)
    for _ in range(50):
        layer.mask.zero_grad()
        (0 * layer.kernel().sum()).backward()
        optimizer.step()
    assert layer.mask.sigma.tolist() == pytest.approx([0.023, 0.023] if form == "guarded" else [0.3, 0.3], rel=0.02)


def test_gradients_of_masks_are_divided_by_the_root_of_the_number_of_values():
    torch.manual_seed(0)
    layer = FlexConv2d(4, 8, 15)
    values = 4 * 8 * math.prod(layer.extent)
    layer.kernel().square().sum().backward()
    damped = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
    layer.zero_grad()
    layer.mask.damping = 1.0
    layer.kernel().square().sum().backward()
    for name in ("mask.growth", "mask.shift"):
        gradient = dict(layer.named_parameters())[name].grad
        torch.testing.assert_close(RATE * damped[name] * math.sqrt(values), gradient, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(damped["generator.output.weight"], layer.generator.output.weight.grad)


def test_features_stay_fixed_unless_asked():
    layer = FlexConv2d(2, 3, 15)
    learned = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    assert learned == {"bias", "mask.shift", "mask.growth", "generator.output.weight", "generator.output.bias"}
    layer.generator.requires_grad_()
    layer.reset_parameters()
    layer.kernel().sum().backward()
    assert layer.generator.frequency.grad is not None


def test_damping_changes_gradients_only():
    x = torch.randn(100, requires_grad=True)
    y = damp(x, 0.01)
    torch.testing.assert_close(y, x, rtol=1e-6, atol=0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((100,), 0.01))


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
        functools.partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05),
        functools.partial(torch.optim.Adam, lr=1e-2),
    ],
    ids=["sgd", "adamw", "adam"],
)
def test_network_without_norms_learns_with_stock_optimizers(optimizer):
    """Tell horizontal from vertical stripes of random phase, which needs kernels of some size."""
    torch.manual_seed(0)
    net = nn.Sequential(
        FlexConv2d(1, 8, 15),
        nn.ReLU(),
        FlexConv2d(8, 8, 15),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    steps = optimizer(net.parameters())
    position = torch.arange(12.0)
    for _ in range(60):
        labels = torch.randint(2, (32,))
        stripes = torch.sin(position + 6.28 * torch.rand(32, 1))
        x = torch.where(labels[:, None, None] == 0, stripes[:, None, :], stripes[:, :, None]).expand(32, 12, 12)
        x = x.unsqueeze(1) + 0.3 * torch.randn(32, 1, 12, 12)
        loss = F.cross_entropy(net(x), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
    assert loss.item() < 0.25


@pytest.mark.parametrize(("taps", "least", "most"), [(41, 25, 55), (5, 3, 13)])
def test_size_follows_that_of_the_filter_to_be_learned(taps, least, most):
    """Values outside the initial mask do not get in the way of a mask that grows."""
    torch.manual_seed(0)
    target = torch.hann_window(taps + 2)[None, None, 1:-1]
    layer = FlexConv1d(1, 1, 65)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(300):
        x = torch.randn(8, 1, 128)
        loss = (layer(x) - conv1d(x, target)).square().mean() / target.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert least <= layer.extent[0] <= most
    assert loss.item() < 0.05


def test_kernels_are_not_larger_outside_the_initial_mask():
    torch.manual_seed(0)
    layer = FlexConv2d(8, 8, 33)
    center = layer.kernel()[..., 3, 3].square().mean()
    layer.mask.set_(sigma=10.0)
    assert layer.kernel().square().mean() < 10 * center


# --- masks and states -------------------------------------------------------------------------------------------------


def test_set_changes_center_and_width():
    for form in ("guarded", "scaled", "authors"):
        mask = GaussianMask(2, form=form)
        mask.set_(sigma=0.3)
        mask.set_(mean=[0.1, -0.2])
        assert mask.sigma.tolist() == pytest.approx([0.3, 0.3])
        assert mask.mean.tolist() == pytest.approx([0.1, -0.2])


@pytest.mark.parametrize("value", [0.3, torch.tensor([0.3, 0.3]), nn.Parameter(torch.tensor([0.3, 0.3]))])
@pytest.mark.parametrize("name", ["mean", "sigma"])
def test_assigning_center_or_width_of_a_scaled_mask_is_refused(name, value):
    mask = FlexConv2d(1, 1, 9).mask
    with pytest.raises(UsageError, match=rf"{name}.*set_"):
        setattr(mask, name, value)


WRITES = {
    "fill_": lambda x: x.fill_(0.3),
    "index": lambda x: x.__setitem__(0, 0.3),
    "view": lambda x: x[1].add_(2.0),
    "detached": lambda x: x.detach().copy_(torch.ones(2)),
    "data": lambda x: x.data.fill_(0.3),
    "out": lambda x: torch.add(torch.ones(2), 1.0, out=x.detach()),
    "init": lambda x: nn.init.constant_(x, 0.3),
    "parts": lambda x: [part.fill_(0.3) for part in x.detach().unbind()],
}
USES = {
    "forward": lambda layer: layer(torch.zeros(1, 1, 9, 9)),
    "extent": lambda layer: layer.extent,
    "kernel": lambda layer: layer.kernel(),
    "read": lambda layer: layer.mask.mean,
    "refresh": refresh_extents,
    "print": repr,
}


@pytest.mark.parametrize("name", ["mean", "sigma"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_writing_into_center_or_width_of_a_scaled_mask_is_an_error(name, write, mode):
    layer = FlexConv2d(1, 1, 9)
    extent = layer.extent
    with mode():
        WRITES[write](getattr(layer.mask, name))
        with pytest.raises(UsageError, match=rf"{name}.*set_"):
            layer(torch.zeros(1, 1, 9, 9))
    assert layer.extent == extent  # raised once, and the mask is as it was


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_mask_reports_that_its_width_was_written_to(use):
    layer = FlexConv2d(1, 1, 9)
    layer.mask.sigma.detach().fill_(0.3)
    with pytest.raises(UsageError, match="sigma"):
        USES[use](layer)


def test_writing_into_a_copy_of_the_width_is_allowed():
    layer = FlexConv2d(1, 1, 9)
    layer.mask.sigma.clone().fill_(0.3)
    layer.mask.sigma.detach().mul(4.0).fill_(1.0)
    torch.zeros(2).copy_(layer.mask.sigma.detach())
    layer(torch.zeros(1, 1, 9, 9))
    layer.mask.sigma.detach().fill_(0.3)
    layer.mask.set_(sigma=0.5)  # what was meant
    layer(torch.zeros(1, 1, 9, 9))


def test_earlier_reads_are_watched_too():
    layer = FlexConv2d(1, 1, 9)
    first, _ = layer.mask.sigma.detach(), layer.mask.sigma
    first.fill_(0.3)
    with pytest.raises(UsageError, match="sigma"):
        layer.extent  # noqa: B018


def test_width_of_a_scaled_mask_is_an_ordinary_tensor():
    """It can be an input of compiled code, which does not take every subclass of tensors, and has a gradient."""
    mask = FlexConv2d(1, 1, 9).mask
    assert type(mask.sigma) is torch.Tensor
    total = torch.compile(lambda sigma: (sigma**2).sum(), fullgraph=True, backend="aot_eager")(mask.sigma)
    total.backward()
    assert mask.growth.grad.abs().min() > 0
    inside = torch.compile(lambda: (mask.sigma**2).sum(), fullgraph=True, backend="aot_eager")()
    torch.testing.assert_close(inside, total)


def test_optimizer_steps_and_not_a_number_are_not_mistaken_for_writes():
    layer = FlexConv2d(1, 1, 9)
    before = layer.mask.sigma
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    before.sum().backward()
    optimizer.step()
    assert layer.mask.sigma.tolist() != before.tolist()
    layer.mask.set_(sigma=math.nan)
    assert [layer.mask.sigma.isnan().all() for _ in range(3)]


def test_copies_of_a_mask_that_was_read_work():
    layer = FlexConv2d(1, 1, 9)
    kept = layer.mask.sigma
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    for other in others:
        other.load_state_dict(layer.state_dict())
        assert other.mask.sigma.tolist() == kept.tolist()
        assert other.extent == layer.extent
    assert "reads" not in " ".join(layer.state_dict())


@pytest.mark.parametrize("generator", ["magnet", "siren"])
@pytest.mark.parametrize(("mean", "sigma"), [(0.1, 1e-6), (5.0, 0.05), (-0.7, -1e-3)])
def test_masks_between_taps_or_outside_the_grid_have_kernels(mean, sigma, generator):
    """Masks are limited to a third of a tap spacing and to the grid, also where initial values are chosen."""
    layer = FlexConv2d(2, 3, 9, generator=generator, mask=GaussianMask(2, mean=mean, sigma=sigma, form="scaled"))
    kernel = layer.kernel()
    assert kernel.isfinite().all()
    assert kernel.any()


def test_layer_follows_set():
    layer = FlexConv2d(1, 1, 33)
    layer.mask.set_(sigma=0.2)
    assert layer.extent == (13, 13)
    layer.mask.set_(sigma=2.0)
    assert layer.extent == (33, 33)


@pytest.mark.parametrize(("old", "new"), [("paper", "scaled"), ("scaled", "paper")])
def test_states_load_across_parametrizations(old, new):
    torch.manual_seed(0)
    source, target = FlexConv2d(2, 3, 15, parametrization=old), FlexConv2d(2, 3, 15, parametrization=new)
    with torch.no_grad():
        for parameter in source.mask.parameters():
            parameter.add_(0.05)
    target.load_state_dict(source.state_dict())
    assert target.extent == source.extent
    torch.testing.assert_close(target.kernel(), source.kernel(), rtol=1e-5, atol=1e-7)


def test_saved_and_loaded_layer_is_the_same():
    torch.manual_seed(0)
    source, target = FlexConv2d(2, 3, 15), FlexConv2d(2, 3, 15)
    with torch.no_grad():
        source.mask.growth.add_(0.1)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.kernel(), source.kernel())


def test_reset_of_all_modules_in_any_order_gives_suitable_kernels():
    layer = FlexConv2d(4, 6, 15)
    with torch.no_grad():
        layer.mask.growth.add_(0.5)
    for module in reversed(list(layer.modules())):
        module.reset_parameters()
    layer.reset_parameters()
    assert layer.extent == (7, 7)
    assert (max_frequency(layer) <= torch.tensor(nyquist([15, 15])) * (1 + 1e-5)).all()


def test_njet_outside_a_scaled_layer_is_the_published_one():
    layer = FlexConv2d(1, 2, 15, generator=NJet, mask=None, parametrization="paper")
    assert layer.generator.scale.item() == 0.0
    assert FlexConv2d(1, 2, 15, generator=NJet, mask=None).generator.scale.item() > 0.3


@pytest.mark.parametrize("name", ["flexnet3", "flextcn2"])
def test_networks_with_scaled_parametrization_are_saved_and_loaded(name, tmp_path):
    size = {"length": 50} if name.startswith("flextcn") else {"image_size": 8}
    model = create_model(name, in_channels=2, num_classes=3, **size).eval()
    save_pretrained(model, tmp_path / "net")
    loaded = from_pretrained(tmp_path / "net")
    x = torch.randn(2, 2, *(8, 8) if name == "flexnet3" else (50,))
    with torch.no_grad():
        assert torch.equal(model(x), loaded(x))
    assert loaded.config["parametrization"] == "scaled"
