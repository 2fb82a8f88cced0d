"""Sweeps: the grid has every combination once, and several at once are the same as one by one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mirrordescent.lab import sweep as module
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import held, read, read_all
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished, grid, parse_axes, parse_axis, sweep
from mirrordescent.lab.train import train

CPU = Place("cpu", threads=1)


def test_what_no_algorithm_of_the_sweep_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^lam does nothing in sgd"):
        grid({"algorithm": "sgd", "lam": 3.0}, {"seed": [0]})
    assert len(grid({"lam": 3.0}, {"algorithm": ["sgd", "rmd"]})) == 2


def test_a_grid_over_labels_from_a_file() -> None:
    runs = grid({"noise": "file", "noise_file": "a.txt"}, {"lam": [1, 2]})
    assert [(run.noise, run.noise_file, run.lam) for run in runs] == [("file", "a.txt", 1.0), ("file", "a.txt", 2.0)]


def test_a_grid_has_every_combination_once() -> None:
    axes: dict[str, list[Any]] = {
        "algorithm": ["sgd", "smd", "weight-decay", "rmd"],
        "lam": [1, 2],
        "reduction": ["sample", "batch"],
        "potential": ["l2", "q=3"],
        "seed": [0, 1],
    }
    runs = grid({"epochs": 5}, axes)
    found = [(run.algorithm, run.lam, run.reduction, run.potential, run.seed) for run in runs]
    wanted = [
        *[("sgd", None, "sample", "l2", seed) for seed in (0, 1)],
        *[("weight-decay", lam, "sample", "l2", seed) for lam in (1, 2) for seed in (0, 1)],
        *[("smd", None, "sample", potential, seed) for potential in ("l2", "q=3") for seed in (0, 1)],
        *[
            ("rmd", lam, reduction, potential, seed)
            for reduction in ("batch", "sample")
            for potential in ("l2", "q=3")
            for lam in (1, 2)
            for seed in (0, 1)
        ],
    ]
    assert found == wanted
    assert len({run.id for run in runs}) == len(runs)


def test_axes_are_read_as_typed() -> None:
    assert parse_axis("batch-size=16, 32") == ("batch_size", ["16", "32"])
    with pytest.raises(ValueError, match="the grid has lam twice"):
        parse_axes(["lam=1", "lam=2"])
    for text in ("lam", "=1", "lam=", "lam=,"):
        with pytest.raises(ValueError, match="a grid is NAME=VALUE"):
            parse_axis(text)
    with pytest.raises(ValueError, match="the grid's lam does nothing in sgd, smd"):
        grid({}, {"algorithm": ["sgd", "smd"], "lam": [1, 2]})
    for axes in ({"noise": ["pair"]}, {"noise": ["pair"], "corruption": ["0", "0.00"]}):
        with pytest.raises(ValueError, match="the grid's noise does nothing in runs without corruption"):
            grid({}, axes)
    with pytest.raises(ValueError, match=r"lam is in the grid, and also given as 3\.0: give one of the two"):
        grid({"lam": 3.0}, {"lam": [1, 2]})
    with pytest.raises(ValueError, match="algorithm must be one of"):
        grid({"algorithm": "adam", "lam": 1.0}, {})
    runs = grid({}, {"noise": ["pair"], "corruption": ["0.00", "0.4"]})
    assert [(run.noise, run.corruption) for run in runs] == [("uniform", 0.0), ("pair", 0.4)]
    with pytest.raises(ValueError, match=r"unknown setting 'lamb' \(did you mean 'lam'\?\)"):
        grid({}, {"lamb": [1]})


def test_several_at_once_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    runs = grid({"corruption": 0.4, "epochs": 3}, {"algorithm": ["sgd", "rmd"], "lam": [1, 2], "seed": [0, 1]})
    heard: list[Progress | Finished] = []
    apart, failed = sweep(runs, Keeping(tmp_path / "apart"), CPU, jobs=1)
    assert not failed
    together, failed = sweep(runs, Keeping(tmp_path / "together"), CPU, jobs=2, watch=heard.append)
    assert not failed
    assert [record.rows for record in apart] == [record.rows for record in together]
    assert len([event for event in heard if isinstance(event, Finished)]) == len(runs) == 6
    again: list[Progress | Finished] = []
    records, _ = sweep(runs, Keeping(tmp_path / "together"), CPU, watch=again.append)
    assert records == together
    assert all(isinstance(event, Finished) for event in again)  # nothing was trained


class Clock:
    """A time that stands still until the first epoch of a run is told, and is far ahead then."""

    def __init__(self) -> None:
        self.now, self.heard = 0.0, list[Progress | Finished]()

    def monotonic(self) -> float:
        return self.now

    def hear(self, event: Progress | Finished) -> None:
        self.heard.append(event)
        if isinstance(event, Progress) and event.epoch >= 1:
            self.now = 1e6


@pytest.mark.parametrize("jobs", [1, 2])
def test_when_its_minutes_are_over_a_sweep_stops_and_goes_on_later(
    tmp_path: Path, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = grid({"corruption": 0.4, "epochs": 20, "every": 5}, {"lam": [1, 2, 4]})
    keeping, clock = Keeping(tmp_path / "parts"), Clock()
    with monkeypatch.context() as patched:
        patched.setattr(module, "time", clock)
        done, rest = sweep(runs, keeping, CPU, jobs=jobs, minutes=1, watch=clock.hear)
    assert not done
    assert not multiprocessing.active_children()
    found = {record.run.lam: record for record in read_all(keeping.root)}
    assert sorted(end.run.lam or 0 for end in rest) == [1, 2, 4]
    for end in rest:  # what is told is what is written down
        assert end.status == (found[end.run.lam].status if end.run.lam in found else "waiting")
    begun = [end for end in rest if end.status == "interrupted"]
    assert 1 <= len(begun) <= jobs
    assert [event for event in clock.heard if isinstance(event, Finished) and event.status == "interrupted"] == begun
    assert any((keeping.root / end.run.id / "checkpoint.pt").exists() for end in begun)
    whole = train(begun[0].run, Keeping(tmp_path / "whole"), CPU)
    [again], _ = sweep([begun[0].run], keeping, CPU, jobs=1)
    assert again.rows == whole.rows


def test_a_run_that_ends_as_the_minutes_do_is_done(tmp_path: Path) -> None:
    """Told by its record, whatever the sweep has heard of it."""
    keeping = Keeping(tmp_path)
    record = train(Run(epochs=1), keeping, CPU)
    assert module._left(keeping, record.run) == Finished(record.run, "done")
    assert module._left(keeping, Run(epochs=2)) == Finished(Run(epochs=2), "waiting")
    record.status, record.reason = "failed", "it is full"
    record.write()
    assert module._left(keeping, record.run) == Finished(record.run, "failed", "it is full")


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_listener_that_fails_fails_no_run(tmp_path: Path, jobs: int, epoch: int) -> None:
    """It is cut off, or done if that was its end; the others wait."""
    runs = [Run(epochs=3, seed=seed) for seed in range(3)]

    def hear(event: Progress | Finished) -> None:
        if isinstance(event, Progress) and event.epoch == epoch:
            raise OSError("the pipe is gone")

    with pytest.raises(OSError, match="the pipe is gone"):
        sweep(runs, Keeping(tmp_path), CPU, jobs=jobs, watch=hear)
    assert {record.status for record in read_all(tmp_path)} <= {"interrupted", "done"}
    records, rest = sweep(runs, Keeping(tmp_path), CPU, jobs=jobs)
    assert (len(records), rest) == (3, [])


def test_a_failure_leaves_the_others_alone(tmp_path: Path) -> None:
    """Entropy needs positive weights; the default start has others."""
    runs = [Run(potential="entropy", epochs=2), Run(epochs=2), Run(epochs=2, seed=1)]
    for jobs in (1, 2):
        records, failed = sweep(runs, Keeping(tmp_path / str(jobs)), CPU, jobs=jobs)
        assert [record.status for record in records] == ["done", "done"]
        assert [end.run.potential for end in failed] == ["entropy"]
        assert "needs every weight > 0" in failed[0].error


def test_a_damaged_record_is_one_failure(tmp_path: Path) -> None:
    runs = [Run(epochs=1), Run(epochs=1, seed=1)]
    records, _ = sweep(runs, Keeping(tmp_path), CPU, jobs=1)
    (records[0].folder / "run.json").write_text("{")
    (records[0].folder / "checkpoint.pt").unlink()  # which would restore it
    records, failed = sweep(runs, Keeping(tmp_path), CPU, jobs=1)
    assert len(records) == len(failed) == 1
    assert "run.json cannot be read" in failed[0].error


def test_the_threads_do_not_depend_on_what_is_left(tmp_path: Path) -> None:
    runs = [Run(epochs=1), Run(epochs=1, seed=1), Run(epochs=1, model="mlp")]  # the first and the last are the same
    [first], _ = sweep(runs[:1], Keeping(tmp_path), Place("cpu"), jobs=2)
    both, _ = sweep(runs, Keeping(tmp_path), Place("cpu"), jobs=2)
    assert len(both) == 2
    assert {record.environment["threads"] for record in both} == {max(1, module.cores() // 2)}
    assert first in both


def test_a_folder_that_takes_nothing_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        sweep([Run(epochs=1), Run(epochs=1, seed=1)], Keeping(tmp_path / "file"), CPU, jobs=1)


def test_a_run_that_another_process_has_is_left_waiting_when_the_minutes_are_over(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path, wait=True)
    [record], _ = sweep([Run(epochs=1)], Keeping(tmp_path / "other"), CPU, jobs=1)
    with held(tmp_path / record.id):
        done, rest = sweep([Run(epochs=1)], keeping, CPU, jobs=1, minutes=0.01)
    assert (done, [end.status for end in rest]) == ([], ["waiting"])


def test_bad_data_are_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data set 'digts'"):
        sweep([Run(data="digts")], Keeping(tmp_path))
    with pytest.raises(ValueError, match="jobs must be >= 1"):
        sweep([Run()], Keeping(tmp_path), jobs=0)


SCRIPT = """
import sys
from pathlib import Path
from mirrordescent.lab.place import Place
from mirrordescent.lab.sweep import grid, sweep
from mirrordescent.lab.loop import Keeping
if __name__ == "__main__":
    runs = grid({"epochs": 2000, "corruption": 0.4}, {"seed": [0, 1, 2]})
    print(sweep(runs, Keeping(Path(sys.argv[1])), Place("cpu", threads=1), jobs=2)[1])
