"""Masks stay trainable: limits on mean and σ, and gradients that lead back to them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flexconv.nn import Axis, FlexConv2d, GaussianMask, RotatedGaussianMask
from flexconv.nn._guard import guard
from tests.nn.helpers import coordinates_of, gaussian, set_parameters

# --- any parameters ---------------------------------------------------------------------------------------------------


def magnitudes(low=-8, high=8):
    """Numbers of either sign between 10^low and 10^high."""
    return st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(low, high))


def make_axis(size, causal):
    """Make an axis; `st.builds(Axis)` would also draw its optional fields."""
    return Axis(size, causal)


kernel_axes = st.builds(make_axis, st.integers(1, 300) | st.sampled_from([1001, 16000, 16001]), st.booleans())
dtypes = st.sampled_from([torch.float32, torch.float64])


def assert_trainable(mask, axes, dtype):
    """Check that values are in [0, 1], that enough taps are kept, and that gradients are finite and not zero."""
    window = mask(coordinates_of(axes, dtype), axes)
    assert window.isfinite().all()
    assert ((window >= 0) & (window <= 1)).all()
    for d, axis in enumerate(axes):
        others = [i for i in range(len(axes)) if i != d]
        profile = window.amax(others) if others else window
        assert profile.count_nonzero() >= axis.fewest_taps
    (-window.sum()).backward()
    gradients = [parameter.grad for parameter in mask.parameters()]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert ((mask.mean.grad != 0) | (mask.sigma.grad != 0)).all() or min(axis.size for axis in axes) < 2


@given(kernel_axes, st.floats(-5, 5), magnitudes() | st.just(0.0), dtypes)
def test_mask_is_trainable_for_any_parameters(axis, mean, sigma, dtype):
    assert_trainable(set_parameters(GaussianMask(1, dtype=dtype), mean=[mean], sigma=[sigma]), [axis], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "causal"), [(44, True), (101, True), (55, False), (16001, True)])
def test_narrow_mask_is_trainable_on_and_between_taps(size, causal, dtype):
    axis = Axis(size, causal)
    (taps,) = coordinates_of([axis], dtype)
    for mean in torch.cat([taps, (taps[1:] + taps[:-1]) / 2])[:: max(1, size // 50)]:
        mask = set_parameters(GaussianMask(1, dtype=dtype), mean=[mean], sigma=[1e-8])
        assert_trainable(mask, [axis], dtype)


@given(
    st.lists(st.builds(make_axis, st.integers(1, 40), st.booleans()), min_size=2, max_size=3),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.lists(magnitudes() | st.just(0.0), min_size=3, max_size=3),
)
def test_mask_on_several_axes_is_trainable_for_any_parameters(axes, mean, sigma):
    dims = len(axes)
    mask = set_parameters(GaussianMask(dims, dtype=torch.float64), mean=mean[:dims], sigma=sigma[:dims])
    assert_trainable(mask, axes, torch.float64)


@given(
    st.lists(st.builds(make_axis, st.integers(1, 40), st.booleans()), min_size=2, max_size=2),
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    st.lists(magnitudes() | st.just(0.0), min_size=2, max_size=2),
    st.floats(-10, 10),
)
def test_rotated_mask_is_trainable_for_any_parameters(axes, mean, sigma, angle):
    mask = set_parameters(RotatedGaussianMask(dtype=torch.float64), mean=mean, sigma=sigma, angle=[angle])
    assert_trainable(mask, axes, torch.float64)


@pytest.mark.parametrize("sigma", [1e20, -1e38, (0.1, 1e38)])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2])
def test_rotated_mask_is_finite_if_square_of_sigma_overflows(sigma, angle):
    layer = FlexConv2d(1, 1, 9, mask=RotatedGaussianMask(sigma=sigma, angle=angle, form="guarded"))
    assert max(layer.extent) == 9
    y = layer(torch.ones(1, 1, 9, 9))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.mask.parameters())


@pytest.mark.parametrize("sigma", [1e38, -3e38])
def test_scaled_mask_is_finite_if_multiples_of_sigma_overflow(sigma):
    layer = FlexConv2d(1, 1, 9, mask=GaussianMask(2, sigma=sigma, form="scaled"))
    assert layer.mask.mean.tolist() == [0.0, 0.0]
    assert layer.extent == (9, 9)
    assert layer(torch.ones(1, 1, 9, 9)).isfinite().all()


@given(kernel_axes, st.floats(-1, 1), magnitudes(-3, 1), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
@example(Axis(33, False), 0.0, 0.075, 0.1)
@example(Axis(33, True), 1.0, 0.075, 0.1)
def test_mask_is_cropped_gaussian_if_parameters_are_within_limits(axis, mean, sigma, threshold):
    assume(abs(sigma) > axis.spacing / 3)
    mask = set_parameters(GaussianMask(1, threshold=threshold, dtype=torch.float64), mean=[mean], sigma=[sigma])
    window, plain = mask(coordinates_of([axis]), [axis]), gaussian(coordinates_of([axis]), [mean], [sigma])
    kept = window > 0
    torch.testing.assert_close(window[kept], plain[kept], rtol=1e-12, atol=0)
    assume(not ((plain - threshold).abs() < 1e-9).any())
    if (plain > threshold).sum() >= axis.fewest_taps:
        assert torch.equal(kept, plain > threshold)
    else:
        assert kept.sum() >= axis.fewest_taps
    assert (kept | (plain <= threshold)).all()


# --- parameters outside the limits ------------------------------------------------------------------------------------


def overlap_gradients(mask, axes, target):
    """Return the gradients of mean and σ of a loss that is minus the overlap of the mask with `target`."""
    lines = coordinates_of(axes)
    (-mask(lines, axes) * target(lines, axes)).sum().backward()
    return mask.mean.grad, mask.sigma.grad


@pytest.mark.parametrize("kind", [GaussianMask, RotatedGaussianMask])
@pytest.mark.parametrize("mean", [3.0, 1.5, -1.5, -3.0])
def test_gradient_moves_mean_back_into_grid(kind, mean):
    axes = [Axis(33, False)] * 2
    target = GaussianMask(2, sigma=0.4, dtype=torch.float64)
    gradient, _ = overlap_gradients(
        set_parameters(kind(2, sigma=0.4, dtype=torch.float64), mean=[mean, mean]), axes, target
    )
    assert (gradient * mean > 0).all()


@pytest.mark.parametrize("kind", [GaussianMask, RotatedGaussianMask])
@pytest.mark.parametrize("sigma", [0.0, 1e-6, -1e-6, 0.01, -0.01])
@pytest.mark.parametrize("size", [5, 33])
def test_gradient_increases_magnitude_of_small_sigma(kind, sigma, size):
    axes = [Axis(size, False)] * 2
    target = GaussianMask(2, sigma=0.4, dtype=torch.float64)
    _, gradient = overlap_gradients(set_parameters(kind(2, dtype=torch.float64), sigma=[sigma, sigma]), axes, target)
    direction = -1.0 if sigma < 0 else 1.0
    assert (gradient * direction < 0).all()


@pytest.mark.parametrize(("mean", "sigma"), [(3.0, 0.0), (-2.0, -1e-4), (0.2, 0.0), (1.0, 1e-6)])
@pytest.mark.parametrize("causal", [False, True])
def test_training_moves_mask_back_into_limits(mean, sigma, causal):
    axes = [Axis(17, causal)]
    lines = coordinates_of(axes)
    mask = set_parameters(GaussianMask(1, dtype=torch.float64), mean=[mean], sigma=[sigma])
    target = gaussian(lines, [0.2], [0.3])
    optimizer = torch.optim.Adam(mask.parameters(), lr=0.03)
    for _ in range(200):
        optimizer.zero_grad()
        (-mask(lines, axes) * target).sum().backward()
        optimizer.step()
    assert abs(mask.mean.item()) < 1
    assert abs(mask.sigma.item()) > 0.3


def test_mean_does_not_drift_away_from_grid():
    axes = [Axis(17, False)]
    mask = set_parameters(GaussianMask(1, sigma=0.4), mean=[0.9])
    optimizer = torch.optim.Adam(mask.parameters(), lr=0.03)
    for _ in range(300):
        optimizer.zero_grad()
        (-mask(coordinates_of(axes, torch.float32), axes)[-1]).sum().backward()  # the loss favors the last tap
        optimizer.step()
    assert mask.mean.abs() < 1.5


def test_small_outward_gradients_are_zeroed():
    x = torch.tensor([1 + 2**-9, -1 - 2**-9, 0.5], dtype=torch.float16, requires_grad=True)
    y, _ = guard(x, x.detach(), [Axis(9, causal=False)] * 3)
    y.backward(torch.tensor([-1e-5, 1e-5, 1e-5], dtype=torch.float16))
    assert x.grad.tolist()[:2] == [0.0, 0.0]
    assert x.grad[2] > 0
