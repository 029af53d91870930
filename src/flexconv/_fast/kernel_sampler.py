"""Sample the kernels of many layers at once, before the forward pass needs them.

A kernel does not depend on the input, and sampling it takes many small operations, which leave a GPU idle most of the
time. Layers with the same type of generator, mask and grid differ in their parameter values only, so their parameters
are stacked and all kernels are sampled together. Only the output maps, whose sizes differ, remain separate.

The windows of layers differ. Every layer is sampled on a block of the size of the largest window, from its own first
tap on, and then cropped.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

from .._context import no_autocast
from .._hooks import hooks_of
from .._matmul import matmul
from ..nn import FlexConvNd, GaussianMask, RotatedGaussianMask, TapRange, mesh
from ..ops import FactoredKernel, KernelBatch
from .factors import kernel_source
from .regions import Region, any_length

Windows = tuple[TapRange, ...]

PIECES = 16
LONG_LINE = 8192  # taps: four times as many pieces beyond


class KernelSampler:
    """Samples all kernels of a model for its current windows. Make another sampler when the windows change."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, FlexConvNd)]
        self.windows = [layer.window for layer in self.layers]
        self.alone: list[FlexConvNd] = []
        groups: dict[object, list[FlexConvNd]] = {}
        for layer in self.layers:
            if _can_be_batched(layer):
                groups.setdefault(_sharing_key(layer), []).append(layer)
            else:
                self.alone.append(layer)
        self.groups = [_Group(layers) for layers in groups.values()]

    @property
    def up_to_date(self) -> bool:
        """Whether the windows of all layers are unchanged."""
        return self.windows == [layer.window for layer in self.layers]

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, every FlexConv of the model uses the kernel that was sampled on entry."""
        try:
            for layer in self.alone:
                layer._provider.prepared = layer.sample(layer.window)
            for group in self.groups:
                group.sample()
            yield
        finally:
            for layer in self.layers:
                layer._provider.prepared = None


class _Group:
    """Layers that differ in parameter values and output maps only."""

    def __init__(self, layers: Sequence[FlexConvNd]) -> None:
        first = layers[0]
        self.layers = layers
        self.windows = [layer.window for layer in layers]
        self.part = _Part(first)
        self.tensors = [_Part(layer).shared() for layer in layers]
        dtype, device = first.generator.compute_dtype, first.reference_tensor().device
        self.lines: list[torch.Tensor] = []  # per axis, [layers, taps]
        for d, axis in enumerate(first.axes):
            longest = max(windows[d][1] - windows[d][0] for windows in self.windows)
            starts = [windows[d][0] for windows in self.windows]
            lines = [axis.coordinates((start, start + longest), device=device, dtype=dtype) for start in starts]
            self.lines.append(torch.stack(lines))
        damping = [1.0 if layer.mask is None else layer.mask.damping for layer in layers]
        self.damping = torch.tensor(damping, device=device, dtype=dtype).unsqueeze(1)

    def sample(self) -> None:
        names = self.tensors[0]
        stacked = {name: torch.stack([each[name] for each in self.tensors]) for name in names}  # one operation per name
        outputs = [layer.generator.output_map for layer in self.layers]
        with no_autocast(self.lines[0].device.type):
            # the guard of masks is outside of the region below, where the compiler would lose its custom gradients
            masks = None if self.part.mask is None else _guarded_masks(self.part, stacked, self.damping)
            basis = _masked_features(self.part, stacked, masks, [any_length(line, 1) for line in self.lines])
            if outputs[0].basis is not None:  # type: ignore[union-attr]
                basis = _with_bases(basis, [output.basis for output in outputs])  # type: ignore[misc, union-attr]
            maps = [output.own_map(basis.dtype) for output in outputs]  # type: ignore[union-attr]
            weights, biases = (torch.cat(each) for each in zip(*maps, strict=True))
            shared = _Shared(basis, weights, biases, [len(output.bias) for output in outputs])  # type: ignore[union-attr]
            for windows in dict.fromkeys(self.windows):  # kernels with the same window are also transformed together
                numbers = [number for number, own in enumerate(self.windows) if own == windows]
                parts = [functools.partial(shared.factors, number) for number in numbers]
                layers = [self.layers[number] for number in numbers]
                sources = [kernel_source(layer, part, windows) for layer, part in zip(layers, parts, strict=True)]
                batch = KernelBatch(sources, basis.dtype)
                for number, layer in enumerate(layers):
                    layer._provider.prepared = FactoredKernel(batch, number)


def _guarded_masks(part: _Part, stacked: dict[str, torch.Tensor], damping: torch.Tensor) -> list[torch.Tensor]:
    """Remove the parameters of the masks, and return mean, σ and any further values [layers, …] of all masks.

    `damping` [layers, 1] is that of their gradients.
    """
    mask = part.mask
    assert mask is not None
    parameters = [stacked.pop(f"mask.{name}").to(damping.dtype) for name in mask.size_names]
    mean, sigma, *others = mask.natural(parameters, damping)
    return [*mask.guarded(mean, sigma, part.axes), *others]


class _Shared:
    """Factors of all layers of a group: basis [layers, *block, rank], mix [channels of all layers, rank].

    The mix is made of weights [channels of all layers, width] and biases [channels of all layers].
    """

    def __init__(
        self, basis: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor, channels: Sequence[int]
    ) -> None:
        self.basis, self.weights, self.biases, self.channels = basis, weights, biases, channels
        self._pieces: dict[tuple[torch.dtype, bool], tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = {}

    def factors(self, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The factors of one layer in a dtype. All layers are converted together."""
        key = dtype, torch.is_grad_enabled()  # a conversion without gradients cannot be used with gradients
        if key not in self._pieces:
            mix = _with_bias(self.weights, self.biases, dtype)
            self._pieces[key] = self.basis.to(dtype).unbind(), mix.split(self.channels)
        bases, mixes = self._pieces[key]
        return bases[number], mixes[number]


