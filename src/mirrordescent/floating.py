"""Floating-point helpers: the type that ψ is computed in, the last numbers of a type, branches for a few elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

FEW = 4  # "a few" elements are at most one in so many
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer types, by their size in bytes


def real(w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that ψ is computed in: float64 if w is, else float32."""
    for t in (w, *others):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"a potential takes real floating-point tensors, got {kind}")
    dtype = torch.float64 if w.dtype == torch.float64 else torch.float32
    return tuple(t.to(dtype) for t in (w, *others))


def widest(device: torch.device) -> torch.dtype:
    """The type with the most digits that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(w: Tensor) -> Tensor:
    """w in float64, where the device has it, as differences of ψ cancel."""
    return w.to(widest(w.device))


def digest(weight: Tensor) -> str:
    """A checksum of the bits, to tell tensors apart in a checkpoint; the same on every device."""
    total, begin = 0, 1
    for part in weight.reshape(-1).split(2**24):
        bits = part.view(BITS[part.element_size()]).long()
        if part.element_size() == 8:  # fold the halves: the lower one of a round number is 0
            bits = bits ^ (bits >> 32)
        places = torch.arange(begin, begin + 2 * len(bits), 2, device=bits.device)
        total, begin = total + int((bits * places).sum()), begin + 2 * len(bits)
    return f"{total % 2**32:08x}"


def least(dtype: torch.dtype) -> float:
    """The least number > 0 that a weight may become: a subnormal in float16, whose least normal, 6e-5, is not small."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny


def just_inside(domain: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """The first and last numbers of a type inside an open interval; an infinite end stays infinite."""
    low, high = domain
    return (
        -_below(-low, dtype) if low > -float("inf") else low,
        _below(high, dtype) if high < float("inf") else high,
    )


def _below(end: float, dtype: torch.dtype) -> float:
    if end == 0:
        return -least(dtype)
    mantissa, exponent = math.frexp(abs(end))
    finer = mantissa == 0.5 and end > 0  # just below a power of two the numbers are closer together
    gap = max(math.ldexp(torch.finfo(dtype).eps, exponent - 1 - finer), least(dtype))
    return (math.ceil(end / gap) - 1) * gap


def except_where(there: Tensor, value: Tensor, other: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """other(*tensors) where `there` is true, else `value`; elementwise.

    On a CPU, if those elements are few, `other` is computed for them alone and written into `value`, in place. On a GPU
    looking for them would make the host wait, and a compiler must see the whole computation.
    """
    if _may_look(value, there, *tensors):
        at = there.nonzero(as_tuple=True)
        if FEW * len(at[0]) <= there.numel():
            return value.index_put_(at, other(*(t[at] for t in tensors))) if len(at[0]) else value
    return torch.where(there, other(*tensors), value)


def _may_look(*tensors: Tensor) -> bool:
    """Whether values may be looked at: on a CPU, neither compiled, traced, under vmap, nor with a gradient to come."""
    traced = torch.compiler.is_compiling() or torch._C._is_tracing() or _get_current_dispatch_mode() is not None
    return not traced and all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and not (t.requires_grad and torch.is_grad_enabled())
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
        for t in tensors
    )
