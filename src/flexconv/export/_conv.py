"""Plain convolutions in one safetensors file.

Its tensors are the state dict of the materialized network. Its metadata describe in JSON, under "flexconv.conv", what
replaces each FlexConv: the arguments of a `torch.nn.ConvNd`, and the padding before it if that is not symmetric. The
other entries of the metadata describe input and output, as in the other formats.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from .._version import __version__
from ..errors import ArgumentError, first_line
from ..materialize import CONV_LAYERS, PADDING_LAYERS
from ..models import ARCHITECTURES, Inputs, Model, check_sizes, check_values
from ..nn import FlexConvNd, FrozenNeighbors
from ._metadata import INPUTS, Metadata, as_text

FORMAT = 1
KEY = "flexconv.conv"
_ARGUMENTS = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "padding_mode",
)


# --- saving -----------------------------------------------------------------------------------------------------------


def save_conv(model: nn.Module, plain: nn.Module, metadata: Metadata) -> bytes:
    """The content of the file for a model and its materialized version `plain`."""
    places = [name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, FlexConvNd)]
    entries = {
        "format": FORMAT,
        "flexconv": __version__,
        "architecture": type(model).__name__,
        "config": _config(model),
        "convolutions": {name: _described(plain.get_submodule(name)) for name in places},
        "neighbors": {name: m.settings for name, m in plain.named_modules() if isinstance(m, FrozenNeighbors)},
    }
    state = {name: tensor.detach().contiguous().clone() for name, tensor in plain.state_dict().items()}
    return safetensors.torch.save(state, metadata={"format": "pt", KEY: json.dumps(entries), **as_text(metadata)})


def _config(model: nn.Module) -> dict[str, Any] | None:
    """The arguments of a network of flexconv.models; None if its layers were changed after it was made."""
    kind = ARCHITECTURES.get(type(model).__name__)
    if kind is None or type(model) is not kind:
        return None
    config: dict[str, Any] = model.config  # type: ignore[assignment]
    twin = kind(**config, device="meta")
    return config if _layers(twin) == _layers(model) else None


def _layers(model: nn.Module) -> list[tuple[str, type, object]]:
    return [
        (name, type(module), [tuple(p.shape) for p in module.parameters(recurse=False)])
        for name, module in model.named_modules()
    ]


def _described(module: nn.Module) -> dict[str, Any]:
    """A convolution, with or without padding before it, as JSON."""
    *padding, conv = module if isinstance(module, nn.Sequential) else [module]
    modes = {kind: mode for mode, kinds in PADDING_LAYERS.items() for kind in kinds.values()}
    return {
        "dims": len(conv.kernel_size),  # type: ignore[arg-type]
        **{name: getattr(conv, name) for name in _ARGUMENTS},
        "bias": conv.bias is not None,
        "before": [[modes[type(each)], list(each.padding)] for each in padding],  # type: ignore[index, call-overload]
    }


# --- loading ----------------------------------------------------------------------------------------------------------


def load_conv(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Load a network written by `export(…, format="conv")`, in eval mode, with plain convolutions for FlexConvs.

        plain = load_conv("model.safetensors")                  # a network of flexconv.models, or a single layer
        plain = load_conv("mine.safetensors", MyNetwork())      # your own: any instance shows where the layers go

    `model` is not changed. Nothing in the file is executed. The `inputs` of a network of flexconv.models are restored:
    `plain(plain.inputs(raw))`.
    """
    if Path(path).exists() and not Path(path).is_file():
        raise ArgumentError(f"{path} is not a regular file: give a file that export wrote")
    return parse_conv(Path(path).read_bytes(), model, where=str(path))


