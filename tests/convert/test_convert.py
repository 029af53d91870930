"""`convert`: fitted layers compute the same function, and everything else about the model stays the same."""

from __future__ import annotations

import copy
import importlib.util
import io
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, at_resolution, convert, materialize
from flexconv.nn import GENERATORS, KernelGenerator, MAGNet

from ..conftest import relative_error

PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
FLEX = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
MODES = ["zeros", "reflect", "replicate", "circular"]

fit = partial(convert, init="fit", steps=2)


def model_of(*layers):
    return nn.Sequential(*(layers or [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1)]))


def flexconvs(model):
    return [module for module in model.modules() if isinstance(module, tuple(FLEX.values()))]


def assert_fits(model, x, *, tolerance=1e-4, **options):
    flexible, report = fit(model, **options)
    assert report.max_error < tolerance
    assert relative_error(flexible(x), model(x)) < tolerance
    return flexible, report


# --- the same function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [None, 7])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": 1},
        {"padding": 3},
        {"padding": "same"},
        {"padding": "valid"},
        {"stride": 2, "padding": 1},
        {"dilation": 2, "padding": "same"},
        {"stride": 2, "dilation": 3, "padding": 2},
        {"groups": 2, "padding": 1},
        {"groups": 4, "padding": 1},
        {"bias": False},
        {"kernel_size": 4, "padding": "same"},
        {"kernel_size": 4, "padding": 1, "stride": 2},
        {"kernel_size": 2, "padding": "same", "dilation": 3},
        {"kernel_size": 5, "padding": 2},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("dims", [1, 2])
def test_fit_matches_any_geometry(dims, options, grid):
    conv = PLAIN[dims](4, 8, **{"kernel_size": 3} | options)
    x = torch.randn(2, 4, *[24] * dims)
    flexible, report = assert_fits(conv, x, kernel_size=grid, tolerance=1e-3)
    assert type(flexible) is FLEX[dims]
    assert flexible.kernel_size == ((grid,) * dims if grid else conv.kernel_size)
    assert flexible(x[0]).shape == conv(x[0]).shape
    assert report.layers[0].kernel_size == conv.kernel_size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("padding", "grid"), [(1, None), ((2, 1), None), (1, 7), ("same", 6)])
def test_fit_matches_any_padding_mode(mode, padding, grid):
    conv = nn.Conv2d(2, 4, 3, padding=padding, padding_mode=mode)
    assert_fits(conv, torch.randn(2, 2, 11, 12), kernel_size=grid)


@pytest.mark.parametrize("grid", [None, lambda *_: (3, 5, 7)])
def test_fit_matches_conv3d_with_unequal_axes(grid):
    conv = nn.Conv3d(2, 4, (1, 3, 4), stride=(1, 2, 1), padding=(0, 1, 2), dilation=(1, 1, 2))
    flexible, _ = assert_fits(conv, torch.randn(1, 2, 5, 8, 12), kernel_size=grid)
    assert flexible.kernel_size == ((3, 5, 7) if grid else (1, 3, 4))


def test_int_kernel_size_applies_to_axes_with_several_taps():
    flexible, _ = assert_fits(nn.Conv2d(2, 4, (1, 3), padding=(0, 1)), torch.randn(1, 2, 8, 8), kernel_size=9)
    assert flexible.kernel_size == (1, 9)


def test_larger_grid_starts_with_the_old_extent():
    for init in ("fresh", "fit"):
        flexible, report = convert(model_of(), kernel_size=33, init=init, steps=0)
        assert [layer.extent for layer in flexconvs(flexible)] == [(3, 3), (3, 3)]
        assert {each.grid for each in report.layers} == {(33, 33)}


@pytest.mark.parametrize("name", sorted(set(GENERATORS) - {"njet"}))
def test_fit_with_every_generator(name):
    conv = nn.Conv2d(4, 8, 3, padding=1)
    convert(conv, generator=name, init="fit", steps=0)
    flexible, _ = assert_fits(conv, torch.randn(1, 4, 9, 9), generator=name, tolerance=1e-2)
    assert type(flexible.generator) is GENERATORS[name]


