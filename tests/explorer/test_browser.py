"""The page in a headless browser: what it draws, its controls, and that it sends no requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from flexconv import FlexConv2d, FlexConv3d, GaussianMask, at_resolution, create_model
from flexconv.explorer import Network, write_page
from flexconv.spectrum import energy_beyond_nyquist, folded_energy

from .reading import find, keys, needs_browser, table

NASTY = "</script><img src=x onerror=alert(1)>"

pytestmark = needs_browser


def records(model, count=20):
    names = [name for name, module in model.named_modules() if isinstance(module, FlexConv2d)]
    sizes = [{name: [3 + step // 4, 5] for name in names} for step in range(count)]
    return [
        {
            "epoch": n + 1,
            "train_loss": 2 / (n + 1),
            "validation_accuracy": n / count,
            "validation_top5_accuracy": 0.99,
            "sizes": size,
        }
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
        "larger": create_model(
            "flexnet5", in_channels=3, num_classes=4, image_size=12, widths=[4, 4, 4], mask_options={"sigma": 0.5}
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
    results = {"test_accuracy": 0.875, "test_count": 1200, "selected": "validation", "best": {"epoch": 7}}
    other = Network(models["larger"], title="larger", results=results, records=records(models["larger"], 12))
    write_page(
        models["images"], folder / "two.html", title="small", records=records(models["images"]), compare_with=other
    )
    write_page(models["series"], folder / "mixed.html", compare_with=models["images"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexconv.summary.MUCH_FOLDED_ENERGY", -1.0)
        write_page(models["siren"], folder / "aliased.html")
    return folder


def picture(browser, name):
    """The pixels of a canvas, as a data URL."""
    return browser.execute_script("return document.getElementById(arguments[0]).toDataURL()", f"{name}-canvas")


def pictures(browser):
    return [picture(browser, name) for name in ("kernel", "spectrum", "pairs")]


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
    find(page, "#out").send_keys(
        keys.ARROW_UP if page.execute_script("return explorer.state.pairs[0][0]") else keys.ARROW_DOWN
    )
    by_list = pictures(page)
    assert all(a != b for a, b in zip(start, by_list, strict=True))
    chosen = page.execute_script("return explorer.state.pairs[0]")
    matrix = find(page, "#pairs-canvas")
    key, step = (keys.ARROW_LEFT, -1) if chosen[1] else (keys.ARROW_RIGHT, 1)
    matrix.send_keys(key)
    assert page.execute_script("return explorer.state.pairs[0]") == [chosen[0], chosen[1] + step]
    assert picture(page, "kernel") != by_list[0]
    click = "const r = arguments[0].getBoundingClientRect();"
    click += "const at = {clientX: r.left + 20, clientY: r.top + 20, bubbles: true};"
    page.execute_script(click + "arguments[0].dispatchEvent(new PointerEvent('pointerdown', at))", matrix)
    assert page.execute_script("return explorer.state.pairs[0]") == [0, 0]
    assert find(page, "#in").get_attribute("selectedIndex") == "0"


def test_keyboard_selects_layers_and_focus_is_visible(visit):
    page = visit("images")
    body = find(page, "body")
    body.send_keys(keys.TAB, keys.TAB)  # the button for the theme, then the list of layers
    assert page.execute_script("return document.activeElement.name") == "layer"
    page.switch_to.active_element.send_keys(keys.ARROW_DOWN)
    names = [find(page, "#layer-name").text]
    before = pictures(page)
    page.switch_to.active_element.send_keys(keys.ARROW_UP)
    names.append(find(page, "#layer-name").text)
    assert names == ["blocks.0.conv1", "stem"]
    assert picture(page, "kernel") != before[0]
    label = page.execute_script("return getComputedStyle(document.activeElement.closest('label')).outlineStyle")
    assert label == "solid"
    reached = []
    for _ in range(12):
        page.switch_to.active_element.send_keys(keys.TAB)
        reached.append(page.execute_script("return document.activeElement.id"))
        assert page.execute_script("return getComputedStyle(document.activeElement).outlineStyle") != "none"
        if reached[-1] == "pairs-canvas":
            break
    assert [name for name in reached if name] == ["resolution", "whole", "out", "in", "pairs-canvas"]
    unnamed = """return [...document.querySelectorAll("input, select, button, canvas[tabindex], [role=img]")].filter(
        (e) => !e.getAttribute("aria-label") && !e.labels?.length && !e.textContent.trim()).map((e) => e.id)"""
    assert page.execute_script(unnamed) == []


def test_zooming_out_shows_the_whole_grid(visit):
    page = visit("images")
    before = find(page, "#kernel svg").get_attribute("outerHTML")
    find(page, "#whole").click()
    assert find(page, "#kernel svg").get_attribute("outerHTML") != before


@pytest.mark.parametrize("name", ["images", "series", "volumes", "two", "mixed"])
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
    assert find(dark, "#theme").text == "Dark colors"


def test_kernel_and_spectrum_equal_those_of_the_model(visit, models):
    page = visit("images")
    script = """
        const now = explorer.current();
        const spectrum = explorer.spectrum2d(now.transformed, ...now.extent);
        return {kernel: [...now.kernel], spectrum: [...spectrum.values], size: [spectrum.rows, spectrum.columns],
                out: now.layer.outs[now.out], in: now.layer.ins[now.in]}"""
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
                out: now.layer.outs[now.out], in: now.layer.ins[now.in]}"""
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


