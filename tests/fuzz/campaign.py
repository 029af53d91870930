"""Run one file of tests of this folder until many thousands of cases were compared, and log how many.

    python -m tests.fuzz.campaign PART SEED CASES LOG

PART is convolutions, layers, models or files. `python -m tests.fuzz.runs` does the same for runs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import flexconv
from tests.fuzz.__main__ import run

#: what a case is, and about how many of them an example makes
PARTS = {
    "convolutions": (
        1.0,
        "ops.conv1d to conv3d by a random algorithm in float64, float32, bfloat16 and float16 with their gradients, in "
        "poisoned memory, against torch in float64: 1e-11, 1e-4, 0.1 and 0.02 of the largest value",
    ),
    "layers": (
        5.0,
        "outputs of FlexConvs between random edits, against a plain convolution in float64 with the kernel on the "
        "whole grid: 1e-9 of the largest value in float64, 2e-3 in float32, 4e-2 in bfloat16, 2e-2 in float16; "
        "gradients in float64 1e-7",
    ),
    "models": (
        7.25,
        "networks and separable layers in float64 that are streamed, padded, materialized, resampled and saved, also "
        "with missing samples, against the same: 1e-9 of the largest value, gradients 1e-7",
    ),
    "files": (16.3, "damaged and hostile files and names: a correct result or a FlexConvError in one line"),
}
ROUNDS = 5  # about, each with a seed of its own


def main(part: str, seed: int, cases: int, log: Path) -> int:
    per_example, what = PARTS[part]
    began, total, number = time.monotonic(), Counter(), 0
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        counts = Path(place) / "counts"
        while total.total() < cases:
            if run(part, seed + number, max(1, int(cases / per_example / ROUNDS)), counts):
                return 1
            total += Counter(json.loads(counts.read_text()))
            number += 1
            summary = {
                "what": what,
                "command": f"python -m tests.fuzz.campaign {part} {seed} {cases} {log}",
                "cases": total.total(),
                "seeds": [seed, seed + number - 1],
                "failures": 0,
                "seconds": round(time.monotonic() - began),
                "flexconv": flexconv.__version__,
                "torch": torch.__version__,
                "python": sys.version.split()[0],
                "tests": dict(sorted(total.items())),
            }
            log.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
            sys.stdout.write(f"{part}: {total.total()} cases, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
