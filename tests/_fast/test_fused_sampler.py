"""The fused sampler, compared with `FlexConvNd.sample`. Without a GPU, Triton interprets the kernels."""

import copy
import functools

import pytest
import torch
from torch import nn

pytest.importorskip("triton")

from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, GaussianMask, RotatedGaussianMask
from flexconv._fast import fused_sampler
from flexconv._fast.factors import sample_factors
from flexconv.nn.kernels import FourierNet, GaborNet, MAGNet
from tests.conftest import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

GENERATORS = {
    "magnet": functools.partial(MAGNet, hidden=9),
    "wide": functools.partial(MAGNet, hidden=40, layers=1),
    "isotropic": functools.partial(GaborNet, hidden=8, layers=2),
    "anisotropic": functools.partial(GaborNet, hidden=17, layers=1, anisotropic=True),
    "fourier": functools.partial(FourierNet, hidden=11),
}
MASKS = {
    "guarded": functools.partial(GaussianMask, sigma=0.3),
    "moved": functools.partial(GaussianMask, mean=0.6, sigma=-0.2),
    "beyond limits": functools.partial(GaussianMask, mean=-1.3, sigma=0.01),
    "scaled": functools.partial(GaussianMask, sigma=0.2, form="scaled"),
    "authors": functools.partial(GaussianMask, mean=0.1, sigma=0.2, form="authors"),
    "not cropped": functools.partial(GaussianMask, sigma=0.3, threshold=None),
    "none": lambda _: None,
}
LAYERS = {
    "1D": lambda generator, mask: FlexConv1d(2, 3, 21, generator=generator, mask=mask(1)),
    "causal": lambda generator, mask: FlexConv1d(2, 3, 21, padding="causal", generator=generator, mask=mask(1)),
    "2D": lambda generator, mask: FlexConv2d(2, 3, (7, 9), generator=generator, mask=mask(2)),
    "3D": lambda generator, mask: FlexConv3d(2, 2, (3, 5, 3), generator=generator, mask=mask(3)),
}


