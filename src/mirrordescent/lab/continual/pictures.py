"""The picture of how much is left of tasks that were learnt one after the other. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mirrordescent.lab.continual.courses import METHODS
from mirrordescent.lab.continual.table import Line, Setting
from mirrordescent.lab.report.pictures import LOOKS, OTHERS, Look, entry, legend, stacked
from mirrordescent.lab.report.table import Spread

APART = 0.05  # tasks: how far two methods' bars are moved apart, which would hide each other
# each method looks like the usual one that it is closest to
LOOK: dict[str, Look] = dict(
    zip(METHODS, (LOOKS["SGD"], LOOKS["weight decay"], OTHERS[0], LOOKS["RMD batch"], LOOKS["RMD sample"]), strict=True)
)


def kept(setting: Setting, lines: list[Line]) -> Figure:
    """Above: the mean accuracy on the tasks so far; below: on the first alone; both after each task."""
    figure, (above, below) = stacked(2, 2.1)
    for place, line in enumerate(lines):
        shift = APART * (place - (len(lines) - 1) / 2)
        _line(above, line, setting.tasks, line.so_far, shift)
        _line(below, line, setting.tasks, line.of_first, shift)
    above.set_ylabel("tasks so far (%)")
    below.set_ylabel("first task (%)")
    below.set_xlabel("tasks learnt")
    below.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    legend(figure, [entry(LOOK[line.method], line.title, marker=True) for line in lines])
    return figure


def _line(axes: Axes, line: Line, tasks: int, figure: Callable[[int], Spread | None], shift: float) -> None:
    numbers = list(range(1, tasks + 1))
    found = [cast(Spread, figure(number)) for number in numbers]  # the caller passes lines with figures
    bars = [100 * (one.deviation or 0.0) for one in found]
    look, means = LOOK[line.method], [100 * one.mean for one in found]
    beside = [number + shift for number in numbers]
    spread = bars if any(bars) else None
    axes.errorbar(beside, means, spread, color=look.colour, marker=look.marker, capsize=2.5, linewidth=1.3)
