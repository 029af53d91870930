"""The site: every page in its place, nothing on it out of date, and none longer than two screens."""

from __future__ import annotations

import importlib
import inspect
import math
import re

import pytest

from flexconv import create_model
from flexconv.train._read import import_yaml

from .test_docs import DOCS, FENCE, PAGES, ROOT, hooks, read

TWO_SCREENS = 110  # lines of text


def navigation(tree):
    """(section, file) of every page of the nav, in its order."""
    for entry in tree:
        for title, below in entry.items():
            yield from [("", below)] if isinstance(below, str) else [(title, file) for _, file in navigation(below)]


@pytest.fixture(scope="module")
def nav():
    return list(navigation(import_yaml().safe_load(read("mkdocs.yml"))["nav"]))


def test_every_page_is_in_the_navigation_once(nav):
    assert sorted(f"docs/{file}" for _, file in nav) == [page for page in PAGES if page != "README.md"]


def test_every_command_is_on_a_page():
    comments = [names for page in PAGES for names in re.findall(r"<!-- help: (.+?) -->", read(page))]
    shown = [name for names in comments for name in names.split(", ")]
    assert sorted(shown) == sorted(hooks.commands())
    assert "## flexconv train" in hooks.on_page_markdown("<!-- help: train -->")
    overview = read("docs/command.md")
    assert all(f"`{name}`" in overview for name in shown)


def test_every_example_is_on_its_page():
    page = hooks.on_page_markdown(read("docs/examples.md"))
    assert all(f"| `{path.name}` | " in page for path in (ROOT / "examples").glob("*.py"))


def test_every_public_module_has_a_page():
    """All of flexconv that has a name of its own, but the command, what only that uses, and folders of files."""
    without = {"cli", "paper", "recipes", "summary", "weights"}
    modules = {path.stem for path in (ROOT / "src/flexconv").glob("[a-z]*") if path.suffix == ".py" or path.is_dir()}
    assert {path.stem for path in DOCS.glob("api/*.md")} == modules - without | {"convert"}


@pytest.mark.parametrize("name", ["flexconv", "flexconv.data", "flexconv.explorer", "flexconv.export", "flexconv.viz"])
def test_the_example_at_the_top_of_a_module_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.search(r"^    from flexconv.*?(?=\n\n|\Z)", inspect.getdoc(importlib.import_module(name)), re.M | re.S)
    assert found
    model = create_model("flexnet3", in_channels=3, num_classes=2, image_size=32, widths=[4]).eval()
    exec(inspect.cleandoc("    " + found[0].lstrip()), {"model": model, "layer": model.get_submodule("stem")})


def test_every_network_is_on_its_page():
    page = hooks.on_page_markdown(read("docs/share.md"))
    assert all(f"| `{path.name}` | " in page for path in (ROOT / "src/flexconv/weights").iterdir())


def rendered_lines(text):
    """About how many lines of text a page is high in a browser; code is set tighter, tables wider."""
    lines = sum(0.75 * len(block.splitlines()) + 2 for _, block in FENCE.findall(text))
    for part in re.split(r"\n{2,}", FENCE.sub("", text).strip()):
        rows = re.sub(r"\n +", " ", part).splitlines()  # items of lists are as long as they are
        if part.startswith("|"):
            lines += 1 + sum(0.65 + 0.75 * math.ceil(len(row) / 110) for row in rows)
        else:
            rows = rows if part.startswith(("-", "#")) else [" ".join(rows)]
            lines += 1 + sum(picture_lines(row) or math.ceil(len(row) / 105) for row in rows)
    return lines


def picture_lines(row):
    """As many lines of text as a picture is high; 0 for what is none."""
    found = re.match(r"!\[.*\]\((.+?)\)(?:\{ width=(\d+) \})?", row)
    if not found:
        return 0
    width, height = (int.from_bytes((DOCS / found[1]).read_bytes()[at : at + 4], "big") for at in (16, 20))
    return math.ceil(height * int(found[2] or width) / width / 24)


def test_pages_fit_two_screens(nav):
    appendix = {file for section, file in nav if section in ("Figures", "Reference")} | {"results.md"}
    lengths = {file: rendered_lines(hooks.on_page_markdown((DOCS / file).read_text("utf-8"))) for _, file in nav}
    assert {file: length for file, length in lengths.items() if length > TWO_SCREENS and file not in appendix} == {}


def test_pictures_are_small_and_used():
    text = "".join(map(read, PAGES))
    for path in (DOCS / "images").glob("*.png"):
        assert f"images/{path.name}" in text
    assert sum(path.stat().st_size for path in (DOCS / "images").glob("*.png")) < 400_000
