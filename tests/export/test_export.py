"""Exported files: run where flexconv is not, and the same as the model they come from."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import logging
import os
import pickle
import re
import struct
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch
import torch.nn.functional as F
from torch import nn

from flexconv import (
    FlexConv1d,
    FlexConv2d,
    GaussianMask,
    at_resolution,
    cli,
    create_model,
    from_pretrained,
    materialize,
    save_pretrained,
)
from flexconv.data import load
from flexconv.errors import ArgumentError
from flexconv.export import FORMATS, OPSET, ExportError, export, load_conv, trained_size
from flexconv.models import FlexNet, FlexTCN, Inputs, SepFlexNet

from ..conftest import relative_error

LIMIT = 1e-5


def wide(model):
    """The model with masks of several sizes, some off center, and batch norms that are not the identity."""
    for number, module in enumerate(model.modules()):
        if isinstance(module, GaussianMask):
            with torch.no_grad():
                module.set_(sigma=0.2 + 0.1 * (number % 3))
                if number % 2:
                    module.set_(mean=module.mean - 0.2)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


def small_net(**options):
    return wide(FlexNet(**{"in_channels": 1, "num_classes": 10, "image_size": 8, "widths": [4, 6]} | options))


def small_tcn(**options):
    return wide(FlexTCN(**{"in_channels": 2, "num_classes": 3, "length": 24, "widths": [4, 4]} | options))


def conv1d(*arguments, sigma=0.4, **options):
    return FlexConv1d(*arguments, mask=GaussianMask(1, sigma=sigma), **options)


class Mine(nn.Module):
    """A custom network: groups, causal, stride, dilation, a skip connection, two outputs."""

    def __init__(self):
        super().__init__()
        self.grouped = conv1d(4, 4, 9, groups=2, padding="causal")
        self.depthwise = conv1d(4, 4, 7, groups=4, dilation=2, bias=False)
        self.strided = conv1d(4, 6, 9, stride=2)
        self.head = nn.Conv1d(6, 2, 1)

    def forward(self, series):
        h = F.gelu(self.grouped(series)) + self.depthwise(series)
        h = self.depthwise(h)  # used twice
        return {"coarse": self.head(self.strided(h)), "pooled": h.mean(-1)}


class Modes(nn.Module):
    """All padding modes in 2D."""

    def __init__(self):
        super().__init__()
        modes = [("reflect", "same"), ("replicate", ("causal", "same")), ("circular", "same"), ("zeros", "valid")]
        self.layers = nn.Sequential(
            *(
                FlexConv2d(2, 2, 5, padding_mode=mode, padding=padding, mask=GaussianMask(2, sigma=0.5))
                for mode, padding in modes
            )
        )

    def forward(self, x):
        return self.layers(x)


def run(path, *inputs):
    """All outputs of an ONNX file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = {each.name: x.numpy() for each, x in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(y) for y in session.run(None, feed)]


# --- ONNX -------------------------------------------------------------------------------------------------------------


def test_flexnet_as_onnx(tmp_path, capfd):
    model, path = small_net().train(), tmp_path / "net.onnx"
    state, root = copy.deepcopy(model.state_dict()), list(logging.getLogger().handlers)
    noise = torch.get_rng_state()
    report = export(model, path)
    assert torch.equal(noise, torch.get_rng_state())
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().handlers == root
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert report.error <= LIMIT
    assert (report.format, report.opset, report.path, report.size) == ("onnx", 18, path, path.stat().st_size)
    assert report.axes == (("batch", 1, "height", "width"),)
    shapes = [each.shapes[0] for each in report.comparisons]
    assert shapes == [(1, 1, 8, 8), (3, 1, 8, 8), (2, 1, 16, 24), (1, 1, 4, 3)]
    assert "opset 18" in str(report)
    assert "relative error" in str(report)
    assert list(tmp_path.iterdir()) == [path]

    file = onnx.load(path)
    onnx.checker.check_model(file, full_check=True)
    assert {each.domain: each.version for each in file.opset_import} == {"": OPSET}
    assert {node.op_type for node in file.graph.node} <= {"Conv", "Relu", "Add", "Pad", "ReduceMean", "Gemm"}
    assert [size.dim_param or size.dim_value for size in file.graph.input[0].type.tensor_type.shape.dim] == [
        *report.axes[0]
    ]
    assert [each.name for each in file.graph.output] == ["output"]
    assert b"site-packages" not in path.read_bytes()
    assert b".py" not in path.read_bytes()
    x = torch.randn(5, 1, 11, 6)
    assert relative_error(run(path, x)[0], model.eval()(x)) < LIMIT


