"""An installation without extras is complete and works with torch, numpy and safetensors only."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import flexconv

ROOT = Path(__file__).parents[1]
DECLARED = {"torch", "numpy", "safetensors"}
OPTIONAL = [
    "huggingface_hub",
    "matplotlib",
    "lightning",
    "sklearn",
    "onnx",
    "typer",
    "rich",
    "pandas",
    "yaml",
    "pooch",
    "tensorboard",
]

# argv[1]: the top-level modules that may be found besides the standard library. Others are missing as in a real
# installation: `import` raises ModuleNotFoundError and importlib.util.find_spec, which torch uses, returns None.
ONLY_ALLOWED = """
import json, sys

allowed = {*json.loads(sys.argv[1]), *sys.stdlib_module_names, "flexconv"}

class Only:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, fullname, path=None, target=None):
        top = fullname.partition(".")[0]
        if top in allowed or top.startswith("_sysconfigdata_"):  # (of the standard library, named by platform)
            return self.finder.find_spec(fullname, path, target)
        return None

sys.meta_path[:] = map(Only, sys.meta_path)
"""

USE_EVERYTHING = """
for name in ("hypothesis", "matplotlib", "yaml"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(f"{name} can be imported, so this test tests nothing")

import torch
import flexconv
from flexconv import FlexConv1d, FlexConv2d, FlexConv3d, Streaming, compat, refresh_extents, testing

for dims, Layer in ((1, FlexConv1d), (2, FlexConv2d), (3, FlexConv3d)):
    layer = Layer(2, 3, 5)
    y = layer(torch.randn(2, 2, *[8] * dims))
    y.square().mean().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters() if parameter.requires_grad)
    assert refresh_extents(layer)

causal = FlexConv1d(2, 3, 9, padding="causal")
testing.assert_streaming_matches(causal, torch.randn(1, 2, 20), 3)
assert Streaming(causal)(torch.randn(1, 2, 4)).shape == (1, 3, 4)
assert callable(compat.from_authors)
print("done")
"""


def python(program, *arguments, cwd):
    """Run a program in a new interpreter, outside of the repository, and return its output."""
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def required(distribution, *, seen):
    """The names of a distribution and of everything that it requires, without extras."""
    name = re.sub(r"[-_.]+", "-", distribution).lower()
    if name not in seen:
        seen.add(name)
        for line in metadata.requires(distribution) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(requirement.name, seen=seen)
    return seen


def test_requires_only_torch_numpy_and_safetensors():
    plain = [Requirement(line) for line in metadata.requires("flexconv") or [] if "extra ==" not in line]
    assert {requirement.name for requirement in plain} == DECLARED


def test_works_with_required_packages_only(tmp_path):
    distributions: set[str] = set()
    for name in DECLARED:
        required(name, seen=distributions)
    allowed = [
        module
        for module, owners in metadata.packages_distributions().items()
        if any(re.sub(r"[-_.]+", "-", owner).lower() in distributions for owner in owners)
    ]
    assert not {"hypothesis", "matplotlib", "yaml"} & {*allowed}
    assert python(ONLY_ALLOWED + USE_EVERYTHING, json.dumps(allowed), cwd=tmp_path).strip() == "done"


def test_import_loads_no_optional_package(tmp_path):
    program = f"import flexconv, flexconv.testing, sys; print([m for m in {OPTIONAL} if m in sys.modules])"
    assert python(program, cwd=tmp_path).strip() == "[]"


def test_import_does_not_load_the_compiler(tmp_path):
    slow = {"torch._dynamo", "triton"}
    program = (
        f"import torch, sys; before = {{*sys.modules}}; import flexconv; print({slow} & {{*sys.modules}} - before)"
    )
    assert python(program, cwd=tmp_path).strip() == "set()"


def test_marker_for_type_checkers_is_installed():
    assert resources.files("flexconv").joinpath("py.typed").is_file()


def test_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    source = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'__version__ = "(.*)"', source.read_text("utf-8")) == [flexconv.__version__]
    assert project["project"]["dynamic"] == ["version"]
    assert metadata.version("flexconv") == flexconv.__version__


def test_citation_has_the_version():
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE) == [
        flexconv.__version__
    ]


@pytest.mark.parametrize("name", ["flexconv", "flexconv.nn", "flexconv.ops"])
def test_public_names_exist_and_are_unique(name):
    module = importlib.import_module(name)
    missing = [public for public in module.__all__ if not hasattr(module, public)]
    assert not missing
    assert len({*module.__all__}) == len(module.__all__)


def test_star_import_brings_no_modules():
    assert not [name for name in flexconv.__all__ if isinstance(getattr(flexconv, name), ModuleType)]
    assert isinstance(flexconv.nn, ModuleType)
