"""The Python code of README.md runs, and what its comments state is true."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def run_readme():
    """Run the Python blocks of the README and return their variables."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert blocks
    variables = {}
    for block in blocks:
        exec(block, variables)
    return variables


def test_readme_example_runs_and_states_correct_sizes(capsys):
    names = run_readme()
    assert list(names["y"].shape) == [8, 16, 32, 32]
    assert "# [8, 16, 32, 32]" in README
    layer = names["layer"]
    assert layer.kernel_size == (33, 33)
    assert "at most 33 × 33" in README
    assert layer.extent == (7, 7)
    assert list(layer.kernel().shape) == [16, 3, 7, 7]
    assert "# (7, 7), [16, 3, 7, 7]" in README
    assert capsys.readouterr().out == "(7, 7) torch.Size([16, 3, 7, 7])\n"
    model, larger = names["model"], names["larger"]
    assert "the same weights for images of 32 × 32" in README
    assert larger(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    for ours, theirs in zip(larger.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
