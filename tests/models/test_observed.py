"""`observed=` in FlexNet and FlexTCN: missing samples have no influence, and networks stay what they are without it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flexconv import GaussianMask, Streaming, materialize
from flexconv._fast.blocks import fused_blocks
from flexconv.errors import ArgumentError, ArgumentTypeError, FlexConvError, UsageError
from flexconv.export import export, load_conv
from flexconv.models import FlexNet, FlexTCN, SepFlexNet
from tests.conftest import mentions, relative_error

SIZES = {"flexnet": (8, 9), "ckcnn": (8, 9), "flextcn": (24,), "cktcn": (24,)}


def make(name, **options):
    torch.manual_seed(0)
    options = {"in_channels": 3, "num_classes": 5, "widths": [4, 6], "dropout": 0.0, **options}
    if name in ("ckcnn", "cktcn"):
        options |= {"conv": "ck", "generator": "siren"}
    size = {"image_size": 8} if name in ("flexnet", "ckcnn") else {"length": 24}
    model = (FlexNet if "image_size" in size else FlexTCN)(**options, **size)
    for module in model.modules():  # so that features of nothing would not be 0
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm):
            nn.init.normal_(module.bias)
    return model


def batch(name, channels=None):
    torch.manual_seed(1)
    x = torch.randn(4, 3, *SIZES[name])
    observed = torch.rand(4, *SIZES[name]) > 0.6 if channels is None else torch.rand(4, channels, *SIZES[name]) > 0.6
    observed.flatten(1)[:, 0] = True
    return x, observed, observed.unsqueeze(1) if channels is None else observed


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("channels", [None, 1, 3])
def test_missing_values_do_not_leak(name, norm, channels):
    model, (x, observed, there) = make(name, norm=norm), batch(name, channels)
    y = model(torch.where(there, x, torch.nan), observed=observed)
    assert y.isfinite().all()
    y.square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    model.eval()
    y = model(x, observed=observed)
    for other in (torch.nan, torch.inf, 1e9, 0.0):
        assert torch.equal(model(torch.where(there, x, other), observed=observed), y)
    assert not torch.allclose(model(torch.where(there, x + 1, x), observed=observed), y)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_everything_observed_equals_no_mask(name, norm):
    model, (x, observed, _) = make(name, norm=norm), batch(name)
    everything = torch.ones_like(observed)
    torch.testing.assert_close(model(x, observed=everything), model(x), atol=1e-5, rtol=1e-5)
    model.eval()
    torch.testing.assert_close(model(x, observed=everything), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("readout", ["last", "mean", "every"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_lengths_and_missing_samples(readout, norm):
    model, (x, observed, _) = make("flextcn", readout=readout, norm=norm).eval(), batch("flextcn")
    lengths = torch.tensor([10, 24, 1, 17])
    for b, n in enumerate(lengths.tolist()):
        x[b, :, n:] = torch.nan
    everything = torch.ones_like(observed)
    torch.testing.assert_close(model(x, lengths, observed=everything), model(x, lengths), atol=1e-5, rtol=1e-5)
    y = model(x, lengths, observed=observed)
    for b, n in enumerate(lengths.tolist()):
        alone = model(x[b : b + 1, :, :n], observed=observed[b : b + 1, :n])[0]
        torch.testing.assert_close(y[b, :, :n] if readout == "every" else y[b], alone, atol=1e-5, rtol=1e-5)
    if readout == "every":
        assert not y[0, :, 10:].any()


def test_network_stays_causal():
    model, (x, observed, _) = make("flextcn", readout="every").eval(), batch("flextcn")
    changed, later = x.clone(), observed.clone()
    changed[..., 15:] += 1
    later[:, 15:] = True
    y = model(x, observed=observed)[..., :15]
    torch.testing.assert_close(model(changed, observed=later)[..., :15], y, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [FlexTCN, SepFlexNet])
def test_last_step_is_the_last_one_that_a_sample_has_reached(kind):
    torch.manual_seed(0)
    widths = {"widths": [4]} if kind is FlexTCN else {"width": 4, "depth": 1}
    options = {"mask_options": {"sigma": 0.1}, "in_channels": 1, "num_classes": 3, "length": 40, **widths}
    model = kind(readout="last", **options).eval()
    every = kind(readout="every", **options).eval()
    every.load_state_dict(model.state_dict())
    observed = torch.arange(40).expand(1, 40) < 12
    x = torch.randn(1, 1, 40)
    layer = next(module for module in model.modules() if hasattr(module, "propagate_observed"))
    last = layer.propagate_observed(observed).nonzero()[-1, -1]
    assert 12 <= last < 39
    assert torch.allclose(model(x, observed=observed), every(x, observed=observed)[..., last])
    assert not torch.allclose(model(x, observed=observed), model(x + 1, observed=observed))


def test_one_sample_is_enough_for_a_kernel_of_thousands_of_taps():
    model = make("cktcn", kernel_size=4001, widths=[2], in_channels=1)
    observed = torch.zeros(1, 3000)
    observed[0, 5] = 1
    where = model.propagate_observed(observed)
    assert where[..., 5:].all()
    assert not where[..., :5].any()


def test_observed_steps_count_even_if_the_mask_of_the_first_layer_does_not_reach_them():
    """The mask lies far in the past, and only the last sample was observed: the shortcut has it."""
    model = FlexTCN(in_channels=1, num_classes=3, length=40, readout="mean", widths=[4])
    mask = next(module for module in model.modules() if isinstance(module, GaussianMask))
    mask.set_(mean=0.0, sigma=0.1)
    observed = torch.arange(40).expand(2, 40) == 39
    y = model(torch.randn(2, 1, 40), observed=observed)
    assert y.isfinite().all()
    assert not torch.allclose(y, model.head.bias.expand_as(y))


@pytest.mark.parametrize("name", ["flexnet", "flextcn"])
def test_wrong_masks(name):
    model, (x, observed, _) = make(name), batch(name)
    nothing = observed.clone()
    nothing[1] = False
    for wrong, kind, words in (
        (observed[:, :-1], ArgumentError, ["observed", str(tuple(x.shape))]),
        (torch.ones(4, 2, *SIZES[name]), ArgumentError, ["observed", "channels"]),
        (torch.full(observed.shape, 0.5), ArgumentError, ["observed", "0.5"]),
        (observed.to(torch.complex64), ArgumentTypeError, ["observed", "complex"]),
        (observed.tolist(), ArgumentTypeError, ["observed", "list"]),
        (nothing, ArgumentError, ["row 1", "observed"]),
    ):
        with pytest.raises(kind, match=mentions(*words)) as error:
            model(x, observed=wrong)
        assert "\n" not in str(error.value)


def test_samples_past_the_end_do_not_count():
    model, (x, observed, _) = make("flextcn"), batch("flextcn")
    observed[1] = torch.arange(24) >= 6
    with pytest.raises(ArgumentError, match=mentions("row 1", "observed")):
        model(x, [24, 6, 24, 24], observed=observed)


def test_plain_convolutions_are_refused():
    model = FlexNet(in_channels=3, num_classes=2, widths=[4], conv="plain", kernel_size=3)
    x, observed, _ = batch("flexnet")
    with pytest.raises(UsageError, match=mentions("FlexConv", "Conv2d", "observed")):
        model(x, observed=observed)


@pytest.mark.parametrize("name", SIZES)
def test_materialized_and_exported_networks_still_fill_in(name, tmp_path):
    model, (x, observed, there) = make(name).eval(), batch(name)
    expected = model(x, observed=observed)
    export(model, tmp_path / "model.safetensors")
    for plain in (materialize(model), load_conv(tmp_path / "model.safetensors")):
        y = plain(torch.where(there, x, torch.nan), observed=observed)
        torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(plain(x), model(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision(name, dtype):
    model, (x, observed, there) = make(name).eval(), batch(name)
    expected, tolerance = model(x, observed=observed), {torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    x = torch.where(there, x, torch.nan)
    for converted in (materialize(model).to(dtype), copy.deepcopy(model).to(dtype)):
        y = converted(x.to(dtype), observed=observed)
        assert y.dtype == dtype
        assert relative_error(y.float(), expected) < tolerance
    with torch.autocast("cpu", dtype):
        assert relative_error(model(x, observed=observed).float(), expected) < tolerance


def test_streams_take_no_mask():
    model, (x, observed, _) = make("flextcn").eval(), batch("flextcn")
    with pytest.raises(TypeError, match="observed"):
        Streaming(model)(x, observed=observed)
    torch.testing.assert_close(Streaming(model)(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["flexnet", "flextcn"])
def test_fused_networks_equal_the_others(name):
    model, fused, (x, observed, _) = make(name), make(name), batch(name)
    y = model(x, observed=observed)
    with fused_blocks(fused):
        torch.testing.assert_close(fused(x, observed=observed), y)
    for one, other in zip(model.buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_mask_channel_in_which_nothing_is_observed_is_refused():
    net = SepFlexNet(in_channels=3, num_classes=2, length=16, width=4, depth=1, mask_channel=True).eval()
    x = torch.randn(2, 3, 16)
    x[0, -1], x[1, -1] = 1, torch.arange(16) >= 8
    assert net(x).isfinite().all()
    with pytest.raises(FlexConvError, match=mentions("row 1", "observed")):
        net(x, [16, 8])
    x[1, -1] = 0
    with pytest.raises(FlexConvError, match=mentions("row 1", "observed")):
        net(x)
