"""Figure 5: other pairs of resolutions."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ._ledger import Ledger
from ._measures import CHANGE, FINE_TUNED
from ._table import Column, Row, Table, published_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TARGETS = (28, 30, 32, 34, 36)
_CHANGES = {  # (penalty, source) → change in points without fine-tuning, accuracy after fine-tuning; per target
    ("f-magnet", 16): (("−3.0", "−6.2", "−4.9", "−3.9", "−7.4"), ("88.87", "88.53", "88.04", "88.20", "88.41")),
    ("f-magnet", 20): (("−5.1", "−3.8", "−3.9", "−4.8", "−4.5"), ("89.77", "89.86", "90.40", "89.54", "89.61")),
    ("f-flexconv", 16): (("−1.7", "−1.7", "−3.4", "−1.9", "−1.9"), ("86.72", "86.30", "87.60", "87.53", "87.15")),
    ("f-flexconv", 20): (("−0.4", "−0.5", "−1.4", "−0.4", "−0.4"), ("88.18", "88.19", "88.74", "88.49", "88.65")),
}


def _recipe(penalty: str, source: int, target: int) -> str:
    pair = "" if (source, target) == (16, 32) else f"-{source}-{target}"
    return f"cross-resolution-cifar10/{penalty}{pair}"


def draw(ledger: Ledger) -> Figure:
    """The change without fine-tuning over the target resolution: published as dashed lines, ours as points."""
    from flexconv.viz.style import PAGE, new_figure, theme

    figure = new_figure(PAGE, 2.6)
    panels = figure.subplots(1, 2, sharey=True)
    for (penalty, source), (changes, _) in _CHANGES.items():
        panel = panels[int(source == 20)]
        colour, marker = {"f-magnet": (theme().blue, "o"), "f-flexconv": (theme().red, "s")}[penalty]
        published = [published_value(text) for text in changes]
        panel.plot(TARGETS, published, "--", color=colour, label=f"{penalty}, published")  # type: ignore[arg-type]
        found = {t: [CHANGE.of(log) for log in ledger.finished(_recipe(penalty, source, t), CHANGE)] for t in TARGETS}
        means = {t: statistics.fmean(v for v in values if v is not None) for t, values in found.items() if values}
        if means:
            panel.plot(list(means), list(means.values()), marker, markersize=4, color=colour, label=f"{penalty}, ours")
        panel.set(title=f"trained at {source} × {source} pixels", xlabel="tested at, pixels", xticks=TARGETS)
        panel.axhline(0, color=theme().faint, linewidth=0.6)
        panel.grid(axis="y")
    panels[0].set_ylabel("change in accuracy, points")
    for panel in panels:
        if not any(str(line.get_label()).endswith("ours") for line in panel.lines):
            note = {"color": theme().faint, "ha": "center", "va": "bottom", "fontsize": 7}
            panel.text(0.5, 0.03, "we have not run these", transform=panel.transAxes, **note)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


FIGURE = Table(
    name="figure5",
    title="Figure 5: alias-free FlexNet-16 on CIFAR-10, other pairs of resolutions, accuracy in %",
    columns=(Column("Δ without fine-tuning", CHANGE), Column("fine-tuned", FINE_TUNED)),
    rows=tuple(
        Row(f"{penalty}, {source} → {target}", "0.67M", (change, tuned), _recipe(penalty, source, target))
        for (penalty, source), (changes, accuracies) in _CHANGES.items()
        for target, change, tuned in zip(TARGETS, changes, accuracies, strict=True)
    ),
    notes=("The paper shows these numbers as a plot. They are from its authors' records, means over five runs.",),
    seeds=(0, 1, 2, 3, 4),
    draw=draw,
)
