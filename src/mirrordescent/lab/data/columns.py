"""Turns the columns of a table into inputs: numbers standardised, text one-hot, prose by its words, the rest left out.

Everything that is learnt from the data (medians, means, levels) is learnt from the training rows alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.labels import MISSING, is_missing, respelt, spellings
from mirrordescent.lab.data.numbers import NEARLY_ALL, Reading, reading
from mirrordescent.lab.data.prose import is_prose, numbered, summed_up
from mirrordescent.lab.data.tablefile import Cell, Table
from mirrordescent.lab.names import listed

LEVELS = 50  # of a text column that get an input each, however rare they are
MEMBERS = 10  # training rows of a level that gets one, too
MOST = 1000  # levels that get one; the others share one
WORDS = {"false": 0.0, "true": 1.0}  # that count as numbers
NO_VALUE = "(missing)"  # a level of its own in text columns
TIME = r"[T ]\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp]\.?[Mm]\.?|[A-Z]{1,4}|[+-]\d{2}:?\d{2})?"
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})(" + TIME + ")?")
NORMAL = 1.349  # width of the middle half of a normal distribution, in standard deviations
LONG = 1.8  # times the standard deviation that the middle half suggests; beyond that, tails are long
FILLERS = 3  # cells at least that hold a number, for it to stand for a missing one
ENOUGH = 50  # numbers at least, to judge their tails, or whether they are IDs
FARTHEST = 1e6  # standard deviations; a test value may lie anywhere, but float32 must hold it

Told = defaultdict[str, list[str]]  # what was done, and to which columns; each is one note


@dataclass(frozen=True)
class Part:
    """Some rows of a table: the training set, or the test set."""

    table: Table
    rows: list[int]

    def cells(self, column: str) -> list[Cell]:
        """A column's cells in these rows."""
        if column not in self.table.columns:
            raise DataError(f"{self.table.path} has no column {column!r}, which the training set has; add it")
        cells = self.table.columns[column]
        return [cells[row] for row in self.rows]

    def place(self, position: int, column: str) -> str:
        """Say where a cell stands."""
        return self.table.cell(self.rows[position], column)


@dataclass(frozen=True)
class _Block:
    """The inputs that one column, or all columns of prose, become."""

    names: list[str]
    train: Tensor  # (n, k)
    test: Tensor  # (m, k)


def features_of(
    train: Part, test: Part, without: Collection[str], notes: list[str]
) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names of the inputs, and the inputs of both parts, (n, k) and (m, k); what was done is appended to `notes`.

    without: columns that are not to become inputs, such as the label.
    """
    blocks: list[_Block] = []
    told = Told(list)
    prose: dict[str, tuple[list[Cell], list[Cell]]] = {}
    for name, cells, how, kind in _read(train, without):
        if kind == "prose":
            prose[name] = cells, test.cells(name)
            continue
        if kind not in ("numbers", "text"):
            told[f"left out, {kind}"].append(name)
            continue
        others = _plain(test.cells(name), how)  # read the same way as the training set
        if kind == "numbers":
            told["read as numbers"].append(name)
            for what in () if how is None else how.told:
                told[what].append(name)
            values, test_values = _numbers(name, train, cells, notes), _numbers(name, test, others, notes)
            if (filler := _filler(values)) is not None:
                count = int((values == filler).sum() + (test_values == filler).sum())
                told["taken as missing, far from all other numbers"].append(f"{filler:g} in {name} ({count:,})")
                values, test_values = (v.masked_fill(v == filler, math.nan) for v in (values, test_values))
            if _all_different(values):
                told["whole numbers, every one different; --without leaves out an ID"].append(name)
            blocks.append(_number_block(name, values, test_values, told))
        else:
            blocks.append(_text_block(name, cells, others, told))
    if prose:
        blocks += _prose_blocks(prose, told)
    notes += [f"{what}: {listed(names, most=10)}" for what, names in told.items()]
    unused = [name for name in test.table.columns if name not in train.table.columns]
    if unused:
        notes.append(f"columns of {test.table.path.name} that the training set does not have: {listed(unused)}")
    if not blocks:
        reasons = "; ".join(f"{what}: {listed(names)}" for what, names in told.items()) or "there is only the label"
        raise DataError(f"{train.table.path}: no column is left to learn from ({reasons})")
    names = tuple(name for block in blocks for name in block.names)
    return names, torch.cat([b.train for b in blocks], dim=1), torch.cat([b.test for b in blocks], dim=1)


def raw_values(part: Part, without: Collection[str]) -> Tensor:
    """What `features_of` makes inputs of, (n, k): numbers as they are, text and prose by a number for each."""
    columns = []
    for _, cells, _, kind in _read(part, without):
        if kind == "numbers":
            numbers = [math.nan if (x := as_number(cell)) is None else x for cell in cells]
            values = torch.tensor(numbers, dtype=torch.float64)
            columns.append(values.nan_to_num(nan=float(values.nan_to_num().min()) - 1))
        elif kind == "prose":
            columns.append(torch.tensor(list(numbered(_texts(cells))), dtype=torch.float64))
        elif kind == "text":
            levels: dict[str, int] = {}
            codes = [levels.setdefault(level, len(levels)) for level in _levels(cells, cells)]
            columns.append(torch.tensor(codes, dtype=torch.float64))
    return torch.stack(columns, dim=1) if columns else torch.zeros(len(part.rows), 1)


def _read(part: Part, without: Collection[str]) -> Iterator[tuple[str, list[Cell], Reading | None, str]]:
    """The columns that may become inputs: name, cells with numbers in Python's form, how they were read, the kind."""
    for name in part.table.columns:
        if name not in without:
            cells = part.cells(name)
            how = reading([cell for cell in cells if isinstance(cell, str)], semicolons=part.table.semicolons)
            cells = _plain(cells, how)
            yield name, cells, how, _kind(cells, part.rows)


