"""Reads a column's numbers as people write them: 1,234.5 or 1.234,5, with a currency sign or a unit, or as 12:30."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mirrordescent.lab.data.labels import MISSING

SIGNS = "$€£¥%"
SPACES = " \u00a0\u202f"  # the last two do not break lines, and so keep a number on one
ODD = re.compile(f"[,({SIGNS}{SPACES[1:]}]|\\d \\d")  # what Python does not read as part of a number
SPACED = re.compile(f"\\d{{1,3}}(?:[{SPACES}]\\d{{3}})+(?!\\d)")
# 1,234 1,234,567.8 · 1,5 1.234,5 · 1.234 1.234.567; 1,234 alone could be either of the first two
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+")
POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
UNIT = re.compile(f"(.*[\\d.%)])[{SPACES}]*([^\\W\\d_]{{1,6}}[²³]?)")  # 2.5 kg: letters behind a number
LONGEST = 40  # characters of a number with its unit
# Units that people leave out here and there. Other letters behind only some of the numbers may change their meaning:
# 5 bn is not 5, 90 CR is -90, and 300 BC, 9 pm and 12a are no numbers.
MASSES, LENGTHS = ("kg", "mg", "lb", "lbs", "oz"), ("km", "cm", "mm", "mi", "ft", "inch", "mph")
AREAS, VOLUMES = ("km²", "m²", "cm²", "ft²"), ("m³", "cm³", "ml", "cl")
TIMES, POWERS = ("sec", "min", "hr", "hrs", "day", "days", "yr", "yrs", "year", "years"), ("kw", "kwh")
MEASURES = frozenset((*MASSES, *LENGTHS, *AREAS, *VOLUMES, *TIMES, *POWERS))
CODE = re.compile(r"[+-]?0\d")  # 007 is a code, not a measurement
CLOCK = re.compile(f"(\\d{{1,3}}):([0-5]\\d)(?::([0-5]\\d(?:\\.\\d+)?))?(?:[{SPACES}]?([ap])\\.?m\\.?)?", re.IGNORECASE)
NEARLY_ALL = 0.9  # a column of numbers may hold a few cells that are none ("unknown")

Commas = Literal["thousands", "decimals"]


@dataclass(frozen=True)
class Reading:
    """How the numbers of a column are written.

    commas: what they mean, if there are any. points: whether they separate thousands. told: what was assumed, for the
    user to check. unit: what stands behind the numbers, in lower case; empty if nothing does. clock: whether they are
    times of day, or how long something took.
    """

    commas: Commas | None
    points: bool
    told: tuple[str, ...]
    unit: str = ""
    clock: bool = False

    def plain(self, cell: str) -> str:
        """A number as Python writes it; anything else as it is."""
        if self.clock:
            hours = _hours(cell)
            return cell if hours is None else repr(hours)
        text = _bare(_without(cell, self.unit))
        if self.commas == "thousands" and THOUSANDS.fullmatch(text):
            text = text.replace(",", "")
        elif self.commas == "decimals" and DECIMAL.fullmatch(text):
            text = text.replace(".", "").replace(",", ".")
        elif self.points and POINTS.fullmatch(text):
            text = text.replace(".", "")
        return text if is_number(text) else cell


def reading(cells: Sequence[str], *, semicolons: bool) -> Reading | None:
    """How a column writes its numbers; None if Python reads them as they are, or if too few cells are numbers.

    semicolons: whether these separate the cells of the file, as they do where people write 1,5.

    >>> how = reading(["1,250", "-$980.5", "(12,000)"], semicolons=False)
    >>> [how.plain(cell) for cell in ("1,250", "-$980.5", "(12,000)", "none")]
    ['1250', '-980.5', '-12000', 'none']
    """
    everything = "\0".join(cells)
    odd = any(mark in everything for mark in f",({SIGNS}{SPACES}")
    present = [cell for cell in cells if cell.lower() not in MISSING]
    if _are_times(present):
        return Reading(None, points=False, told=("times taken as hours (12:30 as 12.5)",), clock=True)
    unit = _unit(present)
    if not odd and not unit and not (semicolons and any(POINTS.fullmatch(cell) for cell in cells)):
        return None
    bare = [_bare(_without(cell, unit)) for cell in present]
    commas = _commas(bare, semicolons=semicolons)
    points = _points(bare, commas, semicolons=semicolons)
    told = _told(commas, bare, present, points=points, semicolons=semicolons)
    if unit:
        told.append(f"unit removed from numbers ({unit})")
    how = Reading(commas, points, tuple(told), unit)
    numbers = sum(is_number(how.plain(cell)) for cell in present)
    return how if present and numbers >= NEARLY_ALL * len(present) else None


def _are_times(cells: Sequence[str]) -> bool:
    """Whether nearly all cells are written as 12:30, as 0:59:30 or as 3:07 PM, and the others are no numbers.

    Where some have seconds and some have none, 59:30 may be minutes, and the column stays text.
    """
    parts = [cell.count(":") if _hours(cell) is not None else 0 for cell in cells]  # 0: no time
    if len(parts) - parts.count(0) < max(1, NEARLY_ALL * len(parts)) or len({*parts} - {0}) > 1:
        return False
    return not any(is_number(cell) for cell, count in zip(cells, parts, strict=True) if not count)


def _hours(cell: str) -> float | None:
    """The hours of a time such as 12:30, 0:59:30 or 3:07 PM; None for other cells."""
    found = CLOCK.fullmatch(cell.strip(SPACES)) if ":" in cell else None
    if found is None:
        return None
    hours, half = int(found[1]), (found[4] or "").lower()
    if (half and not 1 <= hours <= 12) or (not found[3] and hours > 24):  # 28:25 is a score, or minutes
        return None
    return (hours % 12 + 12 * (half == "p") if half else hours) + int(found[2]) / 60 + float(found[3] or 0) / 3600


def _unit(cells: Sequence[str]) -> str:
    """The unit that nearly all numbers with letters behind them have, in lower case; "" if there is none."""
    if not any(cell[:1].isdigit() or cell[:1] in f"+-.({SIGNS}" for cell in cells[:100]):
        return ""
    found = [match for cell in cells if (match := _with_unit(cell)) is not None]
    if not found or any(CODE.match(match[1]) for match in found):
        return ""
    unit, count = Counter(match[2].lower() for match in found).most_common(1)[0]
    if count < NEARLY_ALL * len(found):
        return ""
    return unit if unit in MEASURES or not any(is_number(_bare(cell)) for cell in cells) else ""


def _without(cell: str, unit: str) -> str:
    found = _with_unit(cell) if unit else None
    return found[1] if found is not None and found[2].lower() == unit else cell


def _with_unit(cell: str) -> re.Match[str] | None:
    """A number and the letters behind it; None for other cells."""
    text = cell.strip(SPACES)
    return UNIT.fullmatch(text) if len(text) <= LONGEST and not is_number(text) else None


def is_number(text: str) -> bool:
    """Whether Python reads it as a number; not 1_000, though, which people do not write."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _bare(cell: str) -> str:
    """The cell without currency and percent signs and without spaces around or inside the number; (5) becomes -5."""
    if not ODD.search(cell):
        return cell
    text = cell.strip(SPACES)
    if text.startswith("(") and text.endswith(")"):
        text = f"-{text[1:-1]}"
    text = SPACED.sub(lambda found: "".join(found.group().split()), text)
    start = text[:1] if text[:1] in "+-" else ""
    return start + text[len(start) :].strip(SIGNS + SPACES)


