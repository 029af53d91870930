"""Exported files that stand alone: raw samples in, probabilities out, and metadata that describe both."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch
from torch import nn

from flexconv import FlexConv1d, GaussianMask, at_resolution, cli, from_pretrained, save_pretrained
from flexconv.data import load, resize_images
from flexconv.export import ExportedFile, ExportError, export, load_conv
from flexconv.models import FlexNet, FlexTCN, ImageSeries, Inputs

LIMIT = 1e-5
COLORS = ("red", "grün", "blue")


def network(**changes):
    """A small network for 8-bit color images of 8 × 8 pixels."""
    model = FlexNet(in_channels=3, num_classes=3, image_size=8, widths=[4]).eval()
    known = {"size": (8, 8), "scale": 1 / 255, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "classes": COLORS}
    model.inputs = Inputs(**known | changes)
    return model


def sequences(channels=1, length=24, **changes):
    """A small network for series."""
    model = FlexTCN(in_channels=channels, num_classes=3, length=length, widths=[4]).eval()
    known = {"size": (length,), "scale": 1.0, "mean": (0.5,) * channels, "std": (0.2,) * channels, "classes": COLORS}
    model.inputs = Inputs(**known | changes)
    return model


def pixels(*shape):
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def run_onnx(path, raw):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: raw.numpy()})[0])


def run_pt2(path, raw):
    return torch.export.load(path).module()(raw).detach()


RUN = {"onnx": run_onnx, "pt2": run_pt2}


def onnx_metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def pt2_metadata(path):
    files = {"metadata.json": ""}
    torch.export.load(path, extra_files=files)
    return json.loads(files["metadata.json"])


def assert_same(found, truth):
    """Kernels are rounded differently; in scaled layers on small grids by up to 4e-5 of their size."""
    torch.testing.assert_close(found, truth.detach(), rtol=1e-4, atol=5e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """`network()`, and the report of its export to a format as "colors". Each export takes seconds."""
    model = network()
    return model, functools.cache(
        lambda format: export(model, tmp_path_factory.mktemp("exported") / f"net.{format}", name="colors")  # noqa: A006
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The folder of digits.onnx, as in the documentation."""
    folder = tmp_path_factory.mktemp("digits")
    export(from_pretrained("flexnet3-digits"), folder / "digits.onnx", name="flexnet3-digits")
    return folder


# --- raw samples in, probabilities out --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", RUN)
def test_file_maps_raw_pixels_to_probabilities(format, exported):  # noqa: A002
    model, report = exported[0], exported[1](format)
    assert report.error <= LIMIT
    assert "raw uint8 values from 0 to 255" in str(report)
    assert "probabilities of 3 classes: red, grün, blue" in str(report)
    for shape in ((1, 3, 8, 8), (5, 3, 8, 8), (2, 3, 11, 6)):  # batch and size are free
        raw = pixels(*shape)
        found = RUN[format](report.path, raw)
        assert_same(found, model(model.inputs(raw)).softmax(1))
        assert_same(found.sum(1), torch.ones(shape[0]))


@pytest.mark.parametrize("format", RUN)
def test_file_can_return_logits(format, tmp_path):  # noqa: A002
    model, path, raw = network(), tmp_path / f"net.{format}", pixels(2, 3, 8, 8)
    report = export(model, path, output="logits")
    assert report.metadata["output"] == "logits"
    assert_same(RUN[format](path, raw), model(model.inputs(raw)))


@pytest.mark.parametrize("format", RUN)
def test_bare_network_expects_standardized_inputs(format, tmp_path):  # noqa: A002
    model, path, raw = network(), tmp_path / f"net.{format}", pixels(2, 3, 8, 8)
    report = export(model, path, preprocessing=False)
    assert "no preprocessing" in str(report)
    assert (report.metadata["preprocessing"], report.metadata["output"]) == ("none", "logits")
    assert (report.metadata["input_dtype"], "input_range" in report.metadata) == ("float32", False)
    x = model.inputs(raw)
    assert_same(RUN[format](path, x), model(x))


def test_probabilities_of_a_bare_network(tmp_path):
    model, x = network(), torch.randn(2, 3, 8, 8)
    export(model, tmp_path / "net.pt2", preprocessing=False, output="probabilities")
    assert_same(run_pt2(tmp_path / "net.pt2", x), model(x).softmax(1))


