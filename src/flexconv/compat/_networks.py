"""Read networks of the authors' code: build ours with the same arguments and fill it with their tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ArgumentError
from ..models import CIFARResNet, FlexNet, FlexTCN, Model
from ..nn import GENERATORS, MLP, SIREN, FlexConv1d, FlexConv2d, FourierNet, GaborNet, NJet
from ._layers import check_all_used, read_plain_conv

State = Mapping[str, torch.Tensor]
LayerReader = Callable[[dict[str, torch.Tensor]], torch.nn.Module]

# patterns in our names → the authors' names, applied in this order
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


NETWORKS: dict[str, Callable[[dict[str, torch.Tensor], LayerReader], Model]] = {  # by a prefix that only they have
    "blocks.": _read_flexnet,
    "backbone.": _read_flextcn,
    "layer1.": _read_resnet,
}


def _block_layers(state: State, blocks: str) -> list[str]:
    count = 1 + max(int(name.split(".")[1]) for name in state if name.startswith(f"{blocks}."))
    return [f"{blocks}.{i}.cconv{n}" for i in range(count) for n in (1, 2)]


def _read_layers(state: dict[str, torch.Tensor], read: LayerReader, *names: str) -> list[torch.nn.Module]:
    """Read the convolutions of a network and remove their tensors from its state."""
    layers = []
    for name in names:
        prefix = f"{name}."
        inner = {key.removeprefix(prefix): state.pop(key) for key in list(state) if key.startswith(prefix)}
        if not inner:
            raise ArgumentError(f"the state has no tensors for {name}")
        try:
            layers.append(read_plain_conv(inner) if "weight" in inner else read(inner))
        except KeyError as error:
            raise ArgumentError(f"the state has no {prefix}{error.args[0]}") from error
        except ValueError as error:
            raise ArgumentError(f"{name}: {error}") from error
    return layers


def _channels(layer: Any) -> tuple[int, int]:
    return layer.in_channels, layer.out_channels


def _arguments(state: State, head: str, layer: torch.nn.Module) -> dict[str, Any]:
    """Arguments of a network that follow from its first convolution and its head."""
    if f"{head}.weight" not in state:
        raise ArgumentError(f"the state has no {head}.weight")
    weight = state[f"{head}.weight"]
    arguments: dict[str, Any] = {"num_classes": len(weight), "parametrization": "paper", "dtype": weight.dtype}
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
    """Copy the convolutions and the rest of the state into a network."""
    ours = [(name, module) for name, module in model.named_modules() if name.endswith((".conv1", ".conv2", "stem"))]
    with torch.no_grad():
        for (name, target), layer in zip(ours, layers, strict=True):
            found, expected = ({key: tuple(t.shape) for key, t in m.state_dict().items()} for m in (layer, target))
            if found != expected:
                raise ArgumentError(
                    f"{name} must have the same structure as the first convolution, {expected}; the state has {found}"
                )
            target.load_state_dict(layer.state_dict())
            if isinstance(target, FlexConv1d | FlexConv2d):
                target.grid = target.grid._replace(scale=layer.grid.scale)  # type: ignore[union-attr]
        convolutions = tuple(f"{name}." for name, _ in ours)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if name.startswith(convolutions):
                continue
            theirs = name
            for pattern, replacement in names.items():
                theirs = re.sub(pattern, replacement, theirs)
            if theirs not in state:
                if name.endswith("num_batches_tracked"):
                    continue
                raise ArgumentError(f"the state has no {theirs}")
            value = state.pop(theirs)
            if value.numel() != tensor.numel() or value.shape[: tensor.ndim] != tensor.shape:
                raise ArgumentError(
                    f"{theirs} must have shape {tuple(tensor.shape)}; the state has {tuple(value.shape)}"
                )
            tensor.copy_(value.reshape(tensor.shape))
    check_all_used(state)
