"""`flexconv.testing`: assertions pass for correct models, and name what is wrong with others."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, at_resolution
from flexconv.nn import MAGNet
from flexconv.testing import (
    assert_causal,
    assert_resolution_consistent,
    assert_streaming_matches,
    assert_translation_equivariant,
    resolution_error,
)


def causal(channels=2, kernel_size=7, **options):
    return FlexConv1d(channels, channels, kernel_size, padding="causal", **options)


class Apply(nn.Module):
    """A model followed by a function inside `forward`, which is invisible from outside."""

    def __init__(self, model, function):
        super().__init__()
        self.model, self.function = model, function

    def forward(self, x):
        return self.function(self.model(x))


def look_ahead(x, steps=1):
    return F.pad(x[..., steps:], (0, steps))


def by_position(x):
    return x * torch.linspace(0.5, 1.5, x.shape[-1], dtype=x.dtype)


# --- assert_causal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        causal(),
        nn.Sequential(causal(mask=None), nn.ReLU(), nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3).eval()),
        FlexConv1d(2, 2, 5, padding=[(4, 0)]),
    ],
    ids=["layer", "model", "pair of paddings"],
)
@pytest.mark.parametrize("shape", [(3, 2, 12), (1, 2, 1)], ids=str)
def test_causal_models_pass(model, shape):
    assert_causal(model, torch.randn(shape))


def test_causal_along_another_axis():
    layer = FlexConv2d(1, 2, 5, padding=("causal", "same"), mask=GaussianMask(2, sigma=0.5))
    assert_causal(layer, torch.randn(1, 1, 6, 7), axis=2)
    with pytest.raises(AssertionError, match="1 steps in its future"):
        assert_causal(layer, torch.randn(1, 1, 6, 7), axis=3)


def test_causal_with_unbatched_input():
    assert_causal(causal(), torch.randn(2, 9))


@pytest.mark.parametrize("steps", [1, 3])
def test_error_gives_the_distance_of_a_look_ahead(steps):
    model = Apply(causal(mask=GaussianMask(1, sigma=1e-3), kernel_size=1), lambda x: look_ahead(x, steps))
    with pytest.raises(AssertionError, match=rf"output 0 .*input {steps}.* {steps} steps"):
        assert_causal(model, torch.randn(1, 2, 10))


def test_finds_a_look_ahead_at_a_later_step():
    def late(x):
        return torch.cat([x[..., :6], look_ahead(x[..., 6:], 2)], -1)

    with pytest.raises(AssertionError, match=r"output 6 .*input 8.* 2 steps"):
        assert_causal(late, torch.randn(1, 2, 10))


@pytest.mark.parametrize(
    "model",
    [
        FlexConv1d(2, 2, 5, mask=None),
        Apply(causal(), lambda x: x - x.mean(-1, keepdim=True)),
        nn.Sequential(causal(), nn.BatchNorm1d(2).train()),
    ],
    ids=["centred layer", "mean over time", "batch statistics"],
)
def test_non_causal_models_fail(model):
    with pytest.raises(AssertionError, match=r"output 0 .*input \d+.* \d+ steps in its future"):
        assert_causal(model, torch.randn(2, 2, 8))


def test_causal_fails_if_lengths_differ():
    with pytest.raises(AssertionError, match=r"output has 4 .*input 8"):
        assert_causal(causal(stride=2), torch.randn(1, 2, 8))


def test_causal_does_not_change_input_or_gradients():
    layer, x = causal(), torch.randn(1, 2, 8)
    assert_causal(layer, x)
    assert not x.requires_grad
    assert all(parameter.grad is None for parameter in layer.parameters())


# --- assert_translation_equivariant -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [(3,), (-2,), (0,)], ids=str)
def test_1d_convolutions_are_equivariant(shift):
    assert_translation_equivariant(FlexConv1d(2, 3, 9, mask=None), torch.randn(2, 2, 40), shift, margin=4)
    assert_translation_equivariant(causal(kernel_size=9, mask=None), torch.randn(2, 2, 40), shift, margin=8)


@pytest.mark.parametrize("shift", [(3, 0), (1, -4)], ids=str)
def test_2d_convolutions_are_equivariant(shift):
    model = nn.Sequential(FlexConv2d(2, 3, 5, mask=None), nn.ReLU(), FlexConv2d(3, 1, 7))
    assert_translation_equivariant(model, torch.randn(2, 2, 24, 28), shift, margin=5)


@pytest.mark.parametrize(
    ("function", "size"),
    [(by_position, (40,)), (lambda x: F.avg_pool1d(x, 2).repeat_interleave(2, -1), (40,)), (by_position, (30, 30))],
    ids=["position", "pooling", "position, 2D"],
)
def test_position_dependent_models_fail(function, size):
    layer = (FlexConv1d if len(size) == 1 else FlexConv2d)(2, 2, 5)
    shift = (3,) * len(size)
    message = rf"shifting .*\({', '.join(map(str, shift))},?\).*relative error .*1e-04"
    with pytest.raises(AssertionError, match=message):
        assert_translation_equivariant(Apply(layer, function), torch.randn(2, 2, *size), shift, margin=2)


def test_equivariance_fails_at_the_edges():
    x = torch.randn(1, 2, 30)
    with pytest.raises(AssertionError, match="does not shift the output"):
        assert_translation_equivariant(FlexConv1d(2, 2, 9, mask=None), x, (2,), margin=0)


def test_equivariance_fails_for_nan():
    with pytest.raises(AssertionError, match="relative error nan"):
        assert_translation_equivariant(lambda x: x * torch.nan, torch.randn(1, 1, 9), (1,), margin=1)


def test_equivariance_tolerance():
    model = Apply(FlexConv1d(2, 2, 5), lambda x: x + 1e-3 * by_position(x))
    x = torch.randn(1, 2, 30)
    assert_translation_equivariant(model, x, (1,), margin=3, rtol=1e-2)
    with pytest.raises(AssertionError, match="1e-06"):
        assert_translation_equivariant(model, x, (1,), margin=3, rtol=1e-6)


def test_error_if_the_margin_leaves_nothing_to_compare():
    with pytest.raises(ValueError, match="margin 5"):
        assert_translation_equivariant(by_position, torch.randn(1, 1, 10), (1,), margin=5)


# --- assert_streaming_matches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [1, 7, 20, [3, 0, 16, 1]], ids=str)
@pytest.mark.parametrize(
    "model",
    [causal(), nn.Sequential(causal(), nn.BatchNorm1d(2), nn.ReLU(), nn.Dropout(0.5), causal(stride=2))],
    ids=["layer", "strided model"],
)
def test_streamable_models_pass(model, chunks):
    assert_streaming_matches(model, torch.randn(2, 2, 20), chunks)


@pytest.mark.parametrize(
    "head", [lambda y: y[..., -1], lambda y: y[..., -1].sum(1)], ids=["[batch, channels]", "[batch]"]
)
def test_streaming_classifier_of_the_last_step_passes(head):
    assert_streaming_matches(Apply(causal(), head), torch.randn(2, 2, 20), 6)


def test_streaming_along_another_axis_passes():
    layer = FlexConv2d(1, 2, 5, padding=("causal", "same"))
    assert_streaming_matches(layer, torch.randn(1, 1, 9, 6), 2, axis=2)


def test_streaming_restores_the_training_mode_of_every_module():
    model = nn.Sequential(causal(), nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()  # frozen, as in fine-tuning
    before = [module.training for module in model.modules()]
    assert_streaming_matches(model, torch.randn(2, 2, 8), 3)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda y: y.mean(-1), "relative error"),
        (lambda y: y - y.mean(-1, keepdim=True), "relative error"),
        (by_position, "relative error"),
        (look_ahead, "relative error"),
        (lambda y: y.cumsum(-1), "relative error"),
        (lambda y: F.pad(y, (1, 0)), r"shapes \(2, 2, 24\) and \(2, 2, 21\)"),
    ],
    ids=["mean pooling", "centring", "position", "look-ahead", "running sum", "padding"],
)
def test_streaming_fails_if_forward_mixes_time_steps(function, reason):
    with pytest.raises(AssertionError, match=f"chunks of 5 .*{reason}"):
        assert_streaming_matches(Apply(causal(), function), torch.randn(2, 2, 20), 5)


def test_streaming_error_for_a_centred_layer():
    with pytest.raises(ValueError, match="future"):
        assert_streaming_matches(FlexConv1d(2, 2, 5), torch.randn(1, 2, 8), 2)


# --- assert_resolution_consistent -------------------------------------------------------------------------------------


def smooth(kind=FlexConv1d, size=17, *, sigma=0.3, input_scale=2.0, **options):
    generator = partial(MAGNet, hidden=4, layers=1, input_scale=input_scale)
    options = {"generator": generator, "mask": GaussianMask(kind.dims, sigma=sigma)} | options
    return kind(2, 2, size, parametrization="paper", **options)


@pytest.mark.parametrize("scale", [2, 1.5, 1.75])
@pytest.mark.parametrize(
    "make", [smooth, partial(smooth, padding="causal"), partial(smooth, FlexConv2d)], ids=["1D", "causal", "2D"]
)
def test_smooth_kernels_are_consistent(make, scale):
    layer = make()
    assert_resolution_consistent(layer, scale, 0.05)
    assert_resolution_consistent(at_resolution(layer, scale), 1 / scale, 0.05)


def test_consistent_with_scale_and_size_per_axis():
    assert_resolution_consistent(smooth(FlexConv2d, (17, 33)), (2, 1.5), 0.05, size=(20, 31))


@pytest.mark.parametrize("scale", [1.37, 19 / 17, 0.8])
def test_consistent_for_scales_with_few_shared_samples(scale):
    assert_resolution_consistent(smooth(FlexConv2d), scale, 0.05)


def test_error_gives_the_difference_for_an_aliased_kernel():
    layer = smooth(input_scale=200.0)
    with pytest.raises(AssertionError, match=r"at 2 times .* \d\.\de[+-]\d\d; .*5e-02"):
        assert_resolution_consistent(layer, 2, 0.05)


def test_hard_cropping_is_less_consistent():
    layer = smooth(sigma=0.075, input_scale=1.0, padding="causal")
    limit = 2 * resolution_error(layer, 2)
    assert_resolution_consistent(layer, 2, limit)
    with pytest.raises(AssertionError, match="outputs differ"):
        assert_resolution_consistent(layer, 2, limit, crop="hard")


def test_nan_kernel_is_not_consistent():
    layer = smooth()
    nn.init.constant_(layer.generator.output.weight, torch.nan)
    with pytest.raises(AssertionError, match="differ by nan"):
        assert_resolution_consistent(layer, 2, 1.0)


def test_resolution_error_is_reproducible_and_leaves_the_layer_unchanged():
    layer = smooth()
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    assert resolution_error(layer, 1) < 1e-6
    errors = [resolution_error(layer, 2, seed=seed) for seed in (0, 0, 1)]
    assert errors[0] == errors[1] != errors[2]
    assert layer.training
    assert layer.kernel_size == (17,)
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
    assert all(p.grad is None for p in layer.parameters())


def test_resolution_error_is_smaller_for_fewer_cycles():
    layer = smooth(input_scale=8.0)
    assert resolution_error(layer, 2, cycles=1.0, size=64) < resolution_error(layer, 2, cycles=12.0, size=64)


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding_mode": "circular"}], ids=str)
def test_resolution_error_rejects_stride_and_padding_mode(options):
    with pytest.raises(ValueError, match="stride 1 and padding_mode 'zeros'"):
        assert_resolution_consistent(smooth(**options), 2, 0.1)
