"""What floating-point types hold: the one that ψ is computed in, the ends of intervals, and work for a few elements."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

FEW = 4  # at most one in so many elements
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # of as many bytes as an element has


def real(w: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the type that ψ is computed in: float32 for half precision, else as they are."""
    for t in (w, *others):
        if not isinstance(t, Tensor) or not t.is_floating_point():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"a potential takes real floating-point tensors, got {kind}")
    dtype = torch.float64 if w.dtype == torch.float64 else torch.float32
    return tuple(t.to(dtype) for t in (w, *others))


def wide(w: Tensor) -> Tensor:
    """float64 where the device has it: differences of ψ cancel."""
    return w if w.device.type == "mps" else w.double()


def digest(weight: Tensor) -> str:
    """Tells one tensor from another in a checkpoint; the same on every device."""
    total, begin = 0, 1
    for part in weight.reshape(-1).split(2**24):
        bits = part.view(BITS[part.element_size()]).long()
        if part.element_size() == 8:  # the lower half of a round number is 0
            bits = bits ^ (bits >> 32)
        places = torch.arange(begin, begin + 2 * len(bits), 2, device=bits.device)
        total, begin = total + int((bits * places).sum()), begin + 2 * len(bits)
    return f"{total % 2**32:08x}"


def least(dtype: torch.dtype) -> float:
    """The least number > 0 that a weight may become; float16's normal numbers end at 6e-5, which is no small weight."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps if dtype == torch.float16 else info.tiny


def just_inside(domain: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """The last numbers of a type inside an open interval."""
    low, high = domain
    return (
        -_below(-low, dtype) if low > -float("inf") else low,
        _below(high, dtype) if high < float("inf") else high,
    )


def _below(end: float, dtype: torch.dtype) -> float:
    if end == 0:
        return -least(dtype)
    mantissa, exponent = math.frexp(abs(end))
    finer = mantissa == 0.5 and end > 0  # below a power of two numbers are closer to each other
    gap = max(math.ldexp(torch.finfo(dtype).eps, exponent - 1 - finer), least(dtype))
    return (math.ceil(end / gap) - 1) * gap


def except_where(there: Tensor, value: Tensor, other: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """`value`, and other(*tensors) where `there` is true; elementwise.

    On a CPU the other is computed for those elements alone if they are few, and `value` is written to. Elsewhere it
    would make the host wait to look for them, and a compiler has to see all of it.
    """
    if _may_look(value, there, *tensors):
        at = there.nonzero(as_tuple=True)
        if FEW * len(at[0]) <= there.numel():
            return value.index_put_(at, other(*(t[at] for t in tensors))) if len(at[0]) else value
    return torch.where(there, other(*tensors), value)


def _may_look(*tensors: Tensor) -> bool:
    """Whether their values are at hand: not those of a compiler, of a trace, of vmap, or of a gradient to come."""
    traced = torch.compiler.is_compiling() or torch._C._is_tracing() or _get_current_dispatch_mode() is not None
    return not traced and all(
        type(t) in (Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and not (t.requires_grad and torch.is_grad_enabled())
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
        for t in tensors
    )