@pytest.fixture(autouse=True)
def _use_interpreter(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if DEVICE == "cpu":
        monkeypatch.setattr(fused_sampler, "supports_device", lambda _: True)
    fused_sampler._grids.clear()


@pytest.fixture
def launched(monkeypatch):
    """The names of the launches so far."""
    names = []

    def recorded(name, function):
        def launch(*args, **kwargs):
            names.append(name)
            return function(*args, **kwargs)

        return launch

    for name in ("launch_features", "launch_features_backward", "launch_mask", "launch_mask_backward"):
        monkeypatch.setattr(fused_sampler, name, recorded(name, getattr(fused_sampler, name)))
    return names


def assert_as_exact(found, plain, truth, limit, name=None):
    """Check that the error is below a limit, or below three times that of the plain version if this is more.

    Both are rounding errors of sums in different orders. Features of scaled layers are nearly equal, which amplifies
    them beyond the limit.
    """
    assert relative_error(found, truth) < max(limit, 3 * relative_error(plain, truth)), name


def rounding_error(precise, window):
    """The error of a kernel if each of its terms, parameter times basis times feature, has a relative error of 4e-7.

    A feature alone is a product of four filters, each rounded to 6e-8 or more. The result is relative to the kernel, so
    it is large if the terms cancel out.
    """
    output = precise.generator.output_map
    with torch.no_grad():
        factors = sample_factors(precise, window)
        basis = torch.eye(factors.rank).to(factors.basis) if output.basis is None else output.basis
        features = factors.basis.flatten(0, -2) @ torch.linalg.inv(basis).t()  # the factors are features · basisᵀ
        terms = factors.mix.abs().flatten(0, -2) @ (basis.abs() @ features.abs().t())
        return 4e-7 * (terms.norm() / factors.tensor().norm()).item()


def compare_gradients(layer, plain, precise):
    """Check the gradients of all parameters. The layers are equal, and the last is in float64."""
    exact = dict(precise.named_parameters())
    for (name, parameter), other in zip(layer.named_parameters(), plain.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), name
        if parameter.grad is not None:
            assert parameter.grad.shape == parameter.shape
            limit = 1e-3 if name.startswith("mask.") else 1e-4  # one number per axis, the sum of terms that cancel
            assert_as_exact(parameter.grad, other.grad, exact[name].grad, limit, name)


def compare(layer, window=None, *, train_features=True):
    """Check the kernel on a window and the gradients of all parameters.

    By default, those of the features are trained as well, which they are not in a new layer.
    """
    layer = layer.to(DEVICE)
    if train_features:
        layer.generator.requires_grad_()
    window = window or layer.window
    layer.zero_grad()
    plain, precise = copy.deepcopy(layer), copy.deepcopy(layer).double()
    kernel, expected, truth = sample_factors(layer, window).tensor(), plain.sample(window), precise.sample(window)
    assert kernel.shape == expected.shape
    assert_as_exact(kernel, expected, truth, max(1e-5, rounding_error(precise, window)))
    gradient = torch.randn_like(expected)
    kernel.backward(gradient)
    expected.backward(gradient)
    truth.backward(gradient.double())
    compare_gradients(layer, plain, precise)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_generator(generator, layer, launched):
    compare(LAYERS[layer](GENERATORS[generator], MASKS["guarded"]))
    assert launched == ["launch_features", "launch_mask", "launch_mask_backward", "launch_features_backward"]


@pytest.mark.parametrize("generator", GENERATORS)
def test_features_of_new_layers_have_no_gradients(generator, launched):
    compare(FlexConv2d(2, 3, (9, 13), generator=GENERATORS[generator]), train_features=False)
    assert launched == ["launch_features", "launch_mask", "launch_mask_backward"]


def test_layers_as_in_the_paper_train_their_features(launched):
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"], parametrization="paper")
    compare(layer, train_features=False)
    assert launched == ["launch_features", "launch_mask", "launch_mask_backward", "launch_features_backward"]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_mask(mask, layer, launched):
    made = LAYERS[layer](GENERATORS["magnet"], MASKS[mask])
    compare(made)
    assert ("launch_mask" in launched) == (made.mask is not None)


@pytest.mark.parametrize("form", ["guarded", "scaled"])
@pytest.mark.parametrize("sigma", [(0.4, 0.2), (0.01, 0.3), (3.0, 0.5)])
def test_rotated_mask(form, sigma, launched):
    mask = RotatedGaussianMask(mean=(0.1, -0.2), sigma=sigma, angle=0.7, form=form)
    compare(FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"], mask=mask))
    assert "launch_mask_backward" in launched


@pytest.mark.parametrize("anisotropic", [False, True])
def test_steerable_envelopes(anisotropic, launched):
    generator = functools.partial(MAGNet, hidden=9, steerable=True, anisotropic=anisotropic)
    compare(FlexConv2d(2, 3, 13, generator=generator, mask=GaussianMask(2, sigma=0.3)))
    assert "launch_features_backward" in launched


def test_windows_that_do_not_contain_the_center():
    compare(FlexConv2d(2, 3, 13, generator=GENERATORS["magnet"], mask=MASKS["guarded"](2)), ((1, 6), (7, 12)))


def test_many_taps_are_added_by_several_programs(monkeypatch):
    pytest.importorskip("flexconv._fast.fused_sampler_triton")
    monkeypatch.setattr("flexconv._fast.fused_mask_triton.TAPS_OF_ONE_PROGRAM", 100)
    compare(FlexConv1d(2, 3, 333, generator=GENERATORS["magnet"], mask=MASKS["guarded"](1)), ((0, 333),))


def test_learned_shift_and_growth():
    layer = FlexConv2d(2, 3, 13, parametrization="scaled", generator=GENERATORS["magnet"])
    with torch.no_grad():
        layer.mask.shift.copy_(torch.tensor([0.1, -0.2]))
        layer.mask.growth.copy_(torch.tensor([0.05, -0.1]))
    compare(layer, train_features=False)


def test_crops_the_same_taps_as_the_plain_version():
    size = 21 if DEVICE == "cpu" else 33
    layer = FlexConv2d(1, 1, size, generator=GENERATORS["magnet"]).to(DEVICE)
    whole = tuple((0, size) for _ in range(2))
    for sigma in torch.linspace(0.01, 1.0, 12 if DEVICE == "cpu" else 200).tolist():
        layer.mask.set_(sigma=sigma)
        assert torch.equal(sample_factors(layer, whole).tensor() == 0, layer.sample(whole) == 0)


@pytest.mark.parametrize(
    ("kind", "form", "name"),
    [
        (GaussianMask, "guarded", "mean"),
        (GaussianMask, "guarded", "sigma"),
        (GaussianMask, "scaled", "shift"),
        (GaussianMask, "scaled", "growth"),
        (GaussianMask, "authors", "mean"),
        (GaussianMask, "authors", "sigma"),
        (RotatedGaussianMask, "guarded", "sigma"),
        (RotatedGaussianMask, "scaled", "growth"),
        (RotatedGaussianMask, "scaled", "angle"),
    ],
)
def test_mask_that_is_nan_gives_nan(kind, form, name, launched):
    mask = kind(2, sigma=0.3, form=form)
    layer = FlexConv2d(1, 1, 9, generator=GENERATORS["magnet"], mask=mask).to(DEVICE)
    with torch.no_grad():
        getattr(layer.mask, name)[0] = torch.nan
    window = ((0, 9), (0, 9))
    kernel, expected = sample_factors(layer, window).tensor(), layer.sample(window)
    assert "launch_mask" in launched
    assert expected.isnan().any()
    assert torch.equal(kernel.isnan(), expected.isnan())


# --- constant features ------------------------------------------------------------------------------------------------


def test_constant_features_are_kept_until_something_changes(launched):
    layer = FlexConv2d(2, 3, 13, parametrization="scaled", generator=GENERATORS["magnet"]).to(DEVICE)
    window = ((2, 11), (2, 11))
    first = sample_factors(layer, window).tensor()
    first.sum().backward()
    assert launched == ["launch_features", "launch_mask", "launch_mask_backward"]
    launched.clear()
    assert torch.equal(sample_factors(layer, window).tensor(), first)
    assert launched == ["launch_mask"]
    with torch.no_grad():
        layer.generator.phase += 1.0
    compare(layer, window, train_features=False)
    with torch.no_grad():
        layer.generator.output.basis *= 2.0
    compare(layer, window, train_features=False)
    compare(layer, ((0, 13), (0, 13)), train_features=False)
    compare(layer, window)
    assert "launch_features_backward" in launched


@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
def test_training_after_inference_mode(parametrization):
    layer = FlexConv2d(2, 3, 13, parametrization=parametrization, generator=GENERATORS["magnet"]).to(DEVICE)
    x = torch.randn(1, 2, 13, 13, device=DEVICE)
    with torch.inference_mode():
        expected = layer(x)
    y = layer(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), layer.mask.size_parameters()[-1], create_graph=True)
    gradient.square().sum().backward()
    assert relative_error(y, expected.clone()) < 1e-5


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
def test_second_derivatives(parametrization):
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"], parametrization=parametrization, bias=False).to(DEVICE)
    window = ((2, 7), (2, 7))
    results = []
    for each in (layer, copy.deepcopy(layer)):
        kernel = sample_factors(each, window).tensor() if each is layer else each.sample(window)
        trained = [p for p in each.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(kernel.square().sum(), trained, create_graph=True)
        sum(g.square().sum() for g in gradients).backward()
        results.append([p.grad for p in trained])
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-3


@pytest.mark.parametrize(
    ("parametrization", "constant", "trained"), [("paper", "mean", "sigma"), ("scaled", "shift", "growth")]
)
def test_only_wanted_gradients(parametrization, constant, trained):
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"], parametrization=parametrization).to(DEVICE)
    layer.generator.requires_grad_()
    layer.generator.phase.requires_grad_(False)
    getattr(layer.mask, constant).requires_grad_(False)
    compare(layer, ((2, 7), (2, 7)), train_features=False)
    assert layer.generator.phase.grad is None
    assert layer.generator.frequency.grad is not None
    assert getattr(layer.mask, constant).grad is None
    assert getattr(layer.mask, trained).grad is not None


def test_no_gradients():
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"]).to(DEVICE)
    with torch.no_grad():
        assert not sample_factors(layer, layer.window).tensor().requires_grad


def test_forward_mode_derivatives_use_the_plain_version(launched):
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"]).to(DEVICE)
    x = torch.randn(1, 2, 9, 9, device=DEVICE)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        torch.autograd.forward_ad.unpack_dual(layer(dual))
    assert not launched


def test_function_transforms_use_the_plain_version(launched):
    layer = FlexConv2d(2, 3, 9, generator=GENERATORS["magnet"]).to(DEVICE)
    x = torch.randn(1, 2, 9, 9, device=DEVICE)
    parameters = dict(layer.named_parameters())
    torch.func.grad(lambda given: torch.func.functional_call(layer, given, (x,)).square().sum())(parameters)
    assert not launched


# --- what is left to the plain version --------------------------------------------------------------------------------


class Doubled(MAGNet):
    def features(self, points):
        return 2 * super().features(points)


class SquaredEnvelopes(MAGNet):
    def envelopes(self, points):
        return super().envelopes(points).square()


class HalfMask(GaussianMask):
    def forward(self, lines, axes):
        return super().forward(lines, axes) / 2


class NegatedKernel(FlexConv2d):
    def sample(self, window):
        return -super().sample(window)


def plain_output(layer, x):
    """The output of a layer with the whole kernel of the plain version, in the precision of the layer."""
    return nn.functional.conv2d(x.to(layer.dtype), layer.kernel(), layer.bias, padding="same")


@pytest.mark.parametrize(
    "layer",
    [
        lambda: FlexConv2d(2, 3, 9, generator=Doubled),
        lambda: FlexConv2d(2, 3, 9, generator=SquaredEnvelopes),
        lambda: FlexConv2d(2, 3, 9, mask=HalfMask(2)),
        lambda: NegatedKernel(2, 3, 9),
        lambda: FlexConv2d(2, 3, 9, dtype=torch.float64),
        lambda: FlexConv2d(2, 3, 9, generator="siren"),
        lambda: FlexConv2d(2, 3, 9, generator=functools.partial(MAGNet, hidden=129)),
    ],
    ids=["features", "envelopes", "mask", "layer", "float64", "siren", "too wide"],
)
def test_other_layers_use_the_plain_version(layer, launched):
    layer = layer().to(DEVICE)
    x = torch.randn(1, 2, 9, 9, device=DEVICE, dtype=layer.dtype)
    y = layer(x)
    assert not launched
    expected, truth = (plain_output(each, x) for each in (layer, copy.deepcopy(layer).double()))
    assert_as_exact(y, expected, truth, 1e-5)


def test_hooks_are_called(launched):
    calls = []
    layer = FlexConv2d(2, 3, 9).to(DEVICE)
    layer.mask.register_forward_hook(lambda *_: calls.append("mask"))
    layer(torch.randn(1, 2, 9, 9, device=DEVICE))
    assert calls == ["mask"]
    assert not launched


def test_meta_tensors(launched):
    layer = FlexConv2d(2, 3, 9, device="meta")
    fused = fused_sampler.supports_device
    fused_sampler.supports_device = lambda tensor: tensor.is_cuda
    try:
        assert layer(torch.empty(1, 2, 9, 9, device="meta")).shape == (1, 3, 9, 9)
    finally:
        fused_sampler.supports_device = fused
    assert not launched


def test_resampled_layers(launched):
    from flexconv import at_resolution

    layer = at_resolution(FlexConv2d(2, 3, 9).to(DEVICE), 2.0)
    layer(torch.randn(1, 2, 18, 18, device=DEVICE))
    assert not launched


def test_without_triton(monkeypatch, launched):
    monkeypatch.undo()
    monkeypatch.setattr(fused_sampler, "has_triton", lambda: False)
    assert not fused_sampler.supports_device(torch.empty(1, device=DEVICE))


# --- compiled code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"parametrization": "paper"},
        {"parametrization": "scaled"},
        {"mask": RotatedGaussianMask(sigma=(0.4, 0.2), angle=0.4)},
        {"mask": None, "generator": GENERATORS["fourier"]},
    ],
    ids=["paper", "scaled", "rotated", "no mask"],
)
def test_compiled_code_contains_one_node_for_each_launch(options):
    from torch._dynamo.backends.debugging import aot_eager

    layer = FlexConv2d(2, 3, 9, **options).to(DEVICE)
    plain, precise = copy.deepcopy(layer), copy.deepcopy(layer).double()
    x, graphs = torch.randn(1, 2, 9, 9, device=DEVICE), []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return aot_eager(graph, inputs)

    y = torch.compile(layer, backend=backend, fullgraph=True)(x)
    (nodes,) = graphs
    launches = [name.removeprefix("flexconv.") for name in nodes if name.startswith("flexconv.")]
    joined = ["join", "sample_features"] if layer.mask is None else ["join", "sample_features", "join", "apply_mask"]
    assert launches == [*joined, "mix_maps"]
    gradient = torch.randn_like(y)
    y.backward(gradient)
    expected, truth = plain_output(plain, x), plain_output(precise, x)
    expected.backward(gradient)
    truth.backward(gradient.double())
    assert_as_exact(y, expected, truth, 1e-5)
    compare_gradients(layer, plain, precise)