def test_fit_large_kernels_with_many_channels():
    conv = nn.Conv2d(16, 32, 7, padding=3)
    flexible, _ = assert_fits(conv, torch.randn(1, 16, 9, 9))
    assert flexible.generator.hidden == 64
    assert flexible.generator.channels == 16 * 32


def test_fit_custom_generator_without_output_map():
    class Polynomial(KernelGenerator):
        def __init__(self, dims, channels, *, device=None, dtype=None):
            super().__init__(dims, channels)
            self.factors = nn.Parameter(torch.zeros(3, channels, device=device, dtype=dtype))

        def evaluate(self, points):
            return torch.cat([points**n for n in range(3)], 1) @ self.factors

    conv = nn.Conv1d(1, 2, 3)
    _, before = convert(conv, generator=Polynomial, init="fit", steps=0)
    _, after = convert(conv, generator=Polynomial, init="fit", steps=300)
    assert before.max_error == pytest.approx(1.0)
    assert after.max_error < 0.3


def test_more_steps_reduce_the_error_of_few_features():
    conv, few = nn.Conv2d(8, 8, 5), partial(MAGNet, hidden=8, layers=1)
    errors = []
    for steps in (0, 40):
        torch.manual_seed(1)
        errors.append(convert(conv, generator=few, init="fit", steps=steps)[1].max_error)
    assert errors[1] < errors[0]


def test_fit_several_layers_in_a_batch():
    model = model_of(*(nn.Conv2d(4, 4, 3) for _ in range(3)), nn.Conv2d(4, 8, 5), nn.Conv2d(8, 2, 3, groups=2))
    _, report = fit(model)
    assert [each.name for each in report.layers] == list("01234")
    assert all(each.error < 1e-5 for each in report.layers)


def test_residual_network_with_transposed_convolution():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(2, 8, 3, stride=2, padding=1)
            self.mix = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1))
            self.up = nn.ConvTranspose2d(8, 2, 2, stride=2)
            self.steps = [self.down, self.mix]  # not registered

        def forward(self, x):
            for step in self.steps:
                y = step(x)
                x = y + x if y.shape == x.shape else y
            return self.up(x)

    flexible, report = assert_fits(Net(), torch.randn(1, 2, 8, 8))
    assert [each.name for each in report.layers] == ["down", "mix.0"]
    assert flexible.steps[0] is flexible.down
    assert copy.deepcopy(flexible)(torch.randn(1, 2, 8, 8)).shape == (1, 2, 8, 8)


def test_zero_kernel():
    conv = nn.Conv1d(2, 4, 3)
    nn.init.zeros_(conv.weight)
    flexible, report = fit(conv)
    assert report.max_error == 0
    assert not flexible.kernel().any()
    assert flexconvs(convert(conv)[0])[0].kernel().isfinite().all()


def test_fresh_kernels_have_the_norm_of_the_old_ones():
    model = model_of(nn.Conv2d(4, 16, 3), nn.Conv2d(16, 4, 5))
    flexible, report = convert(model, kernel_size=15)
    assert report.max_error is None
    for old, new in zip(model, flexible, strict=True):
        assert new.kernel().norm().item() == pytest.approx(old.weight.norm().item(), rel=1e-4)
        assert torch.equal(new.bias, old.bias)


def test_njet_has_no_mask_and_cannot_be_fitted():
    flexible, _ = convert(model_of(), generator="njet", kernel_size=9)
    assert all(layer.mask is None for layer in flexconvs(flexible))
    with pytest.raises(ValueError, match=r"NJet .*choose another generator"):
        fit(model_of(), generator="njet")


# --- another resolution -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [None, 5])
def test_filters_a_smooth_signal_equally_at_twice_the_resolution(grid):
    conv = nn.Conv1d(1, 4, 3, padding=1, padding_mode="circular")
    flexible, _ = convert(conv, init="fit", kernel_size=grid, steps=50)
    t = torch.arange(64) / 64
    wave = torch.sin(2 * torch.pi * 5 * t) + torch.cos(2 * torch.pi * 2 * t)
    high, low = wave.reshape(1, 1, -1), wave[::2].reshape(1, 1, -1)
    at_low = conv(low)
    assert relative_error(flexible(low), at_low) < 1e-5
    assert relative_error(at_resolution(flexible, 2)(high)[..., ::2], at_low) < 0.15
    assert relative_error(conv(high)[..., ::2], at_low) > 0.2


