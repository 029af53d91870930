"""Test the documentation: Python blocks run, commands parse, recipes load, links and file names exist.

Every fenced block has one of these languages: python blocks are executed, sh blocks are checked line by line, yaml
blocks are loaded as recipes, and text blocks must not contain code. No block can be excluded.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import statistics
import tomllib
from pathlib import Path

import pytest
import typer
from markdown.extensions.toc import slugify

from flexconv import cli, data
from flexconv.train import build_recipe, import_yaml, list_recipes, load_recipe

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md"))]
LANGUAGES = {"python", "sh", "yaml", "text", "bibtex"}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENTRY_POINTS = ("flexconv", "flexconv.cli")  # of `python -m`
LONGEST_CELL = 120  # characters of a table cell in README.md

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
    """Return a page without its fenced blocks."""
    return FENCE.sub("", read(page))


def with_blocks(*languages):
    return [page for page in PAGES if any(blocks(page, language) for language in languages)]


# --- commands ---------------------------------------------------------------------------------------------------------


def parse(arguments):
    """Return the keyword arguments with which the subcommand of flexconv would be called."""
    called = {}
    group = typer.main.get_command(cli.app)

    def listen(command):
        for inner in getattr(command, "commands", {}).values():
            listen(inner)
        if not hasattr(command, "commands"):
            command.callback = lambda **values: called.update(values)

    listen(group)
    if arguments:  # without arguments it prints its help
        group.main(arguments, prog_name="flexconv", standalone_mode=False)
    return called


def check_flexconv(words):
    """Check that the command parses and that its recipe or data set exists."""
    if any(re.fullmatch(r"[A-Z]{3,}|…", word) for word in words):
        return  # a pattern, not a command
    if words[:1] in (["--install-completion"], ["--show-completion"]):
        options = {option for parameter in typer.main.get_command(cli.app).params for option in parameter.opts}
        assert words[0] in options  # running it would change the files of the user's shell
        return
    values = parse(words)
    recipe = values.get("recipe") or (values.get("name") if words[:1] == ["recipes"] else None)
    if recipe is not None and not recipe.endswith(".yaml"):
        load_recipe(recipe, values.get("changes") or [])
    if words[:1] == ["data"] and values.get("name"):
        assert data.dataset(values["name"])


def is_module(name):
    """Return whether `python -m NAME` works in a checkout."""
    path = ROOT / name.replace(".", "/")
    return name in ENTRY_POINTS or path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def extras():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    return {*project["optional-dependencies"]}


def test_every_extra_is_on_the_page_about_the_installation():
    assert {*re.findall(r"^\| `(\w+)` \|", read("docs/install.md"), re.MULTILINE)} == extras()


def check_command(line):
    """Check one line of a shell."""
    words = shlex.split(line, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    match words:
        case ["flexconv", *rest] | ["python", "-m", "flexconv", *rest]:
            check_flexconv(rest)
        case ["torchrun", *rest]:
            (module,) = (word for word in rest if word in ENTRY_POINTS)
            check_flexconv(rest[rest.index(module) + 1 :])
        case ["make", target, *variables] if all("=" in each for each in variables):
            assert re.search(rf"^{target}:", read("Makefile"), re.MULTILINE), target
        case ["pip", "install", "./weights"]:
            assert (ROOT / "weights/pyproject.toml").exists()
        case ["pip", "install", what] | ["pip", "install", "-e", what]:
            assert what.partition("[")[0] == ".", f"{what}: flexconv is on no package index"
            assert {*re.findall(r"\w+", what.partition("[")[2])} <= extras(), what
        case ["python", "-m", module, *_]:
            assert is_module(module), module
        case ["python", script, *_]:
            assert (ROOT / script).exists(), script
        case _:
            raise AssertionError(f"this test does not know the command {line!r}")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_checked_language(page):
    assert {name for name, _ in FENCE.findall(read(page))} <= LANGUAGES
    assert not re.search(r"^ *```", prose(page), re.MULTILINE), "a fence that is not closed, or indented"
    assert not re.search(r"\n\n {4,}\S", prose(page)), "code by indentation: fence it"
    for block in blocks(page, "text"):
        assert not re.search(r"^(import|from|flexconv|python|pip|make) ", block, re.MULTILINE), "code that is not run"


@pytest.mark.parametrize("page", with_blocks("python"))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flexconv.train.run.draw_plots", lambda *_: None)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", with_blocks("sh"))
def test_shell_blocks_are_valid_commands(page):
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.strip() and not line.startswith("#"):
                check_command(line)


@pytest.mark.parametrize("page", PAGES)
def test_inline_commands_are_valid(page):
    for line in re.findall(r"`((?:flexconv|torchrun|make|pip|python) [^`\n]+)`", prose(page)):
        name = re.fullmatch(r"flexconv (\w+)", line)
        if "…" not in line:
            check_command(f"{line} --help" if name else line)  # alone it names a subcommand


@pytest.mark.parametrize("page", with_blocks("yaml"))
def test_yaml_blocks_are_valid_recipes(page):
    for block in blocks(page, "yaml"):
        tree = import_yaml().safe_load(block)
        tree.pop("variants", None)
        build_recipe(tree)


def test_makefile_uses_valid_commands():
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
def test_invalid_commands_are_detected(line):
    with pytest.raises((Exception, SystemExit)):
        check_command(line)


# --- links and tables -------------------------------------------------------------------------------------------------


def anchors(path):
    """Return the ids of the headings of a page, and those that are written out."""
    text = hooks.on_page_markdown(path.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", title), "-") for title in titles} | {*re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("page", PAGES)
def test_links_have_targets(page):
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", prose(page)):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"
    for target in re.findall(r'(?:src|srcset)="(?!https?://)([^"]+)"', prose(page)):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    folders = "tests|benchmarks|results|examples|docs|src|reproduction|weights"
    for name in re.findall(rf"`((?:{folders})/[\w./*-]*)`", prose(page)):
        assert [*ROOT.glob(name.rstrip("/"))], name


def test_readme_table_cells_are_short():
    rows = re.findall(r"^\|(.+)\|$", prose("README.md"), re.MULTILINE)
    cells = [cell.strip() for row in rows for cell in row.split("|")]
    assert cells
    assert [cell for cell in cells if len(cell) > LONGEST_CELL] == []


def readme_results():
    """Yield (our result, number of seeds, run folder) of every row of the README that links to a run."""
    row = re.compile(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \| (\d+) \| \[[^]]+\]\((results/runs/[^)]+)\) \|$", re.MULTILINE)
    for ours, seeds, folder in row.findall(prose("README.md")):
        yield ours, int(seeds), ROOT / folder


def accuracy(folder):
    results = json.loads((folder / "results.json").read_text("utf-8"))
    return 100 * results.get("source", results)["test_accuracy"]


def test_readme_results_are_those_of_the_logs():
    rows = list(readme_results())
    assert len(rows) >= 4
    for ours, seeds, folder in rows:
        family, seed, _ = folder.name.partition("-seed")
        folders = sorted(folder.parent.glob(f"{family}-seed[0-9]")) if seed else [folder]
        values = [accuracy(each) for each in folders]
        assert len(values) == seeds, folder.name
        found = re.match(r"(\d+\.(\d+))(?: ± (\d+\.\d+))? %", ours)
        assert found, ours
        digits = len(found[2])
        assert found[1] == f"{statistics.mean(values):.{digits}f}", folder.name
        assert seeds == 1 or found[3] == f"{statistics.stdev(values):.{digits}f}", folder.name
