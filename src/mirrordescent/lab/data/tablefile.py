"""Reads a table (CSV, TSV, JSON Lines, Parquet) with every cell as it is written; Parquet needs pyarrow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.jsonlines import ENDINGS, as_text, read_json_lines, without_halves
from mirrordescent.lab.data.textfile import read_records
from mirrordescent.lab.names import first_line, listed

Cell = str | bool | int | float | None  # None: no value


@dataclass(frozen=True)
class Table:
    """A table as it is written in its file.

    columns: their cells, top to bottom. lines: each row's number as the user sees it: its line in a text file, where
    the first is line 1, or its row in a Parquet file, where 1 is the first. semicolons: whether these separate the
    cells. unnamed: what to call the columns without a name ("column 3") that hold anything but row numbers.
    """

    path: Path
    columns: dict[str, list[Cell]]
    lines: list[int]
    unit: str = "line"
    semicolons: bool = False
    unnamed: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.lines)

    def place(self, row: int) -> str:
        """Say where a row stands: "a.csv, line 7"."""
        return f"{self.path}, {self.unit} {self.lines[row]}"

    def row(self, row: int) -> dict[str, Cell]:
        """One row, as it is written."""
        return {name: cells[row] for name, cells in self.columns.items()}

    def cell(self, row: int, column: str) -> str:
        """Say where a cell stands: "a.csv, column 'age', line 7"."""
        # the column first: in a list of several places, only what follows the last comma is repeated
        return f"{self.path}, column {column!r}, {self.unit} {self.lines[row]}"


def read_table(path: Path) -> Table:
    """Read a file in one of the formats, every cell as it is written; DataError if it cannot be read as such."""
    others = {".parquet": _read_parquet, **dict.fromkeys(ENDINGS, _read_json_lines)}
    try:
        table = others.get(path.suffix.lower(), _read_text)(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(table) == 0:
        raise DataError(f"{path} has a header, but no rows")
    return table


def _read_text(path: Path) -> Table:
    records = read_records(path)
    header, rows = records.header, records.cells[1:]
    _refuse_duplicates(path, header)
    ragged = [i for i, cells in enumerate(rows, start=1) if len(cells) != len(header)]
    if ragged:
        raise DataError(
            f"{path}, line {records.number(ragged[0])}: {len(records.cells[ragged[0]])} cells, but the header has "
            f"{len(header)} (lines like that: {len(ragged):,}); text with a separator in it needs quotation marks"
        )
    columns: dict[str, list[Cell]] = {
        name: [cells[i].strip() or None for cells in rows] for i, name in enumerate(header) if name
    }
    lines = [records.number(i) for i in range(1, len(records.cells))]
    told = [i for i, name in enumerate(header) if not name and _tells([cells[i].strip() or None for cells in rows])]
    unnamed = tuple(f"column {i + 1}" for i in told)
    return Table(path, columns, lines, semicolons=records.mark == ";", unnamed=unnamed)


def _read_json_lines(path: Path) -> Table:
    held = read_json_lines(path)
    names = dict.fromkeys(name for found in held.objects for name in found)  # in order of appearance
    columns = {name: [_plain(without_halves(found.get(name))) for found in held.objects] for name in names}
    return Table(path, columns, [row + 1 for row in held.rows])


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path} needs pyarrow, which is not installed; pip install 'mirrordescent[lab]'") from None
    try:
        file = parquet.ParquetFile(path)
        names = [str(name) for name in file.schema_arrow.names]
        _refuse_duplicates(path, names)
        content = file.read()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} cannot be read as Parquet: {first_line(error)}; write it anew") from None
    columns: dict[str, list[Cell]] = {}
    unnamed = []
    for name, column in zip(names, content.columns, strict=True):
        if pyarrow.types.is_timestamp(column.type) or pyarrow.types.is_date(column.type):
            column = column.cast(pyarrow.string())  # Python's own dates have no nanoseconds
        try:
            cells = [_plain(value) for value in column.to_pylist()]
        except UnicodeDecodeError:
            raise DataError(f"{path}, column {name!r}: holds text that is not UTF-8; write it anew") from None
        if name.startswith("__index_level_"):  # row labels of a pandas frame
            unnamed += [f"the index ({name})"] if _tells(cells) else []
        else:
            columns[name] = cells
    return Table(path, columns, list(range(1, content.num_rows + 1)), unit="row", unnamed=tuple(unnamed))


def _tells(cells: Sequence[Cell]) -> bool:
    """Whether a column without a name holds anything, apart from row numbers."""
    texts = [str(cell) for cell in cells]
    numbered = any(texts == [str(row) for row in range(first, first + len(texts))] for first in (0, 1))
    return not numbered and any(cell is not None for cell in cells)


def _plain(value: object) -> Cell:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, Decimal):
        return float(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, dict | list):
        return as_text(value)
    return value if isinstance(value, bool | int | float) else str(value)


def _refuse_duplicates(path: Path, header: Sequence[str]) -> None:
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        raise DataError(f"{path}: more than one column is called {listed([repr(n) for n in twice])}; rename them")
