"""Gaussian masks: values, cropping, rotation, and arguments. `test_guard.py` tests limits on the parameters."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv.nn import Axis, FlexConv1d, GaussianMask, RotatedGaussianMask
from tests.conftest import mentions, relative_error
from tests.nn.helpers import coordinates_of, gaussian, set_parameters

REACH = math.sqrt(-2 * math.log(0.1))  # standard deviations at which a Gaussian falls to the threshold 0.1


# --- the authors' mask ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dims", "axes"), [(1, [Axis(11, True)]), (2, [Axis(7, False), Axis(9, False)])])
def test_values_and_gradients_equal_authors_code(golden, dims, axes):
    file = golden("mask")
    grid = file[f"in/grid{dims}d"]
    lines = [grid] if dims == 1 else [grid[0, :, 0], grid[1, 0, :]]
    params = file[f"in/params{dims}d"]
    mask = GaussianMask(dims, form="authors", threshold=None, dtype=torch.float64)
    window = set_parameters(mask, mean=params[:, 0], sigma=params[:, 1])(lines, axes)
    assert relative_error(window, file[f"out/mask{dims}d"]) < 1e-12
    (window * file[f"in/cotangent{dims}d"]).sum().backward()
    gradient = torch.stack([mask.mean.grad, mask.sigma.grad], 1)
    assert relative_error(gradient, file[f"out/grad_params{dims}d"]) < 1e-12


@pytest.mark.parametrize(("table", "causal"), [("crop2d", False), ("crop1d", True)])
def test_cropping_equals_authors_code(golden, table, causal):
    mask = GaussianMask(1, form="authors", dtype=torch.float64)
    for size, mean, sigma, _, taps, first, last in golden("grids")[table].tolist():
        axis = Axis(int(size), causal)
        ((low, high),) = mask.bounds((torch.tensor([mean]).double(), torch.tensor([sigma]).double()), [axis]).tolist()
        start, stop = axis.taps_between(low, high)
        (coordinates,) = coordinates_of([axis])
        assert stop - start == taps
        assert coordinates[start].item() == pytest.approx(first, abs=1e-12)
        assert coordinates[stop - 1].item() == pytest.approx(last, abs=1e-12)


def test_authors_form_crops_each_axis_independently(golden):
    rows = [row for row in golden("grids")["crop2d"].tolist() if row[0] in (9, 33)]
    mask = GaussianMask(2, form="authors", dtype=torch.float64)
    for a, b in itertools.product(rows[::2], rows[1::2]):
        axes = [Axis(int(a[0]), False), Axis(int(b[0]), False)]
        window = set_parameters(mask, mean=[a[1], b[1]], sigma=[a[2], b[2]])(coordinates_of(axes), axes)
        bounds = mask.bounds(mask.size_parameters(), axes).tolist()
        taps = [axis.taps_between(*low_high) for axis, low_high in zip(axes, bounds, strict=True)]
        assert [stop - start for start, stop in taps] == [a[4], b[4]]
        kept = torch.zeros_like(window, dtype=torch.bool)
        kept[slice(*taps[0]), slice(*taps[1])] = True
        assert not window[~kept].any()


# --- values and cropping ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.05, 0.1, 0.5])
def test_each_axis_is_cropped_at_threshold(threshold):
    axes = [Axis(33, False), Axis(21, True)]
    mean, sigma = [0.1, 0.9], [0.2, 0.4]
    lines = coordinates_of(axes)
    window = set_parameters(GaussianMask(2, threshold=threshold, dtype=torch.float64), mean=mean, sigma=sigma)(
        lines, axes
    )
    plain = gaussian(lines, mean, sigma)
    factors = [torch.exp(-0.5 * ((x - m) / s) ** 2) > threshold for x, m, s in zip(lines, mean, sigma, strict=True)]
    kept = factors[0][:, None] & factors[1]
    assert torch.equal(window > 0, kept)
    torch.testing.assert_close(window, plain * kept)


@pytest.mark.parametrize("form", ["guarded", "authors"])
def test_mask_without_threshold_keeps_all_taps(form):
    axes = [Axis(9, False), Axis(8, True)]
    mask = set_parameters(
        GaussianMask(2, threshold=None, form=form, dtype=torch.float64), mean=[0.0, 1.0], sigma=[0.3, 0.3]
    )
    torch.testing.assert_close(
        mask(coordinates_of(axes), axes), gaussian(coordinates_of(axes), [0.0, 1.0], [0.3, 0.3]), rtol=1e-12, atol=0
    )
    assert mask.bounds(mask.size_parameters(), axes).tolist() == [[-math.inf, math.inf]] * 2


@pytest.mark.parametrize(
    "mask", [GaussianMask(2, sigma=0.4), RotatedGaussianMask(sigma=(0.2, 0.5), angle=0.4)], ids=["gaussian", "rotated"]
)
def test_values_on_part_of_grid_equal_values_on_whole_grid(mask):
    axes = [Axis(33, False), Axis(17, True)]
    rows, columns = coordinates_of(axes, torch.float32)
    whole = mask([rows, columns], axes)
    assert torch.equal(mask([rows[8:20], columns[3:]], axes), whole[8:20, 3:])


@pytest.mark.parametrize(("mean", "taps"), [(0.0, (14, 19)), (0.5, (22, 27)), (1.0, (30, 33)), (-3.0, (0, 3))])
def test_kept_taps_follow_mean(mean, taps):
    axis = Axis(33, False)
    mask = GaussianMask(1, mean=mean, dtype=torch.float64)
    ((low, high),) = mask.bounds(mask.size_parameters(), [axis]).tolist()
    assert axis.taps_between(low, high) == taps


@pytest.mark.parametrize("sigma", [0.5, -0.5])
def test_sign_of_sigma_is_ignored(sigma):
    axis = Axis(33, False)
    mask = GaussianMask(1, sigma=sigma, dtype=torch.float64)
    assert torch.equal(
        mask(coordinates_of([axis]), [axis]),
        GaussianMask(1, sigma=0.5, dtype=torch.float64)(coordinates_of([axis]), [axis]),
    )


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
def test_gradcheck_within_limits(mask):
    axes = [Axis(6, False), Axis(5, True)]
    names, values = zip(*mask.named_parameters(), strict=True)

    def window(*values):
        return torch.func.functional_call(mask, dict(zip(names, values, strict=True)), (coordinates_of(axes), axes))

    assert torch.autograd.gradcheck(window, [v.detach().clone().requires_grad_() for v in values])


# --- rotated masks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [[Axis(17, False)] * 2, [Axis(33, False), Axis(17, True)]])
@pytest.mark.parametrize("mean", [(0.0, 0.0), (0.3, -0.2)])
@pytest.mark.parametrize("half_turns", [0, 1, 2, 4])
def test_rotation_by_half_turns_equals_unrotated_mask(axes, mean, half_turns):
    rotated = RotatedGaussianMask(mean=mean, sigma=(0.2, 0.5), angle=half_turns * math.pi, dtype=torch.float64)
    plain = GaussianMask(2, mean=mean, sigma=(0.2, 0.5), dtype=torch.float64)
    torch.testing.assert_close(rotated(coordinates_of(axes), axes), plain(coordinates_of(axes), axes))


@pytest.mark.parametrize("angle", [math.pi / 2, -math.pi / 2])
def test_rotation_by_quarter_turn_swaps_sigmas(angle):
    axes = [Axis(17, False)] * 2
    rotated = RotatedGaussianMask(mean=(0.3, -0.2), sigma=(0.2, 0.5), angle=angle, dtype=torch.float64)
    plain = GaussianMask(2, mean=(0.3, -0.2), sigma=(0.5, 0.2), dtype=torch.float64)
    torch.testing.assert_close(rotated(coordinates_of(axes), axes), plain(coordinates_of(axes), axes))


def test_positive_angle_rotates_first_axis_towards_second():
    axes = [Axis(17, False)] * 2
    mask = RotatedGaussianMask(sigma=(0.6, 0.1), angle=math.pi / 4, threshold=None, dtype=torch.float64)
    window = mask(coordinates_of(axes), axes)
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
def test_bounds_of_rotated_mask_enclose_ellipse(angle, s0, s1, m0, m1, threshold):
    axes = [Axis(25, False), Axis(33, True)]
    options = {"mean": (m0, m1), "sigma": (s0, s1), "angle": angle, "dtype": torch.float64}
    whole = RotatedGaussianMask(threshold=None, **options)(coordinates_of(axes), axes)
    mask = RotatedGaussianMask(threshold=threshold, **options)
    cropped = mask(coordinates_of(axes), axes)
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


# --- construction, copies and arguments -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: GaussianMask(2, sigma=(0.1, 0.2), **o),
        lambda **o: GaussianMask(3, mean=0.5, threshold=None, form="authors", **o),
        lambda **o: RotatedGaussianMask(mean=(0.1, 0.2), angle=0.7, **o),
    ],
    ids=["gaussian", "authors", "rotated"],
)
def test_mask_supports_copy_pickle_reset_and_meta_device(make):
    mask = make()
    start = copy.deepcopy(mask.state_dict())
    with torch.no_grad():
        for parameter in mask.parameters():
            parameter.add_(0.3)
    assert repr(mask) != repr(make())  # repr shows the current parameters
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


def test_default_mean_is_current_sample_of_each_axis():
    axes = [Axis(9, True), Axis(9, False)]
    default, given = GaussianMask(2), GaussianMask(2, mean=0.25)
    for mask in (default, given):
        mask.attach(axes)
    assert default.mean.tolist() == [1.0, 0.0]
    assert given.mean.tolist() == [0.25, 0.25]


@pytest.mark.parametrize("make", [GaussianMask, RotatedGaussianMask])
def test_float64_mask_starts_at_exact_arguments(make):
    mask = make(2, mean=(0.1, -0.3), sigma=0.075, dtype=torch.float64)
    assert mask.mean.tolist() == [0.1, -0.3]
    assert mask.sigma.tolist() == [0.075, 0.075]


def test_dtype_of_values_is_dtype_of_coordinates():
    axis = Axis(9, False)
    mask = GaussianMask(1, sigma=0.5, dtype=torch.bfloat16)
    assert mask(coordinates_of([axis], torch.float32), [axis]).dtype == torch.float32


def test_extent_of_layer_is_number_of_kept_taps():
    layer = FlexConv1d(1, 1, 33, padding="causal")
    for sigma in (0.0, 0.02, 0.075, 0.2, 0.5, 3.0):
        layer.mask.set_(sigma=sigma)
        kernel = layer.kernel()
        assert kernel.shape[-1] == layer.extent[0] == kernel.count_nonzero()
        assert kernel.shape[-1] == max(2, min(33, math.ceil(REACH * sigma * 16)))


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: GaussianMask(1, sigma=0), ["sigma", "0"]),
        (lambda: GaussianMask(2, sigma=(0.1, 0.0)), ["sigma", "(0.1, 0.0)"]),
        (lambda: GaussianMask(1, sigma=math.nan), ["sigma", "nan"]),
        (lambda: GaussianMask(1, sigma=math.inf), ["sigma", "inf"]),
        (lambda: GaussianMask(2, mean=(0.0, -math.inf)), ["mean", "(0.0, -inf)"]),
        (lambda: GaussianMask(1, mean=math.nan), ["mean", "nan"]),
        (lambda: GaussianMask(2, sigma=(0.1, 0.1, 0.1)), ["sigma", "2", "(0.1, 0.1, 0.1)"]),
        (lambda: GaussianMask(3, mean=(0.1, 0.1)), ["mean", "3", "(0.1, 0.1)"]),
        (lambda: GaussianMask(1, threshold=0.0), ["threshold", "0.0"]),
        (lambda: GaussianMask(1, threshold=1.0), ["threshold", "1.0"]),
        (lambda: GaussianMask(1, threshold=math.nan), ["threshold", "nan"]),
        (lambda: GaussianMask(1, form="author"), ["form", "'author'", "'authors'"]),
        (lambda: RotatedGaussianMask(3), ["dims", "3"]),
        (lambda: RotatedGaussianMask(1), ["dims", "1"]),
        (lambda: RotatedGaussianMask(sigma=0.0), ["sigma", "0.0"]),
        (lambda: RotatedGaussianMask(angle=math.nan), ["angle", "nan"]),
    ],
)
def test_invalid_argument_raises(make, parts):
    with pytest.raises(ValueError, match=mentions(*parts)):
        make()


def test_arguments_can_be_tensors():
    mask = RotatedGaussianMask(sigma=torch.tensor([0.25, 0.5]), mean=torch.tensor(0.5), angle=torch.tensor(0.75))
    assert (mask.initial_sigma, mask.initial_mean, mask.initial_angle) == ([0.25, 0.5], [0.5, 0.5], 0.75)