# --- address ----------------------------------------------------------------------------------------------------------


def shown_state(page):
    return page.execute_script("return [explorer.state, document.querySelector('#layers :checked').value]")


def test_address_reopens_the_same_view(visit):
    page = visit("images")
    assert "#" not in page.current_url
    page.find_elements("css selector", "#layers label")[1].click()
    find(page, "#resolution").send_keys(keys.ARROW_RIGHT)
    find(page, "#pairs-canvas").send_keys(keys.ARROW_LEFT, keys.ARROW_LEFT, keys.ARROW_UP, keys.ARROW_RIGHT)
    find(page, "#whole").click()
    find(page, "#theme").click()
    address, state, shown = page.current_url.partition("#")[2], shown_state(page), pictures(page)
    assert "layer=blocks.0.conv1" in address
    assert "scale=1.25" in address
    assert "theme=dark" in address
    again = visit("images", address=f"#{address}")
    assert shown_state(again) == state
    assert pictures(again) == shown
    assert find(again, "#whole").is_selected()


def test_back_button_returns_to_the_previous_layer(visit):
    page = visit("images")
    first = find(page, "#layer-name").text
    page.find_elements("css selector", "#layers label")[1].click()
    page.find_elements("css selector", "#layers label")[2].click()
    find(page, "#resolution").send_keys(keys.ARROW_RIGHT)
    names = [find(page, "#layer-name").text]
    for _ in range(2):
        page.back()
        names.append(find(page, "#layer-name").text)
    assert names == ["blocks.0.conv2", "blocks.0.conv1", first]
    assert shown_state(page)[0]["version"] == 2
    page.forward()
    assert find(page, "#layer-name").text == "blocks.0.conv1"


@pytest.mark.parametrize("address", ["#layer=nowhere&channels=99,x&scale=7&plane=9&theme=pink", "#%%%", "#channels="])
def test_ignores_unknown_values_in_the_address(visit, address):
    plain = shown_state(visit("images"))
    assert shown_state(visit("images", address=address)) == plain


def test_list_of_layers_shows_the_selected_one_without_scrolling_the_page(visit):
    page = visit("two", width=400, address="#layer=blocks.2.conv2")
    inside = """
        const list = document.querySelector("#layers ol").getBoundingClientRect();
        const item = document.querySelector("#layers :checked").closest("li").getBoundingClientRect();
        return [item.top >= list.top - 1 && item.bottom <= list.bottom + 1, scrollY]"""
    assert page.execute_script(inside) == [True, 0]


# --- heading and opening layer ----------------------------------------------------------------------------------------


