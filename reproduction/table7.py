"""Table 7: ImageNet-32."""

from __future__ import annotations

from ._measures import TOP_5
from ._table import Column, Row, Table

TABLE = Table(
    name="table7",
    title="Table 7: ImageNet-32, test accuracy in %",
    columns=(Column("top-1"), Column("top-5", TOP_5)),
    rows=(
        Row("CIFARResNet-32", "0.53M", ("26.41 ± 0.13", "49.37 ± 0.15"), "flexnet5-imagenet32/resnet32"),
        Row("WRN-28-1", "0.44M", ("32.03*†", "57.51*†")),
        Row("FlexNet-5", "0.44M", ("24.9 ± 0.4", "47.7 ± 0.6"), "flexnet5-imagenet32"),
    ),
    notes=("The recipe of CIFARResNet-32 is only known from the authors' logs.",),
)