def _plain(cells: list[Cell], how: Reading | None) -> list[Cell]:
    return cells if how is None else [how.plain(cell) if isinstance(cell, str) else cell for cell in cells]


def _kind(cells: list[Cell], rows: list[int]) -> str:
    """The kind of a column, "numbers", "text" (of levels) or "prose", or the reason why it is left out."""
    numbers = [as_number(cell) for cell in cells]
    present = [i for i, number in enumerate(numbers) if number is None or not math.isnan(number)]
    if not present:
        return "no values"
    if sum(numbers[i] is not None for i in present) >= NEARLY_ALL * len(present):
        return _kind_of_numbers(numbers, rows)
    texts = [str(cell) for cell in cells if cell is not None]
    if sum(DATE.fullmatch(text) is not None for text in texts) >= NEARLY_ALL * len(texts):
        return "dates"
    different = len(set(texts))
    if different > min(NEARLY_ALL * len(texts), max(LEVELS, len(texts) / MEMBERS)):  # too many for levels
        if sum(map(_is_nested, texts)) >= NEARLY_ALL * len(texts):
            return "objects or lists (give each part a column of its own; embeddings go into an .npz)"
        if is_prose(texts):
            return "prose"
    if different > NEARLY_ALL * len(texts):
        return "every value different" if different == len(texts) else "nearly every value different"
    if len(set(_levels(cells, cells))) == 1:
        return "constant" if len({_level(cell) for cell in cells}) == 1 else "constant but for case or spaces"
    return "text"


def _is_nested(text: str) -> bool:
    """Whether a cell holds an object or a list, as in JSON and as Python prints them."""
    return (text[0], text[-1]) in (("{", "}"), ("[", "]"))


def _kind_of_numbers(numbers: list[float | None], rows: list[int]) -> str:
    values = [math.nan if number is None else number for number in numbers]  # NaN differs even from itself
    if all(value == values[0] for value in values):
        return "constant"
    if len(rows) < 10:
        return "numbers"
    step = (values[1] - values[0]) / (rows[1] - rows[0])
    even = all(value - values[0] == step * (row - rows[0]) for value, row in zip(values, rows, strict=True))
    if even and step == 1:
        return "row numbers"
    whole = step.is_integer() and values[0].is_integer()  # as in 1000, 1010, 1020; of few, they may be measured at
    return "whole numbers in even steps from row to row" if even and whole and len(rows) >= ENOUGH else "numbers"


