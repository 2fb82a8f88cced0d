"""A column's numbers as people write them: 1,234.5 or 1.234,5, with the sign of a currency or of percent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from mirrordescent.lab.data.labels import MISSING

SIGNS = "$€£¥%"
# 1,234 1,234,567.8 · 1,5 1.234,5 · 1.234 1.234.567; of 1,234 alone nobody can say which it is
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+")
DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
NEARLY_ALL = 0.9  # a column of numbers may hold a few cells that are none ("unknown")

Commas = Literal["thousands", "decimals"]


def plain_numbers(cells: Sequence[str | None], *, semicolons: bool) -> tuple[list[str | None], str]:
    """The cells of a column as Python writes numbers, where they are numbers that it does not read; else as they are.

    semicolons: whether those separate the cells of the file, as where 1,5 is a number. The second is what was done, if
    a person should know: a comma may mean two things.

    >>> plain_numbers(["1,250", "$ 980.5", None, "12,000"], semicolons=False)[0]
    ['1250', '980.5', None, '12000']
    >>> plain_numbers(["1,25", "1.980,5"], semicolons=True)[0]
    ['1.25', '1980.5']
    """
    present = [cell for cell in cells if cell is not None and cell.lower() not in MISSING]
    bare = [_bare(cell) for cell in present]
    commas = _meaning(bare, semicolons=semicolons) if any("," in cell for cell in bare) else None
    if commas is None and bare == present:
        return list(cells), ""
    dotted = any("." in cell and DECIMAL.fullmatch(cell) for cell in bare)
    read = {cell: _plain(text, commas, dotted=dotted) for cell, text in zip(present, bare, strict=True)}
    if sum(_is_number(read[cell]) for cell in present) < NEARLY_ALL * len(present):
        return list(cells), ""
    # a cell that is still no number stays as it is written, for whoever is told of it
    plain = [read[cell] if cell in read and _is_number(read[cell]) else cell for cell in cells]
    return plain, _told(commas, bare, present)


def _meaning(cells: Sequence[str], *, semicolons: bool) -> Commas | None:
    """What a comma means in a column; None if it is in no number."""
    as_thousands = sum(1 for cell in cells if THOUSANDS.fullmatch(cell) and not DECIMAL.fullmatch(cell))
    as_decimals = sum(1 for cell in cells if DECIMAL.fullmatch(cell) and not THOUSANDS.fullmatch(cell))
    if as_thousands or as_decimals:
        return "thousands" if as_thousands > as_decimals else "decimals"
    if not any(THOUSANDS.fullmatch(cell) for cell in cells):
        return None
    # 1,234 alone: thousands are written without a comma below 1000, and decimals with one everywhere
    others = [cell for cell in cells if "," not in cell and _is_number(cell)]
    small = bool(others) and all(cell.lstrip("+-").isdigit() and len(cell.lstrip("+-")) < 4 for cell in others)
    return "thousands" if small or not semicolons else "decimals"


def _plain(cell: str, commas: Commas | None, *, dotted: bool) -> str:
    if commas == "thousands" and THOUSANDS.fullmatch(cell):
        return cell.replace(",", "")
    if commas == "decimals" and (DECIMAL.fullmatch(cell) or (dotted and DOTTED.fullmatch(cell))):
        return cell.replace(".", "").replace(",", ".")
    return cell


def _told(commas: Commas | None, bare: Sequence[str], written: Sequence[str]) -> str:
    if commas == "thousands":
        return "commas taken as separators of thousands"
    if commas == "decimals" and not any(DECIMAL.fullmatch(c) and not THOUSANDS.fullmatch(c) for c in bare):
        return "commas taken as decimal points, though they could separate thousands"
    signs = sorted({sign for cell in written for sign in SIGNS if sign in cell})
    return f"numbers without their signs ({' '.join(signs)})" if signs else ""


def _bare(cell: str) -> str:
    return cell.strip(SIGNS + " ") if any(sign in cell for sign in SIGNS) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
