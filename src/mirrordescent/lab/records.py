"""Records of runs: a folder per run, readable for people and programs, in which no file is ever half written."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock
import torch

from mirrordescent.lab.files import remove_parts, write_text, written
from mirrordescent.lab.memory import ran_out
from mirrordescent.lab.names import first_line
from mirrordescent.lab.runs import Run

COURSE = "course.json"  # the record of tasks that are learnt one after the other, in the folder of their runs
AUDITS = "audits"  # folder, among the runs' own, for audits' runs, which train on all samples, with none set aside
FORMAT = 1
Row = dict[str, float | int | None]  # one evaluation; None where a figure does not apply


class RunError(RuntimeError):
    """A run that cannot begin or continue: another process has it, or its folder does not fit; the message says why."""


class BusyError(RunError):
    """A run that another process is training."""


class DamagedError(RunError):
    """A record that cannot be read; a checkpoint beside it, if there is one, holds everything that it said."""


@dataclass
class Record:
    """What is known about a run.

    status: "running" (or killed), "interrupted", "done", or "failed"; reason: why it ended.
    data: what the data were: name, digest, samples, test_samples, shape, classes, wrong (labels changed).
    rows: one per evaluation, with the keys of `evaluation.COLUMNS`. Accuracies are fractions.
    histograms: "weights", "z_right" and "z_wrong", each with "edges" and "counts"; empty before the end.
    seconds: of training, however often it was interrupted. environment: what the run was last computed with; earlier:
        what it was computed with before that, where that is different.
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
        """The run's id."""
        return self.run.id

    @property
    def final(self) -> Row:
        """The last evaluation; empty before the first."""
        return self.rows[-1] if self.rows else {}

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows before the last, as a dictionary for JSON."""
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
        """Write metrics.jsonl, then run.json: a reader never sees a run that is done without its metrics."""
        lines = [json.dumps(row, allow_nan=False) for row in self.rows]
        write_text(self.folder / "metrics.jsonl", "".join(line + "\n" for line in lines))
        write_text(self.folder / "run.json", json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def read(folder: Path) -> Record:
    """The record in a folder. Raises RunError where there is none, DamagedError, naming the file, if it is damaged."""
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
                setattr(record, item.name, like(getattr(record, item.name), held[item.name], item.name))
        _check(record)
    with _whole(metrics):
        lines = metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []
        record.rows = rows_of([json.loads(line) for line in lines])
        if record.status == "done" and held.get("final") and held["final"] not in record.rows:
            raise ValueError("the run's last evaluation is not there")
    return record


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn an error in the block into a DamagedError that names this file and a remedy."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        again = f"remove {path.parent} and train again"
        if (path.parent / "checkpoint.pt").exists():
            again = "training the run again restores it from its checkpoint"
        raise DamagedError(f"{path} cannot be read: {error}; {again}") from None


def like(default: Any, value: Any, name: str) -> Any:
    """The value, if it is of the type of a field's default, and a finite one where that is a float; else TypeError."""
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or (isinstance(default, float) and not math.isfinite(value)):
        raise TypeError(f"{name} is {value!r:.40}")
    return value


def rows_of(values: Any) -> list[Row]:
    """Evaluations from JSON. Raises TypeError, or OverflowError, where one of them is something else."""
    for row in like([], values, "the list of evaluations"):
        for name, value in like({}, row, "an evaluation").items():
            if value is not None:
                like(0.0, value, name)
    rows: list[Row] = values
    return rows


def _check(record: Record) -> None:
    """Raises TypeError, ValueError or OverflowError where what is inside a record's fields is not what it should be."""
    if not 0 <= record.epochs <= record.run.epochs:
        raise ValueError(f"epochs is {record.epochs}, of {record.run.epochs}")
    for name, default in {"samples": 0, "test_samples": 0, "classes": 0, "wrong": 0, "digest": ""}.items():
        if record.data.get(name) is not None:
            like(default, record.data[name], name)
    for earlier in record.earlier:
        like({}, earlier, "earlier")
    for name, histogram in record.histograms.items():
        edges, counts = ([like(0.0, value, name) for value in histogram[part]] for part in ("edges", "counts"))
        if counts and len(edges) != len(counts) + 1:
            raise ValueError(f"{name} has {len(edges)} edges for {len(counts)} counts")


def read_all(root: Path, skip: Callable[[DamagedError], None] | None = None) -> list[Record]:
    """The records under a folder, which may also be a run's own, in a fixed order. Raises RunError if there are none.

    What is inside a run's folder, such as an audit's check, belongs to that run and is not listed; what is inside a
    course's belongs to the course. Nor are audits listed, unless the folder is theirs: they train on what other runs
    are judged by.
    Links to folders are not followed, as they may lead in a circle; `root` itself may be one, and a run's folder.
    skip: is called with the error of each damaged record, which is left out; without it, the first one is raised.
    """
    if not root.is_dir():
        raise RunError(f"{root} is not a folder; `rmd train`, `sweep` and `reproduce` write their runs under runs/")
    found = list(_run_folders(root))
    if not found and any(root.rglob(COURSE)):
        raise RunError(
            f"{root} holds tasks of `rmd continual`, which `rmd continual --report-only --root {root}` shows"
        )
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
        followed = not path.is_symlink() or (path / "run.json").exists()
        if path.is_dir() and followed and path.name != AUDITS and not (path / COURSE).exists():
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
    """Lock a run's folder for the block; the operating system unlocks it when the process ends, however it ends.

    wait: wait for the process that has it, until `stop()`; `tell` is called once when that begins.
    Raises BusyError where another process has it and there is nothing to wait for.
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
        _remove_if_empty(folder)  # before another process can lock it
        lock.release()


def _acquired(lock: filelock.BaseFileLock, folder: Path) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except FileNotFoundError:  # the process that had it has just removed the empty folder
        if folder.parent.is_dir():
            return False
        raise
    return True


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder with nothing but its lock, so that a run that is refused before it begins leaves nothing."""
    with contextlib.suppress(OSError):  # it may be gone, or somebody waits for it
        if [path.name for path in folder.iterdir()] == ["lock"]:
            (folder / "lock").unlink()
            folder.rmdir()


def save_checkpoint(folder: Path, state: Mapping[str, Any]) -> None:
    """Write checkpoint.pt, whole or not at all."""
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
        _check_sums(path)
        state: dict[str, Any] = like({}, torch.load(path, map_location="cpu", weights_only=True), "it")
    except Exception as error:  # torch raises many kinds for a damaged file
        if ran_out(error):
            raise
        raise RunError(f"{path} cannot be read ({first_line(error)}); remove {folder} and train again") from None
    return state


def _check_sums(path: Path) -> None:
    """Raise ValueError where a checkpoint's tensors are not what was written; torch does not compare the sums."""
    if zipfile.is_zipfile(path):  # for anything else torch has an error of its own, or another format
        with zipfile.ZipFile(path) as file:
            if (member := file.testzip()) is not None:
                raise ValueError(f"{member} does not match its checksum")


def finite(value: float) -> float | None:
    """A figure for JSON, in which what is not finite is None."""
    return value if math.isfinite(value) else None
