"""Saving and loading networks: `config.json` describes the network, a safetensors file next to it holds the weights.

config.json is the only file that is ever replaced. It names its weights file and that file's SHA-256. So a save that is
interrupted at any point leaves the previous network intact, and a damaged file is detected before it is used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from .._arguments import unknown_name
from .._files import write_atomically
from .._version import __version__
from ..errors import ArgumentError, ArgumentTypeError, FlexConvError, MissingFileError, first_line
from ..nn import HALF, FlexConvNd
from ..resolution import at_resolution
from ._base import Model
from ._inputs import Inputs
from ._locate import INDEX, missing, other_networks, trained_networks
from ._registry import ARCHITECTURES
from ._skeleton import SkipInitialization
from ._untrusted import check_sizes, check_values

CONFIG = "config.json"
FORMAT = 1  # of config.json
MOST_TAPS = 2**28  # of a kernel in a file
MOST_RESAMPLINGS = 100

_WEIGHTS = re.compile(r"[\w-][\w.-]*\.safetensors")  # a plain file name: never a path out of the folder
_ENTRIES = {
    "format": int,
    "flexconv": str,
    "architecture": str,
    "config": dict,
    "resampled": list,
    "weights": str,
    "sha256": str,
}


# --- saving -----------------------------------------------------------------------------------------------------------


def save_pretrained(model: Model, folder: str | os.PathLike[str]) -> None:
    """Save a network of `flexconv.models` in a folder, for `from_pretrained`. Nothing is pickled.

    A network that is already in the folder is replaced in one step, once the new one is completely written.
    """
    if type(model) not in ARCHITECTURES.values():
        raise ArgumentTypeError(
            f"save_pretrained saves the networks of flexconv.models ({', '.join(ARCHITECTURES)}); "
            f"got a {type(model).__name__}"
        )
    if empty := [name for name, tensor in model.state_dict().items() if tensor.is_meta]:
        raise ArgumentError(f"{_some(empty)} are on the meta device, so there are no weights to save")
    _check_against_config(model)
    _check_inputs(model)
    check_values("the model", model.state_dict())
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    weights = safetensors.torch.save(state, metadata={"format": "pt"})
    digest = hashlib.sha256(weights).hexdigest()
    entries = {
        "format": FORMAT,
        "flexconv": __version__,
        "architecture": type(model).__name__,
        "config": model.config,
        "resampled": model.resampling,
        "inputs": None if model.inputs is None else model.inputs.plain(),
        "weights": f"weights-{digest[:12]}.safetensors",
        "sha256": digest,
    }
    previous = _weights_named_by(folder / CONFIG)
    weights_file = folder / entries["weights"]
    write_atomically(weights_file, weights)
    stale = None if previous in (None, entries["weights"]) else folder / previous
    try:
        write_atomically(folder / CONFIG, (json.dumps(entries, indent=2, ensure_ascii=False) + "\n").encode())
    except BaseException:
        if previous != entries["weights"]:
            weights_file.unlink(missing_ok=True)
        raise
    if stale is not None:
        stale.unlink(missing_ok=True)


def _check_inputs(model: Model) -> None:
    if model.inputs is not None:
        model.inputs.check_fits(channels=model.in_channels, num_classes=model.num_classes, dims=model.dims)


def _check_against_config(model: Model) -> None:
    """Refuse a network that was modified after it was built: its config would not describe it any more."""
    twin = _resample(ARCHITECTURES[type(model).__name__](**model.config, device="meta"), model.resampling)
    _compare_shapes("the model", twin, model.state_dict())
    layers = dict(model.named_modules())
    for name, module in twin.named_modules():
        if isinstance(module, FlexConvNd):
            for what, ours, theirs in zip(_SETTINGS, _settings(layers[name]), _settings(module), strict=True):
                if ours != theirs:
                    raise ArgumentError(
                        f"{what} of {name} is {ours}, but {theirs} in a model of this config: a network that was "
                        f"modified cannot be saved. Save it first and modify it after loading"
                    )


_SETTINGS = ("the grid", "the scale", "the stride", "the dilation", "the padding mode", "the mask's cropping")


def _settings(layer: Any) -> tuple[object, ...]:
    mask = None if layer.mask is None else (layer.mask.threshold, layer.mask.form)
    return layer.axes, layer.grid.scale, layer.stride, layer.dilation, layer.padding_mode, mask


def _resample(model: Model, resampling: Sequence[tuple[Sequence[float], str]]) -> Model:
    """The model on the grids that `Model.resampling` describes."""
    for scale, crop in resampling:
        model = at_resolution(model, scale, crop=crop)
    return model


def _weights_named_by(config: Path) -> str | None:
    """The weights file of a network that is about to be replaced; None if there is no intact config."""
    try:
        name = json.loads(config.read_text("utf-8"))["weights"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and _WEIGHTS.fullmatch(name) else None


# --- loading ----------------------------------------------------------------------------------------------------------


def from_pretrained(folder_or_name: str | os.PathLike[str], *, num_classes: int | None = None) -> Model:
    """Load a network with its weights, in eval mode, on the CPU, in the precision in which it was saved.

    `folder_or_name` is looked up in this order:

    1. the name of a trained network that is part of flexconv, of an installed flexconv-weights
       (`pip install ./weights` in a checkout), or of the folder `weights` of a checkout: see `list_pretrained`;
    2. a folder written by `save_pretrained`;
    3. "user/name" or "user/name@revision" on the Hugging Face Hub, as `push_to_hub` uploads it (extra `hub`),
       unless there is a folder "user".

    A name takes precedence over a folder of the same name in the current directory; write "./name" for the folder.
    The weights file is checked by its SHA-256.

    Arguments:
        folder_or_name: what to load.
        num_classes: replaces the last layer by a new, untrained one with this many classes. Default: keep it.

    """
    folder, digest = _find(folder_or_name)
    file = folder / CONFIG
    entries = _read_config(file)
    if digest not in (None, entries["sha256"]):
        raise ArgumentError(
            f"{file} and {folder.parent / INDEX} state different SHA-256 sums for the weights of {folder.name}: "
            f"install the files again"
        )
    weights = folder / entries["weights"]
    state = _read_weights(weights, entries["sha256"], file)
    check_sizes(str(file), entries["config"], state)
    model = _build(file, entries)
    _compare_shapes(str(weights), model, state)
    check_values(str(weights), state)
    if num_classes is not None:
        model, state = _for_other_classes(model, state, num_classes)
    model.load_state_dict(state, assign=True)
    if model.head.weight.dtype in HALF:
        model.to(model.head.weight.dtype)  # layers without a bias have no tensor that would tell them
    return model.eval()


def _for_other_classes(
    model: Model, state: Mapping[str, torch.Tensor], num_classes: int
) -> tuple[Model, dict[str, torch.Tensor]]:
    """The network with another number of classes, and its weights with a newly initialized last layer."""
    other = _resample(type(model)(**{**model.config, "num_classes": num_classes}), model.resampling)
    if model.inputs is not None:
        other.inputs = replace(model.inputs, classes=tuple(map(str, range(other.num_classes))))
    head = {f"head.{name}": tensor for name, tensor in other.head.state_dict().items()}
    return other, {**state, **{name: tensor.to(state[name].dtype) for name, tensor in head.items()}}


def _find(folder_or_name: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The folder of a network, and the SHA-256 of its weights if an index states it."""
    trained = trained_networks()
    if isinstance(folder_or_name, str) and folder_or_name in trained:
        network = trained[folder_or_name]
        return network.folder, network.sha256
    folder = Path(folder_or_name)
    if (folder / CONFIG).is_file():
        return folder, None
    if folder.is_dir():
        below = folder / "weights"  # of a run
        hint = f"; did you mean {below}?" if (below / CONFIG).is_file() else ""
        raise MissingFileError(f"{folder} holds no {CONFIG}, so it was not written by save_pretrained{hint}")
    if folder.is_file():
        raise ArgumentError(f"{folder} is a file: pass the folder that save_pretrained wrote")
    if isinstance(folder_or_name, str) and "/" in folder_or_name:
        from ._hub import download, is_hub_name  # imports this module

        if is_hub_name(folder_or_name):
            return download(folder_or_name), None
    if isinstance(folder_or_name, str) and folder.name == folder_or_name:
        if folder_or_name in (others := other_networks()):
            raise MissingFileError(missing(folder_or_name))
        if known := {*trained, *others}:
            unknown_name("trained network", folder_or_name, known, of="(and there is no such folder)")
    raise MissingFileError(f"there is no folder {folder}, and no trained network of that name")


