"""flexconv explore"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import FlexConvError
from ._common import Root, say
from ._model import ModelName, load_model, load_with_data

if TYPE_CHECKING:
    import torch

    from ..explorer import Network
    from ..models import Model
    from ..train import Recipe

MAX_SAMPLES = 20


def explore(
    model: ModelName,
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="A second model, which is shown beside the first one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write. [default: MODEL.html, in this folder]")
    ] = None,
    root: Root = None,
) -> None:
    """Write an interactive page about one or two models.

    The page is one HTML file that works offline. It shows two models side by side. If the data that a model was trained
    on are on this machine, the page contains one test sample per class.
    """
    names = [model] if other is None else [model, other]
    networks = [(name, *load_model(name)) for name in names]
    path = out or Path("-".join(Path(name).resolve().name for name in names) + ".html")
    write_page(networks, path, root=root)


def write_page(networks: list[tuple[str, Model, Recipe | None]], path: Path, *, root: Path | None = None) -> None:
    """Write the page about one or two networks, each given by its name, model and recipe, and say how large it is.

    `root` is the folder of the data sets, from which samples are taken.
    """
    from .. import explorer
    from .._files import refuse_unwritable

    refuse_unwritable(path, "page.html")  # before samples are searched, which may take a while
    first, *others = (_network(*each, root) for each in networks)
    explorer.write_page(
        first.model,
        path,
        title=first.title,
        records=first.records,
        results=first.results,
        samples=first.samples,
        labels=first.labels,
        compare_with=others[0] if others else None,
    )
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _network(name: str, model: Model, recipe: Recipe | None, root: Path | None) -> Network:
    """A model with its title, the records and results of its run, if it has a run folder, and samples of its data."""
    from ..explorer import Network
    from ..models import list_pretrained, pretrained_folder
    from ..train import RunFolder

    run = RunFolder(pretrained_folder(name) if name in list_pretrained() else name)
    if run.path.resolve().name == "weights" and not run.exists:
        run = RunFolder(run.path.resolve().parent)  # the weights of a run
    title = Path(name).resolve().name if recipe is None or not recipe.about else recipe.about
    results = run.read_results() if run.finished else _card(Path(name))
    samples, labels = _samples(name, model, recipe, root)
    return Network(model, title, run.read_metrics(), results, samples=samples, labels=labels)


def _card(folder: Path) -> dict[str, str] | None:
    """The accuracy in the model card of a folder of weights, or None."""
    card = folder / "README.md"
    found = re.search(r"^\| accuracy \| (.+) \|$", card.read_text("utf-8"), re.MULTILINE) if card.is_file() else None
    return None if found is None else {"accuracy": found[1].replace("\\|", "|")}


def _samples(
    name: str, model: Model, recipe: Recipe | None, root: Path | None
) -> tuple[torch.Tensor | None, list[int] | None]:
    """The first test sample of every class, and the classes; None and None if the data are not on this machine.

    Samples of different lengths are not shown.
    """
    import torch

    inputs = model.inputs
    if recipe is None or inputs is None or inputs.mfcc_rate is not None or inputs.images is not None:
        return None, None
    try:
        split = load_with_data(name, None, root)[2].test
    except (FlexConvError, OSError) as error:
        say(f"note: the page has no samples of the data of {name}: {error}")
        return None, None
    if split is None or split.lengths is not None:
        return None, None
    found = [(split.labels == label).nonzero()[:1] for label in range(min(model.num_classes, MAX_SAMPLES))]
    chosen = torch.cat(found).flatten()
    images = split.inputs[chosen] if isinstance(split.inputs, torch.Tensor) else split.inputs.take(chosen)
    return images, split.labels[chosen].tolist()
