"""Runs that are stopped, killed, damaged or shared: they go on as if nothing had been, or say why not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training import ALGORITHMS, CPU, small, trained

from mirrordescent.lab import loop
from mirrordescent.lab.job import Job
from mirrordescent.lab.kept import audit_alone
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import BusyError, DamagedError, Record, RunError, held, read, read_all
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.signals import ending
from mirrordescent.lab.train import train

RECIPE = Run(algorithm="sgd", momentum=0.9, acceleration="nesterov", decay=1e-3, schedule="cosine")
OTHERS = [Run(lam=float("inf")), Run(lam=2, loss="elr"), Run(lam=2, loss="gce"), RECIPE]


def test_a_run_that_is_done_is_only_read(tmp_path: Path) -> None:
    first = trained(tmp_path, Run(epochs=2))
    before = (first.folder / "checkpoint.pt").stat().st_mtime_ns
    assert trained(tmp_path, Run(epochs=2)) == first
    assert (first.folder / "checkpoint.pt").stat().st_mtime_ns == before


@pytest.mark.parametrize("run", [*ALGORITHMS, *OTHERS], ids=lambda run: run.title)
def test_stopped_anywhere_it_ends_as_if_it_had_not_been(tmp_path: Path, run: Run) -> None:
    run = dataclasses.replace(run, corruption=0.3, epochs=4, batch_size=8, stop="never")
    whole = trained(tmp_path / "whole", run)
    left, draw = 0, random.Random(0)

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    for _ in range(40):
        left = draw.randrange(1, 9)
        record = trained(tmp_path / "parts", run, stop=stop)
        if record.status == "done":
            break
        assert record.status == "interrupted"
    assert record.rows == whole.rows
    assert record.histograms == whole.histograms


def test_images_with_crops_go_on_as_well(tmp_path: Path) -> None:
    run = Run(lam=2, epochs=2, batch_size=8, augment="crop-flip", start="near-zero")
    data = small(images=True)
    whole = trained(tmp_path / "whole", run, data)
    asked = iter(range(1000))
    trained(tmp_path / "parts", run, data, stop=lambda: next(asked) > 9)
    assert trained(tmp_path / "parts", run, data).rows == whole.rows
    assert whole.rows != trained(tmp_path / "plain", dataclasses.replace(run, augment="none"), data).rows


def test_killed_between_checkpoint_and_record_it_is_done(tmp_path: Path) -> None:
    record = trained(tmp_path, Run(epochs=2))
    held_record = json.loads((record.folder / "run.json").read_text())
    (record.folder / "run.json").write_text(json.dumps({**held_record, "status": "running", "histograms": {}}))
    (record.folder / "metrics.jsonl").write_text("")
    again = trained(tmp_path, Run(epochs=2))
    assert (again.rows, again.status, again.histograms) == (record.rows, "done", record.histograms)


SCRIPT = """
import sys
from pathlib import Path
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.train import train
train(Run(corruption=0.4, epochs={epochs}), Keeping(Path(sys.argv[1]), checkpoint_seconds={every}), Place("cpu", 1))
"""


def go(root: Path, epochs: int = 8, every: float = 0.0) -> subprocess.Popen[bytes]:
    script = SCRIPT.format(epochs=epochs, every=every)
    return subprocess.Popen([sys.executable, "-c", script, str(root)], stderr=subprocess.DEVNULL)


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """With SIGKILL, a checkpoint after every step."""
    run = Run(corruption=0.4, epochs=8)
    whole = train(run, Keeping(tmp_path / "whole"), CPU)
    draw = random.Random(1)
    for _ in range(3):
        process = go(tmp_path / "killed")
        folder = tmp_path / "killed" / whole.id
        while not (folder / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.5))
        process.kill()
        process.wait()
    record = train(run, Keeping(tmp_path / "killed", checkpoint_seconds=0), CPU)
    assert record.rows == whole.rows
    assert record.status == "done"
    assert read(folder) == record


def settled_id(epochs: int) -> str:
    return Run(corruption=0.4, epochs=epochs, model="mlp", augment="none").id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_checkpoint_and_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    process = go(tmp_path, epochs=100_000, every=1000)
    folder = tmp_path / settled_id(100_000)
    while not (folder / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    record = read(folder)
    assert record.status == "interrupted"
    assert (folder / "checkpoint.pt").exists()


def test_a_hang_up_that_nohup_has_silenced_stays_silent() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in ending()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert set(ending()) == {signal.SIGHUP, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, before)


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    run = settled(Run(epochs=1), small())
    with held(tmp_path / run.id), pytest.raises(RunError, match="being trained by another process"):
        trained(tmp_path, run)
    context = multiprocessing.get_context("spawn")
    waiting = context.Process(target=wait_and_train, args=(tmp_path, run))
    with held(tmp_path / run.id):
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
    waiting.join(60)
    assert waiting.exitcode == 0
    assert read(tmp_path / run.id).status == "done"


def test_waiting_ends_when_it_is_told_to(tmp_path: Path) -> None:
    run = settled(Run(epochs=1), small())
    asked = iter(range(10))
    heard: list[Progress] = []
    keeping = Keeping(tmp_path, wait=True)
    with held(tmp_path / run.id), pytest.raises(BusyError):
        train(run, keeping, CPU, data=small(), stop=lambda: next(asked) > 2, watch=heard.append)
    assert heard == [Progress.waits(run, tmp_path / run.id)]  # once


def test_whoever_has_a_run_may_leave_nothing_behind(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", contextlib.ExitStack()
    other.enter_context(held(folder))

    def leave() -> bool:
        other.close()
        assert not folder.exists()
        return False

    with held(folder, wait=True, stop=leave), pytest.raises(BusyError), held(folder):
        pass


def wait_and_train(root: Path, run: Run) -> None:
    train(run, Keeping(root, wait=True), CPU, data=small())


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    trained(tmp_path, Run(epochs=1))
    with pytest.raises(RunError, match="has changed since"):
        trained(tmp_path, Run(epochs=1), dataclasses.replace(small(), inputs=small().inputs + 1))


def test_damage_is_named(tmp_path: Path) -> None:
    asked = iter(range(1000))
    run = Run(epochs=3, batch_size=8)
    folder = trained(tmp_path, run, stop=lambda: next(asked) > 3).folder
    (folder / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"checkpoint\.pt cannot be read"):
        trained(tmp_path, run)
    (folder / "checkpoint.pt").unlink()
    (folder / "run.json").write_text("{")
    with pytest.raises(RunError, match=rf"run\.json cannot be read.*remove {folder} and train again"):
        trained(tmp_path, run)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", "{"),
        ("run.json", '{"run": {}, "data": []}'),
        ("metrics.jsonl", None),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "null\n"),
        ("metrics.jsonl", '{"epoch": 1'),
    ],
)
def test_a_damaged_record_is_refused_and_restored_from_its_checkpoint(
    tmp_path: Path, name: str, text: str | None
) -> None:
    record = trained(tmp_path, Run(epochs=2))
    path = record.folder / name
    whole = path.read_bytes()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(DamagedError, match=rf"{name} cannot be read: .* restores it from its checkpoint"):
        read(record.folder)
    heard: list[RunError] = []
    assert read_all(tmp_path, skip=heard.append) == []
    assert len(heard) == 1
    again = trained(tmp_path, Run(epochs=2))
    assert path.read_bytes() == whole
    assert (again.rows, again.status) == (record.rows, "done")


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 10**400},
        {"epochs": 3},
        {"epochs": -1},
        {"seconds": 10**400},
        {"seconds": float("nan")},
        {"histograms": {"weights": 3}},
        {"histograms": {"weights": {}}},
        {"histograms": {"weights": {"edges": [0, 1], "counts": ["1"]}}},
        {"histograms": {"weights": {"edges": [0, 1], "counts": [1, 2]}}},
        {"earlier": [1, "x"]},
        {"data": {"samples": "many"}},
        {"data": {"digest": ["x"]}},
        "[" * 100_000,
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_record_of_something_else_is_damaged(tmp_path: Path, change: dict[str, Any] | str) -> None:
    record = trained(tmp_path, Run(epochs=2))
    path = record.folder / "run.json"
    path.write_text(change if isinstance(change, str) else json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DamagedError, match=r"run\.json cannot be read: .* restores it from its checkpoint") as refused:
        read(record.folder)
    assert "\n" not in str(refused.value)
    assert trained(tmp_path, Run(epochs=2)).rows == record.rows


@pytest.mark.parametrize("line", ["[" * 100_000, '{"epoch": "1"}', '{"train_loss": [1]}', f'{{"epoch": {10**400}}}'])
def test_an_evaluation_of_something_else_is_damaged(tmp_path: Path, line: str) -> None:
    folder = trained(tmp_path, Run(epochs=2)).folder
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl cannot be read"):
        read(folder)


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    held_record = json.loads(path.read_text())
    change(held_record)
    path.write_text(json.dumps(held_record))


def stopped(tmp_path: Path, run: Run) -> Path:
    """The checkpoint of a run that was stopped in its second epoch."""
    asked = iter(range(1000))
    return trained(tmp_path, run, stop=lambda: next(asked) > 9).folder / "checkpoint.pt"


def test_a_checkpoint_with_a_changed_bit_is_refused(tmp_path: Path) -> None:
    run = Run(epochs=3, batch_size=8)
    path = stopped(tmp_path, run)
    weight = next(iter(torch.load(path, weights_only=True)["job"]["model"].values()))
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf"checkpoint\.pt cannot be read .*; remove {path.parent} and train again"):
        trained(tmp_path, run)


def test_a_checkpoint_need_not_be_a_zip(tmp_path: Path) -> None:
    run = Run(epochs=3, batch_size=8)
    path = stopped(tmp_path, run)
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    assert trained(tmp_path, run).rows == trained(tmp_path / "whole", run).rows


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 99},
        {"epoch": 3},  # all, but not done
        {"epoch": -1},
        {"epoch": "1"},
        {"step": 999},
        {"step": 1.5},
        {"seconds": "x"},
        {"seconds": float("inf")},
        {"rows": "[1]"},
        {"rows": "[" * 100_000},
        {"job": None},
        {"status": "done", "epoch": 1, "reason": 3},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_checkpoint_of_something_else_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    run = Run(epochs=3, batch_size=8)
    path = stopped(tmp_path, run)
    torch.save({**torch.load(path, weights_only=True), **change}, path)
    with pytest.raises(RunError, match=r"checkpoint\.pt does not fit this run .*; remove") as refused:
        trained(tmp_path, run)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("optimizer", [None, {"state": None, "param_groups": None}])
def test_an_optimizer_that_is_none_is_refused_by_training_and_by_audits(tmp_path: Path, optimizer: Any) -> None:
    run = Run(epochs=3, batch_size=8)
    path = stopped(tmp_path, run)
    state = torch.load(path, weights_only=True)
    state["job"]["optimizer"] = optimizer
    torch.save(state, path)
    with pytest.raises(RunError, match=r"checkpoint\.pt does not fit this run"):
        trained(tmp_path, run)
    with pytest.raises(RunError, match=r"checkpoint\.pt is damaged"):
        audit_alone(path.parent)


def test_a_tensor_is_no_checkpoint(tmp_path: Path) -> None:
    run = Run(epochs=3, batch_size=8)
    path = stopped(tmp_path, run)
    torch.save(torch.zeros(3), path)
    with pytest.raises(RunError, match=r"checkpoint\.pt cannot be read"):
        trained(tmp_path, run)


def test_no_memory_for_a_checkpoint_does_not_condemn_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(epochs=3, batch_size=8)
    stopped(tmp_path, run)

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")

    for owner, name in ((torch, "load"), (Job, "load_state_dict")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(RuntimeError, match="can't allocate memory"):
                trained(tmp_path, run)


def test_a_checkpoint_of_another_network_is_refused_in_one_line(tmp_path: Path) -> None:
    run = Run(epochs=1)
    folder = trained(tmp_path, run).folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    state["status"] = "running"
    state["job"]["model"]["other"] = state["job"]["model"].popitem()[1]
    torch.save(state, folder / "checkpoint.pt")
    kept = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**kept, "status": "interrupted"}))
    with pytest.raises(RunError, match=r"checkpoint\.pt does not fit this run .*; remove") as refused:
        trained(tmp_path, run)
    assert "\n" not in str(refused.value)


def test_a_run_of_an_older_version_goes_on_and_one_of_a_newer_is_left_alone(tmp_path: Path) -> None:
    run = Run(epochs=3, batch_size=8)
    asked = iter(range(1000))
    folder = trained(tmp_path, run, stop=lambda: next(asked) > 9).folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["run"]["precision"]  # a field that came later
    torch.save(state, folder / "checkpoint.pt")
    edited(folder / "run.json", lambda held_record: held_record["run"].pop("precision"))
    assert trained(tmp_path, run).rows == trained(tmp_path / "whole", run).rows
    edited(folder / "run.json", lambda held_record: held_record["run"].update(warmth=3))
    with pytest.raises(RunError, match="newer mirrordescent"):
        trained(tmp_path, run)


def test_a_changed_file_of_labels_is_noticed(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("0\n" * 60)
    run = Run(noise="file", noise_file=str(labels), epochs=1)
    assert trained(tmp_path, run).data["wrong"] == int((small().targets != 0).sum())
    labels.write_text("1\n" * 60)
    with pytest.raises(RunError, match="has changed since"):
        trained(tmp_path, run)


def test_a_run_that_is_refused_leaves_nothing_and_one_that_fails_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="needs every weight > 0"):
        trained(tmp_path, Run(potential="entropy", epochs=1))
    assert list(tmp_path.iterdir()) == []

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    with monkeypatch.context() as broken:
        broken.setattr("mirrordescent.lab.loop.evaluate", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            trained(tmp_path, Run(epochs=2))
    [folder] = tmp_path.iterdir()
    assert (read(folder).status, read(folder).reason) == ("failed", "the disk is gone")
    assert trained(tmp_path, Run(epochs=2)).status == "done"


def test_ctrl_c_in_the_last_evaluation_is_not_forgotten(tmp_path: Path) -> None:
    def press(event: Progress) -> None:
        if event.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, Run(epochs=2), watch=press)
    [folder] = tmp_path.iterdir()
    assert read(folder).status == "done"


@pytest.mark.parametrize("error", [SystemExit(1), BrokenPipeError("the terminal is gone")], ids=repr)
@pytest.mark.parametrize("epoch", [1, 3])
def test_whoever_leaves_while_watching_leaves_a_checkpoint(tmp_path: Path, epoch: int, error: BaseException) -> None:
    """As rich does where nobody reads what it shows any more; after the last epoch there is nothing left to save."""
    run = Run(epochs=3, batch_size=8)

    def leave(event: Progress) -> None:
        if event.epoch == epoch:
            raise error

    with pytest.raises(type(error)):
        train(run, Keeping(tmp_path, checkpoint_seconds=1000), CPU, data=small(), watch=leave)
    [folder] = tmp_path.iterdir()
    assert (read(folder).status, read(folder).epochs) == ("interrupted" if epoch < 3 else "done", epoch)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["epoch"] == epoch
    assert trained(tmp_path, run).rows == trained(tmp_path / "whole", run).rows


def test_what_a_killed_write_left_is_cleared(tmp_path: Path) -> None:
    folder = trained(tmp_path, Run(epochs=1)).folder
    dead, living = (folder / f".audit.html.{pid}.part" for pid in (2**31 - 1, os.getppid()))
    for part in (dead, living):
        part.write_bytes(b"half")
    trained(tmp_path, Run(epochs=1))
    assert not dead.exists()
    assert living.exists() == (os.name == "posix")  # somebody is writing it


def test_the_seconds_are_those_of_all_goes(tmp_path: Path) -> None:
    asked, run = iter(range(1000)), Run(epochs=3, batch_size=8)
    first = trained(tmp_path, run, stop=lambda: next(asked) > 6).seconds
    assert trained(tmp_path, run).seconds > first > 0


def test_a_record_keeps_what_earlier_goes_were_computed_with(tmp_path: Path) -> None:
    run = Run(epochs=2, batch_size=8)
    for threads, asked in ((1, iter([False, True])), (1, iter([False, True])), (2, iter([False] * 100))):
        record = train(run, Keeping(tmp_path), Place("cpu", threads), data=small(), stop=lambda: next(asked))  # noqa: B023  # called at once
    assert (record.status, record.environment["threads"]) == ("done", 2)
    assert [environment["threads"] for environment in read(record.folder).earlier] == [1]  # one of those that are alike


def test_checkpoints_are_rarer_where_they_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, run = [0.0], settled(Run(epochs=2), small())
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(seconds: float) -> None:
        now[0] += seconds

    under_way = loop.Loop(Job(run, small(), CPU), Record(tmp_path / run.id, run), Keeping(tmp_path))
    for cost, pause in ((0.1, 10), (2.0, 40)):  # the 10 s of the settings, or 20 times what it costs
        monkeypatch.setattr(loop, "save_checkpoint", lambda *_, cost=cost: takes(cost))
        under_way.save()
        takes(pause - 0.5)
        assert not under_way.checkpoint.due()
        takes(0.6)
        assert under_way.checkpoint.due()


def test_a_damaged_record_is_told_unless_it_may_be_skipped(tmp_path: Path) -> None:
    for seed in range(3):
        trained(tmp_path, Run(epochs=1, seed=seed))
    assert [record.run.seed for record in read_all(tmp_path)] == [0, 1, 2]
    next(tmp_path.glob("*/run.json")).write_text("{")
    with pytest.raises(DamagedError):
        read_all(tmp_path)
