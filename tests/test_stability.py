"""What keeps z stable: each thing that would not is told once, at the user's own line."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import mirrordescent as md
from mirrordescent.stability import Stability


def test_warnings_point_at_the_users_line() -> None:
    with pytest.warns(UserWarning, match="above 1") as caught:
        md.RMD([nn.Parameter(torch.ones(2))], lr=1.5, lam=1.0, num_samples=1)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("convention", ["paper", "objective"])
def test_a_step_that_makes_z_overshoot_warns_once(convention: str) -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], lr=0.5, lam=1.0, num_samples=1, lam_convention=convention)
    optimizer.param_groups[0]["lr"] = 1.5  # a scheduler
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            optimizer.loss(w[:1].square(), torch.tensor([0])).backward()
            optimizer.step()
    assert [warning.filename for warning in caught] == [__file__]
    assert "= 1.5 is above 1" in str(caught[0].message)


def repeated(times: int, lr: float, convention: str = "paper", size: int = 1) -> md.RMD:
    """An optimizer after one step on a batch in which one sample comes several times."""
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=lr, lam=1.0, num_samples=size + 1, lam_convention=convention)
    index = torch.cat([torch.zeros(times, dtype=torch.int64), torch.arange(1, size + 1)])
    optimizer.loss(w.square().expand(len(index)), index).backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("convention", "lr"), [("paper", 0.4), ("objective", 0.4 * 25)])
def test_a_sample_too_often_in_a_batch_warns_once(convention: str, lr: float) -> None:
    """Its steps add up: five of 0.4 are 2."""
    with pytest.warns(UserWarning, match="a sample is 5 times in a batch"):
        optimizer = repeated(5, lr, convention, size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        w = optimizer.param_groups[0]["params"][0]
        optimizer.loss(w.square().expand(5), torch.zeros(5, dtype=torch.int64)).backward()
        if convention == "paper":  # else a batch of five is a smaller one, of which nothing is said either
            optimizer.step()
        repeated(4, lr, convention, size=21)
        repeated(1, lr, convention, size=24)


def test_a_schedulers_momentum_is_looked_at() -> None:
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.5, lam=1.0, num_samples=1)
    optimizer.param_groups[0]["momentum"] = 0.9
    optimizer.loss(w.square(), torch.tensor([0])).backward()
    with pytest.warns(UserWarning, match=r"lr/lam/\(1 - momentum\) = 5 is 2 or more"):
        optimizer.step()
    optimizer.loss(w.square(), torch.tensor([0])).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        scaled = md.RMD([w], lr=0.05, lam=1.0, num_samples=1, momentum=0.9, momentum_rule="scaled")
        scaled.loss(w.square(), torch.tensor([0])).backward()
        scaled.step()


def test_a_first_group_that_stands_still_is_told() -> None:
    still: dict[str, Any] = {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.0}
    moves: dict[str, Any] = {"params": [torch.nn.Parameter(torch.ones(1))]}
    with pytest.warns(UserWarning, match="first parameter group's lr is 0, and z follows it"):
        md.RMD([still, moves], lr=0.1, lam=1.0, num_samples=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        md.RMD([moves, still], lr=0.1, lam=1.0, num_samples=1)
        md.RMD([still], lr=0.1, lam=1.0, num_samples=1)


def test_momentum_that_adds_up_to_2_warns() -> None:
    with pytest.warns(UserWarning, match="2 or more"):
        md.RMD([nn.Parameter(torch.ones(1))], 1.0, 1.0, 2, momentum=0.5)


def test_a_loss_that_reaches_no_parameter_is_told_once() -> None:
    """Of another model than the optimizer's; gradients that were only looked at are no such thing."""
    mine, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = md.RMD(mine.parameters(), 0.1, 2.0, 3)

    def backward(model: nn.Module) -> None:
        optimizer.loss(model(torch.ones(3, 2)).square()[:, 0], torch.arange(3)).backward()

    backward(other)
    with pytest.warns(UserWarning, match="no parameter of this optimizer has a gradient: nothing moves"):
        optimizer.step()
    assert not optimizer.aux.values.any()
    backward(other)
    optimizer.step()
    backward(mine)
    optimizer.step()
    assert bool(optimizer.aux.values.all())
    optimizer.zero_grad()
    optimizer.step()


INDEX = torch.zeros(5, dtype=torch.int64)


def test_ranks_that_may_not_go_on_alone_are_told_and_not_refused() -> None:
    with pytest.raises(ValueError, match="z diverges"):
        Stability().check(2.5, "lr/lam", 0.0, INDEX[:1], refuse=True)
    with pytest.warns(UserWarning, match=r"2\.5 is above 1"):
        Stability().check(2.5, "lr/lam", 0.0, INDEX[:0], refuse=False)


def test_what_overshoots_is_not_said_to_diverge_by_its_momentum_too() -> None:
    with pytest.warns(UserWarning, match="above 1") as caught:
        md.RMD([nn.Parameter(torch.ones(1))], lr=1.5, lam=1.0, num_samples=1, momentum=0.5)
    assert len(caught) == 1


def test_each_thing_is_told_even_when_another_was() -> None:
    stability = Stability()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for share in (0.5, 1.5, 0.5, 1.5):
            stability.check(share, "lr/lam", 0.9, INDEX[:1], refuse=True)
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        "lr/lam/(1 - momentum) = 5 is 2 or more",
        "lr/lam = 1.5 is above 1",
    ]


def test_a_batch_of_one_sample_alone_warns_from_2_on() -> None:
    with pytest.warns(UserWarning, match="a sample is 5 times in a batch"):
        Stability().check(0.4, "lr/lam", 0.0, INDEX, refuse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Stability().check(0.4, "lr/lam", 0.0, INDEX[:4], refuse=True)


def test_a_schedulers_momentum_of_1_is_told() -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.5, lam=1.0, num_samples=1)
    optimizer.param_groups[0]["momentum"] = 1.0
    optimizer.loss(w.square(), torch.tensor([0])).backward()
    with pytest.warns(UserWarning, match="= inf is 2 or more"):
        optimizer.step()


def test_nothing_is_looked_for_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look would break the compiler's graph, and a warning there would be the compiler's own."""

    def looked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.Tensor, "unique", looked)
    stability = Stability()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stability.check(1.5, "lr/lam", 0.0, INDEX, refuse=True)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="above 1"):
        stability.check(1.5, "lr/lam", 0.0, INDEX[:1], refuse=True)


def test_one_sample_that_diverges_is_not_said_to_be_there_too_often() -> None:
    with pytest.warns(UserWarning, match="above 1") as caught:
        Stability().check(2.5, "lr/lam", 0.0, INDEX[:1], refuse=False)
    assert len(caught) == 1
