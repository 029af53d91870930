"""Where trained networks are: in this package, in the distribution flexconv-weights, or in a checkout.

Each of these folders has an `index.json`, written by `python -m reproduction ship`:

    {"format": 1, "networks": {"flexnet3-digits": {"weights": "weights-94d9….safetensors", "sha256": "94d9…"}}}

`networks` maps a name to the weights file in the folder of that name and to its SHA-256. The index of this package also
lists the names in flexconv-weights, so that an error can say where to get a network that is not installed.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, MissingFileError

INDEX = "index.json"
INDEX_FORMAT = 1
DISTRIBUTION = "flexconv-weights"
PACKAGE = Path(__file__).parents[1] / "weights"
CHECKOUT = Path(__file__).parents[3] / "weights"  # next to src/ in a checkout; elsewhere there is no such folder


@dataclass(frozen=True)
class Trained:
    """A trained network in a folder with an index."""

    folder: Path
    sha256: str  # of the weights file


def trained_networks() -> dict[str, Trained]:
    """All trained networks that are available here, by name."""
    found: dict[str, Trained] = {}
    for root in _roots():
        for name, entry in _read(root / INDEX).get("networks", {}).items():
            found.setdefault(name, Trained(root / name, entry["sha256"]))
    return found


def other_networks() -> list[str]:
    """The names of the networks in flexconv-weights, whether or not it is installed."""
    return list(_read(PACKAGE / INDEX).get(DISTRIBUTION, []))


def list_pretrained() -> list[str]:
    """The names of the trained networks that are available here, for `from_pretrained`.

    One small network is part of flexconv. The others are in the distribution flexconv-weights
    (`pip install ./weights` in a checkout of flexconv) and in the folder `weights` of a checkout.
    """
    return sorted(trained_networks())


def other_pretrained() -> list[str]:
    """The names of the trained networks that are published but not available here."""
    return sorted({*other_networks()} - {*trained_networks()})


def pretrained_folder(name: str) -> Path:
    """The folder of a trained network: its weights, config, recipe, results and model card."""
    networks = trained_networks()
    if name not in networks:
        raise MissingFileError(missing(name))
    return networks[name].folder


def missing(name: str) -> str:
    """How to get a network of flexconv-weights that is not available here."""
    return f"the trained network {name!r} is not installed: pip install ./weights in a checkout of flexconv"


def _roots() -> list[Path]:
    """The folders with trained networks, in the order in which they are searched."""
    installed = importlib.util.find_spec("flexconv_weights")
    others = [] if installed is None else [Path(place) for place in installed.submodule_search_locations or []]
    return [root for root in (PACKAGE, *others, CHECKOUT) if (root / INDEX).is_file()]


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        index = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ArgumentError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(index, dict) or index.get("format") != INDEX_FORMAT:
        raise ArgumentError(f"{file} is not an index of format {INDEX_FORMAT}")
    return index
