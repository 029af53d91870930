"""The plots of a finished run."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from ..nn import FlexConvNd
from .folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]


def draw_plots(folder: RunFolder, model: nn.Module) -> None:
    """Draw curves, kernel sizes over time, masks, and the largest kernel as PNG. Does nothing without matplotlib.

    A plot that cannot be drawn or saved does not fail the run: it is skipped with a warning.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    with _skipping("plots"):
        for name, draw in _drawings(folder, model).items():
            with _skipping(f"plots/{name}.png"):
                folder.plots.mkdir(exist_ok=True)
                draw().savefig(folder.plots / f"{name}.png")


@contextmanager
def _skipping(what: str) -> Iterator[None]:
    """Turn any error into a warning: results and weights are worth more than a picture."""
    try:
        yield
    except Exception as error:
        warnings.warn(f"could not draw {what}: {type(error).__name__}: {error}", stacklevel=2)


def _drawings(folder: RunFolder, model: nn.Module) -> dict[str, Callable[[], Figure]]:
    """The function that draws each plot, by the name of its file."""
    from .. import viz

    drawings: dict[str, Callable[[], Figure]] = {}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, FlexConvNd)}
    if records := folder.read_metrics():
        results = folder.read_results() if folder.finished else {}
        drawings["curves"] = lambda: viz.plot_curves(with_test(records, results))
    if records and layers:
        drawings["sizes"] = lambda: viz.plot_sizes(size_history(records), count="epoch")
    if layers:
        largest = max(layers, key=lambda name: sum(layers[name].extent))
        drawings["masks"] = functools.partial(viz.plot_masks, model)
        drawings["kernel"] = functools.partial(viz.plot_kernel, layers[largest], name=largest)
    return drawings


def with_test(records: Records, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a run with the test of the final weights, at the epoch from which these weights are.

    If the epoch was selected on the test data, the scores that the run calls validation are renamed to test. They are
    then not an estimate of the error on new data, and the plot must not look as if they were.
    """
    if results.get("selected") == "test":
        return [{key.replace("validation_", "test_"): value for key, value in record.items()} for record in records]
    test = {key: results[key] for key in ("test_loss", "test_accuracy") if key in results}
    epoch = results.get("best", records[-1])["epoch"]
    return [*map(dict, records), *([{"epoch": epoch, **test}] if test else [])]


def size_history(records: Records) -> dict[str, list[tuple[int, tuple[int, ...]]]]:
    """Return the kernel size of every layer after every epoch, as `flexconv.viz.plot_sizes` expects them."""
    names = dict.fromkeys(name for record in records for name in record["sizes"])
    return {
        name: [(record["epoch"], tuple(record["sizes"][name])) for record in records if name in record["sizes"]]
        for name in names
    }
