"""One loop for every run: train, evaluate, keep a record, and go on where an earlier go was cut off."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import mirrordescent as md
from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.evaluation import evaluate, histograms, objective
from mirrordescent.lab.job import Job
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record, Row, RunError, held, load_checkpoint, read, save_checkpoint
from mirrordescent.lab.runs import Run, settled


@dataclass(frozen=True)
class Progress:
    """Where a run is; `watch` hears it after every epoch and a few times a second."""

    run: Run
    epoch: int  # epochs done
    step: int  # steps done of the epoch under way
    steps: int  # of an epoch
    row: Row  # the last evaluation


@dataclass(frozen=True)
class Keeping:
    """Where and how often a run is written down. Nothing of it changes a result."""

    root: Path = Path("runs")
    """folder for runs; a run's own folder in it is its id"""
    data_root: Path | None = None
    """folder of the fetched data sets"""
    checkpoint_seconds: float = 10.0
    """seconds between checkpoints: the most that a kill can cost"""
    tensorboard: bool = False
    """write TensorBoard's event files too"""
    wait: bool = False
    """wait for another process that has the run, instead of refusing"""


def train(
    run: Run,
    keeping: Keeping | None = None,
    place: Place | None = None,
    *,
    data: Data | None = None,
    watch: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Record:
    """Train a run to its end and return its record; a run that is done is only read, one that was cut off goes on.

    data: already loaded, for a caller with many runs on the same. watch: hears the progress. stop: asked after every
    step; True writes a checkpoint and returns the record with the status "interrupted". Ctrl-C and SIGTERM do the
    same, and then raise KeyboardInterrupt.
    Raises DataError for bad data, ValueError for settings that do not go together, RunError where the run's folder is
    somebody else's or holds something else.

    >>> import tempfile
    >>> from mirrordescent.lab.runs import Run
    >>> record = train(Run(algorithm="sgd", epochs=2), Keeping(Path(tempfile.mkdtemp())))
    >>> record.status, record.epochs, record.final["test_accuracy"] > 0.5
    ('done', 2, True)
    """
    keeping, place = keeping or Keeping(), place or Place()
    data = data or load(source_of(run), keeping.data_root)
    run = settled(run, data)
    folder = keeping.root / run.id
    with held(folder, wait=keeping.wait), place.taken(), _signals() as signalled:
        record = found(folder, run, data)
        if record is not None and record.status == "done":
            return record
        loop = _Loop(run, data, place, keeping, record or Record(folder, run), watch)
        interrupted = loop.go_on(lambda: bool(signalled) or (stop is not None and stop()))
        if interrupted and signalled:
            raise KeyboardInterrupt
        return loop.record


def source_of(run: Run) -> Source:
    """Which data a run trains on."""
    return Source(run.data, run.label, run.test, run.test_share)


def found(folder: Path, run: Run, data: Data) -> Record | None:
    """The record of an earlier go. Raises RunError where it is of another run or of other data."""
    if not (folder / "run.json").exists():
        return None
    record = read(folder)
    if record.run != run:
        raise RunError(f"{folder} holds another run of the same name; remove it, or choose another folder with --out")
    if record.data.get("digest") != data.digest():
        raise RunError(
            f"{run.data} has changed since {folder} was begun; remove that folder, or choose another with --out"
        )
    return record


@contextmanager
def _signals() -> Iterator[list[float]]:
    """Ctrl-C and SIGTERM only leave a note, so that a checkpoint can be written first; an impatient Ctrl-C ends it.

    Impatient is a second later: a terminal and a sweep may both pass the same one on.
    """
    noted: list[float] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread may listen to signals
        yield noted
        return

    def note(number: int, _frame: FrameType | None) -> None:
        if noted and number == signal.SIGINT and time.monotonic() > noted[0] + 1:
            raise KeyboardInterrupt
        noted.append(time.monotonic())

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class _Clock:
    """When something was last done."""

    every: float
    last: float = field(default_factory=time.monotonic)

    def due(self) -> bool:
        """Whether it is time again."""
        return time.monotonic() - self.last >= self.every

    def reset(self) -> None:
        """It was done just now."""
        self.last = time.monotonic()


class _Loop:
    """A run under way."""

    def __init__(
        self,
        run: Run,
        data: Data,
        place: Place,
        keeping: Keeping,
        record: Record,
        watch: Callable[[Progress], None] | None,
    ) -> None:
        self.job = Job(run, data, place)
        self.run, self.record, self.watch = run, record, watch
        self.rule = rule_for(run, data.classes)
        self.epoch = self.step = 0  # done
        self.checkpoint, self.heard = _Clock(keeping.checkpoint_seconds), _Clock(0.1)
        self.begun, self.before = time.monotonic(), 0.0
        self._restore(load_checkpoint(record.folder))
        self.board = _Board(record, self.epoch) if keeping.tensorboard else None
        record.parameters = sum(w.numel() for w in self.job.model.parameters())
        record.environment = place.described(run)
        record.data = {
            "name": data.name,
            "digest": data.digest(),
            "samples": len(data),
            "test_samples": len(data.test_inputs),
            "shape": list(data.shape),
            "classes": data.classes,
            "wrong": int(self.job.changed.sum()),
            "notes": list(data.notes),
        }
        if record.status == "done":  # killed between the last checkpoint and the record of it
            record.histograms = histograms(self.job)
        record.write()

    def go_on(self, stop: Callable[[], bool]) -> bool:
        """To the end, or until `stop()`; True if it was stopped."""
        while self.record.status == "running":
            self.job.begin(self.epoch + 1)
            while self.step < self.job.steps:
                if stop():
                    return self._interrupt()
                self.job.step(self.step)
                self.step += 1
                self._tell()
                if self.checkpoint.due():
                    self._save()
            self._end_epoch()
        return False

    def _end_epoch(self) -> None:
        self.epoch, self.step = self.epoch + 1, 0
        last = self.epoch >= self.run.epochs
        if last or self.epoch % self.run.every == 0:
            row = evaluate(self.job, self.epoch)
            self.record.rows.append(row)
            if self.board is not None:
                self.board.add(row)
            reason = self._reason(row) or ("epochs" if last else "")
            if reason:
                self.record.status, self.record.reason = "done", reason
                self.record.histograms = histograms(self.job)
        self.job.sums.zero_()
        self.record.epochs = self.epoch
        if self.record.status == "done":
            self._save()
            if self.board is not None:
                self.board.close()
        self._tell(always=True)

    def _reason(self, row: Row) -> str:
        """Why training should end here, or nothing."""
        if row["train_loss"] is None:
            return "diverged"
        if self.rule is None:
            return ""
        if isinstance(self.rule, md.StopOnInterpolation):
            value = row["train_accuracy"]
        elif self.run.algorithm == "weight-decay":
            value = objective(self.job, row)
        else:
            value = row["residual"] if self.run.algorithm == "rmd" else row["train_loss"]
        ended = self.rule(math.nan if value is None else value)
        return ("interpolation" if isinstance(self.rule, md.StopOnInterpolation) else "plateau") if ended else ""

    def _interrupt(self) -> bool:
        self.record.status, self.record.reason = "interrupted", f"epoch {self.epoch}, step {self.step}"
        self._save()
        if self.board is not None:
            self.board.close()
        return True

    def _tell(self, *, always: bool = False) -> None:
        if self.watch is not None and (always or self.heard.due()):
            self.watch(Progress(self.run, self.epoch, self.step, self.job.steps, self.record.final))
            self.heard.reset()

    def _save(self) -> None:
        """The checkpoint before the record: what the record says is done, the checkpoint has."""
        self.record.seconds = round(self.before + time.monotonic() - self.begun, 3)
        save_checkpoint(
            self.record.folder,
            {
                "run": self.run.to_dict(),
                "epoch": self.epoch,
                "step": self.step,
                "job": self.job.state_dict(),
                "rule": self.rule.state_dict() if self.rule is not None else {},
                "rows": self.record.rows,
                "seconds": self.record.seconds,
                "status": self.record.status,
                "reason": self.record.reason,
            },
        )
        self.record.write()
        self.checkpoint.reset()

    def _restore(self, state: dict[str, Any] | None) -> None:
        """Take up where the checkpoint ends; rows that came after it will come again."""
        self.record.rows, self.record.epochs = [], 0
        self.record.status, self.record.reason = "running", ""
        if state is None:
            return
        if state["run"] != self.run.to_dict():
            raise RunError(f"{self.record.folder / 'checkpoint.pt'} is of another run; remove {self.record.folder}")
        self.epoch, self.step = state["epoch"], state["step"]
        self.job.load_state_dict(state["job"])
        if self.rule is not None:
            self.rule.load_state_dict(state["rule"])
        self.record.rows, self.record.epochs, self.before = state["rows"], self.epoch, state["seconds"]
        if state["status"] == "done":
            self.record.status, self.record.reason = "done", state["reason"]


def rule_for(run: Run, classes: int | None) -> md.StopOnPlateau | md.StopOnInterpolation | None:
    """The paper's stopping rule for the algorithm; the patience is in epochs, the rule is asked at evaluations."""
    if run.stop == "never":
        return None
    if run.algorithm in ("sgd", "smd") and classes is not None:
        return md.StopOnInterpolation()
    return md.StopOnPlateau(patience=math.ceil(run.patience / run.every))


class _Board:
    """TensorBoard's event files of a run; what a go adds after its checkpoint replaces what a killed go had added."""

    def __init__(self, record: Record, epoch: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RunError("TensorBoard is not installed: pip install 'mirrordescent[tensorboard]'") from None
        self.writer = SummaryWriter(str(record.folder / "tensorboard"), purge_step=epoch + 1)

    def add(self, row: Row) -> None:
        """One evaluation."""
        for name, value in row.items():
            if name != "epoch" and value is not None:
                self.writer.add_scalar(name, value, row["epoch"])

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
