"""A network as it is used without flexconv: the preprocessing before it, and softmax after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._arguments import unknown_name
from ..audio import N_MFCC, hop_length
from ..errors import ArgumentError
from ..models import Inputs, trained_size
from ._report import ExportError

OUTPUTS = ("probabilities", "logits")
PIXELS = 255  # the largest 8-bit pixel
FULL_SCALE = 2**15  # of 16-bit audio samples


class Standalone(nn.Module):
    """Computes model(inputs(raw)) or model(inputs(raw), lengths), with softmax over axis 1 if requested.

    Preprocessing and softmax are computed in float32, also if the model is in float16.

    Arguments:
        model: the network.
        inputs: the preprocessing of the first argument; None if it is standardized already.
        probabilities: whether to apply softmax to the output of the model.

    """

    def __init__(self, model: nn.Module, inputs: Inputs | None, *, probabilities: bool) -> None:
        super().__init__()
        self.model, self.inputs, self.probabilities = model, inputs, probabilities
        self.in_float16 = False

    def forward(self, input: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:  # noqa: A002
        x = input if self.inputs is None else self.inputs(input)
        if self.in_float16:
            x = x.half()
        logits = self.model(x) if lengths is None else self.model(x, lengths)
        if self.in_float16:
            logits = pytree.tree_map_only(torch.Tensor, _to_float32, logits)
        if not self.probabilities:
            return logits
        if not isinstance(logits, torch.Tensor) or logits.ndim < 2:
            raise ExportError(
                f"probabilities are computed from one tensor [batch, classes, …], which {type(self.model).__name__} "
                f"does not return: use output='logits' to export what it returns"
            )
        return logits.softmax(1)


def _to_float32(output: torch.Tensor) -> torch.Tensor:
    return output.float() if output.is_floating_point() else output


def to_float16(network: nn.Module) -> Standalone:
    """Convert a network to float16, in place, so that its inputs and outputs stay float32."""
    whole = network if isinstance(network, Standalone) else Standalone(network, None, probabilities=False).eval()
    whole.model.half()
    whole.in_float16 = True
    return whole


def inputs_at(model: nn.Module, scale: float | Sequence[float] | None) -> Inputs | None:
    """`model.inputs` for samples with `scale` times as many values per axis; None if the model has none."""
    inputs = getattr(model, "inputs", None)
    if not isinstance(inputs, Inputs):
        return None
    size = trained_size(model) or inputs.size
    scales = tuple(scale) if isinstance(scale, Sequence) else (scale or 1.0,) * len(size)
    new = tuple(max(1, round(n * by)) for n, by in zip(size, scales, strict=True))
    return replace(inputs, size=new, rate=None if inputs.rate is None else round(inputs.rate * scales[0]))


def included_preprocessing(inputs: Inputs | None, wanted: bool | None, *, name: str, resampled: bool) -> Inputs | None:
    """The preprocessing that the file shall contain. `wanted` is True, False, or None to include it if it is known."""
    if wanted is False or (wanted is None and inputs is None):
        return None
    if inputs is None:
        raise ArgumentError(
            f"{name} has no statistics of its training data, so the file cannot standardize its inputs: set "
            f"model.inputs to a flexconv.models.Inputs, or use --no-preprocessing (preprocessing=False)"
        )
    if resampled and (inputs.mfcc_rate is not None or inputs.images is not None):
        kind = "MFCCs" if inputs.images is None else "images as series"
        raise ArgumentError(
            f"{name} was trained on {kind}, whose resolution cannot be changed: leave out --resolution (scale), or use "
            f"--no-preprocessing (preprocessing=False)"
        )
    return inputs


def output_of(requested: str | None, preprocessing: Inputs | None) -> str | None:
    """What the file returns: "probabilities", "logits", or None for what the model returns, whatever it is."""
    if requested is not None and requested not in OUTPUTS:
        unknown_name("output", requested, OUTPUTS)
    return requested or (None if preprocessing is None else "probabilities")


def check_classes(inputs: Inputs, output: torch.Tensor) -> None:
    """Raise an error unless there is a name for each class."""
    if output.ndim < 2 or output.shape[1] != len(inputs.classes):
        raise ArgumentError(
            f"inputs.classes has {len(inputs.classes)} names, but the network returns {list(output.shape)}: one name "
            f"per class is needed, in the order of the logits"
        )


# --- raw samples ------------------------------------------------------------------------------------------------------


def raw_dtype(inputs: Inputs) -> torch.dtype:
    """The dtype of raw samples: uint8 for 8-bit pixels, int16 for 16-bit audio, float32 for other values."""
    return {PIXELS: torch.uint8, FULL_SCALE: torch.int16}.get(round(1 / inputs.scale), torch.float32)


def raw_range(inputs: Inputs) -> tuple[int, int] | None:
    """The smallest and the largest raw value; None for series, whose values have no limits."""
    largest, pixels = round(1 / inputs.scale), len(inputs.size) > 1 or inputs.images is not None
    if largest == FULL_SCALE:
        return -FULL_SCALE, FULL_SCALE - 1
    return (0, largest) if largest == PIXELS or (pixels and largest > 1) else None


def raw_shape(inputs: Inputs) -> tuple[int, ...]:
    """The shape [channels, *size] of a raw sample: an image, a series, or the wave that MFCCs are computed from."""
    channels, images = len(inputs.mean), inputs.images
    if images is not None:
        return (channels if images.steps == "pixels" else channels // images.size[1], *images.size)
    if inputs.mfcc_rate is None:
        return (channels, *inputs.size)
    return (channels // N_MFCC, (inputs.size[0] - 1) * hop_length(inputs.mfcc_rate))


def has_one_size(inputs: Inputs | None, example: torch.Tensor) -> bool:
    """Whether raw samples must have the size of the example: images that become series."""
    return inputs is not None and inputs.images is not None and example.ndim == 4


def raw_noise(inputs: Inputs, shape: tuple[int, ...]) -> torch.Tensor:
    """Random raw samples of a shape [batch, channels, *size], to trace the network and to compare the file with it."""
    random, limits = torch.Generator().manual_seed(0), raw_range(inputs)
    if limits is not None:
        low, high = limits
        return (low + torch.rand(shape, generator=random) * (high - low)).round().to(raw_dtype(inputs))
    mean, std = (sum(values) / len(values) for values in (inputs.mean, inputs.std))
    return (torch.randn(shape, generator=random) * std + mean) / inputs.scale
