"""The HTML file: complete, self-contained, small, and safe for any names."""

from __future__ import annotations

import html.parser
import os
import subprocess
import sys
from importlib import resources

import pytest
import torch
from torch import nn

from flexconv import FlexConv1d, FlexConv2d, create_model
from flexconv.explorer import Network, write_page
from flexconv.explorer._accuracy import accuracy
from flexconv.explorer._history import history
from flexconv.explorer._opening import opening
from flexconv.explorer._page import SCRIPTS

from .reading import embedded, network

NASTY = '</script><script>document.title="gotcha"</script><!-- {{data}} & "'
RECORDS = [
    {"epoch": 1, "lr": 0.1, "train_loss": 2.0, "sizes": {"0": [3]}},
    {"epoch": 2, "lr": 0.1, "train_loss": float("nan"), "validation_accuracy": 0.5, "sizes": {"0": [5]}},
]


class Parts(html.parser.HTMLParser):
    """The tags and attributes of a page, and the text of its title."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.title = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "title" and not self.title:
            self.title = data


@pytest.mark.parametrize("sigma", [0.075, 2.0], ids=["fresh", "widest"])
def test_flexnet7_page_is_smaller_than_5_megabytes(tmp_path, sigma):
    torch.manual_seed(0)
    options = {"sigma": sigma}
    model = create_model("flexnet7", in_channels=3, num_classes=10, image_size=32, mask_options=options)
    write_page(model, tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 5e6
    assert len(network(tmp_path / "page.html")["layers"]) == 15


def test_escapes_names_and_titles(tmp_path):
    model = nn.ModuleDict({NASTY.replace(".", ""): FlexConv1d(1, 1, 5)})
    write_page(model, tmp_path / "page.html", title=NASTY, records=[{"epoch": 1, "train_loss": 1.0, NASTY: 1}])
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Parts(text)
    assert page.tags.count("script") == 2
    assert page.title == NASTY
    assert embedded(tmp_path / "page.html")["title"] == NASTY
    assert network(tmp_path / "page.html")["layers"][0]["name"] == NASTY.replace(".", "")


def test_loads_no_external_resources(tmp_path):
    write_page(FlexConv2d(1, 1, 5), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert [value for name, value in Parts(text).attributes if name in ("src", "href")] == ["data:,"]
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text.replace("url(#", "")


def test_title_defaults_to_the_class_name(tmp_path):
    write_page(FlexConv2d(1, 1, 5), tmp_path / "page.html")
    assert embedded(tmp_path / "page.html")["title"] == "FlexConv2d"
    write_page(FlexConv2d(1, 1, 5), tmp_path / "page.html", title="mine")
    assert embedded(tmp_path / "page.html")["title"] == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_rejects_paths_that_cannot_be_written(tmp_path):
    layer = FlexConv2d(1, 1, 5)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_page(layer, tmp_path / "nowhere" / "page.html")
    with pytest.raises(IsADirectoryError, match="folder"):
        write_page(layer, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe"):
        write_page(layer, pipe)
    assert pipe.is_fifo()


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_rejects_a_folder_without_write_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="writ"):
        write_page(FlexConv2d(1, 1, 5), tmp_path / "page.html")


def test_keeps_an_existing_page_if_writing_fails(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    write_page(FlexConv2d(1, 1, 5), page)
    before = page.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match=r"page\.html.*disk full$"):
        write_page(FlexConv2d(1, 1, 7), page)
    assert page.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_history_converts_records_to_series():
    assert history(RECORDS) == {
        "count": "epoch",
        "at": [1, 2],
        "metrics": {"loss": {"train": [2.0, None]}, "accuracy": {"validation": [None, 0.5]}},
        "sizes": {"0": [[3], [5]]},
    }
    assert history([{"epoch": 1, "train_loss": float("inf"), "lr": 0.1}])["metrics"] == {}
    assert history([]) is None
    assert history([{"train_loss": 1.0}]) is None


def test_accuracy_of_a_finished_run_comes_from_its_results():
    results = {"test_accuracy": 0.9861, "test_count": 360, "selected": "last", "epochs": 14}
    expected = {"value": 0.9861, "split": "test", "samples": 360, "epoch": 14, "chosen": "last"}
    assert accuracy(RECORDS, results) == expected
    best = {**results, "selected": "validation", "best": {"epoch": 9, "accuracy": 0.9}}
    assert accuracy([], best) == {**expected, "epoch": 9, "chosen": "validation"}


def test_accuracy_of_a_run_without_a_test_is_that_of_the_selected_epoch():
    results = {"selected": "validation", "best": {"epoch": 1, "accuracy": 0.7}, "epochs": 2}
    expected = {"value": 0.7, "split": "validation", "samples": None, "epoch": 1, "chosen": "validation"}
    assert accuracy(RECORDS, results) == expected
    assert accuracy(RECORDS, {"selected": "last", "epochs": 2})["epoch"] == 2


def test_accuracy_may_be_stated_in_words():
    assert accuracy(RECORDS, {"accuracy": "98.6 % of 360 test images"}) == {"text": "98.6 % of 360 test images"}


def test_accuracy_of_an_unfinished_run_comes_from_its_last_record():
    found = accuracy([*RECORDS, {"epoch": 3, "train_loss": 0.1}], None)
    assert found == {"value": 0.5, "split": "validation", "samples": None, "epoch": 2, "chosen": "so far"}


@pytest.mark.parametrize(
    "results", [None, {}, {"test_accuracy": None}, {"test_accuracy": float("nan")}, {"mean_mse": 1}]
)
def test_accuracy_is_none_if_unknown(results):
    assert accuracy(RECORDS[:1], results) is None


def numbers(history=None, **sizes):
    return {"layers": [{"name": name, "extent": size} for name, size in sizes.items()], "history": history}


def test_opens_on_the_layer_whose_size_changed_by_the_largest_factor():
    past = {"sizes": {"a": [[5, 5], None, [7, 7]], "b": [[9, 9], [3, 5], [4, 4]], "c": [[20, 20], [25, 25], [25, 25]]}}
    found = opening([numbers(past, a=[7, 7], b=[4, 4], c=[25, 25])])
    assert found["layer"] == "b"
    assert "shrank" in found["reason"]
    assert "from 9 × 9 to 4 × 4" in found["reason"]


@pytest.mark.parametrize("past", [None, {"sizes": {}}, {"sizes": {"a": [[5, 7]], "b": [[9, 9], [9, 9]]}}])
def test_opens_on_the_largest_layer_without_a_history(past):
    found = opening([numbers(past, a=[5, 7], b=[9, 9], c=[3, 11])])
    assert found["layer"] == "b"
    assert "largest kernel, 9 × 9" in found["reason"]


def test_opens_on_a_layer_that_both_networks_have():
    first = numbers(a=[5, 7], b=[9, 9], c=[3, 11])
    assert opening([first, numbers(a=[3, 3], c=[3, 3])])["layer"] == "a"
    assert opening([first, numbers(d=[3, 3])])["layer"] == "b"


def test_gives_no_reason_if_all_layers_have_the_same_size():
    assert opening([numbers(a=[5], b=[5])]) == {"layer": "a", "reason": ""}


def test_page_of_two_models(tmp_path):
    first, second = FlexConv2d(1, 1, 5), FlexConv1d(1, 1, 9)
    write_page(first, tmp_path / "page.html", title="one", compare_with=second)
    assert embedded(tmp_path / "page.html")["title"] == "one and FlexConv1d"
    write_page(first, tmp_path / "page.html", compare_with=Network(second, "other", RECORDS, {"test_accuracy": 0.5}))
    one, other = embedded(tmp_path / "page.html")["networks"]
    assert (one["title"], other["title"]) == ("FlexConv2d", "other")
    assert (one["accuracy"], other["accuracy"]["value"]) == (None, 0.5)
    assert other["history"]["at"] == [1, 2]


def test_page_includes_every_script_of_the_package():
    names = {path.name for path in resources.files("flexconv.explorer").iterdir() if path.name.endswith(".js")}
    assert names == {*SCRIPTS}


def test_works_without_matplotlib(tmp_path):
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from flexconv import FlexConv1d; from flexconv.explorer import write_page\n"
        "write_page(FlexConv1d(1, 1, 5), 'page.html')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=120)
    assert network(tmp_path / "page.html")["layers"][0]["generator"] == "MAGNet"
