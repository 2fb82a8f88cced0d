"""Labels from a file: by the samples or by the rows of the data, by the names of the classes or their numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mirrordescent.lab.data import DataError, Source, load
from mirrordescent.lab.data.base import Data
from mirrordescent.lab.data.labelfile import labels_in
from mirrordescent.lab.job import given_labels
from mirrordescent.lab.runs import Run

ROWS = torch.tensor([0, 3, 4])  # of six; row 2 has no label


def data(*names: str, rows: torch.Tensor | None = ROWS, there: int = 6) -> Data:
    x, y = torch.zeros(3, 1), torch.tensor([0, 1, 0])
    return Data("a", x, y, x, y, classes=len(names), class_names=names, rows=rows, there=there)


def read(path: Path, text: str, held: Data) -> list[int]:
    path.write_text(text, encoding="utf-8")
    return labels_in(path, held).tolist()


def test_a_line_for_each_sample(tmp_path: Path) -> None:
    for held in (data("a", "b", "c"), data("a", "b", "c", rows=None)):
        assert read(tmp_path / "l", "1\n0\n2\n", held) == [1, 0, 2]
        assert read(tmp_path / "l", "1\n0\n2\n\n\n", held) == [1, 0, 2]
        assert read(tmp_path / "l", "b\na\nc", held) == [1, 0, 2]
        with pytest.raises(DataError, match=r"line 3: '7' is not one of the classes \(a, b, c\), nor a number"):
            read(tmp_path / "l", "1\n0\n7\n", held)


def test_a_line_for_each_row_of_a_table(tmp_path: Path) -> None:
    text = "red fox\nwolf\n\nwolf\nred fox\n\n"
    assert read(tmp_path / "l", text, data("red fox", "wolf")) == [0, 1, 0]
    assert read(tmp_path / "l", text, data("red fox", "wolf", there=5)) == [0, 1, 0]  # the file ends in an empty line
    with pytest.raises(DataError, match="holds 5 labels, but there are 3 samples to train on, of 8 in the data's own"):
        read(tmp_path / "l", text, data("red fox", "wolf", there=8))
    with pytest.raises(DataError, match=r"line 4: 'wolf' is not one of the classes \(red fox, fox\)$"):
        read(tmp_path / "l", text, data("red fox", "fox"))


@pytest.mark.parametrize("text", ["Basic\nPro\nbasic", "\ufeffBASIC\n  pro \nBasic", "Basic\nPRO\nBasic\n"])
def test_names_may_be_written_as_in_the_data(text: str, tmp_path: Path) -> None:
    assert read(tmp_path / "l", text, data("Basic", "Pro")) == [0, 1, 0]


def test_names_that_are_numbers_are_names(tmp_path: Path) -> None:
    held = data("1", "2", "3")
    assert read(tmp_path / "l", "3\n2.0\n01\n", held) == [2, 1, 0]
    with pytest.raises(DataError, match="line 2: '0' is not one of the classes"):  # not places from 0 on
        read(tmp_path / "l", "1\n0\n2\n", held)
    for odd in ("²", "a", "1.5", ""):
        with pytest.raises(DataError, match=f"line 2: '{odd}' is not one of the classes"):
            read(tmp_path / "l", f"1\n{odd}\n2\n", held)


def test_names_that_differ_in_case_alone_are_not_guessed(tmp_path: Path) -> None:
    assert read(tmp_path / "l", "a\nA\na\n", data("A", "a")) == [1, 0, 1]
    with pytest.raises(DataError, match="line 1: 'é' is not one of the classes"):
        read(tmp_path / "l", "é\nA\na\n", data("A", "a"))


def test_a_tables_own_labels_are_its_labels(tmp_path: Path) -> None:
    """However they are written there."""
    labels = [("3.0", "2", "03", "", "1")[k % 5] if k % 7 else "2" for k in range(60)]
    lines = [f"{k * k % 11},{k % 13 / 4},{label}" for k, label in enumerate(labels)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,label", *lines]))
    (tmp_path / "l").write_text("\n".join(labels))
    held = load(Source(str(tmp_path / "a.csv")))
    given = given_labels(Run(data="a.csv", noise="file", noise_file=str(tmp_path / "l")), held)
    assert torch.equal(given.labels, held.targets)
    assert not given.changed.any()


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    held = replace(load(Source("regression")), classes=None)
    with pytest.raises(ValueError, match="corruption is for classes"):
        given_labels(Run(data="regression", noise="file", noise_file=str(tmp_path / "l")), held)