def test_onnx_metadata_describe_the_inputs(tmp_path):
    model = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[2])
    model.inputs = Inputs(size=(8, 8), scale=0.5, mean=(1.0,), std=(2.0,), classes=("no", "yes"))
    export(model, tmp_path / "net.onnx")
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert json.loads(told["flexconv.inputs"]) == model.inputs.plain()


def test_exports_padded_sequences_at_twice_the_resolution(tmp_path):
    model, path = small_tcn(norm="layer", readout="mean", widths=[4]).eval(), tmp_path / "tcn.onnx"
    report = export(model, path, scale=2, example=(torch.randn(3, 2, 48), torch.tensor([5, 48, 11])))
    assert report.axes == (("batch", 2, "length"), ("batch",))
    x, lengths = torch.randn(4, 2, 61), torch.tensor([61, 1, 7, 60])
    assert relative_error(run(path, x, lengths)[0], at_resolution(model, 2)(x, lengths)) < LIMIT


def test_exports_custom_module(tmp_path):
    model, path = Mine().eval(), tmp_path / "mine.onnx"
    report = export(model, path, shape=(1, 4, 32), scale=1.5)
    assert report.error <= LIMIT
    assert [each.name for each in onnx.load(path).graph.output] == ["coarse", "pooled"]
    x = torch.randn(2, 4, 45)
    with torch.no_grad():  # with gradients, kernels are products of factors, which round differently
        truth = at_resolution(model, 1.5)(x)
    for mine, theirs in zip(run(path, x), truth.values(), strict=True):
        assert relative_error(mine, theirs) < LIMIT


def test_exports_every_padding_mode(tmp_path):
    model = Modes().eval()
    for name in FORMATS:
        report = export(model, tmp_path / name, format=name, shape=(1, 2, 12, 14))
        assert report.error <= LIMIT
        # the last size leaves one column; graphs of torch refuse that, aloud
        assert len(report.comparisons) == (3 if name == "pt2" else 4)


def test_exports_network_without_flexconvs_unchanged(tmp_path):
    model = create_model("cifar_resnet20", in_channels=3, num_classes=4, depth=8, width=4).eval()
    assert export(model, tmp_path / "a.pt2", format="pt2", shape=(2, 3, 16, 16)).error <= LIMIT
    assert export(materialize(small_net()), tmp_path / "b", format="conv", shape=(1, 1, 8, 8)).error <= LIMIT
    with pytest.raises(ValueError, match="no FlexConv layer"):
        export(model, tmp_path / "c.onnx", shape=(2, 3, 16, 16), scale=2)


# --- pt2 and conv -----------------------------------------------------------------------------------------------------


