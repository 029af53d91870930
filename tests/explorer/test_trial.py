"""Classifying images in the page: the script computes what torch computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, GaussianMask, at_resolution, create_model
from flexconv.data import resize_images
from flexconv.explorer import Network, write_page
from flexconv.explorer import _program as programs
from flexconv.explorer._program import UnsupportedError, program
from flexconv.explorer._trial import trial
from flexconv.models import CIFARResNet, Inputs

from .reading import find, needs_browser, shown_text, table, wait_until

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox")


def randomize(model):
    """Give batch norms statistics and weights that are not those of a new network."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.uniform_(-0.5, 0.5)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def network(channels=3, size=(12, 12), **settings):
    torch.manual_seed(0)
    options = {"widths": [6, 8], "mask_options": {"sigma": 0.3, "mean": (0.2, -0.1)}, **settings}
    model = create_model("flexnet3", in_channels=channels, num_classes=6, image_size=size, **options)
    mean, std = ((0.5, 0.4, 0.3)[:channels], (0.25, 0.2, 0.3)[:channels])
    model.inputs = Inputs(size=size, scale=1 / 255, mean=mean, std=std, classes=CLASSES)
    return randomize(model)


def resnet(**settings):
    torch.manual_seed(0)
    settings = {"depth": 8, "width": 4, "conv": "flex", "kernel_size": None, "image_size": 12, **settings}
    return randomize(CIFARResNet(in_channels=3, num_classes=6, **settings))


def sequence(*layers, features=8 * 9):
    torch.manual_seed(0)
    return nn.Sequential(FlexConv2d(3, 8, 9, mask=GaussianMask(2, sigma=0.4)), *layers, nn.Linear(features, 6)).eval()


