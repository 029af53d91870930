"""The command `python -m reproduction`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

try:
    import typer
except ImportError as missing:
    raise SystemExit(f'the reproduction needs {missing.name}: pip install -e ".[train,viz]"') from missing

from flexconv.cli import console, print_table, say
from flexconv.errors import ArgumentError, FlexConvError
from flexconv.train import Interrupted

from . import ITEMS, Item, Ledger, _page, _plan, _queue, _results, _smoke, _work, items
from . import ship as ship_run
from ._files import DOCS, RESULTS, ROOT, WEIGHTS, write

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

Results = Annotated[Path, typer.Option(help="Folder of the logs.", show_default="results")]
Start = Annotated[bool, typer.Option("--run", help="Start the missing runs, one after the other.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Run a tiny version in a temporary folder, to test the code.")]
Seeds = Annotated[str | None, typer.Option(help="With --run: seeds such as 0,1,2. Default: as many as in the paper.")]
Limit = Annotated[float | None, typer.Option(min=0, help="With --run: save and stop after this many seconds.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="With --run: change a recipe, as in engine=graph; repeatable."),
]
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets. Default: FLEXCONV_DATA, or a cache folder.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]
DEVICES = ("auto", "cpu", "cuda")


@app.callback(invoke_without_command=True)
def reproduction(context: typer.Context, results: Results = RESULTS) -> None:
    """The paper's tables and figures from the logs of real runs, next to the published numbers.

    Without a command, list them and what has been run.
    """
    if context.invoked_subcommand is None:
        ledger = Ledger(results)
        rows = [(item.name, item.section(ledger).state, item.title) for item in items()]
        print_table(("name", "run", "title"), rows)
        say(f"\n{len(ledger.logs)} logs in {_short(ledger.runs)}")


def _add_item(item: Item) -> None:
    """Make a subcommand of a table or figure."""

    def show(
        start: Start = False,
        smoke: Smoke = False,
        markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
        out: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
        seeds: Seeds = None,
        limit: Limit = None,
        changes: Changes = None,
        results: Results = RESULTS,
        root: Root = None,
        device: Device = "auto",
    ) -> None:
        if _run_or_smoke([item], start, smoke, seeds, limit, changes, results, root, device):
            return
        ledger = Ledger(results)
        if out is not None:
            _draw([item], ledger, out)
        if markdown:
            say("\n".join(_page.item_markdown(item, ledger)))
        else:
            _print(item, ledger)

    app.command(item.name, help=item.title)(show)


for each in ITEMS.values():
    _add_item(each)


@app.command("all")
def everything(
    start: Start = False,
    smoke: Smoke = False,
    seeds: Seeds = None,
    limit: Limit = None,
    changes: Changes = None,
    docs: Annotated[Path, typer.Option(help="Folder of results.md and images/results.", show_default="docs")] = DOCS,
    results: Results = RESULTS,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Write docs/results.md and draw its figures; with --run, start everything that is missing."""
    if _run_or_smoke(items(), start, smoke, seeds, limit, changes, results, root, device):
        return
    ledger = Ledger(results, own_weights=False)
    _draw(items(), ledger, docs / _page.IMAGES)
    write(docs / "results.md", _page.page(items(), ledger))
    say(f"wrote {_short(docs / 'results.md')} and {_short(docs / _page.IMAGES)}")


@app.command("results")
def write_results(results: Results = RESULTS) -> None:
    """Write results/README.md: what is in the folder, all runs, and the tables of measurements."""
    write(results / "README.md", _results.readme(Ledger(results)))
    say(f"wrote {_short(results / 'README.md')}")


@app.command()
def plan(results: Results = RESULTS) -> None:
    """Print the commands of the runs that are still missing, with time estimates."""
    for title, runs in _plan.plan(Ledger(results)):
        say(f"{title}: {len(runs)} missing")
        for command, estimate in runs:
            say(f"  {command}  # {estimate}")
    commands = _plan.to_ship()
    if commands:
        say("then publish the networks that figures show:")
    for command in commands:
        say(f"  {command}")


