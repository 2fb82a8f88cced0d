"""A run under way: its epochs, evaluations, stopping rule, checkpoints and record."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mirrordescent as md
from mirrordescent.lab.board import Board
from mirrordescent.lab.data import Data
from mirrordescent.lab.evaluation import evaluate, histograms, objective
from mirrordescent.lab.job import Job
from mirrordescent.lab.memory import ran_out
from mirrordescent.lab.names import first_line
from mirrordescent.lab.records import Record, Row, RunError, like, load_checkpoint, rows_of, save_checkpoint
from mirrordescent.lab.runs import Run

COSTLY = 20  # between checkpoints: so many times what writing one takes, at least, for each run side by side


@dataclass(frozen=True)
class Progress:
    """Where a run is; `watch` hears it after every epoch and a few times a second."""

    run: Run
    epoch: int  # epochs done
    step: int  # steps done of the epoch under way
    steps: int  # steps in an epoch
    row: Row  # the last evaluation
    folder: Path  # the run's own
    waiting: bool = False  # another process has the run, and this one waits for it; nothing else is known

    @classmethod
    def waits(cls, run: Run, folder: Path) -> Progress:
        """The one event of a run that another process has."""
        return cls(run, 0, 0, 1, {}, folder, waiting=True)


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Keeping:
    """Where and how often a run is saved; nothing here changes a result."""

    root: Path = Path("runs")
    """folder for the runs, each of which gets a folder of its own in it"""
    data_root: Path | None = None
    """folder of the fetched data sets"""
    checkpoint_seconds: float = 10.0
    """seconds between checkpoints, which is what a kill can cost (more where writing one takes long)"""
    tensorboard: bool = False
    """write TensorBoard's event files too"""
    wait: bool = False
    """wait for another process that has the run, instead of refusing"""

    def __post_init__(self) -> None:
        if not self.checkpoint_seconds >= 0:
            raise ValueError(f"checkpoint_seconds must be >= 0, got {self.checkpoint_seconds}")


class Listener:
    """Passes events on to whoever watches. What goes wrong there fails no run: `error` has it, to cut runs off."""

    def __init__(self, watch: Callable[[Any], None] | None) -> None:
        self.watch = watch
        self.error: BaseException | None = None

    def __call__(self, event: object) -> None:
        """Tell of an event, as long as somebody listens."""
        if self.watch is None or self.error is not None:
            return
        try:
            self.watch(event)
        except BaseException as error:  # rich leaves by SystemExit where nobody reads any more
            self.error = error

    def reraise(self) -> None:
        """Raise what has gone wrong, if anything has, and keep it no longer: its frames hold this, and with it runs."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # which this frame holds, too


class Stepper(Protocol):
    """What takes a run's steps: its job itself, or a captured form of it."""

    def begin(self, epoch: int, first: int = 0) -> None:
        """Draw an epoch's visits; the next step will be its step `first`."""

    def step(self) -> None:
        """Take the next step."""

    def wait(self) -> None:
        """Wait until every step is done."""


