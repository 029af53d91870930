"""Sizes and kernels follow every edit of a layer: masks, generators, settings, hooks and loaded states."""

from __future__ import annotations

import copy
import types

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, GaussianMask, at_resolution, ops
from flexconv.errors import ArgumentError, FlexConvError
from flexconv.nn import GENERATORS, ChannelGaussianMask, KernelGenerator, RotatedGaussianMask, refresh_extents


class Waves(KernelGenerator):
    """A generator with settings of several kinds."""

    def __init__(self, dims, channels, *, device=None, dtype=None):
        super().__init__(dims, channels)
        self.gain, self.offsets, self._shift = 1.0, [0.0, 1.0], torch.zeros(1)
        self.table, self.bend = np.ones(2), torch.sin
        self.weight = nn.Parameter(torch.ones(channels, device=device, dtype=dtype))

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def evaluate(self, points):
        values = self.bend(self.gain * points.sum(1, keepdim=True) + self._shift + sum(self.offsets))
        return (values + float(self.table.sum())) * self.weight


class SharedWaves(Waves):
    """A generator that refers to a module and an object that it does not own."""

    def __init__(self, dims, channels, *, device=None, dtype=None):
        super().__init__(dims, channels, device=device, dtype=dtype)
        self.trunk, self.config = [nn.Linear(dims, 1)], types.SimpleNamespace(rate=1.0)

    def evaluate(self, points):
        return super().evaluate(points) * self.config.rate + self.trunk[0](points)


def expected(layer, x):
    """The convolution with the kernel on the whole grid."""
    kernel = layer.sample([axis.whole for axis in layer.axes])
    return ops.conv2d(x, kernel, layer.bias, padding=layer.padding, algorithm="direct")


def drop_mask(layer):
    layer.mask = None


def replace_mask(layer):
    layer.mask = GaussianMask(2, sigma=0.8)


def replace_generator(layer):
    layer.generator = Waves(2, layer.generator.channels)


def lower_threshold(layer):
    layer.mask.threshold = 1e-6


def keep_everything(layer):
    layer.mask.threshold = None


def change_form(layer):
    layer.mask.form = "authors"


def change_parameters(layer):
    layer.mask.set_(sigma=0.5)


EDITS = [drop_mask, replace_mask, replace_generator, lower_threshold, keep_everything, change_form]


