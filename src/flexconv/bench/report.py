"""Reports of benchmarks, as Markdown or JSON, and as a figure."""

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
from .ceilings import Ceilings

Row = dict[str, Any]
FIGURES = (".png", ".svg", ".pdf")


class Report(NamedTuple):
    """The measurements of one run of `flexconv bench`, as one list of rows per table."""

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
            f"Peak rates, measured in the same run: matrix products {products} TFLOP/s; copies {copies}.",
        ]
        for name, rows in self.tables.items():
            title, columns = TABLES[name]
            lines += ["", f"### {title}", "", *_table(columns, rows)]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        return json.dumps(self._asdict() | {"ceilings": self.ceilings._asdict()}, indent=1) + "\n"


def machine(device: torch.device) -> str:
    """A description of the device and the versions of the software."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}, flexconv {__version__}"


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON or Markdown, or the figure of its table "peers", depending on the suffix of the path."""
    check_name(path)
    if path.suffix in FIGURES:
        from .figures import plot_peers

        plot_peers(report.tables["peers"]).savefig(path)
        return
    write_atomically(path, (report.json() if path.suffix == ".json" else report.markdown()).encode())


def check_name(path: Path, tables: Iterable[str] = ("peers",)) -> None:
    """Check that a report of these tables can be written to this path. Called before the measurements."""
    if path.suffix not in (".json", ".md", *FIGURES):
        raise ArgumentError(f"the file name of a report must end in .json or .md; got {path.name!r}")
    if path.suffix in FIGURES:
        from . import figures  # noqa: F401  (names the extra if matplotlib is missing)

        if "peers" not in tables:
            raise ArgumentError(
                f"only the table peers is drawn; a report of {', '.join(tables)} cannot be {path.name!r}"
            )
    if not path.parent.is_dir():
        raise MissingFileError(f"cannot write the report {path.name}: the folder {path.parent} does not exist")


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


def _memory(value: Any) -> str:
    return "–" if value is None else f"{value:.0f}"


TABLES: dict[str, tuple[str, list[tuple[str, Callable[[Row], str]]]]] = {
    "ops": (
        "Convolutions, ms (`torch`: PyTorch's convolution; `auto`: the default of flexconv)",
        [
            ("batch × channels × size", _shape),
            ("taps", lambda row: "×".join([str(row["case"]["taps"])] * len(row["case"]["size"]))),
            ("pass", lambda row: "forward + backward" if row["training"] else "forward"),
            ("precision", lambda row: row["precision"]),
            *[_ms(name) for name in ("torch", "direct", "fft", "dft", "auto")],
            ("auto / fastest", lambda row: f"{row['auto_over_best']:.2f}"),
            ("auto, eager", lambda row: _number(row["eager_ms"])),
            ("memory, MiB", lambda row: _memory(row["peak_mib"].get("auto"))),
            ("share of peak rate", lambda row: f"{row['share_of_ceilings']:.0%}"),
        ],
    ),
    "layers": (
        "Layers including their kernels, forward + backward, ms",
        [
            ("batch × channels × size", _shape),
            ("kernel size", lambda row: "×".join(map(str, row["extent"]))),
            ("precision", lambda row: row["precision"]),
            ("FlexConv", lambda row: _number(row["ms"]["flexconv"])),
            ("FlexConv, eager", lambda row: _number(row["eager_ms"])),
            ("torch.nn.Conv", lambda row: _number(row["ms"].get("torch"))),
            ("interquartile range", lambda row: _number(row["spread"]["flexconv"])),
            ("memory, MiB", lambda row: _memory(row["peak_mib"])),
            ("share of peak rate", lambda row: f"{row['share_of_ceilings']:.0%}"),
        ],
    ),
    "peers": (
        "Layers of several packages including their kernels, forward + backward in eager mode",
        [
            ("convolution", lambda row: f"{'depthwise' if row['case']['depthwise'] else 'dense'}"),
            ("batch × channels × size", _shape),
            ("taps", lambda row: "×".join([str(row["case"]["taps"])] * len(row["case"]["size"]))),
            ("precision", lambda row: row["precision"]),
            ("layer", lambda row: row["layer"]),
            ("ms", lambda row: _number(row["ms"])),
            ("÷ FlexConv", lambda row: "–" if row["over_flexconv"] is None else f"{row['over_flexconv']:.2f}"),
            ("memory, MiB", lambda row: _memory(row["peak_mib"])),
            ("parameters", lambda row: "–" if row["parameters"] is None else f"{row['parameters']:,}"),
            ("not measured because", lambda row: row["reason"].replace("|", "/")),
        ],
    ),
    "published": (
        "Published figures, cited and not measured here",
        [(name, lambda row, name=name: row[name]) for name in ("what", "figure", "hardware", "source")],
    ),
    "memory": (
        "Peak memory of training, MiB",
        [
            ("of", lambda row: "network" if row["case"]["network"] else "layer"),
            ("batch × channels × size", _shape),
            ("precision", lambda row: row["precision"]),
            ("masks", lambda row: "whole grid" if row["full"] else "initial"),
            ("3×3 convolutions", lambda row: _memory(row["mib"]["torch"])),
            ("FlexConv", lambda row: _memory(row["mib"]["flexconv"])),
            ("ratio", lambda row: f"{row['mib']['flexconv'] / row['mib']['torch']:.2f}"),
            ("recompute=True", lambda row: _memory(row["mib"]["recomputed"])),
            ("ratio", lambda row: f"{row['mib']['recomputed'] / row['mib']['torch']:.2f}"),
        ],
    ),
    "steps": (
        "Training steps, ms",
        [
            ("network", lambda row: row["case"]),
            ("masks", lambda row: "whole grid" if row["full"] else "initial"),
            ("engine", lambda row: row["engine"]),
            ("precision", lambda row: row["precision"]),
            ("ms", lambda row: _number(row["ms"])),
            ("interquartile range", lambda row: _number(row["spread"])),
            ("memory, MiB", lambda row: _memory(row["peak_mib"])),
            ("graph captures", lambda row: str(row["captures"])),
            ("authors' code", lambda row: _number(row["authors"])),
        ],
    ),
}