"""


def started(tmp_path: Path, script: str = SCRIPT) -> subprocess.Popen[str]:
    (tmp_path / "sweep.py").write_text(script)
    command = [sys.executable, str(tmp_path / "sweep.py"), str(tmp_path / "runs")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(process: subprocess.Popen[str], tmp_path: Path, count: int) -> None:
    while len(list((tmp_path / "runs").glob("*/run.json"))) < count:
        assert process.poll() is None
        time.sleep(0.05)


def wait_for_the_end_of(group: int) -> None:
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("a process is left")


def test_ctrl_c_leaves_everything_resumable_and_no_process(tmp_path: Path) -> None:
    """As a terminal sends it: to the whole group."""
    process = started(tmp_path)
    wait_for(process, tmp_path, 2)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.count("Traceback") == 1  # this script's own, none of the workers
    wait_for_the_end_of(process.pid)
    records = read_all(tmp_path / "runs")
    assert {record.status for record in records} == {"interrupted"}
    assert all((record.folder / "checkpoint.pt").exists() for record in records)


def test_a_killed_worker_is_told_and_its_run_goes_on_next_time(tmp_path: Path) -> None:
    runs = grid({"epochs": 20, "corruption": 0.4}, {"seed": [0, 1, 2]})
    killed: list[int] = []

    def kill_one(event: Progress | Finished) -> None:
        if not killed and isinstance(event, Progress) and event.epoch > 1:
            worker = multiprocessing.active_children()[0]
            assert worker.pid is not None
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)

    records, failed = sweep(runs, Keeping(tmp_path / "runs"), CPU, jobs=2, watch=kill_one)
    assert [end.error for end in failed] == ["its process ended with code -9; sweep again to continue it"]
    assert [record.status for record in records] == ["done", "done"]
    records, failed = sweep(runs, Keeping(tmp_path / "runs"), CPU, jobs=1)
    assert not failed
    whole = [train(run, Keeping(tmp_path / "whole"), CPU) for run in runs]
    assert [record.rows for record in records] == [record.rows for record in whole]
    assert read(records[0].folder) == records[0]


def test_a_script_that_cannot_be_imported_again_is_told_why(tmp_path: Path) -> None:
    """Each worker imports it, and so begins a sweep of its own."""
    unguarded = SCRIPT.replace('if __name__ == "__main__":', "if True:")
    process = started(tmp_path, unguarded.replace("2000", "1").replace("[0, 1, 2]", "[0, 1]"))
    output, _ = process.communicate(timeout=120)
    assert "before it began; a script needs if __name__ == '__main__':" in output


SLOW = SCRIPT.replace("sweep(runs", "slow(runs").replace(
    "if __name__",
    """
