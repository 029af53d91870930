"""Write tiny files in the published formats, so that every reader can be tested without its data set."""

from __future__ import annotations

import pickle
import struct
import wave
from pathlib import Path

import numpy as np

from flexconv.data._speech_commands import WORDS


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


def write_mnist(root: Path, train: int = 40, test: int = 20, side: int = 28) -> dict[str, np.ndarray]:
    written = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = random(count).integers(0, 256, (count, side, side), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        write_idx(root / f"MNIST/raw/{prefix}-images-idx3-ubyte", images)
        write_idx(root / f"MNIST/raw/{prefix}-labels-idx1-ubyte", labels)
        written[prefix] = images
    return written


def write_cifar10(root: Path, per_batch: int = 20) -> dict[str, np.ndarray]:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    written = {}
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = random(i).integers(0, 256, (per_batch, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(per_batch) % 10
        rows.tofile(folder / f"{name}.bin")
        written[name] = rows
    return written


def write_ts(path: Path, series: list[np.ndarray], labels: list[int], names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["# a comment", "@problemName Test", "@timeStamps false", "@univariate false", "@equalLength false"]
    lines += [f"@classLabel true {' '.join(names)}", "@data"]
    for values, label in zip(series, labels, strict=True):
        lines.append(":".join([*(",".join(repr(float(v)) for v in row) for row in values), names[label]]))
    path.write_text("\n".join(lines) + "\n")


def write_trajectories(root: Path, count: int = 60, classes: int = 3) -> dict[str, list[np.ndarray]]:
    written = {}
    for seed, part in enumerate(("TRAIN", "TEST")):
        draw = random(seed)
        series = [draw.standard_normal((3, int(draw.integers(5, 12)))).astype(np.float32) + 2 for _ in range(count)]
        labels = [i % classes for i in range(count)]
        path = root / "CharacterTrajectories" / f"CharacterTrajectories_{part}.ts"
        write_ts(path, series, labels, [str(i + 1) for i in range(classes)])
        written[part] = series
    return written


def write_wav(path: Path, samples: np.ndarray, *, rate: int = 16_000, channels: int = 1, width: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def write_speech(root: Path, version: str = "0.01", per_word: int = 8) -> Path:
    """The last clip of each word lasts half a second; one clip is in the validation list and one in the test list."""
    folder = root / f"speech_commands_v{version}"
    draw = random(7)
    for word in WORDS:
        for i in range(per_word):
            length = 8_000 if i == per_word - 1 else 16_000
            write_wav(folder / word / f"{i:04}_nohash_0.wav", draw.integers(-999, 999, length).astype("<i2"))
    (folder / "validation_list.txt").write_text("\n".join(f"{w}/0000_nohash_0.wav" for w in WORDS) + "\n")
    (folder / "testing_list.txt").write_text("\n".join(f"{w}/0001_nohash_0.wav" for w in WORDS) + "\n")
    return folder


def write_stl10(root: Path, count: int = 20) -> np.ndarray:
    """Returns images as [N, 3, row, column]; the files contain them column by column."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True)
    images = random(3).integers(0, 256, (count, 3, 96, 96), dtype=np.uint8)
    for part in ("train", "test"):
        images.transpose(0, 1, 3, 2).tofile(folder / f"{part}_X.bin")
        (np.arange(count, dtype=np.uint8) % 10 + 1).tofile(folder / f"{part}_y.bin")
    return images


def write_imagenet(root: Path, side: int = 8, per_batch: int = 6, *, npz: bool = True) -> np.ndarray:
    folder = root / f"imagenet{side}"
    folder.mkdir(parents=True)
    images = random(4).integers(0, 256, (11 * per_batch, 3 * side * side), dtype=np.uint8)
    for i, name in enumerate([*(f"train_data_batch_{i}" for i in range(1, 11)), "val_data"]):
        data = images[i * per_batch : (i + 1) * per_batch]
        labels = [1 + j % 2 for j in range(per_batch)]
        if npz:
            np.savez(folder / f"{name}.npz", data=data, labels=np.array(labels), mean=data.mean(0))
        else:
            (folder / name).write_bytes(pickle.dumps({"data": data, "labels": labels, "mean": data.mean(0)}, 2 + i % 3))
    return images.reshape(-1, 3, side, side)
