"""Figure 4: how well N-Jets, SIRENs and MAGNets fit kernels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ._item import NOTHING
from ._ledger import Ledger
from ._measures import error_of
from ._table import Column, Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ = NOTHING
FREQUENCIES = (1, 4, 16, 64)  # rad per unit
NYQUIST = 16 * math.pi  # rad per unit, of a grid of 33 points on [−1, 1]
_RANDOM, _HIGHEST = "0.28 … 0.30", "2.01e-2"


def draw(ledger: Ledger) -> Figure:
    """The errors over the frequency of the target, one line per generator."""
    from flexconv.viz.style import PAGE, new_figure, theme

    colours = theme()
    styles = {"/magnet-s": (colours.green, "s", "MAGNet-S"), "": (colours.blue, "o", "MAGNet")}
    styles["/siren"] = (colours.red, "D", "SIREN")
    figure = new_figure(0.62 * PAGE, 2.7)
    panel = figure.subplots()
    for row in FIGURE.rows:
        assert isinstance(row.recipe, str)
        njets = (colours.faint, ".", "N-Jets, orders 1 to 9" if row.recipe == "/njet-1" else None)
        colour, marker, label = styles.get(row.recipe, njets)
        for log in ledger.finished(f"fit-gabor{row.recipe}")[:1]:
            values = [error_of(f"gabor-{f}").of(log) for f in FREQUENCIES]
            panel.plot(FREQUENCIES, values, color=colour, label=label, marker=marker, markersize=3, linewidth=1)  # type: ignore[arg-type]
    panel.axvline(NYQUIST, color=colours.ink, linewidth=0.8, linestyle=":", label="Nyquist frequency, 16π")
    panel.set(xscale="log", yscale="log", xlabel="frequency of the Gabor filter, radians per unit")
    panel.set_ylabel("mean squared error")
    panel.set_xticks(FREQUENCIES, [f"{f}" for f in FREQUENCIES])
    panel.minorticks_off()
    figure.legend(loc="outside right upper")
    return figure


FIGURE = Table(
    name="figure4",
    title="Figure 4: mean squared errors of generators fitted to kernels of 33 × 33, 5,000 steps",
    columns=(
        *(Column(f"Gabor, {f} rad", error_of(f"gabor-{f}"), "fit-gabor{}") for f in FREQUENCIES),
        Column("random", error_of("random"), "fit-random{}"),
        Column("AlexNet", error_of("alexnet-0"), "fit-alexnet{}"),
    ),
    rows=(
        Row("N-Jet, order 1", _, (_, _, "2.0e-2", _HIGHEST, _RANDOM, "2.2e-3"), "/njet-1"),
        *(Row(f"N-Jet, order {n}", _, (_, _, _, _HIGHEST, _RANDOM, _), f"/njet-{n}") for n in range(2, 6)),
        Row("N-Jet, order 6", _, (_, _, _, _HIGHEST, _RANDOM, "3.2e-4"), "/njet-6"),
        *(Row(f"N-Jet, order {n}", _, (_, _, _, _HIGHEST, _RANDOM, _), f"/njet-{n}") for n in (7, 8)),
        Row("N-Jet, order 9", _, (_, _, "3.9e-3", _HIGHEST, _RANDOM, _), "/njet-9"),
        Row("MAGNet-S", _, ("4.1e-5", "1.5e-3", "1.3e-3", "7.4e-4", "5.9e-2", "2e-6"), "/magnet-s"),
        Row("MAGNet", _, ("< 5e-9", "< 5e-9", "< 5e-9", "< 5e-9", "< 5e-9", "< 5e-9"), ""),
        Row("SIREN", _, ("2e-8 … 5e-8",) * 4 + ("1.1e-4", _), "/siren"),
    ),
    notes=(
        "The paper shows these errors as a plot. The numbers are from the authors' logs, which are not complete.",
        "A function that is 0 everywhere has errors of 2.1e-4, 1.37e-2, 2.01e-2 and 2.01e-2 on the four Gabor filters.",
        "Our errors are those of the last step. The learning rate is constant, so errors jump from step to step: in "
        "metrics.jsonl, those of a MAGNet are below 5e-9 on all four Gabor filters at earlier steps.",
        "64 rad per unit is more than 33 points can represent. That target is aliased, in the paper, too.",
    ),
    seeds=(0,),
    published="from the authors' logs; it is unknown whether of the last or of the best step",
    draw=draw,
)