@pytest.mark.parametrize("edit", [*EDITS, change_parameters])
@pytest.mark.parametrize("training", [False, True])
def test_eager_layer_follows_edits(edit, training):
    layer, x = FlexConv2d(2, 2, 17, mask=GaussianMask(2, form="guarded")).train(training), torch.randn(1, 2, 20, 20)
    with torch.no_grad():
        layer(x)
        edit(layer)
        torch.testing.assert_close(layer(x), expected(layer, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("edit", EDITS)
def test_compiled_layer_follows_edits(edit):
    layer, x = FlexConv2d(2, 2, 17, mask=GaussianMask(2, form="guarded")), torch.randn(1, 2, 20, 20)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.no_grad():
        refresh_extents(layer)
        compiled(x)
        edit(layer)
        torch.testing.assert_close(compiled(x), expected(layer, x), rtol=1e-4, atol=1e-4)


def test_new_mask_starts_at_current_sample_of_causal_layer():
    layer = FlexConv1d(1, 1, 17, padding="causal")
    layer.mask = GaussianMask(1)
    assert layer.mask.mean.tolist() == [1.0]


def add_hook(layer):
    layer.generator.register_forward_hook(lambda *arguments: 2 * arguments[-1])


def add_mask_hook(layer):
    layer.mask.register_forward_hook(lambda *arguments: 0.5 * arguments[-1])


def change_number(layer):
    layer.generator.gain = 3.0


def change_list(layer):
    layer.generator.offsets[1] = 2.0


def change_tensor(layer):
    layer.generator._shift.add_(0.7)


def replace_tensor(layer):
    layer.generator._shift = torch.ones(1)


def change_array(layer):
    layer.generator.table[0] = 5.0


def change_function(layer):
    layer.generator.bend = torch.cos


@pytest.mark.parametrize(
    "edit",
    [add_hook, add_mask_hook, change_number, change_list, change_tensor, replace_tensor, change_array, change_function],
)
def test_kernel_in_evaluation_follows_edits_of_its_generator(edit):
    layer, x = FlexConv2d(2, 2, 9, generator=Waves).eval(), torch.randn(1, 2, 12, 12)
    with torch.no_grad():
        before = layer(x)
        edit(layer)
        torch.testing.assert_close(layer(x), expected(layer, x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(layer(x), before)


def change_module_of_another(layer):
    layer.generator.trunk[0].weight.add_(3.0)


def change_object(layer):
    layer.generator.config.rate = 3.0


@pytest.mark.parametrize("edit", [change_module_of_another, change_object])
def test_kernel_in_evaluation_follows_what_its_generator_refers_to(edit):
    layer, x = FlexConv2d(2, 2, 9, generator=SharedWaves).eval(), torch.randn(1, 2, 12, 12)
    with torch.no_grad():
        before = layer(x)
        edit(layer)
        torch.testing.assert_close(layer(x), expected(layer, x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(layer(x), before)


def test_kernel_is_still_kept_in_evaluation():
    calls = []
    for name in GENERATORS:
        layer = FlexConv1d(1, 1, 9, generator=name, mask=None).eval()
        layer.generator.evaluate = lambda points, of=layer.generator: calls.append(1) or type(of).evaluate(of, points)
        with torch.no_grad():
            for _ in range(3):
                layer(torch.randn(1, 1, 9))
    assert len(calls) == len(GENERATORS)


@pytest.mark.parametrize("part", ["", "generator", "mask"])
def test_state_loads_after_use_if_torch_swaps_parameters(part):
    layer, other, x = FlexConv1d(1, 1, 9).eval(), FlexConv1d(1, 1, 9).eval(), torch.randn(1, 1, 12)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad():
            layer(x)
            layer.get_submodule(part).load_state_dict(other.get_submodule(part).state_dict())
            wanted = copy.deepcopy(layer)(x)
            torch.testing.assert_close(layer(x), wanted)
            layer.double()(x.double())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


# --- states of other grids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"), [(lambda: FlexConv1d(1, 1, 9), "9 taps"), (lambda: FlexConv1d(1, 1, 65, padding=32), "65 taps")]
)
def test_state_of_another_grid_is_an_error(make, words):
    state = nn.Sequential(FlexConv1d(1, 1, 65, padding="causal")).state_dict()
    layer = nn.Sequential(make())
    with pytest.raises(RuntimeError, match=rf"0: .*65 taps \(causal\).*{words}"):
        layer.load_state_dict(state)
    layer.load_state_dict(dict(state))


def test_state_of_same_grid_loads(tmp_path):
    layer = FlexConv2d(1, 2, (9, 5), padding=("causal", "same"))
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert set(state) == {name for name, _ in layer.named_parameters()} | {name for name, _ in layer.named_buffers()}
    FlexConv2d(1, 2, (9, 5), padding=("causal", "same")).load_state_dict(state)


def test_state_without_a_grid_loads():
    state = dict(FlexConv1d(1, 1, 65).state_dict())
    FlexConv1d(1, 1, 9).load_state_dict(state)


def test_states_load_into_other_resolutions_of_the_same_layer():
    layer, other = FlexConv1d(1, 1, 9), FlexConv1d(1, 1, 9)
    fine = at_resolution(other, 2)
    fine.load_state_dict(layer.state_dict())
    other.load_state_dict(fine.state_dict())
    torch.testing.assert_close(other.kernel(), layer.kernel())
    torch.testing.assert_close(fine.kernel(), at_resolution(layer, 2).kernel())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mask", GaussianMask(1)),
        ("mask", ChannelGaussianMask(2, 3)),
        ("generator", Waves(2, 3)),
        ("generator", Waves(1, 4)),
    ],
)
def test_parts_that_do_not_fit_are_refused_and_change_nothing(name, part):
    layer, x = FlexConv2d(4, 4, 5, groups=4), torch.randn(1, 4, 6, 6)
    before = layer(x)
    with pytest.raises(ArgumentError, match="this layer"):
        setattr(layer, name, part)
    assert torch.equal(layer(x), before)


def test_mask_per_channel_is_refused_in_a_layer_that_is_not_depthwise():
    layer = FlexConv1d(2, 2, 5)
    with pytest.raises(ArgumentError, match="depthwise"):
        layer.mask = ChannelGaussianMask(1, 2)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (GaussianMask(1, form="scaled"), "guarded"),
        (GaussianMask(1, form="guarded"), "scaled"),
        (GaussianMask(1, form="guarded"), "round"),
        (RotatedGaussianMask(form="guarded"), "authors"),
        (ChannelGaussianMask(1, 2, form="guarded"), "authors"),
    ],
)
def test_forms_that_a_mask_cannot_have_are_refused(mask, form):
    before = mask.form
    with pytest.raises(FlexConvError, match=form):
        mask.form = form
    assert mask.form == before


@pytest.mark.parametrize("threshold", [0, 1.0, -0.1, float("nan"), "0.1"])
def test_impossible_thresholds_are_refused(threshold):
    mask = GaussianMask(1)
    with pytest.raises(ArgumentError, match="threshold"):
        mask.threshold = threshold
    assert mask.threshold == 0.1
