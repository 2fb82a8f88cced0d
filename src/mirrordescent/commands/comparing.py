"""Comparisons that are made for one: `rmd reproduce`, `continual`, `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mirrordescent.commands.words import Kept, Where, say_notes
from mirrordescent.lab.bench import Bench, measured
from mirrordescent.lab.continual import METHODS, SEEDS, Lessons
from mirrordescent.lab.data import load
from mirrordescent.lab.data.datasets import check_apart
from mirrordescent.lab.display import show_costs, show_courses, show_pages, show_reproduction
from mirrordescent.lab.files import check_writable
from mirrordescent.lab.records import read_all
from mirrordescent.lab.watching import Watching, console, counting, say


def reproduce(
    keeping: Kept,
    place: Where,
    table: Literal["40", "25", "10", "0", "all"] = "all",
    quick: bool = False,
    methods: tuple[str, ...] = (),
    lams: tuple[float, ...] = (),
    seeds: tuple[int, ...] = (),
    epochs: int | None = None,
    minutes: float | None = None,
    at_once: int | None = None,
    report_only: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Train a choice of the runs behind the paper's tables (CIFAR-10, ResNet-18), and set ours beside the paper's.

    It is meant for a GPU, where runs are trained side by side; every run is done when its record says so, and the same
    command goes on with the rest. `rmd data fetch cifar10` first. At the end it writes a report on all of the paper's
    runs under --root: reproduction.html, reproduction.md and pictures.

    Args:
        table: the corruption level in %, or all of them
        quick: only the first rows, for ten epochs: to see that it works
        methods: only these, of rmd-sample, rmd-batch, weight-decay, sgd
        lams: only these λ
        seeds: each row from these, whichever they are; the tables' first rows have 0, 1 and 2, the others 0
        epochs: another epoch limit than the tables have; in the report longer runs have a row of their own
        minutes: stop cleanly after so many; the same command goes on later
        at_once: runs side by side (GPU); what the memory holds, at most 8, unless given
        report_only: train nothing; write the report from the records (no GPU, no data needed)
        out: where to write the report; beside the runs unless given
        json: print the records for machines
    """
    from mirrordescent.lab import reproduce as lab

    chosen = bool(methods or lams or seeds or epochs is not None)
    if report_only:
        if table != "all" or quick or chosen or minutes is not None or at_once is not None:
            raise ValueError("--report-only trains nothing: it goes with --root, --out and --json alone")
        records = read_all(keeping.root)
        show_reproduction(records, json=json)
        show_pages(lab.write_page(records, keeping, out))
        return 0
    if quick and chosen:
        raise ValueError("--quick has runs of its own: leave out --methods, --lams, --seeds and --epochs")
    runs = lab.runs_of(table, quick=quick, methods=methods, lams=lams, seeds=seeds, epochs=epochs)
    check_writable((out or keeping.root) / "reproduction.html")
    with Watching(console(), total=len(runs)) as watch:
        records, rest = lab.reproduce(runs, keeping, place, minutes=minutes, at_once=at_once, watch=watch)
    show_reproduction(records, json=json)
    found = []
    if records or any(end.status == "interrupted" for end in rest):
        found = read_all(keeping.root, skip=lambda error: say(f"rmd: left out of the report: {error}"))
    if lab.compared(found):
        show_pages(lab.write_page(found, keeping, out))
    failed = sum(end.status == "failed" for end in rest)
    if rest:
        others = f"; {failed} failed" if failed else ""
        goes_on = "; the same command goes on with the others" if len(rest) > failed else ""
        say(f"rmd: {len(records)} of {len(runs)} runs are done{others}{goes_on}")
    return 1 if failed else 0


def continual(
    lessons: Lessons,
    keeping: Kept,
    place: Where,
    methods: tuple[str, ...] = METHODS,
    seeds: int = SEEDS,
    report_only: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Learn tasks one after the other, and see what is left of the old ones: SGD, EWC and RMD.

    The tasks are made of one data set; no sample of an old one is seen again. Everything is kept, and the page shows
    all courses under --root: run it again with other settings to set them beside these.

    Args:
        methods: of sgd, near, ewc, rmd, anchored
        seeds: how many times each method is tried; a seed decides the tasks, too
        report_only: train nothing; write the page from the records (no data needed)
        out: where to write continual.html, continual.md and pictures; --root unless given
        json: print the records for machines
    """
    from mirrordescent.lab import continual as lab

    home = keeping.root if out is None else out
    if report_only:
        if (lessons, methods, seeds) != (Lessons(), METHODS, SEEDS):
            raise ValueError("--report-only trains nothing: it goes with --root, --out and --json alone")
        found = lab.read_courses(keeping.root)
    else:
        check_apart(lessons.data, root=keeping.root, out=out)
        courses = lab.courses(lessons, methods, seeds)
        check_writable(home / "continual.html")
        data = load(lab.source_of(lessons), keeping.data_root)
        say_notes([*data.notes, *lab.batch_notes(courses[0], data)])
        with Watching(console(), total=len(courses)) as watch:
            found = [lab.learn(course, keeping, place, data=data, watch=watch) for course in courses]
    show_courses(found, json=json)
    show_pages(lab.write_page(keeping.root, out, lambda error: say(f"rmd: left out of the page: {error}")))
    return 0


def bench(bench: Bench, place: Where, potentials: tuple[str, ...] = ("l2", "q=3"), json: bool = False) -> int:
    """Time training steps of SMD and RMD on this machine, beside those of SGD.

    The methods take turns, so that whatever else the machine does touches all alike; what counts is the ratio.

    Args:
        potentials: ψ of SMD and RMD: l2, l1, linf, q=3, hypentropy, ...
        json: print the figures for machines
    """
    with counting(console(), "blocks") as hear:
        costs = measured(bench, place, potentials, hear)
    show_costs(costs, json=json)
    return 0