def test_kernel_between_taps_is_sinc_interpolation():
    conv = nn.Conv1d(1, 8, 3, padding=1)
    layer = convert(conv, init="fit", steps=100)[0]
    points = torch.linspace(-1, 1, 17)
    fitted = layer.generator(points[None]) * torch.exp(-0.5 * (points / layer.mask.sigma).square())
    expected = conv.weight[:, 0] @ torch.sinc(points - torch.tensor([-1.0, 0, 1])[:, None])
    assert relative_error(fitted, expected) < 0.02


def test_convert_and_materialize_round_trip():
    model, x = model_of(), torch.randn(1, 2, 9, 9)
    flexible, _ = fit(model)
    plain = materialize(flexible)
    assert [type(m) for m in plain] == [type(m) for m in model]
    assert [m.weight.shape for m in plain if hasattr(m, "weight")] == [m.weight.shape for m in (model[0], model[2])]
    assert relative_error(plain(x), model(x)) < 1e-5


# --- which layers -----------------------------------------------------------------------------------------------------


def test_select_layers_by_pattern_or_function():
    model = nn.ModuleDict({"stem": nn.Conv2d(1, 2, 3), "blocks": model_of()})
    for layers in ("blocks.*", lambda _, module: module.in_channels > 1):
        flexible, report = convert(model, layers=layers)
        assert [each.name for each in report.layers] == ["blocks.0", "blocks.2"]
        assert type(flexible["stem"]) is nn.Conv2d
    _, report = convert(model, kernel_size=lambda name, _: 9 if name == "stem" else (5, 7))
    assert [each.grid for each in report.layers] == [(9, 9), (5, 7), (5, 7)]


def test_skips_layers_without_a_counterpart():
    model = model_of(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 1, stride=2), nn.ConvTranspose2d(2, 2, 3), FlexConv2d(2, 2, 5))
    flexible, report = convert(model)
    assert [type(m) for m in flexible] == [FlexConv2d, nn.Conv2d, nn.ConvTranspose2d, FlexConv2d]
    assert report.skipped == {
        "1": "1×1 kernels cannot be resampled or grow",
        "2": "ConvTranspose2d has no FlexConv counterpart",
        "3": "it is already a FlexConv",
    }
    with pytest.raises(ValueError, match=r"Sequential has no convolution .* has 0 .*\n.*2 is skipped: Conv"):
        convert(model, layers="2")


def test_error_if_no_convolution_matches():
    with pytest.raises(ValueError, match=r"Linear has no convolution .*: it has none"):
        convert(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"layers='convs\.\*': it has 0 \(Conv2d\), 2 \(Conv2d\)"):
        convert(model_of(), layers="convs.*")


def test_shared_module_stays_shared():
    conv = nn.Conv1d(2, 2, 3, padding=1)
    model, x = model_of(conv, nn.ReLU(), conv), torch.randn(1, 2, 8)
    flexible, report = assert_fits(model, x)
    assert flexible[0] is flexible[2]
    assert report.layers[0].names == ("0", "2")
    with pytest.raises(ValueError, match=r"0 \(Conv1d\) .*same module as 2.*not selected"):
        convert(model, layers="0")


# --- the rest of the model --------------------------------------------------------------------------------------------


def test_original_is_unchanged():
    model = model_of(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    before, training = copy.deepcopy(model.state_dict()), model.training
    flexible, _ = fit(model)
    with torch.no_grad():
        for parameter in flexible.parameters():
            parameter.add_(1)
    flexible.eval()
    assert type(model[0]) is nn.Conv2d
    assert model.training == training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_keeps_training_mode_and_requires_grad():
    model = model_of().eval()
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    flexible, _ = fit(model)
    first, second = flexconvs(flexible)
    assert not any(m.training for m in flexible.modules())
    assert not any(p.requires_grad for part in (first.generator, first.mask) for p in part.parameters())
    assert first.bias.requires_grad
    assert all(p.requires_grad for p in second.generator.parameters())
    assert not second.bias.requires_grad


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.bfloat16, 5e-2)])
def test_keeps_dtype(dtype, tolerance):
    conv = nn.Conv2d(2, 4, 3, padding=1).to(dtype)
    flexible, _ = assert_fits(conv, torch.randn(1, 2, 9, 9, dtype=dtype), tolerance=tolerance)
    assert flexible.dtype == flexible.bias.dtype == dtype
    assert {p.dtype for p in flexible.generator.parameters()} == {dtype if dtype == torch.float64 else torch.float32}


