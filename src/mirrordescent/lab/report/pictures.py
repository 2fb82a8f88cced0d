"""The report's pictures, and what others share with them. Needs matplotlib; a report imports it only to draw.

Ink and paper are two fixed colours that nothing else has, so that a page can put its own in their place; the other
colours can be seen on white and on near black, and told apart by the colour-blind.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mirrordescent.lab.records import Record
from mirrordescent.lab.report.page import INK, PAPER
from mirrordescent.lab.report.table import Line, Spread

Style = Literal["-", "--", ":"]
WIDTH = 7.0  # inches; at 100 dots per inch, the width at which text is to be read
SEEDS = 5  # curves per setting, at most
RIGHT, WRONG = "#2a86c8", "#d55e00"
SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: found by a search, read aloud, in the page's font
    "text.parse_math": False,  # a dollar sign is a dollar sign
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so that pictures are alike everywhere
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.18,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
}


@dataclass(frozen=True)
class Look:
    """How a method looks in every picture."""

    colour: str
    marker: str


LOOKS = {
    "SGD": Look("#808080", "s"),
    "weight decay": Look("#a87b00", "D"),
    "SMD": Look("#c2649a", "^"),
    "RMD sample": Look("#2a86c8", "o"),
    "RMD batch": Look("#d55e00", "v"),
}
OTHERS = (Look("#009e73", "P"), Look("#8f6fd1", "X"), Look("#b0524f", "*"))


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A look for every method: the five usual ones always have theirs, and the first 64 all differ."""
    methods = list(dict.fromkeys(methods))
    found = {method: LOOKS[method] for method in methods if method in LOOKS}
    choice = (*OTHERS, *LOOKS.values())  # looks of usual methods that are not there are free
    free = [look for look in choice if look not in found.values()]
    # then the same colours with other markers
    mixed = [
        Look(look.colour, choice[(place + shift) % len(choice)].marker)
        for shift in range(1, len(choice))
        for place, look in enumerate(choice)
    ]
    others = [method for method in methods if method not in LOOKS]
    return {**found, **dict(zip(others, itertools.chain(free, mixed, itertools.cycle(choice)), strict=False))}


def rendered(draw: Callable[[], Figure], name: str) -> tuple[str, bytes]:
    """The picture as SVG and as PNG. The same figure gives the same bytes."""
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure = draw()
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
        # Twice the width at which it is read, for sharp screens.
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return svg.getvalue().decode("utf-8"), png.getvalue()


def against_lam(lines: Sequence[Line], look: dict[str, Look]) -> Figure:
    """Accuracy, or loss, against λ: the test set's solid, training's dashed; methods without λ as horizontal lines.

    Weight decay's λ weighs a different sum than RMD's, and has a panel of its own beside it.
    """
    kind = quantity(lines)
    without = [line for line in lines if line.lam is None]
    parts = [_of(lines, decay=decay) for decay in (False, True)]
    parts = [part for part in parts if part]
    widths = [2 + len({line.lam for line in part}) for part in parts]
    figure = Figure(figsize=(WIDTH, 3.5), layout="constrained")
    grid = figure.subplots(1, len(parts), sharey=True, squeeze=False, width_ratios=widths)
    for axes, part in zip(grid.flat, parts, strict=True):
        axes.set_xscale("log")
        shown = part + without
        for method in dict.fromkeys(line.method for line in shown):
            of_method = [line for line in shown if line.method == method]
            _against_lam(axes, of_method, f"test_{kind}", "-", look[method])
            _against_lam(axes, of_method, f"train_{kind}", "--", look[method])
        _lam_axis(axes, sorted({line.lam for line in part if line.lam is not None}))
        axes.set_xlabel("λ (small: more regularization; log axis)" if len(parts) == 1 else "λ (log axis)")
        if len(parts) > 1:
            axes.set_title("weight decay" if part[0].decays else "RMD", loc="left")
    _level_axis(grid[0, 0], kind, f"{kind} (%)" if kind == "accuracy" else "loss")
    methods = [entry(look[method], method, marker=True) for method in dict.fromkeys(line.method for line in lines)]
    legend(figure, [*methods, style_entry("-", "test set"), style_entry("--", "training set")])
    return figure


def _of(lines: Sequence[Line], *, decay: bool) -> list[Line]:
    """The lines with a finite λ: weight decay's, or the others."""
    return [line for line in lines if line.lam is not None and line.lam < math.inf and line.decays == decay]


