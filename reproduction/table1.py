"""Table 1: sequential and permuted MNIST, sequential and noise-padded CIFAR-10."""

from __future__ import annotations

from ._item import NOTHING
from ._table import Column, Row, Table

_ = NOTHING

TABLE = Table(
    name="table1",
    title="Table 1: sMNIST, pMNIST, sCIFAR10 and npCIFAR10, test accuracy in %",
    columns=(
        Column("sMNIST", recipe="flextcn-smnist{}"),
        Column("pMNIST", recipe="flextcn-pmnist{}"),
        Column("sCIFAR10", recipe="flextcn-scifar10{}"),
        Column("npCIFAR10", recipe="flextcn-npcifar10{}"),
    ),
    rows=(
        Row("DilRNN", "44k", ("98.0", "96.1", _, _)),
        Row("IndRNN", "83k", ("99.0", "96.0", _, _)),
        Row("TCN", "70k", ("99.0", "97.2", _, _)),
        Row("r-LSTM", "0.5M", ("98.4", "95.2", "72.2", _)),
        Row("Self-attention", "0.5M", ("98.9", "97.9", "62.2", _)),
        Row("TrellisNet", "8M", ("99.20", "98.13", "73.42", _)),
        Row("URLSTM", _, ("99.28", "96.96", "71.00", _)),
        Row("URGRU + Zoneout", _, ("99.27", "96.51", "74.40", _)),
        Row("HiPPO", "0.5M", (_, "98.30", _, _)),
        Row("Lipschitz RNN", "158k", ("99.4", "97.3", "64.2", "59.0")),
        Row("coRNN", "134k", ("99.4", "97.3", _, "59.0")),
        Row("UnICORNN", "135k", (_, "98.4", _, "62.4")),
        Row("pLMU", "165k", (_, "98.49", _, _)),
        Row("CKCNN-2", "98k", ("99.31", "98.00", "62.25", "60.5"), "/ckcnn"),
        Row("CKCNN-2-Big", "1M", ("99.32", "98.54", "63.74", "62.2")),
        Row("CKTCN-2, Fourier", "105k", ("99.44", "98.40", "68.28", "66.26"), "/cktcn-fourier"),
        Row("CKTCN-2, Gabor", "106k", ("99.52", "98.38", "69.26", "67.37"), "/cktcn-gabor"),
        Row("CKTCN-2, MAGNet", "105k", ("99.55", "98.57", "74.58", "67.52"), "/cktcn-magnet"),
        Row("FlexTCN-2", "108k", ("99.60", "98.61", "78.99", "67.11"), "/2-blocks"),
        Row("FlexTCN-4", "241k", ("99.60", "98.72", "80.26", "67.42"), "/4-blocks"),
        Row("FlexTCN-6", "375k", ("99.62", "98.63", "80.82", "69.87"), ""),
        Row("FlexTCN-6, SIREN", "343k", ("99.03", "95.36", "69.24", "57.27"), "/siren"),
        Row("FlexTCN-6, Fourier", "370k", ("99.49", "97.97", "74.79", "67.35"), "/fourier"),
        Row("FlexTCN-6, Gabor", "373k", ("99.50", "98.37", "78.36", "67.56"), "/gabor"),
        Row("FlexTCN-6, former settings", "375k", (_, _, _, _), "/former", beside=True),
        Row("FlexTCN-2, former settings", "108k", (_, _, _, _), "/2-blocks-former", beside=True),
        Row("FlexTCN-6, dropout 0.2", "375k", (_, _, _, _), "/dropout-0.2", beside=True),
        Row("FlexTCN-6, low frequencies", "375k", (_, _, _, _), "/low-frequencies", beside=True),
        Row("FlexTCN-2, low frequencies", "108k", (_, _, _, _), "/2-blocks-low-frequencies", beside=True),
        Row("FlexTCN-6, low frequencies, small masks", "375k", (_, _, _, _), "/small-masks", beside=True),
        Row("FlexTCN-2, low frequencies, small masks", "108k", (_, _, _, _), "/2-blocks-small-masks", beside=True),
        Row("FlexTCN-6, the authors' protocol", "375k", (_, _, _, _), "/authors", beside=True),
    ),
    notes=(
        "Sizes are those in the paper, for three input channels. sMNIST and pMNIST have one, npCIFAR10 has 96.",
        "Former settings: without crops and flips on the two CIFAR-10 sets; with the kernel norm and without dropout "
        "on the input on sMNIST and pMNIST. The rows for dropout 0.2, low frequencies and small masks have them, too.",
        "The paper does not say whether sequences had crops and flips or dropout on the input.",
        "Low frequencies: kernels start with the frequencies for images; otherwise with higher ones (docs/kernels.md).",
        "Small masks start at σ = 0.075, as in the published commands for images; otherwise at √0.125 (docs/masks.md).",
        "With small masks, the twelve layers of FlexTCN-6 initially see 961 of 1,000 steps. The image of npCIFAR10 is "
        "in the steps before.",
        "The CKCNN rows are copied from the CKConv paper, which trained differently.",
    ),
    seeds=(0,),
)
