"""The base class of all networks: it records the arguments of a network and validates its inputs."""

from __future__ import annotations

import copy
import itertools
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn

from .._arguments import per_axis, positive_int
from ..errors import ArgumentError, ArgumentTypeError
from ..nn import Convert, FlexConvNd, check_float16, converted_dtype
from ..norm_scale import move_scale_to_norms
from ._half import norms_in_float32
from ._inputs import Inputs

#: size arguments of networks, and what kind of data they are for
SIZES = {"image_size": "images", "length": "series", "volume_size": "volumes"}


class Model(nn.Module):
    """Base class of the networks. `type(model)(**model.config)` makes the same network with new weights.

    Subclasses take keyword arguments that are numbers, strings, or lists or dicts of these, so that they can be saved,
    and `device` and `dtype`, which are not part of the architecture.
    """

    dims: int
    #: the last layer, from features to logits
    head: nn.Linear
    #: preprocessing: `model(model.inputs(raw))`. None if unspecified. Saved with the network
    inputs: Inputs | None

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs = None
        self._config = {name: _plain(name, value) for name, value in config.items()}
        self.in_channels = positive_int("in_channels", config["in_channels"])
        self.num_classes = positive_int("num_classes", config["num_classes"])

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of this network as JSON types. A copy, so changing it does not affect the network."""
        return copy.deepcopy(self._config)

    @property
    def resampling(self) -> tuple[tuple[tuple[float, ...], str], ...]:
        """The calls of `flexconv.at_resolution` since the network was made: (scale per axis, crop) for each."""
        layers = (module for module in self.modules() if isinstance(module, FlexConvNd))
        first = next(layers, None)
        return () if first is None else first.grid.resampling

    @property
    def resolution(self) -> tuple[float, ...]:
        """Samples per axis relative to the resolution that the network was made for."""
        each_axis = zip(*(scales for scales, _ in self.resampling), strict=True)
        return tuple(map(math.prod, each_axis)) or (1.0,) * self.dims

    def _apply(self, fn: Convert, recurse: bool = True) -> Self:
        """Convert the network. In float16, norms take over the scale of the kernels; see `move_scale_to_norms`."""
        if converted_dtype(fn, torch.float32) == torch.float16:
            move_scale_to_norms(self)
            apart = [module for module in self.modules() if isinstance(module, FlexConvNd)]  # these check themselves
            apart += norms_in_float32(self)
            inside = {id(tensor) for module in apart for tensor in _tensors(module).values()}
            for name, tensor in _tensors(self).items():
                if id(tensor) not in inside:
                    check_float16(name, tensor)
        return super()._apply(fn, recurse)

    def _check_input(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor):
            raise ArgumentTypeError(f"{type(self).__name__} expects a tensor; got {type(x).__name__}")
        if not x.is_floating_point():
            raw = "" if self.inputs is None else "; model(model.inputs(x)) takes raw values x"
            raise ArgumentTypeError(f"{type(self).__name__} expects a floating-point input; got {x.dtype}{raw}")
        if x.ndim != self.dims + 2 or x.shape[1] != self.in_channels:
            sizes = {1: "length", 2: "height, width", 3: "depth, height, width"}[self.dims]
            raise ArgumentError(
                f"{type(self).__name__} expects an input of shape [batch, {self.in_channels}, {sizes}] "
                f"(in_channels={self.in_channels}); got {tuple(x.shape)}"
            )


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(itertools.chain(module.named_parameters(), module.named_buffers()))


def trained_size(model: nn.Module) -> tuple[int, ...] | None:
    """The (length,) or (height, width), … that a network of `flexconv.models` was trained on; None if it is not known.

    If it was not trained, this is the size that it was made for.
    """
    if not isinstance(model, Model):
        return None
    if model.inputs is not None and not model.resampling:
        return model.inputs.size  # a fine-tuned network may have been trained on another size than its first
    made_for = next((size for name in SIZES if (size := model.config.get(name)) is not None), None)
    if made_for is None:
        return None
    sizes = per_axis("size", made_for, model.dims, minimum=1)
    return tuple(round(size * scale) for size, scale in zip(sizes, model.resolution, strict=True))


def input_size(model: Model) -> tuple[int, ...] | None:
    """The (height, width) or (length,) of the samples that a network expects now; None if it is not known.

    A fine-tuned network may have been trained on another size than it was made for. A resampled one expects the size
    that it was made for, times its resolution.
    """
    if model.inputs is not None and not model.resampling:
        return model.inputs.size
    return trained_size(model)


def check_widths(widths: Sequence[int]) -> list[int]:
    """Validate the number of channels per block."""
    if not isinstance(widths, Sequence) or isinstance(widths, str) or not widths:
        raise ArgumentError(f"widths must list the channels of each block, such as [24, 36, 48]; got {widths!r}")
    return [positive_int(f"widths[{index}]", width) for index, width in enumerate(widths)]


def check_dropout(dropout: float, name: str = "dropout") -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ArgumentError(f"{name} must be a probability, 0 ≤ p < 1; got {dropout!r}")
    return float(dropout)


def _plain(name: str, value: object) -> Any:
    """`value` as it is after writing and reading JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=operator.index))  # for integers of numpy
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"{name} must be made of finite numbers, text, lists and dicts, so that it can be saved; got {value!r}"
        ) from error
