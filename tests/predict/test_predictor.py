"""`flexconv.predict`: files become the inputs that the network was trained on, and its outputs become probabilities."""

from __future__ import annotations

import wave
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flexconv import at_resolution, create_model, from_pretrained, save_pretrained
from flexconv.audio import hop_length
from flexconv.data import DamagedDataError, MissingDataError, resize_images
from flexconv.errors import MissingFileError
from flexconv.models import ImageSeries, Inputs, Model
from flexconv.predict import Prediction, Predictor, predict
from flexconv.predict._pictures import pixel_factor

RATE, STEPS = 800, 400  # of the recordings in these tests


def image_network(channels: int = 3, size: int = 8, **changes) -> Model:
    torch.manual_seed(0)
    model = create_model("flexnet3", in_channels=channels, num_classes=3, image_size=size, widths=[4])
    statistics: dict[str, Any] = {"mean": (0.4,) * channels, "std": (0.2,) * channels}
    model.inputs = Inputs(size=(size, size), scale=1 / 255, classes=("ant", "bee", "cow"), **statistics)
    model.inputs = replace(model.inputs, **changes)
    return model.eval()


def series_network(channels: int = 1, length: int = STEPS, **changes) -> Model:
    torch.manual_seed(0)
    model = create_model("flextcn2", in_channels=channels, num_classes=2, length=length, widths=[4, 4])
    torch.nn.init.normal_(model.head.weight)
    model.inputs = Inputs(
        size=(length,), scale=1.0, mean=(0.0,) * channels, std=(1.0,) * channels, classes=("no", "yes"), varying=False
    )
    model.inputs = replace(model.inputs, **changes)
    return model.eval()


def wave_network(**changes) -> Model:
    return series_network(**{"scale": 2**-15, "std": (0.1,), "rate": RATE, **changes})


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save_picture(path, *shape: int, seed: int = 0) -> np.ndarray:
    values = pixels(*shape, seed=seed)
    Image.fromarray(values).save(path)
    return values


def save_wav(path, samples, rate: int = RATE, channels: int = 1) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", "NONE"))
        file.writeframes(np.asarray(samples, "<i2").tobytes())


def sound(length: int, rate: int = RATE, seed: int = 0) -> np.ndarray:
    """A sum of low tones, which sounds the same at every rate."""
    time = np.arange(length) / rate
    tones = np.random.default_rng(seed).uniform(5, 40, 6)
    return (2000 * np.sin(2 * np.pi * tones[:, None] * time).sum(0)).astype("<i2")


def probabilities_of(model: Model, raw) -> torch.Tensor:
    assert model.inputs is not None
    with torch.no_grad():
        return model(model.inputs(torch.as_tensor(raw))).softmax(1)


def assert_predicts(predictions: list[Prediction], expected: torch.Tensor, **tolerances) -> None:
    found = torch.stack([prediction.probabilities for prediction in predictions])
    torch.testing.assert_close(found, expected, **{"rtol": 1e-5, "atol": 1e-6, **tolerances})


# --- results ----------------------------------------------------------------------------------------------------------


def test_prediction_names_the_most_probable_classes():
    prediction = Prediction("a.png", torch.tensor([0.2, 0.5, 0.3]), ("ant", "bee", "cow"))
    assert (prediction.label, prediction.probability) == ("bee", 0.5)
    assert [name for name, _ in prediction.top(2)] == ["bee", "cow"]
    assert len(prediction.top(9)) == 3
    assert "a.png: bee, 50.0 %" in repr(prediction)


def test_predicts_with_a_run_folder_a_folder_of_weights_and_a_name(tmp_path):
    values = save_picture(tmp_path / "a.png", 8, 8, 3)
    model = image_network()
    save_pretrained(model, tmp_path / "run/weights")
    expected = probabilities_of(model, np.moveaxis(values, -1, 0)[None])
    for where in (model, tmp_path / "run", str(tmp_path / "run/weights")):
        assert_predicts(predict(where, tmp_path / "a.png"), expected)
    assert predict("flexnet3-digits", tmp_path / "a.png")[0].classes == tuple("0123456789")


