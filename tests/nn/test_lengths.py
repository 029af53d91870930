"""`lengths=`: a sequence in a padded batch gives what it gives alone, whatever stands behind its end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flexconv import FlexConv1d, GaussianMask
from tests.conftest import relative_error

LENGTHS = [7, 20, 0, 1, 13]
PADDINGS = ["same", "causal", "valid", 2]


def make(padding="same", kernel_size=5, inputs=2, outputs=4, **options):
    """A layer in double precision with a bias that would show where nothing should be."""
    options.setdefault("mask", GaussianMask(1, sigma=0.5))
    layer = FlexConv1d(inputs, outputs, kernel_size, padding=padding, **options).double()
    torch.nn.init.normal_(layer.bias)
    return layer


def batch(lengths=LENGTHS, channels=2, garbage=None):
    """Random sequences; behind their ends, random numbers or `garbage`."""
    x = torch.randn(len(lengths), channels, max(lengths)).double()
    if garbage is not None:
        for row, n in zip(x, lengths, strict=True):
            row[:, n:] = garbage
    return x


# --- equal to the sequence alone --------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    padding=st.sampled_from(["same", "causal", "valid", 0, 1, 3, [(4, 1)]]),
    kernel_size=st.integers(1, 12),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    mean=st.one_of(st.none(), st.floats(-1.0, 1.0)),
    algorithm=st.sampled_from(["auto", "direct", "fft"]),
)
@example([9, 12, 3], "valid", 5, 2, 2, 2, None, "auto")
@example([30, 1, 17], "causal", 12, 3, 2, 1, -1.0, "auto")
def test_a_row_equals_the_layer_on_the_sequence_alone(
    lengths, padding, kernel_size, stride, dilation, groups, mean, algorithm
):
    torch.manual_seed(0)
    if padding == "same":
        kernel_size += 1 - kernel_size % 2
    mask = GaussianMask(1, mean=mean, sigma=0.3)
    layer = make(padding, kernel_size, stride=stride, dilation=dilation, groups=groups, mask=mask, algorithm=algorithm)
    assume(max(lengths) > 0 and layer.output_lengths(torch.tensor(max(lengths))) > 0)
    x = batch(lengths)
    y = layer(x, lengths)
    assert y.shape == layer(x).shape
    for b, (n, size) in enumerate(zip(lengths, layer.output_lengths(torch.tensor(lengths)).tolist(), strict=True)):
        assert not y[b, :, size:].any()  # exactly
        if n and size:
            alone = layer(x[b : b + 1, :, :n])
            assert alone.shape[-1] == size
            assert relative_error(y[b : b + 1, :, :size], alone) <= 1e-10


@pytest.mark.parametrize(
    ("padding", "stride", "dilation", "expected"),
    [
        ("same", 1, 1, [0, 1, 4, 5, 20]),
        ("same", 2, 2, [0, 1, 2, 3, 10]),
        ("causal", 1, 3, [0, 1, 4, 5, 20]),
        ("causal", 3, 1, [0, 1, 2, 2, 7]),
        ("valid", 1, 1, [0, 0, 0, 1, 16]),
        ("valid", 2, 1, [0, 0, 0, 1, 8]),
        ("valid", 1, 2, [0, 0, 0, 0, 12]),
        (1, 1, 1, [0, 0, 2, 3, 18]),
        ([(2, 0)], 2, 1, [0, 0, 1, 2, 9]),
    ],
    ids=str,
)
def test_output_lengths_counts_the_outputs(padding, stride, dilation, expected):
    layer = make(padding, stride=stride, dilation=dilation)
    assert layer.output_lengths(torch.tensor([0, 1, 4, 5, 20])).tolist() == expected
    for n, outputs in zip([1, 4, 5, 20], expected[1:], strict=True):
        if outputs:
            assert layer(torch.randn(1, 2, n).double()).shape[-1] == outputs


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_a_sequence_of_length_0_is_all_zero(padding):
    y = make(padding)(batch([0, 9]), [0, 9])
    assert not y[0].any()
    assert y[1].all()


def test_full_lengths_change_nothing():
    layer, x = make(), batch()
    assert torch.equal(layer(x, [x.shape[-1]] * len(x)), layer(x))


@pytest.mark.parametrize(
    "convert",
    [list, tuple, torch.tensor, *(lambda v, t=t: torch.tensor(v, dtype=t) for t in (torch.int32, torch.int16))],
    ids=["list", "tuple", "int64", "int32", "int16"],
)
def test_lengths_may_be_a_list_or_an_integer_tensor(convert):
    layer, x = make(), batch()
    expected = layer(x, torch.tensor(LENGTHS))
    assert torch.equal(layer(x, convert(LENGTHS)), expected)


@pytest.mark.parametrize(
    ("dtype", "padding", "stride"),
    [(torch.uint8, "valid", 1), (torch.uint8, "causal", 2), (torch.int8, 60, 1)],
    ids=["uint8 below 0", "uint8 below 0, stride", "int8 above 127"],
)
def test_short_integers_do_not_overflow(dtype, padding, stride):
    layer, lengths = make(padding, stride=stride), [0, 2, 100]
    x = batch(lengths)
    long, short = torch.tensor(lengths), torch.tensor(lengths, dtype=dtype)
    assert layer.output_lengths(short).tolist() == layer.output_lengths(long).tolist()
    assert torch.equal(layer(x, short), layer(x, long))


def test_an_empty_batch_has_an_empty_list_of_lengths():
    x = torch.randn(0, 2, 9).double()
    assert make()(x, torch.zeros(0, dtype=torch.int64)).shape == (0, 4, 9)
    assert make()(x, []).shape == (0, 4, 9)


# --- garbage behind the end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e300], ids=str)
def test_garbage_behind_the_end_changes_neither_outputs_nor_gradients(garbage, padding, algorithm):
    layer = make(padding, stride=2, groups=2, algorithm=algorithm)
    clean = batch(garbage=0.0)
    behind = torch.arange(clean.shape[-1]) >= torch.tensor(LENGTHS)[:, None, None]
    behind = behind.expand_as(clean)
    results = []
    for x in (clean, torch.where(behind, garbage, clean)):
        x.requires_grad_(True)
        y = layer(x, LENGTHS)
        gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        results.append([y, *gradients])
        assert all(tensor.isfinite().all() for tensor in results[-1])
        assert torch.equal(gradients[0][behind], torch.zeros_like(gradients[0][behind]))
        assert gradients[0][~behind].any()
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_a_gradient_that_arrives_behind_the_end_goes_nowhere():
    layer, x = make(), batch(garbage=float("nan")).requires_grad_(True)
    y = layer(x, LENGTHS)
    behind = torch.arange(y.shape[-1]) >= torch.tensor(LENGTHS)[:, None, None]
    gradients = torch.autograd.grad(y, [x, *layer.parameters()], behind.expand_as(y).double())
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_compiled_code_hides_the_padding_too(padding):
    layer = make(padding)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for lengths in (torch.tensor(LENGTHS), torch.tensor([20, 5, 6, 19, 2])):
        x = batch(lengths.tolist(), garbage=float("nan")).requires_grad_(True)
        results = []
        for run in (layer, compiled):
            y = run(x, lengths)
            results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
        for eager, traced in zip(*results, strict=True):
            assert relative_error(traced, eager) <= 1e-10
        assert torch.equal(results[0][0] == 0, results[1][0] == 0)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([5, 21], ValueError, "between 0 and the batch's length 20; got 21"),
        (torch.tensor([5, -1]), ValueError, "between 0 and the batch's length 20; got -1"),
        ([5], ValueError, r"one number per sequence .* got lengths of shape \(1,\) for an input of shape \(2, 2, 20\)"),
        ([5, 6, 7], ValueError, r"got lengths of shape \(3,\)"),
        (torch.tensor(5), ValueError, r"got lengths of shape \(\)"),
        (torch.tensor([[5, 6]]), ValueError, r"got lengths of shape \(1, 2\)"),
        ([5.0, 6.0], TypeError, "lengths must be integers; got torch.float32"),
        (torch.tensor([0.5, 1.0]).double(), TypeError, "lengths must be integers; got torch.float64"),
        ([True, False], TypeError, "lengths must be integers; got torch.bool"),
    ],
    ids=str,
)
def test_lengths_that_do_not_describe_the_batch_are_refused(lengths, error, message):
    with pytest.raises(error, match=message):
        make()(batch([20, 20]), lengths)


def test_lengths_of_an_unbatched_input_are_refused():
    with pytest.raises(ValueError, match=r"for an input of shape \(2, 20\)"):
        make()(torch.randn(2, 20).double(), [20, 20])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_lengths_with_another_padding_mode_are_refused(mode):
    with pytest.raises(ValueError, match=f"lengths needs padding_mode='zeros'; this layer has '{mode}'"):
        make(padding_mode=mode)(batch([20, 20]), [20, 10])


def test_lengths_without_numbers_to_read():
    layer, x, lengths = make(), batch([20, 20]), torch.tensor([20, 7])
    pairs = torch.func.vmap(layer)(x.unsqueeze(1), lengths.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(pairs, layer(x, lengths))
    assert make(device="meta")(x.to("meta"), lengths.to("meta")).shape == (2, 4, 20)