@functools.partial(Region, dynamic=False)
def _masked_features(
    part: _Part, parameters: dict[str, torch.Tensor], masks: list[torch.Tensor] | None, lines: list[torch.Tensor]
) -> torch.Tensor:
    """The inputs of the output maps times the masks, and the masks themselves as the feature of the bias.

    → [layers, *block, rank]: features, mask, and zeros up to a multiple of 8 for tensor cores.
    """
    features = _features(part, parameters, lines)
    window = torch.ones_like(features[..., :1])
    if masks is not None:
        window = _windows(part, masks, lines).unsqueeze(-1)
    missing = -(features.shape[-1] + 1) % 8
    return torch.cat([features * window, window, features.new_zeros(*features.shape[:-1], missing)], -1)


def _features(part: _Part, parameters: dict[str, torch.Tensor], lines: list[torch.Tensor]) -> torch.Tensor:
    """The features of the generators [layers, *block, width], computed in pieces along the first axis of the block.

    Gradients of small weights are sums over all taps. In one piece per layer, they would run on a single multiprocessor
    of the GPU and take longer than everything else.
    """
    layers, length = lines[0].shape
    number = PIECES if length <= LONG_LINE else 4 * PIECES
    missing = 2 * number - length % number  # at least two taps per piece: gradients by inductor are wrong for one row
    pieces = F.pad(lines[0], (0, missing)).unflatten(1, (number, -1)).flatten(0, 1)
    others = [each.unsqueeze(1).expand(-1, number, -1).flatten(0, 1) for each in lines[1:]]
    copies = {
        name: each.unsqueeze(1).expand(layers, number, *each.shape[1:]).flatten(0, 1)
        for name, each in parameters.items()
    }

    def one(values: dict[str, torch.Tensor], *axes: torch.Tensor) -> torch.Tensor:
        return functional_call(part, values, axes)

    features = vmap(one)(copies, pieces, *others)
    features = features.unflatten(0, (layers, number)).flatten(1, 2)[:, :length]
    # constant features are kept for the backward pass, and inductor assumes that the strides of a slice never change
    return features if features.requires_grad else features.contiguous()


