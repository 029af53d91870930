"""`flexconv bench peers`: layers of other packages next to FlexConv."""

import importlib.util
import json

import pytest
import torch

from flexconv import bench, cli
from flexconv.bench import peers

CPU = torch.device("cpu")
PACKAGES = {"fft-conv-pytorch": "fft_conv_pytorch", "DCLS": "DCLS", "CKConv (nvsubquadratic)": "nvsubquadratic"}


@pytest.mark.parametrize("case", peers.CASES["small"])
def test_torch_fft_equals_plain_convolution(case):
    fft, plain = peers.TorchFFT(case), peers._plain(case)
    convolution = plain.layer if isinstance(plain, peers.Causal) else plain
    convolution.bias.data.zero_()
    convolution.weight.data.copy_(fft.weight)
    x = torch.randn(case.batch, case.channels, *case.size)
    torch.testing.assert_close(fft(x), plain(x), rtol=1e-4, atol=1e-5)


def test_flexconv_covers_whole_grid():
    for case in peers.CASES["small"]:
        assert peers._flexconv(case, whole_grid=True).extent == case.kernel


def test_every_layer_has_a_time_or_a_reason():
    rows = list(bench.bench_peers(CPU, small=True))
    assert len(rows) == len(peers.LAYERS) * len(peers.CASES["small"])
    for row in rows:
        assert (row["ms"] is None) == bool(row["reason"])
        if row["layer"] in PACKAGES and importlib.util.find_spec(PACKAGES[row["layer"]]) is None:
            assert row["reason"].endswith("is not installed") or row["reason"] == "depthwise only"
    assert {row["over_flexconv"] for row in rows if row["layer"] == "FlexConv"} == {1.0}


def test_layer_that_fails_does_not_end_the_benchmark(monkeypatch):
    def fails(_):
        raise RuntimeError("out of memory\nmore")

    monkeypatch.setitem(peers.LAYERS, "DCLS", fails)
    reasons = {row["layer"]: row["reason"] for row in bench.bench_peers(CPU, small=True)}
    assert reasons["DCLS"] == "RuntimeError: out of memory"
    assert reasons["torch.nn.Conv"] == ""


def test_command_writes_table_and_figure(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = [tmp_path / name for name in ("peers.json", "peers.md", "peers.png")]
    options = [text for file in files for text in ("--out", str(file))]
    assert cli.run(["bench", "peers", "--smoke", "--device", "cpu", *options]) == 0
    assert capsys.readouterr().out.strip() == files[1].read_text("utf-8").strip()
    tables = json.loads(files[0].read_text("utf-8"))["tables"]
    assert set(tables) == {"peers", "published"}
    assert all(row["source"] for row in tables["published"])
    assert files[2].read_bytes()[1:4] == b"PNG"


def test_refuses_figure_of_other_tables(tmp_path, capsys):
    assert cli.run(["bench", "ops", "--smoke", "--out", str(tmp_path / "ops.png")]) == 2
    assert "peers" in capsys.readouterr().err
