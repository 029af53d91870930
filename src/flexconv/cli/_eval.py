"""flexconv eval"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ._common import Device, Root, print_table, say
from ._model import BatchSize, DataName, DataOptions, ModelName, Scorer, load_with_data, part_of

if TYPE_CHECKING:
    from ..data import DataSplits
    from ..train import ClassReport

MOST_CLASSES = 20  # that the tables list
LONGEST_HEAD = 4  # characters of a class name above a column of the confusion matrix
WORST = 10  # classes and confusions that are listed if there are more


def evaluate(
    model: ModelName,
    data: DataName = None,
    options: DataOptions = None,
    part: Annotated[
        str, typer.Option("--part", metavar="PART", help="Part of the data to use: test, validation or train.")
    ] = "test",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the confusion matrix, as .png, .pdf or .svg."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    batch_size: BatchSize = None,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Measure the accuracy of a trained model, overall and per class.

    On the test data of a run, the accuracy is that in results.json of the run folder. Models are evaluated in float32.
    The calibration error says how far the model's confidence is from its accuracy: the mean of their difference over 15
    bins of confidence.
    """
    if plot is not None:
        _check_plot(plot)
    network, recipe, splits = load_with_data(model, data, root, options)
    split = part_of(splits, part)
    from ..train import evaluate_classes

    scorer = Scorer(recipe, device=device, batch_size=batch_size)
    report = evaluate_classes(network.to(scorer.device), scorer.batches(split, network))
    if as_json:
        say(json.dumps(_entries(report, splits, model, part), indent=1, ensure_ascii=False))
    else:
        _print(report, splits, part)
    if plot is not None:
        from ..viz import plot_confusion

        accuracy = f"{100 * report.score.accuracy:.2f} % of {report.score.count:,}"
        plot_confusion(report.confusion, splits.class_names, title=f"{splits.name} {part}, {accuracy}").savefig(plot)
        if not as_json:
            say(f"wrote {plot}")


def _check_plot(file: Path) -> None:
    """Raise an error for a file that matplotlib cannot write, before the model is evaluated."""
    from .. import viz  # noqa: F401  (names the extra if matplotlib is missing)

    suffixes = ("png", "pdf", "svg")
    if file.suffix.lower().removeprefix(".") not in suffixes:
        raise ArgumentError(f"--plot must end with .{', .'.join(suffixes[:-1])} or .{suffixes[-1]}; got {str(file)!r}")
    if not file.parent.is_dir():
        raise ArgumentError(f"--plot {file}: there is no folder {file.parent}")


# --- as text ----------------------------------------------------------------------------------------------------------


def _print(report: ClassReport, splits: DataSplits, part: str) -> None:
    """Print a summary, then the classes and the confusion matrix."""
    score = report.score
    top5 = "" if score.top5_accuracy is None else f", top-5 {100 * score.top5_accuracy:.2f} %"
    say(f"{splits.name} {part}: {100 * score.accuracy:.2f} % of {score.count:,}{top5}, loss {score.loss:.4f}")
    excess = 100 * report.overconfidence
    side = f"on average {abs(excess):.2f} % {'over' if excess > 0 else 'under'}confident"
    say(f"calibration error: {100 * report.calibration_error:.2f} % ({side})")
    if splits.note:
        say(f"note: {splits.note}")
    say("")
    _print_classes(report, splits.class_names)
    say("")
    if len(splits.class_names) <= MOST_CLASSES:
        _print_matrix(report.confusion.tolist(), splits.class_names)
    else:
        _print_confusions(report.confusion, splits.class_names)


def _print_classes(report: ClassReport, names: Sequence[str]) -> None:
    """Print accuracy and precision of every class, or of the worst ones if there are many."""
    accuracies, order = report.accuracies, range(len(names))
    if len(names) > MOST_CLASSES:
        known = [number for number in order if int(report.counts[number])]
        order = sorted(known, key=lambda number: float(accuracies[number]))[:WORST]
        say(f"the {len(order)} classes of {len(names)} with the lowest accuracy:")
    titles = ("class", "samples", "accuracy", "precision", "mostly taken for")
    rows = [
        (
            names[number],
            f"{int(report.counts[number]):,}",
            _percent(accuracies[number].item()),
            _percent(report.precisions[number].item()),
            _most_confused(report.confusion[number].tolist(), number, names),
        )
        for number in order
    ]
    print_table(titles, rows, right=titles[1:4])


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def _most_confused(row: Sequence[int], own: int, names: Sequence[str]) -> str:
    """The wrong class that samples of a class are most often taken for; empty if there is none."""
    wrong = [(count, -other) for other, count in enumerate(row) if other != own and count]
    if not wrong:
        return ""
    count, other = max(wrong)
    return f"{names[-other]} ({count:,})"


def _print_matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """Print the confusion matrix. Columns are numbered if the names of the classes are too long for them."""
    say("true class in rows, predicted class in columns:")
    heads, labels = list(names), list(names)
    if max(map(len, names)) > LONGEST_HEAD:
        heads = [str(number) for number in range(1, len(names) + 1)]
        labels = [f"{head:>2} {name}" for head, name in zip(heads, names, strict=True)]
    cells = ([f"{count:,}" if count else "·" for count in row] for row in counts)
    print_table(["", *heads], [[label, *row] for label, row in zip(labels, cells, strict=True)], right=heads)


def _print_confusions(confusion: Any, names: Sequence[str]) -> None:
    """Print the most frequent confusions of two classes."""
    wrong = confusion.clone().fill_diagonal_(0).flatten()
    counts, cells = wrong.topk(min(WORST, len(wrong)))
    pairs = zip(cells.tolist(), counts.tolist(), strict=True)
    rows = [[names[cell // len(names)], names[cell % len(names)], f"{count:,}"] for cell, count in pairs if count]
    say("the most frequent confusions:")
    print_table(("true class", "taken for", "samples"), rows, right=("samples",))


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _entries(report: ClassReport, splits: DataSplits, model: str, part: str) -> dict[str, Any]:
    score = report.score
    accuracies, precisions = (
        [None if math.isnan(value) else value for value in values.tolist()]
        for values in (report.accuracies, report.precisions)
    )
    classes = [
        {"class": name, "count": count, "accuracy": accuracy, "precision": precision}
        for name, count, accuracy, precision in zip(
            splits.class_names, report.counts.tolist(), accuracies, precisions, strict=True
        )
    ]
    return {
        "model": model,
        "data": splits.name,
        "part": part,
        "count": score.count,
        "accuracy": score.accuracy,
        "top5_accuracy": score.top5_accuracy,
        "loss": score.loss,
        "calibration_error": report.calibration_error,
        "overconfidence": report.overconfidence,
        "classes": classes,
        "confusion": report.confusion.tolist(),
        "confidence_bins": [vars(each) for each in report.bins],
        "note": splits.note,
    }
