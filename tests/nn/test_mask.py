"""Gaussian windows: values, cropping, and what keeps them alive."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flexconv.nn import Axis, FlexConv1d, FlexConv2d, GaussianMask, RotatedGaussianMask
from flexconv.nn._guard import guard

from ..conftest import relative_error

R = math.sqrt(-2 * math.log(0.1))  # a factor falls to 0.1 at R standard deviations


def lines_of(axes, dtype=torch.float64):
    return [a.coordinates(a.whole, device=torch.device("cpu"), dtype=dtype) for a in axes]


def set_(mask, **values):
    with torch.no_grad():
        for name, value in values.items():
            getattr(mask, name).copy_(torch.as_tensor(value, dtype=torch.float64))
    return mask


def plain_window(lines, mean, sigma):
    factors = [torch.exp(-0.5 * ((x - m) / s) ** 2) for x, m, s in zip(lines, mean, sigma, strict=True)]
    return torch.stack(torch.meshgrid(*factors, indexing="ij")).prod(0)


# --- the authors' mask ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dims", "axes"), [(1, [Axis(11, True)]), (2, [Axis(7, False), Axis(9, False)])])
def test_values_and_gradients_are_the_authors(golden, dims, axes):
    file = golden("mask")
    grid = file[f"in/grid{dims}d"]
    lines = [grid] if dims == 1 else [grid[0, :, 0], grid[1, 0, :]]
    params = file[f"in/params{dims}d"]
    mask = GaussianMask(dims, form="authors", threshold=None, dtype=torch.float64)
    window = set_(mask, mean=params[:, 0], sigma=params[:, 1])(lines, axes)
    assert relative_error(window, file[f"out/mask{dims}d"]) < 1e-12
    (window * file[f"in/cotangent{dims}d"]).sum().backward()
    gradient = torch.stack([mask.mean.grad, mask.sigma.grad], 1)
    assert relative_error(gradient, file[f"out/grad_params{dims}d"]) < 1e-12


@pytest.mark.parametrize(("table", "causal"), [("crop2d", False), ("crop1d", True)])
def test_cropping_is_the_authors(golden, table, causal):
    mask = GaussianMask(1, form="authors", dtype=torch.float64)
    for size, mean, sigma, _, taps, first, last in golden("grids")[table].tolist():
        axis = Axis(int(size), causal)
        ((low, high),) = mask.bounds((torch.tensor([mean]).double(), torch.tensor([sigma]).double()), [axis]).tolist()
        start, stop = axis.taps_between(low, high)
        (coordinates,) = lines_of([axis])
        assert stop - start == taps
        assert coordinates[start].item() == pytest.approx(first, abs=1e-12)
        assert coordinates[stop - 1].item() == pytest.approx(last, abs=1e-12)


def test_the_authors_crop_follows_each_axis_by_itself(golden):
    rows = [row for row in golden("grids")["crop2d"].tolist() if row[0] in (9, 33)]
    mask = GaussianMask(2, form="authors", dtype=torch.float64)
    for a, b in itertools.product(rows[::2], rows[1::2]):
        axes = [Axis(int(a[0]), False), Axis(int(b[0]), False)]
        window = set_(mask, mean=[a[1], b[1]], sigma=[a[2], b[2]])(lines_of(axes), axes)
        bounds = mask.bounds(mask.size_parameters(), axes).tolist()
        taps = [axis.taps_between(*low_high) for axis, low_high in zip(axes, bounds, strict=True)]
        assert [stop - start for start, stop in taps] == [a[4], b[4]]
        kept = torch.zeros_like(window, dtype=torch.bool)
        kept[slice(*taps[0]), slice(*taps[1])] = True
        assert not window[~kept].any()


# --- the guarded mask: what is kept -----------------------------------------------------------------------------------


def magnitudes(low=-8, high=8):
    return st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(low, high))


def plain_axis(size, causal):
    return Axis(size, causal)


kernel_axes = st.builds(plain_axis, st.integers(1, 300) | st.sampled_from([1001, 16000, 16001]), st.booleans())
dtypes = st.sampled_from([torch.float32, torch.float64])


def assert_alive(mask, axes, dtype):
    """Finite values in [0, 1], enough taps, and a gradient to grow by."""
    window = mask(lines_of(axes, dtype), axes)
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
def test_nothing_an_optimiser_does_kills_a_guarded_mask(axis, mean, sigma, dtype):
    assert_alive(set_(GaussianMask(1, dtype=dtype), mean=[mean], sigma=[sigma]), [axis], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "causal"), [(44, True), (101, True), (55, False), (16001, True)])
def test_a_narrow_mask_on_or_between_any_taps_keeps_a_gradient(size, causal, dtype):
    axis = Axis(size, causal)
    (taps,) = lines_of([axis], dtype)
    for mean in torch.cat([taps, (taps[1:] + taps[:-1]) / 2])[:: max(1, size // 50)]:
        mask = set_(GaussianMask(1, dtype=dtype), mean=[mean], sigma=[1e-8])
        assert_alive(mask, [axis], dtype)


@given(
    st.lists(st.builds(plain_axis, st.integers(1, 40), st.booleans()), min_size=2, max_size=3),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
    st.lists(magnitudes() | st.just(0.0), min_size=3, max_size=3),
)
def test_nothing_kills_a_guarded_mask_on_several_axes(axes, mean, sigma):
    dims = len(axes)
    mask = set_(GaussianMask(dims, dtype=torch.float64), mean=mean[:dims], sigma=sigma[:dims])
    assert_alive(mask, axes, torch.float64)


@given(
    st.lists(st.builds(plain_axis, st.integers(1, 40), st.booleans()), min_size=2, max_size=2),
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    st.lists(magnitudes() | st.just(0.0), min_size=2, max_size=2),
    st.floats(-10, 10),
)
def test_nothing_kills_a_rotated_mask(axes, mean, sigma, angle):
    mask = set_(RotatedGaussianMask(dtype=torch.float64), mean=mean, sigma=sigma, angle=[angle])
    assert_alive(mask, axes, torch.float64)


@pytest.mark.parametrize("sigma", [1e20, -1e38, (0.1, 1e38)])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2])
def test_a_rotated_mask_survives_a_sigma_whose_square_does_not_fit_float32(sigma, angle):
    layer = FlexConv2d(1, 1, 9, mask=RotatedGaussianMask(sigma=sigma, angle=angle))
    assert max(layer.extent) == 9
    y = layer(torch.ones(1, 1, 9, 9))
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in layer.mask.parameters())


@given(kernel_axes, st.floats(-1, 1), magnitudes(-3, 1), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
@example(Axis(33, False), 0.0, 0.075, 0.1)
@example(Axis(33, True), 1.0, 0.075, 0.1)
def test_inside_the_safe_range_the_mask_is_the_formula_cropped_at_the_threshold(axis, mean, sigma, threshold):
    assume(abs(sigma) > axis.spacing / 3)
    mask = set_(GaussianMask(1, threshold=threshold, dtype=torch.float64), mean=[mean], sigma=[sigma])
    window, plain = mask(lines_of([axis]), [axis]), plain_window(lines_of([axis]), [mean], [sigma])
    kept = window > 0
    torch.testing.assert_close(window[kept], plain[kept], rtol=1e-12, atol=0)
    assume(not ((plain - threshold).abs() < 1e-9).any())
    if (plain > threshold).sum() >= axis.fewest_taps:
        assert torch.equal(kept, plain > threshold)
    else:
        assert kept.sum() >= axis.fewest_taps
    assert (kept | (plain <= threshold)).all()


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.5])
def test_a_factor_at_a_time_is_cropped(threshold):
    axes = [Axis(33, False), Axis(21, True)]
    mean, sigma = [0.1, 0.9], [0.2, 0.4]
    lines = lines_of(axes)
    window = set_(GaussianMask(2, threshold=threshold, dtype=torch.float64), mean=mean, sigma=sigma)(lines, axes)
    plain = plain_window(lines, mean, sigma)
    factors = [torch.exp(-0.5 * ((x - m) / s) ** 2) > threshold for x, m, s in zip(lines, mean, sigma, strict=True)]
    kept = factors[0][:, None] & factors[1]
    assert torch.equal(window > 0, kept)
    torch.testing.assert_close(window, plain * kept)


@pytest.mark.parametrize("form", ["guarded", "authors"])
def test_no_threshold_keeps_every_tap(form):
    axes = [Axis(9, False), Axis(8, True)]
    mask = set_(GaussianMask(2, threshold=None, form=form, dtype=torch.float64), mean=[0.0, 1.0], sigma=[0.3, 0.3])
    torch.testing.assert_close(
        mask(lines_of(axes), axes), plain_window(lines_of(axes), [0.0, 1.0], [0.3, 0.3]), rtol=1e-12, atol=0
    )
    assert mask.bounds(mask.size_parameters(), axes).tolist() == [[-math.inf, math.inf]] * 2


@pytest.mark.parametrize("mask", [GaussianMask(2, sigma=0.4), RotatedGaussianMask(sigma=(0.2, 0.5), angle=0.4)])
def test_a_part_of_the_grid_has_the_values_of_the_whole(mask):
    axes = [Axis(33, False), Axis(17, True)]
    rows, columns = lines_of(axes, torch.float32)
    whole = mask([rows, columns], axes)
    assert torch.equal(mask([rows[8:20], columns[3:]], axes), whole[8:20, 3:])


@pytest.mark.parametrize(("mean", "window"), [(0.0, (14, 19)), (0.5, (22, 27)), (1.0, (30, 33)), (-3.0, (0, 3))])
def test_a_guarded_window_follows_its_mean(mean, window):
    axis = Axis(33, False)
    mask = GaussianMask(1, mean=mean, dtype=torch.float64)
    ((low, high),) = mask.bounds(mask.size_parameters(), [axis]).tolist()
    assert axis.taps_between(low, high) == window


@pytest.mark.parametrize("sigma", [0.5, -0.5])
def test_the_sign_of_sigma_does_not_matter(sigma):
    axis = Axis(33, False)
    mask = GaussianMask(1, sigma=sigma, dtype=torch.float64)
    assert torch.equal(
        mask(lines_of([axis]), [axis]), GaussianMask(1, sigma=0.5, dtype=torch.float64)(lines_of([axis]), [axis])
    )


# --- the guarded mask: gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mask",
    [
        GaussianMask(2, mean=(0.1, 0.9), sigma=(0.4, -0.6), dtype=torch.float64),
        GaussianMask(2, mean=(0.1, 0.9), sigma=(0.4, -0.6), form="authors", dtype=torch.float64),
        GaussianMask(2, mean=(0.1, 0.9), sigma=(0.4, 0.6), threshold=None, dtype=torch.float64),
        RotatedGaussianMask(mean=(0.1, 0.9), sigma=(0.4, 0.6), angle=0.3, dtype=torch.float64),
        RotatedGaussianMask(mean=(0.1, 0.9), sigma=(0.4, -0.6), angle=2.0, threshold=None, dtype=torch.float64),
    ],
    ids=["guarded", "authors", "uncropped", "rotated", "rotated-uncropped"],
)
def test_gradients_inside_the_safe_range(mask):
    axes = [Axis(6, False), Axis(5, True)]
    names, values = zip(*mask.named_parameters(), strict=True)

    def window(*values):
        return torch.func.functional_call(mask, dict(zip(names, values, strict=True)), (lines_of(axes), axes))

    assert torch.autograd.gradcheck(window, [v.detach().clone().requires_grad_() for v in values])


def pull(mask, axes, target):
    """Gradients of minus the overlap with `target`."""
    lines = lines_of(axes)
    (-mask(lines, axes) * target(lines, axes)).sum().backward()
    return mask.mean.grad, mask.sigma.grad


@pytest.mark.parametrize("kind", [GaussianMask, RotatedGaussianMask])
@pytest.mark.parametrize("mean", [3.0, 1.5, -1.5, -3.0])
def test_a_mean_outside_the_grid_is_pulled_back(kind, mean):
    axes = [Axis(33, False)] * 2
    target = GaussianMask(2, sigma=0.4, dtype=torch.float64)
    gradient, _ = pull(set_(kind(2, sigma=0.4, dtype=torch.float64), mean=[mean, mean]), axes, target)
    assert (gradient * mean > 0).all()


@pytest.mark.parametrize("kind", [GaussianMask, RotatedGaussianMask])
@pytest.mark.parametrize("sigma", [0.0, 1e-6, -1e-6, 0.01, -0.01])
@pytest.mark.parametrize("size", [5, 33])
def test_a_sigma_below_the_grid_is_pulled_up(kind, sigma, size):
    axes = [Axis(size, False)] * 2
    target = GaussianMask(2, sigma=0.4, dtype=torch.float64)
    _, gradient = pull(set_(kind(2, dtype=torch.float64), sigma=[sigma, sigma]), axes, target)
    direction = -1.0 if sigma < 0 else 1.0
    assert (gradient * direction < 0).all()


@pytest.mark.parametrize(("mean", "sigma"), [(3.0, 0.0), (-2.0, -1e-4), (0.2, 0.0), (1.0, 1e-6)])
@pytest.mark.parametrize("causal", [False, True])
def test_training_brings_a_lost_mask_back(mean, sigma, causal):
    axes = [Axis(17, causal)]
    lines = lines_of(axes)
    mask = set_(GaussianMask(1, dtype=torch.float64), mean=[mean], sigma=[sigma])
    target = plain_window(lines, [0.2], [0.3])
    optimiser = torch.optim.Adam(mask.parameters(), lr=0.03)
    for _ in range(200):
        optimiser.zero_grad()
        (-mask(lines, axes) * target).sum().backward()
        optimiser.step()
    assert abs(mask.mean.item()) < 1
    assert abs(mask.sigma.item()) > 0.3


# --- the rotated mask -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [[Axis(17, False)] * 2, [Axis(33, False), Axis(17, True)]])
@pytest.mark.parametrize("mean", [(0.0, 0.0), (0.3, -0.2)])
@pytest.mark.parametrize("turns", [0, 1, 2, 4])
def test_a_rotated_mask_at_half_turns_is_the_plain_one(axes, mean, turns):
    rotated = RotatedGaussianMask(mean=mean, sigma=(0.2, 0.5), angle=turns * math.pi, dtype=torch.float64)
    plain = GaussianMask(2, mean=mean, sigma=(0.2, 0.5), dtype=torch.float64)
    torch.testing.assert_close(rotated(lines_of(axes), axes), plain(lines_of(axes), axes))


@pytest.mark.parametrize("angle", [math.pi / 2, -math.pi / 2])
def test_a_quarter_turn_swaps_the_sigmas(angle):
    axes = [Axis(17, False)] * 2
    rotated = RotatedGaussianMask(mean=(0.3, -0.2), sigma=(0.2, 0.5), angle=angle, dtype=torch.float64)
    plain = GaussianMask(2, mean=(0.3, -0.2), sigma=(0.5, 0.2), dtype=torch.float64)
    torch.testing.assert_close(rotated(lines_of(axes), axes), plain(lines_of(axes), axes))


def test_the_first_axis_turns_towards_the_second():
    axes = [Axis(17, False)] * 2
    long = RotatedGaussianMask(sigma=(0.6, 0.1), angle=math.pi / 4, threshold=None, dtype=torch.float64)
    window = long(lines_of(axes), axes)
    assert window[12, 12] > 0.4
    assert window[12, 4] < 1e-6


@given(
    st.floats(-math.pi, math.pi),
    st.floats(0.1, 1.0),
    st.floats(0.1, 1.0),
    st.floats(-1, 1),
    st.floats(-1, 1),
    st.sampled_from([0.05, 0.1, 0.6]),
)
def test_the_box_of_a_rotated_mask_fits_the_ellipse(angle, s0, s1, m0, m1, threshold):
    axes = [Axis(25, False), Axis(33, True)]
    options = {"mean": (m0, m1), "sigma": (s0, s1), "angle": angle, "dtype": torch.float64}
    whole = RotatedGaussianMask(threshold=None, **options)(lines_of(axes), axes)
    mask = RotatedGaussianMask(threshold=threshold, **options)
    cropped = mask(lines_of(axes), axes)
    assert (cropped[whole > threshold + 1e-9] > 0).all()
    assert torch.equal(cropped[cropped > 0], whole[cropped > 0])
    t = torch.linspace(0, 2 * math.pi, 2001, dtype=torch.float64)
    reach = math.sqrt(-2 * math.log(threshold))
    u, v = s0 * reach * t.cos(), s1 * reach * t.sin()
    x, y = math.cos(angle) * u - math.sin(angle) * v + m0, math.sin(angle) * u + math.cos(angle) * v + m1
    ellipse = torch.stack([torch.stack([x.min(), x.max()]), torch.stack([y.min(), y.max()])])
    wide_enough = (ellipse[:, 1] - ellipse[:, 0]) > 6 * axes[0].spacing
    bounds = mask.bounds(mask.size_parameters(), axes)
    inner = torch.tensor([m0, m1]).abs() < 0.9
    for d in range(2):
        if wide_enough[d] and inner[d]:
            torch.testing.assert_close(bounds[d], ellipse[d], rtol=0, atol=1e-4)


# --- making, copying, refusing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: GaussianMask(2, sigma=(0.1, 0.2), **o),
        lambda **o: GaussianMask(3, mean=0.5, threshold=None, form="authors", **o),
        lambda **o: RotatedGaussianMask(mean=(0.1, 0.2), angle=0.7, **o),
    ],
)
def test_copies_resets_and_meta(make):
    mask = make()
    start = copy.deepcopy(mask.state_dict())
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.add_(0.3)
    assert repr(mask) != repr(make())  # what it has learned shows
    for twin in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert repr(twin) == repr(mask)
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), mask.parameters(), strict=True))
    mask.reset_parameters()
    empty = make(device="meta")
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    for name, value in start.items():
        assert torch.equal(mask.state_dict()[name], value)
        assert torch.equal(empty.state_dict()[name], value)


def test_a_mask_without_a_mean_starts_where_its_axes_are():
    axes = [Axis(9, True), Axis(9, False)]
    free, told = GaussianMask(2), GaussianMask(2, mean=0.25)
    for mask in (free, told):
        mask.attach(axes)
    assert free.mean.tolist() == [1.0, 0.0]
    assert told.mean.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("make", [GaussianMask, RotatedGaussianMask])
def test_a_float64_mask_starts_at_exactly_the_numbers_given(make):
    mask = make(2, mean=(0.1, -0.3), sigma=0.075, dtype=torch.float64)
    assert mask.mean.tolist() == [0.1, -0.3]
    assert mask.sigma.tolist() == [0.075, 0.075]


def test_half_precision_parameters_follow_the_precision_of_the_lines():
    axis = Axis(9, False)
    mask = GaussianMask(1, sigma=0.5, dtype=torch.bfloat16)
    assert mask(lines_of([axis], torch.float32), [axis]).dtype == torch.float32


def test_the_size_of_a_layer_is_what_its_mask_keeps():
    layer = FlexConv1d(1, 1, 33, padding="causal")
    for sigma in (0.0, 0.02, 0.075, 0.2, 0.5, 3.0):
        set_(layer.mask, sigma=[sigma])
        kernel = layer.kernel()
        assert kernel.shape[-1] == layer.extent[0] == kernel.count_nonzero()
        assert kernel.shape[-1] == max(2, min(33, math.ceil(R * sigma * 16)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianMask(1, sigma=0), "sigma must not be 0"),
        (lambda: GaussianMask(2, sigma=(0.1, 0.0)), "sigma must not be 0"),
        (lambda: GaussianMask(1, sigma=math.nan), "sigma must be finite"),
        (lambda: GaussianMask(1, sigma=math.inf), "sigma must be finite"),
        (lambda: GaussianMask(2, mean=(0.0, -math.inf)), "mean must be finite"),
        (lambda: GaussianMask(1, mean=math.nan), "mean must be finite"),
        (lambda: GaussianMask(2, sigma=(0.1, 0.1, 0.1)), "sigma must be a number or have 2 entries"),
        (lambda: GaussianMask(3, mean=(0.1, 0.1)), "mean must be a number or have 3 entries"),
        (lambda: GaussianMask(1, threshold=0.0), "threshold must lie between 0 and 1"),
        (lambda: GaussianMask(1, threshold=1.0), "threshold must lie between 0 and 1"),
        (lambda: GaussianMask(1, threshold=math.nan), "threshold must lie between 0 and 1"),
        (lambda: GaussianMask(1, form="author"), "unknown mask form 'author'.*did you mean 'authors'"),
        (lambda: RotatedGaussianMask(3), "dims must be 2; got 3"),
        (lambda: RotatedGaussianMask(1), "dims must be 2; got 1"),
        (lambda: RotatedGaussianMask(sigma=0.0), "sigma must not be 0"),
        (lambda: RotatedGaussianMask(angle=math.nan), "angle must be finite; got nan"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_arguments_may_be_tensors():
    mask = RotatedGaussianMask(sigma=torch.tensor([0.25, 0.5]), mean=torch.tensor(0.5), angle=torch.tensor(0.75))
    assert (mask.initial_sigma, mask.initial_mean, mask.initial_angle) == ([0.25, 0.5], [0.5, 0.5], 0.75)


def test_a_pulled_mean_does_not_run_away():
    axes = [Axis(17, False)]
    mask = set_(GaussianMask(1, sigma=0.4), mean=[0.9])
    optimiser = torch.optim.Adam(mask.parameters(), lr=0.03)
    for _ in range(300):
        optimiser.zero_grad()
        (-mask(lines_of(axes, torch.float32), axes)[-1]).sum().backward()  # everything wants to be at the edge
        optimiser.step()
    assert mask.mean.abs() < 1.5


def test_outward_gradients_vanish_however_small():
    x = torch.tensor([1 + 2**-9, -1 - 2**-9, 0.5], dtype=torch.float16, requires_grad=True)
    y, _ = guard(x, x.detach(), [Axis(9, causal=False)] * 3)
    y.backward(torch.tensor([-1e-5, 1e-5, 1e-5], dtype=torch.float16))
    assert x.grad.tolist()[:2] == [0.0, 0.0]
    assert x.grad[2] > 0