def test_pt2_runs_without_flexconv(tmp_path):
    model, path = small_tcn().eval(), tmp_path / "tcn.pt2"
    report = export(model, path, format="pt2")
    assert report.error <= LIMIT
    assert report.opset is None
    x = torch.randn(5, 2, 31, generator=torch.Generator().manual_seed(3))
    np.save(tmp_path / "x.npy", x.numpy())
    program = (
        "import sys; sys.modules['flexconv'] = None\n"
        "import numpy as np, torch\n"
        "y = torch.export.load('tcn.pt2').module()(torch.from_numpy(np.load('x.npy')))\n"
        "np.save('y.npy', y.detach().numpy())\n"
        "del sys.modules['flexconv']\n"
        "import flexconv.export\n"
        "print([name for name in ('onnx', 'onnxscript', 'onnxruntime') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"  # importing flexconv.export needs none of what one of its formats needs
    assert relative_error(torch.from_numpy(np.load(tmp_path / "y.npy")), model(x)) < LIMIT
    assert b"site-packages" not in path.read_bytes()


@pytest.mark.parametrize("scale", [None, 2])
def test_conv_file_of_flexconv_network_loads_without_instance(scale, tmp_path):
    model, path = small_net().eval(), tmp_path / "net.safetensors"
    noise = torch.get_rng_state()
    report = export(model, path, format="conv", scale=scale)
    assert torch.equal(noise, torch.get_rng_state())
    assert report.error <= LIMIT
    plain = load_conv(path)
    assert not any("FlexConv" in type(m).__name__ for m in plain.modules())
    assert not any(m.training for m in plain.modules())
    x = torch.ones(2, 1, 9, 9)
    assert relative_error(plain(x), (model if scale is None else at_resolution(model, scale))(x)) < LIMIT


def test_conv_file_of_custom_module_needs_an_instance(tmp_path):
    model, path = Mine().eval(), tmp_path / "mine.safetensors"
    model.head.weight = nn.Parameter(model.head.weight.detach() * 3)
    export(model, path, format="conv", shape=(1, 4, 32))
    with pytest.raises(ValueError, match=r"holds a Mine, which is not .* network of flexconv.models"):
        load_conv(path)
    other = Mine()
    before = copy.deepcopy(other.state_dict())
    plain = load_conv(path, other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    x = torch.randn(2, 4, 20)
    assert relative_error(plain(x)["coarse"], model(x)["coarse"]) < 10 * LIMIT
    with pytest.raises(ValueError, match=r"does not fit Sequential: .*mine\.safetensors has a FlexConv 'depthwise'"):
        load_conv(path, nn.Sequential(nn.Linear(2, 2)))
    other.head = nn.Conv1d(6, 3, 1)
    with pytest.raises(ValueError, match=r"does not fit Mine: .*head\.weight"):
        load_conv(path, other)


def test_conv_files_of_a_layer_and_of_a_changed_network(tmp_path):
    layer, path = conv1d(2, 2, 9, padding="causal"), tmp_path / "one.safetensors"
    export(layer, path, format="conv", shape=(1, 2, 20))
    x = torch.randn(1, 2, 20)
    assert relative_error(load_conv(path)(x), layer(x)) < LIMIT
    with safetensors.safe_open(path, "pt") as file:
        assert sorted(file.keys()) == ["1.bias", "1.weight"]
        about = json.loads(file.metadata()["flexconv.conv"])["convolutions"][""]
    assert about["before"][0][0] == "zeros"
    assert about["kernel_size"] == [layer.extent[0]]
    changed = small_net()
    changed.head = nn.Linear(6, 3)
    export(changed, path, format="conv", force=True)
    with pytest.raises(ValueError, match="give an instance of it"):
        load_conv(path)
    x = torch.randn(1, 1, 8, 8)
    assert relative_error(load_conv(path, changed)(x), changed.eval()(x)) < LIMIT


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged or not a safetensors file"),
        (b"\x80\x04pickle.", "damaged or not a safetensors file"),
        (struct.pack("<Q", 2) + b"{}", "was not written by export"),
    ],
)
def test_load_conv_rejects_foreign_files(content, message, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_conv(path)


def test_load_conv_rejects_damaged_files(tmp_path):
    path = tmp_path / "model.safetensors"
    export(small_net(), path, format="conv")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_conv(path)
    path.write_bytes(whole.replace(b'\\"dims\\": 2', b'\\"dims\\": 7'))
    with pytest.raises(ValueError, match=r"is damaged or .*another version of flexconv: KeyError"):
        load_conv(path)
    path.write_bytes(whole.replace(b'\\"format\\": 1', b'\\"format\\": 9'))
    with pytest.raises(ValueError, match="format that this version cannot read"):
        load_conv(path)


# --- int8 -------------------------------------------------------------------------------------------------------------


def digits_network(epochs):
    """A small trained network for digits, with test images and labels."""
    torch.manual_seed(0)
    splits = load("digits")
    images, test_images = ((part.inputs.float() / 16 - 0.3) / 0.38 for part in (splits.train, splits.test))
    model = FlexNet(in_channels=1, num_classes=10, image_size=8, widths=[12], dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters())
    batches = [rows for _ in range(epochs) for rows in torch.randperm(len(images)).split(32)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=len(batches))
    for rows in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), splits.train.labels[rows]).backward()
        optimizer.step()
        schedule.step()
    return model.eval(), test_images, splits.test.labels


