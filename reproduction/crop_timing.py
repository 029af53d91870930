"""The paragraph on cropping: how much faster training is if kernels are small."""

from __future__ import annotations

from ._timing import Case, Timing

PARAGRAPH = Timing(
    name="crop-timing",
    title="Cropping (Section 5): training with initial masks and with masks that cover the grid",
    cases=(
        Case("CIFAR-10, cropped", "flexnet7-cifar10", (3, 32, 32), "–"),
        Case("CIFAR-10, whole grid", "flexnet7-cifar10", (3, 32, 32), "5.5 times", whole=True),
        Case("SC_raw, cropped", "flextcn-speech-commands-raw", (1, 16000), "–"),
        Case("SC_raw, whole grid", "flextcn-speech-commands-raw", (1, 16000), "11.8 times", whole=True),
    ),
    notes=(
        "The published ratios are without cudnn.benchmark. With it, the authors found both about equally fast.",
        "Ratios are small here because FFT and matrix-product convolutions make large kernels cheap.",
    ),
)
