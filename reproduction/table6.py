"""Table 6: all results on CIFAR-10."""

from __future__ import annotations

from ._item import NOTHING
from ._table import Column, Row, Table

TABLE = Table(
    name="table6",
    title="Table 6: all results on CIFAR-10, test accuracy in %",
    columns=(Column("accuracy"),),
    rows=(
        Row("DCN-σ", "0.47M", ("89.7 ± 0.3*",)),
        Row("N-Jet-CIFARResNet32", "0.52M", ("92.3 ± 0.3*",)),
        Row("N-Jet-ALLCNN", "1.07M", ("92.5 ± 0.1*",)),
        Row("CIFARResNet-44", "0.66M", ("92.9*†",), "resnet44-cifar10/competent"),
        Row("CIFARResNet-44, the authors' reproduction", "0.66M", ("90.9 ± 0.2",), "resnet44-cifar10"),
        Row("CIFARResNet-44, CKConv 3×3", "2.58M", ("86.1 ± 0.9",), "resnet44-cifar10/ckconv3"),
        Row("CIFARResNet-44, FlexConv", "2.58M", ("81.6 ± 0.8",), "resnet44-cifar10/flexconv"),
        Row("FlexNet-7, convolutions 3×3", "0.17M", ("89.5 ± 0.3",), "flexnet7-cifar10/conv3"),
        Row("FlexNet-7, convolutions 33×33", "20.0M", ("78.0 ± 0.3",), "flexnet7-cifar10/conv33"),
        Row("FlexNet-7, N-Jet", "0.70M", ("91.7 ± 0.1",), "flexnet7-cifar10/njet"),
        Row("CKCNN-3, SIREN", "0.26M", ("72.4*",), "ckcnn3-cifar10"),
        Row("CKCNN-3, Fourier", "0.27M", ("83.8*",), "ckcnn3-cifar10/fourier"),
        Row("CKCNN-3, Gabor", "0.28M", ("85.6*",), "ckcnn3-cifar10/gabor"),
        Row("CKCNN-3, MAGNet", "0.28M", ("86.2*",), "ckcnn3-cifar10/magnet"),
        Row("CKCNN-7, SIREN", "0.63M", ("71.7*",), "ckcnn7-cifar10"),
        Row("CKCNN-7, Fourier", "0.63M", ("84.6*",), "ckcnn7-cifar10/fourier"),
        Row("CKCNN-7, Gabor", "0.67M", ("87.7*",), "ckcnn7-cifar10/gabor"),
        Row("CKCNN-7, MAGNet", "0.67M", ("85.9*",), "ckcnn7-cifar10/magnet"),
        Row("FlexNet-7, SIREN", "0.63M", ("88.9*",), "flexnet7-cifar10/siren"),
        Row("FlexNet-7, Fourier", "0.66M", ("91.6*",), "flexnet7-cifar10/fourier"),
        Row("FlexNet-7, Gabor", "0.67M", ("92.0*",), "flexnet7-cifar10/gabor"),
        Row("FlexNet-3", "0.27M", ("90.4 ± 0.2",), "flexnet3-cifar10"),
        Row("FlexNet-5", "0.44M", ("91.0 ± 0.5",), "flexnet5-cifar10"),
        Row("FlexNet-7", "0.67M", ("92.2 ± 0.1",), "flexnet7-cifar10"),
        Row("FlexNet-7, Fourier, MAGNet's input scale", "0.66M", (NOTHING,), "flexnet7-cifar10/fourier-25", True),
        Row("FlexNet-7, penalty on kernel norms", "0.67M", ("90.6‡",), "flexnet7-cifar10/kernel-norm", True),
        Row("FlexNet-5, penalty on kernel norms", "0.44M", ("90.1‡",), "flexnet5-cifar10/kernel-norm", True),
        Row("FlexNet-3, penalty on kernel norms", "0.27M", ("89.6‡",), "flexnet3-cifar10/kernel-norm", True),
    ),
    notes=(
        "* and † as printed: from other papers, a single run. ‡ not in the paper, but from its authors' records.",
        "Table 3 has other numbers for CKCNN-7 (72.1, with MAGNet 86.8), SIREN (89.0) and Gabor (91.9).",
    ),
)
