"""What the pages say is so: their Python runs, their commands parse, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from flexconv import cli, data
from flexconv.train import build_recipe, list_recipes, load_recipe
from flexconv.train._read import _yaml

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "docs/training.md", "docs/data.md", "docs/export.md"]


def blocks(page, language):
    """Fenced blocks of a language, "" for those of none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def commands(page):
    """Every `flexconv …` of the fenced blocks, and of the text where it is spelled out."""
    text = (ROOT / page).read_text("utf-8")
    fenced = [line for block in blocks(page, "") for line in block.splitlines()]
    inline = re.findall(r"`(flexconv [^`\n]+)`", text)
    inline = [f"{line} --help" if len(line.split()) == 2 else line for line in inline]  # names a subcommand
    for line in [line for line in [*fenced, *inline] if re.match(r"(\$ )?(flexconv|torchrun) ", line)]:
        words = shlex.split(line.removeprefix("$ "), comments=True)
        words = words[: words.index(">")] if ">" in words else words
        if words[:1] == ["torchrun"]:
            words = ["flexconv", *words[words.index("flexconv.cli") + 1 :]]
        if not any(re.fullmatch(r"[A-Z]{3,}|…", word) for word in words):
            yield words[1:]


def parse(arguments):
    """What the named subcommand would be called with."""
    called = {}
    group = typer.main.get_command(cli.app)

    def listen(command):
        for inner in getattr(command, "commands", {}).values():
            listen(inner)
        if not hasattr(command, "commands"):
            command.callback = lambda **values: called.update(values)

    listen(group)
    if arguments:  # alone it prints its help
        group.main(arguments, prog_name="flexconv", standalone_mode=False)
    return called


@pytest.mark.parametrize("page", PAGES)
def test_its_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)
    found = blocks(page, "python")
    assert found
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_are_understood(page):
    found = list(commands(page))
    assert found
    for arguments in found:
        values = parse(arguments)
        recipe = values.get("recipe") or (values.get("name") if arguments[0] == "recipes" else None)
        if recipe is not None and not recipe.endswith(".yaml"):
            load_recipe(recipe, values.get("changes") or [])
        if arguments[:1] == ["data"] and values.get("name"):
            assert data.dataset(values["name"])


@pytest.mark.parametrize("page", PAGES)
def test_its_recipes_load(page):
    for block in blocks(page, "yaml"):
        tree = _yaml().safe_load(block)
        tree.pop("variants", None)
        build_recipe(tree)


def test_the_demo_is_made_of_commands_that_parse():
    lines = re.findall(r"^\t@?\$\(FLEXCONV\) (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert [shlex.split(line)[0] for line in lines] == ["train", "inspect", "resample"]
    for line in lines:
        parse(shlex.split(line))
    assert parse(shlex.split(lines[0]))["recipe"] in list_recipes()


@pytest.mark.parametrize("page", [*PAGES, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_its_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", (ROOT / page).read_text("utf-8")):
        assert ((ROOT / page).parent / target).exists(), target


def test_a_command_that_is_wrong_is_seen():
    with pytest.raises(Exception, match="--otu"):
        parse(["train", "digits", "--otu", "x"])
