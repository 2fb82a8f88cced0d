"""Turns labels as people write them into names and numbers of classes."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.names import listed

# What people write into a cell that has no value. In a column of labels, "none" is often a class of its own.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
MISSING_LABELS = MISSING - {"none"}
RARELY = 4  # times as frequent the usual spelling must be, for another to count as a variant of it


def is_missing(value: object) -> bool:
    """Whether a label, or a cell of text, says nothing."""
    return _text(value).lower() in MISSING_LABELS


def label_names(values: Sequence[object], place: Callable[[int], str]) -> list[str]:
    """One name per label: whole numbers without zeros around them ("01", 1.0 → "1"), anything else as text.

    place(i) says where label i stands. Raises DataError for missing labels (naming the first ones), and for fractions
    unless there is text among the labels and at most half of them are fractions.
    """
    texts = [_text(value) for value in values]
    missing = [i for i, text in enumerate(texts) if is_missing(text)]
    gone = set(missing)
    numbers = [None if i in gone else _number(text) for i, text in enumerate(texts)]
    fractions = [i for i, number in enumerate(numbers) if isinstance(number, float)]
    words = sum(number is None for number in numbers) - len(missing)
    # among words, 1.5 may be the name of a class; among numbers alone, or if most are like it, it is a measurement
    if fractions and (not words or len(fractions) > (len(numbers) - len(missing)) / 2):
        raise DataError(
            f"{place(fractions[0])}: the label {texts[fractions[0]]} is not a whole number; labels are classes here, "
            "so choose other labels or put the values into bins"
        )
    if missing:
        raise DataError(
            f"{_places(missing, place)}: the label is missing ({len(missing):,} of {len(texts):,}); "
            "fill it in or remove the sample"
        )
    return [text if i in gone else plain_name(text) for i, text in enumerate(texts)]


def plain_name(text: str) -> str:
    """A label's name: whole numbers without zeros around them, anything else as it is.

    >>> plain_name("01"), plain_name("1.0"), plain_name("1.5"), plain_name("a1")
    ('1', '1', '1.5', 'a1')
    """
    text, number = _text(text), _number(_text(text))
    return str(number) if isinstance(number, int) else text


def spellings(names: Sequence[str]) -> dict[str, str]:
    """The usual spelling for each label that differs from it only in case or spaces ("BASIC", "Basic ").

    A spelling that is at least a quarter as frequent as the usual one is left out: it may be a class of its own, as
    where small and capital letters are the classes.

    >>> spellings(["Cat"] * 8 + ["cat", "CAT", "dog"])
    {'cat': 'Cat', 'CAT': 'Cat'}
    """
    alike: dict[str, list[tuple[str, int]]] = {}
    for name, count in Counter(names).most_common():
        alike.setdefault(loosely(name), []).append((name, count))
    return {name: ways[0][0] for ways in alike.values() for name, count in ways[1:] if RARELY * count < ways[0][1]}


def respelt(names: Sequence[str], known: Collection[str], usual: Mapping[str, str]) -> list[str]:
    """Names spelt as the known ones are, unless several of these differ in case or spaces alone.

    usual: from `spellings`, for rare spellings that are not among the known ones.

    >>> respelt(["CAT", "Dog", "DOG", "cow"], ["Cat", "dog", "Dog"], {})
    ['Cat', 'Dog', 'DOG', 'cow']
    """
    known = frozenset(known)
    ways: dict[str, list[str]] = {}
    for name in known:
        ways.setdefault(loosely(name), []).append(name)
    alike = {way: only[0] for way, only in ways.items() if len(only) == 1}
    return [name if name in known else usual.get(name) or alike.get(loosely(name), name) for name in names]


def loosely(name: str) -> str:
    """A name for loose comparison: without case or superfluous spaces, and with accents in one Unicode form."""
    return " ".join(unicodedata.normalize("NFC", name).split()).casefold()


def class_names(names: Sequence[str], what: str) -> tuple[str, ...]:
    """The classes in order: by number where all are numbers, else by name.

    Raises DataError, which begins with `what`, for a single class, or for so many that they cannot be classes.

    >>> class_names(["10", "9", "10"], "a.csv")
    ('9', '10')
    """
    distinct = sorted(set(names))
    if len(distinct) < 2:
        raise DataError(f"{what}: only one class, {distinct[0]!r}; there must be at least two to tell apart")
    if len(distinct) > max(100, len(names) / 10) or len(distinct) > 0.9 * max(len(names), 10):
        raise DataError(
            f"{what}: {len(distinct):,} different labels for {len(names):,} samples (such as {distinct[0]!r}); these "
            "are values or names, not classes, so choose other labels"
        )
    if all(isinstance(_number(name), int) for name in distinct):
        distinct.sort(key=int)
    return tuple(distinct)


def class_numbers(names: Sequence[str], classes: Sequence[str], place: Callable[[int], str]) -> Tensor:
    """Each label's position among the classes, (n,); DataError for one that is not among them."""
    positions = {name: position for position, name in enumerate(classes)}
    for i, name in enumerate(names):
        if name not in positions:
            known = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
            raise DataError(f"{place(i)}: the label {name!r} does not occur in the training set, which has {known}")
    return torch.tensor([positions[name] for name in names], dtype=torch.int64)


def _places(rows: Sequence[int], place: Callable[[int], str]) -> str:
    # "a.csv, line 3, line 5": the file is named once
    first = place(rows[0])
    return listed([first, *[place(i).rpartition(", ")[2] for i in rows[1:]]])


def _text(value: object) -> str:
    if value is None:
        return ""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return unicodedata.normalize("NFC", text.strip())  # é is the same, written as one character or as two


def _number(text: str) -> int | float | None:
    # int for whole numbers however they are written; float for other numbers; None for text
    if "_" in text:  # Python reads 1_000 as a number, people do not
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number