def test_file_standardizes_16_bit_waves(tmp_path):
    model = sequences(scale=2**-15, rate=8000)
    report = export(model, tmp_path / "waves.onnx")
    assert report.metadata["input_dtype"] == "int16"
    assert report.metadata["input_range"] == [-(2**15), 2**15 - 1]
    assert report.metadata["sampling_rate"] == 8000
    raw = torch.randint(-3000, 3000, (2, 1, 40), dtype=torch.int16)
    assert_same(run_onnx(tmp_path / "waves.onnx", raw), model(model.inputs(raw)).softmax(1))


@pytest.mark.parametrize("format", RUN)
def test_file_computes_mfccs_of_waves(format, tmp_path):  # noqa: A002
    model, path = sequences(20, 17, scale=2**-15, mfcc_rate=1600), tmp_path / f"words.{format}"
    report = export(model, path)
    assert report.axes == (("batch", 1, "length"),)
    assert report.metadata["input_size"] == [160]
    assert report.metadata["sampling_rate"] == 1600
    raw = torch.randint(-3000, 3000, (3, 1, 200), dtype=torch.int16)
    assert_same(RUN[format](path, raw), model(model.inputs(raw)).softmax(1))
    with pytest.raises(ValueError, match="words was trained on MFCCs"):
        export(model, tmp_path / "other.onnx", scale=2, name="words")


def test_series_of_any_value_are_float32(tmp_path):
    model = sequences(2)
    report = export(model, tmp_path / "series.onnx")
    assert report.metadata["input_dtype"] == "float32"
    assert "input_range" not in report.metadata
    raw = torch.randn(2, 2, 30) * 100
    assert_same(run_onnx(tmp_path / "series.onnx", raw), model(model.inputs(raw)).softmax(1))


@pytest.mark.parametrize("format", RUN)
def test_images_as_series_are_images_for_the_file(format, tmp_path):  # noqa: A002
    images = ImageSeries(size=(4, 5), steps="rows", order_seed=1, noise_steps=3)
    model, path = sequences(10, 7, scale=1 / 255, images=images), tmp_path / f"rows.{format}"
    report = export(model, path)
    assert report.axes == (("batch", 2, 4, 5),)
    assert (report.metadata["input_layout"], report.metadata["input_size"]) == ("NCHW", [4, 5])
    raw = pixels(3, 2, 4, 5)
    assert_same(RUN[format](path, raw), model(model.inputs(raw)).softmax(1))
    with pytest.raises(ValueError, match="trained on images as series"):
        export(model, tmp_path / "other.onnx", scale=2)


def test_raw_series_with_lengths(tmp_path):
    model = sequences(2)
    raw, lengths = torch.randn(3, 2, 24) * 10, torch.tensor([5, 24, 11])
    report = export(model, tmp_path / "series.onnx", example=(raw, lengths))
    session = onnxruntime.InferenceSession(report.path)
    names = [each.name for each in session.get_inputs()]
    found = session.run(["probabilities"], dict(zip(names, (raw.numpy(), lengths.numpy()), strict=True)))[0]
    assert names == ["input", "lengths"]
    assert_same(torch.from_numpy(found), model(model.inputs(raw), lengths).softmax(1))


def test_int8_file_maps_raw_pixels_to_probabilities(tmp_path):
    model, raw = network(), pixels(2, 3, 8, 8)
    report = export(model, tmp_path / "int8.onnx", quantize=True)
    assert LIMIT < report.quantization_error < 0.2
    assert onnx_metadata(report.path)["classes"] == json.dumps(COLORS, ensure_ascii=False)
    found = run_onnx(report.path, raw)
    torch.testing.assert_close(found, model(model.inputs(raw)).softmax(1).detach(), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("format", RUN)
def test_float16_file_is_finite(format, tmp_path):  # noqa: A002
    model, raw = network(), pixels(2, 3, 8, 8)
    report = export(model, tmp_path / f"float16.{format}", half=True)
    assert report.error <= LIMIT < report.quantization_error < 0.01
    assert "in float16, the precision of the file" in str(report)
    assert report.metadata["precision"] == "float16"
    found = RUN[format](report.path, raw)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, model(model.inputs(raw)).softmax(1).detach(), rtol=0.01, atol=0.005)


