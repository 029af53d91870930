"""FlexTCN: causal, streamable, for sequences of any length and of several lengths in a batch."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flexconv.models import FlexTCN
from flexconv.models._norm import normalise
from flexconv.models.flextcn import _mean
from flexconv.testing import assert_causal, assert_streaming_matches
from tests.conftest import relative_error

LENGTHS = [7, 20, 1, 13]


def make(**options):
    options = {"in_channels": 2, "num_classes": 3, "length": 20, "widths": [4, 5], "dropout": 0.0} | options
    model = FlexTCN(**options, mask_options={"sigma": 0.4}).double()
    for module in model.modules():  # statistics and scales that would show where nothing should be
        if isinstance(module, nn.BatchNorm1d):
            nn.init.normal_(module.running_mean)
        if isinstance(module, nn.BatchNorm1d | nn.GroupNorm):
            nn.init.normal_(module.bias)
    return model.eval()


def batch(garbage=None, lengths=LENGTHS):
    x = torch.randn(len(lengths), 2, max(lengths)).double()
    if garbage is not None:
        for row, n in zip(x, lengths, strict=True):
            row[:, n:] = garbage
    return x


# --- time -------------------------------------------------------------------------------------------------------------


def test_it_looks_back_only():
    assert_causal(make(readout="every"), batch()[:2])


@pytest.mark.parametrize("chunks", [1, 7, [3, 12, 5]])
@pytest.mark.parametrize("readout", ["last", "every"])
def test_it_streams(readout, chunks):
    assert_streaming_matches(make(readout=readout), batch(), chunks, rtol=1e-10)


def test_the_last_step_of_every_step_is_the_last():
    every, x = make(readout="every"), batch()
    last = FlexTCN(**every.config | {"readout": "last"}).double().eval()
    last.load_state_dict(every.state_dict())
    y = every(x)
    assert y.shape == (4, 3, 20)
    torch.testing.assert_close(last(x), y[..., -1])
    mean = FlexTCN(**every.config | {"readout": "mean"}).double().eval()
    mean.load_state_dict(every.state_dict())
    torch.testing.assert_close(mean(x), y.mean(-1))


@pytest.mark.parametrize("length", [1, 2, 19, 21, 60])
def test_sequences_of_any_length(length):
    assert make()(torch.randn(2, 2, length).double()).shape == (2, 3)


# --- several lengths in a batch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [None, 1e30, float("nan"), float("inf")])
@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("readout", ["last", "mean", "every"])
def test_a_sequence_gives_what_it_gives_alone(readout, norm, algorithm, garbage):
    model, x = make(readout=readout, norm=norm, algorithm=algorithm), batch(garbage)
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
def test_whole_lengths_change_nothing(readout, norm):
    for training in (False, True):
        model = make(readout=readout, norm=norm).train(training)
        twin, x = copy.deepcopy(model), batch()
        assert relative_error(model(x, [20] * 4), twin(x)) < 1e-12
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(a, b)


def test_lengths_may_be_any_integers():
    model, x = make(norm="layer", widths=[9]), batch()  # 9 · 20 does not fit into 8 bits
    truth = model(x, LENGTHS)
    for dtype in (torch.int8, torch.int32, torch.uint8, torch.int64):
        assert torch.equal(model(x, torch.tensor(LENGTHS, dtype=dtype)), truth)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_statistics_are_those_without_padding(momentum):
    """As if the sequences stood behind each other in one long one."""
    norm, twin = (nn.BatchNorm1d(2, momentum=momentum).double() for _ in range(2))
    for _ in range(3):
        x = batch().requires_grad_()
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


def test_statistics_of_half_precision_are_kept_in_full():
    norm, x = nn.BatchNorm1d(2), batch().float()
    truth = normalise(copy.deepcopy(norm), x, torch.tensor(LENGTHS))
    result = normalise(norm, x.bfloat16(), torch.tensor(LENGTHS))
    assert result.dtype == torch.bfloat16
    assert relative_error(result, truth) < 1e-2
    assert norm.running_mean.dtype == torch.float32


def test_means_over_long_sequences_do_not_overflow():
    assert _mean(torch.full((1, 1, 3000), 60.0).half(), torch.tensor([2500])).item() == 60


def test_a_network_trains_on_lengths():
    model, x = make().train(), batch(float("nan"))
    model(x, LENGTHS).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_it_compiles_with_lengths():
    model, x, lengths = make(widths=[4]), batch(), torch.tensor(LENGTHS)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, lengths), model(x, lengths))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([7, 20, 1], ValueError, "one number per sequence"),
        ([7, 21, 1, 1], ValueError, "between 0 and the batch's length 20; got 21"),
        ([7, -1, 1, 1], ValueError, "between 0 and the batch's length 20; got -1"),
        ([7, 0, 1, 1], ValueError, "lengths must be at least 1 for readout='last'; got 0"),
        ([7.0, 1.0, 1.0, 1.0], TypeError, "lengths must be integers"),
    ],
)
def test_wrong_lengths_are_refused(lengths, error, message):
    with pytest.raises(error, match=message):
        make()(batch(), lengths)


def test_every_step_of_an_empty_sequence_is_nothing():
    y = make(readout="every")(batch(), [0, 20, 3, 1])
    assert not y[0].any()
    assert y.isfinite().all()


def test_no_time_steps_are_refused():
    with pytest.raises(ValueError, match="readout='last' needs at least one time step"):
        make()(torch.randn(2, 2, 0).double())


def test_norms_that_know_no_lengths_are_refused():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(make())
    assert model(batch(), LENGTHS).shape == (4, 3)  # in eval mode it is pointwise
    with pytest.raises(TypeError, match="lengths needs a BatchNorm1d or a GroupNorm; this model has a SyncBatchNorm"):
        model.train()(batch(), LENGTHS)


def test_masks_start_wide_and_options_leave_that_be():
    def sigma(**options):
        model = FlexTCN(in_channels=1, num_classes=2, length=50, widths=(4,), **options)
        return model.blocks[0].conv1.mask.sigma.item()

    assert sigma() == sigma(mask_options={"threshold": 0.2}) == pytest.approx(0.354)
    assert sigma(mask_options={"sigma": 0.2}) == pytest.approx(0.2)
