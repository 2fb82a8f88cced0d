"""Several ranks: each trains on samples of its own, has all of z, and moves all of it by what all of them found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of an element's bytes


class Ranks:
    """The ranks that train one model together: those of a process group, or of the default one.

    A copy is of the same ranks; a pickle, which cannot hold a group, is of the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    def __reduce__(self) -> tuple[type[Ranks], tuple[()]]:
        return Ranks, ()

    @property
    def number(self) -> int:
        """How many there are; 1 without a process group."""
        if not distributed.is_available() or not distributed.is_initialized():
            return 1
        return distributed.get_world_size(self.group)

    def together(self, index: Tensor, slope: Tensor, z: Tensor) -> tuple[Tensor | None, Tensor]:
        """Where z moves, and its slopes there; of several ranks their sum everywhere. All ranks have to ask."""
        if self.number == 1:
            return index, slope
        everywhere = torch.zeros_like(z).index_add_(0, index, slope.to(z.dtype))
        distributed.all_reduce(everywhere, group=self.group)
        return None, everywhere

    def differing(self, tensors: Mapping[str, Sequence[Tensor]], device: torch.device) -> list[str]:
        """The names of what is not the same to the bit on every rank. Waits for the device; all ranks have to ask."""
        found = torch.stack([_bits(held, device) for held in tensors.values()])
        low, high = found.clone(), found.clone()
        distributed.all_reduce(low, distributed.ReduceOp.MIN, group=self.group)
        distributed.all_reduce(high, distributed.ReduceOp.MAX, group=self.group)
        return [name for name, same in zip(tensors, (low == high).tolist(), strict=True) if not same]

    def any(self, here: bool, device: torch.device) -> bool:
        """Whether it holds on one of them. Waits for the device; all ranks have to ask."""
        found = torch.tensor(int(here), device=device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return bool(found)


def _bits(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of the elements' bits as integers: the same in any order, and of numbers that are none."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for t in tensors:
        real = torch.view_as_real(t) if t.is_complex() else t
        total += real.contiguous().view(BITS[real.element_size()]).sum(dtype=torch.int64).to(device)
    return total