def test_float16_file_of_own_module(tmp_path):
    model, x = nn.Sequential(FlexConv1d(2, 4, 9, mask=GaussianMask(1, sigma=0.4)), nn.ReLU()), torch.randn(2, 2, 33)
    report = export(model, tmp_path / "mine.onnx", shape=(1, 2, 20), half=True)
    torch.testing.assert_close(run_onnx(report.path, x), model(x).detach(), rtol=0.01, atol=0.005)


def test_float16_overflow_is_an_error(tmp_path):
    model = nn.Sequential(nn.Conv1d(1, 1, 3), nn.Conv1d(1, 1, 3))
    nn.init.constant_(model[0].weight, 3e4)
    nn.init.constant_(model[1].weight, 3e-4)
    with pytest.raises(ExportError, match="infinity in float16"):
        export(model, tmp_path / "a.onnx", example=torch.full((1, 1, 20), 3.0), half=True)
    assert not list(tmp_path.iterdir())


def test_digits_file_has_the_accuracy_of_the_network(digits):
    model, test = from_pretrained("flexnet3-digits"), load("digits").test
    raw = resize_images(test.inputs.float(), (16, 16))  # from 0 to 16
    found = run_onnx(digits / "digits.onnx", raw)
    with torch.no_grad():
        truth = model(model.inputs(raw)).softmax(1)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-6)
    assert (found.argmax(1) == test.labels).float().mean() > 0.98


# --- metadata ---------------------------------------------------------------------------------------------------------


EXPECTED = {
    "network": "colors",
    "preprocessing": "included",
    "input_layout": "NCHW",
    "input_channels": 3,
    "input_size": [8, 8],
    "input_dtype": "uint8",
    "input_range": [0, 255],
    "output": "probabilities",
    "classes": list(COLORS),
}


def test_onnx_metadata(exported):
    report = exported[1]("onnx")
    found = onnx_metadata(report.path)
    assert {**EXPECTED, **report.metadata} == dict(report.metadata)
    assert {key: found[key] for key in EXPECTED} == {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in EXPECTED.items()
    }
    (output,) = onnxruntime.InferenceSession(report.path).get_outputs()
    assert output.name == "probabilities"


def test_pt2_metadata(exported):
    report = exported[1]("pt2")
    assert pt2_metadata(report.path) == report.metadata
    assert {**EXPECTED, **report.metadata} == dict(report.metadata)


def test_safetensors_metadata_and_inputs(tmp_path):
    model, raw = network(), pixels(2, 3, 16, 16)
    report = export(model, tmp_path / "net.safetensors", name="colors", scale=2)
    assert report.metadata["preprocessing"] == "none"
    with safetensors.safe_open(report.path, "pt") as file:
        metadata = file.metadata()
    assert (metadata["network"], json.loads(metadata["input_size"])) == ("colors", [16, 16])
    plain = load_conv(report.path)
    assert (plain.inputs.size, plain.inputs.classes) == ((16, 16), COLORS)
    assert_same(plain(plain.inputs(raw)), at_resolution(model, 2)(model.inputs(raw)))


@pytest.mark.parametrize("scale", [2, (2, 1.5)])
def test_metadata_have_the_size_of_another_resolution(scale, tmp_path):
    report = export(network(), tmp_path / "net.onnx", scale=scale)
    size = [16, 16] if scale == 2 else [16, 12]
    found = onnx_metadata(report.path)
    assert json.loads(found["input_size"]) == json.loads(found["flexconv.inputs"])["size"] == size
    assert report.comparisons[0].shapes == ((1, 3, *size),)


def test_metadata_have_the_size_of_a_resampled_model(tmp_path):
    report = export(at_resolution(network(), 2), tmp_path / "net.pt2", scale=1.5)
    assert report.metadata["input_size"] == [24, 24]


def test_metadata_have_the_size_of_fine_tuning(tmp_path):
    model = network(size=(12, 12))  # made for 8 × 8, trained on 12 × 12
    assert export(model, tmp_path / "a.pt2").metadata["input_size"] == [12, 12]
    assert export(model, tmp_path / "b.pt2", scale=2).metadata["input_size"] == [24, 24]


def test_sampling_rate_follows_the_resolution(tmp_path):
    report = export(sequences(scale=2**-15, rate=8000), tmp_path / "waves.pt2", scale=0.5)
    assert (report.metadata["sampling_rate"], report.metadata["input_size"]) == (4000, [12])