def _windows(part: _Part, masks: list[torch.Tensor], lines: list[torch.Tensor]) -> torch.Tensor:
    """The masks [layers, *block] from their guarded values."""
    mask = part.mask
    assert mask is not None

    def one(values: list[torch.Tensor], *axes: torch.Tensor) -> torch.Tensor:
        return mask.evaluate(values, axes, part.axes)

    return vmap(one)(masks, *lines)


def _with_bases(features: torch.Tensor, bases: Sequence[torch.Tensor]) -> torch.Tensor:
    """Apply the basis of each output map to the features [layers, *block, rank] of its layer."""
    missing = features.shape[-1] - bases[0].shape[-1]
    maps = F.pad(torch.stack([basis.t() for basis in bases]).to(features.dtype), (0, missing, 0, missing))
    return matmul(features.flatten(1, -2), maps).view_as(features)


@functools.partial(Region, dynamic=True)
def _with_bias(weights: torch.Tensor, biases: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Output maps [channels, width] and biases [channels] → mix [channels, rank] for `_masked_features`."""
    missing = -(weights.shape[1] + 1) % 8
    zeros = weights.new_zeros(len(weights), missing)
    return torch.cat([weights, biases.to(weights.dtype).unsqueeze(1), zeros], 1).to(dtype)


class _Part(nn.Module):
    """The features of a generator from the coordinates of each axis, and the mask that belongs to them."""

    def __init__(self, layer: FlexConvNd) -> None:
        super().__init__()
        self.generator, self.mask, self.axes = layer.generator, layer.mask, layer.axes

    def shared(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name, without those of the output map."""
        tensors = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        output = self.generator.output_map
        own = set() if output is None else {id(tensor) for tensor in (*output.parameters(), *output.buffers())}
        return {name: tensor for name, tensor in tensors.items() if id(tensor) not in own}

    def forward(self, *lines: torch.Tensor) -> torch.Tensor:
        grid = mesh(lines)
        return self.generator.features(grid.flatten(1).t()).unflatten(0, grid.shape[1:])


def _can_be_batched(layer: FlexConvNd) -> bool:
    """Whether the kernel of a layer is exactly output map, features and mask, without overrides or hooks.

    Layers on a coarser grid than their mask was trained on are excluded, because they clamp σ twice.
    """
    if not layer.generator.has_factors or any(map(hooks_of, _Part(layer).modules())):
        return False
    if layer.mask is None:
        return True
    coarser = any(axis.origin is not None and axis.spacing > axis.origin.spacing for axis in layer.axes)
    return type(layer.mask) in (GaussianMask, RotatedGaussianMask) and not coarser


def _sharing_key(layer: FlexConvNd) -> object:
    """A key that layers share if they can be sampled together: everything but parameter values and output map."""
    part = _Part(layer)
    shapes = [(name, tuple(t.shape), t.dtype, t.device) for name, t in part.shared().items()]
    settings = [
        (name, type(module).__qualname__, settings_of(module))
        for name, module in part.named_modules()
        if module is not layer.generator.output_map
    ]
    output = layer.generator.output_map
    return repr((shapes, settings, layer.axes, output is not None and output.basis is not None))


def settings_of(module: nn.Module) -> list[tuple[str, object]]:
    """Attributes of a module that its forward may depend on. Tensors are compared by identity.

    Channels and damping may differ between layers that are sampled together.
    """
    public = [(name, value) for name, value in vars(module).items() if not name.startswith(("_", "initial_"))]
    return [(n, id(v) if isinstance(v, torch.Tensor) else v) for n, v in public if n not in ("channels", "damping")]
