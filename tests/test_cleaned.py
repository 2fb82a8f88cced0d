"""A cleaned copy holds exactly what was kept, with the labels it was given, and everything else as it was."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from copies import cleaned, contents, given_labels, keeping, with_labels
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_whole import LABELS, PIXELS, N, images

from mirrordescent.lab.data import DataError, Source
from mirrordescent.lab.data.whole import Whole, load_whole

ALL = torch.ones(N, dtype=torch.bool)
TEXT = "number,label,text\n" + "".join(f"{i * i % 7},{'pqr'[i % 3]},{'ab'[i % 2]}\n" for i in range(N))


# --- text tables ---


def text(draw: st.DrawFn, cells: list[list[str]], mark: str) -> str:
    """Cells as text, each quoted or not as csv allows, with spaces before them, blank lines and any line ends."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = []
    for row in cells:
        parts = []
        for cell in row:
            plain = not set(cell) & {mark, "\n", "\r"} and not cell.lstrip(" ").startswith('"')
            quoted = '"' + cell.replace('"', '""') + '"'
            parts.append(" " * draw(st.integers(0, 1)) + (cell if plain and draw(st.booleans()) else quoted))
        lines.append(mark.join(parts) + end + draw(st.sampled_from(["", "", end])))
    whole = "".join(lines)
    return whole.removesuffix(end) if draw(st.booleans()) else whole


CELL = st.text("ab ,;\t\"é\n\r'", max_size=4) | st.sampled_from(["1.50", "01", "", "NA", "x"])
# several ways to write one class
WAYS = {"yes": ["yes", "yes ", " yes"], "1": ["1", "01", "1.0"], 'n,"o;': ['n,"o;'], "é\tè": ["é\tè"]}


@st.composite
def text_tables(draw: st.DrawFn) -> tuple[str, bytes, int, list[str]]:
    n, mark = draw(st.integers(3, 12)), draw(st.sampled_from([",", ";", "\t"]))
    classes = ["yes", "1", *draw(st.lists(st.sampled_from(list(WAYS)), min_size=n - 2, max_size=n - 2))]
    columns = draw(st.lists(st.lists(CELL, min_size=n, max_size=n), max_size=3))
    columns.append([str(i * i + 1) for i in range(n)])  # to learn from, and to know a row by
    at = draw(st.integers(0, len(columns)))
    columns.insert(at, [draw(st.sampled_from(WAYS[name])) for name in classes])
    header = ["label" if i == at else f"c{i}" for i in range(len(columns))]
    content = text(draw, [header, *[list(row) for row in zip(*columns, strict=True)]], mark).encode()
    suffix = ".tsv" if mark == "\t" and draw(st.booleans()) else ".csv"
    return suffix, draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content, at, classes


@given(text_tables(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_text_table_comes_back(table: tuple[str, bytes, int, list[str]], data: st.DataObject) -> None:
    suffix, content, at, classes = table
    n = len(classes)
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, f"a{suffix}"), Path(folder, f"b{suffix}")
        path.write_bytes(content)
        whole = load_whole(Source(str(path)))
        assert given_labels(whole) == classes
        names = whole.data.class_names
        new = torch.tensor(data.draw(st.lists(st.integers(0, len(names) - 1), min_size=n, max_size=n)))
        labels = torch.where(
            torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))), new, whole.data.targets
        )
        assume(len(set(labels[keep].tolist())) >= 2)
        assert whole.write(out, keep, labels) == [out]
        assert path.read_bytes() == content
        again = load_whole(Source(str(out)))
        assert given_labels(again) == [names[c] for c in labels[keep].tolist()]
        kept = keep.nonzero().flatten().tolist()
        for i, row in enumerate(kept):
            before, after = list(whole.cells(row)), list(again.cells(i))
            if labels[row] == whole.data.targets[row]:
                assert after == before
            assert after[:at] + after[at + 1 :] == before[:at] + before[at + 1 :]
        whole.write(Path(folder, f"same{suffix}"), torch.ones(n, dtype=torch.bool), whole.data.targets)
        assert Path(folder, f"same{suffix}").read_bytes() == content


