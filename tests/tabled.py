"""Tables for the tests of what becomes of them: made up by hypothesis, or written from columns."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from mirrordescent.lab.data.tablefile import Cell
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