def test_converted_model_trains_and_loads_state():
    flexible, _ = fit(model_of(), kernel_size=9)
    flexible(torch.randn(1, 2, 9, 9)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in flexible.parameters())
    again, _ = convert(model_of(), kernel_size=9, init="fit", steps=0)
    again.load_state_dict(flexible.state_dict())
    x = torch.randn(1, 2, 9, 9)
    assert torch.equal(again(x), flexible(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_fits_under_no_grad_and_inference_mode(mode):
    with mode():
        flexible, report = fit(model_of())
    assert report.max_error < 1e-4
    flexible(torch.randn(1, 2, 8, 8)).square().mean().backward()
    assert all(p.grad is not None for p in flexible.parameters())


def test_tied_biases_stay_tied():
    model = model_of(nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 1))
    model[1].bias = model[2].bias = model[0].bias
    flexible, _ = convert(model)
    assert flexible[0].bias is flexible[1].bias is flexible[2].bias


def test_copies_hooks():
    model, seen = model_of(), []
    model[0].register_forward_hook(lambda module, *_: seen.append(type(module)))
    model[0].register_forward_pre_hook(lambda _, args, kwargs: seen.append((len(args), kwargs)), with_kwargs=True)
    model[0].register_full_backward_hook(lambda *_: seen.append("back"))
    flexible, report = convert(model)
    flexible(torch.randn(1, 2, 8, 8, requires_grad=True)).sum().backward()
    assert seen == [(1, {}), FlexConv2d, "back"]
    assert [each.note for each in report.layers] == ["hooks copied", ""]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
def test_folds_weight_norm_into_the_kernel(norm):
    model, x = model_of(norm(nn.Conv1d(2, 4, 3))), torch.randn(1, 2, 9)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if n.endswith(("_g", "original0"))).mul_(3)
    flexible, report = assert_fits(model, x)
    assert report.layers[0].note == "weight norm folded in"
    assert type(flexible[0]) is FlexConv1d
    assert not flexible[0]._forward_pre_hooks


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_excluded_layer_may_have_a_computed_weight():
    model = model_of(nn.Conv1d(2, 4, 3), nn.utils.weight_norm(nn.Conv1d(4, 2, 3)))
    x = torch.randn(1, 2, 9)
    model(x)  # now its weight is not a leaf tensor
    flexible, _ = fit(model, layers="0")
    assert relative_error(flexible(x), model(x)) < 1e-4


def test_progress_bar_only_on_a_terminal():
    for terminal in (True, False):
        text = io.StringIO()
        fit(model_of(), console=Console(file=text, force_terminal=terminal))
        assert ("fitting kernels" in text.getvalue()) == terminal


def test_report_prints_a_table():
    _, report = fit(model_of(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1)), kernel_size=9)
    head, line, skipped = str(report).splitlines()
    assert head.split() == ["layer", "kernel", "grid", "parameters", "error"]
    assert line.split()[:4] == ["0", "3×3", "9×9", "76"]
    assert skipped == "skipped 1: 1×1 kernels cannot be resampled or grow"
    assert "(the model)" in str(convert(nn.Conv1d(1, 1, 3))[1])


def test_former_names_of_the_report_still_work_with_a_warning():
    _, report = fit(model_of(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1)))
    with pytest.warns(DeprecationWarning, match="left .*skipped"):
        assert report.left == report.skipped
    with pytest.warns(DeprecationWarning, match="worst .*max_error"):
        assert report.worst == report.max_error


# --- errors -----------------------------------------------------------------------------------------------------------


class Standardised(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) / 2


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def parametrized(conv):
    parametrize.register_parametrization(conv, "weight", Doubled())
    return conv


def pruned(conv):
    return prune.random_unstructured(conv, "weight", 0.5)


