"""Reproducing the paper's tables: which runs to train, and training them; `reproduction` compares their figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from mirrordescent.lab import paper
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.names import unknown
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.reproduction import Row, compared, page, write_page
from mirrordescent.lab.reproduction.comparison import method_of
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished, sweep

__all__ = ["Row", "compared", "page", "reproduce", "runs_of", "write_page"]

METHODS = {"rmd-sample": "RMD sample", "rmd-batch": "RMD batch", "weight-decay": "weight decay", "sgd": "SGD"}
QUICK_EPOCHS = 10
QUICK_RUNS = 3  # of each table: RMD sample, RMD batch, SGD


def runs_of(
    *tables: str,
    quick: bool = False,
    methods: Sequence[str] = (),
    lams: Sequence[float] = (),
    seeds: Sequence[int] = (),
    epochs: int | None = None,
) -> list[Run]:
    """The runs of these tables ("40", "25", "10", "0") or of all ("all", or none named), the most telling first.

    quick: only the first few of each table, for ten epochs, to see that it works. methods, lams: only those, where any
    are named. seeds: each setting from these, instead of the tables' own. epochs: the limit, instead of the tables'; in
    the report longer runs have a row of their own. Raises ValueError for a table or a method that is none, and for a λ
    that none of the runs has.

    >>> len(runs_of("all")), len(runs_of("40")), len(runs_of("40", "25")), len(runs_of("40", quick=True))
    (96, 24, 48, 3)
    >>> [(run.lam, run.epochs) for run in runs_of("40", methods=["rmd-batch"], lams=[1, 0.7], epochs=1500)]
    [(1.0, 1500), (0.7, 1500)]
    >>> [(run.lam, run.seed) for run in runs_of("40", methods=["rmd-batch"], lams=[1, 0.7], seeds=[0, 5])]
    [(1.0, 0), (0.7, 0), (1.0, 5), (0.7, 5)]
    """
    those = ["all", *map(str, paper.TABLES)]
    for table in tables:
        if table not in those:
            raise unknown("table", table, those)
    every = not tables or "all" in tables
    levels = [level for level in paper.TABLES if every or str(level) in tables]
    if quick:
        chosen = [run for level in levels for run in paper.table_runs(level)[:QUICK_RUNS]]
        return [dataclasses.replace(run, epochs=QUICK_EPOCHS) for run in chosen]
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    asked = [METHODS[name] for name in methods or METHODS]
    runs = [run for run in paper.all_runs(levels) if method_of(run) in asked]
    known = {run.lam for run in runs if run.lam is not None}
    if unknown_lams := [lam for lam in lams if lam not in known]:
        there = f"there are {', '.join(f'{lam:g}' for lam in sorted(known))}" if known else "they have no lam"
        raise ValueError(f"no run of the tables with these methods has lam {unknown_lams[0]:g}; {there}")
    runs = [run for run in runs if not lams or run.lam in lams]
    if seeds:
        settings = dict.fromkeys(dataclasses.replace(run, seed=0) for run in runs)
        runs = [dataclasses.replace(run, seed=seed) for seed in dict.fromkeys(seeds) for run in settings]
    return [run if epochs is None else paper.lasting(run, epochs) for run in runs]


def reproduce(
    runs: Sequence[Run],
    keeping: Keeping,
    place: Place,
    *,
    minutes: float | None = None,
    at_once: int | None = None,
    watch: Callable[[Progress | Finished], None] | None = None,
) -> tuple[list[Record], list[Finished]]:
    """Train the runs, side by side on a GPU, else one by one; those that are done are only read.

    minutes: stop cleanly when they are over. at_once: how many side by side, on a GPU.
    """
    if place.resolved.type == "cuda":
        from mirrordescent.lab.engine import engine

        return engine(runs, keeping, place, at_once=at_once, minutes=minutes, watch=watch)
    if at_once is not None:
        raise ValueError("at_once is for a GPU; a CPU trains one run after another")
    return sweep(runs, keeping, place, jobs=1, minutes=minutes, watch=watch)
