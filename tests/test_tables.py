"""Tables: whatever is in them, training sees finite numbers learnt from the training rows alone; or one clear line."""

from __future__ import annotations

import csv
import math
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.tablefile import Cell, read_table
from mirrordescent.lab.data.tables import PreparedTable, prepare_table

Columns = dict[str, Sequence[Cell]]

NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-5, 5))
TEXTS = st.one_of(st.none(), st.sampled_from(["red", "green", "blue"]), st.text('abc xyz,;"é\n', max_size=6))
CELLS = [NUMBERS, st.integers(0, 3), TEXTS, st.booleans(), st.just(7), st.just("2024-02-29"), NUMBERS | TEXTS]


@st.composite
def mixed(draw: st.DrawFn) -> Columns:
    n = draw(st.integers(4, 30))
    more = draw(st.lists(st.sampled_from(["yes", "no"]), min_size=n - 4, max_size=n - 4))
    columns: Columns = {"sure": [i * i % 7 for i in range(n)]}  # so that something is left in every split
    for i, cells in enumerate(draw(st.lists(st.sampled_from(CELLS), max_size=5))):
        columns[f"column {i}"] = draw(st.lists(cells, min_size=n, max_size=n))
    return {**columns, "label": ["yes", "no", "no", "yes", *more]}


def write(path: Path, columns: Columns) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def prepared(columns: Columns, seed: int = 0) -> PreparedTable:
    with tempfile.TemporaryDirectory() as folder:
        return prepare_table(write(Path(folder, "a.csv"), columns), split_seed=seed)


def by_name(table: PreparedTable) -> dict[str, list[float]]:
    return dict(zip(table.features, table.data.inputs.T.tolist(), strict=True))


@given(mixed(), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_any_table_becomes_finite_standard_numbers(columns: Columns, seed: int) -> None:
    table = prepared(columns, seed)
    data, n = table.data, len(columns["label"])
    for inputs in (data.inputs, data.test_inputs):
        assert inputs.dtype == torch.float32
        assert bool(inputs.isfinite().all())
    assert len(data) + len(data.test_inputs) == n
    assert [data.class_names[i] for i in data.targets] == [columns["label"][i] for i in table.rows]
    assert sorted(set(table.rows.tolist())) == table.rows.tolist()
    numbers = [i for i, name in enumerate(table.features) if name in columns]
    units = data.inputs[:, numbers].double()
    assert float(units.mean(dim=0).abs().max()) < 1e-5
    assert float((units.std(dim=0, correction=0) - 1).abs().max()) < 1e-5
    others = [i for i in range(len(table.features)) if i not in numbers]
    assert set(data.inputs[:, others].flatten().tolist()) <= {0.0, 1.0}
    assert prepared(columns, seed).data.digest == data.digest


@given(mixed(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_columns_does_not_matter(columns: Columns, random: Random) -> None:
    names = list(columns)
    random.shuffle(names)
    assert by_name(prepared({name: columns[name] for name in names})) == by_name(prepared(columns))


@given(mixed())
@settings(max_examples=30, deadline=None)
def test_test_rows_have_no_say_in_training(columns: Columns) -> None:
    table = prepared(columns)
    train = set(table.rows.tolist())
    changed: Columns = {
        name: [cell if i in train or name == "label" else 1e300 for i, cell in enumerate(cells)]
        for name, cells in columns.items()
    }
    assert by_name(prepared(changed)) == by_name(table)


@given(mixed())
@settings(max_examples=30, deadline=None)
def test_parquet_reads_as_csv_does(columns: Columns) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    one_type = {k: v for k, v in columns.items() if len({type(cell) for cell in v} - {type(None)}) == 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        parquet.write_table(pyarrow.table(one_type), path)
        assert prepare_table(path).data.digest == prepared(one_type).data.digest


COLUMNS: Columns = {
    "number": [0.5, 1.5, None, 9.5, 2.5, 3.5, None, 4.5],
    "constant": [3] * 8,
    "word": ["a", "b", "a", "b", None, "a", "b", "a"],
    "day": ["2024-01-02"] * 8,
    "name": [f"person {i}" for i in range(8)],
    "empty": [None] * 8,
    "target": ["x", "y"] * 4,
}


def test_what_each_column_becomes_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", COLUMNS)
    test = write(
        tmp_path / "t.csv", {"number": [None, 2.5], "word": ["a", "new"], "target": ["y", "x"], "more": [1, 2]}
    )
    table = prepare_table(path, test=test)
    assert table.features == ("number", "number missing", "word=a", "word=b", "word=(missing)")
    assert table.data.notes == (
        "label column: target",
        "test set: 2 rows of t.csv",
        "read as numbers: number",
        "missing numbers replaced by the median: number (3)",
        "left out, constant: constant",
        "text columns as one-hot: word (3 levels)",
        "left out, dates: day",
        "left out, nearly every value different: name",
        "left out, no values: empty",
        "columns of t.csv that the training set does not have: more",
    )
    middle = torch.tensor([0.5, 1.5, 2.5, 9.5, 2.5, 3.5, 2.5, 4.5])  # the lower median
    torch.testing.assert_close(table.data.inputs[:, 0], (middle - middle.mean()) / middle.std(correction=0))
    assert table.data.test_inputs[:, 1:].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert table.data.test_inputs[0, 0] == table.data.inputs[2, 0]
    assert table.table.row(int(table.rows[3]))["name"] == "person 3"
    assert table.table.place(3).endswith("a.csv, line 5")


def test_rare_levels_share_a_column(tmp_path: Path) -> None:
    words = [f"{i:02}" + "x" for i in range(60) for _ in range(3)]
    columns: Columns = {"word": words, "label": ["a", "b"] * 90}
    test = write(tmp_path / "t.csv", {"word": ["59x", "00x", "never"], "label": ["a", "b", "a"]})
    data = prepare_table(write(tmp_path / "a.csv", columns), test=test).data
    assert data.shape == (51,)
    assert data.inputs.sum(dim=1).tolist() == [1.0] * 180
    assert data.test_inputs[:, 50].tolist() == [1, 0, 0]
    assert data.test_inputs.sum(dim=1).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "9", "10"], ("9", "10")),
        (["1.0", "0", "01", "0.0"], ("0", "1")),
        (["none", "b", "none", "b"], ("b", "none")),
        ([True, False, True, False], ("False", "True")),
        ([" b", "a", "b ", "a"], ("a", "b")),
        (["b", "10", "b", "9"], ("10", "9", "b")),
    ],
)
def test_classes_by_name_or_number(labels: Sequence[Cell], classes: tuple[str, ...]) -> None:
    assert prepared({"a": [1, 2, 3, 5], "label": labels}).data.class_names == classes


