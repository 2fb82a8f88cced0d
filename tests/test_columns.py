"""Columns of a table as inputs: training sees finite numbers, which are learnt from the training rows alone."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tabled import Columns, by_name, mixed, prepared, write

from mirrordescent.lab.data.split import count_known
from mirrordescent.lab.data.tablefile import Cell
from mirrordescent.lab.data.tables import prepare_table


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
    again = prepared(changed)
    assume(torch.equal(again.rows, table.rows))  # copies of a row go to one side, and these are others
    assert by_name(again) == by_name(table)


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
        "left out, every value different: name",
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


def test_levels_with_enough_rows_have_a_column_each(tmp_path: Path) -> None:
    words = [f"w{i:02}" for i in range(60) for _ in range(10)] + [f"rare {i}" for i in range(25) for _ in range(9)]
    columns: Columns = {"word": words, "label": [k % 2 for k in range(len(words))]}
    test = write(tmp_path / "t.csv", {"word": ["w59", "rare 3"], "label": [0, 1]})
    data = prepare_table(write(tmp_path / "a.csv", columns), test=test).data
    assert data.shape == (61,)
    assert data.inputs.sum(dim=0).tolist() == 60 * [10.0] + [225.0]
    assert "text columns as one-hot: word (85 levels, 60 of them and others (27.3 % of the rows))" in data.notes


def test_rare_spellings_of_a_level_are_the_usual_one(tmp_path: Path) -> None:
    """By the rule for labels, learnt from the training rows alone: frequent spellings stay apart."""
    columns: Columns = {
        "city": ["Berlin"] * 9 + ["BERLIN", "berlin"] + ["New York"] * 5 + ["New  york"] + ["a"] * 3 + ["A"] * 2,
        "paid": ["yes"] * 21 + ["Yes"],
        "size": [i * i % 7 for i in range(22)],
        "label": ["x", "y"] * 11,
    }
    rows: Columns = {
        "city": ["berlin", "bErLiN", "NEW YORK", "A", "Bonn", *["BONN"] * 9],
        "paid": ["yes"] * 14,
        "size": [1] * 14,
        "label": ["x"] * 14,
    }
    table = prepare_table(write(tmp_path / "a.csv", columns), test=write(tmp_path / "t.csv", rows))
    assert table.features == ("city=Berlin", "city=New York", "city=a", "city=A", "size")
    assert table.data.inputs[:, :4].sum(dim=0).tolist() == [11, 6, 3, 2]
    assert [test[:4].tolist() for test in table.data.test_inputs[:4]] == [
        [1, 0, 0, 0],
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
    ]
    assert not table.data.test_inputs[4:, :4].any()  # the test set does not tell how a level is spelt
    assert "levels that differ in case or spaces alone, taken as one: city (3 merged)" in table.data.notes
    assert "left out, constant but for case or spaces: paid" in table.data.notes
    assert "text columns as one-hot: city (4 levels)" in table.data.notes


def test_rows_that_differ_in_a_rare_spelling_are_copies(tmp_path: Path) -> None:
    """Training sees them as equal, and none is tested whose copy was learnt."""
    rows = [f"{math.sin(i)},{{}},{'xy'[i % 2]}\n" for i in range(60)]
    path = tmp_path / "a.csv"
    path.write_text("a,city,label\n" + "".join(row.format("Berlin" if i % 3 else "Bonn") for i, row in enumerate(rows)))
    assert not any("copies" in note for note in prepare_table(path).data.notes)
    with path.open("a") as file:
        file.writelines(rows[i].format("BERLIN") for i in (1, 2, 4, 5, 7))
    for seed in range(5):
        data = prepare_table(path, split_seed=seed).data
        assert count_known(data.inputs, data.test_inputs) == 0
        assert any(note.endswith("with copies on the same side") for note in data.notes)


@pytest.mark.parametrize(("repeated", "told"), [(0, "every"), (1, "every"), (5, "nearly every")])
def test_whether_every_value_is_different_is_told(repeated: int, told: str, tmp_path: Path) -> None:
    names = ["c0"] * repeated + [f"c{i}" for i in range(repeated, 90)]
    columns: Columns = {"id": names, "a": [i * i % 7 for i in range(90)], "y": [0, 1] * 45}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    assert f"left out, {told} value different: id" in notes


@pytest.mark.parametrize(("more", "among", "share", "told"), [(500, 500, 97.1, True), (2000, 40, 59, False)])
def test_text_that_may_be_an_id_is_told(more: int, among: int, share: float, told: bool, tmp_path: Path) -> None:
    """It stays an input: it may be a town, too."""
    ids = [f"c{i}" for i in range(3000)] + [f"c{i % among}" for i in range(more)]
    columns: Columns = {"id": ids, "a": [i * i % 7 for i in range(len(ids))], "y": [i % 2 for i in range(len(ids))]}
    notes = prepare_table(write(tmp_path / "a.csv", columns), whole=True).data.notes
    hint = ", nearly every row has a rare level; --without leaves out an ID" if told else ""
    assert f"text columns as one-hot{hint}: id (3,000 levels, 50 of them and others ({share} % of the rows))" in notes


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


def test_few_values_beside_many_zeros() -> None:
    draw = Random(0)
    values = [math.exp(draw.gauss(0, 1.5)) if draw.random() < 0.2 else 0.0 for _ in range(800)]
    columns: Columns = {"a": values, "label": ["x", "y"] * 400}
    table = prepared(columns)
    assert "numbers with long tails on a logarithmic scale: a" in table.data.notes
    assert max(by_name(table)["a"]) < 8  # 17 in standard units
    small: Columns = {"a": values[:49] + [0.0] * 11, "label": ["x", "y"] * 30}
    assert not any("long tails" in note for note in prepared(small).data.notes)


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
