"""Which models can run on a stream: those whose layers are causal FlexConvs or act on each time step alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..errors import ArgumentError
from ._conv import FlexConvNd

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_CONVOLUTION = nn.modules.conv._ConvNd

# what a softmax or GLU divides or splits is one axis, `dim`
_ONE_AXIS = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)

# the last axes, which are the features after a model has selected a step or moved the time axis
_LAST_AXES = (nn.Linear, nn.LayerNorm, nn.RMSNorm)

_ACTIVATIONS = tuple(
    getattr(nn, name)
    for name in nn.modules.activation.__all__
    if not issubclass(getattr(nn, name), (*_ONE_AXIS, nn.MultiheadAttention))
)
_STEP_BY_STEP = (
    *_ACTIVATIONS,
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.Identity, nn.LocalResponseNorm, nn.Embedding),
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict),
)


def check_streamable(model: nn.Module) -> None:
    """Raise an error that names the first module that is not known to act on each time step alone."""
    layers = [module for _, module in _layers(model) if isinstance(module, FlexConvNd)]
    seen: set[int] = set()
    for name, module in _layers(model):
        label = f"{name or 'the model'} ({type(module).__name__})"
        if reason := getattr(module, "cannot_stream", None):
            raise ArgumentError(f"{label} {reason}")
        if getattr(module, "acts_step_by_step", False):
            continue
        if isinstance(module, FlexConvNd):
            _check_flexconv(label, module)
            if id(module) in seen:
                raise ArgumentError(f"{label} appears twice in the model: its two uses would share one state")
            seen.add(id(module))
        elif isinstance(module, _CONVOLUTION):
            _check_convolution(label, module)
        elif isinstance(module, _BATCH_NORM):
            if module.running_mean is None:
                raise ArgumentError(f"{label} has no running statistics, those of a chunk are not those of the stream")
        elif isinstance(module, _ONE_AXIS):
            _check_axis(label, module.dim, layers)
        elif not isinstance(module, (*_STEP_BY_STEP, *_LAST_AXES)):
            _check_unknown(label, module)
        if type(module) is nn.Sequential:
            _check_order(name, module)


def layers_over_last_axes(model: nn.Module) -> dict[str, tuple[nn.Module, int]]:
    """Linear layers and norms of a model by name, with the number of last axes that each acts along."""
    return {
        name: (module, 1 if isinstance(module, nn.Linear) else len(module.normalized_shape))
        for name, module in _layers(model)
        if isinstance(module, _LAST_AXES) and not getattr(module, "acts_step_by_step", False)
    }


def causal_axes(layer: FlexConvNd) -> list[int]:
    """Axes along which no output depends on future samples: padded "causal", or on the left by the same amount."""
    if named := [number for number, axis in enumerate(layer.axes) if axis.causal]:
        return named
    return [
        number
        for number, (pads, taps, step) in enumerate(zip(layer.pads, layer.kernel_size, layer.dilation, strict=True))
        if pads == (step * (taps - 1), 0) and (taps > 1 or layer.dims == 1)
    ]


def _layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """All modules by name, repeated ones repeatedly, without those that a FlexConv or a parametrization consists of."""
    yield name, module
    if isinstance(module, FlexConvNd | _CONVOLUTION) or getattr(module, "acts_step_by_step", False):
        return
    for child_name, child in module._modules.items():
        if child is not None and not (child_name == "parametrizations" and isinstance(child, nn.ModuleDict)):
            yield from _layers(child, f"{name}.{child_name}" if name else child_name)


def _check_flexconv(label: str, layer: FlexConvNd) -> None:
    causal = causal_axes(layer)
    if not causal:
        raise ArgumentError(
            f"{label} has padding={layer.padding!r} and needs future samples: streaming requires padding='causal'"
            f"{' along one axis' if layer.dims > 1 else ''}"
        )
    if len(causal) > 1:
        raise ArgumentError(
            f"{label} has padding={layer.padding!r}, causal along {len(causal)} axes, but a stream has one time "
            f"axis: use 'causal' for that one only, as in padding={('causal', 'same', 'same')[: layer.dims]}"
        )
    if layer.padding_mode != "zeros":
        raise ArgumentError(f"{label} has padding_mode={layer.padding_mode!r}: streaming requires 'zeros'")


def _check_convolution(label: str, conv: nn.modules.conv._ConvNd) -> None:
    padded = not isinstance(conv.padding, str) and any(conv.padding)
    if {*conv.kernel_size, *conv.stride} != {1} or conv.transposed or padded:
        raise ArgumentError(f"{label} covers several time steps and keeps no state: use FlexConv1d(padding='causal')")


def _check_axis(label: str, dim: int | None, layers: list[FlexConvNd]) -> None:
    """`dim` must be the channels, or another axis that is not the time axis of any layer."""
    for dims, axis in {(layer.dims, axis) for layer in layers for axis in causal_axes(layer)}:
        if dim is None or dim % (dims + 2) in (0, 2 + axis):
            raise ArgumentError(f"{label} acts along dim={dim}, which is time in [batch, channels, …]: use dim=1")


def _check_unknown(label: str, module: nn.Module) -> None:
    """Accept modules of the user that consist of others, whose operations cannot be seen. Raise for the rest."""
    from_torch = any(
        kind.__module__.startswith("torch.") and issubclass(kind, nn.Module) and kind is not nn.Module
        for kind in type(module).__mro__
    )
    if from_torch or not any(child is not None for child in module._modules.values()):
        raise ArgumentError(
            f"{label} is not known to act on each time step alone. If it mixes samples over time, its result on chunks "
            f"differs from that on the whole sequence; if not, set its attribute acts_step_by_step = True"
        )


def _check_order(name: str, model: nn.Sequential) -> None:
    """In a sequence of layers, the last axes after a convolution over the last axis are time."""
    time_is_last = False
    for child_name, child in _flattened(model, name):
        if isinstance(child, FlexConvNd):
            time_is_last = child.dims - 1 in causal_axes(child)
        elif isinstance(child, _LAST_AXES) and time_is_last and not getattr(child, "acts_step_by_step", False):
            raise ArgumentError(
                f"{child_name} ({type(child).__name__}) acts along the last axis, which is time after a FlexConv: "
                f"use a convolution of kernel size 1, or move the time axis first"
            )
        elif not isinstance(child, (_BATCH_NORM, _CONVOLUTION, *_ONE_AXIS, *_STEP_BY_STEP)):
            time_is_last = False  # unknown


def _flattened(model: nn.Sequential, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The layers of a sequence in the order in which they run."""
    for child_name, child in model.named_children():
        child_name = f"{name}.{child_name}" if name else child_name
        yield from _flattened(child, child_name) if type(child) is nn.Sequential else [(child_name, child)]