def test_int8_keeps_the_accuracy_on_digits(tmp_path):
    model, images, labels = digits_network(epochs=3)
    report = export(model, tmp_path / "int8.onnx", quantize=True, example=images[:8])
    assert report.error <= LIMIT
    assert LIMIT < report.quantization_error < 0.2
    assert "in int8" in str(report)
    assert "ConvInteger" in {node.op_type for node in onnx.load(report.path).graph.node}
    exact = (model(images).argmax(1) == labels).float().mean().item()
    int8 = (run(report.path, images)[0].argmax(1) == labels).float().mean().item()
    assert exact > 0.8
    assert int8 > exact - 0.02


# --- what does not agree, or cannot be exported -----------------------------------------------------------------------


class ForgetsItself(nn.Module):
    """Computes something else when it is traced."""

    def __init__(self):
        super().__init__()
        self.conv = conv1d(2, 2, 5)

    def forward(self, x):
        return self.conv(x) * (1.001 if torch.compiler.is_compiling() else 1.0)


def test_file_that_differs_from_the_model_is_not_written(tmp_path):
    path = tmp_path / "model"
    path.write_text("the old one")
    with pytest.raises(ExportError, match=r"differs from the model: .* 1\.0e-03 .* 1e-05 is allowed"):
        export(ForgetsItself(), path, format="onnx", shape=(1, 2, 16), force=True)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]
    assert export(ForgetsItself(), path, format="pt2", shape=(1, 2, 16), rtol=0.01, force=True).error > 5e-4


class DependsOnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv1d(2, 2, 5)

    def forward(self, x):
        if self.conv(x).sum() > 0:
            return x
        return -x


def test_error_names_the_line_with_control_flow(tmp_path, capfd):
    model = nn.Sequential(conv1d(2, 2, 5), DependsOnValues())
    message = r"DependsOnValues \(1\), line \d+ \(if self\.conv\(x\)\.sum\(\) > 0:\) cannot be exported"
    with pytest.raises(ExportError, match=message):
        export(model, tmp_path / "a.pt2", format="pt2", shape=(1, 2, 16))
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_model_for_one_size_needs_fixed_sizes(tmp_path):
    model = nn.Sequential(conv1d(2, 2, 5), nn.Flatten(), nn.Linear(32, 3))
    with pytest.raises(ExportError, match=r"accepts no other sizes than those of the example .* fixed_sizes=True"):
        export(model, tmp_path / "a.pt2", format="pt2", shape=(1, 2, 16))
    report = export(model, tmp_path / "a.pt2", format="pt2", shape=(1, 2, 16), fixed_sizes=True)
    assert report.axes == (("batch", 2, 16),)
    assert report.error <= LIMIT


class FixesItsLength(nn.Module):
    """Runs on every length, but its graph accepts only one."""

    def __init__(self):
        super().__init__()
        self.conv = conv1d(2, 2, 5)

    def forward(self, x):
        return self.conv(x) * float(int(x.shape[-1]) if x.shape[-1] != 16 else 2)


def test_error_names_the_axis_that_the_model_fixes(tmp_path):
    with pytest.raises(ExportError, match=r"accepts only a length of 16.*fixed_sizes=True"):
        export(FixesItsLength(), tmp_path / "a.pt2", format="pt2", shape=(2, 2, 16))


def test_outputs_must_be_tensors(tmp_path):
    class Text(nn.Module):
        def forward(self, _):
            return "text"

    with pytest.raises(ExportError, match="Text returns str: only tensors can be exported"):
        export(Text(), tmp_path / "a.onnx", shape=(1, 2, 3))


