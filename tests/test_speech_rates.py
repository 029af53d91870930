"""`benchmarks.speech_rates`: a plain CNN on raw waves, and accuracies at half the sampling rate."""

from __future__ import annotations

import pytest
import torch

from benchmarks import speech_rates
from flexconv import create_model
from flexconv.data import DataSplits, Split

TONES = 300.0, 1200.0  # Hz, one per class


@pytest.fixture
def tones(monkeypatch):
    """Two classes of tones of 0.2 s."""
    time = torch.arange(3200) / speech_rates.RATE

    def split(count):
        labels = torch.arange(count) % 2
        phase = 2 * torch.pi * torch.rand(count, 1)
        waves = torch.sin(2 * torch.pi * torch.tensor(TONES)[labels, None] * time + phase)
        return Split(waves.unsqueeze(1), labels)

    data = DataSplits("tones", split(64), split(32), split(32), ("low", "high"))
    monkeypatch.setattr(speech_rates, "load_data", lambda *_: data)
    return data


@pytest.mark.usefixtures("tones")
def test_trains_a_plain_cnn_and_prints_its_accuracies(capsys):
    speech_rates.main(["--epochs", "4"])
    header, _, row = capsys.readouterr().out.splitlines()[-3:]
    assert header == "| network | parameters | 16 kHz | 8 kHz | 8 → 16 kHz |"
    accuracies = [float(cell.split()[0]) for cell in row.split("|")[3:-1]]
    assert accuracies[0] > 90
    assert abs(accuracies[2] - accuracies[0]) < 10  # both tones are below 4 kHz


def test_plain_cnn_is_as_large_as_the_tiny_network():
    sizes = [
        sum(parameter.numel() for parameter in model.parameters())
        for model in (
            speech_rates.plain_cnn(10),
            create_model("sepflexnet_tiny", in_channels=1, num_classes=10, length=16_000, device="meta"),
        )
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_a_network_of_flexconvs_is_resampled(tones):
    options = {"width": 4, "depth": 1, "causal": False}
    model = create_model("sepflexnet_tiny", in_channels=1, num_classes=2, length=3200, **options)
    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append((module.stem.depthwise.kernel_size, inputs[0])))
    row = speech_rates.row(model, tones.test, "cpu")
    assert len(row) == len(seen) == 3
    assert [(size, x.shape[-1]) for (size,), x in seen] == [(3201, 3200), (1601, 1600), (3201, 3200)]
    torch.testing.assert_close(seen[2][1][..., 100:-100], seen[0][1][..., 100:-100], atol=0.02, rtol=0)
