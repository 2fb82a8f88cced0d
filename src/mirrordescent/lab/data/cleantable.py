"""The way back to a table, and a cleaned copy that differs in nothing but the rows and labels that were changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.cleaned import Stamp, label_givers
from mirrordescent.lab.data.labels import class_names, label_names
from mirrordescent.lab.data.tables import PreparedTable
from mirrordescent.lab.data.textfile import BOM, Records, read_records, span_of_cell
from mirrordescent.lab.files import written
from mirrordescent.lab.names import first_line


@dataclass(frozen=True)
class TableOrigin:
    """A table of which every row is a training sample."""

    prepared: PreparedTable
    stamp: Stamp

    def __post_init__(self) -> None:
        assert self.prepared.rows.tolist() == list(range(len(self.prepared.table)))

    def cells(self, i: int) -> tuple[tuple[str, str], ...]:
        """A row as it is written, by column; columns without a name are no columns."""
        if self._parquet:
            row = self.prepared.table.row(i)
            return tuple((name, "" if cell is None else str(cell)) for name, cell in row.items())
        pairs = zip(self._records.header, self._records.cells[i + 1], strict=True)
        return tuple((name, text) for name, text in pairs if name)

    def picture(self, i: int, side: int) -> bytes | None:  # noqa: ARG002 (an origin has it)
        """None: a row is no image."""
        return None

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write the copy in the format of the original."""
        self.stamp.check()
        (self._write_parquet if self._parquet else self._write_text)(out, keep, labels)
        return [out]

    @property
    def _parquet(self) -> bool:
        return self.prepared.table.path.suffix.lower() == ".parquet"

    @cached_property
    def _records(self) -> Records:
        self.stamp.check()
        return read_records(self.prepared.table.path)

    def _write_text(self, out: Path, keep: Tensor, labels: Tensor) -> None:
        records = self._records
        column, rows = records.header.index(self.prepared.label), range(1, len(records.cells))
        places = [span_of_cell(records.text(row), column, records.mark) for row in rows]
        texts = [records.text(row)[start:end] for row, (start, end) in zip(rows, places, strict=True)]
        givers = label_givers(self.prepared.data.targets, labels, texts)
        self._refuse_labels(out, givers, keep)
        lines = list(records.lines)
        for i, ((first, last), stays) in enumerate(zip(records.spans[1:], keep.tolist(), strict=True)):
            if not stays:
                lines[first:last] = [""] * (last - first)
            elif givers[i] != i:
                text, (start, end) = records.text(i + 1), places[i]
                lines[first:last] = [text[:start] + texts[givers[i]] + text[end:]] + [""] * (last - first - 1)
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
            column = content.column(label)
            givers = label_givers(self.prepared.data.targets, labels, [str(value) for value in column.to_pylist()])
            self._refuse_labels(out, givers, keep)
            at = content.schema.get_field_index(label)
            content = content.set_column(at, content.schema.field(at), column.take(pyarrow.array(givers)))
            content = content.filter(pyarrow.array(keep.tolist()))
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
        """DataError if the copy could not be read again: too many classes for what is left, or numbers alone."""
        column = self.prepared.table.columns[self.prepared.label]
        kept = [column[giver] for giver, stays in zip(givers, keep.tolist(), strict=True) if stays]
        class_names(label_names(kept, lambda i: f"{out}, sample {i}"), f"{out}, column {self.prepared.label!r}")
