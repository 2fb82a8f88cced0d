"""Which batches count: those whose gradients are there when the step comes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mirrordescent as md


def one_weight(n: int = 4) -> tuple[nn.Parameter, md.RMD]:
    w = nn.Parameter(torch.ones(n))
    return w, md.RMD([w], lr=0.1, lam=1.0, num_samples=n)


def test_a_batch_in_a_pickle_is_of_no_pass_that_another_process_will_make() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w.square(), torch.arange(4)).backward()
    assert optimizer._pending.batches[0].task >= 0
    assert [batch.task for batch in pickle.loads(pickle.dumps(optimizer._pending)).batches] == [-1]
    assert [batch.task for batch in copy.deepcopy(optimizer._pending).batches] == [-1]


def test_micro_batches_of_heads_of_their_own_all_count() -> None:
    """The gradient of the other head stays as it was: that is no sign that nothing was added."""
    heads = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = md.RMD(heads, lr=0.1, lam=1.0, num_samples=8)
    for k in range(4):
        index = torch.tensor([2 * k, 2 * k + 1])
        (optimizer.loss(heads[k % 2].square(), index) / 4).backward()
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_a_witness_that_is_gone_is_not_missed() -> None:
    quiet, loud = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = md.RMD([quiet, loud], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(loud.square() + 0 * quiet, torch.arange(2)).backward()
    assert quiet.grad is not None
    loud.grad = None  # what is left is 0, so the batch's gradient has been thrown away
    optimizer.step()
    assert not optimizer.aux.values.any()


def test_a_gradient_replaced_by_zeros_has_lost_its_batch() -> None:
    """Also where a glance at its first row could not tell."""
    table = nn.Embedding(5, 2)
    optimizer = md.RMD(table.parameters(), lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(table(torch.tensor([3, 4])).square().sum(1), torch.arange(2)).backward()
    table.weight.grad = torch.zeros_like(table.weight)
    optimizer.step()
    assert not optimizer.aux.values.any()


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_gradients_cleared_through_data_are_noticed_wherever_they_were_not_0(zeros: int) -> None:
    w, optimizer = one_weight()
    mask = torch.arange(4) >= zeros
    optimizer.loss(w.square() * mask + 1, torch.arange(4)).backward()
    assert w.grad is not None
    w.grad.data.zero_()
    optimizer.step()
    assert not optimizer.aux.values.any()


def test_gradients_that_were_changed_count_though_some_are_0() -> None:
    """As torch's own clipping, or noise, changes them."""
    dead, w = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = md.RMD([dead, w], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(w.square() + 0 * dead, torch.arange(2)).backward()
    nn.utils.clip_grad_value_([dead, w], 0.1)
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_a_parameter_of_no_dimension_is_a_parameter() -> None:
    w = nn.Parameter(torch.tensor(2.0))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2)
    for _ in range(2):
        (optimizer.loss(w.square().expand(2), torch.arange(2)) / 2).backward()
    optimizer.step()
    assert bool(optimizer.aux.values.all())


class Breaking(torch.autograd.Function):
    """Runs out of something on its way back."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        raise MemoryError


def test_a_batch_whose_backward_pass_broke_off_moves_nothing() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w[:2].square(), torch.arange(2)).backward()
    held = optimizer.loss(Breaking.apply(w)[2:].square(), torch.arange(2, 4))  # type: ignore[no-untyped-call]  # torch gives it no types
    with pytest.raises(MemoryError):
        held.backward()
    optimizer.step()
    assert (optimizer.aux.values != 0).tolist() == [True, True, False, False]
