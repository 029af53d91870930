"""`lengths=`: each sequence of a padded batch has the output that it has alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flexconv import FlexConv1d, GaussianMask
from tests.conftest import mentions, relative_error

LENGTHS = [7, 20, 0, 1, 13]
PADDINGS = ["same", "causal", "valid", 2]


def make_layer(padding="same", kernel_size=5, inputs=2, outputs=4, **options):
    """Return a layer in float64 with a random bias, so that outputs in the padding would not be 0.

    All of its parameters require gradients.
    """
    options.setdefault("mask", GaussianMask(1, sigma=0.5))
    layer = FlexConv1d(inputs, outputs, kernel_size, padding=padding, **options).double().requires_grad_()
    torch.nn.init.normal_(layer.bias)
    return layer


def make_batch(lengths=LENGTHS, channels=2, padding_value=None):
    """Return random sequences, padded with random numbers or with `padding_value`."""
    x = torch.randn(len(lengths), channels, max(lengths)).double()
    if padding_value is not None:
        for row, n in zip(x, lengths, strict=True):
            row[:, n:] = padding_value
    return x


# --- outputs ----------------------------------------------------------------------------------------------------------


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
def test_output_equals_output_of_each_sequence_alone(
    lengths, padding, kernel_size, stride, dilation, groups, mean, algorithm
):
    torch.manual_seed(0)
    if padding == "same":
        kernel_size += 1 - kernel_size % 2
    mask = GaussianMask(1, mean=mean, sigma=0.3)
    layer = make_layer(
        padding, kernel_size, stride=stride, dilation=dilation, groups=groups, mask=mask, algorithm=algorithm
    )
    assume(max(lengths) > 0 and layer.output_lengths(torch.tensor(max(lengths))) > 0)
    x = make_batch(lengths)
    y = layer(x, lengths)
    assert y.shape == layer(x).shape
    for b, (n, size) in enumerate(zip(lengths, layer.output_lengths(torch.tensor(lengths)).tolist(), strict=True)):
        assert not y[b, :, size:].any()
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
def test_output_lengths_equal_number_of_outputs(padding, stride, dilation, expected):
    layer = make_layer(padding, stride=stride, dilation=dilation)
    assert layer.output_lengths(torch.tensor([0, 1, 4, 5, 20])).tolist() == expected
    for n, outputs in zip([1, 4, 5, 20], expected[1:], strict=True):
        if outputs:
            assert layer(torch.randn(1, 2, n).double()).shape[-1] == outputs


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_output_of_empty_sequence_is_zero(padding):
    y = make_layer(padding)(make_batch([0, 9]), [0, 9])
    assert not y[0].any()
    assert y[1].all()


def test_full_lengths_do_not_change_output():
    layer, x = make_layer(), make_batch()
    assert torch.equal(layer(x, [x.shape[-1]] * len(x)), layer(x))


@pytest.mark.parametrize(
    "convert",
    [list, tuple, torch.tensor, *(lambda v, t=t: torch.tensor(v, dtype=t) for t in (torch.int32, torch.int16))],
    ids=["list", "tuple", "int64", "int32", "int16"],
)
def test_lengths_can_be_list_or_integer_tensor(convert):
    layer, x = make_layer(), make_batch()
    expected = layer(x, torch.tensor(LENGTHS))
    assert torch.equal(layer(x, convert(LENGTHS)), expected)


@pytest.mark.parametrize(
    ("dtype", "padding", "stride"),
    [(torch.uint8, "valid", 1), (torch.uint8, "causal", 2), (torch.int8, 60, 1)],
    ids=["uint8 below 0", "uint8 below 0 with stride", "int8 above 127"],
)
def test_lengths_of_small_integer_types_do_not_overflow(dtype, padding, stride):
    layer, lengths = make_layer(padding, stride=stride), [0, 2, 100]
    x = make_batch(lengths)
    long, short = torch.tensor(lengths), torch.tensor(lengths, dtype=dtype)
    assert layer.output_lengths(short).tolist() == layer.output_lengths(long).tolist()
    assert torch.equal(layer(x, short), layer(x, long))


def test_empty_batch_accepts_empty_lengths():
    x = torch.randn(0, 2, 9).double()
    assert make_layer()(x, torch.zeros(0, dtype=torch.int64)).shape == (0, 4, 9)
    assert make_layer()(x, []).shape == (0, 4, 9)


# --- values in the padding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["direct", "fft"])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("padding_value", [float("nan"), float("inf"), -float("inf"), 1e300], ids=str)
def test_padding_values_change_neither_outputs_nor_gradients(padding_value, padding, algorithm):
    layer = make_layer(padding, stride=2, groups=2, algorithm=algorithm)
    clean = make_batch(padding_value=0.0)
    is_padding = torch.arange(clean.shape[-1]) >= torch.tensor(LENGTHS)[:, None, None]
    is_padding = is_padding.expand_as(clean)
    results = []
    for x in (clean, torch.where(is_padding, padding_value, clean)):
        x.requires_grad_(True)
        y = layer(x, LENGTHS)
        gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        results.append([y, *gradients])
        assert all(tensor.isfinite().all() for tensor in results[-1])
        assert torch.equal(gradients[0][is_padding], torch.zeros_like(gradients[0][is_padding]))
        assert gradients[0][~is_padding].any()
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_gradient_of_padding_outputs_is_discarded():
    layer, x = make_layer(), make_batch(padding_value=float("nan")).requires_grad_(True)
    y = layer(x, LENGTHS)
    is_padding = torch.arange(y.shape[-1]) >= torch.tensor(LENGTHS)[:, None, None]
    gradients = torch.autograd.grad(y, [x, *layer.parameters()], is_padding.expand_as(y).double())
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("padding", ["same", "causal", "valid"])
def test_compiled_code_ignores_padding(padding):
    layer = make_layer(padding)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for lengths in (torch.tensor(LENGTHS), torch.tensor([20, 5, 6, 19, 2])):
        x = make_batch(lengths.tolist(), padding_value=float("nan")).requires_grad_(True)
        results = []
        for run in (layer, compiled):
            y = run(x, lengths)
            results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
        for eager, traced in zip(*results, strict=True):
            assert relative_error(traced, eager) <= 1e-10
        assert torch.equal(results[0][0] == 0, results[1][0] == 0)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "error", "parts"),
    [
        ([5, 21], ValueError, ["lengths", "20", "21"]),
        (torch.tensor([5, -1]), ValueError, ["lengths", "20", "-1"]),
        ([5], ValueError, ["lengths", "(1,)", "(2, 2, 20)"]),
        ([5, 6, 7], ValueError, ["lengths", "(3,)"]),
        (torch.tensor(5), ValueError, ["lengths", "()"]),
        (torch.tensor([[5, 6]]), ValueError, ["lengths", "(1, 2)"]),
        ([5.0, 6.0], TypeError, ["lengths", "integer", "torch.float32"]),
        (torch.tensor([0.5, 1.0]).double(), TypeError, ["lengths", "integer", "torch.float64"]),
        ([True, False], TypeError, ["lengths", "integer", "torch.bool"]),
    ],
    ids=str,
)
def test_invalid_lengths_raise(lengths, error, parts):
    with pytest.raises(error, match=mentions(*parts)):
        make_layer()(make_batch([20, 20]), lengths)


def test_lengths_of_unbatched_input_raise():
    with pytest.raises(ValueError, match=mentions("lengths", "(2, 20)")):
        make_layer()(torch.randn(2, 20).double(), [20, 20])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_lengths_with_other_padding_mode_raise(mode):
    with pytest.raises(ValueError, match=mentions("lengths", "padding_mode", mode)):
        make_layer(padding_mode=mode)(make_batch([20, 20]), [20, 10])


def test_lengths_work_inside_vmap_and_on_meta_device():
    layer, x, lengths = make_layer(), make_batch([20, 20]), torch.tensor([20, 7])
    result = torch.func.vmap(layer)(x.unsqueeze(1), lengths.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(result, layer(x, lengths))
    assert make_layer(device="meta")(x.to("meta"), lengths.to("meta")).shape == (2, 4, 20)
