"""The page in a headless browser: what it draws, its controls, and that it sends no requests."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, FlexConv3d, GaussianMask, at_resolution, create_model
from flexconv.explorer import write_page

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
services = pytest.importorskip("selenium.webdriver.chrome.service")

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
    "disable-component-update disable-sync hide-scrollbars"
)
NASTY = "</script><img src=x onerror=alert(1)>"

pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")


def records(model, count=20):
    names = [name for name, module in model.named_modules() if isinstance(module, FlexConv2d)]
    sizes = [{name: [3 + step // 4, 5] for name in names} for step in range(count)]
    return [
        {"epoch": n + 1, "train_loss": 2 / (n + 1), "validation_accuracy": n / count, "sizes": size}
        for n, size in enumerate(sizes)
    ]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    wide = {"sigma": 0.3}
    return {
        "images": create_model(
            "flexnet3", in_channels=3, num_classes=4, image_size=16, widths=[6, 6], mask_options=wide
        ),
        "series": create_model("flextcn2", in_channels=1, num_classes=3, length=60, widths=[4], mask_options=wide),
        "siren": nn.Sequential(FlexConv2d(1, 2, 9, generator="siren", mask=None)),
        "volumes": FlexConv3d(1, 2, 7, mask=GaussianMask(3, sigma=0.4)),
    }


@pytest.fixture(scope="module")
def pages(models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, model in models.items():
        history = records(model) if name == "images" else []
        write_page(model, folder / f"{name}.html", title=NASTY, records=history)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=services.Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser, pages):
    def open_page(name, *, width=1200, scheme="light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get((pages / f"{name}.html").as_uri())
        return browser

    yield open_page
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def picture(browser, name):
    """The pixels of a canvas, as a data URL."""
    return browser.execute_script("return document.getElementById(arguments[0]).toDataURL()", f"{name}-canvas")


def pictures(browser):
    return [picture(browser, name) for name in ("kernel", "spectrum", "pairs")]


def find(browser, selector):
    return browser.find_element("css selector", selector)


def requests(browser):
    """The URLs that the browser has requested since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", ["images", "series", "siren", "volumes"])
def test_shows_every_kind_of_model_without_network_requests(visit, name):
    page = visit(name)
    requests(page)
    page.refresh()
    requested = [url for url in requests(page) if not url.startswith("data:")]
    assert len(requested) == 1
    assert requested[0].startswith("file://")
    assert find(page, "h1").text == NASTY
    assert page.title == NASTY
    assert len(page.find_elements("css selector", "figcaption")) >= 5
    assert all(caption.text for caption in page.find_elements("css selector", "figcaption"))


def test_slider_redraws_kernel_and_spectrum(visit, models):
    page = visit("images")
    before = pictures(page)
    slider = find(page, "#resolution")
    slider.send_keys(keys.ARROW_RIGHT)
    kernel, spectrum, pairs = pictures(page)
    assert kernel != before[0]
    assert spectrum != before[1]
    assert pairs == before[2]
    assert "×1.25 · input 20 × 20" in slider.get_attribute("aria-valuetext")
    slider.send_keys(keys.END)
    larger = at_resolution(models["images"], 2).stem.extent
    assert f"kernel {larger[0]} × {larger[1]} taps" in find(page, "#resolution-text").text
    assert page.execute_script("const c = document.getElementById('kernel-canvas'); return [c.height, c.width]") == [
        *larger
    ]


def test_selects_channels_by_list_click_and_key(visit):
    page = visit("images")
    start = pictures(page)
    find(page, "#out").send_keys(keys.ARROW_UP if page.execute_script("return explorer.state.out") else keys.ARROW_DOWN)
    by_list = pictures(page)
    assert all(a != b for a, b in zip(start, by_list, strict=True))
    chosen = page.execute_script("return [explorer.state.out, explorer.state.in]")
    matrix = find(page, "#pairs-canvas")
    key, step = (keys.ARROW_LEFT, -1) if chosen[1] else (keys.ARROW_RIGHT, 1)
    matrix.send_keys(key)
    assert page.execute_script("return [explorer.state.out, explorer.state.in]") == [chosen[0], chosen[1] + step]
    assert picture(page, "kernel") != by_list[0]
    click = "const r = arguments[0].getBoundingClientRect();"
    click += "const at = {clientX: r.left + 20, clientY: r.top + 20, bubbles: true};"
    page.execute_script(click + "arguments[0].dispatchEvent(new PointerEvent('pointerdown', at))", matrix)
    assert page.execute_script("return [explorer.state.out, explorer.state.in]") == [0, 0]
    assert find(page, "#in").get_attribute("selectedIndex") == "0"


