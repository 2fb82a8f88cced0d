"""Decisions on samples as a CSV file: reads what an audit's page exports, and writes what a clean-up did."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.textfile import separator
from mirrordescent.lab.names import listed, nearest

Action = Literal["keep", "drop", "relabel"]
ACTIONS: tuple[Action, ...] = get_args(Action)
COLUMNS = ("index", "name", "given_label", "action", "label")
FINGERPRINT = "fingerprint"  # a column that only tables have
SURROGATES = re.compile("[\ud800-\udfff]")
FORMULA = re.compile("['=+\\-@＝＋－＠\t\r\n]")  # how a spreadsheet's formulas begin, and our guard against them


@dataclass(frozen=True)
class Decision:
    """What is to become of one sample. label: the new class name, for relabel."""

    index: int
    action: Action
    label: str | None = None


def read_decisions(
    path: Path,
    count: int,
    class_names: Sequence[str],
    names: Sequence[str] | None = None,
    given: Sequence[int] | None = None,
    fingerprints: Sequence[str] = (),
) -> list[Decision]:
    """The decisions in a CSV file with the columns index, name, given_label, action and label, in the file's order.

    count: how many samples there are. names, given, fingerprints: the samples' names, given classes and fingerprints,
    if the file is to be checked against them (fingerprints only if it has a column for them). A file that a spreadsheet
    saved again reads the same: separated by semicolons or tabs, with other line ends, cells left out at the end of a
    line, zeros taken off numbers. Lines with neither action nor label decide nothing. Raises DataError, which names the
    line, for anything else.
    """
    if names is not None and len(names) != count:
        raise ValueError(f"names must have one entry per sample, {count:,}, got {len(names):,}")
    alike = _Alike(class_names)
    lines: dict[int, int] = {}  # the line that decides on each index
    decisions, read = [], 0
    for line, cells in _records(path):
        read += 1
        if not (cells["action"] + cells["label"]).strip():  # a row of audit.csv that nobody has decided on
            continue
        try:
            decision = _decision(cells, count, alike, names)
            before = cells["given_label"]
            if given is not None and before.strip() and alike.find(before) != class_names[given[decision.index]]:
                raise DataError(
                    f"sample {decision.index} is labelled {class_names[given[decision.index]]!r}, but was "
                    f"{before!r} when it was decided on; the data have changed"
                )
            if fingerprints and cells[FINGERPRINT].strip().lower() not in ("", fingerprints[decision.index]):
                raise DataError(
                    f"sample {decision.index} is another row than the one that was decided on: rows have been sorted, "
                    "put between others or changed; audit the file as it is now, and decide again"
                )
            if decision.index in lines:
                raise DataError(
                    f"index {decision.index} is on line {lines[decision.index]} already; remove one of them"
                )
        except DataError as error:
            raise DataError(f"{path}, line {line}: {error}") from None
        lines[decision.index] = line
        decisions.append(decision)
    if read and not decisions:
        raise DataError(f"{path}, every line: without an action ({', '.join(ACTIONS)}), so nothing is decided")
    return decisions


def decisions_csv(
    decisions: Sequence[Decision],
    class_names: Sequence[str],
    names: Sequence[str],
    given: Sequence[int],
    fingerprints: Sequence[str] = (),
) -> str:
    """Decisions as the text of a CSV file that `read_decisions` reads."""
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerow([*COLUMNS, FINGERPRINT] if fingerprints else COLUMNS)
    for decision in decisions:
        label = class_names[given[decision.index]]
        cells = [str(decision.index), names[decision.index], label, decision.action, decision.label or ""]
        cells += [fingerprints[decision.index]] if fingerprints else []
        writer.writerow([f"'{cell}" if FORMULA.match(cell) else cell for cell in cells])
    return lines.getvalue()


def _decision(cells: dict[str, str], count: int, alike: _Alike, names: Sequence[str] | None) -> Decision:
    index = _index(cells["index"], count)
    name = cells["name"]
    if names is not None and not any(_survives(text) == _survives(names[index]) for text in (_bared(name), name)):
        raise DataError(
            f"sample {index} is called {names[index]!r}, but {name!r} in the file: the index is another sample's, or "
            "the decisions are on other data"
        )
    action = cells["action"].strip().lower()
    if action not in ACTIONS:
        raise DataError(f"unknown action {action!r}{nearest(action, ACTIONS)}; known: {', '.join(ACTIONS)}")
    return Decision(index, action, alike.find(cells["label"]) if action == "relabel" else None)


def _index(text: str, count: int) -> int:
    try:
        number = float(text)  # a spreadsheet may write 7 as 7.0
    except ValueError:
        number = -0.5
    if not number.is_integer():
        raise DataError(f"index must be a whole number, got {text!r}")
    if not 0 <= number < count:
        raise DataError(f"index must be from 0 to {count - 1}, got {text.strip()}; the decisions are on other data")
    return int(number)


class _Alike:
    """Finds classes by their names, or by what a spreadsheet leaves of these when it saves them."""

    def __init__(self, class_names: Sequence[str]) -> None:
        self.names = class_names
        self.exact = set(class_names)
        self.left: dict[str, list[str]] = {}
        for name in class_names:
            self.left.setdefault(_survives(name), []).append(name)

    def find(self, text: str) -> str:
        """The class that a cell names."""
        if not text.strip() and text not in self.exact:
            raise DataError("relabel needs a label, the new class")
        for candidate in (_bared(text), text):  # the page's way of writing it, then a person's
            if candidate in self.exact:
                return candidate
        for candidate in (_bared(text), text):
            if len(found := self.left.get(_survives(candidate), [])) == 1:
                return found[0]
        known = listed([repr(name) for name in self.names], 10)
        raise DataError(f"unknown class {text!r}{nearest(text, self.names)}; known: {known}")


def _bared(text: str) -> str:
    """The text without the apostrophe that the page puts before what a spreadsheet would take for a formula."""
    return text.removeprefix("'")


def _survives(text: str) -> str:
    r"""What survives of a text that goes through UTF-8 and a spreadsheet; by this, two texts are compared.

    >>> _survives("a \r\nB") == _survives("a\nb"), _survives("007") == _survives("7")
    (True, True)
    """
    text = " ".join(unicodedata.normalize("NFC", SURROGATES.sub("\ufffd", text)).split()).casefold()
    try:
        return f"{float(text):.12g}"
    except ValueError:
        return text


def _records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line's number and its cells by column, as they are written; blank lines left out."""
    text = _decoded(path)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator(text), strict=True)
    columns: list[str] = []
    line = 1
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells) or (not columns and cells[0].lower().startswith("sep=")):
                pass
            elif not columns:
                columns = _columns(path, cells)
            else:
                filled = [*cells, *[""] * len(columns)]  # a spreadsheet may leave out empty cells at the end
                there = {name: filled[columns.index(name)] for name in (*COLUMNS, FINGERPRINT) if name in columns}
                yield line, {FINGERPRINT: "", **there}
            line = reader.line_num + 1  # a cell in quotes may run over several lines
    except csv.Error as error:
        raise DataError(f"{path}, line {line}: {error}; export the decisions again") from None
    if not columns:
        _columns(path, [])


def _columns(path: Path, header: Sequence[str]) -> list[str]:
    columns = [name.strip().lower() for name in header]
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(f"{path}, line 1: without the columns {', '.join(missing)}; it must have {', '.join(COLUMNS)}")
    return columns


def _decoded(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    # a spreadsheet's "Unicode text" is UTF-16
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: not UTF-8; save it as 'CSV UTF-8', or export it again") from None
