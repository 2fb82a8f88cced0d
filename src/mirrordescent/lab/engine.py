"""Many runs on one GPU: each run's step is a CUDA graph on a stream of its own, and the graphs are replayed in turn.

Loop and jobs are the same as `train`'s; only what takes the steps is different.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mirrordescent.lab.captured import Captured
from mirrordescent.lab.data import Data
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping, Listener, Loop, Progress, Watch
from mirrordescent.lab.memory import may_have_run_out
from mirrordescent.lab.names import first_line
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import BusyError, Record, RunError, held, read
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.sweep import Finished, Work, deadline, results, sorted_out
from mirrordescent.lab.train import earlier, signals, train

AT_ONCE = 8  # more runs only share what the GPU can compute
SPARE = 0.1  # share of the GPU's memory that is left for evaluations and libraries


def engine(
    runs: Iterable[Run],
    keeping: Keeping | None = None,
    place: Place | None = None,
    *,
    at_once: int | None = None,
    minutes: float | None = None,
    compile_forward: bool = False,
    watch: Callable[[Progress | Finished], None] | None = None,
) -> tuple[list[Record], list[Finished]]:
    """Train runs side by side on one GPU; returns the records of those that are done, and how the others ended.

    at_once: how many; None for as many as the memory holds, at most 8. minutes: stop cleanly when they are over; the
    same call continues later. compile_forward: torch.compile the forward pass, once for all networks of the same shape;
    ResNet-18 is faster without (see `lab.norm`). Runs that are done are only read. A run that fails is reported, and
    the others continue. Ctrl-C writes a checkpoint of each and raises KeyboardInterrupt.
    """
    keeping = keeping or Keeping()
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once must be >= 1, got {at_once}")
    until = deadline(minutes)
    todo, done, bad = sorted_out(runs, keeping, watch or (lambda _: None))
    settings: dict[str, Any] = {"at_once": at_once, "until": until, "compile_forward": compile_forward}
    ended = side_by_side(todo, keeping, place, watch=watch, **settings)
    return results(keeping, done, bad + ended)


def side_by_side(
    works: Iterable[Work],
    keeping: Keeping,
    place: Place | None = None,
    *,
    at_once: int | None = None,
    until: float = float("inf"),
    compile_forward: bool = False,
    watch: Callable[[Progress | Finished], None] | None = None,
) -> list[Finished]:
    """As `engine`, for runs whose data are loaded; returns how each ended. until: when to stop, by time.monotonic()."""
    place = place or Place("cuda")
    check_gpu(place)
    with signals() as signalled, place.taken(), contextlib.ExitStack() as locks:
        side = _Side(keeping, place, Listener(watch), locks, compile_forward=compile_forward)
        side.go(works, at_once, lambda: bool(signalled) or time.monotonic() > until)
        if signalled:
            raise KeyboardInterrupt
    return side.ended


def check_gpu(place: Place) -> None:
    """Raise ValueError unless the place is a GPU."""
    if place.resolved.type != "cuda":
        raise ValueError(f"the engine is for a GPU, got device {place.device!r}; `sweep` trains on the CPU's cores")


def all_trained(works: Sequence[Work], keeping: Keeping, place: Place, *, watch: Watch | None = None) -> list[Record]:
    """Train all works, side by side on a GPU and else one after another; returns their records in the same order.

    watch: hears of one run at a time, and of another when that has ended. Raises RunError where one fails.
    """
    if place.resolved.type != "cuda":
        return [train(work.run, replace(keeping, root=work.root), place, data=work.data, watch=watch) for work in works]
    for end in side_by_side(works, keeping, place, watch=None if watch is None else _of_one(watch)):
        if end.status == "failed":
            raise RunError(end.error)
    return [read(work.root / settled(work.run, work.data).id) for work in works]


def _of_one(watch: Watch) -> Callable[[Progress | Finished], None]:
    """A listener to runs side by side that passes on the progress of one run, and of another when that has ended."""
    told: list[Progress] = []  # the first event of the run that is followed; empty between two runs

    def hear(event: Progress | Finished) -> None:
        if not isinstance(event, Progress):
            if told and told[0].run == event.run:  # it may have ended early
                told.clear()
            return
        if event.waiting:
            watch(event)
            return
        if not told:
            told.append(event)
        if event.folder == told[0].folder:
            watch(event)
            if event.epoch >= event.run.epochs:
                told.clear()

    return hear


def _let_go(error: BaseException | None, but: BaseException | None) -> None:
    """Drop an error's frames, and those of the ones before it: in a circle with them, a run would keep its memory.

    but: an error that was there before the run's, and goes on.
    """
    while error is not None and error is not but:
        error.__traceback__ = None
        error = error.__context__


class _Side:
    """The runs side by side on a GPU, those that wait for a place, and those that have ended."""

    def __init__(
        self,
        keeping: Keeping,
        place: Place,
        hear: Listener,
        locks: contextlib.ExitStack,
        *,
        compile_forward: bool,
    ) -> None:
        self.keeping, self.place, self.hear, self.locks = keeping, place, hear, locks
        self.compile_forward = compile_forward
        self.waiting: deque[Work] = deque()
        self.active: list[Loop] = []
        self.folders: dict[Loop, contextlib.ExitStack] = {}  # the lock on each run's folder
        self.told: set[Path] = set()  # folders that another process has, and that were reported
        self.ended: list[Finished] = []
        self.most = math.inf  # runs side by side for which memory has not run out
        self.put_off: set[Path] = set()  # folders of runs for which it has, and which wait to go on

    def go(self, works: Iterable[Work], at_once: int | None, stop: Callable[[], bool]) -> None:
        """Train until all runs have ended, until `stop()`, or until the listener fails, whose error is then raised."""
        self._go(works, at_once, lambda: self.hear.error is not None or stop())
        self.hear.reraise()

    def _go(self, works: Iterable[Work], at_once: int | None, stop: Callable[[], bool]) -> None:
        self.waiting.extend(works)
        while (self.waiting or self.active) and not stop():
            try:
                for _ in range(len(self.waiting)):
                    if len(self.active) >= min(self.most, at_once or self._room()) or stop():
                        break
                    self._start(self.waiting.popleft())
            except Exception:  # elsewhere an error may come in the middle of a step, and the last checkpoints stand
                self._cut_off()
                raise
            if self.waiting and not self.active:  # other processes have all of them
                time.sleep(0.2)
            self._epoch(stop)
        self._cut_off()

    def _cut_off(self) -> None:
        """Save all active runs, each of which is between two steps, and take everything off the GPU."""
        for loop in list(self.active):
            with self._of(loop):
                loop.interrupt()
                self._end(loop)
        rest = list(self.waiting)
        self.waiting.clear()
        for work in rest:
            begun = work.root / work.run.id in self.put_off
            self.ended.append(Finished(work.run, "interrupted" if begun else "waiting"))
            self._take_off(work.data)

    def _room(self) -> int:
        """How many runs the memory holds, if each takes as much as the active ones do on average."""
        if not self.active:
            return 1
        if len(self.active) >= AT_ONCE:
            return AT_ONCE
        torch.cuda.empty_cache()  # what the allocator still holds of runs that have ended
        free, total = torch.cuda.mem_get_info(self.place.resolved)
        each = (total - free) / len(self.active)
        return max(1, min(AT_ONCE, len(self.active) + int((free - SPARE * total) / each)))

    def _start(self, work: Work) -> None:
        run = settled(work.run, work.data)
        folder = work.root / run.id
        lock = self.locks.enter_context(contextlib.ExitStack())
        try:
            lock.enter_context(held(folder))
            record = earlier(folder, run, work.data)
            if record is not None and record.status == "done":
                lock.close()
                self._end_with(Finished.of(record))
                self._take_off(work.data)
                return
            loop = Loop(Job(run, work.data, self.place), record or Record(folder, run), self.keeping, self.hear)
        except Exception as error:  # it ends this run alone
            lock.close()
            if self.keeping.wait and isinstance(error, BusyError):
                self.waiting.append(work)
                if folder not in self.told:
                    self.told.add(folder)
                    self.hear(Progress.waits(run, folder))
            elif self._later(work, error):
                self._make_room()
            else:
                self._end_with(Finished(run, "failed", first_line(error)))
                self._take_off(work.data)
            return
        self.active.append(loop)
        self.folders[loop] = lock
        with self._of(loop):
            if loop.under_way:
                loop.stepper = Captured(loop.job, compile_forward=self.compile_forward)
                loop.begin()
            else:
                self._end(loop)

    def _epoch(self, stop: Callable[[], bool]) -> None:
        """One epoch of every run, a step of each in turn; one that was continued in mid-epoch has fewer left."""
        for loop in self.active:
            loop.beside = len(self.active)
        while not stop() and (going := [loop for loop in self.active if loop.step < loop.job.steps]):
            for loop in going:
                with self._of(loop):
                    loop.advance()
        through = deque(loop for loop in self.active if loop.step >= loop.job.steps)
        while through and not stop():  # to stop is to save: evaluations take their time
            loop = through.popleft()  # and nothing else holds one that leaves: its memory is free for the next
            with self._of(loop):
                loop.end()
                if loop.under_way:
                    loop.begin()
                else:
                    self._end(loop)

    @contextlib.contextmanager
    def _of(self, loop: Loop) -> Iterator[None]:
        """An error in the block ends this run alone, and is written into its record."""
        outer = sys.exc_info()[1]  # of the engine itself, which cuts its runs off
        try:
            yield
        except Exception as error:
            if self._later(Work(loop.run, loop.job.data, loop.record.folder.parent), error, beside=1):
                loop.put_off(error)
                self.put_off.add(loop.record.folder)
                self._leave(loop)
                self._make_room()
                self.hear(Finished.of(loop.record))
            else:
                loop.fail(error)
                self._leave(loop)
                self._end_with(Finished(loop.run, "failed", first_line(error)))
            _let_go(error, but=outer)

    def _later(self, work: Work, error: Exception, *, beside: int = 0) -> bool:
        """Whether a run that ran out of memory beside others waits, to go on from its checkpoint beside fewer of them.

        beside: 1 if the run is among the active ones itself.
        """
        others = len(self.active) - beside
        if not others or not may_have_run_out(error):
            return False
        self.most = others
        self.waiting.append(work)
        return True

    def _end(self, loop: Loop) -> None:
        self._leave(loop)
        self._end_with(Finished.of(loop.record))

    def _leave(self, loop: Loop) -> None:
        """Take a run off the GPU and free its folder; with the last run on its data, take these off, too."""
        self.active.remove(loop)
        self.folders.pop(loop).close()
        self._take_off(loop.job.data)

    def _make_room(self) -> None:
        """Take the data off the GPU that only runs need which wait: memory ran out, and those that train need it."""
        for work in self.waiting:
            self._take_off(work.data)

    def _take_off(self, data: Data) -> None:
        """Take data off the GPU, unless an active run needs them, or one that waits and memory has not run out yet."""
        waits = self.most == math.inf and any(work.data is data for work in self.waiting)
        if not waits and all(loop.job.data is not data for loop in self.active):
            data.leave(self.place.resolved)

    def _end_with(self, end: Finished) -> None:
        self.ended.append(end)
        self.hear(end)
