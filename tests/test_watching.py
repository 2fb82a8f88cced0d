"""What a person sees while it runs: which run it is, how far it is, and how long it will take."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mirrordescent.lab import watching
from mirrordescent.lab.loop import Progress
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished
from mirrordescent.lab.watching import EVERY, Watching


class Clock:
    """A time that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    held = Clock()
    monkeypatch.setattr(watching, "time", held)
    return held


def lines(clock: Clock, name: str | None, events: list[tuple[float, Progress]]) -> list[str]:
    """What is said about events at times, without a terminal."""
    out = io.StringIO()
    with Watching(Console(file=out, width=200), total=1, name=name) as watch:
        for clock.now, event in events:
            watch(event)
    return out.getvalue().splitlines()


def at(epoch: int, step: int = 0, folder: str = "a") -> Progress:
    return Progress(Run(lam=2, epochs=20), epoch, step, 10, {}, Path(folder) / "id")


def test_a_line_now_and_then_says_how_long_it_will_take(clock: Clock) -> None:
    second = EVERY + 1
    told = lines(clock, None, [(0, at(0)), (1, at(1)), (second, at(2)), (second + 1, at(3)), (600, at(5, 5))])
    assert told == [
        "RMD sample, λ = 2: epoch 2.0 of 20, about 2 min left",
        "RMD sample, λ = 2: epoch 5.5 of 20, about 27 min left",
    ]


def test_a_run_that_goes_on_is_judged_by_its_pace_now(clock: Clock) -> None:
    told = lines(clock, None, [(0, at(18)), (30, at(19))])
    assert told == ["RMD sample, λ = 2: epoch 19.0 of 20, about 30 s left"]


def test_waiting_is_said_and_counts_as_no_run(clock: Clock) -> None:
    told = lines(clock, "training", [(0, Progress.waits(at(0).run, Path("a/id"))), (0, at(0)), (20, at(20))])
    assert told == ["training: waiting for another process that has a/id", "training: epoch 20.0 of 20"]


def test_the_next_run_of_a_command_is_told_from_the_first(clock: Clock) -> None:
    """The same settings on other samples, as an audit's second opinion."""
    told = lines(clock, "training", [(0, at(0)), (20, at(20)), (21, at(0, folder="b")), (40, at(10, folder="b"))])
    assert told == [
        "training: epoch 20.0 of 20",
        "training, run 2: epoch 10.0 of 20, about 19 s left",
    ]


def test_of_many_runs_the_seed_is_said_and_notes_come_first(clock: Clock) -> None:
    out = io.StringIO()
    with Watching(Console(file=out, width=200), total=3) as watch:
        watch.note("the data are [bold]")
        for clock.now, seed in ((0, 1), (20, 1), (40, 0)):
            watch(Progress(Run(lam=2, epochs=20, seed=seed), 20, 0, 10, {}, Path("a") / str(seed)))
    assert out.getvalue().splitlines() == [
        "note: the data are [bold]",
        "RMD sample, λ = 2, seed 1: epoch 20.0 of 20",
        "RMD sample, λ = 2, seed 0: epoch 20.0 of 20",
    ]


def test_what_differs_in_a_sweep_is_told_with_every_line(clock: Clock) -> None:
    out = io.StringIO()
    run = Run(lam=2, lr=0.05, batch_size=16, epochs=20)
    with Watching(Console(file=out, width=200), total=2, settings=["lam", "lr", "decay", "penalty", "seed"]) as watch:
        for clock.now in (0, 20):
            watch(Progress(run, 20, 0, 10, {}, Path("a")))
        watch(Finished(run, "done", diverged=True))
        watch(Finished(Run(algorithm="sgd", decay=0.1), "done"))
    title = "RMD sample, λ = 2, lr 0.05, penalty square, seed 0"
    assert out.getvalue().splitlines() == [
        f"{title}: epoch 20.0 of 20",
        f"1 of 2: {title}, diverged",
        "2 of 2: SGD with decay, lr 0.1, decay 0.1, seed 0, done",
    ]


def test_lines_are_never_cut_and_what_is_not_over_is_not_counted() -> None:
    out = io.StringIO()
    with Watching(Console(file=out, width=20), total=3) as watch:
        watch(Finished(Run(algorithm="sgd", seed=4), "done"))
        watch(Finished(Run(algorithm="sgd"), "interrupted"))
        watch(Finished(Run(algorithm="sgd", seed=5), "failed", "a long reason, longer than the terminal is wide"))
    done, interrupted, failed = out.getvalue().splitlines()
    assert done == "1 of 3: SGD, seed 4, done"
    assert interrupted == "1 of 3: SGD, seed 0, interrupted"
    assert failed.endswith("a long reason, longer than the terminal is wide")