def test_own_module_has_no_preprocessing(tmp_path):
    model = nn.Sequential(FlexConv1d(2, 4, 9, mask=GaussianMask(1, sigma=0.4)), nn.ReLU())
    report = export(model, tmp_path / "mine.onnx", shape=(1, 2, 20))
    assert "no preprocessing" in str(report)
    assert "output" not in report.metadata
    assert onnx_metadata(report.path) == {
        "flexconv": report.metadata["flexconv"],
        "network": "Sequential",
        "precision": "float32",
        "preprocessing": "none",
        "input_layout": "NCL",
        "input_channels": "2",
        "input_size": "[20]",
        "input_dtype": "float32",
    }
    x = torch.randn(2, 2, 33)
    assert_same(run_onnx(report.path, x), model(x))


class Own(nn.Module):
    """A network of a user that describes its inputs."""

    def __init__(self, wrap=lambda logits: logits):
        super().__init__()
        self.conv = FlexConv1d(1, 3, 9, mask=GaussianMask(1, sigma=0.4))
        self.inputs = sequences().inputs
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.conv(x).mean(-1))


def test_own_module_with_inputs_is_preprocessed(tmp_path):
    model, raw = Own(), torch.randn(2, 1, 30) * 10
    report = export(model, tmp_path / "own.onnx")
    assert (report.metadata["network"], report.metadata["classes"]) == ("Own", list(COLORS))
    assert_same(run_onnx(report.path, raw), model(model.inputs(raw)).softmax(1))


# --- exported files as modules ----------------------------------------------------------------------------------------


def test_exported_file_rounds_pixels_and_returns_logits(exported):
    model, raw = exported[0], pixels(2, 3, 8, 8)
    file = ExportedFile(exported[1]("pt2"), logits=True)
    assert_same(file(raw.float() + 0.3), model(model.inputs(raw)).log_softmax(1))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pb", "a.txt", "a"])
def test_unknown_suffix_is_an_error(name, tmp_path):
    with pytest.raises(ValueError, match=rf"{name}.*\.onnx \(onnx\), \.pt2 \(pt2\), \.safetensors \(conv\)"):
        export(network(), tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["onnx", "pt2", "safetensors"])
def test_existing_file_is_replaced_only_with_force(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=rf"a\.{suffix} exists.*force=True"):
        export(Own(), path, shape=(1, 1, 24))
    assert path.read_text() == "mine"
    assert export(Own(), path, shape=(1, 1, 24), force=True).size == path.stat().st_size


def test_file_that_appears_during_the_export_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    import flexconv.export._export as module

    written = module._written
    monkeypatch.setattr(module, "_written", lambda *args, **kw: (path.write_text("new"), written(*args, **kw))[1])
    with pytest.raises(FileExistsError, match="exists"):
        export(network(), path)
    assert path.read_text() == "new"


