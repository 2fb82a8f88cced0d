"""Pictures: colours that everyone sees, plain text, and axes that say what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirrordescent.lab.records import Record
from mirrordescent.lab.report import pictures
from mirrordescent.lab.report.page import INK, PAPER, STYLE, inline_svg
from mirrordescent.lab.report.table import Line, table
from mirrordescent.lab.runs import Run

COLOURS = sorted(
    {look.colour for look in (*pictures.LOOKS.values(), *pictures.OTHERS)} | {pictures.RIGHT, pictures.WRONG}
)
PAPERS = re.findall(r"--paper: (#\w{6})", STYLE)


def lines(*runs: Run) -> list[Line]:
    rows: list[dict[str, float | int | None]] = [
        {"epoch": epoch, "test_accuracy": 0.8, "train_accuracy": 0.1 * epoch, "wrong_fitted": 0.2}
        for epoch in (1, 2, 3)
    ]
    held = {"edges": [0.0, 1.0, 3.0], "counts": [6.0, 2.0]}
    kept = {"weights": held, "z_right": held, "z_wrong": held}
    return table([Record(Path(run.id), run, status="done", rows=rows, histograms=kept) for run in runs])


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colour", COLOURS)
def test_every_colour_is_seen_in_light_and_in_dark(colour: str) -> None:
    assert len(PAPERS) == 2
    for paper in PAPERS:
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 3  # WCAG's rule for graphics


def test_eight_methods_look_different_and_the_usual_ones_always_the_same() -> None:
    names = ["RMD sample", "RMD sample l1", "RMD sample q=3", "SMD l1", "SMD q=3", "RMD batch l1", "SGD", "a"]
    found = pictures.looks(names)
    assert len(set(found.values())) == 8
    assert found["SGD"] == pictures.LOOKS["SGD"]
    more = pictures.looks([*names, *(str(number) for number in range(30))])
    assert len(set(more.values())) == len(more) == 38
    assert len(pictures.looks(str(number) for number in range(100))) == 100


def test_weight_decays_lam_has_an_axis_of_its_own() -> None:
    decay = [Run(algorithm="weight-decay", lam=lam) for lam in (0.1, 0.2)]
    rmd = [Run(lam=lam) for lam in (1, 2, 4)]
    for runs, wanted in ((rmd, [{1, 2, 4}]), (decay, [{0.1, 0.2}]), (decay + rmd, [{1, 2, 4}, {0.1, 0.2}])):
        shown = lines(Run(algorithm="sgd"), *runs)
        figure = pictures.against_lam(shown, pictures.looks(line.method for line in shown))
        assert [set(axes.get_xticks()) for axes in figure.axes] == wanted


def test_ink_and_paper_are_nothing_elses_colour() -> None:
    assert not {INK, PAPER} & set(COLOURS)


@pytest.mark.parametrize("kind", ["lam", "curves", "z", "weights"])
def test_a_picture_is_plain_text_in_the_pages_colours(kind: str) -> None:
    shown = lines(Run(algorithm="sgd", corruption=0.4), *(Run(lam=lam, corruption=0.4) for lam in (1, 2, 4)))
    look = pictures.looks(line.method for line in shown)
    draw = {
        "lam": lambda: pictures.against_lam(shown, look),
        "curves": lambda: pictures.curves(shown, look),
        "z": lambda: pictures.z_histograms(shown[1:]),
        "weights": lambda: pictures.weight_histograms(shown, look),
    }[kind]
    svg, png = pictures.rendered(draw, kind)
    assert png.startswith(b"\x89PNG")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    wanted = {
        "lam": {"accuracy (%)", "test set", "1", "2", "4"},
        "curves": {"test accuracy (%)", "training labels (%)", "epoch", "wrong labels learnt", "RMD sample, λ = 2"},
        "z": {"z", "density / its peak", "right labels", "wrong labels", "RMD sample, λ = 4"},
        "weights": {"weight", "density", "SGD"},
    }[kind]
    assert wanted <= set(texts)
    assert not any("$" in text for text in texts)  # a formula that was not set
    inline = inline_svg(svg, kind, "")
    colours = set(re.findall(r"(?:fill|stroke): (#\w+)", inline))
    assert colours <= set(COLOURS)
    assert "currentColor" in inline
    assert not re.search(r"<text(?![^>]*fill: currentColor)", inline)  # black is not seen in the dark


def test_a_density_is_one_in_all() -> None:
    (line,) = lines(Run(lam=2.0, corruption=0.1))
    figure = pictures.weight_histograms([line], pictures.looks([line.method]))
    (patch,) = figure.axes[0].patches
    values, edges, _ = patch.get_data()  # type: ignore[attr-defined]
    assert sum(value * (right - left) for value, left, right in zip(values, edges, edges[1:], strict=False)) == 1
    assert list(values) == [0.75, 0.125]


def test_accuracies_are_drawn_in_percent() -> None:
    shown = lines(*(Run(lam=lam) for lam in (1, 2)))
    figure = pictures.curves(shown[:1], pictures.looks([shown[0].method]))
    above, below = (list(axes.get_lines()[0].get_ydata()) for axes in figure.axes)  # type: ignore[arg-type]
    assert above == [80, 80, 80]
    assert below == pytest.approx([10, 20, 30])
