"""Table 8: trained at 16 pixels and tested at 32 pixels on ImageNet."""

from __future__ import annotations

from ._item import NOTHING
from ._measures import CHANGE, FINE_TUNED, SOURCE
from ._table import Column, Row, Table

_ = NOTHING
_AT = "cross-resolution-imagenet"

TABLE = Table(
    name="table8",
    title="Table 8: alias-free FlexNets on ImageNet, trained at 16 pixels, top-1 accuracy in %",
    columns=(
        Column("16 px", SOURCE),
        Column("Δ at 32 px", CHANGE),
        Column("fine-tuned at 32 px", FINE_TUNED),
    ),
    rows=(
        Row("CIFARResNet-32", "0.52M", ("16.1 ± 0.0", "−11.6 ± 0.4", "27.7‡"), f"{_AT}/resnet32"),
        Row("FlexNet-5, N-Jets", "0.46M", ("15.7 ± 0.1", "−1.9 ± 0.4", _), f"{_AT}/njet"),
        Row("FlexNet-5, penalty f_MAGNet", "0.44M", ("14.9 ± 0.1", "−1.9 ± 1.7", "24.8‡"), _AT),
        Row("ours: f_MAGNet, tapered kernels", "0.44M", (_, _, _), f"{_AT}/taper", True),
    ),
    notes=("‡ not in the paper's table, but from its authors' records.",),
)