@pytest.mark.parametrize(
    ("name", "format"), [("a.pt2", "pt2"), ("a.SafeTensors", "conv"), ("a.onnx", "onnx"), ("v1.2.onnx", "onnx")]
)
def test_suffix_decides_the_format(name, format, tmp_path):  # noqa: A002
    assert export(small_tcn(), tmp_path / name).format == format


# --- bad input --------------------------------------------------------------------------------------------------------


def test_format_and_folder_are_checked_before_the_export(tmp_path):
    model = small_net()
    with pytest.raises(ValueError, match=r"unknown export format 'onx'.*did you mean 'onnx'"):
        export(model, tmp_path / "a", format="onx")
    with pytest.raises(ValueError, match="quantize=True needs format=\"onnx\"; got format='pt2'"):
        export(model, tmp_path / "a", format="pt2", quantize=True)
    with pytest.raises(ValueError, match=r"format='onnx' does not match a\.pt2.*\.onnx"):
        export(model, tmp_path / "a.pt2", format="onnx")
    with pytest.raises(ValueError, match="rtol must be positive"):
        export(model, tmp_path / "a.onnx", rtol=0)
    with pytest.raises(FileNotFoundError, match=r"a\.onnx: there is no folder .*nowhere"):
        export(model, tmp_path / "nowhere" / "a.onnx")
    with pytest.raises(IsADirectoryError, match="is a folder: give a file in it"):
        export(model, tmp_path)
    assert not list(tmp_path.iterdir())


def test_device_or_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe is a device or a pipe"):
        export(small_net(), pipe, format="conv")
    assert pipe.is_fifo()


def test_full_disk_leaves_no_file(tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_text("the old one")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"model\.safetensors cannot be written: No space left on device$"):
        export(small_net(), path, format="conv", force=True)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_an_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match="is read-only"):
            export(small_net(), tmp_path / "a.onnx")
    finally:
        tmp_path.chmod(0o700)


def test_wrong_models_and_examples_are_errors(tmp_path):
    path = tmp_path / "a.pt2"
    cases = [
        (Mine(), {}, ValueError, "input shape of Mine is not known: give shape="),
        (Mine(), {"shape": (1, 4, 8), "example": torch.ones(1, 4, 8)}, ValueError, "example or shape, not both"),
        (Mine(), {"shape": (1, 4, "x")}, TypeError, "shape must be"),
        (Mine(), {"example": [1.0]}, TypeError, "example must be a tensor, or a tuple"),
        (Mine(), {"shape": (1, 5, 8)}, ValueError, r"Mine does not run on \[1, 5, 8\]: FlexConv1d .* input"),
        (Mine().double(), {"shape": (1, 4, 8)}, ValueError, "is torch.float64: convert the model with"),
        (Mine(), {"example": torch.ones(1, 4, 8).half()}, ValueError, "the example is torch.float16"),
        (Mine(), {"shape": (1, 4, 1)}, ValueError, "the length of the example must be at least 2"),
        (small_net(device="meta"), {}, ValueError, "is on the meta device"),
        (lambda x: x, {"shape": (1, 4, 8)}, TypeError, "must be a torch.nn.Module; got a function"),
    ]
    for model, options, kind, message in cases:
        with pytest.raises(kind, match=message):
            export(model, path, format="pt2", **options)
    broken = Mine()
    nn.init.constant_(broken.head.weight, float("nan"))
    with pytest.raises(ValueError, match="Mine returns NaN or infinity"):
        export(broken, path, format="pt2", shape=(1, 4, 8))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf'format="onnx" needs {name}: pip install "\.\[export\]"'):
        export(small_net(), tmp_path / "a.onnx")


def test_exports_the_original_of_a_compiled_model(tmp_path):
    model, path = small_tcn(), tmp_path / "tcn.safetensors"
    assert export(torch.compile(model), path, format="conv").comparisons[0].shapes == ((1, 2, 24),)
    x = torch.randn(1, 2, 24)
    assert relative_error(load_conv(path)(x), model.eval()(x)) < LIMIT


def test_trained_size():
    assert trained_size(small_net()) == (8, 8)
    assert trained_size(at_resolution(small_net(image_size=[8, 6]), (2, 1))) == (16, 6)
    assert trained_size(small_tcn()) == (24,)
    assert trained_size(small_tcn(length=None, kernel_size=9)) is None
    assert trained_size(Mine()) is None


