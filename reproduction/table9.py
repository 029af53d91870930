"""Table 9: MNIST."""

from __future__ import annotations

from ._item import NOTHING
from ._table import Column, Row, Table

TABLE = Table(
    name="table9",
    title="Table 9: MNIST, test accuracy in %",
    columns=(Column("accuracy"),),
    rows=(
        Row("Efficient-CapsNet", "0.16M", ("99.8*†",)),
        Row("Network in Network", NOTHING, ("99.6*†",)),
        Row("VGG-5", "3.65M", ("99.7*†",)),
        Row("FlexNet-16", "0.67M", ("99.7 ± 0.0",), "flexnet7-mnist"),
    ),
    notes=("* from other papers, † a single run. The authors' three runs reached 99.74, 99.73 and 99.70.",),
)
