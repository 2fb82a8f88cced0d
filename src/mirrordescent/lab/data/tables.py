"""Reads the user's tables for classification: mixed columns in, numbers without gaps out.

`Data.notes` says what was done.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.columns import Part, as_number, features_of, raw_values
from mirrordescent.lab.data.labels import class_names, class_numbers, is_missing, label_names, respelt, spellings
from mirrordescent.lab.data.split import divided, same_inputs, told_of_parts
from mirrordescent.lab.data.tablefile import Table, read_table
from mirrordescent.lab.names import listed, nearest

LABELS = ("label", "target", "class", "y")
MOSTLY = 0.5  # cells that are filled at least, for a column to be the label again
GIVEN_AWAY = 0.99  # share of the labels outside the largest class that a column alone must tell, to be a giveaway
ENOUGH = 20  # rows at least, to say so


@dataclass(frozen=True)
class PreparedTable:
    """Data from a table, and the way back: training sample i is row `rows[i]` of the table, input j is `features[j]`.

    Rows without a label are no samples. held_out: whether the test samples are separate from the training samples.
    """

    data: Data
    table: Table
    label: str
    rows: Tensor  # (n,)
    features: tuple[str, ...]
    held_out: bool


def prepare_table(
    path: Path,
    label: str | None = None,
    test: Path | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    whole: bool = False,
    without: str | None = None,
) -> PreparedTable:
    """Load a table as data: numbers standardised, text one-hot, prose by its words, gaps filled, the rest left out.

    Numbers are brought to mean 0 and standard deviation 1; a missing number becomes the median, and another column
    says that it was missing. Text becomes a column of 0 and 1 per level, and all prose together some numbers (see
    `prose`). Left out, with a note: constant columns, row numbers, dates, other text of which nearly every value is
    different; rows without a label (if most have none, that is an error). `Data.mean` and `std` stay None, as the
    inputs are standardised already. whole: without a separate test set, train on every labelled row (see `divided`).
    without: columns that are not to become inputs, separated by commas.
    Raises DataError, which names the line and the column.
    """
    table = read_table(path)
    label = _label_column(table, label)
    labelled = _labelled(table, label)
    names = label_names([table.columns[label][row] for row in labelled], lambda i: table.cell(labelled[i], label))
    notes = [f"label column: {label}", *_same_numbers(table, label, labelled, names)]
    if usual := spellings(names):
        names = [usual.get(name, name) for name in names]
        notes.append(f"taken as one class: {listed([f'{name!r} as {main!r}' for name, main in usual.items()])}")
    classes = class_names(names, f"{path}, column {label!r}")
    targets = class_numbers(names, classes, lambda i: table.place(labelled[i]))
    notes += _unlabelled(table, label, labelled)
    held_out = test is not None or not whole
    left_out = _left_out(table, label, without)
    if test is None:

        def everything() -> Tensor:
            return raw_values(Part(table, labelled), {label, *left_out})

        trained, tested, how = divided(targets, everything, test_share, split_seed, str(path), whole)
        test_table, test_targets = table, targets[tested]
        rows, test_rows = (torch.tensor(labelled)[part] for part in (trained, tested))
        notes.append(told_of_parts(len(trained), len(tested), len(labelled), "rows", how))
        single = [name for name, count in Counter(names).items() if count == 1]
        if single:
            notes.append(f"classes with one row, which is in the training set: {listed(sorted(single))}")
    else:
        trained, rows, test_table = torch.arange(len(labelled)), torch.tensor(labelled), read_table(test)
        test_rows, test_targets = _test_samples(test_table, label, classes, usual, notes)
        notes.append(f"test set: {len(test_rows):,} rows of {test.name}")
    # test rows that are training rows, too, must not be reported twice in the notes
    others = Part(test_table, test_rows.tolist() if held_out else [])
    notes += [f"left out, as asked: {listed(left_out, most=10)}"] if left_out else []
    notes += [f"left out, as it has no name in the header: {name}" for name in table.unnamed]
    notes += _giveaways(table, rows.tolist(), targets[trained].tolist(), {label, *left_out})
    features, inputs, test_inputs = features_of(Part(table, rows.tolist()), others, {label, *left_out}, notes)
    notes += same_inputs(inputs, targets[trained], "rows")
    data = Data(
        path.name,
        inputs,
        targets[trained],
        test_inputs if held_out else inputs[tested],
        test_targets,
        classes=len(classes),
        class_names=classes,
        model="mlp",
        notes=tuple(notes),
        rows=rows,
        there=len(table),
    )
    return PreparedTable(data, table, label, rows, features, held_out)


def _label_column(table: Table, label: str | None) -> str:
    columns = ", ".join(table.columns)
    if label is not None:
        _check_column(table, label)
        return label
    by_lower = {name.lower(): name for name in reversed(table.columns)}
    found = [by_lower[name] for name in LABELS if name in by_lower]
    if not found:
        hint = ""
        if table.columns and all(as_number(name) is not None for name in table.columns):
            hint = " (the first line should hold the columns' names)"
        raise DataError(
            f"{table.path} has no column called {', '.join(LABELS[:-1])} or {LABELS[-1]}; say which one is the label "
            f"(--label): {columns}{hint}"
        )
    return found[0]


def _check_column(table: Table, name: str) -> None:
    """DataError for a column that the table does not have."""
    if name not in table.columns:
        columns = ", ".join(table.columns)
        raise DataError(f"{table.path} has no column {name!r}{nearest(name, table.columns)}; it has {columns}")


def _left_out(table: Table, label: str, without: str | None) -> list[str]:
    """The columns that `without` names; DataError for one that the table does not have, or that is the label."""
    if without is None:
        return []
    names = [without] if without in table.columns else [name.strip() for name in without.split(",") if name.strip()]
    for name in names:
        if name == label:
            raise DataError(f"{table.path}: {name!r} is the label, which is no input anyway; leave it out of --without")
        _check_column(table, name)
    return names


def _giveaways(table: Table, rows: Sequence[int], targets: Sequence[int], known: set[str]) -> Iterator[str]:
    """Notes on columns that nearly always tell the class, with hardly more values than classes: the label again?"""
    if len(rows) < ENOUGH:
        return
    sizes = Counter(targets)
    classes, most = len(sizes), max(sizes.values()) / len(rows)
    for name, cells in table.columns.items():
        if name in known or len({cells[row] for row in rows}) > classes + 1:
            continue
        counts: dict[object, Counter[int]] = {}
        for row, target in zip(rows, targets, strict=True):
            if not is_missing(cells[row]):
                counts.setdefault(cells[row], Counter())[target] += 1
        usual = [count.most_common(1)[0] for count in counts.values()]
        filled = sum(map(Counter.total, counts.values()))
        if filled < MOSTLY * len(rows):
            continue
        share = sum(many for _, many in usual) / filled
        beyond = (share - most) / (1 - most)  # of what always naming the largest class gets wrong
        where = "" if filled == len(rows) else " that have it"
        if beyond >= GIVEN_AWAY and len({target for target, _ in usual}) == classes:
            yield (
                f"{name} tells the label of {100 * share:.3g} % of the rows{where} by itself: if it is the label under "
                f"another name, no label can look wrong beside it; --without {shlex.quote(name)} leaves it out"
            )


def _same_numbers(table: Table, label: str, rows: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """A note on labels that are written in several ways, such as 1 and 01, and are one class."""
    ways: dict[str, set[str]] = {}
    for row, name in zip(rows, names, strict=True):
        ways.setdefault(name, set()).add(str(table.columns[label][row]))
    if same := [" and ".join(map(repr, sorted(held))) for held in ways.values() if len(held) > 1]:
        yield f"labels that are written in several ways, taken as one class: {listed(same)}"


def _labelled(table: Table, label: str) -> list[int]:
    """The rows that have a label; all rows if most have none, so that `label_names` reports it as an error."""
    rows = [row for row, cell in enumerate(table.columns[label]) if not is_missing(cell)]
    return rows if len(rows) >= len(table) / 2 else list(range(len(table)))


def _unlabelled(table: Table, label: str, labelled: Sequence[int]) -> Iterator[str]:
    if gone := sorted(set(range(len(table))) - set(labelled)):
        lines = listed([f"{table.unit} {table.lines[row]}" for row in gone])
        many = f"{len(gone):,} {'rows' if len(gone) > 1 else 'row'}"
        written = sorted({text for row in gone if (text := str(table.columns[label][row] or "").strip())})
        meant = f" ({listed([repr(text) for text in written])} taken as none)" if written else ""
        yield f"left out of {table.path.name}, {many} without a label{meant}: {lines}"


def _test_samples(
    table: Table, label: str, classes: Sequence[str], usual: Mapping[str, str], notes: list[str]
) -> tuple[Tensor, Tensor]:
    """The rows of a test set that have a label, and their classes."""
    if label not in table.columns:
        raise DataError(f"{table.path} has no column {label!r}, the label of the training set; add it")
    rows = _labelled(table, label)
    notes += _unlabelled(table, label, rows)
    names = label_names([table.columns[label][row] for row in rows], lambda i: table.cell(rows[i], label))
    found = respelt(names, classes, usual)  # as in the training set
    return torch.tensor(rows), class_numbers(found, classes, lambda i: table.cell(rows[i], label))