def test_exported_programs_are_plain(launched):
    layer = FlexConv2d(2, 3, 9).to(DEVICE).eval()
    x = torch.randn(1, 2, 9, 9, device=DEVICE)
    program = torch.export.export(layer, (x,))
    assert not any("flexconv" in str(node.target) for node in program.graph.nodes)
    assert not launched


# --- on a GPU ---------------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@gpu
@pytest.mark.parametrize("parametrization", ["paper", "scaled"])
def test_training_on_a_gpu_equals_training_on_a_cpu(parametrization):
    torch.manual_seed(0)
    net = nn.Sequential(
        FlexConv2d(3, 8, 33, parametrization=parametrization),
        nn.ReLU(),
        FlexConv2d(8, 8, 33, parametrization=parametrization),
    )
    x, losses = torch.randn(4, 3, 32, 32), []
    for device in ("cpu", "cuda"):
        each = copy.deepcopy(net).to(device)
        optimizer = torch.optim.Adam(each.parameters(), lr=1e-3, fused=device == "cuda")
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = each(x.to(device)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)


@gpu
def test_captured_steps_use_the_current_parameters():
    layer = FlexConv2d(2, 3, 33, parametrization="scaled").cuda()
    x = torch.randn(2, 2, 32, 32, device="cuda")
    with torch.no_grad():
        layer.train()
        for _ in range(3):
            layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        fused_sampler._grids.clear()
        fused_sampler._constant_features.clear()
        torch.randn(1 << 20, device="cuda")
        layer.generator.phase += 1.0
        layer.generator.output.weight *= 2.0
        graph.replay()
        assert relative_error(y, layer(x)) < 1e-5


@gpu
def test_compiled_layer_equals_eager_layer():
    layer = FlexConv2d(2, 3, 17).cuda()
    x = torch.randn(2, 2, 32, 32, device="cuda")
    expected = layer(x)
    assert relative_error(torch.compile(layer)(x), expected) < 1e-4