def test_nothing_but_the_label_changes(tmp_path: Path) -> None:
    rows = [
        b'1.50, "a ""b""" ,01, x\r\n',  # refused: text after a closing quotation mark
        b"1.50,a,01, x\r\n",
        b'"2,\r\n3","",2,\r\n',
        b"\r\n",
        b'004,\xc3\xa9,01,""\r\n',
        b"5,a, 2,y\r\n",
        b"6,b,02,y\r\n",
        b"7,b,02,y",
    ]
    path, head = tmp_path / "a.csv", b"\xef\xbb\xbfn, word,class,rest\r\n"
    path.write_bytes(head + b"".join(rows[1:]))
    cleaned(path, tmp_path / "b.csv", 3, s0="2", s1="1")
    assert (tmp_path / "b.csv").read_bytes() == head + b"".join(
        [b"1.50,a,02, x\r\n", b'"2,\r\n3","",01,\r\n', rows[3], rows[4], rows[6], rows[7]]
    )
    path.write_bytes(head + b"".join(rows))
    with pytest.raises(DataError, match="line 2"):
        load_whole(Source(str(path)))


def test_spellings_stay_as_they_are(tmp_path: Path) -> None:
    """A new label is written as most are, and another spelling of the same class is no change."""
    path, out = tmp_path / "a.csv", tmp_path / "b.csv"
    lines = [f"{i * i},{'Cat' if i < 9 else 'CAT' if i == 9 else 'dog'}" for i in range(12)]
    path.write_text("\n".join(["n,label", *lines]) + "\n")
    assert given_labels(cleaned(path, out, 0, s11="Cat")) == ["Cat"] * 9 + ["dog", "Cat"]
    assert out.read_text().splitlines() == ["n,label", *lines[1:11], "121,Cat"]


