"""`torch.func` transforms and `torch.export` of a FlexConv layer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed
from torch.export import Dim, export
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, refresh_extents
from flexconv._context import IS_EXPORTING_IS_RELIABLE
from flexconv.nn import GENERATORS, MAGNet
from tests.conftest import relative_error

LAYERS = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}
small_magnet = partial(MAGNet, hidden=4, layers=1)


def make_layer(dims=1, in_channels=2, out_channels=3, kernel_size=9, *, sigma=0.2, **options):
    options = {"generator": small_magnet, "mask": GaussianMask(dims, sigma=sigma, dtype=options.get("dtype"))} | options
    return LAYERS[dims](in_channels, out_channels, kernel_size, **options).requires_grad_()


def noise(dims=1, *, batch=2, channels=2, **options):
    return torch.randn(batch, channels, *(13, 11, 7)[:dims], **options)


# --- torch.func -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("generator", GENERATORS)
def test_functional_grad_equals_autograd(generator, algorithm):
    double = torch.float64  # the two ways compute in another order
    layer, x = make_layer(generator=generator, algorithm=algorithm, dtype=double), noise(dtype=double)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return functional_call(layer, parameters, (x,)).square().sum()

    functional = grad(loss)(parameters, x)
    for truth, name in zip(torch.autograd.grad(loss(parameters, x), parameters.values()), parameters, strict=True):
        torch.testing.assert_close(functional[name], truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_vmap_of_grad_gives_per_sample_gradients(algorithm):
    layer, x = make_layer(2, algorithm=algorithm, dtype=torch.float64), noise(2, batch=3, dtype=torch.float64)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}

    def loss(parameters, sample):
        return functional_call(layer, parameters, (sample,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for row, sample in enumerate(x):
        truth = grad(loss)(parameters, sample)
        for name, value in truth.items():
            torch.testing.assert_close(each[name][row], value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_vmap_over_parameters_with_different_extents(algorithm):
    # not scaled masks: how much their gradients are damped depends on the initial σ and is not part of the state
    masks = [GaussianMask(2, sigma=sigma, form="guarded", dtype=torch.float64) for sigma in (0.05, 0.2, 3.0)]
    layers = [make_layer(2, mask=mask, algorithm=algorithm, dtype=torch.float64) for mask in masks]
    parameters, buffers = stack_module_state(layers)
    x = noise(2, dtype=torch.float64)

    def run(parameters, buffers):
        return functional_call(layers[0], (parameters, buffers), (x,))

    def loss(parameters, buffers):
        return run(parameters, buffers).square().sum()

    outputs, gradients = vmap(run)(parameters, buffers), vmap(grad(loss))(parameters, buffers)
    assert layers[0].extent == (3, 3)  # the layer itself is not changed
    for row, layer in enumerate(layers):
        assert relative_error(outputs[row], layer(x)) < 1e-12
        truth = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
        for (name, _), value in zip(layer.named_parameters(), truth, strict=True):
            torch.testing.assert_close(gradients[name][row], value, rtol=1e-8, atol=1e-10)


# torch compiles its forward-mode rules with torch.jit.script, which is deprecated
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
def test_forward_mode_equals_reverse_mode(algorithm):
    layer, x = make_layer(algorithm=algorithm, dtype=torch.float64), noise(dtype=torch.float64)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}
    tangents = {k: torch.randn_like(v) for k, v in parameters.items()}

    def loss(parameters):
        return functional_call(layer, parameters, (x,)).square().sum()

    _, along = jvp(loss, (parameters,), (tangents,))
    slopes = grad(loss)(parameters)
    torch.testing.assert_close(along, sum((slopes[k] * tangents[k]).sum() for k in slopes))


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("generator", ["magnet", "siren", "njet"])
def test_export_supports_static_shapes(dims, generator):
    layer, x = make_layer(dims, generator=generator).eval(), noise(dims)
    program = export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-3, atol=1e-4)


# dynamo instantiates every autograd.Function that it traces, which torch deprecates
@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("strict", "refreshed", "padding"),
    [
        *[(False, refreshed, padding) for refreshed in (False, True) for padding in ("same", "causal")],
        *[(False, True, "valid"), (False, False, [(-2, 9)])],
        *[(True, False, "valid"), (True, True, [(-2, 9)]), (True, True, "same"), (True, False, "causal")],
    ],
)
def test_export_supports_dynamic_batch_and_length(padding, refreshed, strict):
    if strict and not IS_EXPORTING_IS_RELIABLE:
        pytest.skip("before torch 2.13, strict export cannot be distinguished from torch.compile")
    layer = make_layer(kernel_size=33, padding=padding, sigma=0.1).eval()
    if refreshed:
        refresh_extents(layer)
    shapes = ({0: Dim("batch", min=1, max=64), 2: Dim("length", min=34, max=4096)},)
    program = export(layer, (torch.randn(2, 2, 60),), dynamic_shapes=shapes, strict=strict)
    for batch, length in ((2, 60), (1, 41), (5, 100)):
        x = torch.randn(batch, 2, length)
        torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_export_supports_dynamic_image_size(mode):
    layer = make_layer(2, kernel_size=(9, 5), stride=(2, 1), padding_mode=mode).eval()
    dims = {0: Dim("batch"), 2: Dim("height", min=12, max=512), 3: Dim("width", min=8, max=512)}
    program = export(layer, (torch.randn(2, 2, 20, 16),), dynamic_shapes=(dims,))
    for batch, height, width in ((2, 20, 16), (3, 31, 9), (4, 12, 40)):
        x = torch.randn(batch, 2, height, width)
        torch.testing.assert_close(program.module()(x), layer(x), rtol=1e-4, atol=1e-5)


def test_exported_layer_can_load_parameters_of_another_size():
    """The mask is part of the exported graph."""
    layer, x = make_layer(kernel_size=33, sigma=0.1), torch.randn(2, 2, 60)
    wide = make_layer(kernel_size=33, sigma=0.5)
    module = export(layer, (x,)).module()
    module.load_state_dict(wide.state_dict())
    torch.testing.assert_close(module(x), wide(x), rtol=1e-4, atol=1e-5)
