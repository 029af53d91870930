"""Table 3: CIFAR-10."""

from __future__ import annotations

from ._item import NOTHING
from ._measures import SECONDS
from ._table import Column, Row, Table

_ = NOTHING

TABLE = Table(
    name="table3",
    title="Table 3: CIFAR-10",
    columns=(Column("accuracy, %"), Column("seconds per epoch", SECONDS)),
    rows=(
        Row("CIFARResNet-44", "0.66M", ("92.9*†", "22"), "resnet44-cifar10/competent"),
        Row("DCN-σ", "0.47M", ("89.7 ± 0.3*", _)),
        Row("N-Jet-CIFARResNet32", "0.52M", ("92.3 ± 0.3*", _)),
        Row("N-Jet-ALLCNN", "1.07M", ("92.5 ± 0.1*", _)),
        Row("FlexNet-16, convolutions 3×3", "0.17M", ("89.5 ± 0.3", "41"), "flexnet7-cifar10/conv3"),
        Row("FlexNet-16, convolutions 33×33", "20.0M", ("78.0 ± 0.3", "242"), "flexnet7-cifar10/conv33"),
        Row("FlexNet-16, N-Jet", "0.70M", ("91.7 ± 0.1", "409"), "flexnet7-cifar10/njet"),
        Row("CKCNN-16", "0.63M", ("72.1 ± 0.2", "68"), "ckcnn7-cifar10"),
        Row("CKCNN-16, MAGNet", "0.67M", ("86.8 ± 0.6", "102"), "ckcnn7-cifar10/magnet"),
        Row("FlexNet-16, SIREN", "0.63M", ("89.0 ± 0.3", "89"), "flexnet7-cifar10/siren"),
        Row("FlexNet-16, Gabor", "0.67M", ("91.9 ± 0.2", "161"), "flexnet7-cifar10/gabor"),
        Row("FlexNet-16, Gabor + anisotropic", "0.67M", ("92.0 ± 0.1", "147"), "flexnet7-cifar10/gabor-anisotropic"),
        Row("FlexNet-16, Gabor + initialisation", "0.67M", ("92.0 ± 0.2", "150"), "flexnet7-cifar10/gabor-init"),
        Row("FlexNet-16", "0.67M", ("92.2 ± 0.1", "127"), "flexnet7-cifar10"),
        Row("FlexNet-16, the authors' protocol", "0.67M", ("92.2 ± 0.1", "127"), "flexnet7-cifar10/authors", True),
    ),
    notes=(
        "FlexNet-16 in the main text is FlexNet-7 in the appendix: 15 FlexConvs and a linear layer.",
        "* from other papers, † a single run. The 92.9 % of CIFARResNet-44 are from its own paper.",
        "In the authors' logs, an epoch of FlexNet-16 takes 176 to 187 seconds, including the test.",
    ),
)
