"""Run the tests of this folder with random examples for some minutes, or until one fails.

    python -m tests.fuzz MINUTES [SEED]

Hypothesis prints the smallest example that fails as code. If Python crashes, the example that crashed it is printed.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = 300  # of a quick test, per round; see `helpers.fuzz_settings`
FILES = ("convolutions", "layers", "models", "files", "runs")


def main(minutes: float, seed: int | None = None) -> int:
    end, rounds = time.monotonic() + 60 * minutes, dict.fromkeys(FILES, 0)
    for number in itertools.count():
        if time.monotonic() >= end:
            break
        name = FILES[number % len(FILES)]
        if code := run(name, secrets.randbelow(2**32) if seed is None else seed + rounds[name]):
            return code
        rounds[name] += 1
    listed = ", ".join(f"{name} {times}" for name, times in rounds.items())
    sys.stdout.write(f"rounds of {EXAMPLES} examples per test in which nothing failed: {listed}\n")
    return 0


def run(name: str, seed: int, examples: int = EXAMPLES, counts: Path | None = None) -> int:
    """Run one file of tests. Returns its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--hypothesis-seed={seed}"]
    with tempfile.TemporaryDirectory() as place:
        last = Path(place) / "last"
        environment = {**os.environ, "FLEXCONV_FUZZ_EXAMPLES": str(examples), "FLEXCONV_FUZZ_LAST": str(last)}
        if counts is not None:
            environment["FLEXCONV_FUZZ_COUNTS"] = str(counts)
        test = Path(__file__).with_name(f"test_{name}.py")
        code = subprocess.run([*command, str(test)], env=environment, check=False).returncode
        if code:
            sys.stdout.write(f"{test.name} failed with --hypothesis-seed={seed} and ")
            sys.stdout.write(f"FLEXCONV_FUZZ_EXAMPLES={examples}\n")
        if code not in (0, 1) and last.exists():
            sys.stdout.write(f"Python crashed or was stopped in {last.read_text()}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
