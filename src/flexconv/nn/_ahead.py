"""All kernels of a model at once, side by side on the device, before any of them is needed.

A kernel does not depend on the input, and making one is a chain of many small operations that leave a GPU idle. Chains
of different layers run beside each other on streams of their own, forward and backward.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from ._conv import FlexConvNd


@contextlib.contextmanager
def kernels_ahead(model: nn.Module, streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Inside, every FlexConv of the model uses a kernel that was sampled on entry, on one of the streams."""
    layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
    here = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(here)
    try:
        for layer, stream in zip(layers, itertools.cycle(streams), strict=False):
            with torch.cuda.stream(stream):
                layer._ahead = layer._sample(layer._windows_in_force())
                layer._ahead.record_stream(here)
        for stream in streams:
            here.wait_stream(stream)
        yield
    finally:
        for layer in layers:
            layer._ahead = None