def test_any_module_can_be_used_with_inputs(tmp_path):
    values = save_picture(tmp_path / "a.png", 4, 4)
    inputs = Inputs(size=(4, 4), scale=1 / 255, mean=(0.5,), std=(0.5,), classes=("x", "y"))
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    (found,) = predict(net, tmp_path / "a.png", inputs=inputs)
    expected = net(inputs(torch.from_numpy(values)[None, None])).softmax(1)[0]
    torch.testing.assert_close(found.probabilities, expected.detach())


def test_batches_do_not_change_results_or_order(tmp_path):
    model = image_network()
    for number in range(7):
        save_picture(tmp_path / f"{number}.png", 8, 8 + number % 2, 3, seed=number)
    one, many = (Predictor(model, batch_size=size, resolution="native")(tmp_path) for size in (1, 5))
    assert [each.file for each in many] == [str(tmp_path / f"{number}.png") for number in range(7)]
    assert_predicts(many, torch.stack([each.probabilities for each in one]))


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_gray_and_color_pictures_are_converted_to_the_channels_of_the_network(tmp_path):
    gray = save_picture(tmp_path / "gray.png", 8, 8)
    color = image_network()
    assert_predicts(predict(color, tmp_path / "gray.png"), probabilities_of(color, np.stack([gray] * 3)[None]))
    save_picture(tmp_path / "color.png", 8, 8, 3)
    with Image.open(tmp_path / "color.png") as image:
        luminance = np.array(image.convert("L"))
    network = image_network(1)
    assert_predicts(predict(network, tmp_path / "color.png"), probabilities_of(network, luminance[None, None]))


def test_pictures_of_another_size_are_resized_to_the_size_of_the_network(tmp_path):
    values = np.moveaxis(save_picture(tmp_path / "a.png", 12, 20, 3), -1, 0)[None]
    model = image_network()
    assert_predicts(
        predict(model, tmp_path / "a.png"), probabilities_of(model, resize_images(torch.from_numpy(values.copy()), 8))
    )
    twice = at_resolution(model, 2)  # a resampled network expects pictures of its own resolution
    assert_predicts(
        predict(twice, tmp_path / "a.png"), probabilities_of(twice, resize_images(torch.from_numpy(values.copy()), 16))
    )


def test_network_runs_at_the_native_resolution_or_a_given_one(tmp_path):
    values = torch.from_numpy(np.moveaxis(save_picture(tmp_path / "a.png", 12, 16, 3), -1, 0)[None].copy())
    model = image_network()
    native = predict(model, tmp_path / "a.png", resolution="native")
    assert_predicts(native, probabilities_of(at_resolution(model, (1.5, 2)), values))
    given = predict(model, tmp_path / "a.png", resolution=(16, 24))
    assert_predicts(given, probabilities_of(at_resolution(model, (2, 3)), resize_images(values, (16, 24))))


def test_native_resolution_has_a_limit(tmp_path):
    save_picture(tmp_path / "large.png", 8, 65, 3)
    with pytest.raises(ValueError, match=r"large.png: 8x65 differs from 8x8.*factor of 8.*16x16"):
        predict(image_network(), tmp_path / "large.png", resolution="native")


@pytest.mark.parametrize(
    ("scale", "mean", "std", "factor"),
    [
        (1 / 255, 0.4, 0.2, 1.0),
        (1 / 16, 0.3, 0.3, 16 / 255),
        (1.0, 0.4, 0.2, 1 / 255),  # arrays of floats on [0, 1]
        (1.0, 120.0, 60.0, 1.0),  # arrays of floats on [0, 255]
    ],
)
def test_pixels_get_the_range_of_the_training_data(scale, mean, std, factor, tmp_path):
    inputs = Inputs(size=(8, 8), scale=scale, mean=(mean,), std=(std,), classes=("a",))
    assert pixel_factor(inputs, tmp_path) == pytest.approx(factor)


def test_pictures_need_a_known_range(tmp_path):
    save_picture(tmp_path / "a.png", 8, 8)
    standardized = image_network(1, scale=1.0, mean=(1e-4,), std=(1.0,))
    with pytest.raises(ValueError, match=r"a.png: the range of pixels.*\.npz"):
        predict(standardized, tmp_path / "a.png")


