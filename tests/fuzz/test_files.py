"""Any file and any name gives a correct result or a `FlexConvError` in one line: no other exception, no hang, no crash.

`make fuzz MINUTES=10` runs these tests with many more examples. Hypothesis prints the smallest failing one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import pickle
import re
import struct
import wave
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flexconv import cli, create_model, data, from_pretrained, save_pretrained
from flexconv.data._pickles import load_arrays
from flexconv.errors import FlexConvError
from flexconv.explorer import write_page
from flexconv.export import export, load_conv
from flexconv.models import Inputs, Model
from flexconv.train import load_recipe
from tests.fuzz.helpers import EXAMPLES, folder, fuzz

Image = pytest.importorskip("PIL.Image")

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# warnings of Pillow and numpy about damaged files are not of interest
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(max(300, EXAMPLES))]


def attempt(work: Callable[[], Any]) -> Any:
    """The result of `work()`, or None if it raises a `FlexConvError` in one line."""
    try:
        return work()
    except FlexConvError as error:
        message = str(error)
    assert message.strip()
    assert "\n" not in message.strip()
    return None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**6, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: Any, content: bytes) -> bytes:
    """`content` with some bytes changed, and perhaps cut or extended."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, len(changed) - 1))
        piece = draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\x7f" + b"\xff" * 3])
        )
        changed[start : start + len(piece)] = piece
    end = draw(st.none() | st.integers(0, len(changed)))
    return bytes(changed[:end]) + draw(st.binary(max_size=16))


# --- networks ---------------------------------------------------------------------------------------------------------


def network(*classes: str) -> Model:
    """A small network."""
    torch.manual_seed(0)
    model = create_model(
        "flexnet3", in_channels=1, num_classes=2, image_size=5, widths=[2], generator_options={"hidden": 2}
    )
    model.inputs = Inputs(size=(5, 5), scale=1 / 255, mean=(0.1,), std=(0.3,), classes=classes or ("a", "b"))
    return model.eval()


def saved_network() -> tuple[dict[str, Any], bytes]:
    """The entries of config.json, and the weights of a small network."""
    with folder() as place:
        save_pretrained(network(), place)
        entries = json.loads((place / "config.json").read_text())
        return entries, (place / entries["weights"]).read_bytes()


ENTRIES, WEIGHTS = saved_network()


def exported_network() -> bytes:
    """A file of plain convolutions."""
    with folder() as place:
        export(network(), place / "a.safetensors")
        return (place / "a.safetensors").read_bytes()


CONVOLUTIONS = exported_network()


