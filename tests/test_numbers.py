"""Numbers as people write them: what is read is what was written, and text stays text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab.data.numbers import MEASURES, SIGNS, is_number, reading

VALUES = st.lists(st.integers(-(10**9), 10**9).map(lambda cents: cents / 100), min_size=1, max_size=20)


def grouped(value: float, *, comma: str, point: str) -> str:
    return f"{value:,.2f}".translate({ord(","): comma, ord("."): point})


def read(cells: list[str], *, semicolons: bool = False) -> list[str]:
    how = reading(cells, semicolons=semicolons)
    return cells if how is None else [how.plain(cell) for cell in cells]


def told(cells: list[str], *, semicolons: bool = False) -> tuple[str, ...]:
    how = reading(cells, semicolons=semicolons)
    return () if how is None else how.told


@given(VALUES, st.booleans())
def test_separators_of_thousands(values: list[float], semicolons: bool) -> None:
    cells = [grouped(value, comma=",", point=".") for value in values]
    assert [float(cell) for cell in read(cells, semicolons=semicolons)] == values
    assert ("commas taken as separators of thousands" in told(cells, semicolons=semicolons)) == any(
        "," in cell for cell in cells
    )


@given(VALUES, st.booleans())
def test_decimal_commas(values: list[float], semicolons: bool) -> None:
    """Two digits after a comma are no thousands, whatever separates the cells; where that is odd it is told."""
    cells = [grouped(value, comma=".", point=",") for value in values]
    assert [float(cell) for cell in read(cells, semicolons=semicolons)] == values
    assert told(cells, semicolons=semicolons) == (() if semicolons else ("commas taken as decimal points",))


@given(VALUES, st.sampled_from([*SIGNS, "€ ", "$\u00a0"]), st.sampled_from(["before", "behind", "after the minus"]))
def test_signs(values: list[float], sign: str, place: str) -> None:
    ways = {"before": "{0}{1}", "behind": "{1}{0}", "after the minus": "{2}{0}{3}"}
    cells = [
        ways[place].format(sign if place != "behind" else sign[::-1], f"{v:,.2f}", "-" * (v < 0), f"{abs(v):,.2f}")
        for v in values
    ]
    assert [float(cell) for cell in read(cells)] == values
    assert f"signs removed from numbers ({sign.strip()})" in told(cells)


@pytest.mark.parametrize(
    ("cells", "semicolons", "plain"),
    [
        (["1,234", "2,500"], False, ["1234", "2500"]),
        (["1,234", "2,500"], True, ["1.234", "2.500"]),
        (["1,234", "2,500", "980"], True, ["1234", "2500", "980"]),  # decimals have their comma everywhere
        (["1,234", "2,500", "9800"], True, ["1.234", "2.500", "9800"]),
        (["0,234", "2,500", "980"], False, ["0.234", "2.500", "980"]),  # no group of thousands begins with 0
        (["1,234,567", "1,234"], True, ["1234567", "1234"]),
        ([*["1,234.5"] * 20, "1,5"], False, [*["1234.5"] * 20, "1,5"]),  # what most are; the rest stays
        ([*["7,25"] * 20, "1,234.5"], False, [*["7.25"] * 20, "1,234.5"]),
        (["1.234", "1.234.567,5"], True, ["1234", "1234567.5"]),
        (["1.234", "12.500", "980"], True, ["1234", "12500", "980"]),
        (["1.234", "12.500", "980"], False, ["1.234", "12.500", "980"]),
        (["1.234", "0.052", "980"], True, ["1.234", "0.052", "980"]),
        (["1.234", "1.234.567"], True, ["1234", "1234567"]),
        (["12 500", "1\u00a0234,5", "7"], True, ["12500", "1234.5", "7"]),
        (["(1,234)", "(5)", "7,000"], False, ["-1234", "-5", "7000"]),
        (["$1,234.50", "€ 7", "12 %", "-£3", "¥4"], False, ["1234.50", "7", "12", "-3", "4"]),
        (["1,5", "unknown", *["2,5"] * 9], True, ["1.5", "unknown", *["2.5"] * 9]),
        (["1,234", "n/a"], False, ["1234", "n/a"]),
        (["1,5"] * 8 + ["Graz", "Oslo"], True, ["1,5"] * 8 + ["Graz", "Oslo"]),  # a fifth are words: no numbers
        (["1 2", "3 4"], False, ["1 2", "3 4"]),
        (["192.168.100.200", "10.0.0.1"], True, ["192.168.100.200", "10.0.0.1"]),
    ],
)
def test_what_a_comma_means(cells: list[str], semicolons: bool, plain: list[str]) -> None:
    assert read(cells, semicolons=semicolons) == plain


@given(st.lists(st.text(), max_size=4), st.booleans())
def test_a_cell_among_numbers_is_a_number_or_stays(cells: list[str], semicolons: bool) -> None:
    column = [*cells, *["1,25", "7,5"] * 30]
    found = read(column, semicolons=semicolons)
    assert found[len(cells) :] == ["1.25", "7.5"] * 30
    for cell, plain in zip(cells, found, strict=False):
        assert plain == cell or is_number(plain)
        assert any(letter.isdigit() for letter in cell) or plain == cell


def test_what_could_be_wrong_is_told() -> None:
    assert told(["1,234"], semicolons=True) == ("commas taken as decimal points",)
    assert told(["1,5", "1,234"], semicolons=True) == ()
    assert told(["1.234", "980"], semicolons=True) == ("points taken as separators of thousands",)
    assert told(["$1,234", "€5"]) == ("commas taken as separators of thousands", "signs removed from numbers ($ €)")
    assert reading(["1.5", "-2e3", "none"], semicolons=False) is None


@given(st.lists(st.integers(0, 24 * 3600 - 1), min_size=1, max_size=20), st.sampled_from(["24", "seconds", "12"]))
def test_times_are_hours(moments: list[int], way: str) -> None:
    cells = []
    for moment in moments:
        hours, minutes, seconds = moment // 3600, moment // 60 % 60, moment % 60
        if way == "12":
            cells.append(f"{(hours - 1) % 12 + 1}:{minutes:02} {'pm' if hours >= 12 else 'AM'}")
        else:
            cells.append(f"{hours:02}:{minutes:02}" + (f":{seconds:02}" if way == "seconds" else ""))
    exact = [moment if way == "seconds" else moment // 60 * 60 for moment in moments]
    assert [float(cell) for cell in read(cells)] == pytest.approx([moment / 3600 for moment in exact])
    assert told(cells) == ("times taken as hours (12:30 as 12.5)",)
    assert read([*cells, *["?"] * len(cells)])[: len(cells)] == read(cells)


WRONG = [["4:3", "16:9"], ["12:30", "930"], ["12:60"], ["13:00 pm"], ["a:b", "1:30"], [":30"], ["25:10", "28:25"]]
MINUTES = [["59:30", "1:02:15"], ["12:30", "12:30:01"]]  # perhaps


@pytest.mark.parametrize("cells", WRONG + MINUTES)
def test_what_is_no_time_of_day_for_sure_stays_text(cells: list[str]) -> None:
    assert read(cells) == cells


@given(VALUES, st.sampled_from(["kg", "cm", "km²", "Stk", "h"]), st.sampled_from(["", " ", "\u00a0"]), st.booleans())
def test_units(values: list[float], unit: str, space: str, some: bool) -> None:
    """Behind all numbers, or, if it is a measure, behind some: people leave it out."""
    bare = some and unit in MEASURES
    cells = [f"{v:,.2f}" if bare and k % 2 else f"{v:,.2f}{space}{unit}" for k, v in enumerate(values)]
    assert [float(cell) for cell in read(cells)] == values
    assert f"unit removed from numbers ({unit.lower()})" in told(cells)


@pytest.mark.parametrize(
    ("cells", "number"),
    [
        (["12 kg", "5 g", "7 kg"], False),  # which are not of one unit
        (["1.2k", "900", "3k"], False),  # nor these
        (["1.2k", "900k"], True),
        (["12", "12a", "14"], False),  # houses
        (["3 bn", "5", "7"], False),
        (["007x", "008x"], False),  # codes
        (["1st", "2nd"], False),
        (["40 lakh", "4000000"], False),
        (["90.00 CR", "12.50", "3.10"], False),
        (["300 BC", "1980"], False),
        (["9 pm", "10"], False),
        (["10 or more", "3", "4"], False),
        (["5kg", "heavy"], False),
    ],
)
def test_letters_that_are_no_unit(cells: list[str], number: bool) -> None:
    assert all(is_number(cell) for cell in read(cells)) == number
    assert number or read(cells) == cells


def test_one_cell_with_another_unit_is_no_number_and_the_others_are() -> None:
    cells = [f"{k}.5 kg" for k in range(59)]
    assert read([*cells, "5.1 lbs"]) == [*(cell.removesuffix(" kg") for cell in cells), "5.1 lbs"]


def test_long_texts_are_read_in_no_time() -> None:
    """A column may hold whole pictures as text."""
    pixels = " ".join(str(k % 256) for k in range(100_000))
    began = time.monotonic()
    assert read([pixels, f"{pixels} kg"]) == [pixels, f"{pixels} kg"]
    assert time.monotonic() - began < 5
