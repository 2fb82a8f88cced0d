"""Sharded parameters (DTensor, of FSDP2 or tensor parallelism): each rank steps the part that it has."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(w: Tensor) -> bool:
    """Whether a tensor is a DTensor, spread over several ranks; found out without importing that class."""
    return hasattr(w, "to_local")


def own_part(t: Tensor, like: Any = None) -> Tensor:
    """The part of a sharded tensor that this rank has, in the tensor's own memory; any other tensor as it is.

    like: a sharded tensor; if `t` is laid out differently, it is first cut up like it. All ranks must then call this.
    """
    whole: Any = t
    if not is_sharded(t):
        return t
    if like is not None and (whole.placements, whole.device_mesh) != (like.placements, like.device_mesh):
        whole = whole.redistribute(like.device_mesh, like.placements)
    part: Tensor = whole.to_local()
    return part


def everywhere(t: Tensor) -> Tensor:
    """The whole of a tensor, such as a norm, that may be spread over the ranks; all ranks must call this."""
    whole: Any = t
    full: Tensor = whole.full_tensor() if is_sharded(t) else t
    return full