def _number_block(name: str, values: Tensor, test_values: Tensor, told: Told) -> _Block:
    if (tails := _tails(values)) is not None:
        values, test_values = tails(values), tails(test_values)
        told["numbers with long tails on a logarithmic scale"].append(name)
    missing = values.isnan()
    median = float(values.nanmedian())
    x, test_x = standardised(*[v.nan_to_num(nan=median)[:, None] for v in (values, test_values)])
    names, blocks, test_blocks = [], [], []
    if x.any():  # else all are the same or missing
        names, blocks, test_blocks = [name], [x], [test_x]
    if missing.any():
        names.append(f"{name} missing")
        blocks.append(missing[:, None].float())
        test_blocks.append(test_values.isnan()[:, None].float())
    if gaps := int(missing.sum()) + int(test_values.isnan().sum()):
        told["missing numbers replaced by the median"].append(f"{name} ({gaps:,})")
    return _Block(names, torch.cat(blocks, dim=1), torch.cat(test_blocks, dim=1))


def _numbers(name: str, part: Part, cells: list[Cell], notes: list[str]) -> Tensor:
    """A column's numbers, (n,) in float64, NaN where there is none; DataError for an infinite one."""
    numbers = [as_number(cell) for cell in cells]
    for i, number in enumerate(numbers):
        if number is not None and math.isinf(number):
            raise DataError(f"{part.place(i, name)}: {cells[i]} is infinite; correct the cell, or leave it empty")
    odd = [i for i, number in enumerate(numbers) if number is None]
    if odd:
        notes.append(
            f"{part.place(odd[0], name)}: {cells[odd[0]]!r} is not a number, taken as missing ({len(odd):,} such)"
        )
    return torch.tensor([math.nan if number is None else number for number in numbers], dtype=torch.float64)


def _all_different(values: Tensor) -> bool:
    """Whether these are whole numbers of which each is there once, as an ID's are."""
    return len(values) >= ENOUGH and bool((values == values.round()).all()) and len(values.unique()) == len(values)


def _filler(values: Tensor) -> float | None:
    """A number made of nines, such as -999, that stands for missing ones; None if there is none.

    It must occur several times, yet less often than all others together, and lie further from them than they span. A
    positive one must have three nines: 99 may be a price, an age, a percentage, or a year.
    """
    present = values[~values.isnan()]
    for end in present.aminmax() if len(present) else ():
        others = present[present != end]
        nines = str(abs(int(end))) if float(end).is_integer() else ""
        if set(nines) != {"9"} or len(nines) < (2 if end < 0 else 3):
            continue
        if not FILLERS <= len(present) - len(others) < len(others):
            continue
        span = others.max() - others.min()
        if (others - end).abs().min() > span > 0:
            return float(end)
    return None


def _tails(values: Tensor) -> Callable[[Tensor], Tensor] | None:
    """A function that draws in long tails; None for numbers without them.

    It is linear near the median and logarithmic far from it, because a few large values would otherwise squeeze all
    others together. Its unit is the spread of the middle half (where most numbers are equal, of those that differ).
    """
    present = values[~values.isnan()]
    if len(present) < ENOUGH or not present.any():
        return None
    scale = present.abs().amax()  # the square of 1e300 would overflow
    ordered = (present / scale).sort().values
    low, middle, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.5, 0.75))
    off, spread = ordered - middle, (high - low) / NORMAL
    if not spread > 0:  # most are the same, such as 0
        off = off[off != 0]
        spread = off.abs().median() if len(off) >= ENOUGH else spread
    if not float(off.std(correction=0)) > LONG * float(spread) > 0:
        return None
    return lambda values: ((values / scale - middle) / spread).asinh()


