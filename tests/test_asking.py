"""What ranks ask each other, and whom; here with others that say the same as this one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import mirrordescent as md
from mirrordescent.ranks import Ranks

pytestmark = pytest.mark.skipif(
    not distributed.is_available() or not distributed.is_gloo_available(), reason="needs gloo"
)

OURS = object()
"""A group of two among three ranks."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The group of every question; the answer is what this rank has."""
    groups: list[Any] = []

    def all_reduce(_: Tensor, op: Any = None, group: Any = None) -> None:
        groups.append(group)

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda group=None: 2 if group is OURS else 3)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return groups


def check(ranks: Ranks, gradient: Tensor, *, batch: bool = True) -> None:
    ranks.check([gradient], [gradient], torch.zeros(3), batch=batch)


def test_ranks_ask_those_of_their_own_group(asked: list[Any]) -> None:
    ranks = Ranks(OURS)
    assert ranks.number == 2
    check(ranks, torch.ones(2))
    where, slope = ranks.together(torch.tensor([0, 2, 0]), torch.ones(3), torch.zeros(3))
    assert where is None
    assert slope.tolist() == [2, 0, 1]
    assert len(asked) == 3
    assert all(group is OURS for group in asked)


def test_ranks_that_were_found_alike_are_asked_no_more(asked: list[Any]) -> None:
    ranks = Ranks(OURS)
    check(ranks, torch.zeros(2), batch=False)  # without a batch anywhere nothing is known yet
    before = len(asked)
    check(ranks, torch.ones(2))
    assert len(asked) == 2 * before
    check(ranks, torch.ones(2))
    assert len(asked) == 2 * before


def test_nobody_waits_for_a_device_while_compiling(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    check(Ranks(OURS), torch.ones(2))
    assert not asked


@pytest.mark.usefixtures("asked")
def test_gradients_without_a_batch_on_any_rank_are_refused() -> None:
    check(Ranks(OURS), torch.zeros(2), batch=False)
    with pytest.raises(RuntimeError, match="gradients but no batch"):
        check(Ranks(OURS), torch.ones(2), batch=False)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_gradients_of_every_type_can_be_compared(dtype: torch.dtype) -> None:
    check(Ranks(OURS), torch.ones(2, 3, dtype=dtype).t())


def test_a_copy_is_of_the_same_ranks_and_a_pickle_of_the_default_ones() -> None:
    class Group:
        """As a process group, one that neither is copied nor goes into a pickle."""

        def __reduce_ex__(self, _: Any) -> Any:
            raise TypeError("cannot pickle a process group")

    ranks = Ranks(Group())
    assert copy.deepcopy(ranks).group is ranks.group
    assert pickle.loads(pickle.dumps(ranks)).group is None


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:DTensor random operators")  # of PyTorch 2.6
def test_sharded_parameters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "number", 2)
    mesh = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.ones(2), mesh, [Replicate()])
    with pytest.raises(RuntimeError, match="sharded parameters are not supported"):
        check(Ranks(), sharded)


@pytest.mark.usefixtures("asked")
def test_the_mean_in_the_objective_is_over_the_ranks_of_the_group() -> None:
    moved = []
    for group in (OURS, None):
        w = nn.Parameter(torch.ones(1))
        optimizer = md.RMD([w], 0.1, 1.0, 2, lam_convention="objective", process_group=group)
        optimizer.loss(w.square().expand(2), torch.arange(2)).backward()
        optimizer.step()
        moved.append(optimizer.aux.values)
    torch.testing.assert_close(2 * moved[0], 3 * moved[1])


@pytest.mark.usefixtures("asked")
def test_gradients_that_differ_in_one_bit_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Tensor] = []

    def all_reduce(t: Tensor, op: Any = None, group: Any = None) -> None:
        found.append(t.clone())

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    gradient = torch.tensor([0.1, float("nan")])
    other = torch.nextafter(gradient, torch.ones(2))
    for held in (gradient, gradient.clone(), other):
        check(Ranks(OURS), held)
    first, _, same, _, different, _ = found
    assert torch.equal(first, same)
    assert not torch.equal(first, different)


@pytest.mark.usefixtures("asked")
def test_ranks_ask_again_when_a_state_was_loaded() -> None:
    """It may have been loaded on one of them alone."""
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], 0.1, 1.0, 2, process_group=OURS)
    asks = []
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.loss(w.square(), torch.arange(2)).backward()
        asks.append(optimizer._ranks._alike)
        optimizer.step()
        asks.append(optimizer._ranks._alike)
        optimizer.load_state_dict(optimizer.state_dict())
        assert optimizer._ranks.group is OURS
    assert asks == [False, True, False, True]
