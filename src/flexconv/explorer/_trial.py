"""What the page needs to classify images or series: the network as a program, its preprocessing, and some samples."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..data import resize_images
from ..models import Inputs, Model
from ._program import UnsupportedError, program

MAX_SAMPLES = 24
WHITE = 255.0


def trial(model: nn.Module, samples: torch.Tensor | None, labels: Sequence[int] | None) -> dict[str, Any] | None:
    """The part of the page that classifies images or series; None if the network has no such inputs.

    {"kind": "images", "size": [height, width], "mean", "std": [per channel], "peak": the value of a white pixel before
     it is standardized, "classes": [names], "program": see `program`, or None, "reason": why there is no program,
     "samples": [{"pixels": base64 of uint8 [C, H, W], "label": index or None, "logits": [per class]}]}

    Series have the kind "series", the size [length], "scale", "rate" and "varying" of `Inputs` instead of the peak, and
    samples with "values", base64 of float32 [C, L], instead of pixels.
    """
    inputs = getattr(model, "inputs", None)
    if not isinstance(model, Model) or not isinstance(inputs, Inputs):
        return None
    pictures, series = _are_images(inputs), _are_series(inputs)
    if not pictures and not series:
        return None
    size = image_size(model, inputs)
    steps, reason = None, None
    try:
        steps = program(model, (1, len(inputs.mean), *size))
    except UnsupportedError as error:
        reason = str(error)
    stored = _samples if pictures else _series_samples
    rate = None if inputs.rate is None else round(inputs.rate * model.resolution[0])
    own = (
        {"peak": _peak(inputs)} if pictures else {"scale": inputs.scale, "rate": rate, "varying": bool(inputs.varying)}
    )
    return {
        "kind": "images" if pictures else "series",
        "size": size,
        "mean": list(inputs.mean),
        "std": list(inputs.std),
        **own,
        "classes": list(inputs.classes),
        "program": steps,
        "reason": reason,
        "samples": [] if samples is None else stored(model, inputs, samples[:MAX_SAMPLES], labels),
    }


def image_size(model: Model, inputs: Inputs) -> list[int]:
    """The size of the samples for which a network was trained, at its present resolution."""
    return [round(n * scale) for n, scale in zip(inputs.size, model.resolution, strict=True)]


def resized(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
    """Raw samples in the size for which a network was trained, if they are images."""
    inputs = getattr(model, "inputs", None)
    if not isinstance(model, Model) or not isinstance(inputs, Inputs) or not _are_images(inputs):
        return samples
    height, width = image_size(model, inputs)
    return resize_images(samples, (height, width))


def _are_images(inputs: Inputs) -> bool:
    """Whether a network takes gray or color images in a known range of values."""
    pictures = len(inputs.size) == 2 and len(inputs.mean) in (1, 3) and inputs.mfcc_rate is None
    return pictures and _peak(inputs) is not None


def _are_series(inputs: Inputs) -> bool:
    """Whether a network takes series as they are, and not those of images or MFCCs."""
    return len(inputs.size) == 1 and inputs.mfcc_rate is None and inputs.images is None


def _peak(inputs: Inputs) -> float | None:
    """raw · scale of a white pixel: 1 for scaled data. Of unscaled data only the statistics are known; None if they are
    possible neither for values on [0, 1] nor for values on [0, 255], that is, unless std² ≤ mean · (peak − mean).
    """
    if inputs.scale != 1:
        return 1.0
    for peak, lowest in ((1.0, 0.0), (WHITE, 2.0)):  # standardized data may have a mean just above 0
        statistics = zip(inputs.mean, inputs.std, strict=True)
        if all(lowest <= mean <= peak and std**2 <= mean * (peak - mean) for mean, std in statistics):
            return peak
    return None


@torch.no_grad()
def _samples(model: Model, inputs: Inputs, samples: torch.Tensor, labels: Sequence[int] | None) -> list[dict[str, Any]]:
    """The samples as 8-bit pixels, and the logits of the network for these pixels."""
    peak = _peak(inputs) or 1.0
    pixels = (samples.double() * inputs.scale / peak * WHITE).round().clamp(0, WHITE)
    shape = (-1, 1, 1)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(shape) for values in (inputs.mean, inputs.std))
    logits = _logits(model, (pixels / WHITE * peak - mean) / std)
    return [
        {
            "pixels": base64.b64encode(image.to(torch.uint8).numpy().tobytes()).decode("ascii"),
            "label": None if labels is None else int(labels[index]),
            "logits": logits[index],
        }
        for index, image in enumerate(pixels)
    ]


@torch.no_grad()
def _series_samples(
    model: Model, inputs: Inputs, samples: torch.Tensor, labels: Sequence[int] | None
) -> list[dict[str, Any]]:
    """The samples as float32 values, and the logits of the network for them."""
    logits = _logits(model, inputs(samples))
    return [
        {
            "values": base64.b64encode(series.float().contiguous().numpy().astype("<f4").tobytes()).decode("ascii"),
            "label": None if labels is None else int(labels[index]),
            "logits": logits[index],
        }
        for index, series in enumerate(samples)
    ]


def _logits(model: Model, x: torch.Tensor) -> list[list[float]]:
    """The logits of the network in evaluation, to six digits."""
    mode = model.training
    logits = model.eval()(x.to(next(model.parameters()))).tolist()
    model.train(mode)
    return [[float(f"{value:.6g}") for value in row] for row in logits]
