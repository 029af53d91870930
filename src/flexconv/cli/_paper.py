"""flexconv paper, flexconv ship"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ArgumentError
from ._common import Changes, Device, Root, console, print_table, say

if TYPE_CHECKING:
    from reproduction import Item, Ledger

Results = Annotated[Path, typer.Option(help="Folder of the logs.")]


def paper(
    name: Annotated[str | None, typer.Argument(metavar="TABLE|FIGURE|all", help="table3, figure6, … or all.")] = None,
    start: Annotated[bool, typer.Option("--run", help="Start what is missing, one after the other.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run it small, in minutes, and keep nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the commands of the runs to come.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print it for docs/results.md.")] = False,
    out: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    seeds: Annotated[str | None, typer.Option(help="With --run, as in 0,1,2; by default as many as published.")] = None,
    limit: Annotated[float | None, typer.Option(min=0, help="With --run: save and stop after so many seconds.")] = None,
    changes: Changes = None,
    results: Results = Path("results"),
    root: Root = None,
    device: Device = "auto",
) -> None:
    """The paper's tables and figures, beside ours from logs.

    Alone it lists them and says what was run.
    """
    from reproduction import Ledger, items

    if name is None and (start or smoke or markdown or out is not None):
        raise ArgumentError("name a table or figure, such as table3, or all")
    for option, value in {"--seeds": seeds, "--limit": limit, "--set": changes}.items():
        if value is not None and not start:
            raise ArgumentError(f"{option} needs --run")
    if root is not None:
        os.environ["FLEXCONV_DATA"] = str(root)  # not by recipe: logs are for other machines too
    chosen = items(name)
    ledger = Ledger(results, own_weights=not markdown)
    if plan:
        _print_plan(ledger)
    elif smoke:
        _smoke(chosen)
    elif start:
        _start(chosen, ledger, _numbers(seeds), changes or [], limit, device)
    elif name is None:
        _list(chosen, ledger)
    else:
        _print(chosen, ledger, markdown=markdown, whole=name == "all", out=out)


def ship(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    name: Annotated[str, typer.Option(help="What from_pretrained will call it.")],
    into: Annotated[Path | None, typer.Option(help="Folder; by default the one of the package.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="Of the weights, such as cc-by-4.0; by default mit in the package, else none.")
    ] = None,
) -> None:
    """Make the network of a run loadable by name.

    Weights, config, recipe, results and a model card go into one folder, by default of this package: then
    from_pretrained and `flexconv eval` know the name.
    """
    import reproduction as papers

    from ..models import SHIPPED

    say(str(papers.ship(run, name, into=SHIPPED if into is None else into, licence=licence)))


def _list(items: list[Item], ledger: Ledger) -> None:
    print_table(("name", "run", "what"), [(item.name, item.section(ledger).state, item.title) for item in items])
    say(f"\nlogs: {ledger.runs}, {len(ledger.logs)} of them")


def _print(items: list[Item], ledger: Ledger, *, markdown: bool, whole: bool, out: Path | None) -> None:
    from reproduction._page import item_markdown, page

    for item in items:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            for name, draw in item.pictures(ledger).items():
                draw().savefig(out / f"{name}.png", dpi=110)
        if not markdown:
            _print_item(item, ledger)
        elif not whole:
            say("\n".join(item_markdown(item, ledger)))
    if markdown and whole:
        say(page(items, ledger))


def _print_item(item: Item, ledger: Ledger) -> None:
    section = item.section(ledger)
    say(f"{item.title}\n")
    for grid in (section.grid, section.runs):
        if grid is not None:
            print_table(grid.titles, grid.rows, right=grid.right)
            say("")
    for note in section.notes:
        say(f"- {note}")
    if section.notes:
        say("")


def _print_plan(ledger: Ledger) -> None:
    from reproduction._plan import plan, to_ship

    for title, runs in plan(ledger):
        say(f"{title}: {len(runs)} missing")
        for command, estimate in runs:
            say(f"  {command}  # {estimate}")
    say("then, for the figures:")
    for command in to_ship():
        say(f"  {command}")


def _smoke(items: list[Item]) -> None:
    from reproduction._smoke import smoke

    with tempfile.TemporaryDirectory() as folder:
        smoke(items, Path(folder), say=say)


def _start(
    items: list[Item], ledger: Ledger, seeds: list[int] | None, changes: list[str], limit: float | None, device: str
) -> None:
    from reproduction._work import do

    jobs = list({(job.name, job.seed): job for item in items for job in item.jobs(ledger, seeds)}.values())
    outcome = do(jobs, ledger, device=device, changes=changes, limit=limit, console=console)
    rest = f", {outcome.left} left: the same command goes on" if outcome.left else ""
    say(f"{outcome.done} runs done{rest}")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ArgumentError(f"--seeds wants numbers such as 0,1,2; got {text!r}")
    return [int(part) for part in parts]
