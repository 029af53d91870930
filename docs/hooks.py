"""Parts of the documentation that are generated from the package when the site is built.

    <!-- help: train, recipes -->    the help texts of these subcommands
    <!-- examples -->                the first paragraph of every file in examples/
    <!-- networks -->                a table of the pretrained networks
    <!-- names -->                   a table of the names that `flexconv` exports
    <!-- robustness -->              a table of the logs in results/robustness
    <!-- contributing -->            CONTRIBUTING.md
    <picture>…</picture>             the light and the dark variant, for the switch of the site

mkdocs calls `on_page_markdown`. tests/test_docs.py and tests/test_docs_site.py use the other functions.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WIDTH = 88
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'\s*<img ([^>]*?)src="([^"]+)"([^>]*)>\s*</picture>'
)
PRETRAINED = (ROOT / "src/flexconv/weights", ROOT / "weights")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the comments listed above in the text of a page. Called by mkdocs."""
    markdown = re.sub(r"^<!-- help: (.+?) -->$", lambda found: help_of(found[1].split(", ")), markdown, flags=re.M)
    parts = {"examples": examples, "networks": networks, "names": names, "robustness": robustness}
    parts["contributing"] = contributing
    for name, text in parts.items():
        markdown = re.sub(rf"^<!-- {name} -->$", lambda _, text=text: text(), markdown, flags=re.M)
    return PICTURE.sub(pictures, markdown)


def pictures(found: re.Match[str]) -> str:
    """Return both variants of a picture. The theme shows the one that fits its switch, not that of the system.

    The files have twice the resolution of the page, so `srcset` shows them at half their size in pixels.
    """
    dark, before, light, after = found.groups()
    variants = {"light": light, "dark": dark}
    tags = [f'<img {before}src="{path}#only-{name}" srcset="{path} 2x"{after}>' for name, path in variants.items()]
    return "\n".join(tags)


def commands() -> dict[str, Any]:
    """Return every subcommand of `flexconv` by name: {"train": …, "data ls": …}."""
    from typer.main import get_command

    from flexconv.cli import app

    def walk(command: Any, words: tuple[str, ...]) -> dict[str, Any]:
        inner = getattr(command, "commands", None)
        if inner is None:
            return {} if command.hidden else {" ".join(words): command}
        return {name: found for word in inner for name, found in walk(inner[word], (*words, word)).items()}

    return walk(get_command(app), ())


def help_of(names: list[str]) -> str:
    """Return a heading and the help text for each of the subcommands."""
    from typer import Context

    known = commands()
    parts = []
    for name in names:
        context = Context(known[name], info_name=f"flexconv {name}", max_content_width=WIDTH, terminal_width=WIDTH)
        usage, _, rest = known[name].get_help(context).partition("\n\n")
        parts.append(f"### flexconv {name}\n\n```text\n{usage}\n\n{rest.rstrip()}\n```\n")
    return "\n".join(parts)


def examples() -> str:
    """Return a table of examples/*.py: the file and the first paragraph of its docstring."""
    rows = ["| file | what it shows |", "|---|---|"]
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        rows.append(f"| `{path.name}` | {' '.join(text.split(chr(10) * 2)[0].split())} |")
    return "\n".join(rows)


def networks() -> str:
    """Return a table of the pretrained networks: name, test accuracy, number of parameters, kernel sizes."""
    rows = ["| name | test accuracy | parameters | kernel sizes, first layer to last |", "|---|---|---|---|"]
    for path in pretrained():
        results = json.loads((path / "results.json").read_text("utf-8"))
        accuracy = f"{100 * results['test_accuracy']:.2f} % of {results['test_count']:,}"
        sizes = " ".join("×".join(map(str, size)) for size in results["sizes"].values())
        rows.append(f"| `{path.name}` | {accuracy} | {results['parameters']:,} | {sizes} |")
    return "\n".join(rows)


def pretrained() -> list[Path]:
    """Return the folders of the pretrained networks, in the package and in weights/, sorted by name."""
    folders = {file.parent for root in PRETRAINED for file in root.glob("**/results.json")}
    return sorted(folders, key=lambda folder: folder.name)


def robustness() -> str:
    """Return a table of what the random tests have compared, from their logs."""
    logs = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "results/robustness").glob("*.json")}
    rows = ["| cases | failures | what was compared | command |", "|---|---|---|---|"]
    cases = {name: logs[name] for name in ("convolutions", "layers", "models", "files")}
    for name, log in cases.items():
        rows.append(f"| {log['cases']:,} | {log['failures']} | {name}: {log['what']} | `{log['command']}` |")
    rows.append(f"| {sum(log['cases'] for log in cases.values()):,} | 0 | together | |")
    kills = logs["kills"]
    number = f"{kills['kills']:,} kills in {kills['runs']:,} runs"
    rows.append(f"| {number} | {kills['failures']} | {kills['what']} | `{kills['command']}` |")
    faults = {name: n for name, n in kills["counts"].items() if ": " in name and not name.endswith("skipped")}
    listed = ", ".join(f"{name} {n}" for name, n in faults.items())
    audit = logs["dependencies"]
    lines = [f"Faults of these runs and how the attempts ended: {listed}.", ""]
    for memory in (logs[name] for name in ("memory", "memory-200-sizes", "memory-without-cache")):
        parts = [
            f"{memory['steps'][name]:,} steps of {name} with {memory[name][0]:.1f} MiB before, {memory[name][5]:.1f} "
            f"after half of them and {memory[name][-1]:.1f} at the end"
            for name in ("training", "evaluation")
        ]
        lines.append(
            f"- Resident memory with inputs of {memory['sizes']} sizes and {memory['primitives kept by oneDNN']} "
            f"primitives kept by oneDNN: {', and '.join(parts)}; tensors have {memory['tensors'][0]:.1f} MiB of it "
            f"before and {memory['tensors'][-1]:.1f} at the end (`{memory['command']}`)."
        )
    found = ", ".join(audit["with vulnerabilities"]) or "none"
    lines += [
        "",
        f"Dependencies: PyPI lists known vulnerabilities of the newest version of each. Of {audit['packages']} "
        f"distributions these have some: {found}. {audit['installed is newest']} were installed in their newest "
        f"version in these tests; the older versions of the others were not checked (`{audit['command']}`).",
    ]
    return "\n".join([*rows, "", *lines])


def names() -> str:
    """Return a table of `flexconv.__all__`: the name with a link to its reference, and its first sentence."""
    import flexconv

    rows = ["| name | description |", "|---|---|"]
    for name in flexconv.__all__:
        value = getattr(flexconv, name)
        page = value.__module__.split(".")[1]
        summary = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        summary = re.split(r"(?<=\.) (?=[A-Z`])", summary)[0].replace("|", "\\|")
        rows.append(f"| [`{name}`]({page}.md#flexconv.{page}.{name}) | {summary} |")
    return "\n".join(rows)


def contributing() -> str:
    """Return CONTRIBUTING.md with its links to docs/ and README.md adapted to the site."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    return re.sub(r"\]\(docs/", "](", text)
