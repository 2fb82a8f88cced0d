"""The engine's turns on a CPU, with a job in its captured step's place: each run is what it is alone, to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import signal
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from mirrordescent.lab import engine as module
from mirrordescent.lab import loop
from mirrordescent.lab.data import Data
from mirrordescent.lab.engine import all_trained, engine, side_by_side
from mirrordescent.lab.evaluation import evaluate
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping, Listener, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record, Row, held, read
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.sweep import Finished, Work, sweep
from mirrordescent.lab.train import train

CPU = Place("cpu", threads=1)


def things(n: int = 64) -> Data:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n + 16, 5, generator=generator), torch.randint(3, (n + 16,), generator=generator)
    return Data("things", x[:n], y[:n], x[n:], y[n:], 3)


RUNS = [
    settled(dataclasses.replace(run, batch_size=16, corruption=0.3, stop="never"), things())
    for run in (
        Run(lam=2, epochs=3),
        Run(lam=2, reduction="batch", potential="2 * l2", momentum=0.5, epochs=2),
        Run(algorithm="sgd", epochs=4, schedule="cosine"),
        Run(algorithm="weight-decay", lam=0.1, epochs=1),
        Run(lam=4, loss="elr", epochs=3, seed=1),
    )
]


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_gpu", lambda _: None)
    monkeypatch.setattr(module, "Captured", lambda job, **_: job)
    monkeypatch.setattr("mirrordescent.lab.sweep.load", lambda *_: things())


def alone(root: Path, runs: list[Run] = RUNS) -> dict[str, Any]:
    return {run.id: train(run, Keeping(root / "alone"), CPU, data=things()).rows for run in runs}


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_every_run_is_what_it_is_alone(tmp_path: Path, at_once: int) -> None:
    """Of different length and algorithm, whatever else is under way."""
    heard: list[Progress | Finished] = []
    records, rest = engine(RUNS, Keeping(tmp_path), CPU, at_once=at_once, watch=heard.append)
    assert not rest
    assert {record.id: record.rows for record in records} == alone(tmp_path)
    assert sorted(event.run.id for event in heard if isinstance(event, Finished)) == sorted(run.id for run in RUNS)
    together = {event.run.id for event in heard[:20] if isinstance(event, Progress)}
    assert len(together) >= min(at_once, 3)
    heard.clear()
    assert engine(RUNS, Keeping(tmp_path), CPU, at_once=at_once, watch=heard.append) == (records, [])
    assert not any(isinstance(event, Progress) for event in heard)  # nothing is trained twice


@pytest.mark.parametrize("after", [1, 3, 7])
def test_stopped_anywhere_it_goes_on_where_it_was(tmp_path: Path, after: int) -> None:
    keeping, count = Keeping(tmp_path), 0

    def stop(event: Progress | Finished) -> None:
        nonlocal count
        count += isinstance(event, Progress)
        if count == after:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        engine(RUNS, keeping, CPU, at_once=2, watch=stop)
    _, rest = engine(RUNS, keeping, CPU, at_once=2, minutes=0)
    assert rest
    assert {end.status for end in rest} <= {"waiting", "interrupted"}
    records, rest = engine(RUNS, keeping, CPU, at_once=3)
    assert not rest
    assert {record.id: record.rows for record in records} == alone(tmp_path)


def test_one_run_on_several_data_sets(tmp_path: Path) -> None:
    sets = [things(n) for n in (64, 48, 32)]
    works = [Work(RUNS[0], data, tmp_path / str(len(data))) for data in sets]
    assert [end.status for end in side_by_side(works, Keeping(), CPU, at_once=2)] == ["done"] * 3
    assert not any(data._places for data in sets)  # nothing is left on the device
    for work in works:
        apart = train(work.run, Keeping(tmp_path / "apart" / work.root.name), CPU, data=work.data)
        assert read(work.root / work.run.id).rows == apart.rows
    assert [record.rows for record in all_trained(works, Keeping(), CPU)] == [
        read(work.root / work.run.id).rows for work in works
    ]


def test_data_stay_on_the_device_as_long_as_a_run_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, left = things(), []
    monkeypatch.setattr(Data, "leave", lambda self, _: left.append(len(read_all_done(tmp_path))))
    side_by_side([Work(run, data, tmp_path) for run in RUNS], Keeping(), CPU, at_once=2)
    assert left == [len(RUNS)]


def read_all_done(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if read(path).status == "done"]


def test_writing_takes_no_more_of_the_time_for_many_runs_than_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only steps and checkpoints move on: while one run writes, all of them stand still."""
    now = written = 0.0

    class Slow(Job):
        def step(self) -> None:
            nonlocal now
            now += 1 / 4
            super().step()

    def write(*_: Any) -> None:
        nonlocal now, written
        now, written = now + 1, written + 1

    monkeypatch.setattr(module, "Job", Slow)
    monkeypatch.setattr(loop, "save_checkpoint", write)
    monkeypatch.setattr("time.monotonic", lambda: now)
    runs = [dataclasses.replace(RUNS[0], epochs=100, every=100, seed=seed) for seed in range(4)]
    side_by_side([Work(run, things(), tmp_path) for run in runs], Keeping(checkpoint_seconds=0), CPU, at_once=4)
    spaced = written - 2 * len(runs)  # all but each run's first and last
    assert len(runs) < spaced <= now / loop.COSTLY


