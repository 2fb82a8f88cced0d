"""Pictures like the paper's: accuracy against λ, ours and the paper's; our curves over the epochs. Needs matplotlib.

Methods are told apart by their markers as well as their colours; ours are filled and solid, the paper's hollow and
dashed. Runs that were trained for longer than the tables plan are crosses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from mirrordescent.lab import paper
from mirrordescent.lab.report.page import PAPER
from mirrordescent.lab.report.pictures import LOOKS, WIDTH, Look, bars, curve, epoch_axis, legend, stacked
from mirrordescent.lab.reproduction.comparison import METHODS, Row, leaders

FAINT = 0.45  # the settings that are not the best
LONGER = {"marker": "x", "markersize": 6, "markeredgewidth": 1.8, "linestyle": "None", "zorder": 4}
ASIDE = 1.07  # longer runs stand so far to the right of their λ, where they cover none of the others


@dataclass(frozen=True)
class Panel:
    """What shares an axis of λ: our methods, and the paper's algorithm, with the look of `same`, the same method."""

    title: str
    methods: tuple[str, ...]
    algorithm: str
    same: str
    ticks: tuple[float, ...]
    width: float


PANELS = (
    Panel("RMD", ("RMD sample", "RMD batch"), "rmd", "RMD batch", (0.7, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0), 1.9),
    Panel("weight decay", ("weight decay",), "weight-decay", "weight decay", (0.001, 0.002, 0.004, 0.01), 1.0),
)


def panels_of(rows: Sequence[Row]) -> list[Panel]:
    """The panels for which there are rows."""
    return [panel for panel in PANELS if any(row.method in panel.methods for row in rows)]


def against_lam(rows: Sequence[Row]) -> Figure:
    """One level's test and train accuracy against λ, beside the paper's; SGD, which has no λ, as horizontal lines."""
    shown = panels_of(rows)
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    widths = [panel.width for panel in shown]
    grid = figure.subplots(2, len(shown), sharex="col", sharey="row", squeeze=False, width_ratios=widths)
    published = paper.figures(rows[0].corruption)
    for column, panel in enumerate(shown):
        for axes, kind in zip(grid[:, column], ("test", "train"), strict=True):
            _levels(axes, rows, published, kind)
            _theirs(axes, [f for f in published if f.algorithm == panel.algorithm], kind, LOOKS[panel.same])
            for method in panel.methods:
                held = [row for row in rows if row.method == method]
                _ours(axes, [row for row in held if not row.longer], kind, LOOKS[method], 1.0)
                _ours(axes, [row for row in held if row.longer], kind, LOOKS[method], ASIDE, **LONGER)
        grid[0, column].set_title(panel.title, loc="left")
        _lam_axis(grid[1, column], panel)
    for axes, kind in zip(grid[:, 0], ("test", "train"), strict=True):
        axes.set_ylabel(f"{kind} accuracy (%)")
    legend(figure, _entries(rows, shown))
    return figure


def curves(rows: Sequence[Row]) -> Figure:
    """One level's test accuracy over the epochs, and below it the AUROC of z, where it is known."""
    figure, panels = stacked(2 if any(has_auroc(row) for row in rows) else 1, 2.4)
    best = leaders(rows)
    for axes, key in zip(panels, ("test_accuracy", "z_auroc"), strict=False):
        for row in sorted(rows, key=lambda row: row in best):  # the best lie above the others
            _curves(axes, row, key, strong=row in best)
    panels[0].set_ylabel("test accuracy (%)")
    if len(panels) > 1:
        panels[1].set_ylabel("AUROC of z")
    epoch_axis(panels[-1])
    panels[-1].set_xlim(left=0)
    legend(figure, [_entry(LOOKS[row.method], row.title) for row in best])
    return figure


def has_auroc(row: Row) -> bool:
    """Whether an evaluation of the setting says how well z finds the wrong labels."""
    return any(held.get("z_auroc") is not None for record in row.line.counted for held in record.rows)


def _curves(axes: Axes, row: Row, key: str, *, strong: bool) -> None:
    look, records = LOOKS[row.method], row.line.counted
    for record in records:
        for line in curve(axes, record, key, look, "-", 0.8 if not strong else 1.6 if len(records) == 1 else 1.0):
            if not strong:
                line.set(alpha=FAINT)
            elif record is records[0]:
                step = max(4, len(record.rows) // 6)
                first = METHODS.index(row.method) * step // 4  # no two methods have their markers in one place
                line.set(marker=look.marker, markevery=(min(first, len(record.rows) - 1), step))


def _ours(axes: Axes, rows: Sequence[Row], kind: str, look: Look, aside: float, **style: Any) -> None:
    points = [(row.lam * aside, row.test if kind == "test" else row.train) for row in rows if row.lam is not None]
    if points:
        lams, spreads = zip(*points, strict=True)
        style = {"marker": look.marker, "capsize": 2.5, **style}
        axes.errorbar(lams, [spread.mean for spread in spreads], bars(spreads), color=look.colour, **style)


def _theirs(axes: Axes, figures: Sequence[paper.Figure], kind: str, look: Look) -> None:
    points = [(f.lam, f.test if kind == "test" else f.train) for f in figures if f.lam is not None]
    axes.plot(*zip(*sorted(points), strict=True), "--", color=look.colour, marker=look.marker, mfc=PAPER, linewidth=1.0)


def _levels(axes: Axes, rows: Sequence[Row], published: Sequence[paper.Figure], kind: str) -> None:
    """SGD's accuracies, as horizontal lines."""
    for row in rows:
        if row.method == "SGD":
            level = row.test.mean if kind == "test" else row.train.mean
            axes.axhline(level, color=LOOKS["SGD"].colour, linestyle="-", linewidth=1.6)
    for figure in published:
        if figure.algorithm == "sgd":
            level = figure.test if kind == "test" else figure.train
            axes.axhline(level, color=LOOKS["SGD"].colour, linestyle="--", linewidth=1.0)


def _lam_axis(axes: Axes, panel: Panel) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("λ (log axis)")
    axes.xaxis.set_major_locator(FixedLocator(panel.ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _entries(rows: Sequence[Row], panels: Sequence[Panel]) -> list[Line2D]:
    """The legend: our methods, then the paper's."""
    present = {row.method for row in rows}
    ours = [_entry(LOOKS[method], method, bare=method == "SGD") for method in METHODS if method in present]
    theirs = [_entry(LOOKS[panel.same], f"{panel.title}, paper", published=True) for panel in panels]
    return [*ours, *theirs, _entry(LOOKS["SGD"], "SGD, paper", published=True, bare=True)]


def _entry(look: Look, text: str, *, published: bool = False, bare: bool = False) -> Line2D:
    """A line of the legend; bare: without markers."""
    line = Line2D([], [], color=look.colour, linewidth=1.6, marker="None" if bare else look.marker, label=text)
    if published:
        line.set(linestyle="--", linewidth=1.0, markerfacecolor=PAPER)
    return line