def test_a_class_of_one_is_trained_on() -> None:
    for seed in range(20):
        table = prepared({"a": [*range(9), 11], "y": ["p", "q"] * 4 + ["p", "lonely"]}, seed)
        assert 9 in table.rows
    assert "classes with one row, which is in the training set: lonely" in table.data.notes


def test_odd_cells_and_row_numbers_are_told() -> None:
    n = 40
    values: list[Cell] = [math.sin(i) for i in range(n)]
    values[2] = "unknown"
    table = prepared({"id": range(5, 5 + n), "a": values, "y": [0, 1] * (n // 2)})
    assert "left out, row numbers: id" in table.data.notes
    told = "column 'a', line 4: 'unknown' is not a number, taken as missing (1 such)"
    assert any(told in note for note in table.data.notes)


@pytest.mark.parametrize("step", [1, 7, -2])
def test_what_counts_the_rows_is_left_out(step: int) -> None:
    columns: Columns = {"id": [1000 + step * i for i in range(90)], "a": [i * i % 7 for i in range(90)]}
    table = prepared({**columns, "y": [0, 1] * 45})
    assert table.features == ("a",)
    told = "row numbers" if step == 1 else "whole numbers in even steps from row to row"
    assert f"left out, {told}: id" in table.data.notes
    assert prepared({**columns, "half": [i / 2 for i in range(90)], "y": [0, 1] * 45}).features == ("a", "half")


def test_a_few_numbers_in_even_steps_may_be_measured_at() -> None:
    assert prepared({"dose": range(10, 210, 10), "y": [0, 1] * 10}).features == ("dose",)


def test_what_may_be_an_id_is_told() -> None:
    """It stays an input: a rank or a salary may be different in every row, too."""
    shuffled = [(37 * i) % 90 for i in range(90)]
    table = prepared({"id": shuffled, "size": [i + 0.5 for i in shuffled], "a": [0, 1, 2] * 30, "y": [0, 1] * 45})
    assert table.features == ("id", "size", "a")
    assert "whole numbers, every one different; --without leaves out an ID: id" in table.data.notes
    assert "read as numbers: id, size, a" in table.data.notes


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


def test_columns_can_be_left_out(tmp_path: Path) -> None:
    columns: Columns = {
        "a": [i * i % 7 for i in range(30)],
        "b, c": ["u", "v", "w"] * 10,
        "label": ["x", "y", "z"] * 10,
    }
    path = write(tmp_path / "a.csv", columns)
    assert set(prepare_table(path, without="b, c").features) == {"a"}
    told = prepare_table(path).data.notes
    assert any(note.startswith("b, c tells the label of 100 % of the rows") for note in told)
    assert any(note.endswith("--without 'b, c' leaves it out") for note in told)
    assert not any("tells the label" in note for note in prepare_table(path, without="b, c").data.notes)
    for wrong, message in (("d", "has no column 'd'"), ("a,lable", "did you mean 'label'"), ("label", "is the label")):
        with pytest.raises(DataError, match=message):
            prepare_table(path, without=wrong)


@pytest.mark.parametrize(
    ("told", "values"),
    [(True, ["u", "v", "w"]), (False, ["u", "u", "w"]), (False, ["u", "v", "w", "t", "s"]), (True, [1, 2, 3])],
)
def test_a_column_that_is_the_label_again_is_told(told: bool, values: list[Cell]) -> None:
    columns: Columns = {"a": [i * i % 7 for i in range(300)], "b": values * (300 // len(values)), "y": [0, 1, 2] * 100}
    assert any("b tells the label" in note for note in prepared(columns).data.notes) == told


def test_a_rare_class_is_not_told_by_a_lucky_column() -> None:
    columns: Columns = {
        "a": [i * i % 7 for i in range(1000)],
        "b": ["odd"] + ["even"] * 999,
        "y": [1] * 4 + [0] * 996,
    }
    assert not any("tells the label" in note for note in prepared(columns).data.notes)


def test_labels_written_in_several_ways_are_told() -> None:
    columns: Columns = {"a": [i * i % 7 for i in range(12)], "label": ["01", "1", "cafe\u0301", "caf\u00e9"] * 3}
    data = prepared(columns).data
    assert data.class_names == ("1", "caf\u00e9")
    note = "labels that are written in several ways, taken as one class: '01' and '1', 'cafe\u0301' and 'caf\u00e9'"
    assert note in data.notes


def test_a_cell_over_several_lines_moves_the_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,y\n"one\ntwo",0\n1,1\n')
    assert read_table(tmp_path / "a.csv").lines == [2, 4]


def test_columns_without_a_name_are_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",a,y,\n0,1,0,\n1,2,1,\n")
    assert list(read_table(tmp_path / "a.csv").columns) == ["a", "y"]


GOOD = "a,label\n1,x\n2,y\n3,x\n5,y\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.csv is empty"),
        ("\n\n", r"a\.csv is empty"),
        ("a,label\n", "has a header, but no rows"),
        ("a,label\n1,x\n1\n1,2,3\n", r"line 3: 1 cells, but the header has 2 \(lines like that: 2\)"),
        ("a,b,a,label\n1,2,3,x\n", "more than one column is called 'a'; rename"),
        ('a,label\n"1,x\n2,y\n', "line 2: unexpected end of data; look for a quotation mark"),
        ("a,label\n1,é\n".encode("latin-1"), "line 2: the byte 0xe9 is not UTF-8"),
        (GOOD.encode("utf-16"), "is in UTF-16; save it as UTF-8"),
        (b"PK\x03\x04\0\0", "is not a text file"),
        ("a,b\n1,x\n", r"no column called label, target, class or y; say which one is the label \(--label\): a, b$"),
        ("1,2\n1,x\n", r"\(the first line should hold the columns' names\)"),
        ("a,label\n1,x\n" + "2,\n" * 7, r"line 3, line 4, line 5, line 6, line 7 and 2 more: the label is missing"),
        ("a,label\n1,x\n2,\n3,NA\n", r"column 'label', line 3, line 4: the label is missing \(2 of 3\)"),
        ("a,label\n1,x\n2,x\n", "column 'label': only one class, 'x'"),
        ("a,label\n1,0.5\n2,1\n3,1\n", "line 2: the label 0.5 is not a whole number"),
        ("a,label\n" + "".join(f"1,{i}\n" for i in range(300)), "300 different labels for 300 samples"),
        ("a,label\n1,x\n2,y\n", "every class has a single sample"),
        ("a,label\n1,x\n1,y\n1,x\n1,y\n", r"no column is left to learn from \(left out, constant: a\)"),
        ("label\nx\ny\nx\ny\n", r"no column is left to learn from \(there is only the label\)"),
        ("a,label\n1,x\n2,y\n-inf,x\n5,y\n4,x\n", "column 'a', line 4: -inf is infinite"),
        (f"a,label\n1,x\n2,y\n{'9' * 400},x\n5,y\n4,x\n", "line 4: 9+ is infinite"),
    ],
)
def test_what_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        prepare_table(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_wrong_label_name_and_wrong_test_files(tmp_path: Path) -> None:
    path, test = tmp_path / "a.csv", tmp_path / "t.csv"
    path.write_text(GOOD)
    with pytest.raises(DataError, match=r"no column 'lable' \(did you mean 'label'\?\); it has a, label"):
        prepare_table(path, "lable")
    for content, message in {
        "a,class\n1,x\n": "t.csv has no column 'label', the label of the training set",
        "b,label\n1,x\n": "t.csv has no column 'a', which the training set has",
        "a,label\n1,x\n1,z\n": "line 3: the label 'z' does not occur in the training set, which has x, y",
        "a,label\n1,\n": "line 2: the label is missing",
    }.items():
        test.write_text(content)
        with pytest.raises(DataError, match=message):
            prepare_table(path, test=test)


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


def test_long_tails_are_drawn_in_and_others_are_not() -> None:
    draw = Random(0)
    logs = [draw.gauss(0, 1.5) for _ in range(400)]
    columns: Columns = {
        "spent": [None if i % 40 == 0 else f"{math.exp(log):.6f}" for i, log in enumerate(logs)],
        "age": [f"{40 + 10 * log:.6f}" for log in logs],
        "label": ["yes" if i % 3 else "no" for i in range(400)],
    }
    table = prepared(columns)
    assert "numbers with long tails on a logarithmic scale: spent" in table.data.notes
    found = by_name(table)
    assert max(map(abs, found["spent"])) < 5  # 16 in standard units
    kept = [i for i, row in enumerate(table.rows.tolist()) if row % 40]
    order = sorted(kept, key=lambda i: logs[int(table.rows[i])])
    assert all(found["spent"][a] <= found["spent"][b] for a, b in pairwise(order))
    ages = torch.tensor([40 + 10 * logs[row] for row in table.rows.tolist()])
    torch.testing.assert_close(
        torch.tensor(found["age"]), (ages - ages.mean()) / ages.std(correction=0), atol=1e-4, rtol=0
    )


def test_a_word_for_nothing_is_no_level() -> None:
    columns: Columns = {
        "colour": ["red", "NA", None, "blue", "none", "?", "red", "none"] * 3,
        "label": ["yes", "no", "no", "yes"] * 6,
    }
    found = prepared(columns).features
    assert {"colour=(missing)", "colour=none"} <= set(found)
    assert not {"colour=NA", "colour=?"} & set(found)


def test_a_test_set_is_read_as_the_training_set_is(tmp_path: Path) -> None:
    """What a comma means, long tails, labels in other letters and rows without one."""
    draw = Random(0)
    values = [round(math.exp(draw.gauss(6, 2))) for _ in range(200)]
    lines = [f"{value:,};{'Yes' if i % 2 else 'no'}" for i, value in enumerate(values)]
    path, test = tmp_path / "a.csv", tmp_path / "t.csv"
    path.write_text("\n".join(["a;label", *lines]))
    large = [i for i, value in enumerate(values) if 1000 <= value < 1_000_000]
    test.write_text("\n".join(["a;label", *[lines[i].replace("Yes", "yes") for i in large], "5;"]))
    table = prepare_table(path, test=test)
    assert "commas taken as separators of thousands: a" in table.data.notes
    assert "numbers with long tails on a logarithmic scale: a" in table.data.notes
    assert f"left out of t.csv, 1 row without a label: line {len(large) + 2}" in table.data.notes
    assert torch.equal(table.data.inputs[large], table.data.test_inputs)
    assert torch.equal(table.data.targets[large], table.data.test_targets)
    assert table.table.columns["a"][large[0]] == f"{values[large[0]]:,}"  # as it was written


def test_labels_are_as_they_are_written() -> None:
    for labels in (["0", "1", "1,0"], ["5%", "$5", "10%"], ["1", "2", "1,2"]):
        columns: Columns = {"a": [i * i % 7 for i in range(12)], "label": labels * 4}
        assert set(prepared(columns).data.class_names) == set(labels)


def test_few_values_beside_many_zeros() -> None:
    draw = Random(0)
    values = [math.exp(draw.gauss(0, 1.5)) if draw.random() < 0.2 else 0.0 for _ in range(800)]
    columns: Columns = {"a": values, "label": ["x", "y"] * 400}
    table = prepared(columns)
    assert "numbers with long tails on a logarithmic scale: a" in table.data.notes
    assert max(by_name(table)["a"]) < 8  # 17 in standard units
    small: Columns = {"a": values[:49] + [0.0] * 11, "label": ["x", "y"] * 30}
    assert not any("long tails" in note for note in prepared(small).data.notes)


def test_rows_without_a_label_are_no_samples() -> None:
    columns: Columns = {"a": [i * i % 7 for i in range(12)], "label": ["x", "y", "x", "y", None, "n/a"] * 2}
    table = prepared(columns)
    assert (
        "left out of a.csv, 4 rows without a label ('n/a' taken as none): line 6, line 7, line 12, line 13"
        in table.data.notes
    )
    assert len(table.data) + len(table.data.test_inputs) == 8
    assert not set(table.rows.tolist()) & {4, 5, 10, 11}
    assert [table.data.class_names[i] for i in table.data.targets] == [columns["label"][i] for i in table.rows]
    without: Columns = {name: [cell for i, cell in enumerate(cells) if i % 6 < 4] for name, cells in columns.items()}
    assert torch.equal(table.data.inputs, prepared(without).data.inputs)


def test_a_label_in_other_letters_is_the_same_class(tmp_path: Path) -> None:
    path, test = tmp_path / "a.csv", tmp_path / "t.csv"
    labels = ["Basic"] * 9 + ["BASIC", "basic"] + ["a"] * 3 + ["A"] * 2
    path.write_text("n,label\n" + "".join(f"{i * i % 7},{label}\n" for i, label in enumerate(labels)))
    test.write_text("n,label\n1,basic\n2,A\n")
    table = prepare_table(path, test=test)
    assert table.data.class_names == ("A", "Basic", "a")
    assert [table.data.class_names[i] for i in table.data.test_targets] == ["Basic", "A"]
    assert "taken as one class: 'BASIC' as 'Basic', 'basic' as 'Basic'" in table.data.notes


def test_nines_far_from_all_others_are_missing(tmp_path: Path) -> None:
    heights = [20.0 + i for i in range(30)]
    cases = {
        "filled": [*heights, -999.0, -999.0, -999.0],
        "twice": [*heights, -999.0, -999.0, 25.0],
        "near": [*[70.0 + i for i in range(29)], 50.0, 99.0, 99.0, 99.0],
        "other": [*heights, -500.0, -500.0, -500.0],
        "prices": [*[5.0 + i / 6 for i in range(30)], 99.0, 99.0, 99.0],
        "most": [*[900.0 + i / 20 for i in range(10)], *[999.0] * 23],
    }
    columns: Columns = {**cases, "label": ["a", "b", "a"] * 11}
    table = prepare_table(write(tmp_path / "a.csv", columns), whole=True)
    assert [name for name in table.features if name.endswith(" missing")] == ["filled missing"]
    assert "taken as missing, far from all other numbers: -999 in filled (3)" in table.data.notes
    assert table.data.inputs[:, table.features.index("filled missing")].sum() == 3


def test_what_a_missing_label_was_is_told(tmp_path: Path) -> None:
    columns: Columns = {"a": [str(i * i % 7) for i in range(12)], "label": ["DE", "FR", "NA", ""] + ["DE", "FR"] * 4}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    assert "left out of a.csv, 2 rows without a label ('NA' taken as none): line 4, line 5" in notes


def test_rows_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    columns: Columns = {"a": ["1", "1", "2", "2", "3", "4"], "label": ["x", "y", "x", "x", "y", "x"]}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    assert "rows with the same inputs as others that have another label: 2" in notes


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