@pytest.mark.parametrize("where", ["start", "step", "evaluation"])
def test_a_run_that_fails_says_so_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    broken = RUNS[1]

    class Breaking(Job):
        """Breaks in the second of the runs."""

        def __init__(self, run: Run, *more: Any) -> None:
            if where == "start" and run == broken:
                raise RuntimeError("it is full")
            super().__init__(run, *more)

        def step(self) -> None:
            if where == "step" and self.run == broken and self.next == 2:
                raise RuntimeError("it is full")
            super().step()

        def wait(self) -> None:
            if where == "evaluation" and self.run == broken:
                raise RuntimeError("it is full")

    monkeypatch.setattr(module, "Job", Breaking)
    records, rest = engine(RUNS, Keeping(tmp_path, checkpoint_seconds=1e6), CPU, at_once=3)
    assert rest == [Finished(broken, "failed", "it is full")]
    others = [run for run in RUNS if run != broken]
    assert {record.id: record.rows for record in records} == alone(tmp_path, others)
    if where != "start":
        record = read(tmp_path / broken.id)
        assert (record.status, record.reason) == ("failed", "it is full")
    monkeypatch.setattr(module, "Job", Job)
    again, rest = engine(RUNS, Keeping(tmp_path), CPU, at_once=3)
    assert not rest
    assert len(again) == len(RUNS)


