"""What was measured, as Markdown for people and JSON for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._files import write_atomically
from .._version import __version__
from ..errors import ArgumentError, MissingFileError
from ._ceilings import Ceilings

Row = dict[str, Any]


class Report(NamedTuple):
    """Tables of rows by name: "ops", "layers", "steps"."""

    machine: str
    command: str
    ceilings: Ceilings
    tables: dict[str, list[Row]]

    def markdown(self) -> str:
        products = ", ".join(f"{name} {value / 1e12:.3g}" for name, value in self.ceilings.products.items())
        copies = f"{self.ceilings.copy / 1e9:.3g} GB/s"
        lines = [
            f"{self.machine}; `{self.command}`",
            "",
            f"Ceilings, measured in the same run: matrix products {products} T/s; copies {copies}.",
        ]
        for name, rows in self.tables.items():
            title, columns = TABLES[name]
            lines += ["", f"### {title}", "", *_table(columns, rows)]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        return json.dumps(self._asdict() | {"ceilings": self.ceilings._asdict()}, indent=1) + "\n"


def machine(device: torch.device) -> str:
    """What the numbers were measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}, flexconv {__version__}"


def write_report(report: Report, path: Path) -> None:
    """Write a report as .json or .md, by the ending of its name."""
    check_name(path)
    write_atomically(path, (report.json() if path.suffix == ".json" else report.markdown()).encode())


def check_name(path: Path) -> None:
    """Refuse a file that no report can be written to, before anything is measured."""
    if path.suffix not in (".json", ".md"):
        raise ArgumentError(f"a report is written as .json or .md; got {path.name!r}")
    if not path.parent.is_dir():
        raise MissingFileError(f"there is no folder {path.parent} to write {path.name} to")


def _table(columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Iterable[Row]) -> list[str]:
    head = ["| " + " | ".join(title for title, _ in columns) + " |", "|---" * len(columns) + "|"]
    return head + ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]


def _shape(row: Row) -> str:
    case = row["case"]
    return f"{case['batch']} × {case['channels']} × {'×'.join(map(str, case['size']))}"


def _ms(name: str) -> tuple[str, Callable[[Row], str]]:
    return name, lambda row: _number(row["ms"].get(name))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _peak(value: Any) -> str:
    return "–" if value is None else f"{value:.0f}"


TABLES: dict[str, tuple[str, list[tuple[str, Callable[[Row], str]]]]] = {
    "ops": (
        "Convolutions, ms (`torch`: the library's own; `auto`: what is used)",
        [
            ("batch × channels × size", _shape),
            ("taps", lambda row: "×".join([str(row["case"]["taps"])] * len(row["case"]["size"]))),
            ("pass", lambda row: "forward + backward" if row["training"] else "forward"),
            ("precision", lambda row: row["precision"]),
            *[_ms(name) for name in ("torch", "direct", "fft", "dft", "auto")],
            ("auto / best", lambda row: f"{row['auto_over_best']:.2f}"),
            ("auto eager", lambda row: _number(row["eager_ms"])),
            ("MiB", lambda row: _peak(row["peak_mib"].get("auto"))),
            ("share of ceilings", lambda row: f"{row['share_of_ceilings']:.0%}"),
        ],
    ),
    "layers": (
        "Layers with their kernels, forward + backward, ms",
        [
            ("batch × channels × size", _shape),
            ("kernel", lambda row: "×".join(map(str, row["extent"]))),
            ("precision", lambda row: row["precision"]),
            ("FlexConv", lambda row: _number(row["ms"]["flexconv"])),
            ("FlexConv eager", lambda row: _number(row["eager_ms"])),
            ("torch.nn.Conv", lambda row: _number(row["ms"].get("torch"))),
            ("spread", lambda row: _number(row["spread"]["flexconv"])),
            ("MiB", lambda row: _peak(row["peak_mib"])),
            ("share of ceilings", lambda row: f"{row['share_of_ceilings']:.0%}"),
        ],
    ),
    "steps": (
        "Training steps, ms",
        [
            ("case", lambda row: row["case"]),
            ("masks", lambda row: "full" if row["full"] else "init"),
            ("engine", lambda row: row["engine"]),
            ("precision", lambda row: row["precision"]),
            ("ms", lambda row: _number(row["ms"])),
            ("spread", lambda row: _number(row["spread"])),
            ("MiB", lambda row: _peak(row["peak_mib"])),
            ("captures", lambda row: str(row["captures"])),
            ("authors' code", lambda row: _number(row["authors"])),
        ],
    ),
}
