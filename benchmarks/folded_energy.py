"""The energy of trained kernels that aliases to low frequencies, for the table in docs/alias-free.md.

    python -m benchmarks.folded_energy MODEL [MODEL ...] [--scale 2]

`flexconv resample MODEL --to SIZE` measures what it costs. MODEL is the name of a pretrained network or a folder of
weights.
"""

from __future__ import annotations

import argparse

from flexconv import from_pretrained
from flexconv.spectrum import MUCH_FOLDED_ENERGY, alias_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="names of pretrained networks, or folders of weights")
    parser.add_argument("--scale", type=float, default=2.0, help="ratio of the new to the old resolution")
    arguments = parser.parse_args()
    print(f"model | beyond, largest | folded, largest | folded, total | layers above {MUCH_FOLDED_ENERGY:.0%}")
    for name in arguments.models:
        report = alias_report(from_pretrained(name), arguments.scale)
        shares = max(report.beyond.values()), max(report.folded.values()), report.total
        aliased = f"{len(report.aliased)} of {len(report.folded)}"
        print(name, *(f"{share:.1%}" for share in shares), aliased, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
