"""flexconv models"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ._common import print_table, say


@dataclass(frozen=True)
class Pretrained:
    """A pretrained network, as its files describe it. What they do not say is None."""

    name: str
    installed: bool
    architecture: str | None = None
    parameters: int | None = None
    bytes: int | None = None  # of the weights file
    data: str | None = None
    input_size: list[int] | None = None
    classes: list[str] | None = None
    test_accuracy: float | None = None
    folder: str | None = None


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print all details as JSON.")] = False,
) -> None:
    """List the pretrained networks and the names of models.

    The name of a pretrained network can be given as MODEL to the other commands. The models are those that a recipe and
    `flexconv.create_model` can name.
    """
    from ..models import list_models, list_pretrained, other_pretrained, pretrained_folder

    known = [_read(name, pretrained_folder(name)) for name in list_pretrained()]
    absent = [Pretrained(name, installed=False) for name in other_pretrained()]
    networks = sorted([*known, *absent], key=lambda network: network.name)
    if as_json:
        say(json.dumps({"pretrained": [asdict(each) for each in networks], "models": list_models()}, indent=2))
        return
    titles = ("pretrained network", "data", "input", "test accuracy", "parameters", "size")
    print_table(titles, [_row(network) for network in networks], right=titles[2:])
    if absent:
        say("\nnot installed: `pip install ./weights` in a checkout of flexconv installs these networks")
    say(f"\nmodels: {', '.join(list_models())}")
    say("\nflexconv eval NAME tests a pretrained network; flexconv recipes lists what can be trained")


def _read(name: str, folder: Path) -> Pretrained:
    """Read the config and the results of a network."""
    from ..models import CONFIG

    config = json.loads((folder / CONFIG).read_text("utf-8"))
    results = json.loads((folder / "results.json").read_text("utf-8"))
    inputs: dict[str, Any] = config.get("inputs") or {}
    return Pretrained(
        name,
        installed=True,
        architecture=config["architecture"],
        parameters=results.get("parameters"),
        bytes=(folder / config["weights"]).stat().st_size,
        data=results.get("data"),
        input_size=inputs.get("size"),
        classes=inputs.get("classes"),
        test_accuracy=results.get("test_accuracy"),
        folder=str(folder),
    )


def _row(network: Pretrained) -> tuple[str, ...]:
    if not network.installed:
        return (network.name, "not installed", "", "", "", "")
    return (
        network.name,
        network.data or "",
        "×".join(map(str, network.input_size or ())),
        "" if network.test_accuracy is None else f"{100 * network.test_accuracy:.2f} %",
        "" if network.parameters is None else f"{network.parameters:,}",
        "" if network.bytes is None else f"{network.bytes / 1e6:.1f} MB",
    )
