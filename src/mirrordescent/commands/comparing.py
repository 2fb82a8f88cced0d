"""Ready-made comparisons: `rmd reproduce`, `rmd continual` and `rmd bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from mirrordescent.commands.words import Kept, Where, left_out, say_notes
from mirrordescent.lab.bench import Bench, measured
from mirrordescent.lab.continual import METHODS, SEEDS, Lessons
from mirrordescent.lab.data import load
from mirrordescent.lab.data.datasets import check_apart
from mirrordescent.lab.display import show_costs, show_courses, show_pages, show_reproduction
from mirrordescent.lab.files import check_writable
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import read_all
from mirrordescent.lab.watching import Watching, console, counting, say


def reproduce(
    keeping: Kept,
    place: Where,
    table: tuple[Literal["40", "25", "10", "0", "all"], ...] = ("all",),
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
    """Train the runs behind the paper's tables (CIFAR-10, ResNet-18), or some of them, and compare with the paper.

    It is meant for a GPU, where several runs are trained at once. Run `rmd data fetch cifar10` first. A run is done
    when its record says so, and the same command continues with the rest. At the end it writes a report on all of the
    paper's runs under --root: reproduction.html, reproduction.md and pictures.

    Args:
        table: the tables with these % of the labels redrawn, or all of them
        quick: only the first rows of each table, for ten epochs, to see that it works
        methods: only these methods, of rmd-sample, rmd-batch, weight-decay, sgd
        lams: only these λ
        seeds: any seeds, for every row; unless given, 0, 1 and 2 for the tables' first rows and 0 for the others
        epochs: the epoch limit, instead of the tables' own; in the report longer runs have a row of their own
        minutes: stop cleanly after so many minutes; the same command continues later
        at_once: runs side by side (GPU); unless given, as many as its memory holds, at most 8
        report_only: train nothing; write the report from the records (no GPU, no data needed)
        out: where to write the report; --root unless given
        json: print the records as JSON
    """
    from mirrordescent.lab import reproduce as lab

    chosen = bool(methods or lams or seeds or epochs is not None)
    if report_only:
        limits = minutes is not None or at_once is not None
        _check_nothing_to_train(keeping, place, asked=table != ("all",) or quick or chosen or limits)
        records = read_all(keeping.root, skip=left_out)
        show_reproduction(records, json=json)
        show_pages(lab.write_page(records, keeping, out))
        return 0
    if quick and chosen:
        raise ValueError("--quick chooses the runs itself: leave out --methods, --lams, --seeds and --epochs")
    runs = lab.runs_of(*table, quick=quick, methods=methods, lams=lams, seeds=seeds, epochs=epochs)
    check_writable((out or keeping.root) / "reproduction.html")
    with Watching(console(), total=len(runs)) as watch:
        records, rest = lab.reproduce(runs, keeping, place, minutes=minutes, at_once=at_once, watch=watch)
    show_reproduction(records, json=json)
    found = []
    if records or any(end.status == "interrupted" for end in rest):
        found = read_all(keeping.root, skip=left_out)
    if lab.compared(found):
        show_pages(lab.write_page(found, keeping, out))
    failed = sum(end.status == "failed" for end in rest)
    if rest:
        others = f"; {failed} failed" if failed else ""
        goes_on = "; the same command continues with the others" if len(rest) > failed else ""
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
    """Learn tasks one after the other, and compare how much SGD, EWC and RMD keep of the old ones.

    The tasks are made of one data set; no sample of an old one is seen again. A course is one method on one sequence of
    tasks. All courses are kept under --root, and the page shows all of them: run it with other settings to add more.

    Args:
        methods: any of sgd, near, ewc, rmd, anchored
        seeds: how many courses per method, from the seeds 0, 1, ...; a seed also decides the tasks
        report_only: train nothing; write the page from the records (no data needed)
        out: where to write continual.html, continual.md and pictures; --root unless given
        json: print the records as JSON
    """
    from mirrordescent.lab import continual as lab

    home = keeping.root if out is None else out
    if report_only:
        _check_nothing_to_train(keeping, place, asked=(lessons, methods, seeds) != (Lessons(), METHODS, SEEDS))
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


def _check_nothing_to_train(keeping: Keeping, place: Place, *, asked: bool) -> None:
    """Raise ValueError where --report-only comes with an option that is about training."""
    if asked or (keeping, place) != (Keeping(keeping.root), Place()):
        raise ValueError("--report-only trains nothing: combine it only with --root, --out and --json")


def bench(bench: Bench, place: Where, potentials: tuple[str, ...] = ("l2", "q=3"), json: bool = False) -> int:
    """Time training steps of SMD and RMD on this machine, relative to SGD's.

    The methods take turns, so that other load on the machine affects all alike; what counts is the ratio.

    Args:
        potentials: ψ of SMD and RMD: l2, l1, linf, q=3, hypentropy, ...
        json: print the figures as JSON
    """
    with counting(console(), "blocks") as hear:
        costs = measured(bench, place, potentials, hear)
    show_costs(costs, json=json)
    return 0