def paths(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [above, *(path for key, value in children for path in paths(value, (*above, key)))]


@st.composite
def damaged_entries(draw: Any, entries: Any = ENTRIES) -> Any:
    """The entries of config.json, or others, with one or two values replaced or removed."""
    entries = json.loads(json.dumps(entries))
    for _ in range(draw(st.integers(1, 2))):
        *outer, last = draw(st.sampled_from(paths(entries)[1:]))
        inner = entries
        for key in outer:
            inner = inner[key]
        if draw(st.integers(0, 4)):
            inner[last] = draw(json_values)
        else:
            del inner[last]
    return entries


def load_network(config: bytes, weights: bytes) -> None:
    with folder() as place:
        (place / "config.json").write_bytes(config)
        (place / ENTRIES["weights"]).write_bytes(weights)
        model = attempt(lambda: from_pretrained(place))
    if model is not None:
        assert all(value.isfinite().all() for value in model.state_dict().values() if value.is_floating_point())
        assert model.inputs is None or len(model.inputs.classes) == model.num_classes


@fuzz(300, damaged_entries())
def test_config(entries):
    load_network(json.dumps(entries).encode(), WEIGHTS)


@fuzz(150, damaged(json.dumps(ENTRIES).encode()))
def test_config_with_damaged_bytes(content):
    load_network(content, WEIGHTS)


@fuzz(200, damaged(WEIGHTS))
def test_safetensors(content):
    load_network(json.dumps(ENTRIES | {"sha256": hashlib.sha256(content).hexdigest()}).encode(), content)


def load_convolutions(content: bytes) -> None:
    with folder() as place:
        (place / "a.safetensors").write_bytes(content)
        model = attempt(lambda: load_conv(place / "a.safetensors"))
    if model is not None:
        assert all(value.isfinite().all() for value in model.state_dict().values() if value.is_floating_point())


def header_and_rest(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The two parts of a safetensors file."""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


HEADER, REST = header_and_rest(CONVOLUTIONS)


@fuzz(
    200,
    st.sampled_from(["flexconv.conv", "flexconv.inputs"]).flatmap(
        lambda key: st.tuples(st.just(key), damaged_entries(json.loads(HEADER["__metadata__"][key])).map(json.dumps))
    )
    | st.tuples(st.sampled_from(sorted(HEADER["__metadata__"])), st.text(max_size=8)),
)
def test_convolutions(entry):
    key, text = entry
    header = json.dumps(HEADER | {"__metadata__": HEADER["__metadata__"] | {key: text}}).encode()
    load_convolutions(struct.pack("<Q", len(header)) + header + REST)


@fuzz(150, damaged(CONVOLUTIONS))
def test_convolutions_with_damaged_bytes(content):
    load_convolutions(content)


# --- data -------------------------------------------------------------------------------------------------------------


def load_data(name: str, content: bytes, **options: Any) -> None:
    with folder() as place:
        (place / name).write_bytes(content)
        splits = attempt(lambda: data.load(data.dataset_for(place / name), path=place / name, **options))
    if splits is not None:
        for part in (splits.train, splits.test):
            assert 0 <= int(part.labels.min()) <= int(part.labels.max()) < splits.num_classes


def npz(**named: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **named)
    return file.getvalue()


any_array = arrays.arrays(
    arrays.scalar_dtypes() | arrays.unicode_string_dtypes(max_len=3) | arrays.byte_string_dtypes(max_len=3),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=8),
)
labels = arrays.arrays(
    arrays.integer_dtypes(endianness="=") | arrays.unsigned_integer_dtypes(endianness="="), 12, elements=None
) | st.lists(st.integers(0, 2), min_size=12, max_size=12).map(np.array)
samples = st.sampled_from(["u1", "<i2", "<f2", "<f4", "<f8", "<i8", ">f4"]).map(
    lambda kind: np.ones((12, 1, 4, 4), kind)
)


@fuzz(
    300,
    st.fixed_dictionaries(
        {"inputs": samples | any_array, "labels": labels | any_array},
        optional={"lengths": any_array, "class_names": any_array, "other": any_array},
    ),
)
def test_npz(named):
    load_data("own.npz", npz(**named))


@fuzz(150, damaged(npz(inputs=np.ones((12, 1, 4, 4), "f4"), labels=np.arange(12) % 2)))
def test_npz_with_damaged_bytes(content):
    load_data("own.npz", content)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones((3, 1, 4, 4), "f4"))
    return file.getvalue()


@fuzz(200, damaged(npy()))
def test_npy_with_damaged_bytes(content):
    with folder() as place:
        (place / "a.npy").write_bytes(content)
        read = attempt(lambda: data.read_unlabelled(place / "a.npy", channels=1, size=(4, 4)))
    assert read is None or read.inputs.shape[1] == 1


@fuzz(
    200,
    st.integers(2, 5).flatmap(
        lambda protocol: damaged(
            pickle.dumps({"data": np.ones((4, 12), np.uint8), "labels": [1, 2, 3, np.int64(4)], "name": "a"}, protocol)
        )
    ),
)
def test_pickles(content):
    with folder() as place:
        (place / "batch").write_bytes(content)
        read = attempt(lambda: load_arrays(place / "batch"))
    for value in (read or {}).values():
        assert not isinstance(value, np.ndarray) or value.dtype.kind in "biuf"


cells = st.sampled_from(["1", "2.5", "-3", "1e400", "nan", "", "a", '"b', "1,5", "\x1b[2J", "\x00"]) | st.text(
    max_size=4
)


@fuzz(
    300,
    st.lists(st.lists(cells, min_size=1, max_size=5), max_size=12),
    st.sampled_from([",", ";", "\t", " "]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["utf-8", "utf-16", "latin1"]),
)
def test_csv(rows, comma, newline, encoding):
    load_data("own.csv", newline.join(comma.join(row) for row in rows).encode(encoding, "replace"))


@fuzz(150, damaged(b"label,x0,x1,x2\n" + b"a,1,2,3\nb,4,5,6\n" * 6))
def test_csv_with_damaged_bytes(content):
    load_data("own.csv", content, label="label")


def recording() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(np.arange(-20, 20, dtype="<i2").tobytes())
    return file.getvalue() + b"LIST" + struct.pack("<I", 2) + b"ab"


@fuzz(200, damaged(recording()))
def test_wav(content):
    with folder() as place:
        (place / "a.wav").write_bytes(content)
        read = attempt(lambda: data.read_unlabelled(place / "a.wav", channels=1, size=(40,)))
    assert read is None or (read.inputs.shape[:2] == (1, 1) and read.rate is not None)


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(6, 8)).save(file, kind)
    return file.getvalue()


@fuzz(
    300,
    st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "TGA"]).flatmap(lambda kind: damaged(picture(kind))),
)
def test_images(content):
    with folder() as place:
        (place / "a.png").write_bytes(content)
        image = attempt(lambda: data.read_image(place / "a.png"))
    assert image is None or (image.dtype == torch.uint8 and image.shape[0] == 3)


# --- recipes and the command ------------------------------------------------------------------------------------------

RECIPE = """base: digits
about: &text some words
model: {name: flexnet3, widths: [3, 4], generator_options: &g {hidden: 4}}
data: {name: digits, validation: 0.2}
optim: {lr: 0.01, name: adam}
epochs: 2
variants: {a: {epochs: 3, about: *text}}
"""
scalars = st.sampled_from(
    ["*g", "1e999", ".nan", "~", "[]", "{}", "2001-13-45", "0x" + "f" * 200, "!!python/name:os.system ''"]
)


@fuzz(300, damaged(RECIPE.encode()), st.booleans())
def test_recipe_file(content, variant):
    with folder() as place:
        (place / "mine.yaml").write_bytes(content)
        attempt(lambda: load_recipe(f"{place}/mine.yaml{'/a' if variant else ''}"))


@fuzz(
    300,
    st.sampled_from(
        ["optim.lr", "data.options", "model.widths", "seed", "epochs", "data.path", "about", "alias", "model"]
    )
    | st.text(max_size=8),
    scalars | st.text(max_size=8) | json_values.map(json.dumps),
)
def test_override(key, value):
    attempt(lambda: load_recipe("digits", [f"{key}={value}"]))


names = st.text(max_size=12) | st.sampled_from(
    ["\x1b]0;title\x07", "a\x9b31mb", "x\r\ny", "\udcff", "[/b]", "\u202ecod"]
)


@fuzz(
    60,
    st.sampled_from([("train",), ("eval",), ("data", "show"), ("recipes",), ("train", "--resume"), ("inspect",)]),
    names,
)
def test_names_on_the_command_line(command, name):
    out, err = io.StringIO(), io.StringIO()
    with folder() as place, contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run([*command, "--", name])
    assert code in (0, 1, 2)
    assert "Traceback" not in err.getvalue()
    assert not CONTROL.search(out.getvalue() + err.getvalue())
    (out.getvalue() + err.getvalue()).encode()  # no bytes that are not UTF-8


hostile = ["\x1b]0;title\x07", "</script><b>", "{{data}}", "<!--", "\u2028", "\x00", "'\"", "\udcff"]
class_names = st.lists(st.text(max_size=8) | st.sampled_from(hostile), min_size=2, max_size=2)


def with_names(names: list[str]) -> Model | None:
    """A network with these classes; None if they are refused."""
    return attempt(lambda: network(*names))


class Tags(HTMLParser):
    """The tags of a page, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Any]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@fuzz(10, class_names, st.text(max_size=8) | st.sampled_from(hostile), cost=20)
def test_names_in_pages(names, title):
    """No name can end the script that contains it, or become a part of the page."""
    if (model := with_names(names)) is None:
        return
    with folder() as place:
        write_page(network(), place / "plain.html")
        if attempt(lambda: write_page(model, place / "a.html", title=title) or True):
            plain, named = (Tags((place / name).read_text("utf-8")) for name in ("plain.html", "a.html"))
            assert named.tags == plain.tags
            texts = [json.loads(text) for text in named.texts if text.startswith('{"title"')]
            assert len(texts) == 1
            assert all(f'"{name}"' in json.dumps(texts[0], ensure_ascii=False) or not name.isalnum() for name in names)


@fuzz(2, class_names, cost=100)
def test_names_in_onnx_files(names):
    onnx = pytest.importorskip("onnx")
    if (model := with_names(names)) is None:
        return
    with folder() as place:
        export(model, place / "a\x1b[2J.onnx")
        entries = {each.key: each.value for each in onnx.load(place / "a\x1b[2J.onnx").metadata_props}
    assert json.loads(entries["classes"]) == names


@fuzz(15, class_names, names, cost=4)
def test_names_of_classes_on_the_terminal(classes, file):
    if (model := with_names(classes)) is None:
        return
    file = file.replace("/", "").replace("\x00", "")[:40] + ".png"
    out, err = io.StringIO(), io.StringIO()
    with folder() as place, contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        save_pretrained(model, "network")
        Path(file).write_bytes(picture("PNG"))
        code = cli.run(["predict", "network", "--", file])
    assert code in (0, 1, 2)
    assert not CONTROL.search(out.getvalue() + err.getvalue())
    assert "Traceback" not in err.getvalue()
