"""Labels to train on from a text file, one per line, in place of those of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.labels import loosely, plain_name
from mirrordescent.lab.names import listed


def labels_in(path: Path, data: Data) -> Tensor:
    """The training samples' labels, (n,), from a file with a line for each of them, or for each entry of the data.

    A line is the name of a class, written as in the data; if no line is one, it is the class's number.
    Raises DataError, which names the line.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    rows = _rows(path, lines, data)
    given = [plain_name(lines[row]) for row in rows]
    places = {name: place for place, name in enumerate(data.class_names)}
    ways = Counter(map(loosely, places))
    loose = {loosely(name): place for name, place in places.items() if ways[loosely(name)] == 1}
    found = [places.get(name, loose.get(loosely(name))) for name in given]
    what = f"one of the classes ({listed(data.class_names, most=10)})"
    if not any(place is not None for place in found):
        count = data.classes or 0
        found = [int(name) if name.isdecimal() and int(name) < count else None for name in given]
        what += f", nor a number in [0, {count})"
    for row, place in zip(rows, found, strict=True):
        if place is None:
            raise DataError(f"{path}, line {row + 1}: {lines[row]!r} is not {what}")
    return torch.tensor(found, dtype=torch.int64)


def _rows(path: Path, lines: Sequence[str], data: Data) -> list[int]:
    """The training samples' lines."""
    filled = max((place for place, line in enumerate(lines, start=1) if line), default=0)
    for count in (len(lines), filled):  # the last row may have no label, or the file an empty line
        if count == len(data):
            return list(range(count))
        if data.rows is not None and count == data.there:
            return data.rows.tolist()
    of = f", of {data.there:,} in the data's own file" if data.rows is not None and data.there != len(data) else ""
    raise DataError(f"{path} holds {filled:,} labels, but there are {len(data):,} samples to train on{of}")