def test_captions_of_metrics_are_words(visit):
    text = find(visit("images"), "#training").text
    assert "Accuracy during training" in text
    assert "Top-5 accuracy during training" in text


def test_heading_states_the_accuracy(visit):
    assert "95.00 % validation accuracy, after epoch 20" in find(visit("images"), "#networks").text
    assert "%" not in find(visit("series"), "#networks").text


def test_opens_on_the_layer_that_changed_most(visit, models):
    page = visit("images")
    assert find(page, "#layer-name").text == "stem"  # all layers changed alike, so the first one
    assert "from 3 × 5 to 7 × 5 taps" in find(page, "#reason").text
    page.find_elements("css selector", "#layers label")[1].click()
    assert find(page, "#reason").text == ""


# --- energy beyond the Nyquist frequency ------------------------------------------------------------------------------


def test_marks_only_layers_that_depend_on_the_resolution(visit, models):
    page = visit("images")
    assert not page.find_elements("css selector", ".aliased, .beyond")
    assert "No layer depends on the resolution" in find(page, "#depth").text
    page = visit("aliased")
    assert find(page, "#layers .aliased").text == "aliased"
    assert "costs accuracy" in find(page, "#numbers .beyond").text
    assert "1 layer depends on the resolution" in find(page, "#depth").text


def test_saves_the_energy_beyond_nyquist(visit, download, models):
    visit("images")
    header, rows = table(download("#chart-energy", "csv"))
    assert header[:4] == ["layer", "name", "beyond Nyquist", "beyond 1.5 × Nyquist"]
    assert float(rows[0][2]) == pytest.approx(energy_beyond_nyquist(models["images"].stem), rel=1e-5)
    assert float(rows[0][3]) == pytest.approx(folded_energy(models["images"].stem), rel=1e-5)


# --- two networks -----------------------------------------------------------------------------------------------------


def test_two_networks_are_shown_side_by_side(visit, models):
    page = visit("two")
    heading = find(page, "#networks").text
    assert "A small" in heading
    assert "B larger" in heading
    assert "87.50 % of 1,200 test samples, at the epoch with the best validation accuracy (7)" in heading
    left, right = (find(page, selector) for selector in ("#kernel", "#kernel-B"))
    assert abs(left.rect["y"] - right.rect["y"]) < 2
    assert left.rect["x"] + left.rect["width"] < right.rect["x"]
    shown = page.execute_script("return [0, 1].map((index) => [...explorer.current(index).version.extent])")
    assert shown == [list(models["images"].stem.extent), list(models["larger"].stem.extent)]
    names = [label.get_attribute("title") for label in page.find_elements("css selector", "#layers .name")]
    assert names == [name for name, module in models["larger"].named_modules() if isinstance(module, FlexConv2d)]


def test_says_which_network_has_no_such_layer(visit):
    page = visit("two", address="#layer=blocks.2.conv1")
    assert "has no layer of this name" in find(page, "#kind").text
    assert not find(page, "#kernel").is_displayed()
    assert find(page, "#kernel-B").is_displayed()


def test_channels_of_two_networks_are_selected_separately(visit):
    page = visit("two", address="#channelsA=1,1&channelsB=2,2")
    assert page.execute_script("return explorer.state.pairs") == [[1, 1], [2, 2]]
    before = picture(page, "kernel")
    find(page, "#pairs-canvas-B").send_keys(keys.ARROW_UP)
    assert page.execute_script("return explorer.state.pairs") == [[1, 1], [1, 2]]
    assert picture(page, "kernel") == before


def test_curves_of_two_trainings_share_a_chart(visit):
    text = find(visit("two"), "#training").text
    assert "A validation" in text
    assert "B validation" in text


# --- receptive field --------------------------------------------------------------------------------------------------


def test_shows_the_receptive_field(visit, models):
    page = visit("images")
    field = page.execute_script("return explorer.data.networks[0].field")
    caption = find(page, "#field figcaption").text
    assert f"half of it is within {field['radius']['half']:.3g} pixels" in caption
    whole = [sum(reach) + 1 for reach in field["reach"]]
    assert f"theoretical, by the kernel sizes: {whole[0]:.0f} × {whole[1]:.0f} pixels" in caption
    assert "16 inputs of noise" in caption
    assert not find(visit("siren"), "#field-section").is_displayed()