@pytest.mark.parametrize("told", ["it is full", "CUDA out of memory"])  # it fails, it is put off
def test_what_a_run_has_launched_is_done_before_its_memory_is_anothers(
    told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it is in vain: after some errors of CUDA every call fails."""
    happened: list[str] = []

    class Launched(Job):
        broken = False

        def step(self) -> None:
            if self.run == RUNS[1] and self.next == 2:
                self.broken = True
                happened.append("breaks")
                raise RuntimeError(told)
            super().step()

        def wait(self) -> None:
            if self.broken:
                happened.append("waits")
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def leave(data: Data, _: torch.device) -> None:
        if len(data) == 48:
            happened.append("leaves")

    monkeypatch.setattr(module, "Job", Launched)
    monkeypatch.setattr(Data, "leave", leave)
    works = [Work(run, data, tmp_path) for run, data in zip(RUNS[:2], (things(), things(48)), strict=True)]
    side_by_side(works, Keeping(checkpoint_seconds=1e6), CPU, at_once=2)
    assert happened[:3] == ["breaks", "waits", "leaves"]
    assert read(tmp_path / RUNS[1].id).reason == told


def test_a_person_hears_of_one_run_at_a_time(tmp_path: Path) -> None:
    works = [Work(RUNS[0], things(n), tmp_path / str(n)) for n in (32, 64)]
    heard: list[Progress] = []
    side_by_side(works, Keeping(), CPU, at_once=2, watch=module._of_one(heard.append))
    folders = [event.folder.parent.name for event in heard]
    assert folders == sorted(folders)  # of the next when the first is through
    assert folders[0] == "32"


def test_of_a_run_that_ends_early_a_person_hears_the_end(tmp_path: Path) -> None:
    heard: list[Progress] = []
    hear = module._of_one(heard.append)
    first, second = (Progress(RUNS[0], 1, 0, 4, {}, tmp_path / name) for name in "ab")
    for event in (first, second, Finished(RUNS[1], "done"), second, Finished(RUNS[0], "done"), second):
        hear(event)
    assert heard == [first, second]


def test_a_folder_in_use_is_waited_for_while_others_train(tmp_path: Path) -> None:
    heard: list[str] = []
    waits: list[Path] = []
    with contextlib.ExitStack() as other:
        other.enter_context(held(tmp_path / RUNS[0].id))

        def watch(event: Progress | Finished) -> None:
            if isinstance(event, Progress) and event.waiting:
                waits.append(event.folder)
            if isinstance(event, Finished):
                heard.append(event.run.id)
                with held(tmp_path / event.run.id):  # it is free as soon as it is done
                    pass
                other.close()

        records, rest = engine(RUNS[:3], Keeping(tmp_path, wait=True), CPU, at_once=1, watch=watch)
    assert not rest
    assert len(records) == 3
    assert heard[-1] == RUNS[0].id
    assert waits == [tmp_path / RUNS[0].id]  # told once


@pytest.mark.parametrize("wrong", [{"at_once": 0}, {"at_once": -1}, {"minutes": -1.0}, {"minutes": float("nan")}])
def test_numbers_that_make_no_sense(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be >= "):
        engine(RUNS[:1], Keeping(tmp_path), CPU, **wrong)


@pytest.mark.parametrize("wait", [False, True])
def test_a_folder_that_cannot_be_is_one_failure(tmp_path: Path, wait: bool) -> None:
    (tmp_path / RUNS[2].id).write_text("in its place")
    records, [end] = engine(RUNS[:4], Keeping(tmp_path, wait=wait), CPU, at_once=2)
    assert (end.run, end.status) == (RUNS[2], "failed")
    assert "File exists" in end.error
    assert {record.id: record.rows for record in records} == alone(tmp_path, [*RUNS[:2], RUNS[3]])


def test_an_error_of_the_engine_itself_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = iter([1, 2, 2])  # and then there is an error
    runs = [dataclasses.replace(RUNS[0], epochs=9, seed=seed) for seed in range(3)]
    with monkeypatch.context() as broken:
        broken.setattr(module._Side, "_room", lambda _: next(rooms))
        with pytest.raises(StopIteration):
            engine(runs, Keeping(tmp_path, checkpoint_seconds=1e6), CPU)
    held = [read(tmp_path / run.id) for run in runs[:2]]
    assert [(record.status, record.epochs) for record in held] == 2 * [("interrupted", 1)]
    records, _ = engine(runs, Keeping(tmp_path), CPU, at_once=2)
    assert {record.id: record.rows for record in records} == alone(tmp_path, runs)


def test_an_error_of_the_engine_itself_says_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its runs cannot be saved any more, which is an error of their own."""

    def room(side: module._Side) -> int:
        return 1 // (1 - len(side.active))

    def save(_: Path, state: dict[str, Any]) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(module._Side, "_room", room)
    monkeypatch.setattr(loop, "save_checkpoint", save)
    with pytest.raises(ZeroDivisionError) as raised:
        engine(RUNS[:2], Keeping(tmp_path, checkpoint_seconds=1e6), CPU)
    assert raised.traceback[-1].name == "room"
    assert read(tmp_path / RUNS[0].id).reason == "No space left on device"


@pytest.mark.parametrize("where", ["evaluate", "step"])
def test_a_second_ctrl_c_leaves_the_last_checkpoints(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come anywhere, also where what a run has is not what a checkpoint may hold."""
    runs = [dataclasses.replace(RUNS[0], epochs=3, seed=seed) for seed in range(2)]
    owner, name = (loop, "evaluate") if where == "evaluate" else (Job, "step")
    real, calls = getattr(owner, name), iter(range(1000))

    def impatient(*values: Any, **named: Any) -> Any:
        result = real(*values, **named)
        if next(calls) == 4:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as cut:
        cut.setattr(owner, name, impatient)
        with pytest.raises(KeyboardInterrupt):
            engine(runs, Keeping(tmp_path, checkpoint_seconds=0), CPU, at_once=2)
    records, rest = engine(runs, Keeping(tmp_path), CPU, at_once=2)
    assert not rest
    assert {record.id: record.rows for record in records} == alone(tmp_path, runs)


class OutOfMemory(Job):
    """As where the memory holds two runs: a third one's first use of it, or its evaluation, finds none."""

    alive: ClassVar[weakref.WeakSet[Job]] = weakref.WeakSet()
    where, most = "start", 2

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        OutOfMemory.alive.add(self)
        if self.where == "start":
            self.take()

    def wait(self) -> None:
        if self.where == "evaluation" and self.next == self.steps:
            self.take()

    def take(self) -> None:
        if len(OutOfMemory.alive) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("where", ["start", "evaluation"])
def test_a_run_for_which_there_is_no_memory_beside_others_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whatever was asked for, or expected; and none of what it has done is lost."""
    monkeypatch.setattr(OutOfMemory, "where", where)
    monkeypatch.setattr(module, "Job", OutOfMemory)
    records, rest = engine(RUNS, Keeping(tmp_path, checkpoint_seconds=0), CPU, at_once=4)
    assert not rest
    assert {record.id: record.rows for record in records} == alone(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        "CUDA error: operation failed due to a previous error during capture",
        "GET was unable to find an engine to execute this computation",
    ],
)
def test_a_run_that_waits_for_memory_is_told_and_is_not_over(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who follows it hears of the others in the meantime, and in its record it is cut off."""
    first = dataclasses.replace(RUNS[2], seed=7)

    class Full(Job):
        def step(self) -> None:
            if self.run == first and self.next == 2:
                raise RuntimeError(error)
            super().step()

    heard: list[tuple[int, str]] = []

    def hear(event: Progress | Finished) -> None:
        heard.append((event.run.seed, event.status if isinstance(event, Finished) else "goes on"))

    monkeypatch.setattr(module, "Job", Full)
    over = iter([False] * 20 + [True] * 20)
    side = module._Side(Keeping(tmp_path), CPU, Listener(hear), contextlib.ExitStack(), compile_forward=False)
    with side.locks:
        works = [Work(run, things(), tmp_path) for run in (first, dataclasses.replace(first, seed=8, epochs=50))]
        side.go(works, 2, lambda: next(over))
    assert [(end.run.seed, end.status) for end in side.ended] == [(8, "interrupted"), (7, "interrupted")]
    assert heard[0] == (7, "interrupted")
    assert read(tmp_path / first.id).status == "interrupted"


@pytest.mark.parametrize("where", ["start", "evaluation"])
def test_data_of_runs_that_wait_for_memory_take_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Only those that an active run has stay on the device: beside others there may be no memory for it either."""
    sets = [things(n) for n in (64, 48, 32)]
    beside: list[list[bool]] = []

    class Observed(OutOfMemory):
        def step(self) -> None:
            super().step()
            if len(OutOfMemory.alive) == 1 and self.run.epochs == 4:  # the only one that goes on, and the longest
                beside.append([bool(data._places) for data in sets])

    monkeypatch.setattr(OutOfMemory, "where", where)
    monkeypatch.setattr(OutOfMemory, "most", 1)
    monkeypatch.setattr(module, "Job", Observed)
    works = [Work(run, data, tmp_path) for run, data in zip([RUNS[2], RUNS[0], RUNS[3]], sets, strict=True)]
    ended = side_by_side(works, Keeping(checkpoint_seconds=0), CPU, at_once=3)
    assert [end.status for end in ended] == ["done"] * 3
    assert beside
    assert all(places == [True, False, False] for places in beside)


def test_a_run_for_which_there_is_never_memory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutOfMemory, "most", 0)
    monkeypatch.setattr(module, "Job", OutOfMemory)
    data = things()
    ended = side_by_side([Work(run, data, tmp_path) for run in RUNS], Keeping(), CPU, at_once=4)
    assert [(end.status, end.error) for end in ended] == [("failed", "CUDA out of memory")] * len(RUNS)
    assert not data._places


def test_data_leave_the_device_whatever_happens(tmp_path: Path) -> None:
    data, [run] = things(), RUNS[:1]
    runs = [dataclasses.replace(run, seed=seed) for seed in range(3)]
    side_by_side([Work(runs[1], data, tmp_path)], Keeping(), CPU)
    side_by_side([Work(run, data, tmp_path) for run in runs[:2]], Keeping(), CPU, at_once=1)  # the second is done
    assert not data._places

    def listener(event: Progress | Finished) -> None:
        raise BrokenPipeError("the reader is gone")

    with pytest.raises(BrokenPipeError):
        side_by_side([Work(run, data, tmp_path / "more") for run in runs], Keeping(), CPU, at_once=1, watch=listener)
    assert not data._places


@pytest.mark.parametrize("way", ["side by side", "alone", "sweep"])
def test_a_listener_that_fails_leaves_no_run_in_memory(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its error has been seen to, and without a search for circles."""

    class Known(Job):
        alive: ClassVar[weakref.WeakSet[Job]] = weakref.WeakSet()

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            Known.alive.add(self)

    def listener(event: Progress | Finished) -> None:
        assert Known.alive
        raise BrokenPipeError("the reader is gone")

    monkeypatch.setattr(module, "Job", Known)
    monkeypatch.setattr("mirrordescent.lab.sweep.train", functools.partial(train, make=Known))
    alone(tmp_path, RUNS[:1])  # what PyTorch loads with a first step keeps frames of its own
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(BrokenPipeError):
            if way == "side by side":
                engine(RUNS, Keeping(tmp_path), CPU, at_once=2, watch=listener)
            elif way == "alone":
                train(RUNS[0], Keeping(tmp_path), CPU, data=things(), watch=listener, make=Known)
            else:
                sweep(RUNS, Keeping(tmp_path), CPU, jobs=1, watch=listener)
        assert not Known.alive
    finally:
        gc.enable()


def test_a_full_disk_under_tensorboard_costs_no_run_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, record: Record) -> None:
            self.broken = record.run == RUNS[0]

        def add(self, row: Row) -> None:
            if self.broken and row["epoch"] == 2:
                self.close()

        def close(self) -> None:
            if self.broken:
                raise OSError("No space left on device")

    def stop(event: Progress | Finished) -> None:
        if isinstance(event, Progress) and event.epoch == until:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "Board", Full)
    runs, keeping = [RUNS[0], RUNS[4]], Keeping(tmp_path, tensorboard=True, checkpoint_seconds=1e6)
    for until in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            engine(runs, keeping, CPU, at_once=2, watch=stop)
        statuses = [read(tmp_path / run.id).status for run in runs]
        assert statuses == (["interrupted"] * 2 if until == 1 else ["failed", "interrupted"])
    records, _ = engine(runs, dataclasses.replace(keeping, tensorboard=False), CPU, at_once=2)
    assert {record.id: record.rows for record in records} == alone(tmp_path, runs)


