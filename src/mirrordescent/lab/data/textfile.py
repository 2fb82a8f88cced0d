"""Reads a table in a text file (CSV, TSV) record by record, with the text of each as it stands in the file."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

from mirrordescent.lab.data.base import DataError

BOM = b"\xef\xbb\xbf"
MARKS = (";", "\t", "|", ",")  # the comma last: it is in numbers too
SEPARATOR = re.compile(r"\s*sep=([^\r\n])\s*?(?:\r\n|\r|\n|$)", re.IGNORECASE)  # a spreadsheet's first line
FIRST, SAMPLE = 20, 100_000  # records, and characters, from which the separator is guessed
LONGEST = 2**31 - 1  # characters of a cell; documents are long


@dataclass(frozen=True)
class Records:
    """The records of a text file that are not blank, the header first.

    lines: all lines of the file, with their ends. spans: of each record, its start and end in `lines`; a cell in quotes
    may run over several. cells: those of each record.
    """

    mark: str  # between the cells
    lines: list[str]
    spans: list[tuple[int, int]]
    cells: list[list[str]]

    @property
    def header(self) -> list[str]:
        """The columns' names; "" if there is none, as for columns that spreadsheets append or that hold row numbers."""
        return [name.strip() for name in self.cells[0]]

    def text(self, record: int) -> str:
        """A record as it stands in the file, with its quotation marks and the end of its line."""
        start, end = self.spans[record]
        return "".join(self.lines[start:end])

    def number(self, record: int) -> int:
        """The line on which a record begins, as a person counts."""
        return self.spans[record][0] + 1


def read_records(path: Path) -> Records:
    """Read the records of a text file; DataError if it is not one."""
    text = decoded(path)
    if not text.strip():
        raise DataError(f"{path} is empty; a table begins with a line of column names")
    mark = "\t" if path.suffix.lower() == ".tsv" else separator(text)
    lines = io.StringIO(text, newline="").readlines()
    csv.field_size_limit(LONGEST)
    reader = csv.reader(lines, delimiter=mark, skipinitialspace=True, strict=True)
    spans: list[tuple[int, int]] = []
    cells: list[list[str]] = []
    start = 0
    try:
        for record in reader:
            blank = len(record) < 2 and not "".join(record).strip()
            if not blank and (cells or not SEPARATOR.fullmatch(lines[start])):
                spans.append((start, reader.line_num))
                cells.append(record)
            start = reader.line_num
    except csv.Error as error:
        raise DataError(f"{path}, line {start + 1}: {error}; look for a quotation mark that is not closed") from None
    return Records(mark, lines, spans, cells)


def span_of_cell(record: str, column: int, mark: str) -> tuple[int, int]:
    """The start and end of a cell in the text of a record, including the quotation marks and spaces around it.

    For records that `read_records` accepts: nothing but a separator or the end follows a closing quotation mark.

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
        assert found is not None  # an empty cell matches, too
        end = found.end()
    return start, end


def decoded(path: Path) -> str:
    """The text of a file in UTF-8; DataError for one that is not."""
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


def separator(text: str) -> str:
    r"""What separates the cells of a text: the mark that its first line names (sep=;), or the likeliest one.

    Likeliest is what splits most of the first records into as many cells as the header; on a tie, into more cells.
    Spreadsheets in countries that write 1,5 separate by semicolons.

    >>> separator("a, kg;b;c\n1,5;2;3\n"), separator("a,b\n1;2,3\n"), separator("sep=;\na,b\n")
    (';', ',', ';')
    >>> separator("a|b, c\n1|2,5\n")
    '|'
    """
    if named := SEPARATOR.match(text):
        return named[1]
    found = {mark: _alike(text[:SAMPLE], mark) for mark in MARKS}
    return max(found, key=lambda mark: found[mark]) if any(share for share, _ in found.values()) else ","


def _alike(text: str, mark: str) -> tuple[float, int]:
    """The share of the first records that have as many cells as the header, and how many cells that is."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):
        for record in csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True):
            if any(cell.strip() for cell in record):
                widths.append(len(record))
            if len(widths) > FIRST:
                break
    if not widths or widths[0] == 1:
        return 0.0, 1
    return sum(width == widths[0] for width in widths) / len(widths), widths[0]
