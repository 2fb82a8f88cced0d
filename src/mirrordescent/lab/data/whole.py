"""A data set as an audit needs it: trained on as a whole, with the way back to the file or folder it came from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from torch import Tensor

from mirrordescent.lab.data.arrays import PreparedArrays
from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.cleanarrays import ArraysOrigin, KnownOrigin
from mirrordescent.lab.data.cleaned import Origin, Stamp, check_choice, check_originals, check_place
from mirrordescent.lab.data.cleanfolder import FolderOrigin
from mirrordescent.lab.data.cleantable import TableOrigin
from mirrordescent.lab.data.datasets import KNOWN, Source, expanded, load, prepare
from mirrordescent.lab.data.tables import PreparedTable
from mirrordescent.lab.data.thumbnails import SIDE
from mirrordescent.lab.files import remove_parts

Kind = Literal["table", "arrays", "folder", "known"]


@dataclass(frozen=True)
class Whole:
    """A data set of which every label is to be audited, and the way back to where the samples came from.

    data: its training set is every labelled sample of the file or folder, in its order, except those of a separate
        test set.
    names: of every training sample, as messages name them: "line 17" of a CSV file (the header is line 1), "row 17"
        of a Parquet file (from 1), the path of an image inside its folder, or "sample 17" (from 0).
    held_out: whether there is a separate test set. If not, the test samples are training samples too, and accuracy on
        them says nothing.
    """

    data: Data
    kind: Kind
    names: tuple[str, ...]
    held_out: bool
    source: Source
    origin: Origin

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names; their numbers if they have none."""
        return self.data.class_names or tuple(str(label) for label in range(self.data.classes or 0))

    def cells(self, i: int) -> tuple[tuple[str, str], ...]:
        """A table's row i as (column, text) pairs, as in the file; () for other data."""
        return self.origin.cells(range(len(self.names))[i])

    def picture(self, i: int, side: int = SIDE) -> bytes | None:
        """A PNG of image i, scaled down to at most `side` (128) pixels on its longer side; None for other data.

        For a folder of images it shows the original file, for other images what training sees. Raises DataError for a
        file that can no longer be read.
        """
        if side < 1:
            raise ValueError(f"side must be ≥ 1, got {side}")
        return self.origin.picture(range(len(self.names))[i], side)

    @cached_property
    def fingerprints(self) -> tuple[str, ...]:
        """A hash per row of a table, which identifies the row wherever it stands; () for other data."""
        return tuple(self.origin.fingerprint(i) for i in range(len(self.names))) if self.kind == "table" else ()

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write a cleaned copy, in the format of the original (.npz for a known data set), whole or not at all.

        keep: which training samples stay, (n,) of bool. labels: their classes, (n,) of int64; `data.targets` where
        nothing changes. What is not changed is copied as it is: rows of a text table, types and values of arrays and
        Parquet columns, bytes of images, a test set in the file or folder. A changed label is spelt as most labels of
        its class are.
        Returns the paths written; for a folder every file, those of the kept samples first, in their order.
        Raises DataError if `out` exists, is inside the original, has the wrong ending or cannot be written, if the
        original has changed since, and if the lab could not read the labels of the copy (fewer than two classes).
        """
        check_choice(self.data, keep, labels)
        self.check_out(out)
        remove_parts(out.parent, out.name)
        try:
            return self.origin.write(out, keep, labels)
        except OSError as error:
            raise DataError(f"{out} cannot be written: {error.strerror or error}") from None

    def check_out(self, out: Path) -> None:
        """Raises DataError where a copy cannot go to `out`."""
        check_place(out, self._originals, self._suffix)

    def check_beside(self, *paths: Path) -> None:
        """Raises DataError where one of the paths is the data set itself, or its test set."""
        check_originals(paths, self._originals)

    @property
    def _originals(self) -> list[Path]:
        own = [] if self.kind == "known" else [self.source.data, *([self.source.test] if self.source.test else [])]
        return [expanded(path) for path in own]

    @property
    def _suffix(self) -> str:
        if self.kind == "known":
            return ".npz"
        return "" if self.kind == "folder" else Path(self.source.data).suffix.lower()


def load_whole(source: Source, root: Path | None = None) -> Whole:
    """Load a data set with all its labels, for an audit.

    root: where official downloads are kept, as for `load`. Raises what `load` raises, and DataError for data without
    classes.

    >>> whole = load_whole(Source("digits"))
    >>> whole.kind, whole.names[17], whole.held_out
    ('known', 'sample 17', True)
    """
    if source.data in KNOWN:
        data = load(source, root)
        if data.classes is None:
            raise DataError(f"{source.data} has no classes, and so no labels to look at; name data that have some")
        return Whole(data, "known", _numbered(data), True, source, KnownOrigin(data))
    path = expanded(source.data)
    stamp = Stamp(path)
    prepared = prepare(source, whole=True)
    data, own_test = prepared.data, prepared.held_out and source.test is None
    kind: Kind
    origin: Origin
    if isinstance(prepared, PreparedTable):
        table = prepared.table
        kind, origin = "table", TableOrigin(prepared, stamp)
        names = tuple(f"{table.unit} {table.lines[row]}" for row in prepared.rows.tolist())
    elif isinstance(prepared, PreparedArrays):
        kind, origin = "arrays", ArraysOrigin(data, prepared, path, stamp, own_test)
        names = _numbered(data)
    else:
        kind, origin = "folder", FolderOrigin(prepared, path, own_test)
        names = tuple(_shown(file.relative_to(path)) for file in prepared.files)
    return Whole(data, kind, names, prepared.held_out, source, origin)


def _numbered(data: Data) -> tuple[str, ...]:
    return tuple(f"sample {i}" for i in range(len(data)))


def _shown(path: Path) -> str:
    # a file name may hold bytes that are not UTF-8
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
