"""A table in a text file (CSV, TSV), record by record, with the text of each as it stands in the file."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from mirrordescent.lab.data.base import DataError

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Records:
    """The records of a text file that are not blank, the header first.

    lines: all lines of the file, with their ends. spans: the lines of each record, from and to; a cell in quotes may
    run over several. cells: those of each record.
    """

    mark: str  # between the cells
    lines: list[str]
    spans: list[tuple[int, int]]
    cells: list[list[str]]

    @property
    def header(self) -> list[str]:
        """The columns' names; columns without one are what spreadsheets append and what row numbers are written as."""
        return [name.strip() for name in self.cells[0]]

    def text(self, record: int) -> str:
        """A record as it stands in the file, with its quotation marks and the end of its line."""
        start, end = self.spans[record]
        return "".join(self.lines[start:end])

    def number(self, record: int) -> int:
        """The line on which a record begins, as a person counts."""
        return self.spans[record][0] + 1


def read_records(path: Path) -> Records:
    """The records of a text file; DataError for one that is none."""
    text = _decoded(path)
    if not text.strip():
        raise DataError(f"{path} is empty; a table begins with a line of column names")
    mark = _delimiter(path, text)
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
    spans, cells, start = [], [], 0
    try:
        for record in reader:
            if record:  # not a blank line
                spans.append((start, reader.line_num))
                cells.append(record)
            start = reader.line_num
    except csv.Error as error:
        raise DataError(f"{path}, line {start + 1}: {error}; look for a quotation mark that is not closed") from None
    return Records(mark, lines, spans, cells)


def span_of_cell(record: str, column: int, mark: str) -> tuple[int, int]:
    """From where to where a cell stands in the text of a record, with the quotation marks and spaces around it.

    For records that `read_records` takes: nothing but a separator or the end follows a closing quotation mark.

    >>> record = 'a, "b, c",d'
    >>> start, end = span_of_cell(record, 1, ",")
    >>> record[start:end]
    ' "b, c"'
    """
    cell = re.compile(rf' *"[^"]*(?:""[^"]*)*"|[^{re.escape(mark)}\r\n]*')
    start, end = 0, -1
    for _ in range(column + 1):
        start = end + 1
        found = cell.match(record, start)
        assert found is not None  # a cell may be empty
        end = found.end()
    return start, end


def _decoded(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is in UTF-16; save it as UTF-8")
    if b"\0" in content:
        raise DataError(f"{path} is not a text file; export it as CSV in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line}: the byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None


def _delimiter(path: Path, text: str) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = text.lstrip().splitlines()[0]
    # spreadsheets in countries that write 1,5 separate by semicolons
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")