def _read_config(file: Path) -> dict[str, Any]:
    try:
        entries = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise ArgumentError(f"{file} must hold a JSON object; got {type(entries).__name__}")
    if "format" not in entries:
        raise ArgumentError(f"{file} was not written by flexconv: it has no format entry")
    if entries["format"] != FORMAT:
        raise ArgumentError(
            f"{file}: format is {entries['format']!r}, written by flexconv {entries.get('flexconv', 'unknown')}; "
            f"this version reads format {FORMAT}"
        )
    for name, kind in _ENTRIES.items():
        if not isinstance(entries.get(name), kind):
            raise ArgumentError(f"{file}: {name} must be of type {kind.__name__}; got {entries.get(name)!r}")
    if not _WEIGHTS.fullmatch(entries["weights"]):
        raise ArgumentError(
            f"{file}: weights must name a safetensors file in the same folder; got {entries['weights']!r}"
        )
    return entries


def _build(file: Path, entries: Mapping[str, Any]) -> Model:
    """The network on the meta device: nothing is initialized or allocated."""
    try:
        kind = ARCHITECTURES.get(entries["architecture"]) or unknown_name(
            "architecture", entries["architecture"], ARCHITECTURES
        )
        known = inspect.signature(kind).parameters.keys() - {"device", "dtype"}
        for name in entries["config"]:
            if name not in known:
                unknown_name("argument", name, known, of=f"of {entries['architecture']} in config")
        config = {"parametrization": "paper"} | entries["config"]  # older versions knew no other
        with SkipInitialization():
            model = kind(**config, device="meta")
        _check_taps(model)
        if len(entries["resampled"]) > MOST_RESAMPLINGS:
            raise ArgumentError(
                f"resampled has {len(entries['resampled'])} entries, at most {MOST_RESAMPLINGS} are read"
            )
        for each in entries["resampled"]:
            model = _resample(model, [each])
            _check_taps(model)
        if (inputs := entries.get("inputs")) is not None:  # networks saved by older versions have none
            model.inputs = Inputs.read(inputs)
            _check_inputs(model)
        return model
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch raises the last for impossible sizes
        text = str(error) if isinstance(error, FlexConvError) else first_line(error)
        raise ArgumentError(f"{file} (written by flexconv {entries['flexconv']}): {text}") from error


