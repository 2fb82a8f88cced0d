"""Train a run to its end, or continue it where it was cut off."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from mirrordescent.lab.captured import Captured
from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping, Listener, Loop, Progress, Watch, digest_of
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import DamagedError, Record, RunError, held, read
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.signals import ending, handled


def train(
    run: Run,
    keeping: Keeping | None = None,
    place: Place | None = None,
    *,
    data: Data | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] | None = None,
    capture: bool | None = None,
    make: Callable[[Run, Data, Place], Job] = Job,
) -> Record:
    """Train a run to its end and return its record; one that is done is only read, one that was cut off is continued.

    data: already loaded, for a caller with many runs on the same. watch: hears the progress. stop: asked before every
    step; True writes a checkpoint and returns the record with the status "interrupted". Ctrl-C, SIGTERM and a closed
    terminal do the same, and then raise KeyboardInterrupt; an error of `watch` does the same, and is then raised.
    capture: take the steps as a CUDA graph, several times faster and the same to the bit; None does so on a GPU.
    make: makes the job, for those that need one of their own.
    Raises DataError for bad data, ValueError for settings that do not go together, RunError where another process has
    the run's folder or it holds something else.

    >>> import tempfile
    >>> from mirrordescent.lab.loop import Keeping
    >>> from mirrordescent.lab.runs import Run
    >>> record = train(Run(algorithm="sgd", epochs=2), Keeping(Path(tempfile.mkdtemp())))
    >>> record.status, record.epochs, record.final["test_accuracy"] > 0.5
    ('done', 2, True)
    """
    keeping, place = keeping or Keeping(), place or Place()
    data = data or load(source_of(run), keeping.data_root)
    run = settled(run, data)
    folder, hear = keeping.root / run.id, Listener(watch)

    def tell() -> None:
        if watch is not None:
            watch(Progress.waits(run, folder))

    def ends() -> bool:
        return bool(signalled) or hear.error is not None or (stop is not None and stop())

    with held(folder, wait=keeping.wait, stop=stop, tell=tell), place.taken(), signals() as signalled:
        record = earlier(folder, run, data)
        if record is None or record.status != "done":
            loop = Loop(make(run, data, place), record or Record(folder, run), keeping, hear)
            record = loop.record
            try:
                if loop.under_way and (place.resolved.type == "cuda" if capture is None else capture):
                    loop.stepper = Captured(loop.job)
                _go_on(loop, ends)
            except Exception as error:  # not an impatient Ctrl-C in the middle of a step: the last checkpoint stands
                loop.fail(error)
                raise
        hear.reraise()
        if signalled:  # whatever came of it, the person wants to stop
            raise KeyboardInterrupt
        return record


def _go_on(loop: Loop, stop: Callable[[], bool]) -> None:
    """Train to the end, or until `stop()`."""
    while loop.under_way:
        loop.begin()
        while loop.step < loop.job.steps:
            if stop():
                loop.interrupt()
                return
            loop.advance()
        loop.end()


def source_of(run: Run) -> Source:
    """Which data a run trains on."""
    return Source(run.data, run.label, run.test, run.test_share, without=run.without)


def earlier(folder: Path, run: Run, data: Data) -> Record | None:
    """The record that the run already has; None where there is none, or a damaged one that a checkpoint restores.

    Raises RunError where it is of another run or of other data.
    """
    if not (folder / "run.json").exists():
        return None
    try:
        record = read(folder)
    except DamagedError:
        if not (folder / "checkpoint.pt").exists():
            raise
        return None
    if record.run != run:
        raise RunError(f"{folder} holds another run of the same name; remove it, or choose another folder with --root")
    if record.data.get("digest") != digest_of(run, data):
        files = run.data if run.noise_file is None else f"{run.data} or {run.noise_file}"
        raise RunError(
            f"{files} has changed since {folder} was begun; remove that folder, or choose another with --root"
        )
    return record


@contextmanager
def signals() -> Iterator[list[float]]:
    """Only note signals that ask to end, so that a checkpoint can be written first; an impatient Ctrl-C ends at once.

    Impatient is one more than a second after the first signal: a terminal and a sweep may both pass on the same one.
    """
    noted: list[float] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if noted and number == signal.SIGINT and time.monotonic() > noted[0] + 1:
            raise KeyboardInterrupt
        noted.append(time.monotonic())

    with handled(note, signal.SIGINT, *ending()):
        yield noted
