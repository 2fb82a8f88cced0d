"""What is told of courses: the figures of a table, the page, and what was typed wrong in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrordescent.lab.continual import Course, Learnt, Lessons, settings


def course(method: str = "sgd", seed: int = 0, **lessons: Any) -> Course:
    return Course(replace(Lessons(tasks=3, epochs=2, batch_size=16), **lessons), method, seed)


def made_up(seed: int, accuracies: list[list[float]], method: str = "sgd") -> Learnt:
    data = {"name": "blobs", "digest": "x", "samples": 96, "classes": 4}
    return Learnt(Path(str(seed)), course(method, seed), "done", "tasks", accuracies, data)


def test_figures_of_a_line() -> None:
    found = [made_up(0, [[0.9], [0.7, 0.8], [0.5, 0.6, 1.0]]), made_up(1, [[0.8], [0.6, 1.0], [0.4, 0.8, 0.9]])]
    [setting] = settings(found)
    [line] = setting.lines
    assert line.mean is not None
    assert line.mean.mean == pytest.approx((2.1 / 3 + 2.1 / 3) / 2)
    assert line.forgotten is not None
    assert line.forgotten.mean == pytest.approx(((0.4 + 0.2) / 2 + (0.4 + 0.2) / 2) / 2)
    assert line.learnt is not None
    assert line.learnt.mean == pytest.approx((2.7 / 3 + 2.7 / 3) / 2)
    assert line.after_two is not None
    assert line.after_two.mean == pytest.approx((0.75 + 0.8) / 2)
    assert line.after_two.deviation == pytest.approx(0.05 / 2**0.5)
    assert line.of_first(2) is not None
    assert line.seeds == "2"


def test_courses_on_other_tasks_are_not_compared() -> None:
    rows = [[0.9], [0.7, 0.8], [0.5, 0.6, 1.0]]
    one, other = made_up(0, rows), made_up(0, rows, "ewc")
    assert len(settings([one, other])) == 1
    assert [line.title for line in settings([other, one])[0].lines] == ["SGD", "SGD with EWC, α = 30"]
    other.data["digest"] = "y"
    assert len(settings([one, other])) == 2
    for other_one in (course(epochs=3), course(lr=0.05), course(batch_size=64), course(raw=True)):
        titles = [setting.title for setting in settings([one, replace(one, course=other_one)])]
        assert len(set(titles)) == 2


def test_the_command_compares_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tyro")
    pytest.importorskip("matplotlib")
    from mirrordescent.cli import main

    monkeypatch.chdir(tmp_path)
    some = ["continual", "--tasks", "2", "--epochs", "1", "--samples", "64", "--seeds", "1", "--threads", "1"]
    assert main([*some, "--methods", "sgd", "anchored"]) == 0
    shown = capsys.readouterr()
    assert "RMD anchored" in shown.out
    assert "2 of 2: RMD anchored, λ = 1, strength 10, seed 0, done" in shown.err
    page = Path("runs/continual.md").read_text()
    assert "| RMD anchored, λ = 1, strength 10 |" in page
    assert Path("runs/pictures/continual/kept-1.svg").is_file()
    html = Path("runs/continual.html").read_bytes()
    assert main(["continual", "--report-only"]) == 0
    assert Path("runs/continual.html").read_bytes() == html
    capsys.readouterr()
    assert main([*some, "--methods", "sgd", "--json"]) == 0
    assert [one["course"]["method"] for one in json.loads(capsys.readouterr().out)] == ["sgd"]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (["--methods", "anchord"], 2, "unknown method 'anchord'"),
        (["--methods", "sgd", "--strength", "3"], 2, "strength is for anchored, and does nothing in sgd"),
        (["--kind", "split", "--tasks", "6"], 1, "digits has 10 classes, and each of 6 tasks needs two"),
        (["--tasks", "1"], 2, "tasks must be >= 2, got 1"),
        (["--report-only"], 1, "runs holds no course"),
        (["--report-only", "--seeds", "2"], 2, "--report-only trains nothing"),
        (["--data", "regression"], 1, "regression is a regression"),
        (["--data", "nowhere.csv"], 2, "there is no file or folder 'nowhere.csv'"),
    ],
)
def test_a_mistake_costs_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: list[str],
    code: int,
    message: str,
) -> None:
    pytest.importorskip("tyro")
    from mirrordescent.cli import main

    monkeypatch.chdir(tmp_path)
    assert main(["continual", *line]) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not list(tmp_path.rglob("course.json"))
