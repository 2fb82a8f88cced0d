"""Tables as they are written: forms of text files and Parquet, and files that are none."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from tabled import Columns, mixed, prepared

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.tablefile import read_table
from mirrordescent.lab.data.tables import prepare_table


@given(mixed())
@settings(max_examples=30, deadline=None)
def test_parquet_reads_as_csv_does(columns: Columns) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    one_type = {k: v for k, v in columns.items() if len({type(cell) for cell in v} - {type(None)}) == 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        parquet.write_table(pyarrow.table(one_type), path)
        assert prepare_table(path).data.digest == prepared(one_type).data.digest


def test_forms_of_text_tables(tmp_path: Path) -> None:
    rows = "a{0}b{0}y\n1{0}red{0}0\n{1}{0}blue{0}1\n\n3{0}red{0}1\n5{0}blue{0}0\n"
    forms = {"a.csv": (",", "2.5"), "b.csv": (";", "2,5"), "c.tsv": ("\t", "2.5"), "d.csv": ("\t", "2.5")}
    digests = set()
    for name, (mark, number) in forms.items():
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + rows.format(mark, number).replace("\n", "\r\n").encode())
        table = prepare_table(tmp_path / name)
        assert table.table.lines == [2, 3, 5, 6]
        digests.add(table.data.digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\na, kg;b;y\n1,5;2;0\n2;3;1\n4;1;0\n5;2;1\n",
        "a, kg;b;y\n1,5;2;0\n2;3;1\n4;1;0\n5;2;1\n",
        '"a\n(kg; net)",b,y\n1.5,2,0\n2,3,1\n4,1,0\n5,2,1\n',
        "a, kg;b, m;y\n1,5;2,5;0\n2,5;3,5;1\n4,5;1,5;0\n5,5;2,5;1\n",
        "a;b\ty\n1.5\t0\n2\t1\n4\t0\n5\t1\n",
        "a,b,y\n1.5,2,0\n   \n2,3,1\n4,1,0\n5,2,1\n \t \n",
    ],
)
def test_the_separator_is_what_the_lines_have_alike(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    table = read_table(tmp_path / "a.csv")
    assert (len(table), table.columns["y"]) == (4, ["0", "1", "0", "1"])


def test_a_cell_may_be_a_book(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'a,y\n"{"word " * 50_000}",0\n1,1\n')
    assert len(str(read_table(tmp_path / "a.csv").columns["a"][0])) == 249_999


def test_a_cell_over_several_lines_moves_the_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,y\n"one\ntwo",0\n1,1\n')
    assert read_table(tmp_path / "a.csv").lines == [2, 4]


def test_columns_without_a_name_are_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",a,y,\n0,1,0,\n1,2,1,\n")
    assert list(read_table(tmp_path / "a.csv").columns) == ["a", "y"]


def test_parquet_that_is_none_and_odd_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    path = tmp_path / "a.parquet"
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as Parquet: .*; write it anew"):
        prepare_table(path)
    columns = {
        "lists": [[i] for i in range(6)],
        "when": pyarrow.array([10**9 + 1] * 6, pyarrow.timestamp("ns")),
        "kind": pyarrow.array(["a", "b", "a"] * 2).dictionary_encode(),
        "__index_level_0__": list(range(6)),
        "y": [1.0, 2.0] * 3,
    }
    parquet.write_table(pyarrow.table(columns), path)
    table = prepare_table(path)
    assert table.features == ("kind=a", "kind=b")
    assert table.data.class_names == ("1", "2")
    assert table.table.place(0).endswith("a.parquet, row 1")
    text = pyarrow.array([b"a", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"label": ["a", "b"], "note": text}), path)
    with pytest.raises(DataError, match=r"a\.parquet, column 'note': holds text that is not UTF-8; write it anew"):
        prepare_table(path)
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array([1]), pyarrow.array([2])], ["a", "a"]), path)
    with pytest.raises(DataError, match="more than one column is called 'a'"):
        prepare_table(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow, which is not installed; pip install 'mirrordescent\[lab\]'"):
        prepare_table(path)


def test_columns_without_a_name_are_told_unless_they_are_row_numbers(tmp_path: Path) -> None:
    rows = [(i % 3 + 0.5, i * i % 7, "ab"[i % 2]) for i in range(20)]
    for first, told in (("", False), ("{i}", False), ("k{i}", True)):
        lines = [",".join([first.format(i=i), *map(str, row)]) for i, row in enumerate(rows)]
        (tmp_path / "a.csv").write_text("\n".join([",x,z,label", *lines]))
        notes = prepare_table(tmp_path / "a.csv").data.notes
        assert ("left out, as it has no name in the header: column 1" in notes) == told
    for index, told in ((range(20), False), ([f"k{i}" for i in range(20)], True)):
        frame = pd.DataFrame(rows, columns=["x", "z", "label"], index=pd.Index(list(index)))
        frame.to_parquet(tmp_path / "a.parquet")
        notes = prepare_table(tmp_path / "a.parquet").data.notes
        assert any("no name in the header: the index (__index_level_0__)" in note for note in notes) == told


@given(mixed())
@settings(max_examples=30, deadline=None)
def test_json_lines_read_as_csv_does(columns: Columns) -> None:
    """Whatever the order of the keys; a missing one is a missing value."""
    names, rows = list(columns), list(zip(*columns.values(), strict=True))
    written = [{name: cell for name, cell in zip(names, row, strict=True) if cell is not None} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        lines = [dict.fromkeys(names), *[dict(reversed(row.items())) for row in written]]  # the first has no label
        path.write_text("\n\n".join(json.dumps(line, ensure_ascii=i % 2 == 0) for i, line in enumerate(lines)))
        table = prepare_table(path)
        assert table.table.lines == list(range(1, 2 * len(rows) + 2, 2))
        assert table.data.digest == prepared(columns).data.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"a": 1, "y": 0}\n{"a": 2, "y": 1',
            r"a\.jsonl, line 2: is not JSON \(Expecting .*, character 1\d\)",
        ),
        ('\n{"a": 1, "y": 0}\n[1, 2]\n', r"line 3: is not an object; write an object per line"),
        ("[" * 100_000, r"line 1: is (not JSON|nested too deeply)"),
        ('{"a": 1' + "0" * 5000 + "}", r"line 1: cannot be read"),
        (
            '[{"a": 1},\n{"a": 2}]',
            r"line 1: is not JSON .*; one array .*: jq -c '\.\[\]' FILE > FILE\.jsonl",
        ),
        ('[{"a": 1}, {"a": 2}]', r"line 1: is not an object; one array of objects, it seems"),
        ('{\n  "a": 1\n}\n', r"line 1: is not JSON .*; objects over several lines, it seems: jq -c \. FILE"),
        ('{"a": 1, "y": 0}\n{"y": 1, "a": 2, "y": 0}', r"line 2: the key 'y' is there twice; remove one"),
        (" \n", r"is empty; write an object per line"),
        ('{"a": 1}\n{"a": 2}\n', r"no column called label, target, class or y"),
    ],
)
def test_what_is_no_json_lines_is_told_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=message):
        prepare_table(tmp_path / "a.jsonl")
