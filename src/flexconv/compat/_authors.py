"""Weights of the authors' FlexConv code, in ours.

Their modules are rebuilt with the published behaviour (window symmetric about 0, no guards on the mask) and return the
published numbers, except where their FFT convolutions are wrong: those follow the convolution's definition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from .._arguments import unknown_name
from ..errors import ArgumentError
from ..models import CIFARResNet, FlexNet, FlexTCN, Model
from ..nn import GENERATORS, MLP, SIREN, FlexConv1d, FlexConv2d, FourierNet, GaborNet, NJet
from ._layers import READERS, read_generator, read_layer, read_plain, refuse_rest

State = Mapping[str, torch.Tensor]
LayerReader = Callable[[dict[str, torch.Tensor]], torch.nn.Module]


def from_authors(
    state: Mapping[str, Any],
    *,
    kernel_size: int | Sequence[int],
    generator: str = "magnet",
    sampling_scale: float = 1.0,
    cropping: bool = True,
) -> torch.nn.Module:
    """A network, a layer or a bare generator from a state in the authors' names, in eval mode and its precision.

    Arguments:
        state: names to arrays or tensors, as in their `state_dict()`, also that of a DataParallel. An image network
            has `blocks.…` and `out_layer.…` and becomes a `FlexNet`; one for sequences has `backbone.…` and
            `finallyr.…`: a `FlexTCN`; a CIFARResNet has `layer1.…` and `linear.…`. A layer has `Kernel.…`, `bias` and,
            unless it is a CKConv, `mask_params`; a bare generator has the names without `Kernel.`; an N-Jet `alphas`
            and `scales`. Networks come without dropout, of which a state tells nothing.
        kernel_size: the horizon, i.e. the size of the grid. (For a bare generator it has no meaning.)
        generator: "magnet", "gabor", "fourier", "siren", "nsiren" or "mlp".
        sampling_scale: the factor (r1/r2)^D their layers are built with at another resolution.
        cropping: their dynamic cropping.

    """
    if generator not in READERS:
        unknown_name("generator", generator, READERS)
    tensors = {name: torch.as_tensor(value).detach().cpu().clone() for name, value in state.items()}
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    read = partial(
        read_layer, kernel_size=kernel_size, generator=generator, sampling_scale=sampling_scale, cropping=cropping
    )
    for mark, read_network in _NETWORKS.items():
        if any(name.startswith(mark) for name in tensors):
            return read_network(tensors, read).eval()
    try:
        if "alphas" not in tensors and not any(name.startswith("Kernel.") for name in tensors):
            return read_generator(generator, tensors).eval()
        return read(tensors).eval()
    except KeyError as error:
        raise ArgumentError(f"the state lacks {error.args[0]}") from error


#: our names and theirs, in the order in which they are replaced
_FLEXNET_NAMES = {
    r"^stem_norm\.": "norm1.",
    r"^stem\b": "cconv1",
    r"\.conv(\d)": r".cconv\1",
    r"\.shortcut\.": ".shortcut.0.",
    r"^head\.": "out_layer.",
}
_FLEXTCN_NAMES = _FLEXNET_NAMES | {r"^blocks\.": "backbone.", r"^head\.": "finallyr."}
_RESNET_NAMES = {r"^stem_norm\.": "bn1.", r"^stem\b": "conv1", r"\.norm(\d)": r".bn\1", r"^head\.": "linear."}


def _read_flexnet(state: dict[str, torch.Tensor], read: LayerReader) -> FlexNet:
    stem, *others = _read_layers(state, read, "cconv1", *_block_layers(state, "blocks"))
    widths = [_channels(layer)[1] for layer in others[1::2]]
    model = FlexNet(in_channels=_channels(stem)[0], widths=widths, dropout=0.0, **_arguments(state, "out_layer", stem))
    _load(model, state, _FLEXNET_NAMES, [stem, *others])
    return model


def _read_flextcn(state: dict[str, torch.Tensor], read: LayerReader) -> FlexTCN:
    layers = _read_layers(state, read, *_block_layers(state, "backbone"))
    widths = [_channels(layer)[1] for layer in layers[1::2]]
    arguments = _arguments(state, "finallyr", layers[0])
    model = FlexTCN(in_channels=_channels(layers[0])[0], widths=widths, dropout=0.0, **arguments)
    _load(model, state, _FLEXTCN_NAMES, layers)
    return model


def _read_resnet(state: dict[str, torch.Tensor], read: LayerReader) -> CIFARResNet:
    blocks = len({found[0] for name in state if (found := re.match(r"layer\d\.\d+\.", name))}) // 3
    names = [f"layer{i // blocks + 1}.{i % blocks}" for i in range(3 * blocks)]
    layers = _read_layers(state, read, "conv1", *[f"{name}.conv{i}" for name in names for i in (1, 2)])
    in_channels, width = _channels(layers[0])
    shortcut = "conv" if f"{names[-1].partition('.')[0]}.0.shortcut.0.weight" in state else "pad"
    model = CIFARResNet(
        in_channels=in_channels,
        depth=6 * blocks + 2,
        width=width,
        shortcut=shortcut,
        **_arguments(state, "linear", layers[0]),
    )
    _load(model, state, {rf"^blocks\.{i}\.": f"{name}." for i, name in enumerate(names)} | _RESNET_NAMES, layers)
    return model


_NETWORKS: dict[str, Callable[[dict[str, torch.Tensor], LayerReader], Model]] = {
    "blocks.": _read_flexnet,
    "backbone.": _read_flextcn,
    "layer1.": _read_resnet,
}


def _block_layers(state: State, blocks: str) -> list[str]:
    count = 1 + max(int(name.split(".")[1]) for name in state if name.startswith(f"{blocks}."))
    return [f"{blocks}.{i}.cconv{n}" for i in range(count) for n in (1, 2)]


def _read_layers(state: dict[str, torch.Tensor], read: LayerReader, *names: str) -> list[torch.nn.Module]:
    """The convolutions of a network, taken out of its state."""
    layers = []
    for name in names:
        prefix = f"{name}."
        inner = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
        if not inner:
            raise ArgumentError(f"the state has nothing of {name}")
        try:
            layers.append(read_plain(inner) if "weight" in inner else read(inner))
        except KeyError as error:
            raise ArgumentError(f"the state lacks {prefix}{error.args[0]}") from error
        except ValueError as error:
            raise ArgumentError(f"{name}: {error}") from error
    return layers


def _channels(layer: Any) -> tuple[int, int]:
    return layer.in_channels, layer.out_channels


def _arguments(state: State, head: str, layer: torch.nn.Module) -> dict[str, Any]:
    """What a network and its first convolution have in common, and the number of classes."""
    if f"{head}.weight" not in state:
        raise ArgumentError(f"the state lacks {head}.weight")
    weight = state[f"{head}.weight"]
    arguments: dict[str, Any] = {"num_classes": len(weight), "dtype": weight.dtype}
    if isinstance(layer, torch.nn.Conv2d):
        return arguments | {"conv": "plain", "kernel_size": layer.kernel_size}
    assert isinstance(layer, FlexConv1d | FlexConv2d)
    kernel_size = layer.kernel_size if layer.dims > 1 else layer.kernel_size[0]
    arguments |= {"conv": "flex" if layer.mask is not None else "ck", "kernel_size": kernel_size}
    if layer.mask is not None:
        arguments["mask_options"] = {"form": layer.mask.form, "threshold": layer.mask.threshold}
    net = layer.generator
    options: dict[str, Any] = {}
    if isinstance(net, NJet):
        options = {"order": net.order}
    elif isinstance(net, SIREN | MLP):
        maps: Any = net.maps
        options = {"hidden": maps[0].out_features, "layers": len(maps)}
        if isinstance(net, SIREN):
            options |= {"omega_0": net.initial_omega_0, "weight_norm": maps[0].weight_norm}
    elif isinstance(net, FourierNet | GaborNet):
        options = {"hidden": net.hidden, "layers": net.layers}
        if isinstance(net, GaborNet):
            options["steerable"] = net.steerable
    generator = next(name for name, kind in GENERATORS.items() if type(net) is kind)
    return arguments | {"generator": generator, "generator_options": options}


def _load(
    model: Model, state: dict[str, torch.Tensor], names: Mapping[str, str], layers: Sequence[torch.nn.Module]
) -> None:
    """Fill a network from its convolutions and the rest of its state."""
    ours = [(name, module) for name, module in model.named_modules() if name.endswith((".conv1", ".conv2", "stem"))]
    with torch.no_grad():
        for (name, target), layer in zip(ours, layers, strict=True):
            found, wanted = ({key: tuple(t.shape) for key, t in m.state_dict().items()} for m in (layer, target))
            if found != wanted:
                raise ArgumentError(f"{name} must be like the first convolution, with {wanted}; the state has {found}")
            target.load_state_dict(layer.state_dict())
            if isinstance(target, FlexConv1d | FlexConv2d):
                target.kernel_scale = layer.kernel_scale  # type: ignore[assignment]
        inside = tuple(f"{name}." for name, _ in ours)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.startswith(inside):
                continue
            theirs = name
            for pattern, replacement in names.items():
                theirs = re.sub(pattern, replacement, theirs)
            if theirs not in state:
                if name.endswith("num_batches_tracked"):
                    continue
                raise ArgumentError(f"the state lacks {theirs}")
            value = state.pop(theirs)
            if value.numel() != tensor.numel() or value.shape[: tensor.ndim] != tensor.shape:
                raise ArgumentError(
                    f"{theirs} must have shape {tuple(tensor.shape)}; the state has {tuple(value.shape)}"
                )
            tensor.copy_(value.reshape(tensor.shape))
    refuse_rest(state)