class Scaled(nn.Module):
    """Sums and products of results, numbers and constants."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = FlexConv2d(3, 4, 5)
        self.gain = nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        y = self.gain * y + torch.sigmoid(y) * torch.tanh(y)
        return (0.5 * y + 0.25).mean((-1, -2))


MODELS = {
    "FlexNet": network,
    "layer norm": lambda: network(norm="layer"),
    "CIFARResNet": resnet,
    "CIFARResNet with convolutions as shortcuts": lambda: resnet(shortcut="conv"),
    "pools": lambda: sequence(nn.GELU(), nn.MaxPool2d(2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
    "average": lambda: sequence(nn.LeakyReLU(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), features=8),
    "circular": lambda: sequence(
        FlexConv2d(8, 8, 5, padding_mode="circular"), nn.GELU("tanh"), nn.MaxPool2d(4), nn.Flatten()
    ),
    "reflect": lambda: sequence(FlexConv2d(8, 8, 5, padding_mode="reflect"), nn.AvgPool2d(4), nn.Flatten()),
    "replicate": lambda: sequence(FlexConv2d(8, 8, 5, padding_mode="replicate"), nn.AvgPool2d(4), nn.Flatten()),
    "groups, stride and dilation": lambda: sequence(
        FlexConv2d(8, 8, 3, stride=2, groups=4, padding=1, mask=None),
        nn.Conv2d(8, 8, 3, dilation=2, groups=8, padding=(1, 2)),
        nn.Flatten(),
        features=8 * 4 * 6,
    ),
    "arithmetic": Scaled,
}


@pytest.fixture(scope="module")
def trained():
    """Networks with inputs: small, small and gray, resampled, and one that is too large for the page."""
    return {
        "small": network(),
        "grey": network(1, (10, 14), norm="layer"),
        "resampled": at_resolution(network(), 2),
        "large": network(widths=[64, 64], mask_options={"sigma": 2.0}, size=(32, 32)),
    }


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    return {c: torch.randint(256, (4, c, 20, 16), dtype=torch.uint8, generator=generator) for c in (1, 3)}


@pytest.fixture(scope="module")
def pages(trained, samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, model in trained.items():
        write_page(model, folder / f"{name}.html", samples=samples[model.in_channels], labels=[5, 4, 3, 2])
    other = Network(trained["grey"], title="gray", samples=samples[1])
    write_page(trained["small"], folder / "two.html", samples=samples[3], compare_with=other)
    return folder


def asynchronously(page, script, *arguments):
    page.set_script_timeout(60)
    whole = f"const done = arguments[arguments.length - 1]; (async () => {{{script}}})().then(done)"
    return page.execute_async_script(whole, *arguments)


@needs_browser
@pytest.mark.parametrize("name", MODELS)
def test_script_evaluates_networks_as_torch_does(visit, name):
    model = MODELS[name]().double()  # kernels without the rounding errors of float32
    x = torch.randn(1, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    script = """
        const input = { shape: arguments[1], values: Float64Array.from(arguments[2]) };
        const { shape, values } = await explorer.evaluate(arguments[0], input);
        return [shape, [...values]];"""
    page = visit("small")
    shape, values = asynchronously(page, script, program(model, x.shape), list(x.shape[1:]), x.flatten().tolist())
    expected = model(x.double())[0].detach()
    assert shape == list(expected.shape)
    np.testing.assert_allclose(values, expected.flatten(), atol=1e-5 * float(expected.abs().max()))


@needs_browser
@pytest.mark.parametrize("sizes", [(5, 7, 5, 7), (20, 16, 12, 12), (12, 12, 31, 9), (64, 48, 7, 80), (1, 3, 4, 2)])
def test_script_resizes_images_as_pillow_does(visit, sizes):
    height, width, rows, columns = sizes
    image = torch.randint(256, (1, 1, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    script = "return [...explorer.resizePlane(Uint8ClampedArray.from(arguments[0]), arguments[1], arguments[2])]"
    found = visit("small").execute_script(script, image.flatten().tolist(), [height, width], [rows, columns])
    assert found == resize_images(image, (rows, columns)).flatten().tolist()


def shown_logits(page, download):
    header, rows = table(download(".result", "csv"))
    assert header == ["class", "probability", "logit"]
    return {name: (float(probability), float(logit)) for name, probability, logit in rows}


def wait_for_result(page, words):
    found = wait_until(lambda: words in shown_text(page, ".result figcaption"))
    assert found, f"no result with {words!r}: {shown_text(page, '.result figcaption')!r}"


@needs_browser
@pytest.mark.parametrize("name", ["small", "grey", "resampled"])
def test_classifies_an_image_file(visit, download, trained, tmp_path, name):
    images = pytest.importorskip("PIL.Image")
    model = trained[name]
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    images.fromarray(pixels).save(tmp_path / "mine.png")
    page = visit(name)
    find(page, "#file").send_keys(str(tmp_path / "mine.png"))
    wait_for_result(page, "mine.png")
    shown = shown_logits(page, download)
    opened = images.open(tmp_path / "mine.png").convert("L" if model.in_channels == 1 else "RGB")
    raw = torch.from_numpy(np.array(opened).reshape(40, 30, -1)).permute(2, 0, 1)[None]
    size = tuple(round(n * scale) for n, scale in zip(model.inputs.size, model.resolution, strict=True))
    logits = model(model.inputs(resize_images(raw, size)))[0].detach()
    assert [shown[each][1] for each in CLASSES] == pytest.approx(logits.tolist(), abs=1e-4)
    assert [shown[each][0] for each in CLASSES] == pytest.approx(logits.softmax(0).tolist(), abs=1e-4)
    assert find(page, ".result figcaption b").text == CLASSES[int(logits.argmax())]


@needs_browser
def test_shows_samples_with_their_true_class(visit, download, trained, samples):
    page = visit("small")
    wait_for_result(page, "sample 1 (true class: fox)")
    page.find_elements("css selector", "#samples button")[2].click()
    wait_for_result(page, "sample 3 (true class: dog)")
    assert "sample=3" in page.current_url
    model = trained["small"]
    logits = model(model.inputs(resize_images(samples[3], (12, 12))))[2].detach()
    shown = shown_logits(page, download)
    assert [shown[each][1] for each in CLASSES] == pytest.approx(logits.tolist(), abs=1e-4)
    stored = page.execute_script("return explorer.data.networks[0].trial.samples[2].logits")
    assert stored == pytest.approx(logits.tolist(), abs=1e-4)
    again = visit("small", address="#sample=2")
    wait_for_result(again, "sample 2 (true class: eel)")


@needs_browser
def test_says_why_a_large_network_is_not_evaluated(visit, trained):
    page = visit("large")
    wait_for_result(page, "computed when the page was written")
    assert not find(page, "#sources").is_displayed()
    reason = page.execute_script("return explorer.data.networks[0].trial.reason")
    assert "billion multiply-adds" in reason


@needs_browser
def test_inverts_an_image(visit, trained):
    page = visit("small")
    wait_for_result(page, "sample 1")
    seen = "return document.querySelector('.seen').toDataURL()"
    before, shares = page.execute_script(seen), shown_text(page, ".bars")
    find(page, "#invert").click()
    assert wait_until(lambda: shown_text(page, ".bars") not in ("", shares))
    assert page.execute_script(seen) != before


@needs_browser
def test_classifies_a_drawing(visit):
    page = visit("grey")
    pad = find(page, "#pad")
    stroke = """
        const box = arguments[0].getBoundingClientRect();
        arguments[0].setPointerCapture = () => {};
        const send = (type, x, y) => arguments[0].dispatchEvent(new PointerEvent(type, {
            clientX: box.left + x, clientY: box.top + y, buttons: 1, bubbles: true }));
        send("pointerdown", 20, 20); send("pointermove", 90, 90); send("pointerup", 90, 90)"""
    page.execute_script(stroke, pad)
    wait_for_result(page, "for drawing")
    find(page, "#clear").click()
    assert not page.find_elements("css selector", ".result")
    assert not find(visit("small"), "#drawing").is_displayed()


@needs_browser
def test_says_if_a_file_is_not_an_image(visit, tmp_path):
    (tmp_path / "notes.png").write_text("not an image")
    page = visit("small")
    wait_for_result(page, "sample 1")
    find(page, "#file").send_keys(str(tmp_path / "notes.png"))
    assert wait_until(lambda: "notes.png" in shown_text(page, "#trial-status")), shown_text(page, "#trial-status")


@needs_browser
def test_two_networks_classify_the_same_image(visit):
    page = visit("two")
    wait_for_result(page, "sample 1")
    wait_until(lambda: len(page.find_elements("css selector", ".result")) == 2)
    texts = [each.text for each in page.find_elements("css selector", ".result figcaption")]
    assert "12 × 12 pixels" in texts[0]
    assert "10 × 14 pixels" in texts[1]


@needs_browser
def test_saves_the_result_as_png(visit, download):
    images = pytest.importorskip("PIL.Image")
    wait_for_result(visit("small"), "sample 1")
    saved = images.open(download(".result", "png")).convert("RGB")
    assert len(saved.getcolors(1 << 24)) > 50


# --- without a browser ------------------------------------------------------------------------------------------------


def test_networks_without_images_are_not_tried():
    assert trial(FlexConv2d(1, 1, 5), None, None) is None
    assert trial(create_model("flextcn2", in_channels=1, num_classes=2, length=20), None, None) is None
    assert trial(create_model("flexnet3", in_channels=1, num_classes=2, image_size=8), None, None) is None


@pytest.mark.parametrize(
    ("layer", "word"), [(nn.Softplus(), "softplus"), (nn.MaxPool2d(3, 1, 1), "padding"), (nn.Softmax(1), "softmax")]
)
def test_names_the_operation_that_the_page_does_not_know(layer, word):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.layer = FlexConv2d(3, 2, 3), layer

        def forward(self, x):
            return self.layer(self.conv(x)).flatten(1)

    with pytest.raises(UnsupportedError, match=word):
        program(Odd(), (1, 3, 12, 12))


@pytest.mark.parametrize(("name", "word"), [("MAX_WEIGHTS", "taps"), ("MAX_MULTIPLY_ADDS", "multiply-adds")])
def test_refuses_networks_that_are_too_large(monkeypatch, name, word):
    monkeypatch.setattr(programs, name, 1000)
    found = trial(network(), None, None)
    assert found["program"] is None
    assert word in found["reason"]


@pytest.mark.parametrize(
    ("mean", "std", "peak"), [(0.5, 0.25, 1.0), (120.0, 60.0, 255.0), (0.01, 1.0, None), (-0.2, 0.5, None)]
)
def test_range_of_unscaled_pixels_follows_from_their_statistics(mean, std, peak):
    model = network(1)
    model.inputs = Inputs(size=(12, 12), scale=1.0, mean=(mean,), std=(std,), classes=CLASSES)
    found = trial(model, None, None)
    assert (found and found["peak"]) == peak


def test_trial_does_not_change_the_model():
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trial(model, torch.zeros(1, 3, 12, 12, dtype=torch.uint8), None)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
