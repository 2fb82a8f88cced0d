"""Numbers as people write them: what is read is what was written, and text stays text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab.data.numbers import plain_numbers

VALUES = st.lists(st.integers(-(10**9), 10**9).map(lambda cents: cents / 100), min_size=1, max_size=20)


def grouped(value: float, *, comma: str, point: str) -> str:
    return f"{value:,.2f}".translate({ord(","): comma, ord("."): point})


@given(VALUES, st.booleans())
def test_separators_of_thousands(values: list[float], semicolons: bool) -> None:
    cells = [grouped(value, comma=",", point=".") for value in values]
    read, told = plain_numbers(cells, semicolons=semicolons)
    assert [float(cell or "nan") for cell in read] == values
    assert ("thousands" in told) == any("," in cell for cell in cells)


@given(VALUES, st.booleans())
def test_decimal_commas(values: list[float], semicolons: bool) -> None:
    """Two digits after a comma are no thousands, whatever separates the cells."""
    read, told = plain_numbers([grouped(value, comma=".", point=",") for value in values], semicolons=semicolons)
    assert [float(cell or "nan") for cell in read] == values
    assert not told


@pytest.mark.parametrize(
    ("cells", "semicolons", "read"),
    [
        (["1,234", "2,500"], False, ["1234", "2500"]),
        (["1,234", "2,500"], True, ["1.234", "2.500"]),
        (["1,234", "2,500", "980"], True, ["1234", "2500", "980"]),  # decimals have their comma everywhere
        (["1,234", "2,500", "9800"], True, ["1.234", "2.500", "9800"]),
        (["0,234", "2,500", "980"], False, ["0.234", "2.500", "980"]),  # no group of thousands begins with 0
        (["1,234,567", "1,234"], True, ["1234567", "1234"]),
        (["1.234", "1.234.567,5"], True, ["1234", "1234567.5"]),
        (["$1,234.50", "€ 7", "12 %"], False, ["1234.50", "7", "12"]),
        (["1,5", "unknown", *["2,5"] * 9], True, ["1.5", "unknown", *["2.5"] * 9]),
        (["1,234", "n/a", None], False, ["1234", "n/a", None]),
    ],
)
def test_what_a_comma_means(cells: list[str | None], semicolons: bool, read: list[str | None]) -> None:
    assert plain_numbers(cells, semicolons=semicolons)[0] == read


@given(st.lists(st.none() | st.text(), max_size=8), st.booleans())
def test_anything_else_stays_as_it_is(cells: list[str | None], semicolons: bool) -> None:
    read, _ = plain_numbers([*cells, *["Paris, 75", "50 % wool", "1,2,3", "a"] * 20], semicolons=semicolons)
    assert read[: len(cells)] == cells


def test_an_ambiguous_comma_is_told() -> None:
    assert "could separate thousands" in plain_numbers(["1,234"], semicolons=True)[1]
    assert plain_numbers(["1,5", "1,234"], semicolons=True)[1] == ""
    assert plain_numbers(["5%", "7%"], semicolons=False)[1] == "numbers without their signs (%)"
