"""Many runs: a grid of settings, several at once on the CPU's cores, each in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast, get_args

import torch

from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.data.datasets import check_apart
from mirrordescent.lab.files import check_writable
from mirrordescent.lab.job import step_notes
from mirrordescent.lab.loop import Keeping, Listener, Progress
from mirrordescent.lab.memory import keep_freed_memory
from mirrordescent.lab.names import first_line, unknown
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import BusyError, Record, RunError, order_of, read
from mirrordescent.lab.runs import USED_BY, Algorithm, Run, settled
from mirrordescent.lab.signals import handled
from mirrordescent.lab.train import earlier, source_of, train


@dataclass(frozen=True)
class Finished:
    """How a run of a sweep ended: "done", "interrupted", "failed" (error says why), or "waiting" if it never began.

    diverged: whether it is done because training diverged.
    """

    run: Run
    status: str
    error: str = ""
    diverged: bool = False

    @classmethod
    def of(cls, record: Record) -> Finished:
        """How a run ended by its record; one that says that it is running was cut off."""
        status = "interrupted" if record.status == "running" else record.status
        return cls(record.run, status, record.reason if status == "failed" else "", record.reason == "diverged")


def grid(base: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[Run]:
    """Every combination of the axes' values with the base settings; those that an algorithm does not use are left out.

    >>> runs = grid({"corruption": 0.4}, {"algorithm": ["sgd", "rmd"], "lam": ["1", "2"], "seed": [0, 1]})
    >>> [(run.algorithm, run.lam, run.seed) for run in runs]
    [('sgd', None, 0), ('sgd', None, 1), ('rmd', 1.0, 0), ('rmd', 1.0, 1), ('rmd', 2.0, 0), ('rmd', 2.0, 1)]

    Raises ValueError for a setting or a value that does not exist.
    """
    known = Run().to_dict()
    for name in axes:
        if name not in known:
            raise unknown("setting", name, known)
    for name in base:
        if name in axes:
            raise ValueError(f"{name} is in the grid, and also given as {base[name]!r}: give one of the two")
    combinations = [{**base, **dict(zip(axes, values, strict=True))} for values in itertools.product(*axes.values())]
    inert = [_inert(settings) for settings in combinations]
    for name in {**base, **axes}:
        if all(name in nothing for nothing in inert):
            whose = "the grid's " if name in axes else ""
            where = dict.fromkeys(nothing[name] for nothing in inert)
            raise ValueError(f"{whose}{name} does nothing in {', '.join(where)}")
    runs: dict[str, Run] = {}
    for settings, nothing in zip(combinations, inert, strict=True):
        run = Run.from_dict({name: value for name, value in settings.items() if name not in nothing})
        runs.setdefault(run.id, run)
    return sorted(runs.values(), key=order_of)


def _inert(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that do nothing beside the others, and where: {"lam": "sgd"}. A grid leaves them out there."""
    algorithm = settings.get("algorithm", "rmd")
    found = {}
    if algorithm in get_args(Algorithm):  # else the Run will refuse it
        found = {name: algorithm for name, users in USED_BY.items() if algorithm not in users}
    if settings.get("noise") != "file" and _is_zero(settings.get("corruption", 0)):
        found["noise"] = "runs without corruption"
    return found


def _is_zero(value: Any) -> bool:
    try:
        return float(value) == 0
    except (TypeError, ValueError):  # which the Run will refuse
        return False