def test_pictures_need_one_or_three_channels(tmp_path):
    save_picture(tmp_path / "a.png", 8, 8)
    with pytest.raises(ValueError, match=r"a.png: a picture has 1 or 3 channels.*2"):
        predict(image_network(2), tmp_path / "a.png")


def test_networks_on_images_as_series_take_pictures(tmp_path):
    values = torch.from_numpy(save_picture(tmp_path / "a.png", 5, 4))
    images = ImageSeries(size=(5, 4), steps="pixels", order_seed=2)
    model = series_network(length=20, scale=1 / 255, images=images)
    assert_predicts(predict(model, tmp_path / "a.png"), probabilities_of(model, values[None, None]))
    np.save(tmp_path / "images.npy", values[None].numpy())
    np.save(tmp_path / "series.npy", images.series(values[None, None]).numpy())
    for name in ("images.npy", "series.npy"):
        assert_predicts(predict(model, tmp_path / name), probabilities_of(model, values[None, None]))
    with pytest.raises(ValueError, match=r"images as series.*'native'"):
        Predictor(model, resolution="native")


# --- recordings -------------------------------------------------------------------------------------------------------


def test_long_recordings_are_divided_into_chunks(tmp_path):
    samples = sound(1000)
    save_wav(tmp_path / "long.wav", samples)
    model = wave_network()
    (found,) = predict(model, tmp_path / "long.wav")
    assert [(chunk.start, chunk.stop) for chunk in found.chunks] == [(0.0, 0.5), (0.5, 1.0), (0.75, 1.25)]
    expected = torch.cat([probabilities_of(model, samples[None, None, a : a + STEPS].copy()) for a in (0, 400, 600)])
    assert_predicts(list(found.chunks), expected)
    torch.testing.assert_close(found.probabilities, expected.mean(0))
    assert (found.start, found.stop) == (0.0, 1.25)
    (overlapping,) = predict(model, tmp_path / "long.wav", hop=0.25)
    assert [chunk.start for chunk in overlapping.chunks] == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(("varying", "padded"), [(False, True), (True, False)])
def test_short_recordings_are_padded_unless_lengths_varied_in_training(tmp_path, varying, padded):
    samples = sound(300)
    save_wav(tmp_path / "short.wav", samples)
    model = wave_network(varying=varying)
    (found,) = predict(model, tmp_path / "short.wav")
    raw = np.pad(samples, (0, 100)) if padded else samples
    assert_predicts([found], probabilities_of(model, raw[None, None].copy()))
    assert (found.start, found.stop, found.chunks) == (0.0, 0.375, ())


def test_recordings_of_another_rate_are_resampled_or_run_natively(tmp_path):
    save_wav(tmp_path / "own.wav", sound(400))
    save_wav(tmp_path / "twice.wav", sound(800, 2 * RATE), rate=2 * RATE)
    model = wave_network()
    (own,) = predict(model, tmp_path / "own.wav")
    (resampled,) = predict(model, tmp_path / "twice.wav")
    assert_predicts([resampled], own.probabilities[None], atol=0.02, rtol=0)
    (native,) = predict(model, tmp_path / "twice.wav", resolution="native")
    assert_predicts([native], probabilities_of(at_resolution(model, 2), sound(800, 2 * RATE)[None, None].copy()))


def test_coefficients_of_recordings_are_computed(tmp_path):
    rate, frames = 16_000, 21
    samples = sound(2 * (frames - 1) * hop_length(rate), rate)
    save_wav(tmp_path / "a.wav", samples, rate)
    model = series_network(20, frames, scale=2**-15, mfcc_rate=rate)
    (found,) = predict(model, tmp_path / "a.wav")
    assert len(found.chunks) == 2
    assert_predicts(list(found.chunks), probabilities_of(model, samples.reshape(2, 1, -1).copy()))
    with pytest.raises(ValueError, match=r"MFCCs.*'native'"):
        Predictor(model, resolution="native")