def curves(lines: Sequence[Line], look: dict[str, Look]) -> Figure:
    """The test set's accuracy, or loss, over the epochs; below it training's, and the wrong labels learnt."""
    kind = quantity(lines)
    figure, (above, below) = stacked(2, 2.1)
    wrong = any(row.get("wrong_fitted") is not None for line in lines for row in _rows(line))
    for line in lines:
        for record in line.counted[:SEEDS] or line.records[:SEEDS]:
            width = 1.6 if len(line.counted) < 2 else 1.0
            curve(above, record, f"test_{kind}", look[line.method], "-", width)
            curve(below, record, f"train_{kind}", look[line.method], "--", width)
            curve(below, record, "wrong_fitted", look[line.method], ":", width * 1.3)
    _level_axis(above, kind, "test accuracy (%)" if kind == "accuracy" else "test loss")
    _level_axis(below, kind, "training labels (%)" if kind == "accuracy" else "train loss")
    epoch_axis(below)
    styles = [style_entry("--", "train accuracy, labels as given"), style_entry(":", "wrong labels learnt")]
    legend(figure, [*(entry(look[line.method], line.title) for line in lines), *(styles if wrong else [])])
    return figure


def z_histograms(lines: Sequence[Line]) -> Figure:
    """z of the samples with right and with wrong labels: a panel per setting, of its first seed with histograms."""
    columns = min(len(lines), 3)
    rows = math.ceil(len(lines) / columns)
    figure = Figure(figsize=(WIDTH, 0.5 + 1.75 * rows), layout="constrained")
    panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    both = False
    for place, (axes, line) in enumerate(zip(panels, lines, strict=False)):
        record = first_with(line, "z_right")
        assert record is not None, "the caller passes lines with histograms"
        _hill(axes, *density(record, "z_right"), RIGHT)
        _hill(axes, *density(record, "z_wrong"), WRONG)
        both |= "z_wrong" in record.histograms
        wrapped = [line.title] if len(line.title) <= 26 else [*textwrap.wrap(line.method, 26), f"λ = {line.lam:g}"]
        axes.set_title("\n".join(wrapped), loc="left")
        axes.set_xlabel("z" if place + columns >= len(lines) else "")
        axes.set_ylabel("" if place % columns else "density / its peak")
        axes.set_ylim(0, 1.05)
        axes.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    for axes in panels[len(lines) :]:
        axes.remove()
    shown = [("right labels", RIGHT), ("wrong labels", WRONG)] if both else [("all samples", RIGHT)]
    legend(figure, [Line2D([], [], color=colour, linewidth=5, alpha=0.7, label=text) for text, colour in shown])
    return figure


def weight_histograms(lines: Sequence[Line], look: dict[str, Look]) -> Figure:
    """The density of the weights' values on a log axis, one line per setting, of its first seed with a histogram."""
    figure, (axes,) = stacked(1, 2.8)
    held = [density(record, "weights") for line in lines if (record := first_with(line, "weights"))]
    # A log axis has no zero: the lines of empty bins lie below its end.
    end = min(value for values, _ in held for value in values if value) / 2
    for line, (values, edges) in zip(lines, held, strict=True):
        axes.stairs([value or end / 2 for value in values], edges, color=look[line.method].colour, linewidth=1.3)
    axes.set_yscale("log")
    axes.set_ylim(bottom=end)
    _power_axis(axes)
    axes.set_xlabel("weight")
    axes.set_ylabel("density")
    legend(figure, [entry(look[line.method], line.title) for line in lines])
    return figure


def quantity(lines: Sequence[Line]) -> str:
    """What to draw: "accuracy", or "loss" where no evaluation has one."""
    known = any(row.get("test_accuracy") is not None for line in lines for row in _rows(line))
    return "accuracy" if known else "loss"


def first_with(line: Line, key: str) -> Record | None:
    """The line's first run in which this histogram is not empty."""
    for record in (*line.counted, *line.records):
        if any(density(record, key)[0]):
            return record
    return None


def density(record: Record, key: str) -> tuple[list[float], list[float]]:
    """A histogram's density and edges, so that bins of different widths can be compared; both empty without one."""
    held = record.histograms.get(key, {"counts": [], "edges": []})
    total, edges = sum(held["counts"]), held["edges"]
    if not total:
        return [], []
    widths = [right - left for left, right in itertools.pairwise(edges)]
    return [n / total / width if width else 0.0 for n, width in zip(held["counts"], widths, strict=True)], edges


