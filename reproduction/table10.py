"""Table 10: STL-10."""

from __future__ import annotations

from ._table import Column, Row, Table

TABLE = Table(
    name="table10",
    title="Table 10: STL-10, test accuracy in %",
    columns=(Column("accuracy"),),
    rows=(
        Row("CIFARResNet-18", "11.2M", ("81.0*†",)),
        Row("FlexNet-16", "0.67M", ("68.6 ± 0.7",), "flexnet7-stl10"),
    ),
    notes=("* from other papers, † a single run. The authors' runs reached a time limit before 100 epochs.",),
)
