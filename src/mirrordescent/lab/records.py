"""Records of runs: a folder per run, readable by people and programs, each file there whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import torch

from mirrordescent.lab.files import remove_parts, write_text, written
from mirrordescent.lab.names import first_line
from mirrordescent.lab.runs import Run

COURSE = "course.json"  # of tasks that are learnt one after the other, in the folder that their runs are in
AUDITS = "audits"  # the folder of runs on all samples, none set aside, in the folder of all runs
FORMAT = 1
Row = dict[str, float | int | None]  # one evaluation; None where a figure does not apply


class RunError(RuntimeError):
    """A run that cannot go on: somebody else has it, or its folder does not fit; the message says which and why."""


class BusyError(RunError):
    """A run that another process is training."""


class DamagedError(RunError):
    """A record that cannot be read; a checkpoint beside it holds everything that it said."""


@dataclass
class Record:
    """What is known of a run.

    status: "running" (or killed), "interrupted", "done", or "failed"; reason: why it ended.
    data: what the data were: name, digest, samples, test_samples, shape, classes, wrong (labels changed).
    rows: one per evaluation, with the keys of `evaluation.COLUMNS`. Accuracies are fractions.
    histograms: "weights", "z_right" and "z_wrong", each with "edges" and "counts"; empty before the end.
    seconds: of training, over all goes. environment: what the last go was computed with; earlier: others before it.
    """

    folder: Path
    run: Run
    status: str = "running"
    reason: str = ""
    epochs: int = 0
    parameters: int = 0
    seconds: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The run's."""
        return self.run.id

    @property
    def final(self) -> Row:
        """The last evaluation; empty before the first."""
        return self.rows[-1] if self.rows else {}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows before the last, as JSON takes it."""
        return {
            "format": FORMAT,
            "id": self.id,
            "run": self.run.to_dict(),
            "status": self.status,
            "reason": self.reason,
            "epochs": self.epochs,
            "parameters": self.parameters,
            "seconds": self.seconds,
            "data": self.data,
            "environment": self.environment,
            "earlier": self.earlier,
            "final": self.final,
            "histograms": self.histograms,
        }

    def write(self) -> None:
        """metrics.jsonl, then run.json: a reader never sees a run that is done without its metrics."""
        lines = [json.dumps(row, allow_nan=False) for row in self.rows]
        write_text(self.folder / "metrics.jsonl", "".join(line + "\n" for line in lines))
        write_text(self.folder / "run.json", json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> Record:
    """The record in a folder. Raises RunError where there is none, DamagedError, naming the file, where one is."""
    path, metrics = folder / "run.json", folder / "metrics.jsonl"
    if not path.exists():
        raise RunError(f"{path} is missing: {folder} is not a run's folder")
    with _whole(path):
        held = json.loads(path.read_text(encoding="utf-8"))
        if held.get("format", FORMAT) > FORMAT or not held["run"].keys() <= Run().to_dict().keys():
            raise RunError(f"{path} was written by a newer mirrordescent; upgrade to read it")
        record = Record(folder, Run.from_dict(held["run"]))
        for item in dataclasses.fields(Record):
            if item.name in held and item.name not in ("folder", "run", "rows"):
                setattr(record, item.name, _like(getattr(record, item.name), held[item.name], item.name))
    with _whole(metrics):
        lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        record.rows = [_like({}, json.loads(line), "a line") for line in lines]
        if record.status == "done" and held.get("final") and held["final"] not in record.rows:
            raise ValueError("the run's last evaluation is not there")
    return record


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """What goes wrong in the block says that this file is damaged, and how to go on."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        again = f"remove {path.parent} and train again"
        if (path.parent / "checkpoint.pt").exists():
            again = "training the run again restores it from its checkpoint"
        raise DamagedError(f"{path} cannot be read: {error}; {again}") from None


def _like(default: Any, value: Any, name: str) -> Any:
    """A value of the type that a field has."""
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted):
        raise TypeError(f"{name} is {value!r:.40}")
    return value


def read_all(root: Path, skip: Callable[[DamagedError], None] | None = None) -> list[Record]:
    """The records under a folder, one run's own folder included, in a fixed order. Raises RunError if none.

    What is inside of a run's folder belongs to that run, such as an audit's check, and is no run of its own here; what
    is inside of a course's belongs to the course. Nor are audits, unless the folder is theirs: they train on what
    others are judged by.
    skip: hears of records that are damaged, which are left out then; else the first of them is raised.
    """
    if not root.is_dir():
        raise RunError(f"{root} is not a folder; `rmd train`, `sweep` and `reproduce` write their runs under runs/")
    found = list(_run_folders(root))
    if not found:
        raise RunError(f"{root} holds no runs; make some with `rmd train`, `rmd sweep` or `rmd reproduce`")
    records = []
    for folder in found:
        try:
            records.append(read(folder))
        except DamagedError as error:
            if skip is None:
                raise
            skip(error)
    return sorted(records, key=lambda record: order_of(record.run))


def _run_folders(root: Path) -> Iterator[Path]:
    if (root / "run.json").exists():
        yield root
        return
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name != AUDITS and not (path / COURSE).exists():
            yield from _run_folders(path)


def order_of(run: Run) -> tuple[Any, ...]:
    """By data and corruption, then algorithm, then λ, then seed: the order in which tables list runs."""
    place = ("sgd", "weight-decay", "smd", "rmd").index(run.algorithm)
    return (run.data, run.corruption, place, run.reduction, run.potential, run.lam or 0.0, run.seed, run.id)


@contextmanager
def held(
    folder: Path,
    *,
    wait: bool = False,
    stop: Callable[[], bool] | None = None,
    tell: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Have a run's folder to oneself; the operating system lets go of it when the process ends, however it ends.

    wait: wait for whoever has it, until `stop()`, and `tell()` when that begins. Raises BusyError at once otherwise.
    """
    lock = filelock.FileLock(folder / "lock")
    while not _acquired(lock, folder):
        if not wait or (stop is not None and stop()):
            raise BusyError(f"{folder} is being trained by another process; wait for it, or add --wait")
        if tell is not None:
            tell()
            tell = None
        time.sleep(0.05)
    try:
        remove_parts(folder)
        yield
    finally:
        _remove_if_empty(folder)  # before others may have it
        lock.release()


def _acquired(lock: filelock.BaseFileLock, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except FileNotFoundError:  # whoever had it has just left nothing behind
        if folder.parent.is_dir():
            return False
        raise
    return True


def _remove_if_empty(folder: Path) -> None:
    """A run that was refused before it began leaves nothing."""
    with contextlib.suppress(OSError):  # it may be gone, or somebody waits for it
        if [path.name for path in folder.iterdir()] == ["lock"]:
            (folder / "lock").unlink()
            folder.rmdir()


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """checkpoint.pt, whole or not at all."""
    memory = io.BytesIO()  # torch hides a full disk behind an error of its own
    torch.save(dict(state), memory)
    with written(folder / "checkpoint.pt") as file:
        file.write(memory.getbuffer())


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What `save_checkpoint` wrote, on the CPU; None where there is nothing. Raises RunError if it is damaged."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise RunError(f"{path} cannot be read ({first_line(error)}); remove {folder} and train again") from None
    return state


def finite(value: float) -> float | None:
    """A figure as JSON takes it: what is not finite is None."""
    return value if math.isfinite(value) else None
