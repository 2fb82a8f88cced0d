"""Sharded parameters (DTensor, of FSDP2 or tensor parallelism): each rank steps the part that it has."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(w: Tensor) -> bool:
    """Whether a tensor is spread over several ranks; without importing what makes such tensors."""
    return hasattr(w, "to_local")


def own_part(t: Tensor, like: Any = None) -> Tensor:
    """The part of a tensor that this rank has, in the tensor's own memory; any other tensor as it is.

    like: a sharded tensor, as which `t` is cut up first where it is not yet. All ranks have to ask then.
    """
    whole: Any = t
    if not is_sharded(t):
        return t
    if like is not None and (whole.placements, whole.device_mesh) != (like.placements, like.device_mesh):
        whole = whole.redistribute(like.device_mesh, like.placements)
    part: Tensor = whole.to_local()
    return part


def everywhere(t: Tensor) -> Tensor:
    """A number that all ranks have together, as each of them needs it."""
    whole: Any = t
    full: Tensor = whole.full_tensor() if is_sharded(t) else t
    return full