class Loop:
    """A run under way, from where its last checkpoint left it.

    epoch, step: how much is done, in whole epochs and steps of the next one.
    """

    def __init__(self, job: Job, record: Record, keeping: Keeping, watch: Watch | None = None) -> None:
        self.job, self.run, self.record, self.watch = job, job.run, record, watch
        self.stepper: Stepper = job
        self.rule = rule_for(job.run, job.data.classes)
        self.digest = digest_of(job.run, job.data)
        self.epoch = self.step = 0
        self.beside = 1  # runs side by side, this one included: all wait while one writes its checkpoint
        self.checkpoint, self.heard = _Clock(keeping.checkpoint_seconds), _Clock(0.1)
        self.begun, self.before = time.monotonic(), 0.0
        self._restore(load_checkpoint(record.folder))
        self._describe()
        self.board = Board(record) if keeping.tensorboard else None
        if self.under_way:
            record.write()
        else:  # killed between the last checkpoint and the record of it
            self._finish(record.write)

    @property
    def under_way(self) -> bool:
        """Whether there is more to do."""
        return self.record.status == "running"

    def begin(self) -> None:
        """Begin the next epoch, or continue in the middle of it."""
        self.stepper.begin(self.epoch + 1, self.step)

    def advance(self) -> None:
        """Take one step, and write a checkpoint if it is time."""
        self.stepper.step()
        self.step += 1
        self._tell()
        if self.checkpoint.due():
            self.save()

    def end(self) -> None:
        """End the epoch: evaluate if it is time to, and see whether this was the last."""
        self.stepper.wait()
        self.epoch, self.step = self.epoch + 1, 0
        self.record.epochs = self.epoch
        last = self.epoch >= self.run.epochs
        if last or self.epoch % self.run.every == 0:
            row = evaluate(self.job, self.epoch)
            self.record.rows.append(row)
            if self.board is not None:
                self.board.add(row)
            reason = self._reason(row) or ("epochs" if last else "")
            if reason:
                self.record.status, self.record.reason = "done", reason
        self.job.sums.zero_()
        if not self.under_way:
            self._finish(self.save)
        self._tell(always=True)

    def interrupt(self) -> None:
        """Save everything, so that the run can continue later."""
        self.record.status, self.record.reason = "interrupted", f"epoch {self.epoch}, step {self.step}"
        self.save()
        self._close_board()

    def fail(self, error: Exception) -> None:
        """Write into the record why the run could not continue; its last checkpoint stays."""
        self._leave("failed", first_line(error))

    def put_off(self, error: Exception) -> None:
        """Leave the run where its last checkpoint is, to continue from there when what is in its way is gone."""
        self._leave("interrupted", first_line(error))

    def _leave(self, status: str, reason: str) -> None:
        with contextlib.suppress(Exception):  # of CUDA, after some of whose errors every call fails
            self.stepper.wait()  # what is launched writes to memory that will be another's as soon as the run is gone
        self.record.status, self.record.reason = status, reason
        with contextlib.suppress(OSError):  # a full disk may be what went wrong
            self.record.write()
        self._close_board()

    def _close_board(self) -> None:
        if self.board is not None:
            with contextlib.suppress(OSError):  # its figures are in the record, and are written anew from there
                self.board.close()

    def save(self) -> None:
        """Write the checkpoint, then the record, so that whatever the record says is in the checkpoint, too."""
        self.stepper.wait()
        begun = time.monotonic()
        self.record.seconds = round(self.before + begun - self.begun, 3)
        state = {
            "run": self.run.to_dict(),
            "digest": self.digest,
            "epoch": self.epoch,
            "step": self.step,
            "job": self.job.state_dict(),
            "rule": self.rule.state_dict() if self.rule is not None else {},
            "rows": json.dumps(self.record.rows),
            "seconds": self.record.seconds,
            "status": self.record.status,
            "reason": self.record.reason,
        }
        save_checkpoint(self.record.folder, state)
        self.record.write()
        self.checkpoint.reset(least=COSTLY * self.beside * (time.monotonic() - begun))

    def _finish(self, keep: Callable[[], None]) -> None:
        """The run is done: keep what it has come to, before TensorBoard's figures can fail on a full disk."""
        self.record.histograms = histograms(self.job)
        keep()
        if self.board is not None:
            self.board.close()

    def _reason(self, row: Row) -> str:
        """Why training should end here; empty if it should not."""
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

    def _tell(self, *, always: bool = False) -> None:
        if self.watch is not None and (always or self.heard.due()):
            self.watch(Progress(self.run, self.epoch, self.step, self.job.steps, self.record.final, self.record.folder))
            self.heard.reset()

    def _restore(self, state: dict[str, Any] | None) -> None:
        """Continue where the checkpoint ends; evaluations that came after it will be made again."""
        self.record.rows, self.record.epochs = [], 0
        self.record.status, self.record.reason = "running", ""
        if state is None:
            return
        path = self.record.folder / "checkpoint.pt"
        try:
            if Run.from_dict(state["run"]) != self.run or state["digest"] != self.digest:
                raise RunError(f"{path} is of another run or of other data; remove {self.record.folder}")
            self.job.load_state_dict(state["job"])
            if self.rule is not None:
                self.rule.load_state_dict(state["rule"])
            done = state["status"] == "done"
            self.epoch = _within("epoch", state["epoch"], self.run.epochs if done else self.run.epochs - 1)
            self.step = _within("step", state["step"], self.job.steps)
            self.record.rows, self.record.epochs = rows_of(json.loads(state["rows"])), self.epoch
            self.before = self.record.seconds = like(0.0, state["seconds"], "seconds")
            if done:
                self.record.status, self.record.reason = "done", like("", state["reason"], "reason")
        except RunError:
            raise
        except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
            if ran_out(error):
                raise
            told = first_line(error)
            raise RunError(f"{path} does not fit this run ({told}); remove {self.record.folder}") from None

    def _describe(self) -> None:
        record, data, environment = self.record, self.job.data, self.job.place.described(self.run)
        if record.environment and record.environment != environment:
            record.earlier.append(record.environment)
        record.environment = environment
        record.parameters = sum(w.numel() for w in self.job.model.parameters())
        record.data = {
            "name": data.name,
            "digest": self.digest,
            "samples": len(data),
            "test_samples": len(data.test_inputs),
            "shape": list(data.shape),
            "classes": data.classes,
            "class_names": list(data.class_names),
            "wrong": int(self.job.changed.sum()),
            "notes": list(data.notes),
        }


def digest_of(run: Run, data: Data) -> str:
    """The digest of all that the run is trained on, a file of labels included."""
    if run.noise_file is None:
        return data.digest
    return data.digest_with(Path(run.noise_file).read_bytes())


def rule_for(run: Run, classes: int | None) -> md.StopOnPlateau | md.StopOnInterpolation | None:
    """The paper's stopping rule for the algorithm. The run's patience is in epochs, the rule's in evaluations."""
    if run.stop == "never":
        return None
    if run.algorithm in ("sgd", "smd") and classes is not None:
        return md.StopOnInterpolation()
    return md.StopOnPlateau(patience=math.ceil(run.patience / run.every))


def _within(name: str, value: Any, most: int) -> int:
    """A number of epochs or steps from a checkpoint. Raises TypeError or ValueError where it cannot be one."""
    number: int = like(0, value, name)
    if not 0 <= number <= most:
        raise ValueError(f"{name} must be from 0 to {most}, got {number}")
    return number


class _Clock:
    """Tells when it is time to do something again."""

    def __init__(self, every: float) -> None:
        self.every, self.last, self.least = every, time.monotonic(), 0.0

    def due(self) -> bool:
        """Whether it is time again."""
        return time.monotonic() - self.last >= max(self.every, self.least)

    def reset(self, least: float = 0.0) -> None:
        """It was done just now, and is not due again for `least` seconds."""
        self.last, self.least = time.monotonic(), least
