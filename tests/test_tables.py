"""Tables for classification: labels, classes and rows as people have them; or one clear line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from tabled import Columns, prepared, write

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.tablefile import Cell
from mirrordescent.lab.data.tables import prepare_table


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


@pytest.mark.parametrize(("every", "told"), [(20, True), (3, True), (1.5, False)])
def test_a_column_with_gaps_may_be_the_label_again(every: float, told: bool) -> None:
    labels = [k * k % 7 % 3 for k in range(300)]
    codes = ["" if int(k / every) == k / every or (every < 2 and k % 3) else f"code {y}" for k, y in enumerate(labels)]
    notes = prepared({"a": [math.sin(k) for k in range(300)], "b": codes, "y": labels}).data.notes
    assert any("b tells the label of 100 % of the rows that have it by itself" in note for note in notes) == told


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


def test_what_a_missing_label_was_is_told(tmp_path: Path) -> None:
    columns: Columns = {"a": [str(i * i % 7) for i in range(12)], "label": ["DE", "FR", "NA", ""] + ["DE", "FR"] * 4}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    assert "left out of a.csv, 2 rows without a label ('NA' taken as none): line 4, line 5" in notes


def test_rows_that_contradict_each_other_are_counted(tmp_path: Path) -> None:
    columns: Columns = {"a": ["1", "1", "2", "2", "3", "4"], "label": ["x", "y", "x", "x", "y", "x"]}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    assert "rows with the same inputs as others that have another label: 2" in notes