def test_rows_without_a_label_stay_as_they_are(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    labels = ["x", None, "y", "x", None, "y", "x", "y"]
    path, out = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("n,label\n" + "".join(f"{i * i},{label or ''}\n" for i, label in enumerate(labels)))
    parquet.write_table(pyarrow.table({"n": [i * i for i in range(8)], "label": labels}), tmp_path / "a.parquet")
    for one in (path, tmp_path / "a.parquet"):
        whole = load_whole(Source(str(one)))
        assert whole.names == tuple(
            f"{'line' if one == path else 'row'} {i + 1 + (one == path)}" for i in (0, 2, 3, 5, 6, 7)
        )
        assert dict(whole.cells(1)) == {"n": "4", "label": "y"}
        whole.write(out.with_suffix(one.suffix), keeping(6, 0), with_labels(whole, s3="x"))
    assert out.read_text() == "n,label\n1,\n4,y\n9,x\n16,\n25,x\n36,x\n49,y\n"
    copy = parquet.read_table(tmp_path / "b.parquet").to_pydict()
    assert copy == {"n": [1, 4, 9, 16, 25, 36, 49], "label": [None, "y", "x", None, "x", "x", "y"]}


def test_labels_are_written_as_most_are(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('n\ty\n1\t" a"\n2\ta\n3\ta\n4\t"b ""c"""\n5\t"b ""c"""\n6\tb "c"\n')
    again = cleaned(tmp_path / "a.tsv", tmp_path / "b.tsv", s0='b "c"', s3="a")
    assert (tmp_path / "b.tsv").read_text() == 'n\ty\n1\t"b ""c"""\n2\ta\n3\ta\n4\ta\n5\t"b ""c"""\n6\tb "c"\n'
    assert given_labels(again) == ['b "c"', "a", "a", "a", 'b "c"', 'b "c"']


def test_a_chosen_label_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    again = cleaned(tmp_path / "a.csv", tmp_path / "b.csv", 1, label="text", s0="b")
    assert given_labels(again) == ["b", *["a", "b"] * 5]
    assert (tmp_path / "b.csv").read_text().splitlines()[1:3] == ["0,p,b", "4,r,a"]


def test_a_copy_of_what_the_csv_module_writes(tmp_path: Path) -> None:
    words = ["plain", "com,ma", 'quo"te', "new\nline", "", " space", "semi;colon"]
    file = io.StringIO()
    csv.writer(file).writerows([["y", "text", "n"], *[[words[i % 2], words[i % 7], i * i % 5] for i in range(14)]])
    (tmp_path / "a.csv").write_bytes(file.getvalue().encode())
    cleaned(tmp_path / "a.csv", tmp_path / "b.csv", 0, 6, s3="plain", s4="com,ma")
    with (tmp_path / "b.csv").open(newline="") as copy:
        rows = list(csv.reader(copy))[1:]
    expected = [[words[i % 2], words[i % 7], str(i * i % 5)] for i in range(14)]
    expected[3][0], expected[4][0] = "plain", "com,ma"
    assert rows == [row for i, row in enumerate(expected) if i not in (0, 6)]


# --- JSON Lines ---


def test_lines_of_json_stay_as_they_are_but_for_the_label(tmp_path: Path) -> None:
    """A new label is a value of the type that labels have there; all else stays byte for byte."""
    lines = [
        '\ufeff{"text": "a \u2028 b", "n": 1.50, "label": "x"}',
        '{"text":"\\u00e9","n":1e2,"label":"y","more":{"k":[1,null]}}',
        "",
        '{"n": 4, "label": null}',
        '{"label": "x", "n": 9}',
        '{"text": "é", "n": 16, "label": "y"}',
        '{"text":"e","n":25,"label":"x"}',
        '{"n": 36, "label": "y"}',
        '{"n": 49, "label": "x"}',
    ]
    (tmp_path / "a.jsonl").write_bytes("\r\n".join(lines).encode())
    whole = load_whole(Source(str(tmp_path / "a.jsonl")))
    assert whole.names == ("line 1", "line 2", "line 5", "line 6", "line 7", "line 8", "line 9")
    assert whole.cells(1) == (("text", "é"), ("n", "100.0"), ("label", "y"), ("more", '{"k": [1, null]}'))
    whole.write(tmp_path / "b.jsonl", keeping(7, 2), with_labels(whole, s0="y", s4="y"))
    expected = [lines[0].replace('"label": "x"', '"label": "y"'), *lines[1:4], lines[5]]
    expected += [lines[6].replace('"x"', '"y"'), *lines[7:]]
    assert (tmp_path / "b.jsonl").read_bytes().decode().split("\r\n") == expected
    odd = ['{"t":"é \\ud83d","n": 1234567890123456789.25, "label":"x"}', '{"n": 2, "label": "é\\ud83d"}']
    (tmp_path / "o.jsonl").write_text("\n".join([odd[0], odd[1], *odd]), encoding="utf-8")
    whole = load_whole(Source(str(tmp_path / "o.jsonl")))
    whole.write(tmp_path / "p.jsonl", keeping(4), with_labels(whole, s0=whole.class_names[1], s1="x"))
    assert (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines() == [
        odd[0].replace('"x"', '"\\u00e9\\ud83d"'),  # half a character, which UTF-8 does not hold
        odd[1].replace('"é\\ud83d"', '"x"'),
        *odd,
    ]
    numbers = "".join(f'{{"n": {i * i}, "label": {i % 2}}}\n' for i in range(8))
    (tmp_path / "c.jsonl").write_text(numbers)
    again = cleaned(tmp_path / "c.jsonl", tmp_path / "d.jsonl", 3, s0="1")
    assert (tmp_path / "d.jsonl").read_text().splitlines()[0] == '{"n": 0, "label": 1}'
    assert given_labels(again) == ["1", "1", "0", "0", "1", "0", "1"]


# --- Parquet ---


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    kinds: dict[str, tuple[Any, list[str]]] = {
        "int8": (pyarrow.array(LABELS.tolist(), pyarrow.int8()), ["0", "1", "2"]),
        "float": (pyarrow.array([float(c) for c in LABELS]), ["0", "1", "2"]),
        "text": (pyarrow.array(["xyz"[c] + " " for c in LABELS]), ["x", "y", "z"]),
        "bool": (pyarrow.array([bool(c) for c in LABELS]), ["False", "True", "True"]),
        "dictionary": (pyarrow.array(["xyz"[c] for c in LABELS]).dictionary_encode(), ["x", "y", "z"]),
    }
    for kind, (column, names) in kinds.items():
        path, out = tmp_path / f"{kind}.parquet", tmp_path / f"{kind} cleaned.parquet"
        content = pyarrow.table(
            {
                "n": pyarrow.array([i * i % 7 for i in range(N)], pyarrow.uint16()),
                "label": column,
                "when": pyarrow.array(range(N), pyarrow.timestamp("ns", "UTC")),
                "lists": [[i, None] for i in range(N)],
                "__index_level_0__": [f"row {i}" for i in range(N)],
            }
        ).replace_schema_metadata({"made by": "a person"})
        parquet.write_table(content, path, compression="zstd", row_group_size=5)
        again = cleaned(path, out, 2, 7, s0=names[1])
        copy = parquet.ParquetFile(out)
        assert copy.schema_arrow.equals(parquet.ParquetFile(path).schema_arrow, check_metadata=True)
        assert copy.metadata.row_group(0).column(0).compression == "ZSTD"
        assert [copy.metadata.row_group(i).num_rows for i in range(copy.num_row_groups)] == [5, 5]
        kept = [i for i in range(N) if i not in (2, 7)]
        table = copy.read()
        assert given_labels(again) == [names[1], *[names[LABELS[i]] for i in kept[1:]]]
        rest = content.drop_columns(["label"]).take(kept)
        assert table.drop_columns(["label"]).equals(rest)
        assert table["label"].to_pylist()[1:] == column.take(pyarrow.array(kept)).to_pylist()[1:]


@pytest.mark.parametrize(
    ("first", "step", "name"),
    [(100, 1, "rid"), (0, 1, "rid"), (7, -3, None), (0, 1, None), (5, 1, "n"), (5, 1, "label")],
)
def test_row_labels_of_pandas_stay_with_their_rows(first: int, step: int, name: str | None, tmp_path: Path) -> None:
    """Also where the file has but their first and their step."""
    pandas = pytest.importorskip("pandas")
    path, out = tmp_path / "a.parquet", tmp_path / "b.parquet"
    labels = pandas.RangeIndex(first, first + step * N, step, name=name)
    frame = pandas.DataFrame({"n": [i * i % 7 for i in range(N)], "label": LABELS}, index=labels)
    frame.to_parquet(path)
    again = cleaned(path, out, 2, 7)
    assert again.data.shape == load_whole(Source(str(path))).data.shape  # row labels are no input
    expected = frame.drop(index=[labels[2], labels[7]])
    if (first, step, name) == (0, 1, None):
        expected = expected.reset_index(drop=True)
    pandas.testing.assert_frame_equal(pandas.read_parquet(out), expected)


@pytest.mark.parametrize(
    "metadata",
    [
        b"{",
        b"[]",
        b'{"index_columns": null}',
        b'{"index_columns": [{"kind": "range"}], "columns": []}',
        b'{"index_columns": [{"kind": "range", "name": null, "start": 1, "stop": 2, "step": 1}]}',
        b'{"index_columns": [{"kind": "range", "name": 7, "start": 5, "stop": 25, "step": 1}], "columns": []}',
    ],
)
def test_odd_metadata_are_no_hindrance(metadata: bytes, tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    content = pyarrow.table({"n": [i * i % 7 for i in range(N)], "label": LABELS})
    parquet.write_table(content.replace_schema_metadata({b"pandas": metadata}), tmp_path / "a.parquet")
    assert len(cleaned(tmp_path / "a.parquet", tmp_path / "b.parquet", 2, 7).data) == N - 2


# --- what is refused ---


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    table, arrays, folder = tmp_path / "a.csv", tmp_path / "a.npz", images(tmp_path / "pets", 2)
    table.write_text(TEXT)
    np.savez(arrays, x=PIXELS, y=LABELS)
    (tmp_path / "taken.csv").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(folder)
    os.link(table, tmp_path / "t.csv")
    cases = [
        (table, table, "is the original, which stays as it is"),
        (table, tmp_path / "pets" / ".." / "a.csv", "is the original"),
        (table, tmp_path / "taken.csv", "exists already; choose another name"),
        (table, tmp_path / "b.tsv", r"b\.tsv must end in \.csv"),
        (table, tmp_path / "t.csv", "is the original"),
        (arrays, tmp_path / "b.csv", r"must end in \.npz"),
        (Path("digits"), tmp_path / "b", r"must end in \.npz"),
        (folder, folder, "is the original"),
        (folder, folder / "cleaned", "is inside the original"),
        (folder, tmp_path / "link" / "cleaned", "is inside the original"),
        (folder, tmp_path, "exists already"),
        (table, table / "b.csv", "is inside the original"),
        (table, arrays / "b.csv", "cannot be written: "),
    ]
    before = contents(tmp_path)
    for path, out, message in cases:
        test = str(tmp_path / "t.csv") if out.name == "t.csv" else None
        whole = load_whole(Source(str(path), test=test))
        with pytest.raises(DataError, match=message) as caught:
            whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
        assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def everything(tmp_path: Path) -> list[tuple[Whole, str]]:
    """One data set of every kind, and the ending of its copy."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    (tmp_path / "a.csv").write_text(TEXT)
    parquet.write_table(pyarrow.table({"n": (LABELS * 2).tolist(), "y": LABELS.tolist()}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    images(tmp_path / "pets", 2)
    found = [(tmp_path / f"a{suffix}", suffix) for suffix in (".csv", ".parquet", ".npz")] + [(tmp_path / "pets", "")]
    return [(load_whole(Source(str(path))), suffix) for path, suffix in [*found, (Path("digits"), ".npz")]]


def refused(whole: Whole, out: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    sets = everything(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for whole, suffix in sets:
        out = tmp_path / "out" / f"b{suffix}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))  # a disk with room for 50 bytes
        try:
            refused(whole, out, f"b{suffix} cannot be written: .*[Ff]ile too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(out.parent.iterdir()) == []


def test_a_killed_copy_leaves_nothing_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = everything(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    for whole, suffix in sets:
        out = tmp_path / "out" / f"b{suffix}"
        with pytest.raises(KeyboardInterrupt):
            whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
        assert list(out.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = everything(tmp_path)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.geteuid() == 0:  # whom nothing stops
        locked = Path("/proc/mirrordescent")
    for whole, suffix in sets:
        refused(whole, locked / f"b{suffix}", "cannot be written: ")
    (tmp_path / "locked").chmod(0o755)


def test_an_original_that_has_changed(tmp_path: Path) -> None:
    for whole, suffix in everything(tmp_path)[:3]:
        with (tmp_path / f"a{suffix}").open("ab") as file:
            file.write(b" ")
        refused(whole, tmp_path / f"b{suffix}", "has changed since it was read")
    whole = load_whole(Source(str(tmp_path / "pets")))
    (tmp_path / "pets" / "dog" / "1.png").unlink()
    refused(whole, tmp_path / "out", r"1\.png cannot be read: No such file or directory; start again")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "out"))]


def test_wrong_choices(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    whole = load_whole(Source(str(tmp_path / "a.csv")))
    y, out = whole.data.targets, tmp_path / "b.csv"
    for keep, labels, message in (
        (ALL[1:], y, r"keep must be \(12,\) of torch\.bool, got \(11,\) of torch\.bool"),
        (ALL.long(), y, r"keep must be .* of torch\.int64"),
        (ALL, y.int(), r"labels must be \(12,\) of torch\.int64, got \(12,\) of torch\.int32"),
        (ALL, y + 1, "labels must be classes from 0 to 2, got 3"),
        (ALL, y - 1, "labels must be classes from 0 to 2, got -1"),
        (~ALL, y, r"a\.csv: fewer than two classes would be left \(none\); keep more samples"),
        (y == 0, y, r"fewer than two classes would be left \(only 'p'\)"),
        (ALL, y * 0 + 2, r"fewer than two classes would be left \(only 'r'\)"),
    ):
        with pytest.raises(ValueError, match=message):
            whole.write(out, keep, labels)
    assert not out.exists()


def test_a_copy_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    labels = [str(i) for i in range(150)] * 10
    (tmp_path / "a.csv").write_text("n,y\n" + "".join(f"{i * i % 7},{y}\n" for i, y in enumerate(labels)))
    np.savez(tmp_path / "a.npz", x=np.arange(1500.0)[:, None], y=np.array(labels))
    for suffix in (".csv", ".npz"):
        whole = load_whole(Source(str(tmp_path / f"a{suffix}")))
        with pytest.raises(DataError, match=r"b\..*: 150 different labels for 1,499 samples"):
            whole.write(tmp_path / f"b{suffix}", keeping(1500, 3), whole.data.targets)
    (tmp_path / "a.csv").write_text("n,y\n1,1.5\n2,2.5\n3,word\n4,word\n")
    whole = load_whole(Source(str(tmp_path / "a.csv")))
    with pytest.raises(DataError, match=r"the label 1\.5 is not a whole number"):
        whole.write(tmp_path / "b.csv", keeping(4, 2, 3), whole.data.targets)


def test_a_class_of_one_can_be_kept_relabelled_or_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,y\n1,p\n2,q\n3,p\n4,lonely\n5,q\n")
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "b.csv", s3="p")) == ["p", "q", "p", "p", "q"]
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "c.csv", 3)) == ["p", "q", "p", "q"]
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "d.csv", 0, 1, 2, s4="lonely", s3="q")) == [
        "q",
        "lonely",
    ]


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = images(tmp_path / "pets", 2)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = [tmp_path / f".out.{pid}.part" for pid in (int(dead.stdout), os.getppid())]
    others = [tmp_path / f"{name}.{int(dead.stdout)}.part" for name in (".mine", ".out.mine", "out")]
    for part in (*left, *others):
        part.mkdir()
        (part / "file").touch()
    cleaned(folder, tmp_path / "out", 0)
    assert [part.exists() for part in (*left, *others)] == [False, True, True, True, True]
