"""The paper's tables again: which runs, and their training; `reproduction` sets them beside the paper's figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mirrordescent.lab import paper
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.reproduction import Pages, Row, compared, page, write_page
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished, sweep

__all__ = ["Pages", "Row", "compared", "page", "reproduce", "runs_of", "write_page"]

QUICK_EPOCHS = 10
QUICK_RUNS = 3  # of each table: RMD sample, RMD batch, SGD


def runs_of(table: str, *, quick: bool = False) -> list[Run]:
    """The runs of a table ("40", "25", "10", "0") or of all, the most telling first.

    quick: only the first few of each table, for ten epochs: to see that it works.

    >>> len(runs_of("all")), len(runs_of("40")), len(runs_of("40", quick=True))
    (96, 24, 3)
    """
    levels = paper.TABLES if table == "all" else (int(table),)
    if not quick:
        return paper.all_runs() if table == "all" else paper.table_runs(levels[0])
    chosen = [run for level in levels for run in paper.table_runs(level)[:QUICK_RUNS]]
    return [dataclasses.replace(run, epochs=QUICK_EPOCHS) for run in chosen]


def reproduce(
    runs: Sequence[Run],
    keeping: Keeping,
    place: Place,
    *,
    minutes: float | None = None,
    at_once: int | None = None,
    watch: Callable[[Progress | Finished], None] | None = None,
) -> tuple[list[Record], list[Finished]]:
    """Train the runs: side by side on a GPU, else one by one; what is done is only read.

    minutes: stop cleanly when they are over. at_once: how many side by side, on a GPU.
    """
    if place.resolved.type == "cuda":
        from mirrordescent.lab.engine import engine

        return engine(runs, keeping, place, at_once=at_once, minutes=minutes, watch=watch)
    if at_once is not None:
        raise ValueError("at_once is for a GPU; a CPU trains one run after another")
    return sweep(runs, keeping, place, jobs=1, minutes=minutes, watch=watch)
