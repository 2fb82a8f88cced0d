"""The origin of a table: how its rows look, and a cleaned copy that differs only in dropped rows and changed labels."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.cleaned import Origin, Stamp, label_givers
from mirrordescent.lab.data.jsonlines import ENDINGS, as_text, read_json_lines, with_value
from mirrordescent.lab.data.labels import class_names, label_names, spellings
from mirrordescent.lab.data.tables import PreparedTable
from mirrordescent.lab.data.textfile import BOM, Records, read_records, span_of_cell
from mirrordescent.lab.files import written
from mirrordescent.lab.names import first_line


@dataclass(frozen=True)
class TableOrigin(Origin):
    """The origin of a table: every row with a label is a training sample; the others go into a copy as they are."""

    prepared: PreparedTable
    stamp: Stamp

    def cells(self, i: int) -> tuple[tuple[str, str], ...]:
        """A row as it is written, as (column, text) pairs; columns without a name are left out."""
        row = self._rows[i]
        if self._ending in (".parquet", *ENDINGS):
            cells = self.prepared.table.row(row)
            return tuple((name, "" if cell is None else str(cell)) for name, cell in cells.items())
        pairs = zip(self._records.header, self._records.cells[row + 1], strict=True)
        return tuple((name, text) for name, text in pairs if name)

    def fingerprint(self, i: int) -> str:
        """A hash of all cells but the label; it begins with a letter, so that no spreadsheet takes it for a number."""
        cells = [cell for cell in self.cells(i) if cell[0] != self.prepared.label]
        return f"r{hashlib.blake2b(repr(cells).encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write the copy in the format of the original."""
        self.stamp.check()
        others = {".parquet": self._write_parquet, **dict.fromkeys(ENDINGS, self._write_json_lines)}
        others.get(self._ending, self._write_text)(out, keep, labels)
        return [out]

    @cached_property
    def _rows(self) -> list[int]:
        rows: list[int] = self.prepared.rows.tolist()
        return rows

    @property
    def _ending(self) -> str:
        return self.prepared.table.path.suffix.lower()

    @cached_property
    def _records(self) -> Records:
        self.stamp.check()
        return read_records(self.prepared.table.path)

    def _write_text(self, out: Path, keep: Tensor, labels: Tensor) -> None:
        records = self._records
        column, rows = records.header.index(self.prepared.label), [row + 1 for row in self._rows]
        places = [span_of_cell(records.text(row), column, records.mark) for row in rows]
        texts = [records.text(row)[start:end] for row, (start, end) in zip(rows, places, strict=True)]
        givers = label_givers(self.prepared.data.targets, labels, texts)
        self._refuse_labels(out, givers, keep)
        lines = list(records.lines)
        for i, (row, stays) in enumerate(zip(rows, keep.tolist(), strict=True)):
            first, last = records.spans[row]
            if not stays:
                lines[first:last] = [""] * (last - first)
            elif givers[i] != i:
                text, (start, end) = records.text(row), places[i]
                lines[first:last] = [text[:start] + texts[givers[i]] + text[end:]] + [""] * (last - first - 1)
        self._write_lines(out, lines)

    def _write_json_lines(self, out: Path, keep: Tensor, labels: Tensor) -> None:
        held, label = read_json_lines(self.prepared.table.path), self.prepared.label
        values = [held.objects[row][label] for row in self._rows]
        givers = label_givers(self.prepared.data.targets, labels, [as_text(value) for value in values])
        self._refuse_labels(out, givers, keep)
        lines = list(held.lines)
        for i, (row, stays) in enumerate(zip(self._rows, keep.tolist(), strict=True)):
            at = held.rows[row]
            if not stays:
                lines[at] = ""
            elif givers[i] != i:
                lines[at] = with_value(lines[at], label, values[givers[i]])
        self._write_lines(out, lines)

    def _write_lines(self, out: Path, lines: list[str]) -> None:
        with self.prepared.table.path.open("rb") as original:
            mark = BOM if original.read(len(BOM)) == BOM else b""
        with written(out) as file:
            file.write(mark + "".join(lines).encode("utf-8"))

    def _write_parquet(self, out: Path, keep: Tensor, labels: Tensor) -> None:
        import pyarrow
        from pyarrow import parquet

        path, label = self.prepared.table.path, self.prepared.label
        try:
            file = parquet.ParquetFile(path)
            content = file.read().unify_dictionaries()
            column, rows = content.column(label), self._rows
            values = column.to_pylist()
            givers = label_givers(self.prepared.data.targets, labels, [str(values[row]) for row in rows])
            self._refuse_labels(out, givers, keep)
            taken, kept = list(range(len(values))), [True] * len(values)
            for i, row in enumerate(rows):
                taken[row], kept[row] = rows[givers[i]], bool(keep[i])
            at = content.schema.get_field_index(label)
            content = content.set_column(at, content.schema.field(at), column.take(pyarrow.array(taken)))
            content = _with_row_labels(content).filter(pyarrow.array(kept))
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            codec = {"UNCOMPRESSED": "NONE", "LZ4_RAW": "LZ4"}.get(
                groups[0].column(0).compression, groups[0].column(0).compression
            )
            with written(out) as target:
                parquet.write_table(
                    content, target, compression=codec, row_group_size=max(group.num_rows for group in groups)
                )
        except pyarrow.ArrowException as error:
            raise DataError(f"{out} cannot be written as Parquet: {first_line(error)}") from None

    def _refuse_labels(self, out: Path, givers: list[int], keep: Tensor) -> None:
        """DataError if the copy's labels could not be read back: too many classes for the rows, or only fractions."""
        column = self.prepared.table.columns[self.prepared.label]
        kept = [column[self._rows[giver]] for giver, stays in zip(givers, keep.tolist(), strict=True) if stays]
        names = label_names(kept, lambda i: f"{out}, sample {i}")
        usual = spellings(names)
        class_names([usual.get(name, name) for name in names], f"{out}, column {self.prepared.label!r}")


def _with_row_labels(content: Any) -> Any:
    """A table of pyarrow's with row labels of pandas as a column, where the file has them as a range only.

    Labels that count from 0 are left to count anew, and what is not as pandas writes it stays as it is.
    """
    try:
        return _labelled(content)
    except (LookupError, TypeError, ValueError, AttributeError):
        return content


def _labelled(content: Any) -> Any:
    import pyarrow

    known = content.schema.pandas_metadata or {}
    labels = known.get("index_columns", ())
    for i, label in enumerate(labels):
        if not isinstance(label, dict) or label["kind"] != "range":
            continue
        name, first, step = label["name"], label["start"], label["step"]
        if (name, first, step) == (None, 0, 1) and len(labels) == 1:
            continue
        field = f"__index_level_{i}__"  # no column of the data's
        values = range(first, first + step * content.num_rows, step)
        content = content.append_column(field, pyarrow.array(values, pyarrow.int64()))
        kind = {"pandas_type": "int64", "numpy_type": "int64", "metadata": None}
        labels[i] = field
        known["columns"].append({"name": name, "field_name": field, **kind})
        told = {**content.schema.metadata, b"pandas": json.dumps(known).encode()}
        content = content.replace_schema_metadata(told)
    return content
