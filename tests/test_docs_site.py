"""Test the structure of the documentation site: navigation, generated parts, reference pages, pictures."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from flexconv import create_model
from flexconv.train import import_yaml

from .test_docs import DOCS, PAGES, ROOT, hooks, read

WITHOUT_REFERENCE = {"cli", "recipes", "summary", "weights"}  # the command, files, and what only the command uses


def navigation(tree):
    """Yield the file of every page of the navigation, in order."""
    for entry in tree:
        for below in entry.values():
            yield from [below] if isinstance(below, str) else navigation(below)


def public_modules():
    """Return the names of the public modules of flexconv that have a reference page."""
    paths = (ROOT / "src/flexconv").glob("[a-z]*")
    return {path.stem for path in paths if path.suffix == ".py" or path.is_dir()} - WITHOUT_REFERENCE


def test_every_page_is_in_the_navigation_once():
    files = navigation(import_yaml().safe_load(read("mkdocs.yml"))["nav"])
    assert sorted(f"docs/{file}" for file in files) == [page for page in PAGES if page.startswith("docs/")]


def test_command_page_has_every_subcommand():
    page = read("docs/command.md")
    groups = re.findall(r"<!-- help: (.+?) -->", page)
    shown = [name for names in groups for name in names.split(", ")]
    assert sorted(shown) == sorted(hooks.commands())
    assert all(f"`{name}`" in page for name in shown)
    assert "### flexconv train" in hooks.on_page_markdown("<!-- help: train -->")


def test_examples_page_has_every_example():
    page = hooks.on_page_markdown(read("docs/examples.md"))
    assert all(f"| `{path.name}` | " in page for path in (ROOT / "examples").glob("*.py"))


def test_sharing_page_has_every_pretrained_network():
    page = hooks.on_page_markdown(read("docs/share.md"))
    folders = [file.parent for root in hooks.PRETRAINED for file in root.glob("**/config.json")]
    assert folders
    assert all(f"| `{folder.name}` | " in page for folder in folders)


def test_contributing_page_is_contributing_md():
    page = hooks.on_page_markdown(read("docs/contributing.md"))
    assert page.startswith(read("CONTRIBUTING.md").partition("\n")[0])
    assert "](docs/" not in page


def test_every_public_module_has_a_reference_page():
    assert {path.stem for path in DOCS.glob("api/*.md")} == public_modules() | {"flexconv"}


@pytest.mark.parametrize("page", sorted(path.stem for path in DOCS.glob("api/*.md")))
def test_reference_page_has_every_public_name(page):
    """mkdocstrings shows all documented members of a module, or those that `members` lists."""
    module = importlib.import_module("flexconv" if page == "flexconv" else f"flexconv.{page}")
    names = getattr(module, "__all__", [])
    text = hooks.on_page_markdown(read(f"docs/api/{page}.md"))
    listed = {name for names in re.findall(r"members: \[(.+?)\]", text) for name in names.split(", ")}
    listed |= {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    listed |= {*re.findall(r"^\| \[`(\w+)`\]", text, re.MULTILINE)}
    if "members:" in text or page == "flexconv":
        recipes = {name for name in names if name.endswith("Recipe")}  # shown with the module flexconv.train.recipe
        assert {*names} - recipes <= listed
    objects = {name: getattr(module, name) for name in names}
    assert [name for name, value in objects.items() if inspect.isclass(value) and not inspect.getdoc(value)] == []
    assert [name for name, value in objects.items() if inspect.isfunction(value) and not inspect.getdoc(value)] == []


@pytest.mark.parametrize("name", ["flexconv", "flexconv.data", "flexconv.explorer", "flexconv.export", "flexconv.viz"])
def test_example_in_module_docstring_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.search(r"^    from flexconv.*?(?=\n\n|\Z)", inspect.getdoc(importlib.import_module(name)), re.M | re.S)
    assert found
    model = create_model("flexnet3", in_channels=3, num_classes=2, image_size=32, widths=[4]).eval()
    exec(inspect.cleandoc("    " + found[0].lstrip()), {"model": model, "layer": model.get_submodule("stem")})


def test_pictures_are_small_and_used():
    text = "".join(map(read, PAGES))
    for path in (DOCS / "images").rglob("*.png"):
        assert f"{path.relative_to(DOCS)}" in text
    assert sum(path.stat().st_size for path in (DOCS / "images").glob("*.png")) < 1_000_000
    assert sum(path.stat().st_size for path in (DOCS / "images/results").glob("*.png")) < 4_000_000


def png_header(path):
    """Return the width of a PNG file, and whether it has transparent pixels."""
    data = path.read_bytes()
    return int.from_bytes(data[16:20]), b"tRNS" in data


@pytest.mark.parametrize("page", [page for page in PAGES if "<picture>" in read(page)])
def test_pictures_have_a_light_and_a_dark_variant(page):
    """Opaque pictures would be white blocks on dark pages."""
    folder = (ROOT / page).parent
    variants = [(light, dark) for dark, _, light, _ in hooks.PICTURE.findall(read(page))]
    assert len(variants) == read(page).count("<picture>")
    assert not re.findall(r"!\[[^]]*\]\([^)]*\.png", read(page))
    for light, dark in variants:
        assert dark == light.replace("-light.png", "-dark.png") != light
        (width, transparent), (other, too) = png_header(folder / light), png_header(folder / dark)
        assert (transparent and too) or light.endswith("/explorer-light.png")  # a screenshot has a background
        assert width == other >= 700


def test_site_shows_the_variant_of_its_own_switch():
    text = hooks.on_page_markdown(read("docs/idea.md"))
    assert "<picture>" not in text
    assert 'src="images/kernel-light.png#only-light" srcset="images/kernel-light.png 2x"' in text
    assert 'src="images/kernel-dark.png#only-dark" srcset="images/kernel-dark.png 2x"' in text