# --- on the command line ----------------------------------------------------------------------------------------------


def weights_of(folder):
    (weights,) = folder.glob("*.safetensors")
    return weights


def change_config(folder, **changes):
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))


def truncated(folder):
    weights_of(folder).write_bytes(weights_of(folder).read_bytes()[:100])


def pickled(folder):
    """Write weights with the right checksum and a pickle that would execute code if it were loaded."""
    content = pickle.dumps(Trap())
    weights_of(folder).write_bytes(content)
    change_config(folder, sha256=hashlib.sha256(content).hexdigest())


class Trap:
    def __reduce__(self):
        return os.abort, ()


DAMAGES = {
    "truncated": (truncated, "is damaged or belongs to another"),
    "pickle": (pickled, "is not a safetensors file"),
    "pickle beside it": (lambda folder: change_config(folder, weights="model.pkl"), "must name a safetensors file"),
    "architecture": (lambda folder: change_config(folder, architecture="ResNet"), "unknown architecture 'ResNet'"),
    "another network": (
        lambda folder: change_config(folder, config={"in_channels": 1, "num_classes": 10, "image_size": 8}),
        "does not match its config",
    ),
    "not ours": (lambda folder: (folder / "config.json").write_text("{}"), "was not written by flexconv"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
    "no weights": (lambda folder: weights_of(folder).unlink(), "is missing"),
    "empty": (lambda folder: [path.unlink() for path in folder.iterdir()], "holds no config.json"),
}


def command(*arguments, capsys):
    code = cli.run([str(each) for each in arguments])
    return code, capsys.readouterr()


@pytest.mark.parametrize("damage", DAMAGES)
def test_command_reports_damaged_model_in_one_line(damage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    spoil, message = DAMAGES[damage]
    save_pretrained(small_net(), "model")
    spoil(tmp_path / "model")
    code, said = command("export", "model", "--format", "conv", capsys=capsys)
    assert code == 2
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
    assert message in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_command_does_not_open_pickle_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Trap()))
    code, said = command("export", "model.pt", capsys=capsys)
    assert code == 2
    assert re.fullmatch("error: model.pt is a file: .*folder that save_pretrained wrote.*\n", said.err)


def test_command_takes_the_format_from_the_suffix(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_pretrained(small_tcn(), "model")
    code, said = command("export", "model", "--out", "mine.safetensors", capsys=capsys)
    assert code == 0, said.err
    assert isinstance(load_conv("mine.safetensors"), nn.Module)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "nowhere/a.safetensors"), "there is no folder nowhere"),
        (("--out", "a.pt2"), "format='conv' does not match a.pt2"),
        (("--out", "a.pb"), "format='conv' does not match a.pb"),
        (("--out", "model"), "model is a folder"),
        (("--int8",), "--int8 needs --format onnx; got --format conv"),
        (("--test", "--resolution", "16"), "leave out either --resolution or --test"),
        (("--test",), "--data NAME"),
        (("--resolution", "0"), "--resolution must be a number of samples"),
    ],
    ids=["folder", "suffix", "unknown suffix", "is a folder", "int8", "test elsewhere", "no data", "resolution"],
)
def test_command_reports_wrong_options_in_one_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_pretrained(small_net(), "model")
    code, said = command("export", "model", "--format", "conv", *options, capsys=capsys)
    assert code in (1, 2)
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert message in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_command_names_the_missing_extra(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    save_pretrained(small_net(), "model")
    code, said = command("export", "model", capsys=capsys)
    assert code == 1
    assert said.err == 'error: format="onnx" needs onnxruntime: pip install ".[export]" in a checkout of flexconv\n'
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "options", [("--int8",), ("--format", "pt2"), ("--format", "conv")], ids=["int8", "pt2", "conv"]
)
def test_command_evaluates_the_file_and_the_model(options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, said = command("export", "flexnet3-digits", "--test", *options, capsys=capsys)
    assert code == 0, said.err
    model, file = (line.split() for line in said.out.splitlines()[-2:])
    assert (model[0], file[0]) == ("model", "file")
    assert abs(float(model[1]) - float(file[1])) < 1  # per cent
    assert model[-1] == file[-1] == "360"


def test_command_refuses_to_test_series_of_unequal_length(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    series = SimpleNamespace(name="letters", train=SimpleNamespace(lengths=torch.tensor([3])))
    monkeypatch.setattr("flexconv.cli._export.load_with_data", lambda *_: (small_tcn(), None, series))
    code, said = command("export", "anything", "--test", capsys=capsys)
    assert code == 2
    assert "letters has series of unequal length" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", FORMATS)
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ({"length": 24}, {"mask_channel": True}),
        ({"length": 24}, {"mask": "per_channel", "small_kernel": 3, "mix": "glu", "readout": "last"}),
        ({"image_size": 8}, {"readout": "every"}),
        ({"volume_size": 5}, {}),
    ],
    ids=str,
)
@torch.no_grad()
def test_separable_networks(size, options, way, tmp_path):
    torch.manual_seed(0)
    model = SepFlexNet(in_channels=3, num_classes=4, width=6, depth=1, **size, **options).eval()
    sizes = {1: (24,), 2: (8, 8), 3: (5, 5, 5)}[model.dims]
    x = torch.randn(2, 3, *sizes)
    if model.mask_channel:
        x[:, -1] = (torch.rand(2, *sizes) > 0.5).float()
    path = tmp_path / "model"
    assert export(model, path, format=way, example=x).error < LIMIT
    if way == "conv":
        assert relative_error(load_conv(path)(x), model(x)) < LIMIT


