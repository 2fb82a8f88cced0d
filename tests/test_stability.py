"""What keeps z stable: each thing that would not is told once, at the user's own line."""

from __future__ import annotations

import math
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


def test_a_lam_that_did_not_follow_the_step_size_is_told() -> None:
    """Under a potential whose steps are tiny, SGD's lam makes RMD stand still without a word."""
    w = [nn.Parameter(torch.full((4, 4), 0.05))]
    lr = md.step_size(w, "linf")
    with pytest.warns(UserWarning, match=r"over lam/lr = .*e\+10 epochs, .* it is 20 \* lr") as caught:
        md.RMD(w, lr=lr, lam=2.0, num_samples=4, potential="linf")
    assert caught[0].filename == __file__
    for lam in (20 * lr, 1e4 * lr, math.inf):
        md.RMD(w, lr=lr, lam=lam, num_samples=4, potential="linf")


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
        optimizer.zero_grad()
        optimizer.loss(w.square().expand(25), torch.zeros(25, dtype=torch.int64)).backward()
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
    optimizer.zero_grad()
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


def stepped(optimizer: md.RMD, size: int) -> None:
    w = optimizer.param_groups[0]["params"][0]
    optimizer.loss(w.square().expand(size), torch.arange(size)).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("reduction", ["sample", "batch"])
def test_a_factor_on_the_loss_is_told_once(reduction: str) -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.001, lam=1.0, num_samples=4, reduction=reduction)

    def step(factor: float) -> None:
        (factor * optimizer.loss(w.square().expand(4), torch.arange(4))).backward()
        optimizer.step()
        optimizer.zero_grad()

    step(5.0)
    step(5.0)
    with pytest.warns(UserWarning, match="the loss went backward times 5: w moves so many times as far"):
        step(5.0)
    step(5.0)


def test_after_a_few_shares_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU every look makes the host wait."""
    stability, looks, plain = Stability(), [], torch.Tensor.__float__

    def looking(t: torch.Tensor) -> float:
        looks.append(t)
        return plain(t)

    stability.look_at_sizes([(8, torch.tensor(1.0))])
    monkeypatch.setattr(torch.Tensor, "__float__", looking)
    for _ in range(20):
        stability.look_at_sizes([(4, torch.tensor(0.5))])
    assert 0 < len(looks) < 10


@pytest.mark.parametrize("factor", [1.0, 0.25, 2.0**16, 2.0**16 / 3])
def test_a_share_and_a_scalers_factor_are_no_weight_on_the_loss(factor: float) -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=1e-7, lam=1e-6, num_samples=4)
    for _ in range(5):
        (factor * optimizer.loss(w.square().expand(4), torch.arange(4))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_smaller_batch_is_told_once_under_the_papers_convention() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.ones(1))], lr=0.1, lam=1.0, num_samples=8)
    stepped(optimizer, 4)
    stepped(optimizer, 8)
    with pytest.warns(UserWarning, match="a batch of 4 after one of 8: its samples weigh more.*drop_last=True"):
        stepped(optimizer, 4)
    stepped(optimizer, 3)


@pytest.mark.parametrize("settings", [{"lam": math.inf}, {"lam": 1.0, "lam_convention": "objective"}])
def test_a_smaller_batch_is_fine_where_all_samples_weigh_alike(settings: dict[str, Any]) -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.ones(1))], lr=0.1, num_samples=8, **settings)
    stepped(optimizer, 8)
    stepped(optimizer, 4)


def test_batches_too_small_for_z_to_settle_are_told_and_refused_when_they_become_the_rule() -> None:
    """In the convention of the objective, where larger ones came before."""
    optimizer = md.RMD([torch.nn.Parameter(torch.ones(1))], 0.1, 0.02, 8, lam_convention="objective")
    stepped(optimizer, 8)
    with pytest.warns(UserWarning, match=r"lr/\(lam \* batch size\) = 2.5 in a batch of 2: z of samples that are"):
        stepped(optimizer, 2)
    for _ in range(3):  # now and then they do no harm
        for size in (3, 2, 1, 2, 3):
            stepped(optimizer, size)
    for _ in range(3):
        stepped(optimizer, 2)
    with pytest.raises(ValueError, match=r"lr/\(lam \* batch size\) must be < 2, or z diverges; got 2.5"):
        stepped(optimizer, 2)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_smaller_batch_that_is_scaled_by_its_share_is_fine(scale: float) -> None:
    """As in a last, shorter window of accumulation: then all samples weigh alike. A GradScaler's factor hides it."""
    optimizer = md.RMD([torch.nn.Parameter(torch.ones(1))], lr=0.1, lam=1.0, num_samples=8)
    w = optimizer.param_groups[0]["params"][0]
    stepped(optimizer, 8)
    (optimizer.loss(w.square().expand(4), torch.arange(4)) / 2 * scale).backward()
    optimizer.step()
    optimizer.zero_grad()
    for part in torch.arange(6).split(2):
        (optimizer.loss(w.square().expand(2), part) / 4).backward()
    optimizer.step()


def first_batches(index: list[torch.Tensor], num_samples: int) -> list[str]:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.01, lam=1.0, num_samples=num_samples)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in index:
            optimizer.loss(w.square().expand(len(batch)), batch)
            with torch.no_grad():  # a look at something else
                optimizer.loss(w.square().expand(len(batch)), torch.randperm(num_samples)[: len(batch)])
    assert {warning.filename for warning in caught} <= {__file__}
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(("classes", "size"), [(2, 8), (3, 32), (10, 128), (100, 128)])
def test_labels_in_place_of_the_index_are_asked_about_once(classes: int, size: int) -> None:
    [told] = first_batches([torch.randint(classes, (size,)) for _ in range(9)], num_samples=1000)
    assert "are these labels?" in told


@pytest.mark.parametrize(
    "index",
    [
        [torch.randperm(1000)[:32] for _ in range(9)],
        [torch.arange(32)] * 9,  # a data set that is a batch
        [torch.randint(1000, (32,)) for _ in range(9)],  # drawn with replacement
        list(torch.arange(144).repeat_interleave(2).split(32)),  # two views of each sample, in order
        [torch.zeros(4, dtype=torch.int64)] * 9,
    ],
    ids=["shuffled", "whole", "drawn", "views", "small"],
)
def test_an_index_is_not_taken_for_labels(index: list[torch.Tensor]) -> None:
    assert not first_batches(index, num_samples=32 if index[0].equal(torch.arange(32)) else 1000)


@pytest.mark.parametrize("lam", [0.0, -1.0, math.nan])
def test_a_lam_that_makes_no_sense_is_refused_before_anything_moves(lam: float) -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss((w - 2).square(), torch.arange(2)).backward()
    optimizer.param_groups[0]["lam"] = lam  # a schedule of one's own
    with pytest.raises(ValueError, match="lam must be > 0"):
        optimizer.step()
    assert w.tolist() == [1, 1]
    assert not optimizer.aux.values.any()
