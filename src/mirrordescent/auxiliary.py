"""z, one scalar per training sample: a view of where RMD stores it, the optimizer's first parameter group."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from mirrordescent.caller import warn
from mirrordescent.inputs import check_losses, checked_index, working
from mirrordescent.rules import machine_epsilon, root_loss

KEPT = ("z", "z_momentum")  # the keys of what a state holds of z
STORED = (*KEPT, "z_rejected")  # the keys of z's tensors in the group


class RejectedSamplesError(ValueError, IndexError):
    """Samples with a bad index or loss were left out, on a device where raising at once would make the host wait."""


class Auxiliary:
    """z, one scalar per training sample: it follows the sample's root loss √(2 L_i).

    The larger it is, the worse the label fits; with `root=` it has the residual's sign, and its size counts.

    values: z, of shape (num_samples,), float32, or float64 if the optimizer was made with float64 parameters. It is
    written in place; only when the model has moved to another device does a new tensor replace it.

    >>> import torch, mirrordescent as md
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> aux = md.RMD([w], lr=0.1, lam=1.0, num_samples=3).aux
    >>> aux.values
    tensor([0., 0., 0.])
    >>> aux.residual(torch.tensor([0.5, 2.0]), torch.tensor([0, 2]))      # |0 - 1| + |0 - 2|
    tensor(3.)
    """

    def __init__(self, store: MutableMapping[str, Any]) -> None:
        self._store = store

    @staticmethod
    def new_store(num_samples: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        """What a new Auxiliary is a view of: z = 0, the counter of rejected samples, and z's age."""
        return {
            "z": torch.zeros(num_samples, dtype=dtype, device=device),
            "z_rejected": torch.zeros((), dtype=torch.int64, device=device),
            "z_age": 0.0,
        }

    def make_momentum(self) -> None:
        """Create z's momentum m_z = 0, unless it exists."""
        if self.momentum is None:
            self._store["z_momentum"] = torch.zeros_like(self.values)

    @property
    def values(self) -> Tensor:
        """z itself, not a copy."""
        z: Tensor = self._store["z"]
        return z

    @property
    def momentum(self) -> Tensor | None:
        """m_z, if RMD has momentum with the "dense" rule, else None."""
        return self._store.get("z_momentum")

    @property
    def rejected(self) -> int:
        """How many samples with a bad index or loss were left out since the last report. Waits for the device."""
        return int(self._store["z_rejected"])

    @property
    def age(self) -> float | None:
        """How long z has followed the losses, in units of its time scale: at 1 it is 63 % of the way there, at 3 95 %.

        The time scale is λ/lr epochs, times |B| under `lam_convention="objective"`, times |B| with `reduction="batch"`,
        and times 1 − μ with momentum. With clipping, or the penalty "huber" or "logcosh", which slow z down, it is at
        most this old. The age is None where it is not tracked: in captured or compiled steps, with an lr on the device
        or steps that a GradScaler may skip there, with a penalty of your own, and where z was loaded without its age.
        Several ranks' batches are taken to be equally large. It is a mean over all samples, visited or not.
        """
        age: float | None = self._store.get("z_age")
        return age

    def grow_older(self, by: float | None) -> None:
        """Add to the age, in units of the time scale; None: from now on it is not known."""
        age = self.age
        if age is not None:
            self._store["z_age"] = None if by is None else age + by

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        z = self.values
        return f"Auxiliary({len(z)} samples, {z.dtype}, {z.device})"

    def check(self) -> None:
        """Report the samples that were left out since the last report, and count from 0 again.

        Raises RejectedSamplesError (a ValueError and an IndexError) if there are any.
        """
        rejected = self.rejected
        if rejected:
            self._store["z_rejected"].zero_()
            raise RejectedSamplesError(self._left_out(rejected))

    def tell(self) -> None:
        """Warn of the samples that were left out, and keep the count: saving a state must not fail because of them."""
        if rejected := self.rejected:
            warn(f"{self._left_out(rejected)} (aux.check() raises for them)")

    def _left_out(self, rejected: int) -> str:
        return f"{rejected} samples came with an index outside [0, {len(self)}) or a negative loss, and were left out"

    def residual(self, losses: Tensor, index: Tensor | None = None, *, root: Tensor | None = None) -> Tensor:
        """Σ |z_i − s_i| over the given samples: 0 when every constraint z_i = √(2 L_i) holds.

        losses: L_i, one per sample. index: which samples; None for all of them in order.
        root: the signed root r_i to compare with instead, where training used one.
        Raises RejectedSamplesError if training has left samples out since the last report.
        """
        self.check()
        check_losses(losses, root, "sample")
        if index is None:
            if len(losses) != len(self):
                raise ValueError(
                    f"without an index there must be one loss for each of the {len(self)} samples, got {len(losses)}"
                )
            index = torch.arange(len(losses), device="cpu")
        index = torch.as_tensor(index, device="cpu")  # this call may wait for the device
        index = checked_index(index, losses, len(self))
        eps = machine_epsilon(losses) if self._store.get("eps") is None else self._store["eps"]
        if bool((losses < -eps).any()):
            raise ValueError(f"losses must be >= 0, got {losses.min().item():.4g}")
        s = root_loss(working(losses.detach()), eps) if root is None else working(root.detach())
        return (self.values[index.to(self.values.device)] - s.to(self.values.device)).abs().sum()

    def descend(
        self,
        where: Tensor | None,
        slope: Tensor,
        rate: float | Tensor,
        momentum: float,
        *,
        skip: Tensor | None = None,
    ) -> None:
        """z_i ← z_i − rate·ℓ̂'_i, where duplicates add up; with momentum, w's heavy ball over all of z.

        where: the index of the sample that each slope belongs to; None for one slope per sample, in order.
        skip: a 0-d bool tensor; if it is true, nothing changes (the host need not know).
        """
        if momentum != 0:
            self.make_momentum()
        m, keep = self.momentum, momentum if skip is None else torch.where(skip, 1.0, momentum)
        if skip is not None:
            slope, rate = torch.where(skip, 0, slope), torch.where(skip, 0.0, rate)
        if m is None or momentum == 0:
            _add(self.values, where, slope, -rate)
        else:
            _add(m.mul_(keep), where, slope, 1)
            _add(self.values, None, m, -rate)

    @torch.inference_mode(False)  # a validation may be what moves z, and later steps must be able to write to it
    def to(self, device: torch.device | str) -> Auxiliary:
        """Move z and what belongs to it to a device; returns itself."""
        for key in STORED:
            if key in self._store:
                held = self._store[key]  # z of a model made on the meta device has no memory yet: it starts at 0
                self._store[key] = torch.zeros_like(held, device=device) if held.is_meta else held.to(device)
        return self

    def reset(self) -> None:
        """Set z, its momentum, its age and the count of rejected samples back to 0."""
        for key in STORED:
            if key in self._store:
                self._store[key].zero_()
        self._store["z_age"] = 0.0

    def state_dict(self) -> dict[str, Tensor]:
        """z and its momentum (RMD's own `state_dict()` holds them too); warns of samples that were left out."""
        self.tell()
        return {key: self._store[key] for key in KEPT if key in self._store}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy z in place. Its age is None afterwards, unless the state has it, as RMD's own has.

        Raises ValueError if the state is for another number of samples, before anything has changed.
        """
        self.check_fits(state)
        if self.values.is_meta:  # nothing can be copied into it
            self.to(state["z"].device)
        if "z_momentum" in state:
            self.make_momentum()
        for key in KEPT:
            if key in self._store:
                self._store[key].copy_(state[key]) if key in state else self._store[key].zero_()
        self._store["z_rejected"].zero_()
        self._store["z_age"] = state.get("z_age")

    def check_fits(self, state: MutableMapping[str, Any]) -> None:
        """Raises ValueError if a state has no z, or one of another length."""
        z = state.get("z")
        if not isinstance(z, Tensor) or z.shape != self.values.shape:
            found = "no z"
            if isinstance(z, Tensor):
                found = f"z for {len(z)} samples" if z.dim() == 1 else f"a z of shape {tuple(z.shape)}"
            raise ValueError(f"the state holds {found}, but this optimizer was made with num_samples={len(self)}")
        m = state.get("z_momentum")
        if m is not None and m.shape != z.shape:
            raise ValueError(f"the state's z_momentum is for {len(m)} samples and its z for {len(z)}")


def _add(to: Tensor, where: Tensor | None, change: Tensor, factor: float | Tensor) -> None:
    """Add factor · change in place, at the indices `where` (duplicates add up), or everywhere if it is None."""
    if isinstance(factor, Tensor):
        change, factor = change * factor, 1
    if where is None:
        to.add_(change, alpha=factor)
    else:
        to.index_add_(0, where, change, alpha=factor)