@torch.no_grad()
def test_separable_network_with_lengths(tmp_path):
    torch.manual_seed(0)
    options = {"in_channels": 3, "num_classes": 4, "width": 6, "depth": 1, "length": 24}
    model = SepFlexNet(**options, causal=False, mask_channel=True).eval()
    x, lengths = torch.randn(3, 3, 24), torch.tensor([24, 9, 15])
    x[:, -1] = (torch.rand(3, 24) > 0.5).float()
    path = tmp_path / "model.onnx"
    export(model, path, example=(x, lengths))
    assert relative_error(run(path, x, lengths)[0], model(x, lengths)) < LIMIT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"in_channels": 10**9}}, "in_channels is 1000000000, but .* numbers"),
        ({"config": {"depth": 10**9}}, "depth is 1000000000, but .* tensors"),
        ({"convolutions": {"stem.depthwise": {"kernel_size": [-1, 5]}}}, "damaged.*negative dimension"),
        ({"convolutions": {"stem.depthwise": {"kernel_size": [10**9] * 2}}}, r"damaged|does not fit"),
    ],
)
def test_load_conv_rejects_networks_that_no_machine_can_build(changes, message, tmp_path):
    model = create_model(
        "sepflexnet_tiny", in_channels=1, num_classes=2, image_size=5, width=4, depth=1, mask="per_channel"
    )
    path = tmp_path / "a.safetensors"
    export(model.eval(), path)
    change_metadata(path, lambda entries: merge(entries, changes))
    with pytest.raises(ArgumentError, match=message):
        load_conv(path)


def test_load_conv_rejects_inputs_that_do_not_fit_and_pipes(tmp_path):
    model = from_pretrained("flexnet3-digits")
    path = tmp_path / "a.safetensors"
    export(model, path)
    change_metadata(path, lambda entries: entries.update(classes=["a"]), "flexconv.inputs")
    with pytest.raises(ArgumentError, match="1 names, but the network has 10 classes"):
        load_conv(path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(ArgumentError, match="not a regular file"):
        load_conv(tmp_path / "pipe.safetensors")


def change_metadata(path, change, key="flexconv.conv"):
    """Change an entry of the metadata of a safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    entries = json.loads(header["__metadata__"][key])
    change(entries)
    header["__metadata__"][key] = json.dumps(entries)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def merge(tree, changes):
    for name, value in changes.items():
        if isinstance(value, dict):
            merge(tree[name], value)
        else:
            tree[name] = value
