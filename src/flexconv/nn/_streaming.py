"""Run causal layers and models on a stream of chunks, with the same result as on the whole sequence.

A causal FlexConv has a finite memory: output n needs the last (kernel_size − 1) · dilation inputs. These are the whole
state of a stream, and they make streaming exact for chunks of any size.
"""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from .._context import autocast_enabled
from ..errors import ArgumentError, UsageError
from ..ops import conv_nd, output_size
from ._checks import check_kind, check_sizes
from ._conv import FlexConvNd
from ._half import computes_in_float16, float16_conv, scale_kernel
from ._stream_probe import sizes_follow_time
from ._streamable import causal_axes, check_streamable, layers_over_last_axes


class Streaming(nn.Module):
    """Run a causal layer, or a model built of causal FlexConvs and pointwise layers, on a stream.

        stream = Streaming(model)
        for chunk in microphone:            # [batch, channels, any number of samples]
            y = stream(chunk)               # the same outputs model(everything) has for these samples

    Parameters are shared with the original model, which is not changed. Layers run in eval mode and without gradients.
    Kernels are sampled when a stream starts, so call `reset()` to start another stream or after the weights have
    changed. A model that reads the last time step, such as a classifier, returns with every chunk its result for all
    samples so far.

    Apart from causal FlexConvs, every layer must act on each time step alone. Layers that mix samples over time in
    other ways (pooling, recurrent layers, group norm, centered convolutions, a softmax over time) cannot be exact. They
    raise an error with their name, and so does every layer for which it is not known whether it mixes samples. Linear
    layers and norms over the last axes are checked with the first chunk, because only then it is known whether these
    axes are time. A module of your own without submodules declares that it acts on each step alone by the attribute
    `acts_step_by_step = True`. Operations in the `forward` of a module with
    submodules cannot be detected, so compare once with `flexconv.testing.assert_streaming_matches`. A module can
    declare such an operation itself: if its attribute `cannot_stream` is a string, that string is the error.

    If a chunk raises an error, the stream remains as it was before this chunk.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        shared = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        check_streamable(model)
        self.model = _replace(copy.deepcopy(model, shared), "model").eval()
        self._layers = [module for module in self.model.modules() if isinstance(module, _CausalState)]
        self._checked = False

    def reset(self) -> None:
        """Forget all samples. The next chunk starts a new stream and may have another batch size."""
        for layer in self._layers:
            layer.reset()

    @torch.no_grad()
    def forward(self, chunk: torch.Tensor) -> torch.Tensor:
        """The outputs for the samples of `chunk`. With a stride there may be none."""
        before = [layer.state for layer in self._layers]
        if not self._checked and not torch.compiler.is_compiling():
            self._refuse_layers_over_time(chunk)
        for layer in self._layers:
            layer.fed = False
        try:
            return self.model(chunk)
        except BaseException:  # layers before the one that failed have already seen the chunk
            for layer, state in zip(self._layers, before, strict=True):
                layer.state = state
            raise

    def _refuse_layers_over_time(self, chunk: torch.Tensor) -> None:
        """Raise an error if a linear layer or a norm over the last axes acts along time. Done once."""
        watched = layers_over_last_axes(self.model)
        if watched and isinstance(chunk, torch.Tensor):
            before = [layer.state for layer in self._layers]
            layers = [(each, each.axis - each.layer.dims, each.layer.stride[each.axis]) for each in self._layers]

            def start_with(x: torch.Tensor) -> None:
                self.reset()
                self.model(x)

            try:
                name = sizes_follow_time(start_with, layers, watched, chunk)
            finally:
                for layer, state in zip(self._layers, before, strict=True):
                    layer.state = state
            if name is not None:
                raise ArgumentError(
                    f"{name} ({type(watched[name][0]).__name__}) acts along time: its input is longer if the chunk is. "
                    f"Use a convolution of kernel size 1, or move the time axis first"
                )
        self._checked = True

    def train(self, mode: bool = True) -> Streaming:  # noqa: ARG002
        """Stay in eval mode, because the batch statistics of a chunk are not those of the stream."""
        return super().train(False)


class _CausalState(nn.Module):
    """One causal FlexConv and the past samples that it needs."""

    def __init__(self, layer: FlexConvNd, name: str) -> None:
        super().__init__()
        self.layer = layer
        self.name = name
        (self.axis,) = causal_axes(layer)
        self.reset()

    def reset(self) -> None:
        self.weight: torch.Tensor | None = None
        self.past: torch.Tensor | None = None
        self.seen = 0
        self.fed = False

    @property
    def state(self) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
        """The kernel, the past samples, and how many there were. The tensors are replaced and never modified."""
        return self.weight, self.past, self.seen

    @state.setter
    def state(self, state: tuple[torch.Tensor | None, torch.Tensor | None, int]) -> None:
        self.weight, self.past, self.seen = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._check_chunk(x)
        if x.ndim == self.layer.dims + 1:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        if self.fed:
            raise UsageError(f"{self.name} is called twice per chunk: its two uses would share one state")
        self.fed = True
        layer, time = self.layer, 2 + self.axis
        if self.weight is None or self.past is None:
            self._start(x)
        assert self.weight is not None
        assert self.past is not None
        began, now = ((*t.shape[:time], *t.shape[time + 1 :]) for t in (self.past, x))
        if began != now:
            raise ArgumentError(
                f"the stream began with batch, channels and sizes {began}; this chunk has {now}. Call reset() to start "
                f"another stream"
            )
        mixed = self.past.dtype != x.dtype and not autocast_enabled(x.device.type)  # an empty chunk would not reveal it
        if mixed or self.past.device != x.device:
            raise ArgumentError(
                f"the stream began in {self.past.dtype} on {self.past.device}; this chunk is {x.dtype} on {x.device}. "
                f"Call reset() to start another stream"
            )
        samples = x.shape[time]
        joined = torch.cat([self.past, x], time)
        skip = -self.seen % layer.stride[self.axis]  # samples before the next output is due
        self.seen += samples
        self.past = joined.narrow(time, samples, self.past.shape[time]).clone()
        if skip >= samples:
            return x.new_zeros(self._shape_without_outputs(x))
        pads = list(layer.pads_for(self.windows))
        pads[self.axis] = (0, pads[self.axis][1])
        joined = joined.narrow(time, skip, joined.shape[time] - skip)
        if computes_in_float16(joined):
            return float16_conv(layer, joined, scale_kernel(self.weight), layer.bias, tuple(pads))
        return conv_nd(
            layer.dims,
            joined,
            self.weight.to(joined.dtype),
            layer.bias,
            layer.stride,
            pads,
            layer.dilation,
            layer.groups,
            layer.algorithm,
        )

    def _check_chunk(self, x: torch.Tensor) -> None:
        """The checks of the layer, except that a chunk may have any number of samples, including none."""
        check_kind(self.layer, x)
        sizes = list(x.shape)
        sizes[self.axis - self.layer.dims] = 1
        check_sizes(self.layer, sizes[-self.layer.dims :])

    def _start(self, x: torch.Tensor) -> None:
        layer = self.layer
        self.windows = layer.window
        self.weight = layer.sample(self.windows)
        reach = layer.pads_for(self.windows)[self.axis][0]
        shape = list(x.shape)
        shape[2 + self.axis] = reach
        self.past = x.new_zeros(shape)

    def _shape_without_outputs(self, x: torch.Tensor) -> list[int]:
        layer = self.layer
        sizes = [
            0 if axis == self.axis else output_size(*each)
            for axis, each in enumerate(
                zip(x.shape[2:], layer.kernel_size, layer.stride, layer.pads, layer.dilation, strict=True)
            )
        ]
        return [x.shape[0], layer.out_channels, *sizes]


class _Pointwise(nn.Module):
    """A 1×1 convolution that accepts a chunk without samples, which torch's does not."""

    def __init__(self, conv: nn.modules.conv._ConvNd) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel():
            return self.conv(x)
        shape = list(x.shape)
        shape[-1 - len(self.conv.kernel_size)] = self.conv.out_channels
        return x.new_zeros(shape)


def _replace(module: nn.Module, name: str) -> nn.Module:
    if isinstance(module, FlexConvNd):
        return _CausalState(module, name)
    if isinstance(module, nn.modules.conv._ConvNd):
        return _Pointwise(module)
    for child_name, child in list(module._modules.items()):  # named_children() skips repeated modules
        if child is not None:
            setattr(module, child_name, _replace(child, f"{name}.{child_name}"))
    return module