def with_state_hook(conv):
    conv.register_state_dict_post_hook(lambda *_: None)
    return conv


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Standardised(2, 2, 3), r"1 \(Standardised\) is a subclass of a convolution"),
        (lambda: nn.LazyConv2d(2, 3), r"1 \(LazyConv2d\) is lazy"),
        (lambda: parametrized(nn.Conv2d(2, 2, 3)), r"1 \(\w+\) .*parametrization \(Doubled of weight\)"),
        (lambda: parametrizations.spectral_norm(nn.Conv2d(2, 2, 3)), r"parametrization \(_SpectralNorm of weight\)"),
        (lambda: nn.utils.spectral_norm(nn.Conv2d(2, 2, 3)), "computed by SpectralNorm"),
        (lambda: pruned(nn.Conv2d(2, 2, 3)), "computed by RandomUnstructured"),
        (lambda: with_state_hook(nn.Conv2d(2, 2, 3)), "state dict hooks"),
        (lambda: nn.Conv2d(2, 2, 3, dtype=torch.complex64), "complex64"),
        (lambda: nn.Conv2d(2, 2, 3, device="meta"), "meta device"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(Lazy modules|spectral_norm).*")
def test_error_names_unsupported_layers(make, reason):
    model = nn.ModuleList([nn.Conv2d(2, 2, 3), make()])
    with pytest.raises(ValueError, match=f"cannot convert .*layers=…:\n  .*{reason}"):
        fit(model)
    assert len(fit(model, layers="0")[1].layers) == 1


def test_error_names_all_layers_with_tied_weights():
    model = model_of(nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3))
    model[2].weight = model[0].weight
    with pytest.raises(ValueError, match="cannot convert") as caught:
        convert(model)
    lines = str(caught.value).splitlines()
    assert lines[1:] == ["  0 (Conv1d) shares its weight with 2.weight", "  2 (Conv1d) shares its weight with 0.weight"]


def test_converts_initialised_lazy_and_fresh_meta_layers():
    model = nn.Sequential(nn.LazyConv2d(4, 3))
    model(torch.randn(1, 2, 8, 8))
    assert fit(model)[1].max_error < 1e-5
    assert next(convert(nn.Conv2d(2, 2, 3, device="meta"))[0].parameters()).is_meta


def test_error_if_kernel_is_not_finite():
    model = model_of()
    with torch.no_grad():
        model[2].weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"2 \(Conv2d\).*not finite"):
        fit(model)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"init": "fitted"}, ValueError, "init 'fitted': .*did you mean 'fit'"),
        ({"steps": -1}, ValueError, "steps .*-1"),
        ({"steps": 1.5}, ValueError, r"steps .*1\.5"),
        ({"generator": "magnett"}, ValueError, "generator 'magnett'.*did you mean 'magnet'"),
        ({"generator": MAGNet(2, 8)}, TypeError, "generator .*MAGNet"),
        ({"generator": 3}, TypeError, "generator .*got 3"),
        ({"layers": 3}, TypeError, "layers .*got 3"),
        ({"kernel_size": 2}, ValueError, r"2×2 is smaller than the 3×3 kernel of 0 \(Conv2d\)"),
        ({"kernel_size": 0}, ValueError, "kernel_size .*got 0"),
        ({"kernel_size": (3, 3)}, TypeError, r"kernel_size .*\(3, 3\)"),
        ({"kernel_size": lambda *_: (3, 3, 3)}, ValueError, "kernel_size .*2 entries"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_rejects_invalid_arguments(options, error, message):
    with pytest.raises(error, match=message):
        convert(model_of(), **options)


def test_rejects_other_objects_and_compiled_models():
    with pytest.raises(TypeError, match="Module; got dict"):
        convert({})
    with pytest.raises(ValueError, match="compiled Sequential"):
        convert(torch.compile(model_of()))


# --- the example ------------------------------------------------------------------------------------------------------


def test_example_keeps_its_accuracy_at_twice_the_resolution(capsys):
    path = Path(__file__).parents[2] / "examples" / "convert_a_cnn.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    results = example.main(epochs=3, steps=20)
    assert results["8 × 8, converted"] == results["8 × 8, plain"] == results["8 × 8, converted and back"]
    assert results["16 × 16, converted, recalibrated"] > results["16 × 16, plain, recalibrated"] + 0.1
    assert len(capsys.readouterr().out.splitlines()) == 15
