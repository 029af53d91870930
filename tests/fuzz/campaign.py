"""Run the tests of this folder, except for runs, until many thousands of cases were compared, and log how many.

    python -m tests.fuzz.campaign SEED CASES LOG

`python -m tests.fuzz.runs` does the same for runs.
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

#: the share of all cases, and how many cases an example makes, about
PARTS = {"convolutions": (0.45, 1), "layers": (0.3, 2), "models": (0.1, 5), "files": (0.15, 13)}

WHAT = {
    "convolutions": "ops.conv1d to conv3d by a random algorithm in float64, float32, bfloat16 and float16 with their "
    "gradients, in poisoned memory, against torch in float64: 1e-11, 1e-4, 0.1 and 0.02 of the largest value",
    "layers": "outputs of FlexConvs between random edits, against a plain convolution in float64 with the kernel on "
    "the whole grid: 1e-9 of the largest value in float64, 2e-3 in float32, 4e-2 in bfloat16, 2e-2 in float16; "
    "gradients in float64 1e-7",
    "models": "networks in float64 that are streamed, padded, materialized and resampled, against the same: 1e-9 of "
    "the largest value, gradients 1e-7",
    "files": "damaged and hostile files and names: a correct result or a FlexConvError in one line",
}


def main(seed: int, cases: int, log: Path) -> int:
    began, parts = time.monotonic(), {}
    rounds = 10
    with tempfile.TemporaryDirectory() as place:
        for name, (share, per_example) in PARTS.items():
            started, total = time.monotonic(), Counter()
            number = 0
            while total.total() < share * cases:
                counts = Path(place) / "counts"
                counts.unlink(missing_ok=True)
                if run(name, seed + number, max(1, int(share * cases / per_example / rounds)), counts):
                    return 1
                total += Counter(json.loads(counts.read_text()))
                number += 1
                sys.stdout.write(f"{name}: {total.total()} cases, {time.monotonic() - started:.0f} s\n")
                sys.stdout.flush()
            parts[name] = {
                "what": WHAT[name],
                "cases": total.total(),
                "seeds": [seed, seed + number - 1],
                "failures": 0,
                "seconds": round(time.monotonic() - started),
                "tests": dict(sorted(total.items())),
            }
    summary = {
        "command": f"python -m tests.fuzz.campaign {seed} {cases} {log}",
        "cases": sum(part["cases"] for part in parts.values()),
        "failures": 0,
        "seconds": round(time.monotonic() - began),
        "flexconv": flexconv.__version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "parts": parts,
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
