"""What a step costs is measured in turns, beside SGD; the command says so in a table, and in one line what is wrong."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mirrordescent as md
from mirrordescent.lab import bench as module
from mirrordescent.lab.bench import Bench, Cost, Costs, measured, trainings
from mirrordescent.lab.place import Place
from mirrordescent.lab.timing import Ratio, alternating, ratio, seconds

CPU = torch.device("cpu")
SMALL = Bench(model="mlp", batch_size=4, samples=20, seconds=0.01, blocks=3)


def test_calls_take_turns() -> None:
    order: list[str] = []
    heard: list[int] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = alternating(calls, blocks=3, repeats=2, device=CPU, hear=heard.append)
    warm, timed = order[:-12], order[-12:]
    assert "".join(timed) == "aabb" * 3
    assert set(warm) == {"a", "b"}
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3}
    assert heard == [1, 2, 3]


def test_a_call_that_takes_twice_as_long_shows() -> None:
    calls = {"slow": lambda: time.sleep(0.02), "fast": lambda: time.sleep(0.01)}
    found = ratio(alternating(calls, blocks=5, repeats=1, device=CPU), "slow", "fast")
    assert 1.4 < found.middle < 2.6
    assert seconds(calls["fast"], 1, CPU) > 0.009


def test_one_block_is_its_own_quartiles() -> None:
    assert ratio({"a": [3.0], "b": [2.0]}, "a", "b") == Ratio(1.5, 1.5, 1.5)


def test_steps_are_those_of_the_method() -> None:
    made = trainings(SMALL, CPU, ["l2", "q=3"])
    assert list(made) == ["SGD", "SMD l2", "RMD l2", "SMD q=3", "RMD q=3"]
    kinds = [type(one.optimizer) for one in made.values()]
    assert kinds == [torch.optim.SGD, md.SMD, md.RMD, md.SMD, md.RMD]
    for one in made.values():
        before = [w.detach().clone() for w in one.model.parameters()]
        one.step()
        # so small a step is told by the gradients that were there for it, and by z
        assert all(bool(w.grad.abs().sum() > 0) for w in one.model.parameters() if w.grad is not None)
        torch.testing.assert_close(list(one.model.parameters()), before, rtol=1e-3, atol=1e-4)
        if isinstance(one.optimizer, md.RMD):
            assert one.optimizer.aux.values.nonzero()[:, 0].tolist() == sorted(one.index.tolist())


def test_what_is_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, int]] = []
    costs = measured(SMALL, Place("cpu"), ["l2"], lambda *event: heard.append(event))
    assert [row.method for row in costs.rows] == ["SGD", "SMD l2", "RMD l2"]
    assert costs.rows[0] == Cost("SGD", Ratio(1, 1, 1), None)
    assert all(0 < row.eager.low <= row.eager.middle <= row.eager.high for row in costs.rows)
    assert costs.state_bytes == 4 * 20
    assert costs.parameters == 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    assert heard == [(1, 3), (2, 3), (3, 3)]
    assert json.loads(json.dumps(costs.to_dict()))["bench"]["samples"] == 20
    monkeypatch.setattr(module, "trainings", lambda bench, *_: pytest.fail(bench.model))
    with pytest.raises(pytest.fail.Exception, match="cnn"):
        measured(Bench(), Place("cpu"))


def test_it_takes_about_as_long_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def spied(calls: Any, *, blocks: int, repeats: int, device: torch.device, hear: Any) -> dict[str, list[float]]:
        asked.append(repeats)
        return alternating(calls, blocks=blocks, repeats=1, device=device, hear=hear)

    monkeypatch.setattr(module, "alternating", spied)
    monkeypatch.setattr(module, "seconds", lambda _call, repeats, _device: 0.01 * repeats)
    measured(replace(SMALL, seconds=9.0), Place("cpu"), ["l2"])
    assert asked == [100]  # of three methods, in three blocks, by 10 ms each


@pytest.mark.parametrize(("high", "noisy"), [(1.1, False), (1.5, True)])
def test_a_busy_machine_is_told(high: float, noisy: bool) -> None:
    rows = (Cost("SGD", Ratio(1, 1, 1), None), Cost("RMD l2", Ratio(1.05, 1.0, high), None))
    assert Costs(SMALL, 1, 1, {}, {}, rows).noisy == noisy


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--model vgg", "--model must be one of auto, linear, mlp, cnn, deep-cnn, resnet18, got 'vgg'"),
        ("--batch-size 1", "batch_size must be >= 2, got 1"),
        ("--samples 10", "batch_size must be at most samples, got 128 of 10"),
        ("--blocks 1", "blocks must be >= 2, got 1"),
        ("--seconds 0", "seconds must be > 0 and finite, got 0.0"),
        ("--model linear --potentials l3", "'l3'"),
        ("--model linear --potentials entropy", "entropy"),
        ("--potentials --model linear", "needs a value"),
    ],
)
def test_a_mistake_costs_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tyro")
    from mirrordescent.cli import main

    assert main(["bench", *line.split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_the_command_prints_a_table_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tyro")
    from mirrordescent.cli import main

    monkeypatch.chdir(tmp_path)
    some = ["bench", "--model", "linear", "--batch-size", "4", "--seconds", "0.1", "--blocks", "2", "--threads", "1"]
    assert main(some) == 0
    shown = capsys.readouterr().out
    assert "RMD q=3" in shown
    assert "z of 50,000 samples: 200,000 bytes" in shown
    assert main([*some, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 5
    assert not list(tmp_path.iterdir())


def test_nothing_to_time_is_told() -> None:
    with pytest.raises(ValueError, match="potentials is empty"):
        measured(SMALL, Place("cpu"), [])
