"""SepFlexNet: one definition for sequences, images and volumes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flexconv import (
    Streaming,
    alias_penalty,
    at_resolution,
    create_model,
    from_pretrained,
    materialize,
    save_pretrained,
)
from flexconv.errors import ArgumentError
from flexconv.explorer import write_page
from flexconv.explorer._program import program
from flexconv.export import export
from flexconv.models import SepFlexNet, trained_size
from flexconv.models.sepflexnet import DropPath
from flexconv.spectrum import alias_report, max_frequency
from tests.conftest import mentions, relative_error

SIZES = {1: {"length": 24}, 2: {"image_size": 8}, 3: {"volume_size": 6}}
SAMPLES = {1: (3, 24), 2: (3, 8, 8), 3: (3, 6, 6, 6)}


def network(dims, **options):
    torch.manual_seed(0)
    settings = {"width": 6, "depth": 2, "generator_options": {"hidden": 4}, **SIZES[dims], **options}
    return SepFlexNet(in_channels=3, num_classes=5, **settings)


def samples(dims, batch=2):
    return torch.randn(batch, *SAMPLES[dims])


def trained(model, x):
    """The model in eval mode with running statistics that differ from their initial values."""
    model.train()
    for _ in range(3):
        model(x)
    return model.eval()


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "millions"), [("tiny", 0.2), ("small", 0.67), ("base", 2.0)])
@pytest.mark.parametrize("size", [{"length": 1024}, {"image_size": 32}, {"volume_size": 32}], ids=str)
@pytest.mark.parametrize("mask", ["gaussian", "per_channel"])
def test_parameter_counts(name, millions, size, mask):
    model = create_model(f"sepflexnet_{name}", in_channels=3, num_classes=10, device="meta", mask=mask, **size)
    assert 0.97 * millions < sum(p.numel() for p in model.parameters()) / 1e6 < 1.04 * millions


# --- the computation --------------------------------------------------------------------------------------------------


def reference(model, x):
    """The network in evaluation, step by step."""
    x = F.gelu(model.stem_norm(model.stem(x)))
    for block in model.blocks:
        h = block.mix(F.gelu(block.conv(block.norm(x))))
        x = x + (F.gelu(h) if h.shape == x.shape else h[:, :6] * torch.sigmoid(h[:, 6:]))
    return model.head(model.norm(x).flatten(2).mean(2))


@pytest.mark.parametrize(
    "options",
    [{}, {"mix": "glu"}, {"mask": "per_channel", "small_kernel": 3}, {"norm": "layer"}, {"drop_path": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_computes_what_the_diagram_shows(dims, options):
    x = samples(dims)
    model = trained(network(dims, dropout=0.3, dropout_in=0.2, **options), x)
    assert relative_error(model(x), reference(model, x)) < 1e-5


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_all_parameters_receive_gradients(dims):
    model = network(dims, mix="glu", mask="per_channel", small_kernel=3, dropout=0.1, dropout_in=0.1, drop_path=0.1)
    model(samples(dims, batch=8)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("mask", ["gaussian", "per_channel"])
@pytest.mark.parametrize(("dims", "size"), [(1, 256), (2, 32), (3, 16)])
def test_kernels_start_below_the_nyquist_frequency(dims, size, mask):
    name = next(iter(SIZES[dims]))
    model = SepFlexNet(in_channels=3, num_classes=5, width=8, depth=2, mask=mask, **{name: size})
    for block in model.blocks:
        layer = block.conv.depthwise
        limits = torch.tensor([1 / (2 * axis.spacing) for axis in layer.axes])
        assert (max_frequency(layer) <= 1.01 * limits).all()
    assert alias_report(model, 2).band_limited


def test_dropout_drops_whole_channels():
    model = network(1, dropout=0.5)
    seen = {}
    model.blocks[0].dropout.register_forward_hook(lambda *args: seen.update(y=args[2]))
    model(samples(1, batch=8))
    dropped = (seen["y"] == 0).flatten(2)
    share = dropped.float().mean(2)  # GELU is 0 for few large negative numbers
    assert ((share == 1) | (share < 0.5)).all()
    assert dropped.all(2).any()
    assert not dropped.all(2).all(1).all()


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    torch.manual_seed(0)
    path = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    y = path(x)
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (y.flatten(1).amin(1) == y.flatten(1).amax(1)).all()
    assert y.mean().item() == pytest.approx(1, abs=0.05)
    assert path.eval()(x) is x
    rates = [block.drop_path.p for block in network(1, depth=4, drop_path=0.2).blocks]
    assert rates == pytest.approx([0.05, 0.1, 0.15, 0.2])


# --- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readout", ["last", "every"])
def test_causal_network_streams(readout):
    x = samples(1)
    model = trained(network(1, readout=readout, mask="per_channel", small_kernel=2), x)
    stream = Streaming(model)
    chunks = [stream(part) for part in x.split([5, 1, 18], -1)]
    streamed = torch.cat(chunks, -1) if readout == "every" else chunks[-1]
    assert relative_error(streamed, model(x)) < 1e-4
    with pytest.raises(ArgumentError, match=mentions("readout='mean'")):
        Streaming(network(1))
    with pytest.raises(ArgumentError, match=mentions("mask_channel=True", "stream")):
        Streaming(network(1, readout="last", mask_channel=True))
    with pytest.raises(ArgumentError, match=mentions("same", "causal")):
        Streaming(network(1, causal=False, readout="last"))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("readout", ["mean", "last", "every"])
def test_lengths_equal_shorter_sequences(readout, causal):
    x = samples(1)
    model = trained(network(1, readout=readout, causal=causal), x)
    padded = x.clone()
    padded[0, :, 9:] = torch.nan
    y = model(padded, lengths=torch.tensor([9, 24]))
    alone = model(x[:1, :, :9])[0]
    assert relative_error(y[0, :, :9] if readout == "every" else y[0], alone) < 1e-4
    assert relative_error(y[1], model(x[1:])[0]) < 1e-4
    model.train()
    assert model(padded, lengths=[9, 24]).isfinite().all()


# --- everything around the network ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_resampling_and_materializing(dims):
    x = samples(dims)
    model = trained(network(dims, mask="per_channel"), x)
    finer = at_resolution(model, 2)
    y = finer(x.repeat_interleave(2, -1) if dims == 1 else F.interpolate(x, scale_factor=2))
    assert y.isfinite().all()
    assert trained_size(finer) == tuple(2 * size for size in SAMPLES[dims][1:])
    assert relative_error(at_resolution(finer, 0.5)(x), model(x)) < 1e-4
    assert relative_error(materialize(model)(x), model(x)) < 1e-4


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_saving_and_loading(dims, tmp_path):
    x = samples(dims)
    model = trained(network(dims, mask="per_channel", mix="glu"), x)
    save_pretrained(model, tmp_path / "net")
    again = from_pretrained(tmp_path / "net")
    assert again.config == model.config
    assert relative_error(again(x), model(x)) < 1e-6
    assert SepFlexNet(**model.config).dims == dims
    assert trained_size(again) == SAMPLES[dims][1:]


@pytest.mark.parametrize("dims", [1, 2])
def test_export(dims, tmp_path):
    x = samples(dims)
    model = trained(network(dims, mask="per_channel", small_kernel=3), x)
    export(model, tmp_path / "net.pt2", example=x)
    program = torch.export.load(str(tmp_path / "net.pt2")).module()
    assert relative_error(program(x), model(x)) < 1e-4


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_explorer_page(dims, tmp_path):
    write_page(network(dims, mask="per_channel"), tmp_path / "page.html")
    assert "stem.depthwise" in (tmp_path / "page.html").read_text()


def test_page_can_classify_images():
    program(trained(network(2, mask="per_channel", small_kernel=3), samples(2)), (1, 3, 8, 8))


def test_half_precision_and_penalty():
    model = network(2, mask="per_channel").to(torch.bfloat16).eval()
    assert model(samples(2).to(torch.bfloat16)).dtype == torch.bfloat16
    penalty = alias_penalty(network(1, mask="per_channel", length=100), formula="exact", method="per_kernel")
    assert penalty.item() == 0  # kernels start below the Nyquist frequency
    assert network(2).half().eval().stem.pointwise.weight.dtype == torch.float16


def test_learns():
    torch.manual_seed(0)
    model = SepFlexNet(in_channels=1, num_classes=2, length=32, width=8, depth=2, mask="per_channel")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(40):
        labels = torch.randint(2, (32,))
        phase = torch.rand(32, 1) * 6.28
        x = torch.sin(torch.arange(32) * (0.3 + 0.4 * labels[:, None]) + phase).unsqueeze(1)
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


# --- errors -----------------------------------------------------------------------------------------------------------


def test_wrong_arguments():
    basics = {"in_channels": 3, "num_classes": 5}
    with pytest.raises(TypeError, match=mentions("mask_channel", "'no'")):
        SepFlexNet(**basics, length=8, mask_channel="no")
    with pytest.raises(ArgumentError, match=mentions("'njet'", "per_channel")):
        SepFlexNet(**basics, length=8, generator="njet", mask="per_channel")
    with pytest.raises(TypeError, match=mentions("causal", "'yes'")):
        SepFlexNet(**basics, length=8, causal="yes")
    with pytest.raises(ArgumentError, match=mentions("causal=True", "2")):
        SepFlexNet(**basics, image_size=8, causal=True)
    with pytest.raises(ArgumentError, match=mentions("causal=True", "3")):
        SepFlexNet(**basics, volume_size=8, causal=True)
    with pytest.raises(ArgumentError, match=mentions("length", "image_size")):
        SepFlexNet(**basics, image_size=8, length=9)
    with pytest.raises(ArgumentError, match=mentions("length", "dims=None")):
        SepFlexNet(**basics, kernel_size=9)
    with pytest.raises(ArgumentError, match=mentions("dims=3", "length")):
        SepFlexNet(**basics, length=9, dims=3)
    with pytest.raises(ArgumentError, match=mentions("8", "odd")):
        SepFlexNet(**basics, image_size=8, kernel_size=8)
    with pytest.raises(ArgumentError, match=mentions("last", "2 axes")):
        SepFlexNet(**basics, image_size=8, readout="last")
    with pytest.raises(ArgumentError, match=mentions("mlp", "mix")):
        SepFlexNet(**basics, length=8, mix="mlp")
    with pytest.raises(ArgumentError, match=mentions("largest_sigma", "option of the mask")):
        SepFlexNet(**basics, length=8, mask_options={"largest_sigma": 0.5})
    with pytest.raises(ArgumentError, match=mentions("1.5", "drop_path")):
        SepFlexNet(**basics, length=8, drop_path=1.5)
    with pytest.raises(ArgumentError, match=mentions("lengths", "2 axes")):
        network(2)(samples(2), lengths=[3, 4])
    with pytest.raises(ArgumentError, match=mentions("(2, 3, 6, 6)", "depth, height, width")):
        network(3)(torch.zeros(2, 3, 6, 6))
    assert SepFlexNet(**basics, dims=3, kernel_size=5).stem.depthwise.kernel_size == (5, 5, 5)
    assert isinstance(network(3).norm, nn.BatchNorm3d)


def test_position_counts_if_any_channel_was_observed_there():
    net = SepFlexNet(in_channels=2, num_classes=3, length=16, width=4, depth=1, norm="layer", readout="every").eval()
    x, observed = torch.randn(2, 2, 16), torch.ones(2, 2, 16, dtype=torch.bool)
    observed[0, 0] = False
    _, where = net._stem(x, None, observed)
    assert where.all()
    assert net(x, observed=observed).isfinite().all()


def test_gradients_with_an_empty_sequence_are_finite():
    net = SepFlexNet(in_channels=2, num_classes=3, length=16, width=4, depth=1, norm="layer", readout="every")
    net(torch.randn(3, 2, 16), torch.tensor([0, 9, 16])).sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


@pytest.mark.parametrize("causal", [True, False])
def test_materialized_network_accepts_lengths(causal):
    net = SepFlexNet(in_channels=2, num_classes=3, length=16, width=4, depth=1, causal=causal).eval()
    x, lengths = torch.randn(3, 2, 16), torch.tensor([5, 9, 16])
    torch.testing.assert_close(materialize(net)(x, lengths), net(x, lengths), atol=1e-4, rtol=1e-4)


def test_networks_that_read_what_was_observed_cannot_stream():
    net = SepFlexNet(in_channels=2, num_classes=3, length=16, width=4, depth=1, readout="last", mask_channel=True)
    with pytest.raises(ArgumentError, match=r"SepFlexNet.*mask_channel=True"):
        Streaming(net)
