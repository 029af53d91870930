"""Half precision: every shipped network, and layers of any scale, in every way of using float16 and bfloat16."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from flexconv import (
    FlexConv1d,
    FlexConv2d,
    FlexConv3d,
    SeparableFlexConv1d,
    SeparableFlexConv2d,
    Streaming,
    from_pretrained,
    list_pretrained,
    materialize,
    move_scale_to_norms,
    save_pretrained,
)
from flexconv.errors import PrecisionError
from flexconv.export import export, load_conv
from flexconv.models import FlexNet, FlexTCN, SepFlexNet
from flexconv.nn import FlexConvNd, _half
from flexconv.norm_scale import scale_norms_for_evaluation
from tests.conftest import mentions, relative_error

HALF, BFLOAT = torch.float16, torch.bfloat16
TOLERANCE = {HALF: 4e-3, BFLOAT: 3e-2}  # of logits: rounding to 11 or 8 bits in up to 15 layers
ROUNDING = {HALF: 1e-3, BFLOAT: 8e-3}  # of one layer
FLOAT16_MAX = 65504.0


@pytest.fixture(autouse=True)
def fast_float16(monkeypatch):
    """Compute float16 convolutions as a GPU does: sum in float32, round the result. Those of torch take minutes."""

    def rounded(plain, self, x, weight, bias):
        lowered = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == HALF
        if x.dtype != HALF and not lowered:
            return plain(self, x, weight, bias)
        with torch.autocast("cpu", enabled=False):
            x, weight, bias = (None if t is None else t.half().float() for t in (x, weight, bias))
            return plain(self, x, weight, bias).half()

    for kind in (nn.Conv1d, nn.Conv2d):
        monkeypatch.setattr(kind, "_conv_forward", functools.partialmethod(_as_method(rounded, kind._conv_forward)))


def _as_method(rounded, plain):
    def method(self, x, weight, bias):
        return rounded(plain, self, x, weight, bias)

    return method


# --- shipped networks -------------------------------------------------------------------------------------------------


@functools.cache
def network(name):
    return from_pretrained(name)


@functools.cache
def batch(name):
    """Two smooth random inputs of moderate size."""
    model, random = network(name), torch.Generator().manual_seed(0)
    size = {1: (160,), 2: (12, 12)}[model.dims]
    noise = torch.randn(2, model.in_channels, *size, generator=random)
    return 3 * (F.avg_pool1d if model.dims == 1 else F.avg_pool2d)(noise, 5, 1, 2)


@torch.no_grad()
def assert_agrees(result, name, dtype):
    truth = network(name)(batch(name))
    assert result.isfinite().all()
    assert relative_error(result.float(), truth) < TOLERANCE[dtype]
    assert torch.equal(result.argmax(1), truth.argmax(1))


networks = pytest.mark.parametrize("name", list_pretrained())
dtypes = pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=["float16", "bfloat16"])


@networks
@dtypes
def test_shipped_network_under_autocast(name, dtype):
    with torch.no_grad(), torch.autocast("cpu", dtype):
        assert_agrees(network(name)(batch(name)), name, dtype)


@networks
@dtypes
def test_shipped_network_converted_to_half_precision(name, dtype):
    model = copy.deepcopy(network(name)).to(dtype)
    with torch.no_grad():
        result = model(batch(name).to(dtype))
    assert result.dtype == dtype
    assert_agrees(result, name, dtype)


@networks
@dtypes
def test_materialized_network_in_half_precision(name, dtype):
    if name == "flextcn6-npcifar10" and dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        pytest.skip("oneDNN computes bfloat16 convolutions with such long kernels wrongly")
    plain = materialize(network(name))
    with torch.no_grad():
        assert relative_error(plain(batch(name)), network(name)(batch(name))) < 1e-5
        with torch.autocast("cpu", dtype):
            lowered = plain(batch(name))
        assert_agrees(lowered, name, dtype)
        assert_agrees(plain.to(dtype)(batch(name).to(dtype)), name, dtype)


@networks
def test_exported_network_can_be_converted_to_float16(name, tmp_path):
    path = tmp_path / "model.safetensors"
    export(network(name), path, shape=tuple(batch(name).shape))
    loaded = load_conv(path)
    for tensor in loaded.state_dict().values():  # whatever program converts the file
        assert not tensor.is_floating_point() or tensor.abs().max() < FLOAT16_MAX
    with torch.no_grad():
        assert_agrees(loaded.half()(batch(name).half()), name, HALF)


def test_onnx_file_converted_to_float16(tmp_path):
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    converter = pytest.importorskip("onnxruntime.transformers.float16")
    name, path = "flexnet7-cifar10-16px", tmp_path / "model.onnx"
    export(network(name), path, shape=tuple(batch(name).shape), preprocessing=False)
    converted = converter.convert_float_to_float16(onnx.load(path), keep_io_types=True)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(converted.SerializeToString(), options)
    (logits,) = session.run(None, {session.get_inputs()[0].name: batch(name).numpy()})
    assert_agrees(torch.from_numpy(logits), name, HALF)


@networks
def test_shipped_network_trains_under_float16_autocast(name):
    model = copy.deepcopy(network(name)).train()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    trained = [p for p in model.parameters() if p.requires_grad]
    with torch.autocast("cpu", HALF):
        loss = F.cross_entropy(model(batch(name)), torch.tensor([0, 1]))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    assert all(p.grad.isfinite().all() for p in trained)
    assert sum(bool(p.grad.any()) for p in trained) > 0.8 * len(trained)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**10  # no step was skipped
    assert all(p.isfinite().all() for p in model.parameters())


@dtypes
def test_network_trains_in_half_precision(dtype):
    model = copy.deepcopy(network("flexnet3-digits")).to(dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, losses = batch("flexnet3-digits").to(dtype), []
    for _ in range(3):
        loss = F.cross_entropy(model(x).float(), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(p.isfinite().all() for p in model.parameters())
    assert losses[-1] < losses[0]


def test_gradients_under_float16_autocast_agree_with_float32():
    model, x = copy.deepcopy(network("flexnet7-cifar10-16px")).eval(), batch("flexnet7-cifar10-16px")
    F.cross_entropy(model(x), torch.tensor([0, 1])).backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    with torch.autocast("cpu", HALF):
        loss = F.cross_entropy(model(x), torch.tensor([0, 1]))
    (loss * 1024).backward()
    result = torch.cat([p.grad.flatten() for p in model.parameters()]) / 1024
    assert F.cosine_similarity(result, truth, 0) > 0.999


def test_converting_to_float16_and_back_keeps_the_network():
    name = "flexnet7-cifar10"
    model = copy.deepcopy(network(name)).half().float()
    with torch.no_grad():
        assert_agrees(model(batch(name)), name, HALF)


def test_float16_network_can_be_saved(tmp_path):
    name = "flextcn6-npcifar10"
    model, x = copy.deepcopy(network(name)).half(), batch(name).half()
    save_pretrained(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(from_pretrained(tmp_path)(x), model(x))


def test_float16_network_of_layers_without_bias_can_be_saved_and_materialized(tmp_path):
    options = {"in_channels": 1, "num_classes": 2, "kernel_size": 5, "widths": [2], "generator": "njet"}
    model, x = FlexNet(**options).half().eval(), torch.randn(1, 1, 8, 8).half()
    save_pretrained(model, tmp_path)
    with torch.no_grad():
        assert torch.equal(from_pretrained(tmp_path)(x), model(x))
        assert relative_error(materialize(model)(x).float(), model(x).float()) < 5e-3


@pytest.mark.parametrize(("norm", "compiled"), [("batch", False), ("batch", True), ("layer", False)])
def test_large_kernels_before_norms(norm, compiled):
    model = FlexNet(in_channels=1, num_classes=3, kernel_size=7, widths=[2], norm=norm, dropout=0.0)
    enlarge(model.stem, 1e5)
    enlarge(model.blocks[0].conv1, 1e4)
    x = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        model.train()(x)
        truth = model.eval()(x)
        for low, given in ((model, x), (copy.deepcopy(model).half(), x.half())):
            run = torch.compile(low, fullgraph=True, backend="eager") if compiled else low
            with torch.autocast("cpu", HALF, enabled=low is model):
                assert relative_error(run(given).float(), truth) < TOLERANCE[HALF]


def trained_sepflexnet(dims=1, **options):
    """A SepFlexNet with large kernels, whose sums of blocks exceed 65504 as well, and inputs for it."""
    torch.manual_seed(0)
    size, shape = {1: ({"length": 20}, [20]), 2: ({"image_size": 8}, [8, 8])}[dims]
    model = SepFlexNet(in_channels=2, num_classes=3, width=4, depth=2, **size, **options)
    for layer in model.modules():
        if isinstance(layer, FlexConvNd):
            enlarge(layer, 1e5)
    with torch.no_grad():
        for block in model.blocks:
            block.mix.weight.mul_(1e3)
        for _ in range(50):
            model.train()(torch.randn(8, 2, *shape))
    return model.eval(), torch.randn(4, 2, *shape)


@torch.no_grad()
def assert_works_in_float16(model, x, tolerance=8e-3, **others):
    truth, converted = model(x, **others), copy.deepcopy(model).half()
    results = [converted(x.half(), **others)]
    assert results[0].dtype == HALF
    with torch.autocast("cpu", HALF):
        results.append(model(x, **others))
    if "lengths" not in others:
        plain = materialize(model)
        assert relative_error(plain(x, **others), truth) < 5e-5
        with torch.autocast("cpu", HALF):
            results.append(plain(x, **others))
        results.append(plain.half()(x.half(), **others))
    for result in results:
        assert relative_error(result.float(), truth) < tolerance


@pytest.mark.parametrize("options", [{}, {"norm": "layer"}, {"small_kernel": 3}, {"readout": "every"}])
@pytest.mark.parametrize("dims", [1, 2])
def test_large_residual_sums(dims, options):
    model, x = trained_sepflexnet(dims, **options)
    sums = []
    model.norm.register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0]))
    model(x)
    assert sums[0].abs().max() > FLOAT16_MAX
    model.norm._forward_pre_hooks.clear()
    assert_works_in_float16(model, x)


def test_large_residual_sums_of_gated_blocks():
    model, x = trained_sepflexnet(mix="glu", norm="layer")
    assert_works_in_float16(model, x, 2e-2)  # the gates of so large sums depend on rounding


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("lengths", [None, [20, 12, 5, 1]])
def test_large_residual_sums_of_some_positions(lengths, missing):
    model, x = trained_sepflexnet(readout="last")
    others = {"observed": torch.rand(4, 20) > 0.3} if missing else {}
    if missing:
        others["observed"][:, 0] = True
    if lengths is not None:
        others["lengths"] = torch.tensor(lengths)
    assert_works_in_float16(model, x, **others)


def test_large_residual_sums_of_compiled_and_streamed_networks():
    model, x = trained_sepflexnet(readout="last")
    low = copy.deepcopy(model).half()
    with torch.no_grad():
        truth = model(x)
        compiled = torch.compile(low, fullgraph=True, backend="aot_eager")(x.half())
        assert relative_error(compiled.float(), truth) < TOLERANCE[HALF]
        with torch.autocast("cpu", HALF):
            compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
        assert relative_error(compiled.float(), truth) < TOLERANCE[HALF]
    stream = Streaming(copy.deepcopy(low))
    for chunk in x.half().split([7, 1, 12], -1):
        result = stream(chunk)
    assert result.dtype == HALF
    assert relative_error(result.float(), truth) < TOLERANCE[HALF]


def test_float16_network_with_residual_sums_trains_and_is_saved(tmp_path):
    model, x = trained_sepflexnet()
    model.half().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        losses.append(F.cross_entropy(model(x.half()).float(), torch.tensor([0, 1, 2, 0])))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert all(p.isfinite().all() for p in model.parameters())
    save_pretrained(model.eval(), tmp_path)
    loaded = from_pretrained(tmp_path)
    assert loaded.norm.weight.dtype == loaded.stem_norm.running_var.dtype == torch.float32
    assert torch.equal(loaded(x.half()), model(x.half()))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_network_with_residual_sums_is_made_in_float16(device):
    options = {"in_channels": 2, "num_classes": 3, "length": 20, "width": 4, "depth": 1, "device": device}
    for model in (SepFlexNet(**options, dtype=HALF), SepFlexNet(**options).half()):
        norms = [model.stem_norm, model.blocks[0].norm, model.norm]
        assert {norm.weight.dtype for norm in norms} == {torch.float32}
        assert {p.dtype for p in (model.head.weight, model.stem.pointwise.weight, model.blocks[0].mix.bias)} == {HALF}
        assert model.eval()(torch.zeros(1, 2, 20, device=device, dtype=HALF)).dtype == HALF
    with pytest.raises(TypeError, match=mentions("float32", "float16")):
        model(torch.zeros(1, 2, 20, device=device))
    assert {p.dtype for p in model.bfloat16().norm.parameters()} == {BFLOAT}


@pytest.mark.parametrize("first", [BFLOAT, torch.float64, HALF])
def test_network_with_residual_sums_is_converted_from_any_dtype_to_float16(first):
    model, x = trained_sepflexnet()
    converted = copy.deepcopy(model).to(first).half()
    assert converted.norm.running_var.dtype == converted.blocks[0].norm.weight.dtype == torch.float32
    assert relative_error(converted(x.half()).float(), model(x)) < TOLERANCE[BFLOAT]


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d, functools.partial(nn.GroupNorm, 1), functools.partial(nn.InstanceNorm1d, affine=True)],
    ids=["batch", "group", "instance"],
)
def test_norms_in_a_block_that_was_replaced(norm):
    model, x = trained_sepflexnet()
    width = model.norm.num_features
    model.blocks[0] = nn.Sequential(norm(width), nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1)))
    truth = model.eval()(x)
    truth.sum().backward()
    model.half()
    assert model.blocks[0][0].weight.dtype == model.blocks[0][0].weight.grad.dtype == torch.float32
    assert model.blocks[0][1][1].weight.dtype == model.blocks[0][1][1].weight.grad.dtype == HALF
    assert relative_error(model(x.half()).float(), truth) < TOLERANCE[HALF]


def test_features_beyond_float16_raise():
    model, x = trained_sepflexnet()
    nn.init.constant_(model.norm.weight, 1e7)
    with pytest.raises(PrecisionError, match=mentions("BatchNorm1d", "float16", "bfloat16")):
        model.half()(x.half())


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_float16_file_of_a_network_with_large_residual_sums(format, tmp_path):  # noqa: A002
    pytest.importorskip("onnxruntime")
    model, _ = trained_sepflexnet()
    report = export(model, tmp_path / f"half.{format}", shape=(2, 2, 20), half=True)
    assert report.quantization_error < 1e-2


def test_streamed_network_in_float16():
    name = "flextcn6-smnist"
    x = batch(name).half()
    stream = Streaming(copy.deepcopy(network(name)).half())
    for chunk in x.split([100, 37, 23], -1):
        result = stream(chunk)
    assert_agrees(result, name, HALF)


# --- layers of any scale ----------------------------------------------------------------------------------------------


def enlarge(layer, factor):
    with torch.no_grad():
        layer.generator.output_map.weight.mul_(factor)
        layer.generator.output_map.bias.mul_(factor)
    return layer


def make_layer(dims=2, scale=1.0, **options):
    torch.manual_seed(0)
    kind = {1: FlexConv1d, 2: FlexConv2d, 3: FlexConv3d}[dims]
    layer = kind(2, 3, 9, **options).requires_grad_().eval()
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=scale)
    return enlarge(layer, scale), torch.randn(2, 2, *[10] * dims)


scales = pytest.mark.parametrize("scale", [1e5, 1.0, 1e-8])


@scales
@dtypes
@pytest.mark.parametrize("algorithm", ["direct", "fft", "dft"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_layer_of_any_scale_under_autocast(dims, algorithm, scale, dtype):
    layer, x = make_layer(dims, scale, algorithm=algorithm)
    truth = layer(x)
    with torch.autocast("cpu", dtype):
        result = layer(x)
    assert result.dtype == (torch.float32 if dtype == HALF else dtype)  # float16 could not hold it
    assert relative_error(result.float(), truth) < ROUNDING[dtype]
    result.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@scales
@pytest.mark.parametrize("input_scale", [1e-12, 1e-6, 1e4, 1e12])
def test_inputs_of_any_scale_under_float16_autocast(scale, input_scale):
    layer, x = make_layer(scale=scale, bias=False)
    x = torch.stack([x[0] * input_scale, x[1]])
    with torch.autocast("cpu", HALF):
        result = layer(x)
    for row, truth in zip(result, layer(x), strict=True):  # no sample depends on the scale of another
        assert relative_error(row, truth) < ROUNDING[HALF]


@scales
def test_taps_and_inputs_fit_into_float16(scale, monkeypatch):
    """The same as above with convolutions that really are in float16, as on a GPU."""
    monkeypatch.setattr(_half, "_compute_dtype", lambda _: HALF)
    for dims, algorithm in ((1, "direct"), (2, "direct"), (2, "dft")):
        layer, x = make_layer(dims, scale, algorithm=algorithm)
        loss_scale = 1024 / scale**2
        truth = layer(x * 30)
        expected = torch.autograd.grad(truth.square().mean() * loss_scale, list(layer.parameters()))
        with torch.autocast("cpu", HALF):
            result = layer(x * 30)
        assert relative_error(result, truth) < 2 * ROUNDING[HALF]
        found = torch.autograd.grad(result.square().mean() * loss_scale, list(layer.parameters()))
        for mine, theirs in zip(found, expected, strict=True):
            assert relative_error(mine, theirs) < 2e-2


@pytest.mark.parametrize("algorithm", ["direct", "dft"])
def test_sums_that_add_up_do_not_overflow(algorithm, monkeypatch):
    """Constant kernels and inputs have the largest outputs and spectra."""
    monkeypatch.setattr(_half, "_compute_dtype", lambda _: HALF)
    layer = FlexConv2d(16, 2, 17, algorithm=algorithm, bias=False)
    kernel = _half.scale_kernel(torch.full((2, 16, 17, 17), 6e20))
    assert (kernel.taps.float().abs().flatten(1).sum(1) <= _half.LARGEST_TAP_SUM * 1.001).all()
    assert kernel.taps.min() > 1e-3  # far from subnormal numbers
    x = torch.full((1, 16, 17, 17), 5e4)
    with torch.autocast("cpu", HALF):
        y = _half.float16_conv(layer, x, kernel, None, layer.pads)
    torch.testing.assert_close(y[0, :, 8, 8], torch.full((2,), 6e20 * 5e4 * 16 * 17**2), rtol=2e-3, atol=0)


def test_taps_times_scale_are_the_kernel():
    kernel = torch.randn(3, 2, 5, 5) * torch.tensor([1e-30, 1.0, 1e30]).view(-1, 1, 1, 1)
    taps, scale = _half.scale_kernel(kernel)
    assert torch.equal(taps * scale.view(-1, 1, 1, 1), kernel)
    assert _half.scale_kernel(torch.zeros(2, 1, 3)).scale.isfinite().all()


@dtypes
def test_converted_layer_keeps_its_kernel(dtype):
    layer = FlexConv1d(1, 2, 1001, padding="causal").eval()
    low = copy.deepcopy(layer).to(dtype)
    assert low.dtype == low.bias.dtype == dtype
    assert torch.equal(low.kernel(), layer.kernel())
    assert FlexConv1d(1, 2, 9, dtype=dtype).kernel().dtype == torch.float32
    x = torch.randn(1, 1, 1200)
    assert relative_error(low(x.to(dtype)).float(), layer(x)) < 2 * ROUNDING[dtype]
    assert torch.equal(low.float().kernel(), layer.kernel())


def test_small_kernel_in_float16_is_not_lost():
    layer, x = make_layer(scale=1e-8, bias=False)
    result = copy.deepcopy(layer).half()((1e4 * x).half())
    assert relative_error(result.float(), layer(1e4 * x)) < 2e-2  # outputs of 1e-5 have 8 bits in float16


def test_output_beyond_float16_raises():
    layer, x = make_layer(scale=1e6, bias=False)
    with pytest.raises(PrecisionError, match=mentions("FlexConv2d", "float16", "65504", "bfloat16")):
        layer.half()(x.half())
    with torch.no_grad(), pytest.raises(RuntimeError, match="float16"):
        torch.compile(layer.half(), fullgraph=True, backend="aot_eager")(x.half())


def test_compiler_does_not_remove_the_check_of_outputs():
    layer, _ = make_layer()
    compiled = torch.compile(lambda y: _half.as_float16(y, layer), fullgraph=True)
    assert compiled(torch.tensor([-65519.0, 2.0])).tolist() == [-65504, 2]
    with pytest.raises(RuntimeError, match="float16"):
        compiled(torch.tensor([-65520.0, 2.0]))


def test_nan_and_infinity_are_not_taken_for_an_overflow():
    layer, x = make_layer()
    x[0, 0, 5, 5] = float("nan")
    x[1, 0, 5, 5] = float("inf")
    assert layer.half()(x.half()).isnan().any()


def test_bias_beyond_float16_raises():
    layer, _ = make_layer()
    nn.init.constant_(layer.bias, 1e5)
    with pytest.raises(PrecisionError, match=mentions("bias", "1e+05", "float16")):
        layer.half()
    assert layer.dtype == torch.float32
    layer.bfloat16()


def test_materialized_layer_beyond_float16_raises_or_computes_in_float32():
    layer, x = make_layer(scale=1e6, bias=False)
    plain = materialize(nn.Sequential(layer, nn.ReLU()))
    truth = plain(x)
    with torch.autocast("cpu", HALF):
        assert relative_error(plain(x), truth) < ROUNDING[HALF]
    for each in (plain, pickle.loads(pickle.dumps(plain))):
        with pytest.raises(PrecisionError, match=mentions("taps", "float16", "bfloat16")):
            each.half()
    with pytest.raises(PrecisionError, match=mentions("kernel", "float16")):
        materialize(layer.half())


# --- the scale of kernels in norms ------------------------------------------------------------------------------------


class Mine(nn.Module):
    """A network of one's own, whose pairs cannot be seen from outside."""

    def __init__(self, norm=None):
        super().__init__()
        self.conv, self.norm = FlexConv2d(1, 4, 5), nn.BatchNorm2d(4) if norm is None else norm

    def forward(self, x):
        return self.norm(self.conv(x))


