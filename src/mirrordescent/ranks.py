"""Several ranks: each trains on samples of its own, has all of z, and moves all of it by what all of them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, distributed


def world() -> int:
    """How many ranks train together; 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def summed(x: Tensor) -> Tensor:
    """The sum over the ranks, in place."""
    if world() > 1:
        distributed.all_reduce(x)
    return x


def differing(tensors: Mapping[str, Sequence[Tensor]]) -> list[str]:
    """The names of what is not the same on every rank, by its sum. Waits for the device; all ranks have to ask."""
    totals = torch.stack([torch.stack([t.double().sum() for t in held]).sum() for held in tensors.values()])
    low, high = totals.clone(), totals.clone()
    distributed.all_reduce(low, distributed.ReduceOp.MIN)
    distributed.all_reduce(high, distributed.ReduceOp.MAX)
    return [name for name, same in zip(tensors, (low == high).tolist(), strict=True) if not same]
