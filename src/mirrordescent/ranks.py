"""Training on several ranks: each has samples of its own and all of z, and moves z by the sum of all ranks' slopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from mirrordescent.floating import BITS

NO_BATCH = (
    "step() found gradients but no batch: RMD takes its gradients from optimizer.loss(losses, index).backward(), once "
    "for every step. Parts of a model that share a loss are parameter groups of one RMD, and not an RMD each; in "
    "transformers, RMDTrainer (mirrordescent.integrations.transformers) calls loss()"
)


class Ranks:
    """The ranks that train one model together: those of a process group, or of the default one.

    A copy has the same group; a pickle, which cannot hold a group, comes back with the default one.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self._alike = False  # whether all ranks were found to have the same gradients and z

    def __copy__(self) -> Ranks:
        return Ranks(self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return Ranks(self.group)

    def __reduce__(self) -> tuple[type[Ranks], tuple[()]]:
        return Ranks, ()

    @property
    def number(self) -> int:
        """How many ranks there are; 1 without a process group."""
        if not distributed.is_available() or not distributed.is_initialized():
            return 1
        return distributed.get_world_size(self.group)

    def check_member(self) -> None:
        """Raises ValueError if this rank is not in the group."""
        if self.number < 1:
            raise ValueError("process_group is of other ranks: give RMD a group that this rank is in")

    def together(self, index: Tensor, slope: Tensor, z: Tensor) -> tuple[Tensor | None, Tensor]:
        """The indices at which z moves, and its slopes there; with several ranks None, for everywhere, and their sum.

        All ranks must call this.
        """
        if self.number == 1:
            return index, slope
        everywhere = torch.zeros_like(z).index_add_(0, index, slope.to(z.dtype))
        distributed.all_reduce(everywhere, group=self.group)
        return None, everywhere

    def check(self, params: Sequence[Tensor], grads: Sequence[Tensor], z: Tensor, *, batch: bool) -> None:
        """Check, on the first step, that all ranks have the same gradients and the same z, and one of them a batch.

        This waits for the device, so it is left out of compiled and captured steps. Raises RuntimeError on all ranks.
        """
        if self.number == 1 or self._alike or torch.compiler.is_compiling():
            return
        if z.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        from torch.distributed.tensor import DTensor

        if any(isinstance(w, DTensor) for w in params):
            raise RuntimeError("sharded parameters are not supported: use torch.nn.parallel.DistributedDataParallel")
        found = torch.stack([_bits(grads, z.device), _bits([z], z.device), torch.tensor(int(batch), device=z.device)])
        low, high = found.clone(), found.clone()
        distributed.all_reduce(low, distributed.ReduceOp.MIN, group=self.group)
        distributed.all_reduce(high, distributed.ReduceOp.MAX, group=self.group)
        same_gradients, same_z, _ = (low == high).tolist()
        if not same_gradients:
            raise RuntimeError(
                f"gradients differ between the {self.number} ranks: RMD shares z among them, so they have to train one "
                "model, in torch.nn.parallel.DistributedDataParallel; for a model of each rank's own, give RMD a "
                "process_group of that rank alone"
            )
        if not same_z:
            raise RuntimeError("z differs between the ranks: load the optimizer's state on every one of them")
        self._alike = bool(high[2])
        if not self._alike and any(bool(g.any()) for g in grads):
            raise RuntimeError(NO_BATCH)


def _bits(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """The sum of the elements' bits as integers, which is exact in any order, and for NaN and infinity too."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for t in tensors:
        real = torch.view_as_real(t) if t.is_complex() else t
        total += real.contiguous().view(BITS[real.element_size()]).sum(dtype=torch.int64).to(device)
    return total
