"""The progress that a person sees while a command runs: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from mirrordescent.lab import loop
from mirrordescent.lab.data import official
from mirrordescent.lab.records import Row
from mirrordescent.lab.runs import IN_TITLE, USED_BY, Run
from mirrordescent.lab.sweep import Finished

EVERY = 10.0  # seconds between lines where there is no terminal to draw on


def console() -> Console:
    """The standard error, for progress and messages; results go to the standard output."""
    return Console(stderr=True, emoji=False)


def say(line: str) -> None:
    """Print a line for people, as it is, on the standard error."""
    console().print(line, highlight=False, markup=False, soft_wrap=True)


def percent(value: float | None) -> str:
    """A fraction in percent.

    >>> percent(0.9414), percent(None)
    ('94.1 %', '–')
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def standing(row: Row) -> str:
    """The last evaluation in a few words."""
    if not row:
        return ""
    if row["test_accuracy"] is None:
        return f"test loss {row['test_loss']:.4g}" if row["test_loss"] is not None else "loss not finite"
    learnt = "" if row["wrong_fitted"] is None else f", wrong labels learnt {percent(row['wrong_fitted'])}"
    return f"test {percent(row['test_accuracy'])}{learnt}"


class Watching:
    """The progress of one run or of many; a live display on a terminal, a line now and then elsewhere.

    total: how many runs there are. name: what to call them, instead of their titles. settings: those in which runs
    differ, to be told beside the titles.
    """

    def __init__(self, console: Console, total: int, name: str | None = None, settings: Iterable[str] = ()) -> None:
        self.console, self.total, self.ended, self.said = console, total, 0, time.monotonic()
        self.name, self.settings = name, tuple(settings)
        last = TextColumn("{task.fields[standing]}", style="dim")
        self.bars = _bars(console, MofNCompleteColumn(), TimeRemainingColumn(), last)
        self.tasks: dict[str, TaskID] = {}
        self.begun: dict[Path, tuple[float, float]] = {}  # of each run: when it was first heard of, and its epoch then
        self.all = self.bars.add_task("runs", total=total, standing="") if total > 1 else None

    def __enter__(self) -> Watching:
        """Start drawing."""
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()

    def __call__(self, event: loop.Progress | Finished) -> None:
        """Show a run's progress, or how it ended."""
        if isinstance(event, Finished):
            self._finish(event)
            return
        if event.waiting:
            self._say(f"{self._title(event.run)}: waiting for another process that has {event.folder}")
            return
        key, where = event.folder.name, event.epoch + event.step / event.steps
        if event.folder not in self.begun or key not in self.tasks:  # or one that was put off and goes on
            self.begun[event.folder] = (time.monotonic(), where)
            if key in self.tasks:  # the same settings, and so the same id, on other samples
                self.bars.remove_task(self.tasks.pop(key))
        title = self._title(event.run)
        if self.total == 1 and len(self.begun) > 1:  # such as an audit's check, or what a clean-up compares
            title = f"{title}, run {len(self.begun)}"
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(title, total=event.run.epochs, standing="")
        self.bars.update(self.tasks[key], completed=round(where, 2), standing=standing(event.row))
        if not self.console.is_terminal and time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            words = [f"epoch {where:.1f} of {event.run.epochs}", standing(event.row), self._left(event, where)]
            self._say(f"{title}: {', '.join(word for word in words if word)}")

    def _left(self, event: loop.Progress, where: float) -> str:
        """How long a run will still take at its pace so far."""
        begun, first = self.begun[event.folder]
        if where <= first or where >= event.run.epochs:
            return ""
        seconds = (event.run.epochs - where) * (time.monotonic() - begun) / (where - first)
        return f"about {math.ceil(seconds / 60):,} min left" if seconds > 60 else f"about {math.ceil(seconds)} s left"

    def _finish(self, event: Finished) -> None:
        self.ended += event.status in ("done", "failed")
        if event.run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(event.run.id))
        if self.all is not None:
            self.bars.update(self.all, completed=self.ended)
        if event.status == "failed":
            self.console.print("[red]failed[/red] ", end="")
            self._say(f"{self._title(event.run)} ({event.run.id}): {event.error}")
        elif self.total > 1 and not self.console.is_terminal:
            how = "diverged" if event.diverged else event.status
            self._say(f"{self.ended} of {self.total}: {self._title(event.run)}, {how}")

    def _title(self, run: Run) -> str:
        if self.name is not None:
            return self.name
        inert = [name for name, users in USED_BY.items() if run.algorithm not in users]
        told = [f"{name} {getattr(run, name)}" for name in self.settings if name not in (*IN_TITLE, *inert, "seed")]
        seed = [f"seed {run.seed}"] if self.total > 1 else []
        return ", ".join([run.title, *told, *seed])

    def now(self, name: str) -> None:
        """Call the runs that come next by this name; those before have ended."""
        self.name = name
        self.begun.clear()
        while self.tasks:
            self.bars.remove_task(self.tasks.popitem()[1])

    def through(self, line: str) -> None:
        """Count one piece of the work, perhaps of several runs, as done; without bars, print the line."""
        self.ended += 1
        if self.all is not None:
            self.bars.update(self.all, completed=self.ended)
        if not self.console.is_terminal:
            self._say(f"{self.ended} of {self.total}: {line}")

    def note(self, line: str) -> None:
        """Print what a person should know before the work begins."""
        self._say(f"note: {line}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _bars(console: Console, *columns: ProgressColumn) -> Progress:
    """Bars with these columns behind them; nothing is drawn where there is no terminal, nor left when they end."""
    first = TextColumn("{task.description}"), BarColumn(bar_width=24)
    return Progress(*first, *columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def counting(console: Console, what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for things that are counted; what it yields is called with how many are done and how many there are."""
    with _bars(console, MofNCompleteColumn(), TimeRemainingColumn()) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@contextmanager
def transfers(console: Console) -> Iterator[Callable[[official.Progress], None]]:
    """Bars for bytes, one per file that is downloaded, written or checked; lines for everything else."""
    bars = _bars(console, DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    tasks: dict[tuple[str, str], TaskID] = {}

    def watch(event: official.Progress) -> None:
        if not event.total:
            console.print(f"{event.action} {event.file} {event.detail}".strip(), markup=False, highlight=False)
            return
        key = (event.action, event.file)
        if key not in tasks:
            tasks[key] = bars.add_task(f"{event.action} {event.file}", total=event.total)
        bars.update(tasks[key], completed=event.done)

    with bars:
        yield watch
