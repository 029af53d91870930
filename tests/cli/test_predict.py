"""`flexconv predict` and the details that `flexconv eval` prints."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import wave
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from flexconv import cli, create_model, from_pretrained, save_pretrained
from flexconv.data import load as load_data
from flexconv.models import Inputs


class Outcome:
    def __init__(self, code, captured):
        self.code, self.out, self.err = code, captured.out, captured.err


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return Outcome(code, capsys.readouterr())

    return run


@pytest.fixture
def digits(tmp_path):
    """Pictures of the first ten test digits, 3 times as large as in the data set, and their labels."""
    test = load_data("digits").test
    assert test is not None
    assert isinstance(test.inputs, torch.Tensor)
    (tmp_path / "digits").mkdir()
    for number, pixels in enumerate(test.inputs[:10, 0].numpy()):
        picture = Image.fromarray((pixels * 255.0 / 16).round().astype("uint8"))
        picture.resize((24, 24), Image.Resampling.BICUBIC).save(tmp_path / f"digits/{number}.png")
    return [str(label) for label in test.labels[:10].tolist()]


def assert_refused(outcome, *patterns, code=2):
    assert outcome.code == code, outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.out == "", outcome.out
    for pattern in patterns:
        assert re.search(pattern, outcome.err), outcome.err


# --- predict ----------------------------------------------------------------------------------------------------------


def test_predict_prints_a_table(call, digits):
    shown = call("predict", "flexnet3-digits", "digits", "--top", 3, "--device", "cpu")
    assert shown.code == 0
    titles, *rows = shown.out.splitlines()
    assert titles.split() == ["file", "class", "probability", "followed", "by"]
    found = [re.match(r"digits/(\d)\.png +(\d) +(\d+\.\d) %  (\d \d+\.\d %) +(\d \d+\.\d %)$", row) for row in rows]
    assert [match[1] for match in found if match] == list("0123456789")
    right = sum(match[2] == label for match, label in zip(found, digits, strict=True) if match)
    assert right >= 9


def test_predict_prints_json_and_csv(call, digits):
    entries = json.loads(call("predict", "flexnet3-digits", "digits", "--json", "--top", 2).out)
    assert entries["model"] == "flexnet3-digits"
    assert entries["classes"] == list("0123456789")
    assert entries["skipped"] == []
    assert [entry["file"] for entry in entries["predictions"]] == [f"digits/{number}.png" for number in range(10)]
    for entry in entries["predictions"]:
        assert entry["top"][0] == {"class": entry["class"], "probability": entry["probability"]}
        assert len(entry["top"]) == 2
    rows = list(csv.DictReader(io.StringIO(call("predict", "flexnet3-digits", "digits", "--csv", "--top", 2).out)))
    assert list(rows[0]) == ["file", "row", "start", "stop", "class", "probability", "class2", "probability2"]
    assert [row["class"] for row in rows] == [entry["class"] for entry in entries["predictions"]]
    assert float(rows[0]["probability"]) == pytest.approx(entries["predictions"][0]["probability"])
    assert {row["row"] for row in rows} == {""}


@pytest.mark.usefixtures("digits")
def test_predict_writes_files(call, tmp_path):
    assert call("predict", "flexnet3-digits", "digits", "--out", "a.csv").out == "wrote a.csv\n"
    assert len((tmp_path / "a.csv").read_text("utf-8").splitlines()) == 11
    call("predict", "flexnet3-digits", "digits", "--out", "a.json")
    assert len(json.loads((tmp_path / "a.json").read_text("utf-8"))["predictions"]) == 10
    assert_refused(call("predict", "flexnet3-digits", "digits", "--out", "a.json"), "a.json exists already.*--force")
    call("predict", "flexnet3-digits", "digits", "--out", "a.json", "--force")
    call("predict", "flexnet3-digits", "digits", "--out", "a.dat", "--csv")
    assert (tmp_path / "a.dat").read_text("utf-8") == (tmp_path / "a.csv").read_text("utf-8")
    assert_refused(call("predict", "flexnet3-digits", "digits", "--out", "a.txt"), r"\.json or \.csv.*'a\.txt'")
    assert_refused(call("predict", "flexnet3-digits", "digits", "--json", "--csv"), "--json and --csv")
    assert_refused(call("predict", "flexnet3-digits", "digits", "--out", "no/a.csv"), "there is no folder no")


def test_predict_runs_at_other_resolutions(call, digits):
    for resolution in ("native", "24", "24x32"):
        entries = json.loads(call("predict", "flexnet3-digits", "digits", "--json", "--resolution", resolution).out)
        right = [entry["class"] == label for entry, label in zip(entries["predictions"], digits, strict=True)]
        assert sum(right) >= 8, resolution
    assert_refused(call("predict", "flexnet3-digits", "digits", "--resolution", "natvie"), "'natvie'.*native")
    assert_refused(call("predict", "flexnet3-digits", "digits", "--resolution", "8x8x8"), "'8x8x8'")


@pytest.mark.usefixtures("digits")
def test_predict_fails_on_the_first_bad_file_or_skips_it(call, tmp_path):
    (tmp_path / "digits/5.png").write_bytes(b"not a picture")
    assert_refused(call("predict", "flexnet3-digits", "digits"), r"digits/5\.png.*cannot be read", code=1)
    skipping = call("predict", "flexnet3-digits", "digits", "nowhere.png", "--skip-bad", "--json")
    assert skipping.code == 0
    assert [line.split()[0] for line in skipping.err.splitlines()] == ["skipped:"] * 2
    entries = json.loads(skipping.out)
    assert len(entries["predictions"]) == 9
    assert [entry["file"] for entry in entries["skipped"]] == ["nowhere.png", "digits/5.png"]
    nothing = call("predict", "flexnet3-digits", "nowhere.png", "--skip-bad")
    assert nothing.code == 2
    assert nothing.err.endswith("error: none of 1 files could be classified\n")


def test_predict_explains_what_is_wrong(call, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(call("predict", "flexnet3-digits", "empty"), "empty is an empty folder.*gray pictures", code=1)
    assert_refused(call("predict", "flexnet3-digits", "nowhere.png"), r"nowhere\.png does not exist")
    assert_refused(call("predict", "flexnet3-digits"), "FILES")
    np.save("wide.npy", np.zeros((2, 3, 16, 16), np.uint8))
    assert_refused(call("predict", "flexnet3-digits", "wide.npy"), r"wide\.npy: shape \(2, 3, 16, 16\)", code=1)
    save_pretrained(create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[3]), "bare")
    np.save("small.npy", np.zeros((2, 1, 8, 8), np.uint8))
    assert_refused(call("predict", "bare", "small.npy"), "does not say how its inputs are standardized")


def series_network(folder, *, length, **changes):
    model = create_model("flextcn2", in_channels=1, num_classes=2, length=length, widths=[4])
    inputs = Inputs(size=(length,), scale=1.0, mean=(0.0,), std=(1.0,), classes=("no", "yes"))
    model.inputs = replace(inputs, **changes)
    save_pretrained(model, folder)


def test_predict_prints_chunks_of_recordings(call, tmp_path):
    series_network("words", length=100, scale=2**-15, rate=200)
    save_wav(tmp_path / "long.wav", np.arange(250), 200)
    assert call("predict", "words", "long.wav").out.count("long.wav") == 1
    shown = call("predict", "words", "long.wav", "--chunks").out
    assert re.findall(r"\d\.\d\d – \d\.\d\d", shown) == ["0.00 – 1.25", "0.00 – 0.50", "0.50 – 1.00", "0.75 – 1.25"]
    (entry,) = json.loads(call("predict", "words", "long.wav", "--json").out)["predictions"]
    assert [chunk["start"] for chunk in entry["chunks"]] == [0.0, 0.5, 0.75]
    rows = list(csv.DictReader(io.StringIO(call("predict", "words", "long.wav", "--csv", "--chunks").out)))
    assert [row["stop"] for row in rows] == ["1.25", "0.5", "1.0", "1.25"]
    hop = json.loads(call("predict", "words", "long.wav", "--json", "--hop", 0.25).out)["predictions"]
    assert [chunk["start"] for chunk in hop[0]["chunks"]] == [0.0, 0.25, 0.5, 0.75]


def test_predict_reads_tables_with_the_options_of_the_training(call, tmp_path):
    """Only the recipe says that the column `clock` is not a value. New files need no labels."""
    rng = np.random.default_rng(0)
    lines = [f"{name},{step},{rng.normal()},{'ab'[name % 2]},7" for name in range(20) for step in range(8)]
    (tmp_path / "data.csv").write_text("\n".join(["who,clock,x,kind,weight", *lines]) + "\n")
    (tmp_path / "new.csv").write_text("\n".join(["who,clock,x", *(line.rsplit(",", 2)[0] for line in lines)]) + "\n")
    (tmp_path / "mine.yaml").write_text(
        "model: {name: flextcn2, widths: [3], generator_options: {hidden: 4}}\n"
        "data: {name: table, options: {path: data.csv, label: kind, id: who, time: clock, ignore: [weight]}}\n"
        "epochs: 1\nbatch_size: 10\n"
    )
    assert call("train", "mine.yaml", "--out", "run", "--device", "cpu").code == 0
    labelled = call("predict", "run", "data.csv", "--csv").out.replace("data.csv", "new.csv")
    shown = call("predict", "run", "new.csv", "--csv")
    assert shown.out == labelled
    assert shown.code == 0, shown.err
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [row["row"] for row in rows] == [str(number) for number in range(20)]
    assert {row["class"] for row in rows} <= {"a", "b"}


# --- eval -------------------------------------------------------------------------------------------------------------


def test_eval_prints_a_summary_classes_and_the_confusion_matrix(call):
    shown = call("eval", "flexnet3-digits", "--device", "cpu").out
    summary, calibration, *_ = shown.splitlines()
    assert re.fullmatch(r"digits test: \d+\.\d\d % of 360, top-5 \d+\.\d\d %, loss \d\.\d{4}", summary)
    assert re.fullmatch(r"calibration error: \d+\.\d\d % \(on average \d+\.\d\d % (over|under)confident\)", calibration)
    classes = re.findall(r"^(\d) +(\d+) +(\d+\.\d) % +(\d+\.\d) %", shown, re.MULTILINE)
    assert [name for name, *_ in classes] == list("0123456789")
    assert sum(int(count) for _, count, *_ in classes) == 360
    matrix = [line.split() for line in shown.partition("predicted class in columns:\n")[2].splitlines()]
    assert matrix[0] == list("0123456789")
    assert sum(int(cell) for row in matrix[1:] for cell in row[1:] if cell != "·") == 360


def test_eval_prints_json(call):
    entries = json.loads(call("eval", "flexnet3-digits", "--json").out)
    matrix = np.array(entries["confusion"])
    assert matrix.sum() == entries["count"] == 360
    assert matrix.trace() / 360 == pytest.approx(entries["accuracy"])
    assert [each["class"] for each in entries["classes"]] == list("0123456789")
    assert entries["classes"][3]["accuracy"] == pytest.approx(matrix[3, 3] / matrix[3].sum())
    assert entries["classes"][3]["precision"] == pytest.approx(matrix[3, 3] / matrix[:, 3].sum())
    assert sum(each["count"] for each in entries["confidence_bins"]) == 360
    assert 0 < entries["calibration_error"] < 0.05


def test_eval_draws_the_confusion_matrix(call, tmp_path):
    assert call("eval", "flexnet3-digits", "--plot", "matrix.png").out.endswith("wrote matrix.png\n")
    with Image.open(tmp_path / "matrix.png") as image:
        assert min(image.size) > 300
    assert_refused(call("eval", "flexnet3-digits", "--plot", "matrix.doc"), r"\.png.*'matrix\.doc'")
    assert_refused(call("eval", "flexnet3-digits", "--plot", "no/matrix.png"), "there is no folder no")


def test_eval_lists_the_worst_of_many_classes(call):
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 30
    np.savez("own.npz", train_inputs=rng.normal(size=(120, 1, 9)).astype("f"), train_labels=labels,
             test_inputs=rng.normal(size=(60, 1, 9)).astype("f"), test_labels=labels[:60])  # fmt: skip
    model = create_model("flextcn2", in_channels=1, num_classes=30, length=9, widths=[3])
    save_pretrained(model, "net")
    shown = call("eval", "net", "--data", "npz", "--data-option", "path=own.npz").out
    assert "the 10 classes of 30 with the lowest accuracy" in shown
    assert "the most frequent confusions" in shown
    assert "in columns" not in shown


def test_commands_do_not_import_lightning(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((1, 1, 8, 8), np.uint8))
    commands = ["predict", "flexnet3-digits", str(tmp_path / "a.npy")], ["eval", "flexnet3-digits"]
    code = f"import sys; from flexconv import cli; assert not any(map(cli.run, {commands!r})); " + (
        "loaded = {'lightning', 'matplotlib', 'torchvision', 'sklearn'} & {*sys.modules}; print(loaded or 'none')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "none"


def test_predictions_of_the_command_are_those_of_the_network(call):
    values = np.random.default_rng(0).integers(0, 17, (3, 1, 16, 16)).astype(np.uint8)
    np.save("a.npy", values)
    entries = json.loads(call("predict", "flexnet3-digits", "a.npy", "--json", "--top", 10, "--batch-size", 2).out)
    model = from_pretrained("flexnet3-digits")
    assert model.inputs is not None
    with torch.no_grad():
        expected = model(model.inputs(torch.from_numpy(values))).softmax(1)
    for entry, row in zip(entries["predictions"], expected, strict=True):
        found = {each["class"]: each["probability"] for each in entry["top"]}
        assert [found[name] for name in model.inputs.classes] == pytest.approx(row.tolist(), abs=2e-6)


@pytest.mark.parametrize("features", ["waves", "mfcc"])
def test_predict_prepares_recordings_as_in_training(call, tmp_path, features):
    """A network that was trained on a folder of recordings knows their rate, and whether their lengths varied."""
    rate, lengths = 1600, {"waves": (400, 300), "mfcc": (400, 400)}[features]
    rng = np.random.default_rng(0)
    for number in range(12):
        name = tmp_path / f"sounds/{'ab'[number % 2]}/{number}.wav"
        save_wav(name, rng.integers(-9000, 9000, lengths[number % 3 == 0]), rate)
    (tmp_path / "mine.yaml").write_text(
        "model: {name: flextcn2, widths: [3], generator_options: {hidden: 4}}\n"
        f"data: {{name: folder, options: {{path: sounds, features: {features}}}}}\nepochs: 1\nbatch_size: 8\n"
    )
    assert call("train", "mine.yaml", "--out", "run", "--device", "cpu").code == 0
    inputs = from_pretrained("run/weights").inputs
    assert inputs is not None
    assert (inputs.rate or inputs.mfcc_rate, inputs.varying) == (rate, features == "waves")
    save_wav(tmp_path / "other.wav", rng.integers(-9000, 9000, 4000), 4 * rate)
    (entry,) = json.loads(call("predict", "run", "other.wav", "--json").out)["predictions"]
    assert (entry["stop"], len(entry["chunks"])) == (0.625, 3)
    native = call("predict", "run", "other.wav", "--resolution", "native")
    if features == "waves":
        assert native.code == 0, native.err
    else:
        assert_refused(native, "MFCCs.*'native'")


def save_wav(path, samples, rate):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "NONE"))
        file.writeframes(np.asarray(samples, "<i2").tobytes())
