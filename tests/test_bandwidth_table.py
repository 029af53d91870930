"""`benchmarks.bandwidth`: energy beyond the Nyquist frequency, and accuracy at other resolutions."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import bandwidth
from flexconv.train import build_recipe, train


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "tiny"
    model = {"name": "sepflexnet_tiny", "width": 8, "depth": 2, "mask": "per_channel"}
    data = {"name": "digits", "validation": 0.2}
    recipe = build_recipe(
        {"model": model, "data": data, "epochs": 6, "batch_size": 100, "schedule": {"warmup_epochs": 1}}
    )
    train(recipe, folder, device="cpu")
    return folder


def test_prints_energy_and_accuracy(trained_run, tmp_path, capsys):
    bandwidth.main([str(trained_run), "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["layer"] for row in rows["layers"]] == [
        "stem.depthwise",
        "blocks.0.conv.depthwise",
        "blocks.1.conv.depthwise",
    ]
    assert all(0 <= row["folded"] <= row["beyond"] <= 1 for row in rows["layers"])
    assert [row["scale"] for row in rows["resolutions"]] == [0.5, 0.75, 1.0, 1.5, 2.0]
    own = rows["resolutions"][2]
    assert own["accuracy"] > 0.3  # of ten classes
    assert all(0 <= row[name] <= 1 for row in rows["resolutions"] for name in ("accuracy", "recalibrated"))
    out = capsys.readouterr().out
    assert "| × 1.5 |" in out
    assert "energy beyond Nyquist" in out


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.5, 2])
def test_resizing_keeps_smooth_signals(scale):
    t = (torch.arange(64) + 0.5) / 64
    finer = (torch.arange(round(64 * scale)) + 0.5) / round(64 * scale)
    x, y = (torch.sin(2 * torch.pi * each)[None, None] for each in (t, finer))
    torch.testing.assert_close(bandwidth.resize(x, scale)[..., 4:-4], y[..., 4:-4], atol=0.02, rtol=0)
    images = torch.zeros(1, 3, 16, 16)
    assert bandwidth.resize(images, scale).shape == (1, 3, round(16 * scale), round(16 * scale))