def test_recordings_with_as_many_frames_as_in_training_are_not_divided(tmp_path):
    rate, frames = 22_050, 21  # 160 frames per second are 138 samples apart, which does not divide a second
    samples = sound((frames - 1) * hop_length(rate) + 100, rate)
    save_wav(tmp_path / "a.wav", samples, rate)
    model = series_network(20, frames, scale=2**-15, mfcc_rate=rate)
    (found,) = predict(model, tmp_path / "a.wav", hop=0.01)
    assert (found.start, found.stop, found.chunks) == (0.0, len(samples) / rate, ())
    assert_predicts([found], probabilities_of(model, samples[None, None].copy()))


def test_rejects_recordings_that_do_not_fit(tmp_path):
    model = wave_network()
    save_wav(tmp_path / "stereo.wav", sound(400), channels=2)
    with pytest.raises(DamagedDataError, match=r"stereo.wav: 2 channels.*1 channel at 800 Hz"):
        predict(model, tmp_path / "stereo.wav")
    save_wav(tmp_path / "empty.wav", [])
    with pytest.raises(DamagedDataError, match=r"empty.wav: the recording has no samples"):
        predict(model, tmp_path / "empty.wav")
    save_wav(tmp_path / "fast.wav", sound(100), rate=48_000)
    with pytest.raises(ValueError, match=r"fast.wav: the rate 48000 Hz.*800 Hz"):
        predict(model, tmp_path / "fast.wav", resolution="native")
    tiny = series_network(20, 21, scale=2**-15, mfcc_rate=16_000, varying=True)
    save_wav(tmp_path / "tiny.wav", sound(50), rate=16_000)
    with pytest.raises(DamagedDataError, match=r"tiny.wav: 50 samples.*more than 100"):
        predict(tiny, tmp_path / "tiny.wav")
    with pytest.raises(ValueError, match=r"tiny.wav: a recording.*color pictures of 8x8"):
        predict(image_network(), tmp_path / "tiny.wav")


# --- arrays and tables ------------------------------------------------------------------------------------------------


def test_arrays_have_the_values_of_the_training_data(tmp_path):
    values = pixels(3, 3, 8, 8)
    np.savez(tmp_path / "a.npz", inputs=values, labels=[0, 1, 2])
    np.save(tmp_path / "one.npy", values[0])
    np.save(tmp_path / "large.npy", pixels(2, 3, 16, 16))
    model = image_network()
    found = predict(model, [tmp_path / "a.npz", tmp_path / "one.npy", tmp_path / "large.npy"])
    assert [each.row for each in found] == ["1", "2", "3", None, "1", "2"]
    assert_predicts(found[:4], probabilities_of(model, np.concatenate([values, values[:1]])))
    resized = resize_images(torch.from_numpy(pixels(2, 3, 16, 16)), 8)
    assert_predicts(found[4:], probabilities_of(model, resized))


def test_series_of_different_lengths(tmp_path):
    series = np.random.default_rng(0).normal(size=(2, 2, 30)).astype("float32")
    np.savez(tmp_path / "a.npz", inputs=series, lengths=[30, 20])
    varying = series_network(2, 30, varying=True)
    alone = [probabilities_of(varying, series[:1]), probabilities_of(varying, series[1:, :, :20])]
    assert_predicts(predict(varying, tmp_path / "a.npz"), torch.cat(alone))
    with pytest.raises(DamagedDataError, match=r"a.npz, row 2: 20 steps.*30 steps.*native"):
        predict(series_network(2, 30), tmp_path / "a.npz")
    np.savez(tmp_path / "bad.npz", inputs=series, lengths=[31, 20])
    with pytest.raises(DamagedDataError, match=r"bad.npz, lengths"):
        predict(varying, tmp_path / "bad.npz")


def test_tables(tmp_path):
    series = np.random.default_rng(0).normal(size=(2, 30)).astype("float32")
    rows = "\n".join(",".join(map(str, row)) for row in series)
    (tmp_path / "wide.csv").write_text(",".join(f"v{step}" for step in range(30)) + f"\n{rows}\n")
    model = series_network(1, 30)
    assert_predicts(predict(model, tmp_path / "wide.csv"), probabilities_of(model, series[:, None]))
    lines = [f"{'ab'[number]},{value}" for number, row in enumerate(series) for value in row]
    (tmp_path / "long.csv").write_text("series,x\n" + "\n".join(lines) + "\n")
    found = predict(model, tmp_path / "long.csv", options={"id": "series"})
    assert [each.row for each in found] == ["a", "b"]
    assert_predicts(found, probabilities_of(model, series[:, None]))