def test_a_stop_at_the_end_of_an_epoch_comes_before_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[int] = []
    taken = 0

    def counted(job: Job, epoch: int) -> Any:
        evaluated.append(epoch)
        return evaluate(job, epoch)

    class Counted(Job):
        def step(self) -> None:
            nonlocal taken
            super().step()
            taken += 1
            if taken == 2 * self.steps:  # the last step of the epoch, of two runs
                signal.raise_signal(signal.SIGTERM)

    runs = [RUNS[0], RUNS[4]]
    with monkeypatch.context() as counting:
        counting.setattr(loop, "evaluate", counted)
        counting.setattr(module, "Job", Counted)
        with pytest.raises(KeyboardInterrupt):
            engine(runs, Keeping(tmp_path), CPU, at_once=2)
    assert not evaluated
    records, _ = engine(runs, Keeping(tmp_path), CPU, at_once=2)
    assert {record.id: record.rows for record in records} == alone(tmp_path, runs)


def test_a_folder_in_use_is_one_failure(tmp_path: Path) -> None:
    with held(tmp_path / RUNS[0].id, wait=False):
        records, [end] = engine(RUNS[:2], Keeping(tmp_path), CPU, at_once=2)
    assert [record.id for record in records] == [RUNS[1].id]
    assert (end.run, end.status) == (RUNS[0], "failed")
    assert "process" in end.error
