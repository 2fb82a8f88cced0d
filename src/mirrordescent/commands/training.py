"""Runs: `rmd train`, `rmd sweep`, `rmd report` and `rmd demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirrordescent.commands.words import Folder, Kept, Where, left_out, say_notes
from mirrordescent.lab.data import load
from mirrordescent.lab.data.datasets import check_apart
from mirrordescent.lab.display import show
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.report.words import plural
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.watching import Watching, console, say


def train(run: Run, keeping: Kept, place: Where, json: bool = False) -> int:
    """Train one run, or continue it where it was cut off.

    Everything is kept in the run's own folder, runs/ID: run.json, metrics.jsonl, checkpoint.pt.

    Args:
        json: print the record as JSON
    """
    from mirrordescent.lab import train as lab
    from mirrordescent.lab.job import step_notes

    check_apart(run.data, root=keeping.root)
    data = load(lab.source_of(run), keeping.data_root)
    say_notes([*data.notes, *step_notes(settled(run, data), data)])
    with Watching(console(), total=1) as watch:
        record = lab.train(run, keeping, place, data=data, watch=watch)
    show([record], json=json)
    before = "" if watch.tasks else " already, nothing was trained now"
    what = f"{record.status}{before}, {record.epochs} {plural('epoch', record.epochs)}"
    say(f"{record.folder}: {'diverged; try a smaller --lr' if record.reason == 'diverged' else what}")
    return 1 if record.reason == "diverged" else 0


@dataclass(frozen=True)
class Base(Run):
    """The settings that all runs of a sweep share; checked together with the grid's, not by themselves."""

    def __post_init__(self) -> None:
        pass


def sweep(
    run: Base,
    keeping: Kept,
    place: Where,
    grid: tuple[str, ...] = (),
    jobs: int | None = None,
    json: bool = False,
) -> int:
    """Train every combination of a grid, several at once; runs that are done are skipped, others continue.

    An axis that an algorithm has no use for is ignored in its runs.

    Args:
        grid: NAME=VALUE,VALUE,... for any settings of a run, as many as you like
        jobs: runs at once; unless given, one per core, or one on a GPU
        json: print the records as JSON
    """
    from mirrordescent.lab import sweep as lab

    base = {name: value for name, value in run.to_dict().items() if value != Base().to_dict()[name]}
    axes = lab.parse_axes(grid)
    runs = lab.grid(base, axes)
    with Watching(console(), total=len(runs), settings=[name for name in axes if len(axes[name]) > 1]) as watch:
        records, failed = lab.sweep(runs, keeping, place, jobs=jobs, watch=watch, note=watch.note)
    show(records, json=json)
    if records and not json:
        say(f"rmd report {keeping.root} makes a page of these runs, with pictures")
    if failed:
        others = f"; the others are in {keeping.root}" if len(failed) < len(runs) else ""
        say(f"rmd: {len(failed)} of {len(runs)} runs failed{others}")
    if diverged := sum(record.reason == "diverged" for record in records):
        say(f"rmd: {diverged} of {len(runs)} runs diverged; try a smaller lr")
    return 1 if failed or diverged else 0


def report(folder: Folder, out: Path | None = None, json: bool = False) -> int:
    """Write a report on the runs in a folder: report.html, report.md and pictures. It never trains.

    Args:
        folder: the folder with the runs
        out: where to write it; the folder "report" beside the runs unless given
        json: print the runs' records as JSON
    """
    from mirrordescent.lab.report import write_report

    made = write_report(folder, out, left_out)
    show(made.records, json=json)
    say(f"report: {made.html}")
    return 0


def demo(
    out: Path = Path("runs/demo"), seeds: int = 3, epochs: int = 60, jobs: int | None = None, json: bool = False
) -> int:
    """Digits with 40 % of the training labels redrawn: SGD, weight decay, RMD batch and RMD sample, and a report.

    It takes two to three minutes on two cores. Runs that are done are not trained again.

    Args:
        out: folder for the runs and the report
        seeds: how many runs per setting, from the seeds 0, 1, ...
        epochs: epochs of each run
        jobs: runs at once; one per core unless given
        json: print the records as JSON
    """
    from mirrordescent.lab import sweep as lab
    from mirrordescent.lab.demo import demo_runs
    from mirrordescent.lab.report import write_report

    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    runs = demo_runs(epochs=epochs, seeds=seeds)
    with Watching(console(), total=len(runs)) as watch:
        records, failed = lab.sweep(runs, Keeping(out), Place("cpu", threads=1), jobs=jobs, watch=watch)
    show(records, json=json)
    if failed:
        return 1
    say(f"report: {write_report(out).html}")
    return 0