def _check_taps(model: Model) -> None:
    """Refuse kernels that no machine can sample."""
    for name, layer in model.named_modules():
        if isinstance(layer, FlexConvNd) and math.prod(layer.kernel_size) > MOST_TAPS:
            size = "×".join(map(str, layer.kernel_size))
            raise ArgumentError(f"the kernel of {name} has {size} taps, more than {MOST_TAPS:,}: kernel_size is wrong")


def _read_weights(file: Path, digest: str, config: Path) -> dict[str, torch.Tensor]:
    if file.exists() and not file.is_file():
        raise ArgumentError(f"{file} is not a regular file: {config} names it as the weights file")
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} is missing: {config} names it as the weights file") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ArgumentError(
            f"{file} is damaged or belongs to another network: its SHA-256 differs from the one in {config} "
            f"({len(content):,} bytes read)"
        )
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, KeyError) as error:  # the latter for a dtype that torch does not have
        raise ArgumentError(f"{file} is not a safetensors file: {error}") from error


def _compare_shapes(where: str, model: Model, state: Mapping[str, torch.Tensor]) -> None:
    expected = model.state_dict()
    missing, surplus = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing or surplus:
        parts = [
            (f"lacks {_some(missing)}", missing),
            (f"has the unknown entries {_some(surplus)}", surplus),
        ]
        raise ArgumentError(
            f"{where} does not match its config: it {' and '.join(text for text, names in parts if names)}"
        )
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise ArgumentError(
                f"{where} does not match its config: {name} has shape {tuple(state[name].shape)}, "
                f"expected {tuple(tensor.shape)}"
            )
        if tensor.is_floating_point() != state[name].is_floating_point() or state[name].is_complex():
            raise ArgumentError(f"{where} does not match its config: {name} is {state[name].dtype}, not {tensor.dtype}")


def _some(names: Collection[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
