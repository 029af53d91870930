"""Coordinate grids, and the ladder of window sizes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexconv.nn import Axis, FlexConv1d, FlexConv2d, coordinate_grid
from flexconv.nn._grid import window_sizes

CPU = {"device": torch.device("cpu"), "dtype": torch.float64}
centered_and_causal = pytest.mark.parametrize("causal", [False, True], ids=["centered", "causal"])


@st.composite
def axes_and_tap_ranges(draw):
    """An axis and a range of its taps."""
    axis = Axis(draw(st.integers(1, 3000)), draw(st.booleans()))
    start = draw(st.integers(0, axis.size - 1))
    return axis, (start, draw(st.integers(start + 1, axis.size)))


def home_window(axis, size):
    """Return the window of a size at the center, or at the end of a causal axis."""
    start = axis.size - size if axis.causal else (axis.size - size) // 2
    return start, start + size


# --- coordinates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 9, 17, 29, 33])
@centered_and_causal
def test_coordinates_equal_authors_code(golden, size, causal):
    axis = Axis(size, causal)
    truth = golden("grids")[f"grid1d/{size}"]
    torch.testing.assert_close(axis.coordinates(axis.whole, **CPU), truth, rtol=1e-15, atol=1e-15)


def test_coordinate_grid_equals_authors_code(golden):
    axes = [Axis(5, False)] * 2
    grid = coordinate_grid(axes, [(0, 5)] * 2, **CPU)
    torch.testing.assert_close(grid, golden("grids")["grid2d/5"], rtol=1e-15, atol=1e-15)


def test_coordinate_d_varies_along_axis_d():
    axes = [Axis(5, False), Axis(4, True), Axis(1, True)]
    grid = coordinate_grid(axes, [(1, 4), (0, 4), (0, 1)], **CPU)
    assert grid.shape == (3, 3, 4, 1)
    assert grid[0, :, 2, 0].tolist() == [-0.5, 0.0, 0.5]
    assert grid[1, 1, :, 0].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1])
    assert (grid[2] == 1).all()


@pytest.mark.parametrize(("causal", "coordinate"), [(False, 0.0), (True, 1.0)])
def test_single_tap_is_at_current_sample(causal, coordinate):
    axis = Axis(1, causal)
    assert axis.coordinates(axis.whole, **CPU).tolist() == [coordinate]
    assert axis.current == coordinate


@given(axes_and_tap_ranges(), st.sampled_from([torch.float32, torch.float64]))
def test_coordinates_of_window_are_slice_of_whole_axis(axis_and_window, dtype):
    axis, window = axis_and_window
    whole = axis.coordinates(axis.whole, device=torch.device("cpu"), dtype=dtype)
    part = axis.coordinates(window, device=torch.device("cpu"), dtype=dtype)
    assert torch.equal(part, whole[slice(*window)])


@given(
    st.integers(2, 500),
    st.booleans(),
    st.floats(-1.5, 0.999) | st.just(-math.inf),
    st.floats(0.001, 2.5) | st.just(math.inf),
)
def test_taps_between_excludes_bounds(size, causal, low, width):
    axis, high = Axis(size, causal), low + width if low > -math.inf else width
    coordinates = axis.coordinates(axis.whole, **CPU)
    start, stop = axis.taps_between(low, high)
    inside = torch.zeros(size, dtype=torch.bool)
    inside[max(0, start) : max(0, stop)] = True
    clear = ((coordinates - low).abs() > 1e-9) & ((coordinates - high).abs() > 1e-9)
    assert torch.equal(inside[clear], ((coordinates > low) & (coordinates < high))[clear])


def test_taps_between_with_slack_includes_taps_on_bounds():
    axis = Axis(9, False)
    assert axis.taps_between(-0.25, 0.25) == (4, 5)
    assert axis.taps_between(-0.25, 0.25, slack=1e-4) == (3, 6)
    assert axis.taps_between(-1.0, 1.0, slack=1e-4) == (0, 9)


@pytest.mark.parametrize(
    ("size", "causal", "fewest"), [(33, False, 3), (33, True, 2), (3, False, 3), (2, False, 2), (1, False, 1)]
)
def test_fewest_taps_and_spacing(size, causal, fewest):
    assert Axis(size, causal).fewest_taps == fewest
    assert Axis(size, causal).spacing == (2 / (size - 1) if size > 1 else 2)


# --- the ladder of window sizes ---------------------------------------------------------------------------------------


def test_ladder_of_33_taps():
    assert window_sizes(33, False) == (5, 9, 17, 25, 33)


@centered_and_causal
def test_ladder_has_few_increasing_sizes_up_to_whole_axis(causal):
    for size in range(1, 501):
        rungs = window_sizes(size, causal)
        assert list(rungs) == sorted(set(rungs))
        assert rungs[-1] == size
        assert rungs[0] >= Axis(size, causal).fewest_taps
        assert len(rungs) <= 6
        if not causal:
            assert all((size - rung) % 2 == 0 for rung in rungs)


@centered_and_causal
def test_ladder_of_long_axis_starts_near_64_taps(causal):
    rungs = window_sizes(16001, causal)
    assert 60 <= rungs[0] < 128
    assert len(rungs) <= 10
    assert all(larger <= 2 * smaller + 1 for smaller, larger in itertools.pairwise(rungs))


@given(axes_and_tap_ranges())
def test_rung_contains_needed_taps_and_has_size_of_ladder(axis_and_needed):
    axis, (start, stop) = axis_and_needed
    window = axis.window_for((start, stop))
    assert 0 <= window[0] <= start < stop <= window[1] <= axis.size
    assert window[1] - window[0] in window_sizes(axis.size, axis.causal)


@given(axes_and_tap_ranges())
def test_rung_is_smallest_and_prefers_home_window(axis_and_needed):
    axis, (start, stop) = axis_and_needed
    window = axis.window_for((start, stop))
    size = window[1] - window[0]
    for rung in window_sizes(axis.size, axis.causal):
        at_home = home_window(axis, rung)
        suffices = at_home[0] <= start and stop <= at_home[1]
        assert not (suffices and rung < size)
        if suffices and rung == size:
            assert window == at_home


@given(st.integers(1, 3000), st.booleans(), st.data())
def test_rung_of_home_window_is_home_window(size, causal, data):
    axis = Axis(size, causal)
    taps = data.draw(st.integers(1, size))
    taps -= (size - taps) % 2 if not causal and taps > 1 else 0
    window = axis.window_for(home_window(axis, taps))
    assert window == home_window(axis, window[1] - window[0])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 24, 33, 47, 64, 127])
@centered_and_causal
def test_number_of_different_rungs_is_small(size, causal):
    axis = Axis(size, causal)
    windows = {axis.window_for((start, stop)) for start in range(size) for stop in range(start + 1, size + 1)}
    assert len(windows) <= 7 * len(window_sizes(size, causal))


# --- initial sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "taps"), [(17, 3), (29, 5), (33, 5), (97, 15)])
def test_initial_size_for_images_equals_paper(size, taps):
    assert FlexConv2d(1, 1, size, parametrization="paper").extent == (taps, taps)


@pytest.mark.parametrize(("length", "taps"), [(161, 13), (182, 15), (784, 64), (1000, 81), (1024, 83), (16000, 1288)])
def test_initial_size_for_sequences_equals_paper(length, taps):
    assert FlexConv1d(1, 1, length, padding="causal", parametrization="paper").extent == (taps,)
