"""The wheels: flexconv is small, and flexconv-weights holds the other trained networks."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import flexconv

ROOT = Path(__file__).parents[1]
LIMIT = 1_500_000  # bytes of the wheel of flexconv


def project(path):
    return tomllib.loads((ROOT / path / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, by the name of their distribution."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheels")
    for path in (ROOT, ROOT / "weights"):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        done = subprocess.run(command, cwd=path, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def test_wheel_of_flexconv_is_small(wheels):
    assert wheels["flexconv"].stat().st_size < LIMIT
    names = zipfile.ZipFile(wheels["flexconv"]).namelist()
    assert {name.partition("/")[0] for name in names} == {"flexconv", f"flexconv-{flexconv.__version__}.dist-info"}
    assert {"flexconv/py.typed", "flexconv/weights/index.json", "flexconv/recipes/digits.yaml"} <= {*names}
    (network,) = [name for name in names if name.endswith(".safetensors")]
    assert network.startswith("flexconv/weights/flexnet3-digits/")


def test_wheel_of_the_weights_holds_every_network(wheels, tmp_path):
    assert wheels["flexconv_weights"].name.startswith(f"flexconv_weights-{flexconv.__version__}-")
    with zipfile.ZipFile(wheels["flexconv_weights"]) as archive:
        archive.extractall(tmp_path)
    package = tmp_path / "flexconv_weights"
    folders = {path.parent.name for path in (ROOT / "weights").glob("*/config.json")}
    assert {path.name for path in package.iterdir()} == {"__init__.py", "index.json", *folders}
    index = json.loads((package / "index.json").read_text("utf-8"))
    assert {*index["networks"]} == folders
    for name, entry in index["networks"].items():
        assert (package / name / entry["weights"]).is_file()
        assert (package / name / "README.md").is_file()


def test_files_of_flexconv_fit_into_the_limit():
    """The same limit without a build: a wheel is a compressed archive of these files."""
    assert project(".")["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/flexconv"]}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((ROOT / "src/flexconv").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT / "src"))
    assert len(content.getvalue()) < 0.95 * LIMIT


def test_both_distributions_have_the_same_version():
    ours, weights = project("."), project("weights")
    file = ours["tool"]["hatch"]["version"]["path"]
    assert weights["tool"]["hatch"]["version"]["path"] == f"../{file}"
    assert re.search(r'^__version__ = "(.+)"$', (ROOT / file).read_text("utf-8"), re.M)[1] == flexconv.__version__