@app.command("run")
def work_on_queue(
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Save and stop before this time is over. Default: when all is done.")
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only print the missing runs.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only recipes whose names start like this; repeatable.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Write a tar file per run into this folder, to go on with it elsewhere.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change precision or engine of the runs; repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at a time, each in a process of its own.")] = 1,
    results: Results = RESULTS,
    root: Root = None,
    device: Device = "auto",
) -> None:
    """Start or resume the missing runs of the plan. Run it again until nothing is missing.

    Runs with a checkpoint come first. On a GPU, networks are trained in bf16.
    """
    _set_up(device, root)
    ledger, wanted = Ledger(results), _plan.starting_with(only or [])
    if only_list:
        titles, rows = _queue.missing_table(ledger, wanted)
        print_table(titles, rows, right=("seed",))
        say(f"\n{len(rows)} runs missing")
        return
    settings = {"minutes": minutes, "device": device, "changes": changes or [], "jobs": jobs, "console": console}
    attempts = _queue.work(ledger, wanted=wanted, **settings)
    if pack is not None:
        _queue.pack(attempts, pack)
    titles, rows = _queue.attempts_table(attempts)
    print_table(titles, rows, right=("seed",))
    say(f"\n{len(_queue.queue(Ledger(results), wanted))} runs missing")


@app.command()
def ship(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    name: Annotated[str, typer.Option(help="The name for from_pretrained.")],
    into: Annotated[Path, typer.Option(help="Where to write the network.", show_default="weights")] = WEIGHTS,
    licence: Annotated[
        str | None,
        typer.Option(help="Licence of the weights, as in cc-by-4.0. Default: mit in this checkout, otherwise none."),
    ] = None,
) -> None:
    """Publish the network of a run: write weights, config, recipe, results and a model card into one folder.

    The default folder is `weights` of this checkout, where from_pretrained and `flexconv eval` find the network by its
    name. It is built as the distribution flexconv-weights.
    """
    say(str(ship_run(run, name, into=into, licence=licence)))


def _run_or_smoke(
    chosen: list[Item],
    start: bool,
    smoke: bool,
    seeds: str | None,
    limit: float | None,
    changes: list[str] | None,
    results: Path,
    root: Path | None,
    device: str,
) -> bool:
    """Do what --run and --smoke ask for; return whether either was given."""
    for option, value in {"--seeds": seeds, "--limit": limit, "--set": changes}.items():
        if value is not None and not start:
            raise ArgumentError(f"{option} needs --run")
    _set_up(device, root)
    if smoke:
        with tempfile.TemporaryDirectory() as folder:
            _smoke.smoke(chosen, Path(folder), say=say)
    elif start:
        ledger, numbers = Ledger(results), _numbers(seeds)
        jobs = list({(job.name, job.seed): job for item in chosen for job in item.jobs(ledger, numbers)}.values())
        outcome = _work.do(jobs, ledger, device=device, changes=changes or [], limit=limit, console=console)
        rest = f"; {outcome.left} left: run the same command again" if outcome.left else ""
        say(f"{outcome.done} runs done{rest}")
    return smoke or start


def _set_up(device: str, root: Path | None) -> None:
    if device not in DEVICES:
        raise ArgumentError(f"--device must be one of {', '.join(DEVICES)}; got {device!r}")
    if root is not None:
        os.environ["FLEXCONV_DATA"] = str(root)  # not in the recipe: logs must not depend on the machine


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ArgumentError(f"--seeds takes numbers such as 0,1,2; got {text!r}")
    return [int(part) for part in parts]


def _draw(chosen: Sequence[Item], ledger: Ledger, folder: Path) -> None:
    from flexconv import viz

    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable] = {name: draw for item in chosen for name, draw in item.pictures(ledger).items()}
    for name, draw in drawings.items():
        viz.save_themes(draw, folder / f"{name}.png")


def _print(item: Item, ledger: Ledger) -> None:
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


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 2 for a mistake of the user, who gets one line about it."""
    try:
        app(arguments, prog_name="python -m reproduction")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except (Interrupted, KeyboardInterrupt):
        sys.stderr.write("stopped; run the same command again to resume\n")
        return 130
    except FlexConvError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run())