import time
from mirrordescent.lab import loop
evaluate = loop.evaluate
def late(*anything):
    time.sleep(2)
    return evaluate(*anything)
loop.evaluate = late
slow = sweep
if __name__""",
)


def test_ctrl_c_during_the_last_evaluations_ends_a_sweep_too(tmp_path: Path) -> None:
    """The workers import the script, so that their evaluations are slow as well."""
    process = started(tmp_path, SLOW.replace('"epochs": 2000', '"epochs": 1'))
    wait_for(process, tmp_path, 2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    wait_for_the_end_of(process.pid)


def test_cores_is_what_this_process_may_use() -> None:
    assert 1 <= module.cores() <= (os.cpu_count() or 1)


def test_what_there_is_to_know_is_told_once(tmp_path: Path) -> None:
    """Of the data and of the steps, before anything is trained, and not of runs that are done."""
    notes: list[str] = []
    base = {"model": "mlp", "epochs": 1, "batch_size": 5000}
    runs = grid(base, {"potential": ["l2", "linf"], "seed": [0, 1]})
    sweep(runs, Keeping(tmp_path), CPU, jobs=1, note=notes.append)
    assert sum("every batch holds all 1,200 samples" in note for note in notes) == 1
    assert sum("under linf --lr 0.1" in note for note in notes) == 1
    assert len(notes) == 2
    sweep(runs, Keeping(tmp_path), CPU, jobs=1, note=notes.append)
    assert len(notes) == 2