# --- files ------------------------------------------------------------------------------------------------------------


def test_folders_are_searched_for_files_of_the_kind_of_the_network(tmp_path):
    for name in ("b/2.png", "b/1.PNG", "a.jpg", ".hidden.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if name.endswith("txt"):
            (tmp_path / name).write_text("no picture")
        else:
            save_picture(tmp_path / name, 8, 8, 3)
    found = predict(image_network(), tmp_path)
    assert [each.file for each in found] == [str(tmp_path / name) for name in ("a.jpg", "b/1.PNG", "b/2.png")]
    with pytest.raises(MissingDataError, match=r"contains .*\.txt, expected recordings with 1 channel at 800 Hz"):
        predict(wave_network(), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match=r"is an empty folder, expected color pictures of 8x8"):
        predict(image_network(), tmp_path / "empty")


def test_bad_files_raise_or_are_reported(tmp_path):
    save_picture(tmp_path / "good.png", 8, 8, 3)
    (tmp_path / "damaged.png").write_bytes((tmp_path / "good.png").read_bytes()[:60])
    (tmp_path / "what.xyz").write_text("?")
    files = [tmp_path / name for name in ("good.png", "damaged.png", "missing.png", "what.xyz")]
    model = image_network()
    with pytest.raises(DamagedDataError, match=r"damaged.png"):
        predict(model, tmp_path / "damaged.png")
    with pytest.raises(MissingFileError, match=r"missing.png does not exist"):
        predict(model, files[2])
    with pytest.raises(DamagedDataError, match=r"what.xyz"):
        predict(model, files[3])
    reported = {}
    found = predict(model, files, on_error=lambda file, error: reported.update({file: error}))
    assert [each.file for each in found] == [str(files[0])]
    assert sorted(reported) == sorted(map(str, files[1:]))
    with pytest.raises(ValueError, match="no files"):
        predict(model, [])


# --- networks ---------------------------------------------------------------------------------------------------------


def test_rejects_networks_that_cannot_classify_files(tmp_path):
    bare = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[4])
    save_pretrained(bare, tmp_path / "bare")
    with pytest.raises(ValueError, match=r"bare does not say how its inputs are standardized.*model.inputs"):
        Predictor(tmp_path / "bare")
    every = create_model("flextcn2", in_channels=1, num_classes=2, length=9, widths=[4], readout="every")
    every.inputs = series_network(1, 9).inputs
    with pytest.raises(ValueError, match="every time step"):
        Predictor(every)
    save_picture(tmp_path / "a.png", 4, 4)
    inputs = Inputs(size=(4, 4), scale=1 / 255, mean=(0.5,), std=(0.5,), classes=("x", "y"))
    with pytest.raises(ValueError, match=r"not a classifier with 2 classes.*\(1, 1, 2, 2\)"):
        predict(torch.nn.Conv2d(1, 1, 3), tmp_path / "a.png", inputs=inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resolution": "natvie"}, "'natvie'.*native"),
        ({"resolution": (8, 8, 8)}, "resolution"),
        ({"batch_size": 0}, "batch_size.*0"),
        ({"hop": 0}, "hop.*0"),
        ({"options": {"idd": "series"}}, "'idd'.*'id'"),
    ],
)
def test_rejects_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Predictor(image_network(), **arguments)


def test_reports_outputs_that_are_not_finite(tmp_path):
    save_picture(tmp_path / "a.png", 8, 8, 3)
    model = image_network()
    torch.nn.init.constant_(model.head.bias, torch.nan)
    with pytest.raises(RuntimeError, match=r"a\.png: the outputs.*not finite"):
        predict(model, tmp_path / "a.png")


def test_series_have_no_size_as_resolution():
    with pytest.raises(ValueError, match=r"resolution must be trained or native.*64"):
        Predictor(wave_network(), resolution=64)


def test_every_shipped_image_network_predicts_pictures(tmp_path):
    save_picture(tmp_path / "a.png", 20, 20, 3)
    model = from_pretrained("flexnet3-digits")
    (found,) = predict(model, tmp_path / "a.png")
    assert found.probabilities.sum() == pytest.approx(1)
