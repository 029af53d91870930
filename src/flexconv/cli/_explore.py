"""flexconv explore"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._common import say
from ._model import ModelName, load_model

if TYPE_CHECKING:
    from ..explorer import Network
    from ..models import Model
    from ..train import Recipe


def explore(
    model: ModelName,
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="A second model, which is shown beside the first one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write. [default: MODEL.html, in this folder]")
    ] = None,
) -> None:
    """Write an interactive page about one model, or about two side by side: one HTML file that works offline."""
    names = [model] if other is None else [model, other]
    networks = [(name, *load_model(name)) for name in names]
    write_page(networks, out or Path("-".join(Path(name).resolve().name for name in names) + ".html"))


def write_page(networks: list[tuple[str, Model, Recipe | None]], path: Path) -> None:
    """Write the page about one or two networks, each given by its name, model and recipe, and say how large it is."""
    from .. import explorer

    first, *others = (_network(*each) for each in networks)
    explorer.write_page(
        first.model,
        path,
        title=first.title,
        records=first.records,
        results=first.results,
        compare_with=others[0] if others else None,
    )
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _network(name: str, model: Model, recipe: Recipe | None) -> Network:
    """A model with its title, and the records and results of its run, if it has a run folder."""
    from ..explorer import Network
    from ..models import list_pretrained, pretrained_folder
    from ..train import RunFolder

    run = RunFolder(pretrained_folder(name) if name in list_pretrained() else name)
    title = Path(name).resolve().name if recipe is None or not recipe.about else recipe.about
    return Network(model, title, run.read_metrics(), run.read_results() if run.finished else None)
