"""What the pages say is so: their code runs, their commands parse, their links lead somewhere.

Every fenced block has a language that is dealt with here: python is run, sh is understood line by line, yaml is a
recipe, text is no code. There is no way to mark a block as not to be run.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer
from markdown.extensions.toc import slugify

from flexconv import cli, data
from flexconv.train import build_recipe, list_recipes, load_recipe
from flexconv.train._read import import_yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md"))]
LANGUAGES = {"python", "sh", "yaml", "text", "bibtex"}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
assert _spec is not None
assert _spec.loader is not None
hooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hooks)


def read(page):
    return (ROOT / page).read_text("utf-8")


def blocks(page, language):
    return [block for name, block in FENCE.findall(read(page)) if name == language]


def prose(page):
    """A page without its fenced blocks."""
    return FENCE.sub("", read(page))


def with_blocks(*languages):
    return [page for page in PAGES if any(blocks(page, language) for language in languages)]


# --- commands ---------------------------------------------------------------------------------------------------------


def parse(arguments):
    """What the named subcommand of flexconv would be called with."""
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


def check_flexconv(words):
    """The command parses, and its recipe or data set is there."""
    if any(re.fullmatch(r"[A-Z]{3,}|…", word) for word in words):
        return  # a pattern, not a command
    values = parse(words)
    recipe = values.get("recipe") or (values.get("name") if words[:1] == ["recipes"] else None)
    if recipe is not None and not recipe.endswith(".yaml"):
        load_recipe(recipe, values.get("changes") or [])
    if words[:1] == ["data"] and values.get("name"):
        assert data.dataset(values["name"])


def check_command(line):
    """A line of a shell: every program that pages use, and what can be wrong about it."""
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    match words:
        case ["flexconv", *rest]:
            check_flexconv(rest)
        case ["torchrun", *rest]:
            assert "flexconv.cli" in rest
            check_flexconv(rest[rest.index("flexconv.cli") + 1 :])
        case ["make", target]:
            assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE), target
        case ["pip", "install", what]:
            extras = re.findall(r"^(\w+) = \[", read("pyproject.toml").split("optional-dependencies]")[1], re.MULTILINE)
            assert {*re.findall(r"\w+", what.partition("[")[2])} <= {*extras}, what
        case ["python", "-m", module, *_]:
            path = ROOT / module.replace(".", "/")
            assert module == "flexconv.cli" or path.with_suffix(".py").exists(), module
        case ["python", script, *_]:
            assert (ROOT / script).exists(), script
        case _:
            raise AssertionError(f"what is {line!r}? This test does not know the command")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_checked(page):
    assert {name for name, _ in FENCE.findall(read(page))} <= LANGUAGES
    assert not re.search(r"^ *```", prose(page), re.MULTILINE), "a fence that is not closed, or indented"
    assert not re.search(r"\n\n {4,}\S", prose(page)), "code by indentation: fence it"
    for block in blocks(page, "text"):
        assert not re.search(r"^(import|from|flexconv|python|pip|make) ", block, re.MULTILINE), "code that is not run"


@pytest.mark.parametrize("page", with_blocks("python"))
def test_its_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", with_blocks("sh"))
def test_its_commands_are_understood(page):
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.strip() and not line.startswith("#"):
                check_command(line)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_its_text_are_understood(page):
    for line in re.findall(r"`((?:flexconv|torchrun|make|pip|python) [^`\n]+)`", prose(page)):
        name = re.fullmatch(r"flexconv (\w+)", line)
        if "…" not in line:
            check_command(f"{line} --help" if name else line)  # alone it names a subcommand


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_its_recipes_load(page):
    for block in blocks(page, "yaml"):
        tree = import_yaml().safe_load(block)
        tree.pop("variants", None)
        build_recipe(tree)


def test_the_makefile_is_made_of_commands_that_parse():
    lines = re.findall(r"^\t@?\$\(FLEXCONV\) (.+)$", read("Makefile"), re.MULTILINE)
    assert [shlex.split(line)[0] for line in lines] == ["train", "inspect", "resample", "bench"]
    for line in lines:
        parse(shlex.split(line))
    assert parse(shlex.split(lines[0]))["recipe"] in list_recipes()


@pytest.mark.parametrize(
    "line",
    [
        "flexconv train digits --otu x",
        "flexconv train dgits",
        "flexconv data fetch cifar11",
        "make coffee",
        "pip install '.[trian]'",
        "python -m benchmarks.rum",
        "sudo flexconv",
    ],
)
def test_a_command_that_is_wrong_is_seen(line):
    with pytest.raises((Exception, SystemExit)):
        check_command(line)


# --- links ------------------------------------------------------------------------------------------------------------


def anchors(path):
    """The ids that headings of a page get, and those written out."""
    text = hooks.on_page_markdown(path.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", title), "-") for title in titles} | {*re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("page", PAGES)
def test_its_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", prose(page)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_files_it_names_are_there(page):
    for name in re.findall(r"`((?:tests|benchmarks|results|examples|docs|src)/[\w./*-]*)`", prose(page)):
        assert [*ROOT.glob(name.rstrip("/"))], name
    for name in re.findall(r"\| ((?:\w+/)?test_\w+) \|$", prose(page), re.MULTILINE):
        assert (ROOT / "tests" / f"{name}.py").exists(), name
