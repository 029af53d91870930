"""flexconv bench"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._arguments import unknown_name
from ._common import Device, errors, say

TABLES = ("ops", "layers", "steps", "peers", "memory")
DEFAULT = TABLES[:3]
WAYS = [f"{engine}-{precision}" for engine in ("eager", "compiled", "graph") for precision in ("fp32", "bf16")]


def bench(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE", help=f"Tables to measure: {', '.join(TABLES)}. [default: {', '.join(DEFAULT)}]"
        ),
    ] = None,
    device: Device = "auto",
    out: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Also write the report to this .json or .md file, or peers as .png. Repeatable."
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Engine and precision of the training steps, such as graph-bf16. Repeatable. [default: several]",
        ),
    ] = None,
    smoke: Annotated[bool, typer.Option(help="Use tiny shapes, to check that everything runs.")] = False,
) -> None:
    """Measure speed and memory, and compare with other packages."""
    import torch

    from ..bench import (
        PUBLISHED,
        Report,
        bench_layers,
        bench_memory,
        bench_ops,
        bench_peers,
        bench_steps,
        check_name,
        machine,
        measure_ceilings,
        write_report,
    )
    from ..train import choose_device

    for table in tables or ():
        if table not in TABLES:
            unknown_name("table", table, TABLES)
    for path in out or ():
        check_name(path, tables or DEFAULT)
    for each in way or ():
        if each not in WAYS:
            unknown_name("engine and precision", each, WAYS, of="in --way")
    ways = [tuple(each.split("-")) for each in way or ()]
    chosen = choose_device(device)
    torch.manual_seed(0)
    ceilings = measure_ceilings(chosen, small=smoke)
    command = ["flexconv bench", *(tables or ()), f"--device {chosen.type}", *(f"--way {each}" for each in way or ())]
    command += ["--smoke"] if smoke else []
    report = Report(machine(chosen), " ".join(command), ceilings, {})
    sources = {
        "ops": lambda: bench_ops(chosen, ceilings, small=smoke),
        "layers": lambda: bench_layers(chosen, ceilings, small=smoke),
        "steps": lambda: bench_steps(chosen, small=smoke, ways=ways),  # type: ignore[arg-type]
        "peers": lambda: bench_peers(chosen, small=smoke),
        "memory": lambda: bench_memory(chosen, small=smoke),
    }
    for table in [name for name in TABLES if name in (tables or DEFAULT)]:
        rows = report.tables[table] = []
        for row in sources[table]():
            rows.append(row)
            if errors.is_terminal:
                errors.print(f"{table}: {len(rows)} measured", end="\r", highlight=False)
            for path in out or ():
                write_report(report, path)  # after every row, in case a later one fails
    if "peers" in report.tables:
        report.tables["published"] = PUBLISHED
        for path in out or ():
            write_report(report, path)
    say(report.markdown())