def stacked(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels above each other, each `height` inches high, with one horizontal axis."""
    figure = Figure(figsize=(WIDTH, 0.5 + height * count), layout="constrained")
    grid = figure.subplots(count, 1, sharex=True, squeeze=False)
    return figure, list(grid.flat)


def bars(spreads: Sequence[Spread], scale: float = 1.0) -> list[float] | None:
    """The lengths of error bars. A point of one seed has none; None where no point has one."""
    if all(spread.deviation is None for spread in spreads):
        return None
    return [math.nan if spread.deviation is None else spread.deviation * scale for spread in spreads]


def epoch_axis(axes: Axes) -> None:
    """Epochs, at round numbers."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _against_lam(axes: Axes, lines: Sequence[Line], key: str, style: Style, look: Look) -> None:
    scale = _scale(key)
    points = [
        (line.lam, figure)
        for line in lines
        if line.lam is not None and line.lam < math.inf and (figure := line.figures.get(key))
    ]
    if points:
        lams, spreads = zip(*sorted(points, key=lambda point: (point[0], point[1].mean)), strict=True)
        means = [spread.mean * scale for spread in spreads]
        filling = look.colour if style == "-" else PAPER  # training has open markers, to be seen where lines coincide
        looks: dict[str, Any] = {"linestyle": style, "marker": look.marker, "mfc": filling, "capsize": 2.5}
        axes.errorbar(lams, means, bars(spreads, scale), color=look.colour, **looks)
    for line in lines:
        if line.lam is None and (figure := line.figures.get(key)):
            axes.axhline(figure.mean * scale, color=look.colour, linestyle=style, linewidth=1.3)


def _lam_axis(axes: Axes, lams: list[float]) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    apart = min((math.log10(b / a) for a, b in itertools.pairwise(lams)), default=1.0)
    wide = math.log10(lams[-1] / lams[0]) if lams else 0.0
    if apart >= wide / 14:  # room for each λ's own number
        axes.xaxis.set_major_locator(FixedLocator(lams))
    else:
        axes.xaxis.set_major_locator(LogLocator(numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _level_axis(axes: Axes, kind: str, label: str) -> None:
    axes.set_ylabel(label)
    levels = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    low, high = (np.min(np.concatenate(levels)), np.max(np.concatenate(levels))) if levels else (0.0, 0.0)
    if kind == "loss" and 0 < 10 * low < high:  # over less, there might be no power of ten to label
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda _value, _: ""))


def _power_axis(axes: Axes) -> None:
    """Label powers of ten with superscript digits: matplotlib's own labels are formulas, not plain text in an SVG."""
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: "10" + str(round(math.log10(value))).translate(raised))
    )


def _rows(line: Line) -> list[dict[str, float | int | None]]:
    return [row for record in line.records for row in record.rows]


def _scale(key: str) -> float:
    return 100.0 if key.endswith(("accuracy", "fitted")) else 1.0


def curve(axes: Axes, record: Record, key: str, look: Look, style: Style, width: float) -> list[Line2D]:
    """One run's figure over the epochs, shares in %; returns what was drawn, nothing where there is no figure."""
    points = [(row.get("epoch"), value) for row in record.rows if (value := row.get(key)) is not None]
    epochs = [epoch for epoch, _ in points if epoch is not None]
    levels = [value * _scale(key) for epoch, value in points if epoch is not None]
    if not levels:
        return []
    marker = look.marker if len(levels) == 1 else "None"  # a line of one point cannot be seen
    return axes.plot(epochs, levels, style, color=look.colour, linewidth=width, marker=marker)


def _hill(axes: Axes, values: list[float], edges: list[float], colour: str) -> None:
    """A histogram scaled to its peak: few wrong labels show beside many right ones, a broad hill beside a narrow."""
    if any(values):
        shown = [value / max(values) for value in values]
        axes.stairs(shown, edges, color=colour, linewidth=1.3)
        axes.stairs(shown, edges, color=colour, alpha=0.3, fill=True)


def entry(look: Look, text: str, *, marker: bool = False) -> Artist:
    """A method in the legend."""
    return Line2D([], [], color=look.colour, marker=look.marker if marker else "None", label=_short(text, 60))


def style_entry(style: Style, text: str) -> Artist:
    """A kind of line in the legend."""
    return Line2D([], [], color=INK, linestyle=style, linewidth=1.3, label=text)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def legend(figure: Figure, entries: Sequence[Any]) -> None:
    """Put the legend below the panels, where it covers nothing; the figure grows by its height."""
    longest = max(len(str(entry.get_label())) for entry in entries)
    columns = max(1, min(len(entries), int(96 / (longest + 8))))
    rows = math.ceil(len(entries) / columns)
    figure.set_figheight(figure.get_figheight() + 0.19 * rows)
    figure.legend(handles=list(entries), loc="outside lower center", ncols=columns)