def test_keyboard_selects_layers_and_focus_is_visible(visit):
    page = visit("images")
    body = find(page, "body")
    body.send_keys(keys.TAB, keys.TAB)  # the button for the theme, then the list of layers
    assert page.execute_script("return document.activeElement.name") == "layer"
    names = [find(page, "#layer-name").text]
    before = pictures(page)
    page.switch_to.active_element.send_keys(keys.ARROW_DOWN)
    names.append(find(page, "#layer-name").text)
    assert names == ["stem", "blocks.0.conv1"]
    assert picture(page, "kernel") != before[0]
    label = page.execute_script("return getComputedStyle(document.activeElement.closest('label')).outlineStyle")
    assert label == "solid"
    reached = []
    for _ in range(7):
        page.switch_to.active_element.send_keys(keys.TAB)
        reached.append(page.execute_script("return document.activeElement.id"))
        assert page.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached[-1] == "pairs-canvas":
            break
    assert reached == ["resolution", "out", "in", "whole", "pairs-canvas"]
    unnamed = """return [...document.querySelectorAll("input, select, button, canvas[tabindex], [role=img]")].filter(
        (e) => !e.getAttribute("aria-label") && !e.labels?.length && !e.textContent.trim()).map((e) => e.id)"""
    assert page.execute_script(unnamed) == []


def test_zooming_out_shows_the_whole_grid(visit):
    page = visit("images")
    before = find(page, "#kernel svg").get_attribute("outerHTML")
    find(page, "#whole").click()
    assert find(page, "#kernel svg").get_attribute("outerHTML") != before


@pytest.mark.parametrize("name", ["images", "series", "volumes"])
@pytest.mark.parametrize("width", [400, 1600])
def test_page_fits_the_width_of_the_window(visit, name, width):
    page = visit(name, width=width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


def test_light_and_dark_theme(visit):
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = visit("images", scheme="light")
    day, kernel = light.execute_script(colour), picture(light, "kernel")
    dark = visit("images", scheme="dark")
    night, shadow = dark.execute_script(colour), picture(dark, "kernel")
    assert night != day
    assert shadow != kernel
    find(dark, "#theme").click()
    assert dark.execute_script(colour) == day
    assert picture(dark, "kernel") == kernel
    assert find(dark, "#theme").text == "Dark colours"


def test_kernel_and_spectrum_equal_those_of_the_model(visit, models):
    page = visit("images")
    script = """
        const now = explorer.current();
        const spectrum = explorer.spectrum2d(now.transformed, ...now.extent);
        return {kernel: [...now.kernel], spectrum: [...spectrum.values], size: [spectrum.rows, spectrum.columns],
                out: now.layer.outs[explorer.state.out], in: now.layer.ins[explorer.state.in]}"""
    shown = page.execute_script(script)
    kernel = models["images"].stem.kernel()[shown["out"], shown["in"]].detach().double().numpy()
    peak = np.abs(kernel).max()
    np.testing.assert_allclose(np.reshape(shown["kernel"], kernel.shape), kernel, atol=peak / 60_000)
    expected = np.abs(np.fft.fftshift(np.fft.fft2(kernel, shown["size"])))
    np.testing.assert_allclose(np.reshape(shown["spectrum"], shown["size"]), expected, atol=expected.max() * 1e-3)


def test_spectrum_of_a_1d_kernel_equals_that_of_the_model(visit, models):
    page = visit("series")
    script = """
        const now = explorer.current();
        return {spectrum: [...explorer.spectrum1d(now.transformed)],
                out: now.layer.outs[explorer.state.out], in: now.layer.ins[explorer.state.in]}"""
    shown = page.execute_script(script)
    kernel = models["series"].blocks[0].conv1.kernel()[shown["out"], shown["in"]].detach().double().numpy()
    expected = np.abs(np.fft.fftshift(np.fft.fft(kernel, len(shown["spectrum"]))))
    np.testing.assert_allclose(shown["spectrum"], expected, atol=expected.max() * 1e-3)


def test_shows_training_if_there_are_records(visit):
    assert find(visit("images"), "#training-section").is_displayed()
    assert "Best validation: 95.00 %" in find(visit("images"), "#training").text
    assert not find(visit("series"), "#training-section").is_displayed()


def test_caption_says_that_a_siren_has_no_frequency_bound(visit):
    assert "no formula for the highest frequency of a SIREN" in find(visit("siren"), "#spectrum-caption").text


def test_selects_planes_of_3d_kernels(visit):
    page = visit("volumes")
    before = picture(page, "kernel")
    find(page, "#plane").send_keys(keys.ARROW_DOWN)
    assert find(page, "#plane").get_attribute("selectedIndex") == "1"
    assert picture(page, "kernel") != before
