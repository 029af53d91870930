"""FlexTCN: causality, streaming, readouts, and batches of sequences with different lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flexconv.models import FlexTCN
from flexconv.models._norm import normalise
from flexconv.models._readout import mean_over_positions
from flexconv.testing import assert_causal, assert_streaming_matches
from tests.conftest import mentions, relative_error

LENGTHS = [7, 20, 1, 13]


def make_model(**options):
    options = {"in_channels": 2, "num_classes": 3, "length": 20, "widths": [4, 5], "dropout": 0.0} | options
    model = FlexTCN(**options, mask_options={"sigma": 0.4}).double()
    for module in model.modules():  # so that outputs in the padding would not be 0
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean)
        if isinstance(module, nn.BatchNorm1d | nn.GroupNorm):
            nn.init.normal_(module.bias)
    return model.eval()


def make_batch(padding_value=None, lengths=LENGTHS):
    """Return random sequences, padded with random numbers or with `padding_value`."""
    x = torch.randn(len(lengths), 2, max(lengths)).double()
    if padding_value is not None:
        for row, n in zip(x, lengths, strict=True):
            row[:, n:] = padding_value
    return x


# --- causality, streaming and readouts --------------------------------------------------------------------------------


def test_network_is_causal():
    assert_causal(make_model(readout="every"), make_batch()[:2])


@pytest.mark.parametrize("chunks", [1, 7, [3, 12, 5]])
@pytest.mark.parametrize("readout", ["last", "every"])
def test_network_streams(readout, chunks):
    assert_streaming_matches(make_model(readout=readout), make_batch(), chunks, rtol=1e-10)


def test_readouts_last_and_mean_equal_readout_every():
    every, x = make_model(readout="every"), make_batch()
    last = FlexTCN(**every.config | {"readout": "last"}).double().eval()
    last.load_state_dict(every.state_dict())
    y = every(x)
    assert y.shape == (4, 3, 20)
    torch.testing.assert_close(last(x), y[..., -1])
    mean = FlexTCN(**every.config | {"readout": "mean"}).double().eval()
    mean.load_state_dict(every.state_dict())
    torch.testing.assert_close(mean(x), y.mean(-1))


@pytest.mark.parametrize("length", [1, 2, 19, 21, 60])
def test_network_accepts_sequences_of_other_lengths(length):
    assert make_model()(torch.randn(2, 2, length).double()).shape == (2, 3)


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_value", [None, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("readout", ["last", "mean", "every"])
def test_output_equals_output_of_each_sequence_alone(readout, norm, algorithm, padding_value):
    model, x = make_model(readout=readout, norm=norm, algorithm=algorithm), make_batch(padding_value)
    y = model(x, LENGTHS)
    for row, n in enumerate(LENGTHS):
        alone = model(x[row : row + 1, :, :n])[0]
        if readout == "every":
            assert not y[row, :, n:].any()
            assert relative_error(y[row, :, :n], alone) < 1e-9
        else:
            assert relative_error(y[row], alone) < 1e-9


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("readout", ["last", "mean", "every"])
def test_full_lengths_do_not_change_output_or_statistics(readout, norm):
    for training in (False, True):
        model = make_model(readout=readout, norm=norm).train(training)
        twin, x = copy.deepcopy(model), make_batch()
        assert relative_error(model(x, [20] * 4), twin(x)) < 1e-12
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_lengths_can_have_any_integer_dtype():
    model, x = make_model(norm="layer", widths=[9]), make_batch()  # 9 · 20 overflows 8 bits
    truth = model(x, LENGTHS)
    for dtype in (torch.int8, torch.int32, torch.uint8, torch.int64):
        assert torch.equal(model(x, torch.tensor(LENGTHS, dtype=dtype)), truth)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_statistics_exclude_padding(momentum):
    """Batch norm gives the same result for the sequences concatenated into one."""
    norm, twin = (nn.BatchNorm1d(2, momentum=momentum).double() for _ in range(2))
    for _ in range(3):
        x = make_batch().requires_grad_()
        whole = torch.cat([row[:, :n] for row, n in zip(x, LENGTHS, strict=True)], 1).detach().requires_grad_()
        truth = twin(whole.unsqueeze(0))[0]
        result = normalise(norm, x, torch.tensor(LENGTHS))
        inside = torch.cat([row[:, :n] for row, n in zip(result, LENGTHS, strict=True)], 1)
        torch.testing.assert_close(inside, truth)
        weights = torch.randn_like(truth)
        (inside * weights).sum().backward()
        (truth * weights).sum().backward()
        gradient = torch.cat([row[:, :n] for row, n in zip(x.grad, LENGTHS, strict=True)], 1)
        torch.testing.assert_close(gradient, whole.grad)
        for a, b in zip(norm.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_batch_norm_statistics_of_half_precision_are_float32():
    norm, x = nn.BatchNorm1d(2), make_batch().float()
    truth = normalise(copy.deepcopy(norm), x, torch.tensor(LENGTHS))
    result = normalise(norm, x.bfloat16(), torch.tensor(LENGTHS))
    assert result.dtype == torch.bfloat16
    assert relative_error(result, truth) < 1e-2
    assert norm.running_mean.dtype == torch.float32


def test_mean_over_long_sequence_does_not_overflow_float16():
    assert mean_over_positions(torch.full((1, 1, 3000), 60.0).half(), torch.tensor([2500])).item() == 60


def test_gradients_with_lengths_are_finite():
    model, x = make_model().train(), make_batch(float("nan"))
    model(x, LENGTHS).square().sum().backward()
    learned = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned)


def test_network_compiles_with_lengths():
    model, x, lengths = make_model(widths=[4]), make_batch(), torch.tensor(LENGTHS)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, lengths), model(x, lengths))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error", "parts"),
    [
        ([7, 20, 1], ValueError, ["lengths", "(3,)"]),
        ([7, 21, 1, 1], ValueError, ["lengths", "20", "21"]),
        ([7, -1, 1, 1], ValueError, ["lengths", "20", "-1"]),
        ([7, 0, 1, 1], ValueError, ["lengths", "readout='last'", "0"]),
        ([7.0, 1.0, 1.0, 1.0], TypeError, ["lengths", "integer", "torch.float32"]),
    ],
)
def test_invalid_lengths_raise(lengths, error, parts):
    with pytest.raises(error, match=mentions(*parts)):
        make_model()(make_batch(), lengths)


def test_readout_every_of_empty_sequence_is_zero():
    y = make_model(readout="every")(make_batch(), [0, 20, 3, 1])
    assert not y[0].any()
    assert y.isfinite().all()


def test_input_without_time_steps_raises():
    with pytest.raises(ValueError, match=mentions("readout='last'", "(2, 2, 0)")):
        make_model()(torch.randn(2, 2, 0).double())


def test_norm_that_does_not_support_lengths_raises():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(make_model())
    assert model(make_batch(), LENGTHS).shape == (4, 3)  # pointwise in eval mode
    with pytest.raises(TypeError, match=mentions("lengths", "SyncBatchNorm")):
        model.train()(make_batch(), LENGTHS)


def test_mask_options_keep_default_sigma():
    def initial_sigma(**options):
        model = FlexTCN(in_channels=1, num_classes=2, length=50, widths=(4,), **options)
        return model.blocks[0].conv1.mask.sigma.item()

    assert initial_sigma() == initial_sigma(mask_options={"threshold": 0.2}) == pytest.approx(0.354)
    assert initial_sigma(mask_options={"sigma": 0.2}) == pytest.approx(0.2)
