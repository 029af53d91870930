"""Classifying series in the page."""

from __future__ import annotations

import wave

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, GaussianMask, create_model
from flexconv.explorer import Network, write_page
from flexconv.explorer._program import UnsupportedError, program
from flexconv.explorer._trial import trial
from flexconv.models import ImageSeries, Inputs

from .reading import embedded, find, needs_browser, shown_text, table, wait_until
from .test_trial import asynchronously

CLASSES = ("bee", "cricket", "fly")
LENGTH = 40


def network(channels=1, **settings):
    torch.manual_seed(0)
    model = create_model("flextcn2", in_channels=channels, num_classes=3, length=LENGTH, widths=[5, 6])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    numbers = {"mean": (0.5, -2.0)[:channels], "std": (2.0, 3.0)[:channels]}
    model.inputs = Inputs(size=(LENGTH,), scale=1.0, classes=CLASSES, **numbers, **settings)
    return model.eval()


def sequence(*layers, features):
    torch.manual_seed(0)
    first = FlexConv1d(2, 8, 9, mask=GaussianMask(1, sigma=0.4))
    return nn.Sequential(first, *layers, nn.Linear(features, 3)).eval()


MODELS = {
    "FlexTCN": lambda: network(2),
    "pools": lambda: sequence(nn.GELU(), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.Flatten(), features=80),
    "average": lambda: sequence(nn.AdaptiveAvgPool1d(1), nn.Flatten(), features=8),
    "stride, groups and dilation": lambda: sequence(
        FlexConv1d(8, 8, 5, stride=2, groups=4, padding_mode="circular"),
        nn.Conv1d(8, 8, 3, dilation=2, padding=1),
        nn.Flatten(),
        features=8 * 18,
    ),
}


@pytest.fixture(scope="module")
def trained():
    return {
        "one": network(),
        "two": network(2),
        "varying": network(varying=True),
        "recordings": network(rate=8000),
    }


@pytest.fixture(scope="module")
def samples():
    return {c: torch.randn(3, c, LENGTH, generator=torch.Generator().manual_seed(c)) for c in (1, 2)}