def _text_block(name: str, train: list[Cell], test: list[Cell], told: Told) -> _Block:
    parts = [_levels(cells, train) for cells in (train, test)]
    counts = Counter(parts[0])
    if merged := len({_level(cell) for cell in train}) - len(counts):
        told["levels that differ in case or spaces alone, taken as one"].append(f"{name} ({merged:,} merged)")
    levels = sorted(counts, key=lambda level: (-counts[level], level))
    kept = sum(i < LEVELS or counts[level] >= MEMBERS for i, level in enumerate(levels[:MOST]))
    positions = {level: min(i, kept) for i, level in enumerate(levels)}  # at `kept`: the rare ones, together
    columns = torch.arange(min(len(levels), kept + 1))
    names = [f"{name}={level}" for level in levels[:kept]] + [f"{name}=other"] * (len(levels) > kept)
    # a level that only the test set has is -1, and so 0 in every column
    codes, test_codes = (torch.tensor([positions.get(level, -1) for level in part]) for part in parts)
    others = sum(counts[level] for level in levels[kept:]) / len(train)
    rest = f", {kept:,} of them and others ({100 * others:.3g} % of the rows)" if len(levels) > kept else ""
    hint = ", nearly every row has a rare level; --without leaves out an ID" if others > NEARLY_ALL else ""
    told[f"text columns as one-hot{hint}"].append(f"{name} ({len(levels):,} levels{rest})")
    one_hot = [(part[:, None] == columns).float() for part in (codes, test_codes)]
    return _Block(names, one_hot[0], one_hot[1])


def _prose_blocks(columns: dict[str, tuple[list[Cell], list[Cell]]], told: Told) -> list[_Block]:
    """The inputs that all columns of prose become together, given the cells of each in both parts."""
    parts = [(_texts(cells), _texts(others)) for cells, others in columns.values()]
    x, test_x, sizes = summed_up([part[0] for part in parts], [part[1] for part in parts])
    if gone := [name for name, size in zip(columns, sizes, strict=True) if not size]:
        told["left out, no word is in two rows"] = gone
    if not x.shape[1]:
        return []
    empty = {name: part[0].count("") + part[1].count("") for name, part in zip(columns, parts, strict=True)}
    if any(empty.values()):
        told["without text"] = [f"{name} ({count:,} rows)" for name, count in empty.items() if count]
    numbers = f"text by its words, summed up in {x.shape[1]:,} numbers"
    told[numbers] = [f"{name} ({size:,} words)" for name, size in zip(columns, sizes, strict=True) if size]
    return [_Block([f"words {i + 1}" for i in range(x.shape[1])], x, test_x)]


def _texts(cells: list[Cell]) -> list[str]:
    return ["" if is_missing(cell) else str(cell) for cell in cells]


def _level(cell: Cell) -> str:
    return NO_VALUE if is_missing(cell) else str(cell)


def _levels(cells: list[Cell], train: list[Cell]) -> list[str]:
    """The levels of a text column's cells; a spelling that is rare in the training rows is the usual one's level.

    It is the rule for labels (see `spellings`), so that "berlin" here and there is no level beside "Berlin".
    """
    written = [_level(cell) for cell in train]
    usual = spellings(written)
    return respelt([_level(cell) for cell in cells], set(written) - set(usual), usual)


def as_number(cell: Cell) -> float | None:
    """A cell's number: NaN for a missing one, None for text. Truth values count as 0 and 1."""
    if cell is None:
        return math.nan
    try:
        number = float(cell)
    except OverflowError:
        return math.inf
    except ValueError:
        word = str(cell).lower()
        return math.nan if word in MISSING else WORDS.get(word)
    # Python reads 1_000 as a number, people do not
    return None if isinstance(cell, str) and "_" in cell else number


def standardised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise both, (rows, columns) in float64, by the training rows' mean and standard deviation; float32.

    A column that is constant in training becomes 0. Test values stop at ±10⁶ standard deviations.
    """
    # Divided by the largest value and shifted by the first before anything is squared or summed, so that columns of
    # 1e300, or of 1e9 + 0.001, come out as precisely as any other.
    largest = train.abs().amax(dim=0).clamp_min(torch.finfo(torch.float64).smallest_normal)
    first = train[:1] / largest
    moved, moved_test = train / largest - first, test / largest - first
    mean, std = moved.mean(dim=0), moved.std(dim=0, correction=0)
    varies = std > 0
    std = torch.where(varies, std, 1.0)
    # where, and not a product with 0, as a test value may be infinite in these units
    units = [torch.where(varies, (x - mean) / std, 0.0).clamp(-FARTHEST, FARTHEST).float() for x in (moved, moved_test)]
    return units[0], units[1]