def parse_conv(content: bytes, model: nn.Module | None, *, where: str) -> nn.Module:
    entries, inputs, state = _read(content, where)
    owned = model is not None
    check_values(where, state)
    if isinstance(entries.get("config"), dict):
        check_sizes(where, entries["config"], state)
    try:
        layers = {
            name: _conv(**about).to_empty(device="cpu" if owned else "meta")
            for name, about in entries["convolutions"].items()
        }
        if model is None and "" in layers:
            model = layers.pop("")
        elif model is None and entries["config"] is not None:
            model = ARCHITECTURES[entries["architecture"]](**entries["config"], device="meta")
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RuntimeError) as error:
        text = f"{type(error).__name__}: {first_line(error)}"  # torch raises the last for impossible sizes
        raise ArgumentError(f"{where} is damaged or was written by another version of flexconv: {text}") from error
    if model is None:
        raise ArgumentError(
            f"{where} holds a {entries['architecture']}, which is not an unchanged network of flexconv.models: give an "
            f"instance of it, load_conv(path, model)"
        )
    result = _replaced(model, layers, where)
    _add_neighbors(result, entries.get("neighbors", {}), state, where)  # older files have none
    if owned:  # parameters that it shares between modules stay shared
        result = result.float().cpu()
    try:
        result.load_state_dict(state, assign=not owned)
    except RuntimeError as error:
        raise ArgumentError(f"{where} does not fit {type(model).__name__}: {' '.join(str(error).split())}") from error
    if inputs is not None and isinstance(result, Model):
        inputs.check_fits(channels=result.in_channels, num_classes=result.num_classes, dims=result.dims)
        result.inputs = inputs
    return result.eval()


def _read(content: bytes, where: str) -> tuple[dict[str, Any], Inputs | None, dict[str, torch.Tensor]]:
    """The description of the convolutions, that of the inputs if there is one, and the state dict."""
    try:
        state = safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError) as error:
        raise ArgumentError(f"{where} is damaged or not a safetensors file: {error}") from error
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    try:
        entries = json.loads(header["__metadata__"][KEY])
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ArgumentError(
            f'{where} was not written by export(…, format="conv"): its metadata have no {KEY!r}'
        ) from error
    if not isinstance(entries, Mapping) or entries.get("format") != FORMAT:
        version = entries.get("flexconv", "unknown") if isinstance(entries, Mapping) else "unknown"
        raise ArgumentError(f"{where} was written by flexconv {version} in a format that this version cannot read")
    inputs = header["__metadata__"].get(INPUTS)  # not in older files
    try:
        return dict(entries), None if inputs is None else Inputs.read(json.loads(inputs)), state
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{where}: {INPUTS!r} of its metadata cannot be read: {first_line(error)}") from error


def _add_neighbors(
    model: nn.Module, neighbors: Mapping[str, Any], state: Mapping[str, torch.Tensor], where: str
) -> None:
    """Add what networks and separable convolutions need for missing samples."""
    for name, settings in neighbors.items():
        place, _, attribute = name.rpartition(".")
        try:
            frozen = FrozenNeighbors(state[f"{name}.weight"], state[f"{name}.mask"], settings)
            setattr(model.get_submodule(place), attribute, frozen)
        except (KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{where} is damaged or does not fit {type(model).__name__}: {error!r}") from error


def _conv(*, dims: int, before: list[tuple[str, list[int]]], **arguments: Any) -> nn.Module:
    """The convolution that `_described` describes, without weights."""
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    conv = CONV_LAYERS[dims](**known, device="meta")
    padding = [
        PADDING_LAYERS[mode][dims](tuple(amounts), 0.0)
        if mode == "zeros"
        else PADDING_LAYERS[mode][dims](tuple(amounts))
        for mode, amounts in before
    ]
    return nn.Sequential(*padding, conv) if padding else conv


def _replaced(model: nn.Module, layers: Mapping[str, nn.Module], where: str) -> nn.Module:
    """A copy of the model with its FlexConvs replaced by `layers`."""
    flexible = {name: m for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, FlexConvNd)}
    if flexible.keys() != layers.keys():
        name = min(flexible.keys() ^ layers.keys())
        has, lacks = (type(model).__name__, where) if name in flexible else (where, type(model).__name__)
        raise ArgumentError(
            f"{where} does not fit {type(model).__name__}: {has} has a FlexConv {name!r}, {lacks} has not"
        )
    if "" in flexible:
        return layers[""]
    # as in materialize: deepcopy uses the replacement that its memo holds for a module
    return copy.deepcopy(model, {id(module): layers[name] for name, module in flexible.items()})