def test_saves_the_receptive_field(visit, download, models):
    visit("series")
    header, rows = table(download("#chart-field", "csv"))
    assert header == ["position", "value"]
    assert [float(row[0]) for row in rows] == list(range(-59, 1))


# --- downloads --------------------------------------------------------------------------------------------------------


def test_saves_the_kernel_as_csv(visit, download, models):
    visit("two", address="#channelsA=1,2")
    saved = download("#kernel", "csv")
    assert saved.name == "small-stem-kernel.csv"
    header, rows = table(saved)
    assert header == ["height", "width", "value"]
    stem = models["images"].stem
    kernel = stem.kernel()[1, 2].detach().double().numpy()
    values = np.array([[float(cell) for cell in row] for row in rows])
    np.testing.assert_allclose(values[:, 2].reshape(kernel.shape), kernel, atol=np.abs(kernel).max() / 60_000)
    first = [
        (axis.first + start * axis.spacing - axis.current) / axis.spacing
        for axis, (start, _) in zip(stem.axes, stem.taps, strict=True)
    ]
    assert values[0, :2] == pytest.approx(first)


def test_saves_spectra_and_channel_pairs_as_csv(visit, download, models):
    visit("series")
    header, rows = table(download("#spectrum", "csv"))
    assert header == ["frequency_position", "amplitude"]
    assert float(rows[0][0]) == -1
    header, rows = table(download("#pairs", "csv"))
    assert header == ["output_channel", "input_channel", "position", "value"]
    layer = models["series"].blocks[0].conv1
    assert len(rows) == layer.out_channels * layer.in_channels * layer.extent[0]


def test_saves_charts_as_csv(visit, download):
    visit("two")
    header, rows = table(download("#chart-sizes", "csv"))
    assert header == ["layer", "name", "A height", "A width", "B height", "B width"]
    assert rows[0][:2] == ["1", "stem"]
    assert rows[-1][2:4] == ["", ""]  # the first network has fewer layers
    header, rows = table(download("#chart-metric-loss-by-epoch", "csv"))
    assert header == ["epoch", "A train", "B train"]
    assert rows[1] == ["2", "1", "1"]
    assert rows[15] == ["16", "0.125", ""]


def test_saves_the_table_of_layers(visit, download, models):
    visit("images")
    header, rows = table(download("#table table", "csv"))
    assert header[0] == "name"
    assert [row[0] for row in rows] == ["stem", *(f"blocks.{block}.conv{n}" for block in (0, 1) for n in (1, 2))]
    assert rows[0][header.index("parameters")] == str(sum(p.numel() for p in models["images"].stem.parameters()))


@pytest.mark.parametrize("selector", ["#kernel", "#spectrum", "#pairs", "#chart-sizes", "#chart-metric-loss-by-epoch"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_saves_figures_as_png(visit, download, selector, scheme):
    image = pytest.importorskip("PIL.Image")
    page = visit("images", scheme=scheme)
    width = page.execute_script(
        "return arguments[0].closest('figure').getBoundingClientRect().width", find(page, selector)
    )
    picture = image.open(download(selector, "png")).convert("RGB")
    assert picture.width == pytest.approx(2 * (width + 24), abs=2)
    colours = {colour for _, colour in picture.getcolors(1 << 24)}
    assert len(colours) > 20
    corner = sum(picture.getpixel((2, 2)))
    assert (corner > 600) == (scheme == "light")


def test_every_figure_can_be_saved(visit):
    page = visit("two")
    figures = "return [...document.querySelectorAll('figure')].map((f) => f.querySelectorAll('.download').length)"
    assert set(page.execute_script(figures)) == {2}
    labels = page.execute_script("return [...document.querySelectorAll('.download')].map((b) => b.ariaLabel)")
    assert "Save kernel as PNG" in labels
    assert "Save all channel pairs as CSV" in labels
