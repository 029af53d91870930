"""Every example runs from its file, in a small version."""

from __future__ import annotations

import importlib.util
import math
import wave
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_learn_a_size_trains_and_prints_a_table(capsys):
    loss, floor, size = load("learn_a_size").main(steps=20)
    assert math.isfinite(loss)
    assert loss > 0
    assert 0 < floor < 1  # the filter has energy 1, and part of it is outside the initial size
    assert len(size) == 2
    assert all(1 <= n <= 33 for n in size)
    lines = capsys.readouterr().out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("step"))
    assert lines[head].split() == ["step", "loss", "size", "sigma", "ms/step"]
    rows = [line.split() for line in lines[head + 1 :]]
    assert [int(row[0]) for row in rows] == list(range(0, 21, 2))
    assert all(math.isfinite(float(row[1])) and "×" in row[2] for row in rows)
    assert float(rows[-1][1]) < float(rows[0][1])


def test_learn_a_size_runs_for_three_steps(capsys):
    loss, _, _ = load("learn_a_size").main(steps=3)
    assert math.isfinite(loss)
    assert "step" in capsys.readouterr().out


def test_train_low_deploy_high_prints_all_accuracies(capsys):
    results = load("train_low_deploy_high").main(epochs=1, rows=128)
    assert len(results) == 7
    assert all(0 <= value <= 1 for value in results.values())
    out = capsys.readouterr().out
    assert all(name in out for name in results)


def test_keyword_spotter_streams_the_logits_of_the_whole_file(capsys, tmp_path):
    results = load("keyword_spotter").main(steps=4, out=tmp_path / "whistles.wav")
    assert results["difference"] < 1e-4
    assert 0 < results["median"] <= results["p95"]
    assert (tmp_path / "whistles.wav").stat().st_size == 44 + 2 * 51200
    assert "320 chunks of 20 ms" in capsys.readouterr().out


def test_keyword_spotter_rejects_invalid_files(tmp_path):
    example = load("keyword_spotter")
    with pytest.raises(SystemExit, match=r"missing\.wav.*No such file"):
        next(example.read_chunks(tmp_path / "missing.wav"))
    (tmp_path / "text.wav").write_text("this is not a sound, but it is long enough for a header")
    with pytest.raises(SystemExit, match=r"text\.wav cannot be read"):
        next(example.read_chunks(tmp_path / "text.wav"))
    with wave.open(str(tmp_path / "stereo.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(bytes(4000))
    with pytest.raises(SystemExit, match=r"\(1, 16, 8000\).*\(2, 16, 44100\)"):
        next(example.read_chunks(tmp_path / "stereo.wav"))


def test_flexconv_in_a_unet_trains_both_networks_and_saves_a_figure(capsys, tmp_path):
    results = load("flexconv_in_a_unet").main(steps=2, seeds=1, out=tmp_path / "unet.png")
    assert set(results) == {"Conv2d", "FlexConv2d"}
    assert all(0 <= value <= 1 for value in results.values())
    assert (tmp_path / "unet.png").read_bytes().startswith(b"\x89PNG")
    assert "bottom.0" in capsys.readouterr().out


def test_fit_an_image_fits_all_generators_and_saves_a_figure(capsys, tmp_path):
    results = load("fit_an_image").main(steps=5, out=tmp_path / "fit.png")
    assert list(results) == ["MAGNet", "Gabor", "Fourier", "SIREN"]
    assert all(math.isfinite(value) for value in results.values())
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    counts = [
        int(line.split()[1].replace(",", ""))
        for line in capsys.readouterr().out.splitlines()
        if line[:1] in "MGFS" and "," in line
    ]
    assert max(counts) < 1.1 * min(counts)


def test_captured_loop_learns_and_prints_a_table(capsys):
    accuracy = load("captured_loop").main(epochs=1, rows=100)
    assert 0 <= accuracy <= 1
    out = capsys.readouterr().out
    assert out.startswith("epoch")
    assert "The steps ran on" in out


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_separable_network_runs_at_twice_the_resolution(dims, capsys):
    results = load("separable_network").main(dims, steps=2, width=4)
    assert list(results) == ["trained resolution", "twice the resolution"]
    assert all(0 <= value <= 1 for value in results.values())
    assert "before training" in capsys.readouterr().out


def test_missing_samples_compares_two_networks():
    results = load("missing_samples").main(steps=2, width=4)
    assert len(results) == 4
    assert all(0 <= value <= 1 for value in results.values())


def test_volumes_are_measured_beside_a_plain_convolution(capsys):
    results = load("volumes").main(size=8, steps=1, width=2, repeats=1, layer_size=8)
    assert math.isfinite(results["loss"])
    assert min(results["SeparableFlexConv3d"], results["nn.Conv3d"]) > 0
    assert "7×7×7" in capsys.readouterr().out