@pytest.fixture(scope="module")
def pages(trained, samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, model in trained.items():
        write_page(model, folder / f"{name}.html", samples=samples[model.in_channels], labels=[2, 0, 1])
    longer = create_model("flextcn2", in_channels=1, num_classes=3, length=60, widths=[5]).eval()
    longer.inputs = Inputs(size=(60,), scale=1.0, classes=CLASSES, mean=(0.0,), std=(1.0,))
    pictures = create_model("flexnet3", in_channels=1, num_classes=3, image_size=8, widths=[4]).eval()
    pictures.inputs = Inputs(size=(8, 8), scale=1 / 255, classes=CLASSES, mean=(0.5,), std=(0.25,))
    for name, other in {"with longer": longer, "with pictures": pictures}.items():
        shown = {"samples": samples[1], "labels": [2, 0, 1]}
        write_page(trained["one"], folder / f"{name}.html", **shown, compare_with=Network(other))
    return folder


def shown(page, download, words):
    """The logits that the page shows, when a result contains some words."""
    found = wait_until(lambda: words in shown_text(page, "#series-results figcaption"))
    assert found, f"no result with {words!r}: {shown_text(page, '#series-status')}"
    _, rows = table(download("#series-results figcaption", "csv"))
    return {name: float(logit) for name, _, logit in rows}


def paste(page, words):
    field = "document.getElementById('series-text')"
    page.execute_script(f"{field}.value = arguments[0]; {field}.dispatchEvent(new Event('input'))", words)


def logits(model, values):
    found = model(model.inputs(torch.as_tensor(values, dtype=torch.float32)[None]))[0]
    return pytest.approx(dict(zip(CLASSES, found.tolist(), strict=True)), abs=1e-4)


@needs_browser
@pytest.mark.parametrize("name", MODELS)
def test_script_evaluates_networks_on_series_as_torch_does(visit, name):
    model = MODELS[name]().double()  # kernels without the rounding errors of float32
    x = torch.randn(1, 2, LENGTH, generator=torch.Generator().manual_seed(2))
    script = """
        const input = { shape: arguments[1], values: Float64Array.from(arguments[2]) };
        return [...(await explorer.evaluate(arguments[0], input)).values];"""
    values = asynchronously(visit("one"), script, program(model, x.shape), [2, 1, LENGTH], x.flatten().tolist())
    expected = model(x.double())[0].detach()
    np.testing.assert_allclose(values, expected, atol=1e-5 * float(expected.abs().max()))


@needs_browser
def test_classifies_tables(visit, download, trained, tmp_path):
    """One line per step, with a header, and one line per channel, with a label."""
    values = np.random.default_rng(0).normal(size=(2, LENGTH)).round(3)
    (tmp_path / "steps.csv").write_text("ecg,pressure\n" + "\n".join(f"{a},{b}" for a, b in values.T))
    (tmp_path / "lines.tsv").write_text("\n".join("\t".join(["bee", *map(str, row)]) for row in values))
    for name in ("steps.csv", "lines.tsv"):
        page = visit("two")
        find(page, "#series-file").send_keys(str(tmp_path / name))
        assert shown(page, download, name) == logits(trained["two"], values)


@needs_browser
def test_classifies_recordings_and_refuses_another_rate(visit, download, trained, tmp_path):
    values = np.random.default_rng(0).integers(-4, 5, LENGTH + 7).astype("<i2")
    for rate in (8000, 4000):
        with wave.open(str(tmp_path / f"{rate}.wav"), "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes(values.tobytes())
    page = visit("recordings")
    find(page, "#series-file").send_keys(str(tmp_path / "8000.wav"))
    assert shown(page, download, "the first 40 steps") == logits(trained["recordings"], values[None, :LENGTH])
    find(page, "#series-file").send_keys(str(tmp_path / "4000.wav"))
    wait_until(lambda: "4000 Hz" in shown_text(page, "#series-status"))
    assert "4000 Hz, but the network takes 8000 Hz" in shown_text(page, "#series-status")


@needs_browser
def test_classifies_pasted_numbers_and_says_what_is_wrong_with_them(visit, download, trained):
    values = [round(0.1 * n, 1) for n in range(LENGTH)]
    page = visit("one")

    def problem(words):
        paste(page, words)
        return find(page, "#series-status").text

    paste(page, " ".join(map(str, values)))
    assert shown(page, download, "pasted numbers") == logits(trained["one"], [values])
    assert "12 steps, but the network takes 40" in problem(" ".join(map(str, values[:12])))
    assert "no numbers" in problem("bee")
    assert "Decimal commas" in problem("1,5;2,5;3,5")
    assert "Line 2 has 1 numbers" in problem("1 2\n3\n")


@needs_browser
def test_message_names_the_network_that_does_not_take_a_series(visit):
    page = visit("with longer")
    wait_until(lambda: "takes 60" in shown_text(page, "#series-status"))
    assert shown_text(page, "#series-status").startswith("B sample 1 (true class: fly): It has 40 steps")


@needs_browser
def test_curve_of_a_series_fits_into_its_panel(visit, download):
    page = visit("with pictures", width=1400)
    shown(page, download, "sample 1")
    assert page.execute_script("return document.documentElement.scrollWidth") <= 1400
    assert page.execute_script(
        "const right = (selector) => document.querySelector(selector).getBoundingClientRect().right;"
        "return right('#series-results svg') <= right('#series-section')"
    )


@needs_browser
def test_shorter_series_are_classified_if_lengths_vary(visit, download, trained):
    values = [round(0.1 * n, 1) for n in range(25)]
    page = visit("varying")
    script = (
        "const t = document.getElementById('series-text'); t.value = arguments[0]; t.dispatchEvent(new Event('input'))"
    )
    page.execute_script(script, "\n".join(map(str, values)))
    assert shown(page, download, "pasted numbers") == logits(trained["varying"], [values])


@needs_browser
def test_shows_samples_of_series_with_their_true_class(visit, download, trained, samples):
    page = visit("two", address="#sample=2")
    assert find(page, "#trial-section").is_displayed() is False
    assert shown(page, download, "sample 2 (true class: bee)") == logits(trained["two"], samples[2][1])
    page.find_elements("css selector", "#series-samples button")[2].click()
    assert shown(page, download, "sample 3 (true class: cricket)") == logits(trained["two"], samples[2][2])
    assert "sample=3" in page.current_url


@needs_browser
def test_classifies_a_drawn_series(visit, download):
    page = visit("one")
    script = """
        const pad = document.getElementById("series-pad"), { left, top, width, height } = pad.getBoundingClientRect();
        const send = (type, x, y) => pad.dispatchEvent(new PointerEvent(type, {
          clientX: left + x * width, clientY: top + y * height, buttons: 1, pointerId: 1, bubbles: true }));
        pad.setPointerCapture = () => {};
        send("pointerdown", 0.1, 0.2); send("pointermove", 0.5, 0.8); send("pointerup", 0.9, 0.3);"""
    page.execute_script(script)
    assert set(shown(page, download, "drawing")) == set(CLASSES)


def test_page_stores_series(pages, samples):
    (only,) = embedded(pages / "two.html")["networks"]
    stored = only["trial"]
    assert (stored["kind"], stored["size"], stored["varying"]) == ("series", [LENGTH], False)
    assert [each["label"] for each in stored["samples"]] == [2, 0, 1]


def test_networks_on_mfccs_or_images_as_series_are_not_tried():
    assert trial(network(2, mfcc_rate=8000), None, None) is None
    images = ImageSeries(size=(5, 8), steps="pixels")
    assert trial(network(images=images), None, None) is None


def test_reason_is_given_for_unknown_operations():
    model = nn.Sequential(FlexConv1d(1, 2, 3), nn.Softmax(1), nn.Flatten(), nn.Linear(80, 3))
    with pytest.raises(UnsupportedError, match="softmax"):
        program(model.eval(), (1, 1, LENGTH))
