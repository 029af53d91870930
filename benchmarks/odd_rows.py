"""Compute depthwise convolutions with rows of odd length by "monarch" in half precision on a GPU.

    python -m benchmarks.odd_rows [--unpadded] [--case N]                                           (20 seconds)

Prints errors of y and of both gradients relative to float64, and fails if one is too large. `flexconv._fast.monarch`
pads such rows by one number. With `--unpadded` it does not, and kernels for single chunks, as compiled by Triton 3.6,
end in an illegal memory access. That makes all later calls of the process fail, so use one `--case` at a time:

    compute-sanitizer python -m benchmarks.odd_rows --unpadded --case 0
"""

from __future__ import annotations

import argparse

import torch

from flexconv import ops
from flexconv._fast import monarch

CASES = [  # batch, channels, size, taps, padding
    (4, 8, (33, 33), (7, 7), ((3, 3), (3, 3))),
    (4, 8, (15, 15), (13, 13), ((6, 6), (6, 6))),
    (64, 16, (7, 7), (3, 3), ((1, 1), (1, 1))),
    (3, 8, (20, 33), (4, 9), ((0, 3), (7, 2))),
    (3, 8, (30, 17), (5, 6), ((0, 0), (0, 0))),
    (2, 4, (57, 57), (31, 31), ((15, 15), (15, 15))),
    (2, 4, (91, 73), (5, 9), ((2, 2), (4, 4))),
    (3, 8, (783,), (100,), ((99, 0),)),
    (3, 8, (4095,), (4095,), ((4094, 0),)),
    (2, 4, (9001,), (501,), ((250, 250),)),
]
LIMITS = {torch.bfloat16: 3e-3, torch.float16: 8e-4}


def errors(number: int, dtype: torch.dtype, device: str = "cuda") -> list[float]:
    """Return the errors of y, of the gradient of x and of the gradient of weight."""
    batch, channels, size, taps, pads = CASES[number]
    conv = ops.conv1d if len(size) == 1 else ops.conv2d
    x = torch.randn(batch, channels, *size, device=device).to(dtype).requires_grad_()
    w = torch.randn(channels, 1, *taps, device=device)
    w = (w / w[0].numel() ** 0.5).to(dtype).requires_grad_()
    y = conv(x, w, padding=pads, groups=channels, algorithm="monarch")
    expected = conv(x.double(), w.double(), padding=pads, groups=channels, algorithm="fft")
    grad = torch.randn_like(y)
    found = y, *torch.autograd.grad(y, (x, w), grad)
    wanted = expected, *torch.autograd.grad(expected, (x, w), grad.double())
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, wanted, strict=True)]


def main() -> None:
    """Compute the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unpadded", action="store_true", help="do not pad rows, to find the cause of the fault")
    parser.add_argument("--case", type=int, choices=range(len(CASES)), help="compute a single case")
    arguments = parser.parse_args()
    if arguments.unpadded:
        monarch._pads_rows = lambda _: False
    failed = False
    for number in range(len(CASES)) if arguments.case is None else [arguments.case]:
        for dtype, limit in LIMITS.items():
            found = errors(number, dtype)
            failed |= not max(found) < limit
            print(*CASES[number], dtype, *(f"{each:.1e}" for each in found), flush=True)
    if failed:
        raise SystemExit("an error is too large")


if __name__ == "__main__":
    main()
