"""Run the tests of this folder with random examples for some minutes, or until one fails.

python -m tests.fuzz MINUTES
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = 1000  # per test and round


def main(minutes: float) -> int:
    end, rounds = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        seed = secrets.randbelow(2**32)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__).parent)]
        environment = {**os.environ, "FLEXCONV_FUZZ_EXAMPLES": str(EXAMPLES)}
        code = subprocess.run([*command, f"--hypothesis-seed={seed}"], env=environment, check=False).returncode
        if code:
            sys.stdout.write(f"failed with --hypothesis-seed={seed} and FLEXCONV_FUZZ_EXAMPLES={EXAMPLES}\n")
            return code
        rounds += 1
    sys.stdout.write(f"{rounds} rounds of {EXAMPLES} examples per test: nothing failed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