def test_wrong_preprocessing_is_an_error(tmp_path):
    bare = network()
    bare.inputs = None
    raw, standardized = pixels(1, 3, 8, 8), torch.randn(1, 3, 8, 8)
    cases = [
        (bare, {"preprocessing": True, "name": "colors"}, "colors has no statistics.*--no-preprocessing"),
        (network(classes=("one", "two")), {}, r"2 names, but the network returns \[1, 3\]"),
        (network(), {"example": standardized}, "torch.uint8, but the example is torch.float32"),
        (network(), {"output": "probs"}, "unknown output 'probs'.*'probabilities'"),
        (network(), {"format": "conv", "preprocessing": True}, "preprocessing=True needs format="),
        (network(), {"format": "conv", "output": "probabilities"}, "output='probabilities' needs format="),
        (network(), {"format": "conv", "half": True}, "half=True needs format="),
        (network(), {"format": "onnx", "half": True, "quantize": True}, "exclude each other"),
        (network(mean=(0.5,), std=(0.2,)), {"example": raw}, "does not run on"),
    ]
    for model, options, message in cases:
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "a", **{"format": "pt2"} | options)
    with pytest.raises(ExportError, match="output='logits'"):
        export(Own(lambda logits: {"logits": logits}), tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run `flexconv export model` in a folder with the network of `network()`."""
    monkeypatch.chdir(tmp_path)
    save_pretrained(network(), "model")

    def call(*options):
        code = cli.run(["export", "model", *options])
        return code, capsys.readouterr()

    return call


def test_command_writes_stand_alone_file(command, tmp_path):
    code, said = command("--resolution", "16x12")
    assert code == 0, said.err
    assert "raw uint8 values" in said.out
    found = onnx_metadata(tmp_path / "model.onnx")
    assert (found["network"], found["input_size"]) == ("model", "[16, 12]")
    model, raw = at_resolution(network(), (2, 1.5)), pixels(1, 3, 16, 12)
    model.load_state_dict(from_pretrained("model").state_dict())
    assert_same(run_onnx(tmp_path / "model.onnx", raw), model(model.inputs(raw)).softmax(1))


def test_command_writes_bare_network(command, tmp_path):
    assert command("--no-preprocessing", "--out", "bare.pt2")[0] == 0
    assert command("--logits", "--out", "logits.pt2")[0] == 0
    bare, logits = (pt2_metadata(tmp_path / name) for name in ("bare.pt2", "logits.pt2"))
    assert (bare["preprocessing"], bare["output"]) == ("none", "logits")
    assert (logits["preprocessing"], logits["output"]) == ("included", "logits")


def test_command_exports_float64_network(command, tmp_path):
    save_pretrained(network().double(), tmp_path / "model")
    code, said = command("--format", "conv")
    assert code == 0, said.err
    assert load_conv(tmp_path / "model.safetensors").head.weight.dtype == torch.float32


def test_command_replaces_a_file_only_with_force(command, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("mine")
    code, said = command("--format", "conv")
    assert code == 2
    assert said.err.count("\n") == 1
    assert "model.safetensors exists" in said.err
    assert "--force" in said.err
    assert path.read_text() == "mine"
    assert command("--format", "conv", "--force")[0] == 0
    assert path.stat().st_size > 100


@pytest.mark.parametrize("name", ["foo.pb", "a.txt", "a"])
def test_command_refuses_unknown_suffix(command, name, tmp_path):
    code, said = command("--out", name)
    assert code == 2
    assert said.err.count("\n") == 1
    assert name in said.err
    assert ".onnx (onnx), .pt2 (pt2), .safetensors (conv)" in said.err
    assert not (tmp_path / name).exists()


def test_command_reports_missing_statistics(command, tmp_path):
    bare = network()
    bare.inputs = None
    save_pretrained(bare, tmp_path / "model")
    code, said = command("--preprocessing")
    assert code == 2
    assert said.err.count("\n") == 1
    assert "model has no statistics" in said.err
    code, said = command("--out", "bare.safetensors")
    assert code == 0
    assert "no preprocessing" in said.out


@pytest.mark.parametrize("options", [("--no-preprocessing",), ("--logits",), ("--format", "pt2")])
def test_command_evaluates_any_file_on_raw_test_data(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["export", "flexnet3-digits", "--test", *options]) == 0
    model, file = (line.split() for line in capsys.readouterr().out.splitlines()[-2:])
    assert model[1:] == file[1:]  # accuracy and loss


# --- without flexconv -------------------------------------------------------------------------------------------------


def test_file_is_used_without_flexconv_and_torch(exported, tmp_path):
    model, raw = exported[0], pixels(2, 3, 8, 8)
    np.save(tmp_path / "raw.npy", raw.numpy())
    program = (
        "import sys; sys.modules['flexconv'] = sys.modules['torch'] = None\n"
        "import json, numpy as np, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "about = session.get_modelmeta().custom_metadata_map\n"
        "raw = np.load('raw.npy').astype(about['input_dtype'])\n"
        "(scores,) = session.run(None, {session.get_inputs()[0].name: raw})\n"
        "classes = json.loads(about['classes'])\n"
        "print(about['network'], *(classes[n] for n in scores.argmax(1)))\n"
    )
    command = [sys.executable, "-X", "utf8", "-c", program, str(exported[1]("onnx").path)]
    printed = subprocess.run(command, cwd=tmp_path, check=True, timeout=120, capture_output=True, encoding="utf-8")
    expected = [COLORS[n] for n in model(model.inputs(raw)).argmax(1)]
    assert printed.stdout.split() == ["colors", *expected]


def test_example_of_the_documentation_needs_neither_flexconv_nor_torch(digits):
    page = (Path(__file__).parents[2] / "docs/export.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "InferenceSession" in block)
    blocked = "import sys; sys.modules['flexconv'] = sys.modules['torch'] = None\n"
    command = [sys.executable, "-c", blocked + example]
    printed = subprocess.run(command, cwd=digits, check=True, timeout=120, capture_output=True, text=True).stdout
    assert printed.startswith("flexnet3-digits 1 0.99")
