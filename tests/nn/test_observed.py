"""`observed=`: missing samples have no influence, and means of the observed ones around them take their place."""

from __future__ import annotations

import math

import pytest
import torch

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, SeparableFlexConv1d, SeparableFlexConv2d
from flexconv.errors import ArgumentError, ArgumentTypeError, FlexConvError
from flexconv.models import SepFlexNet
from flexconv.nn import RotatedGaussianMask, fill_missing
from tests.conftest import mentions, relative_error
from tests.nn.helpers import LAYERS, noise, tiny_magnet

SIZES = {1: (30,), 2: (8, 9), 3: (5, 6, 7)}


def make_layer(dims, **options):
    settings = {"generator": tiny_magnet, "dtype": torch.float64, **options}
    layer = LAYERS[dims](3, 3, settings.pop("kernel_size", 5), **settings)
    torch.nn.init.normal_(layer.bias)
    return layer


def some_missing(dims, channels=None, rate=0.5):
    shape = (2, *SIZES[dims]) if channels is None else (2, channels, *SIZES[dims])
    observed = torch.rand(shape) > rate
    observed.flatten(1)[:, 0] = True
    return observed


OPTIONS = [{}, {"groups": 3}, {"groups": 3, "mask": "per_channel"}, {"mask": None}, {"padding_mode": "circular"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_missing_values_do_not_leak(dims, options, channels):
    torch.manual_seed(0)
    layer = make_layer(dims, **options)
    x, observed = noise(2, 3, *SIZES[dims]), some_missing(dims, channels)
    there = observed.unsqueeze(1) if channels is None else observed
    hidden = torch.where(there, x, torch.nan)
    y = layer(hidden, observed=observed)
    assert y.isfinite().all()
    torch.testing.assert_close(layer(torch.where(there, x, 1e9), observed=observed), y)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_everything_observed_equals_the_plain_convolution(dims, options):
    layer = make_layer(dims, **options)
    x = noise(2, 3, *SIZES[dims])
    for observed in (torch.ones(2, *SIZES[dims]), torch.ones(2, 1, *SIZES[dims], dtype=torch.bool)):
        assert torch.equal(layer(x, observed=observed), layer(x))


@pytest.mark.parametrize("padding", ["same", "causal"])
def test_fill_equals_weighted_means(padding):
    """A slow version, sample by sample."""
    torch.manual_seed(0)
    layer = make_layer(1, padding=padding, kernel_size=21, mask=GaussianMask(1, sigma=0.3, dtype=torch.float64))
    x, observed = noise(2, 3, 30), some_missing(1, rate=0.7)
    filled = fill_missing(layer, x, observed.unsqueeze(1))
    spacing, reach = 2 / 20, math.ceil(0.3 * math.sqrt(-2 * math.log(0.1)) * 10) - 1
    for b in range(2):
        for p in range(30):
            if observed[b, p]:
                assert torch.equal(filled[b, :, p], x[b, :, p])
                continue
            first, last = p - reach, p if padding == "causal" else p + reach
            near = [q for q in range(max(first, 0), min(last, 29) + 1) if observed[b, q]]
            weights = [math.exp(-0.5 * ((q - p) * spacing / 0.3) ** 2) / (1 + (q - p) ** 2) for q in near]
            expected = sum(w * x[b, :, q] for w, q in zip(weights, near, strict=True)) / sum(weights) if near else 0
            torch.testing.assert_close(filled[b, :, p], expected + torch.zeros(3).double())


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_constant_signals_are_continued(dims):
    layer = make_layer(dims, groups=3, kernel_size=7, mask="per_channel")
    x = torch.full((2, 3, *SIZES[dims]), 0.7).double()
    y = layer(torch.where(some_missing(dims).unsqueeze(1), x, torch.nan), observed=torch.ones(2, *SIZES[dims]))
    assert y.isnan().any()  # the values were not hidden
    observed = some_missing(dims, rate=0.3)
    filled = fill_missing(layer, torch.where(observed.unsqueeze(1), x, torch.nan), observed.unsqueeze(1))
    assert relative_error(filled, x) < 1e-12


@pytest.mark.parametrize("threshold", [0.1, None])
def test_neighbors_follow_the_angle_of_a_rotated_mask(threshold):
    x, observed = noise(1, 3, 12, 12), torch.rand(1, 1, 12, 12) > 0.6

    def filled(sigma, angle):
        mask = RotatedGaussianMask(sigma=sigma, angle=angle, threshold=threshold, dtype=torch.float64)
        return fill_missing(make_layer(2, kernel_size=15, mask=mask), x, observed)

    tall = filled((0.5, 0.1), 0.0)
    torch.testing.assert_close(filled((0.1, 0.5), math.pi / 2), tall)
    mask = GaussianMask(2, sigma=(0.5, 0.1), threshold=threshold, dtype=torch.float64)
    torch.testing.assert_close(fill_missing(make_layer(2, kernel_size=15, mask=mask), x, observed), tall)
    assert relative_error(filled((0.5, 0.1), 1.0), tall) > 0.1


def test_smooth_signals_are_reconstructed_better_than_by_zeros():
    torch.manual_seed(0)
    layer = FlexConv1d(8, 8, 201, groups=8, bias=False)
    x = torch.randn(16, 8, 200).cumsum(-1) / 8
    observed = torch.rand(16, 200) > 0.7
    y = layer(x).detach()
    zeros = relative_error(layer(x * observed.unsqueeze(1)), y)
    assert relative_error(layer(x, observed=observed), y) < 0.3 * zeros


def test_causal_layers_do_not_look_ahead():
    for padding in ("causal", [(20, 0)]):
        layer = make_layer(1, kernel_size=21, padding=padding)
        x, observed = noise(2, 3, 30), some_missing(1)
        changed = x.clone()
        changed[..., 18:] += 1
        y, z = (layer(each, observed=observed)[..., :18] for each in (x, changed))
        assert relative_error(z, y) < 1e-12
        later = observed.clone()
        later[:, 18:] = True
        assert relative_error(layer(x, observed=later)[..., :18], y) < 1e-12


@pytest.mark.parametrize(
    "layer", [FlexConv1d(3, 4, 9).double(), SeparableFlexConv1d(3, 4, 9).double()], ids=["", "sep"]
)
def test_lengths_are_the_case_in_which_everything_is_observed(layer):
    x, lengths = noise(2, 3, 30), torch.tensor([12, 30])
    x[0, :, 12:] = torch.nan
    everything = torch.ones(2, 30)
    expected = layer(x, lengths)
    torch.testing.assert_close(layer(x, lengths, observed=everything), expected)
    observed = some_missing(1)
    y = layer(x, lengths, observed=observed)
    torch.testing.assert_close(y[:1, :, :12], layer(x[:1, :, :12], observed=observed[:1, :12]))
    assert not y[0, :, 12:].any()


def test_propagated_mask_covers_what_the_kernel_saw():
    layer = FlexConv1d(1, 1, 9, mask=GaussianMask(1, sigma=0.3))
    observed = torch.zeros(1, 30, dtype=torch.bool)
    observed[0, 10] = True
    (start, stop) = layer.taps[0]
    reach = (stop - start) // 2
    propagated = layer.propagate_observed(observed)
    assert propagated.shape == (1, 1, 30)
    assert propagated.flatten().nonzero().flatten().tolist() == list(range(10 - reach, 10 + reach + 1))
    strided = FlexConv2d(3, 8, 5, stride=2)
    assert strided.propagate_observed(torch.rand(2, 3, 8, 8) > 0.5).shape == (2, 1, 4, 4)


@pytest.mark.parametrize("mask", ["per_channel", GaussianMask(2, mean=(0.4, -0.3), sigma=(0.2, 0.1))], ids=["", "away"])
def test_compiled_code_equals_eager_code(mask):
    """It computes the whole grid instead of a window."""
    layer = SeparableFlexConv2d(3, 4, 17, generator=tiny_magnet, mask=mask)
    x, observed = torch.randn(2, 3, 8, 9), some_missing(2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, observed=observed), layer(x, observed=observed), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [{"length": 24}, {"image_size": 8}, {"volume_size": 6}], ids=str)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_networks_accept_missing_samples(size, norm):
    torch.manual_seed(0)
    model = SepFlexNet(in_channels=3, num_classes=5, width=6, depth=2, norm=norm, **size)
    ((_, n),) = size.items()
    x = torch.randn(4, 3, *[n] * model.dims)
    observed = torch.rand(4, *x.shape[2:]) > 0.5
    hidden = torch.where(observed.unsqueeze(1), x, torch.nan)
    y = model(hidden, observed=observed)
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    everything = torch.ones(4, *x.shape[2:])
    torch.testing.assert_close(model(x, observed=everything), model(x), atol=1e-5, rtol=1e-5)
    model.eval()
    torch.testing.assert_close(model(x, observed=everything), model(x), atol=1e-5, rtol=1e-5)
    assert torch.equal(model(hidden, observed=observed), model(x, observed=observed))


def test_network_combines_lengths_and_missing_samples():
    model = SepFlexNet(in_channels=3, num_classes=5, width=6, depth=2, length=24)
    x, observed = torch.randn(2, 3, 24), torch.rand(2, 24) > 0.5
    for _ in range(2):
        model(x, [10, 24], observed=observed)
    model.eval()
    x[0, :, 10:] = torch.nan
    y = model(x, [10, 24], observed=observed)
    torch.testing.assert_close(y[:1], model(x[:1, :, :10], observed=observed[:1, :10]), atol=1e-5, rtol=1e-5)


def test_wrong_masks():
    layer, x = FlexConv1d(3, 2, 5), torch.randn(2, 3, 10)
    with pytest.raises(ArgumentError, match=mentions("(2, 9)", "observed", "(2, 10)")):
        layer(x, observed=torch.ones(2, 9))
    with pytest.raises(ArgumentError, match=mentions("(2, 2, 10)", "observed")):
        layer(x, observed=torch.ones(2, 2, 10))
    with pytest.raises(ArgumentError, match=mentions("0.5", "observed")):
        layer(x, observed=torch.full((2, 10), 0.5))
    with pytest.raises(ArgumentTypeError, match=mentions("complex", "observed")):
        layer(x, observed=torch.ones(2, 10, dtype=torch.complex64))
    with pytest.raises(ArgumentTypeError, match=mentions("list", "observed")):
        layer(x, observed=[[True] * 10] * 2)
    with pytest.raises(ArgumentError, match=mentions("batch", "(3, 10)")):
        layer(x[0], observed=torch.ones(3, 10))
    nothing = torch.ones(2, 10)
    nothing[1] = 0
    for model in (layer, SepFlexNet(in_channels=3, num_classes=2, width=4, depth=1, length=10)):
        with pytest.raises(ArgumentError, match=mentions("row 1", "observed")):
            model(x, observed=nothing)


@pytest.mark.parametrize("make", [lambda: FlexConv1d(3, 3, 5), lambda: SeparableFlexConv1d(3, 3, 5)])
def test_rows_without_observed_samples_before_their_end_are_refused(make):
    x = torch.randn(3, 3, 9)
    observed = torch.arange(9).expand(3, 9) >= 4
    with pytest.raises(ArgumentError, match=mentions("row 1")):
        make()(x, [9, 4, 9], observed=observed)
    assert make()(x, [9, 0, 5], observed=observed).shape == (3, 3, 9)


def test_network_refuses_rows_without_observed_samples():
    model = SepFlexNet(in_channels=3, num_classes=2, length=9, width=4, depth=1).eval()
    observed = torch.arange(9).expand(2, 9) >= 4
    with pytest.raises(ArgumentError, match=mentions("row 1")):
        model(torch.randn(2, 3, 9), [9, 4], observed=observed)


@pytest.mark.parametrize(
    "layer",
    [
        FlexConv1d(1, 1, 7),
        SeparableFlexConv1d(1, 1, 7),
        SepFlexNet(in_channels=1, num_classes=2, length=10, width=2, depth=1),
    ],
)
def test_samples_past_the_end_of_a_sequence_do_not_count_as_observed(layer):
    x, observed = torch.randn(2, 1, 10), torch.ones(2, 10)
    observed[1, :5] = 0
    layer(x, [5, 6], observed=observed)
    with pytest.raises(ArgumentError, match="no sample is observed in row 1"):
        layer(x, [5, 5], observed=observed)


@pytest.mark.parametrize(
    "wrong", [[[True]], torch.ones(3), torch.ones(2, 1, 1, 9), torch.ones(2, 9, dtype=torch.complex64)]
)
def test_propagates_masks_only(wrong):
    with pytest.raises(FlexConvError, match="observed must"):
        FlexConv1d(1, 1, 7).propagate_observed(wrong)