class Squared(nn.Module):
    """Not a convolution, although it consists of one module that is."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        return self.conv(x).square()


def trained(model, shape=(8, 1, 9, 9)):
    torch.manual_seed(1)
    with torch.no_grad():
        for _ in range(50):
            model.train()(torch.randn(shape))
    return model.eval()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False)])
@pytest.mark.parametrize("layer", [FlexConv2d, nn.Conv2d])
def test_moves_the_scale_of_consecutive_modules(layer, norm):
    torch.manual_seed(0)
    conv = layer(1, 4, 5)
    factor = torch.tensor([1e3, 1e5, 1e6, 1e7])
    with torch.no_grad():
        for p in conv.generator.output_map.parameters() if layer is FlexConv2d else conv.parameters():
            p.mul_(factor.view(-1, *[1] * (p.ndim - 1)))
    model = trained(nn.Sequential(nn.Identity(), conv, copy.deepcopy(norm), nn.ReLU()))
    x = torch.randn(2, 1, 9, 9)
    truth = model(x)
    assert move_scale_to_norms(model) == ["1"]
    assert relative_error(model(x), truth) < 5e-5
    kernel = conv.kernel() if layer is FlexConv2d else conv.weight
    assert kernel.abs().max() < 300
    assert move_scale_to_norms(model) == []  # nothing is left to do
    assert relative_error(model.half()(x.half()).float(), truth) < ROUNDING[HALF] * 3


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.GroupNorm(1, 3)])
@pytest.mark.parametrize("small", [None, 3])
@pytest.mark.parametrize("materialized", [False, True])
def test_moves_the_scale_of_separable_convolutions(small, materialized, norm):
    torch.manual_seed(0)
    model = nn.Sequential(SeparableFlexConv1d(2, 3, 9, small_kernel=small), copy.deepcopy(norm))
    first = model[0]
    for layer in (first.depthwise, first.small):
        if layer is not None:
            enlarge(layer, 1e6)
    trained(model, (8, 2, 20))
    x = torch.randn(2, 2, 20)
    truth = model(x)
    if materialized:
        model = materialize(model)
        first = model[0]
        kernel = first.depthwise.weight
    else:
        assert move_scale_to_norms(model) == ["0.depthwise", *(["0.small"] if small else []), "0.pointwise"]
        kernel = first.depthwise.kernel()
    assert kernel.abs().max() < 300
    assert first.pointwise.weight.abs().max() < 300
    if isinstance(norm, nn.BatchNorm1d):
        assert model[1].running_var.max() < 64**2
    assert relative_error(model(x), truth) < 5e-5
    assert relative_error(model.half()(x.half()).float(), truth) < ROUNDING[HALF] * 3


def test_norms_are_scaled_for_evaluation_only():
    norm = nn.BatchNorm1d(3).eval()
    norm.running_var.copy_(torch.tensor([1.0, 1e6, 1e9]))
    norm.running_mean.copy_(torch.tensor([1.0, 1e3, 1e4]))
    model, x = nn.Sequential(FlexConv1d(2, 3, 9), nn.ReLU(), norm).eval(), 1e4 * torch.randn(2, 3, 20)
    state, truth = copy.deepcopy(norm.state_dict()), norm(x)
    assert all(torch.equal(t, state[n]) for n, t in materialize(model)[2].state_dict().items())
    scale_norms_for_evaluation(model)
    assert norm.running_var.max() < FLOAT16_MAX
    assert norm.running_var[0] == norm.weight[0] == 1
    torch.testing.assert_close(norm(x), truth)
    norm.running_var.fill_(1e6)
    model.train()
    scale_norms_for_evaluation(model)
    assert norm.running_var[0] == 1e6


def test_pairs_of_own_networks_are_given():
    model = Mine()
    enlarge(model.conv, 1e6)
    trained(model)
    x = torch.randn(2, 1, 9, 9)
    truth = model(x)
    assert move_scale_to_norms(model) == []
    with pytest.raises(PrecisionError, match="move_scale_to_norms"):
        copy.deepcopy(model).half()(x.half())
    assert move_scale_to_norms(model, [(model.conv, model.norm)]) == ["conv"]
    assert relative_error(model.half()(x.half()).float(), truth) < ROUNDING[HALF] * 3


def test_pairs_of_sums_are_given():
    torch.manual_seed(0)
    first, second, norm = enlarge(FlexConv1d(2, 4, 5), 1e6), enlarge(FlexConv1d(2, 4, 3), 1e4), nn.BatchNorm1d(4)
    model, x = nn.ModuleList([first, second, norm]), torch.randn(8, 2, 20)
    with torch.no_grad():
        for _ in range(50):
            norm(first(x) + second(x))
    truth = norm.eval()(first(x) + second(x))
    assert move_scale_to_norms(model, [((first, second), norm)]) == ["0", "1"]
    assert norm.running_var.max() < 64**2
    assert relative_error(norm(first(x) + second(x)), truth) < 1e-5


def test_leaves_what_it_cannot_move():
    shared = nn.BatchNorm2d(4)
    first, second = enlarge(FlexConv2d(4, 4, 5), 1e6), enlarge(FlexConv2d(4, 4, 5), 1e6)
    hooked = enlarge(FlexConv2d(4, 4, 5), 1e6)
    hooked.register_forward_hook(lambda *_: None)
    parts = [first, shared, second, shared, hooked, nn.BatchNorm2d(4), FlexConv2d(4, 4, 5, generator="njet")]
    parts += [nn.BatchNorm2d(4), Squared(enlarge(FlexConv2d(4, 4, 5), 1e6))]
    model = trained(nn.Sequential(*parts, nn.BatchNorm2d(4)), (2, 4, 9, 9))
    state = copy.deepcopy(model.state_dict())
    assert move_scale_to_norms(model) == []
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


class Standardized(nn.Conv2d):
    """A convolution whose kernel does not depend on the scale of its weight."""

    def forward(self, x):  # the name of the argument does not matter
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


class Rectified(SeparableFlexConv2d):
    """A separable convolution with something between its two parts that is not linear."""

    def forward(self, x):
        return self.pointwise(torch.tanh(self.depthwise(x)))


class Halved(nn.Module):
    """A parametrization for `torch.nn.utils.parametrize`."""

    def forward(self, parameter):
        return 0.5 * parameter


def parametrized(conv, module, name):
    nn.init.constant_(conv.bias, 1e5)
    parametrize.register_parametrization(module(conv), name, Halved())
    return conv


@pytest.mark.parametrize(
    "conv",
    [
        lambda: Standardized(4, 4, 5),
        lambda: Rectified(4, 4, 5),
        lambda: parametrized(FlexConv2d(4, 4, 5), lambda conv: conv.generator.output_map, "weight"),
        lambda: parametrized(FlexConv2d(4, 4, 5), lambda conv: conv, "bias"),
        lambda: parametrized(nn.Conv2d(4, 4, 5), lambda conv: conv, "bias"),
    ],
    ids=["standardized", "rectified", "parametrized generator", "parametrized bias", "parametrized bias of torch"],
)
def test_leaves_subclasses_and_parametrized_layers(conv):
    torch.manual_seed(0)
    conv = conv()
    if isinstance(conv, Rectified):
        enlarge(conv.depthwise, 1e6)
    model, x = nn.Sequential(conv, nn.BatchNorm2d(4)), 1e5 * torch.randn(8, 4, 9, 9)
    with torch.no_grad():
        for _ in range(50):
            model(x)
    truth = model.eval()(x)
    move_scale_to_norms(model)
    assert relative_error(model(x), truth) < 5e-5


def test_moderate_networks_are_left_as_they_are():
    model = FlexTCN(in_channels=1, num_classes=2, length=16, widths=[4])
    state = copy.deepcopy(model.state_dict())
    assert move_scale_to_norms(model) == []
    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())


def test_loading_does_not_change_parameters():
    """Training can continue exactly as before: the scale moves only when a network is converted."""
    layers = [m for m in network("flexnet7-cifar10").modules() if isinstance(m, FlexConvNd)]
    assert max(layer.kernel().abs().max() for layer in layers) > 20_000


def test_statistics_beyond_float16_raise():
    model = FlexNet(in_channels=1, num_classes=2, kernel_size=5, widths=[2], generator="njet")
    model.stem_norm.running_var.fill_(1e6)
    with pytest.raises(PrecisionError, match=mentions("stem_norm.running_var", "1e+06", "float16")):
        model.half()


@pytest.mark.parametrize(
    "pairs", [[3], [(nn.ReLU(), None)], [(nn.ReLU(),)], [((), nn.ReLU())], [((nn.ReLU(), 3), nn.ReLU())]]
)
def test_wrong_pairs_raise(pairs):
    with pytest.raises(TypeError, match="pairs"):
        move_scale_to_norms(nn.ReLU(), pairs)