def parse_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """The axes of a grid as a person types them. Raises ValueError for one that comes twice."""
    axes: dict[str, list[str]] = {}
    for name, values in map(parse_axis, texts):
        if name in axes:
            raise ValueError(f"the grid has {name} twice; give all its values together: {name}=1,2,4")
        axes[name] = values
    return axes


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Parse "lam=1,2,4" into a name and its values. Raises ValueError where it is not of that form."""
    name, equals, values = text.partition("=")
    found_values = [value.strip() for value in values.split(",")]
    if not equals or not name.strip() or not all(found_values):
        raise ValueError(f"a grid is NAME=VALUE,VALUE,… (lam=1,2,4), got {text!r}")
    return name.strip().replace("-", "_"), found_values


def cores() -> int:
    """How many of the CPU's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    runs: Iterable[Run],
    keeping: Keeping | None = None,
    place: Place | None = None,
    *,
    jobs: int | None = None,
    minutes: float | None = None,
    watch: Callable[[Progress | Finished], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[list[Record], list[Finished]]:
    """Train runs, several at once; returns the records of those that are done, in order, and how the others ended.

    jobs: how many at once; None for one per core, or one on a GPU. Each gets its share of the cores unless `place`
    says how many threads. minutes: stop cleanly when they are over; the same call continues later. Runs that are done
    are only read. watch: hears the progress, and how runs end. note: hears what to know about data and steps. A run
    that fails, or whose process is killed, is reported, and the others continue. Ctrl-C writes a checkpoint of each and
    raises KeyboardInterrupt.
    Raises DataError or ValueError before anything starts where data or settings do not go together.
    """
    keeping, place = keeping or Keeping(), place or Place()
    until = deadline(minutes)
    hear = watch or (lambda _: None)
    if jobs is None:
        jobs = 1 if place.resolved.type == "cuda" else cores()
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1, got {jobs}")
    todo, done, bad = sorted_out(runs, keeping, hear, note)
    # From the jobs asked for, not from the runs left: a run that is continued must have as many threads as before.
    place = replace(place, threads=place.threads or max(1, min(cores() // jobs, torch.get_num_threads())))
    jobs = min(jobs, len(todo))
    if jobs <= 1:
        ended = _one_by_one(todo, keeping, place, hear, until)
    else:
        waiting = deque(work.run for work in todo)
        todo.clear()  # every worker loads the data for itself
        ended = _together(waiting, keeping, place, jobs, hear, until)
    return results(keeping, done, bad + ended)


def deadline(minutes: float | None) -> float:
    """When so many minutes from now are over, by time.monotonic(); None: never. Raises ValueError for fewer than 0."""
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"minutes must be >= 0, got {minutes}")
    return float("inf") if minutes is None else time.monotonic() + 60 * minutes


def results(keeping: Keeping, done: list[Record], ended: list[Finished]) -> tuple[list[Record], list[Finished]]:
    """The records of the runs that are done, in order, and how the others ended."""
    records = done + [read(keeping.root / end.run.id) for end in ended if end.status == "done"]
    return sorted(records, key=lambda record: order_of(record.run)), [end for end in ended if end.status != "done"]


@dataclass(frozen=True)
class Work:
    """A run to train, its data, and the folder in which its own folder is."""

    run: Run
    data: Data
    root: Path


def sorted_out(
    runs: Iterable[Run],
    keeping: Keeping,
    hear: Callable[[Finished], None],
    note: Callable[[str], None] = lambda _: None,
) -> tuple[list[Work], list[Record], list[Finished]]:
    """Sort runs into those to train, those that are done, and those that cannot begin.

    Each data set is loaded once, so that its errors and notes are reported once.
    """
    notes: dict[str, None] = {}
    sets: dict[Source, Data] = {}
    todo: dict[str, Work] = {}
    done: dict[str, Record] = {}
    bad: list[Finished] = []
    for unsettled in runs:
        source = source_of(unsettled)
        if source not in sets:
            check_apart(source.data, root=keeping.root)
            sets[source] = load(source, keeping.data_root)
        run = settled(unsettled, sets[source])
        if run.id in todo or run.id in done:
            continue
        try:
            record = earlier(keeping.root / run.id, run, sets[source])
        except RunError as error:
            bad.append(Finished(run, "failed", str(error)))
            hear(bad[-1])
            continue
        if record is not None and record.status == "done":
            done[run.id] = record
            hear(Finished.of(record))
        else:
            todo[run.id] = Work(run, sets[source], keeping.root)
            notes.update(dict.fromkeys(sets[source].notes))
            with contextlib.suppress(ValueError):  # this run alone will fail with it
                notes.update(dict.fromkeys(step_notes(run, sets[source])))
    for told in notes:
        note(told)
    if todo:
        check_writable(keeping.root / "run.json")
    return list(todo.values()), list(done.values()), bad


def _one_by_one(
    works: list[Work], keeping: Keeping, place: Place, hear: Callable[[Any], None], until: float
) -> list[Finished]:
    ended, tell = [], Listener(hear)

    def stop() -> bool:
        return tell.error is not None or time.monotonic() > until

    while works and not stop():
        ended.append(_train_one(works.pop(0), keeping, place, tell, stop))
        tell(ended[-1])
    tell.reraise()
    return ended + [Finished(work.run, "waiting") for work in works]


def _train_one(
    work: Work, keeping: Keeping, place: Place, hear: Callable[[Any], None], stop: Callable[[], bool]
) -> Finished:
    keeping = replace(keeping, root=work.root)
    try:
        return Finished.of(train(work.run, keeping, place, data=work.data, watch=hear, stop=stop))
    except BusyError as error:
        return Finished(work.run, "waiting" if stop() else "failed", first_line(error))
    except Exception as error:  # whatever it is, it ends this run alone
        return Finished(work.run, "failed", first_line(error))


class _Worker:
    """A process that trains one run after another, and this process's end of the pipe to it."""

    def __init__(self, keeping: Keeping, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(other, keeping, place), daemon=True)
        # The child ignores Ctrl-C until its training handles it: no tracebacks on the terminal.
        with handled(signal.SIG_IGN, signal.SIGINT):
            self.process.start()
        other.close()  # only the child has that end then, and the pipe breaks when it dies
        self.run: Run | None = None
        self.spoke = False  # whether the child has sent anything

    def give(self, run: Run | None) -> None:
        """Send the child a run to train, or None to end it."""
        self.run = run
        with contextlib.suppress(OSError):  # the child is dead, which `_heard` will say
            self.pipe.send(run)


def _work(pipe: Connection, keeping: Keeping, place: Place) -> None:
    """What a worker process does: train the runs it is sent, report, and end on None, on Ctrl-C or with its parent."""
    keep_freed_memory()
    cache: dict[Source, Data] = {}
    alone: list[OSError] = []  # errors in reporting: the parent is gone

    def tell(message: Progress | Finished) -> None:
        try:
            pipe.send(message)
        except OSError as error:
            alone.append(error)

    run = None
    try:
        while (run := pipe.recv()) is not None:
            tell(_train_loaded(run, keeping, place, cache, tell, lambda: bool(alone)))
    except KeyboardInterrupt:
        if run is not None:
            tell(Finished(run, "interrupted"))
    except (EOFError, OSError):  # the parent is gone
        pass


def _train_loaded(
    run: Run,
    keeping: Keeping,
    place: Place,
    cache: dict[Source, Data],
    tell: Callable[[Any], None],
    stop: Callable[[], bool],
) -> Finished:
    """`_train_one` in a worker, which keeps the data of its last run loaded."""
    source = source_of(run)
    try:
        if source not in cache:
            cache.clear()  # one at a time in memory
            cache[source] = load(source, keeping.data_root)
    except Exception as error:
        return Finished(run, "failed", first_line(error))
    return _train_one(Work(run, cache[source], keeping.root), keeping, place, tell, stop)


def _together(
    waiting: deque[Run], keeping: Keeping, place: Place, jobs: int, hear: Callable[[Any], None], until: float
) -> list[Finished]:
    ended: list[Finished] = []
    workers = [_Worker(keeping, place) for _ in range(jobs)]
    try:
        for worker in workers:
            worker.give(waiting.popleft())
        while busy := {worker.pipe: worker for worker in workers if worker.run is not None}:
            if (left := until - time.monotonic()) <= 0:
                break
            for pipe in wait(list(busy), None if left == float("inf") else left):
                worker = busy[cast(Connection, pipe)]
                message = _heard(worker)
                hear(message)
                if not isinstance(message, Finished):
                    continue
                ended.append(message)
                if message.status == "interrupted":
                    raise KeyboardInterrupt
                if not worker.process.is_alive() and waiting:
                    workers.remove(worker)
                    worker = _Worker(keeping, place)
                    workers.append(worker)
                if worker.process.is_alive():
                    worker.give(waiting.popleft() if waiting else None)
                else:
                    worker.run = None
    finally:
        for worker in workers:
            if worker.run is not None and os.name != "nt":  # on Windows, terminate() kills
                worker.process.terminate()  # elsewhere its training writes a checkpoint first
            worker.pipe.close()  # the worker ends when it finds the pipe closed
        for worker in workers:
            worker.process.join()
    for worker in workers:  # those whose minutes were over
        if worker.run is not None:
            ended.append(_left(keeping, worker.run))
            hear(ended[-1])
    return ended + [Finished(run, "waiting") for run in waiting]


def _left(keeping: Keeping, run: Run) -> Finished:
    """How a run ended whose worker was told to stop, by the run's record."""
    folder = keeping.root / run.id
    if not (folder / "run.json").exists():
        return Finished(run, "waiting")
    return Finished.of(read(folder))


def _heard(worker: _Worker) -> Progress | Finished:
    """What a worker reports; if it has died, that its run failed."""
    assert worker.run is not None
    try:
        message: Progress | Finished = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"its process ended with code {code}"
        if not worker.spoke and code > 0:  # not killed: it could not start
            return Finished(worker.run, "failed", f"{how} before it began; a script needs if __name__ == '__main__':")
        return Finished(worker.run, "failed", f"{how}; sweep again to continue it")
    worker.spoke = True
    return message
