"""The stand-in for a GPU finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from standin import stand_in

from mirrordescent.lab.timing import captured


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_is_one_while_it_lasts() -> None:
    with stand_in():
        assert torch.cuda.is_available()
        assert torch.zeros(1).cuda().device == torch.device("cuda", 0) == torch.tensor(1, device="cuda").device
        assert torch.ones(2, device="cuda").cpu().tolist() == [1, 1]
    assert not torch.cuda.is_available()


@pytest.mark.parametrize(
    "look",
    [
        bool,
        float,
        torch.Tensor.nonzero,
        torch.Tensor.unique,
        lambda t: t[t > 0],
        lambda t: t.reshape(1).index_put_((t.reshape(1) > 0,), t),
        lambda t: t.long().reshape(1).bincount(),
    ],
    ids=["bool", "float", "nonzero", "unique", "mask", "put", "count"],
)
def test_looking_is_found(look: object) -> None:
    assert callable(look)
    with stand_in():
        there = torch.ones((), device="cuda")
        look(there)
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(AssertionError, match="wait"):
            look(there)


@pytest.mark.parametrize(
    "copy",
    [
        torch.Tensor.cpu,
        lambda t: t.copy_(torch.ones(2)),
        lambda _: torch.tensor([1.0], device="cuda"),
        lambda _: torch.tensor(1.0, device="cuda"),
        lambda _: torch.as_tensor(1.0, device="cuda"),
        lambda _: torch.tensor(1.0).to("cuda"),
        lambda _: torch.tensor(1.0).cuda(),
        lambda t: torch.tensor(1.0).to(t),
        lambda t: t.copy_(torch.tensor(1.0)),
        lambda t: torch.where(t > 0, torch.tensor(1.0), t),
        lambda t: t.index_put_((t.long(),), torch.tensor(1.0)),
        lambda t: torch.zeros(()).copy_(t.sum()),
    ],
)
def test_copying_is_found(copy: object) -> None:
    assert callable(copy)
    with stand_in():
        there = torch.ones(2, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(AssertionError, match="copies"):
            copy(there)


@pytest.mark.parametrize(
    "number",
    [
        lambda t: torch.where(t > 0, 1.0, t),
        lambda t: torch.where(t > 0, 1.0, 0.0),
        lambda t: t.fill_(2),
        lambda t: t.fill_(torch.tensor(2.0)),
        lambda t: t.new_full((), 2.0),
        lambda t: torch.full((2,), 2.0, device="cuda"),
        lambda t: torch.scalar_tensor(2.0, device="cuda"),
        lambda t: t.__setitem__(0, 3.0),
        lambda t: t.index_put_((t.long(),), t.new_zeros(())),
        lambda t: t.add_(1).mul(2.0).clamp(0, 1).masked_fill_(t > 0, 4.0),
        lambda t: t * torch.tensor(2.0),
        lambda t: torch.tensor(2.0) - t,
    ],
)
def test_a_number_is_no_copy(number: Callable[[torch.Tensor], object]) -> None:
    """The device fills memory with it, or a kernel takes it along."""
    with stand_in():
        there = torch.zeros(2, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        number(there)


@pytest.mark.parametrize(
    ("mixed", "fails"),
    [
        (lambda t: t + torch.ones(2), True),
        (lambda t: torch.arange(2)[t.long()], True),
        (lambda t: torch.stack([t, torch.ones(2)]), True),
        (lambda t: t * torch.tensor(2.0), False),  # a number
        (lambda t: t[torch.tensor([0])], False),
        (lambda t: t.copy_(torch.ones(2)), False),
    ],
)
def test_tensors_on_two_devices_are_found(mixed: Callable[[torch.Tensor], object], fails: bool) -> None:
    """As PyTorch does, at any time."""
    with stand_in():
        there = torch.ones(2, device="cuda")
        with pytest.raises(AssertionError, match="on two devices") if fails else nullcontext():
            mixed(there)


def test_a_captured_graph_is_memory_and_operations_and_no_python() -> None:
    with stand_in():
        x, y, steps = torch.ones(3, device="cuda"), torch.zeros(3, device="cuda"), []

        def step() -> None:
            steps.append(1)
            doubled = 2 * x
            y.add_(doubled[:2].sum() + len(steps))

        replay = captured(step)  # after three steps
        assert y.cpu().tolist() == [12 + 1 + 2 + 3] * 3
        for _ in range(2):
            x.add_(1)
            replay()  # with the fourth's number
        assert len(steps) == 4
        assert y.cpu().tolist() == [18 + 8 + 4 + 12 + 4] * 3
