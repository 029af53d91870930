"""The user's own tables: CSV, TSV and Parquet, wide and long."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import torch

from flexconv import cli, create_model, data, from_pretrained, save_pretrained, train
from flexconv.data import _plain_numbers
from flexconv.errors import MissingPackageError


@pytest.fixture
def write(tmp_path):
    def write(name, text, encoding="utf-8"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode(encoding) if isinstance(text, str) else text)
        return tmp_path / name

    return write


def wide(count=10, values=3, *, delimiter=",", classes=("cat", "dog"), header=True):
    """A table with one row per sample; value v of sample i is i + v / 10."""
    lines = [delimiter.join(["kind", *(f"v{v}" for v in range(values))])] if header else []
    for i in range(count):
        lines.append(delimiter.join([classes[i % len(classes)], *(f"{i + v / 10:.1f}" for v in range(values))]))
    return "\n".join(lines) + "\n"


LONG = """id,time,kind,x,y
a,1,cat,1.5,10
a,0,cat,0.5,20
b,0,dog,3,30
b,1,dog,4,40
b,2,dog,5,50
c,0,cat,6,60
d,0,dog,7,70
d,1,dog,8,80
"""


# --- what is understood -----------------------------------------------------------------------------------------------


def test_wide_table_with_string_labels(write):
    own = data.load("table", path=write("own.csv", wide()))
    assert own.class_names == ("cat", "dog")
    assert own.model_arguments == {"in_channels": 1, "num_classes": 2, "length": 3}
    assert (len(own.train), len(own.test)) == (8, 2)
    for split in (own.train, own.test):
        for values, label in zip(split.inputs, split.labels, strict=True):
            assert label == int(values[0, 0]) % 2
            torch.testing.assert_close(values[0], values[0, 0] + torch.tensor([0, 0.1, 0.2]))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|", " "])
@pytest.mark.parametrize("header", [True, False])
def test_delimiter_and_header_are_found(write, delimiter, header):
    path = write("own.txt", wide(delimiter=delimiter, header=header))
    table = data.read_table(path)
    assert table.labels == ("cat", "dog") * 5
    assert table.inputs.shape == (10, 1, 3)
    assert table.inputs[4, 0].tolist() == pytest.approx([4.0, 4.1, 4.2])


@pytest.mark.parametrize("label", [0, "0", -4])
def test_integer_labels_without_header(write, label):
    """As in the UCR archive: the first column is the label, and labels are −1 and 1 or start at 1."""
    path = write("Own_TRAIN.tsv", wide(delimiter="\t", classes=("1.0000000e+00", "-1"), header=False))
    write("Own_TEST.tsv", wide(4, delimiter="\t", classes=("-1", "1"), header=False))
    own = data.load("table", path=path, label=label)
    assert own.class_names == ("-1", "1")
    assert (len(own.train), own.test.labels.tolist()) == (10, [0, 1, 0, 1])


def test_integer_class_names_are_sorted_as_numbers(write):
    own = data.load("table", path=write("own.csv", wide(40, classes=("10", "9", "1"))), label="kind")
    assert own.class_names == ("1", "9", "10")


def test_numbers_as_column_names_are_a_header(write):
    table = data.read_table(write("own.csv", "label,0,1,2\ncat,3,4,5\ndog,6,7,8\n"))
    assert (table.labels, table.inputs.tolist()) == (("cat", "dog"), [[[3, 4, 5]], [[6, 7, 8]]])
    assert len(data.read_table(write("own.csv", "cat,0,1,2\ndog,3,4,5\n"), header=False).inputs) == 2


def test_row_numbers_of_pandas_and_r_are_ignored(write):
    assert data.read_table(write("own.csv", ",a,b,label\n0,1,2,x\n1,3,4,y\n")).inputs.tolist() == [[[1, 2]], [[3, 4]]]
    table = data.read_table(write("own.csv", '"","a","b","label"\n"1",1,2,"x, y"\n"2",3,4,"z"\n'))
    assert (table.inputs.tolist(), table.labels) == ([[[1, 2]], [[3, 4]]], ("x, y", "z"))


@pytest.mark.parametrize("text", ["\ufeff{}", "{}\n\n  \n"])
def test_byte_order_mark_and_empty_lines_at_the_end_are_ignored(write, text):
    assert len(data.read_table(write("own.csv", text.format(wide()))).inputs) == 10


def test_windows_line_ends_exponents_and_spaces(write):
    table = data.read_table(write("own.csv", "kind, a, b\r\n cat ,1e-3, -2.5E+1\r\ndog, +3, .5\r\n"))
    assert table.labels == ("cat", "dog")
    torch.testing.assert_close(table.inputs, torch.tensor([[[1e-3, -25.0]], [[3.0, 0.5]]]))


def test_quoted_fields_may_contain_line_breaks(write):
    text = 'kind,"in\nvolts",b\n"cat\nand dog",1,2\ncatand dog,3,4\n"cat\nand dog",5,6\n'
    table = data.read_table(write("own.csv", text))
    assert table.labels == ("cat\nand dog", "catand dog", "cat\nand dog")
    assert table.inputs.tolist() == [[[1, 2]], [[3, 4]], [[5, 6]]]
    with pytest.raises(data.DamagedDataError, match=r"line 8, column 'b': 'seven'"):
        data.read_table(write("own.csv", text + "cat,7,seven\n"))


def test_compressed_table(write):
    assert len(data.read_table(write("own.csv.gz", gzip.compress(wide().encode()))).inputs) == 10
    with pytest.raises(data.DamagedDataError, match=r"own\.csv\.gz: cannot be decompressed"):
        data.read_table(write("own.csv.gz", gzip.compress(wide().encode())[:40]))


def test_flattened_images(write):
    rows = np.random.default_rng(0).integers(0, 256, (10, 12))
    text = "".join(f"{i % 2}," + ",".join(map(str, row)) + "\n" for i, row in enumerate(rows))
    path = write("own.csv", text)
    own = data.load("table", path=path, label=0, shape=[3, 4])
    assert own.model_arguments == {"in_channels": 1, "num_classes": 2, "image_size": (3, 4)}
    assert (own.train.inputs.dtype, own.train.scale) == (torch.uint8, 1 / 255)
    expected = {"HW": (1, 3, 4), "CL": (3, 4), "LC": (4, 3)}
    for layout, shape in expected.items():
        assert data.load("table", path=path, label=0, shape=[3, 4], layout=layout).train.sample_shape == shape
    color = data.read_table(path, label=0, shape=[2, 2, 3], layout="HWC").inputs
    assert torch.equal(color, torch.from_numpy(rows.reshape(10, 2, 2, 3)).permute(0, 3, 1, 2).to(torch.uint8))
    assert data.read_table(path, label=0, shape=[12]).inputs.dtype == torch.float32


def test_pixels_on_0_to_1_stay_floats(write):
    text = "".join(f"{i % 2},0,1,1,0\n" for i in range(10))
    own = data.load("table", path=write("own.csv", text), label=0, shape=[2, 2])
    assert (own.train.inputs.dtype, own.train.scale) == (torch.float32, 1.0)


def test_long_table_with_different_lengths(write):
    table = data.read_table(write("own.csv", LONG), id="id", time="time")
    assert table.names == ("a", "b", "c", "d")
    assert table.labels == ("cat", "dog", "cat", "dog")
    assert table.lengths.tolist() == [2, 3, 1, 2]
    assert table.inputs[0].tolist() == [[0.5, 1.5, 0], [20, 10, 0]]
    unsorted = data.read_table(write("own.csv", LONG), id="id", ignore=["time"])
    assert unsorted.inputs[0].tolist() == [[1.5, 0.5, 0], [10, 20, 0]]
    own = data.load("table", path=write("own.csv", LONG), id="id", time="time", columns=["y"], test_share=0.5)
    assert own.model_arguments == {"in_channels": 1, "num_classes": 2, "length": 3}
    assert sorted([*own.train.lengths.tolist(), *own.test.lengths.tolist()]) == [1, 2, 2, 3]


def test_long_table_with_dates(write):
    dates = LONG.replace(",0,", ",2026-01-01,").replace(",1,", ",2026-01-02T12:00,").replace(",2,", ",2026-01-03,")
    table = data.read_table(write("own.csv", dates), id="id", time="time")
    assert table.inputs[0, 0].tolist() == [0.5, 1.5, 0]
    assert "time steps are between 43200 and 129600" in table.note


@pytest.mark.parametrize(
    "dates",
    [
        ("2026-01-01T00:30+01:00", "2026-01-01T00:00Z", "2026-01-01T03:00+02:00"),  # 23:30, 0:00 and 1:00
        ("1500-01-01", "2026-01-01", "2500-01-01"),  # 64-bit integers of nanoseconds end in 2262
        ("1700-01-01", "1800-01-01", "2200-01-01"),  # their difference in nanoseconds exceeds 2⁶³
        (str(-(2**63)), "0", str(2**63 - 1)),
        ("2026-01-01T00:00:00.000000001", "2026-01-01T00:00:00.000000002", "2026-01-01T00:00:00.000000003"),
    ],
)
def test_dates_and_numbers_are_sorted(write, dates):
    rows = [f"a,{dates[step]},u,{step}" for step in (2, 0, 1)]
    table = data.read_table(write("own.csv", "id,time,label,x\n" + "\n".join(rows)), id="id", time="time")
    assert table.inputs.tolist() == [[[0, 1, 2]]]


def test_large_integer_labels_stay_apart(write):
    names = "12345678901234567890", "12345678901234567891"
    table = data.read_table(write("own.csv", "label,a,b\n" + "".join(f"{name},1,2\n" for name in names)))
    assert table.labels == names


def test_times_of_nanoseconds_differ(write):
    first = 1_790_000_000_000_000_000
    rows = [f"{name},{first + t},{name},{t}" for name in "ab" for t in (2, 0, 1)]
    table = data.read_table(write("own.csv", "id,time,label,x\n" + "\n".join(rows)), id="id", time="time")
    assert table.inputs.tolist() == [[[0, 1, 2]]] * 2
    assert table.note == ""


def test_long_table_with_interleaved_series(write):
    table = data.read_table(write("own.csv", "id,label,x\na,u,1\nb,v,2\na,u,3\nb,v,4\n"), id="id")
    assert (table.inputs.tolist(), table.lengths) == ([[[1, 3]], [[2, 4]]], None)


def test_id_that_occurs_once_names_a_row_of_a_wide_table(write):
    """It must not become a series of one step with 3 channels."""
    table = data.read_table(write("own.csv", "id,label,a,b,c\nr1,u,1,2,3\nr2,v,4,5,6\n"), id="id")
    assert (table.inputs.shape, table.names) == ((2, 1, 3), ("r1", "r2"))


def test_split_column(write):
    lines = wide(12).splitlines()
    parts = ["Train"] * 6 + ["valid"] * 2 + ["TEST"] * 4
    text = "\n".join([f"{lines[0]},split", *(f"{line},{part}" for line, part in zip(lines[1:], parts, strict=True))])
    own = data.load("table", path=write("own.csv", text), split="split")
    assert (len(own.train), len(own.validation), len(own.test)) == (6, 2, 4)
    assert own.test.inputs[:, 0, 0].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    "names", [("train.csv", "test.csv"), ("my_train.csv", "my_test.csv"), ("TRAIN.csv", "Test.csv")]
)
def test_test_file_beside_the_training_file(write, names):
    path = write(names[0], wide())
    lines = [line.split(",") for line in wide(4).splitlines()]
    write(names[1], "\n".join(",".join(reversed(line)) for line in lines))  # columns in another order
    own = data.load("table", path=path)
    assert (len(own.train), len(own.test)) == (10, 4)
    assert own.test.inputs[2, 0].tolist() == pytest.approx([2.0, 2.1, 2.2])
    assert own.test.labels.tolist() == [0, 1, 0, 1]


def test_named_test_and_validation_files(write):
    files = {name: write(f"{name}.csv", wide(count)) for name, count in (("a", 10), ("b", 4), ("c", 6))}
    own = data.load("table", path=files["a"], test_path=files["b"], validation_path=files["c"])
    assert (len(own.train), len(own.test), len(own.validation)) == (10, 4, 6)


def test_test_series_may_be_longer_than_the_training_series(write):
    rows = [f"{name},{kind},{t}" for name, kind, count in (("a", "u", 2), ("b", "v", 3)) for t in range(count)]
    write("test.csv", "id,kind,x\n" + "\n".join([*rows, "b,v,3", "b,v,4"]))
    own = data.load("table", path=write("train.csv", "id,kind,x\n" + "\n".join(rows)), id="id")
    assert own.length == 5
    assert (own.train.lengths.tolist(), own.test.lengths.tolist()) == ([2, 3], [2, 5])


# --- what is rejected -------------------------------------------------------------------------------------------------

BAD = [
    ("", {}, r"own\.csv: the file is empty"),
    ("label,a\n", {}, r"own\.csv: .*no rows below the header"),
    ("label,a\nx,1\n\ny,2\n", {}, r"line 3: the row is empty"),
    ("\nlabel,a\nx,1\ny,2\n", {}, r"line 1: the row is empty"),
    ("label,a\nx,1\n,\ny,2\n", {}, r"line 3: the row has no values"),
    ("label,a,b\nx,1,2\ny,2\n", {}, r"line 3: 2 values, but the header has 3"),
    ("x,1,2\ny,2,3,4\n", {}, r"line 2: 4 values, but line 1 has 3"),
    ("label,a,b\nx,1,2\ny,2,\n", {}, r"line 3, column 'b': .*missing"),
    ("label,a,b\nx,1,2\ny,NaN,3\n", {}, r"line 3, column 'a': .*missing \('NaN'\)"),
    ("label,a,b\nx,1,2\ny,inf,3\n", {}, r"line 3, column 'a': inf is not a finite"),
    ("label,a,b\nx,1,2\ny,1e99,3\n", {}, r"line 3, column 'a': 1e99 is not a finite"),
    ("label,a,b\nx,1,2\ny,two,3\n", {}, r"line 3, column 'a': 'two' is not a number"),
    ("who,label,a\np0,x,1\np0,x,2\n", {}, r"line 2, column 'who': 'p0' is not a number.* data\.id=who if .*series"),
    ("label;a;b\nx;1,5;2\ny;2;3\n", {}, r"line 2, column 'a': '1,5' has a decimal comma"),
    ("kind;a;b\nx;1,5;2,5\ny;2,5;3,5\n", {}, r"line 2, column 'a': '1,5' has a decimal comma"),
    ("label,a,a\nx,1,2\ny,3,4\n", {}, r"line 1: two columns are called 'a'"),
    ("label,a,\nx,1,2\ny,3,4\n", {}, r"line 1: column 3 has no name"),
    ("label,a,b\nx,1,2\n,3,4\n", {}, r"line 3, column 'label': the value is missing"),
    ("label,a,b\n0.5,1,2\n1,3,4\n", {}, r"line 2, column 'label': the label 0\.5 is not an integer"),
    ('label,a,b\nx,1,2\ny,3,"4\nx,5,6\ny,7,8\n', {}, r"column 'b': a quote opens before '4'"),
    (wide(3000) + "cat,1,2,three\n", {}, r"line 3002, column 'v2': 'three' is not a number"),
    ("label,a,b\nx,1,2\nx,3,4\ny,5,6\n", {}, r"own\.csv: class 'y' \(2 classes in all\) has one sample"),
    ("label,a,b\nx,1,2\nx,3,4\n", {}, r"own\.csv: the only class is x; .*two classes"),
    ("1,2,3\n2,3,4\n", {}, r"own\.csv: which column has the labels\? Set data\.label; 0 is the first"),
    ("a,b\n2,3\n", {}, r"which column has the labels\? .*the columns are a, b"),
    ("kind,a,b\nx,1,two\ny,2,3\n", {}, r"which column has the labels\? .*text in kind, b"),
    ("id,label,a,b\n1,x,1,2\n2,y,3,4\n", {}, r"column 'id' does not seem to be a value; set data\.id=id"),
    ("label,Time,b\nx,1,2\ny,3,4\n", {}, r"column 'Time' .*data\.time=Time, or data\.ignore=\[Time\]"),
    ("name,label,a,b\nfoo,x,1,2\nbar,y,3,4\n", {}, r"line 2, column 'name': 'foo' .*data\.ignore=\[name\]"),
    ("label\nx\ny\n", {}, r"line 1: 'label' is one column"),
    ("label,a,b\nx,1,2\ny,3,4\n", {"delimiter": ";"}, r"line 1: 'label,a,b' is one column.*separated by commas"),
    ("label,a,b\nx,1,2\ny,3,4\n", {"shape": [3]}, r"a sample has 2 values, but data\.shape=\[3\] needs 3"),
    (
        "label,a,b,s\nx,1,2,train\ny,3,4,train\nx,5,6,tst\n",
        {"split": "s"},
        r"line 4, column 's': 'tst', expected train",
    ),
    ("label,a,b,s\nx,1,2,test\ny,3,4,test\n", {"split": "s"}, r"column 's': no row says train"),
    (LONG.replace("a,1,cat", "a,0,cat"), {"id": "id", "time": "time"}, r"line 3, column 'time': .*'a' .*line 2"),
    (
        LONG.replace("b,1,dog", "b,1,cat"),
        {"id": "id", "time": "time"},
        r"line 5, column 'kind': 'cat', .*'b' has 'dog'",
    ),
    (
        LONG.replace("b,1,dog", "b,soon,dog"),
        {"id": "id", "time": "time"},
        r"line 5, column 'time': 'soon', expected numbers",
    ),
    (LONG.replace("b,1,dog", "b,inf,dog"), {"id": "id", "time": "time"}, r"line 5, column 'time': 'inf', expected"),
    ("id,t,u,x\na,2026-01-01,u,1\na,NaT,u,2\n", {"id": "id", "time": "t"}, r"line 3, column 't': 'NaT', expected"),
    ("label,a,b\nx,1,2\ny,1_000,3\n", {}, r"line 3, column 'a': '1_000' is not a number"),
    (LONG.replace("b,1,dog", ",1,dog"), {"id": "id", "time": "time"}, r"line 5, column 'id': the value is missing"),
    ("id,time,label,a\nr,1,u,1\ns,1,v,2\n", {"id": "id", "time": "time"}, r"only one row.*leave out data\.time"),
    (b"label,a,b\n\xe9t\xe9,1,2\n", {}, r"line 2: byte 0xe9 is not UTF-8"),
    ("label,a,b\n".encode("utf-16"), {}, r"UTF-16 text; save it as UTF-8"),
    (b"label,a,b\0\n", {}, r"is not text"),
]


@pytest.mark.parametrize(("text", "options", "message"), BAD)
def test_error_names_file_line_and_problem(write, text, options, message):
    path = write("own.csv", text)
    with pytest.raises(data.DamagedDataError, match=message) as raised:
        data.load("table", path=path, **options)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": "knid"}, r"data\.label=knid: .*no such column; it has kind, v0.*did you mean 'kind'"),
        ({"columns": ["v0", "v9"]}, r"data\.columns=v9: .*no such column"),
        ({"columns": ["v0", "v0"]}, r"data\.columns must name different columns"),
        ({"ignore": "w"}, r"data\.ignore=w: .*no such column"),
        ({"label": 4}, r"data\.label=4: .*columns 0 to 3"),
        ({"label": "kind", "id": "kind"}, r"data\.label and data\.id are both column 'kind'"),
        ({"time": "v0"}, r"data\.time=v0 needs data\.id"),
        ({"shape": [0]}, r"data\.shape .*positive.*got \[0\]"),
        ({"layout": "HWD"}, r"unknown layout 'HWD'"),
        ({"delimiter": "::"}, r"data\.delimiter .*got '::'"),
        ({"test_share": 1.5}, r"data\.test_share .*got 1\.5"),
        ({"shape": [1, 3], "layout": "CHW"}, r"data\.layout=CHW has 3 axes, but data\.shape=\[1, 3\] has 2"),
        ({"layout": "CHW"}, r"data\.layout=CHW has 3 axes, but .*own\.csv has one row .*set data\.shape, too"),
    ],
)
def test_error_names_a_wrong_option(write, options, message):
    with pytest.raises(ValueError, match=message):
        data.load("table", path=write("own.csv", wide()), **options)


@pytest.mark.parametrize("options", [{"label": 1.5}, {"columns": 0.5}, {"shape": "28"}])
def test_error_names_an_option_of_the_wrong_type(write, options):
    with pytest.raises(TypeError, match=f"data.{next(iter(options))} must be"):
        data.load("table", path=write("own.csv", wide()), **options)


def test_test_share_is_checked_although_there_is_a_test_set(write):
    write("test.csv", wide(4))
    with pytest.raises(ValueError, match=r"data\.test_share .*got 7"):
        data.load("table", path=write("train.csv", wide()), test_share=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wide(4, classes=("cat", "bird")), r"test\.csv, line 3, column 'kind': .*no class 'bird'; it has cat, dog"),
        (wide(4, values=2), r"data\.columns=v2: .*test\.csv has no such column"),
        (wide(4).replace("kind", "class"), r"data\.label=kind: .*test\.csv has no such column"),
        (wide(4, header=False), r"train\.csv has a header, but .*test\.csv has none"),
    ],
)
def test_error_names_a_problem_of_the_test_file(write, text, message):
    write("test.csv", text)
    with pytest.raises(ValueError, match=message):
        data.load("table", path=write("train.csv", wide()))


def test_two_test_files_are_an_error(write):
    for name in ("test.csv", "testing.csv"):
        write(name, wide(4))
    with pytest.raises(data.DamagedDataError, match=r"test\.csv and .*testing\.csv .*data\.test_path"):
        data.load("table", path=write("train.csv", wide()))
    with pytest.raises(ValueError, match=r"data\.split=v2 and another file .*test\.csv"):
        data.load("table", path=write("my_train.csv", wide()), test_path=write("b/test.csv", wide(4)), split="v2")


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_fast_parser_agrees_with_loadtxt():
    rng = np.random.default_rng(0)
    columns = [
        rng.integers(-300, 300, 500).astype(str),
        [f"{value:.{digits}f}" for value, digits in zip(rng.normal(0, 50, 500), rng.integers(0, 12, 500), strict=True)],
        [repr(value)[:18] for value in (rng.random(500) + 0.01).tolist()],
        rng.choice(["cat", '"dog"'], 500),
        rng.choice(["0", "-0", "007", ".5", "5.", "-.25"], 500),
    ]
    lines = [",".join(row) for row in zip(*columns, strict=True)]
    numbers, texts = _plain_numbers.parse_lines(lines, ",", 5, [0, 1, 2, 4], [3])
    expected = np.loadtxt(lines, np.float32, delimiter=",", usecols=[0, 1, 2, 4])
    np.testing.assert_array_equal(numbers, expected)
    assert texts == {3: [word.strip('"') for word in columns[3]]}


@pytest.mark.parametrize(
    "field", ["1e3", "", " 1", "+1", "-", ".", "1.2.3", "1-2", "nan", '"1"', "1234567890123456789", "١", "1,2"]
)
def test_fast_parser_declines_what_is_not_plain(field):
    assert _plain_numbers.parse_lines(["x,1,2", f"x,{field},2"], ",", 3, [1, 2], [0]) is None


def test_fast_parser_declines_a_comma_inside_quotes():
    assert _plain_numbers.parse_lines(["x,1,2", '"a,b",2'], ",", 3, [1, 2], [0]) is None


def test_fast_parser_works_in_blocks(monkeypatch):
    monkeypatch.setattr(_plain_numbers, "FIELDS_PER_BLOCK", 7)
    lines = [f"{i % 3},{i},{i / 4}" for i in range(20)]
    numbers, texts = _plain_numbers.parse_lines(lines, ",", 3, [1, 2], [0])
    assert numbers.tolist() == [[i, i / 4] for i in range(20)]
    assert texts == {0: [str(i % 3) for i in range(20)]}


# --- Parquet ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def write_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(columns, name="own.parquet"):
        parquet.write_table(pyarrow.table(columns), tmp_path / name)
        return tmp_path / name

    return write


def test_parquet_with_one_column_per_value(write_parquet):
    path = write_parquet({"kind": ["cat", "dog"] * 5, "a": range(10), "b": np.arange(10) / 4})
    own = data.load("table", path=path)
    assert (own.class_names, own.train.sample_shape) == (("cat", "dog"), (1, 2))
    table = data.read_table(path)
    assert table.inputs[:, 0].tolist() == [[i, i / 4] for i in range(10)]
    with pytest.raises(ValueError, match=r"delimiter and header are options of text files"):
        data.load("table", path=path, header=True)


def test_parquet_with_categories_and_integers(write_parquet):
    pyarrow = pytest.importorskip("pyarrow")
    kinds = pyarrow.array(["cat", "dog"] * 5).dictionary_encode()
    assert data.read_table(write_parquet({"kind": kinds, "a": range(10)})).labels == ("cat", "dog") * 5
    own = data.load("table", path=write_parquet({"label": [1, -1] * 5, "a": range(10), "b": range(10)}))
    assert own.class_names == ("-1", "1")


def test_parquet_with_lists(write_parquet):
    """A list per sample is a series, and several columns of lists are its channels."""
    lists = [[float(i)] * (2 + i % 3) for i in range(10)]
    own = data.load("table", path=write_parquet({"kind": ["cat", "dog"] * 5, "x": lists, "y": lists}))
    assert own.model_arguments == {"in_channels": 2, "num_classes": 2, "length": 4}
    assert own.train.lengths.tolist() == [2 + int(x[0, 0]) % 3 for x in own.train.inputs]
    images = write_parquet({"kind": ["cat", "dog"] * 5, "pixels": [[10 * i] * 6 for i in range(10)]})
    assert data.read_table(images, shape=[2, 3]).inputs.shape == (10, 1, 2, 3)
    unequal = write_parquet({"kind": ["cat", "dog"], "x": [[1.0], [2.0]], "y": [[1.0], [2.0, 3.0]]})
    with pytest.raises(data.DamagedDataError, match=r"row 2, column 'y': 2 values, but column 'x' has 1"):
        data.read_table(unequal)


def test_long_parquet_with_dates(write_parquet):
    times = np.array(["2026-01-02", "2026-01-01", "2026-01-01", "2026-01-02"], "datetime64[ns]")
    path = write_parquet({"id": [1, 1, 2, 2], "time": times, "kind": ["u", "u", "v", "v"], "x": [1.0, 2, 3, 4]})
    table = data.read_table(path, id="id", time="time")
    assert (table.inputs.tolist(), table.names) == ([[[2, 1]], [[3, 4]]], ("1", "2"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"kind": ["u", "v"], "a": [1.0, None]}, r"row 2, column 'a': .*missing"),
        ({"kind": ["u", None], "a": [1.0, 2.0]}, r"row 2, column 'kind': the value is missing"),
        ({"kind": ["u", "v"], "name": ["p", "q"], "a": [1.0, 2.0]}, r"which column has the labels"),
        ({"kind": ["u", "v"], "a": [1.0, 2.0], "x": [[1.0], [2.0]]}, r"column 'x' has lists, but column 'a'"),
        ({"kind": ["u", "v"], "x": [[1.0], []]}, r"row 2, column 'x': the list is empty"),
    ],
)
def test_error_names_the_row_of_a_parquet_file(write_parquet, columns, message):
    with pytest.raises(data.DamagedDataError, match=message):
        data.load("table", path=write_parquet(columns))


def test_damaged_parquet_is_one_line(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "own.parquet").write_bytes(b"PAR1")
    with pytest.raises(data.DamagedDataError, match=r"own\.parquet: .*Parquet"):
        data.read_table(tmp_path / "own.parquet")


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("fastparquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    frame = pandas.DataFrame({"kind": pandas.Categorical(["cat", "dog"] * 5), "a": range(10), "b": range(10)})
    frame.to_parquet(tmp_path / "own.parquet", engine="fastparquet")
    table = data.read_table(tmp_path / "own.parquet")
    assert (table.labels, table.inputs.shape) == (("cat", "dog") * 5, (10, 1, 2))


def test_error_names_the_package_for_parquet(tmp_path, monkeypatch):
    for name in ("pyarrow", "pandas", "fastparquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "own.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingPackageError, match=r"pyarrow.*parquet"):
        data.load("table", path=tmp_path / "own.parquet")


# --- from a table to a network ----------------------------------------------------------------------------------------


def test_class_names_travel_from_a_table_to_the_network(write, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write("waves.csv", wide(40, values=16, classes=("cat", "dog", "owl")))
    write("mine.yaml", "model: {name: flextcn2, widths: [2, 2]}\ndata: {path: waves.csv, label: kind}\nepochs: 1\n")
    assert cli.run(["data", "show", "mine.yaml"]) == 0
    shown = capsys.readouterr().out
    for expected in (r"series of 16 steps with 1 channel", "32 train, 8 test", "to 40.5 in the training set"):
        assert expected in shown
    assert cli.run(["train", "mine.yaml", "--device", "cpu", "--set", "batch_size=8"]) == 0
    network = from_pretrained("runs/mine/weights")
    assert network.inputs.classes == ("cat", "dog", "owl")
    assert network.inputs.size == (16,)
    capsys.readouterr()
    assert cli.run(["eval", "runs/mine", "--device", "cpu"]) == 0
    assert "table test: " in capsys.readouterr().out
    assert cli.run(["data", "show", "runs/mine"]) == 0
    assert capsys.readouterr().out == shown
    rows = [line.split(",", 1)[1] for line in wide(3, values=16).splitlines()]
    write("new.csv", "\n".join(rows))
    assert cli.run(["predict", "runs/mine", "new.csv", "--device", "cpu"]) == 0
    predicted = capsys.readouterr().out
    assert all(f"new.csv    {row}  " in predicted for row in (1, 2, 3))
    assert "cat" in predicted or "dog" in predicted or "owl" in predicted


def test_shows_own_data_before_training(write, capsys):
    path = str(write("own.csv", LONG))
    assert cli.run(["data", "show", path, "--set", "data.id=id", "--set", "data.time=time"]) == 2
    assert "smallest class" in capsys.readouterr().err
    half = ["--set", "data.test_share=0.5"]
    assert cli.run(["data", "show", path, "--set", "data.id=id", "--set", "data.time=time", *half]) == 0
    shown = capsys.readouterr().out
    for expected in ("series of 3 steps with 2 channels", "1 to 3 steps", "cat        1     1"):
        assert expected in shown
    assert cli.run(["data", "show", path, "--set", "data.lable=x"]) == 2
    assert "did you mean 'label'" in capsys.readouterr().err
    assert cli.run(["data", "show", "digits"]) == 0
    assert "images, 8 pixels high and 8 wide, with 1 channel" in capsys.readouterr().out


def test_shows_that_series_may_be_flattened_images(write, capsys):
    path = str(write("own.csv", wide(10, values=64)))
    assert cli.run(["data", "show", path]) == 0
    shown = capsys.readouterr().out
    assert "64 = 8 × 8" in shown
    assert "data.shape=[8,8]" in shown
    assert cli.run(["data", "show", path, "--set", "data.shape=[8,8]"]) == 0
    assert "8 pixels high and 8 wide" in capsys.readouterr().out


def test_trained_in_python(write, tmp_path):
    settings = {"name": "table", "options": {"path": str(write("own.csv", LONG)), "id": "id", "ignore": ["time"]}}
    tree = {"model": {"name": "flextcn2", "widths": [2, 2]}, "data": settings, "epochs": 1, "batch_size": 2}
    tree["data"]["options"]["test_share"] = 0.5
    train.train(train.build_recipe(tree), tmp_path / "run", device="cpu", plots=False)
    assert from_pretrained(tmp_path / "run/weights").inputs.classes == ("cat", "dog")


def test_eval_on_other_files(write, tmp_path, monkeypatch, capsys):
    """--data takes a path. Series of another length are evaluated with a note."""
    monkeypatch.chdir(tmp_path)
    write("waves.csv", wide(40, values=16))
    settings = {"path": "waves.csv"}
    tree = {"model": {"name": "flextcn2", "widths": [2, 2]}, "data": settings, "epochs": 1, "batch_size": 8}
    train.train(train.build_recipe(tree), "run", device="cpu", plots=False)
    tested = ["eval", "run/weights", "--device", "cpu", "--data"]
    for values, noted in ((16, False), (12, True)):
        write("more.csv", wide(20, values=values))
        assert cli.run([*tested, "more.csv"]) == 0
        shown = capsys.readouterr()
        assert "table test: " in shown.out
        assert ("have 12 steps, but the network was trained on 16" in shown.err) == noted
    assert cli.run([*tested, "more.csv", "--data-option", "label=knid"]) == 2
    assert "did you mean 'kind'" in capsys.readouterr().err
    assert cli.run([*tested, "missing.csv"]) == 2
    assert "missing.csv" in capsys.readouterr().err


def test_eval_reads_tables_as_in_training(write, tmp_path, monkeypatch, capsys):
    """As `predict` does. Options that are given replace those of the training."""
    monkeypatch.chdir(tmp_path)
    write("mine.csv", LONG)
    options = {"path": "mine.csv", "id": "id", "time": "time", "label": "kind", "test_share": 0.5}
    tree = {"model": {"name": "flextcn2", "widths": [2, 2]}, "data": options, "epochs": 1, "batch_size": 2}
    train.train(train.build_recipe(tree), "run", device="cpu", plots=False)
    tested = ["eval", "run", "--device", "cpu", "--data", "mine.csv", "--data-option", "test_share=0.5"]
    assert cli.run(tested) == 0
    assert "table test: " in capsys.readouterr().out
    assert cli.run([*tested, "--data-option", "id=who"]) == 2
    assert "data.id=who" in capsys.readouterr().err
    rows = [",".join(map(str, [("cat", "dog")[i % 2], *range(64)])) for i in range(10)]
    write("flat.csv", "\n".join(["kind," + ",".join(f"p{i}" for i in range(64)), *rows]))
    network = create_model("flexnet3", in_channels=1, num_classes=2, image_size=8, widths=[2])
    save_pretrained(network, "images")
    tested = ["eval", "images", "--device", "cpu", "--data", "flat.csv"]
    assert cli.run(tested) == 2
    assert "flat.csv has series, but the network takes images; " in capsys.readouterr().err
    assert cli.run([*tested, "--data-option", "shape=[8,8]"]) == 0


def test_line_breaks_in_column_names_stay_in_one_line(write):
    path = write("own.csv", 'label,"a\nb","c"\n' + "x,1,2\n" * 4)
    with pytest.raises(ValueError, match=r"a\\u000ab") as caught:
        data.load("table", path=path, label="nothing")
    assert "\n" not in str(caught.value)