def _commas(cells: Sequence[str], *, semicolons: bool) -> Commas | None:
    """What a comma means in a column; None if no number has one."""
    as_thousands = sum(1 for cell in cells if THOUSANDS.fullmatch(cell) and not DECIMAL.fullmatch(cell))
    as_decimals = sum(1 for cell in cells if DECIMAL.fullmatch(cell) and not THOUSANDS.fullmatch(cell))
    if as_thousands or as_decimals:
        return "thousands" if as_thousands > as_decimals else "decimals"
    if not any(THOUSANDS.fullmatch(cell) for cell in cells):
        return None
    return "thousands" if _small([cell for cell in cells if "," not in cell]) or not semicolons else "decimals"


def _points(cells: Sequence[str], commas: Commas | None, *, semicolons: bool) -> bool:
    """Whether points separate thousands, which they do only if commas are decimal or semicolons separate cells."""
    if commas == "decimals":
        return any("." in cell and DECIMAL.fullmatch(cell) for cell in cells)
    dotted = [cell for cell in cells if "." in cell and is_number(cell.replace(".", ""))]
    if not semicolons or commas or not dotted or not all(POINTS.fullmatch(cell) for cell in dotted):
        return False
    return any(cell.count(".") > 1 for cell in dotted) or _small([cell for cell in cells if "." not in cell])


def _small(cells: Sequence[str]) -> bool:
    """Whether a column's other numbers are whole and below 1000: these look the same with or without thousands."""
    numbers = [cell.lstrip("+-") for cell in cells if is_number(cell)]
    return bool(numbers) and all(number.isdigit() and len(number) < 4 for number in numbers)


def _told(
    commas: Commas | None, bare: Sequence[str], written: Sequence[str], *, points: bool, semicolons: bool
) -> list[str]:
    told = []
    if commas == "thousands":
        told.append("commas taken as separators of thousands")
    elif commas == "decimals" and not (
        semicolons and any(DECIMAL.fullmatch(c) and not THOUSANDS.fullmatch(c) for c in bare)
    ):
        told.append("commas taken as decimal points")
    elif points and commas is None:
        told.append("points taken as separators of thousands")
    if signs := sorted({sign for sign in SIGNS if any(sign in cell for cell in written)}):
        told.append(f"signs removed from numbers ({' '.join(signs)})")
    return told
