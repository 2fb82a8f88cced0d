"""Inverting an increasing function on a whole tensor at once, with a guarantee.

The mirror step of a potential without a closed form asks for x with g(x) = g(w) + δ, elementwise, where g = ∇ψ is
increasing. Secant steps do the work; a bisection *of the floating-point numbers themselves* guards them: between two
float32 numbers there are fewer than 2³² others, so halving their count ends on neighbours after 32 halvings, however
steep, flat or fast-growing g is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mirrordescent.eager import always_eager, may_wait

_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
_UNGUARDED = 4  # so many attempts are secants at first: a training step is small, and few are enough
_NOW_AND_THEN = 8  # attempts between two looks on a GPU; a training step takes about as many


def _to_rank(x: Tensor) -> Tensor:
    """The position of a float among all floats of its type: an integer that increases with x."""
    bits = x.view(_INTEGER[x.dtype])
    return bits ^ ((bits >> (torch.iinfo(bits.dtype).bits - 1)) & torch.iinfo(bits.dtype).max)


def _from_rank(rank: Tensor, dtype: torch.dtype) -> Tensor:
    bits = rank ^ ((rank >> (torch.iinfo(rank.dtype).bits - 1)) & torch.iinfo(rank.dtype).max)
    return bits.view(dtype)


def _middle(low: Tensor, high: Tensor) -> Tensor:
    """The float that has as many floats between itself and `low` as between itself and `high`."""
    a, b = _to_rank(low), _to_rank(high)
    return _from_rank((a & b) + ((a ^ b) >> 1), low.dtype)


def origin(domain: tuple[float, float]) -> float:
    """A point well inside an open interval: 0 where it can be."""
    low, high = domain
    if low < 0 < high:
        return 0.0
    if high == float("inf"):
        return low + 1
    return high - 1 if low == -float("inf") else (low + high) / 2


def _last_inside(domain: tuple[float, float], dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest finite float of a type inside an open interval, as numbers."""
    largest = torch.finfo(dtype).max
    ends = torch.tensor([max(domain[0], -largest), min(domain[1], largest)], dtype=dtype, device="cpu")
    if domain[0] > -largest or domain[1] < largest:
        ends = torch.nextafter(ends, ends.flip(0))
    return ends[0].item(), ends[1].item()


def _looks_every(device: torch.device) -> int:
    """After how many attempts at a time the loop looks whether it is done; 0 where it must not look."""
    if device.type == "cpu":
        return 1
    return _NOW_AND_THEN if device.type == "cuda" and may_wait() else 0


@always_eager
@torch.no_grad()
def solve_increasing(
    function: Callable[[Tensor], Tensor],
    start: Tensor,
    delta: Tensor,
    domain: tuple[float, float] = (-float("inf"), float("inf")),
) -> Tensor:
    """The x with function(x) = function(start) + delta, elementwise, for an increasing function.

    Where the function never rises (or falls) that far inside the open interval `domain`, the result is the last float
    inside it. Values that are NaN count as lying beyond the answer, so a function may overflow far from it. An element
    that is exact to rounding stays as it is, and when all are, the loop ends: at once on a CPU, at the next look on a
    GPU, where looking makes the host wait; while a graph is captured it runs its full length, to the same bits. There
    is no derivative through it.
    """
    dtype, limits = start.dtype, torch.finfo(start.dtype)
    lowest, highest = _last_inside(domain, dtype)
    upward = delta > 0
    g_start = function(start)
    target = g_start + delta
    tolerance = 2 * limits.eps * (g_start.abs() + delta.abs())

    low = torch.where(upward, start, lowest)
    high = torch.where(upward, highest, start)
    far_end = torch.where(upward, high, low)
    # The first secant goes through the start and a probe beside it; later ones through the two closest points, or
    # through the closest and the last one tried if nothing has come closer since the previous secant.
    probe = start + torch.where(upward, 1.0, -1.0) * (start.abs() * limits.eps**0.5 + limits.eps)
    x, f = probe, function(probe) - target
    best_x, best_f = start, -delta
    old_x, old_f, closer = x, f, torch.zeros_like(upward)
    looks_every, settled = _looks_every(start.device), torch.zeros_like(upward)
    for attempt in range(_UNGUARDED + 2 * limits.bits):
        beyond = torch.where(f.isnan(), upward, f > 0)
        in_bracket = (low < x) & (x < high)
        low = torch.where(in_bracket & ~beyond, x, low)
        high = torch.where(in_bracket & beyond, x, high)
        better = (f.abs() < best_f.abs()) & ~settled
        closer = closer | better
        old_x, old_f = torch.where(better, best_x, old_x), torch.where(better, best_f, old_f)
        best_x, best_f = torch.where(better, x, best_x), torch.where(better, f, best_f)
        width = 4 * limits.eps * best_x.abs() + limits.tiny
        if attempt >= _UNGUARDED:  # not earlier: a step below the tolerance would count as settled untaken
            settled |= (best_f.abs() <= tolerance) | (torch.nextafter(low, high) >= high) | best_f.isnan()
        if looks_every and (attempt + 1) % looks_every == 0 and bool(settled.all()):
            break
        candidate = _middle(low, high)
        if attempt < _UNGUARDED or attempt % 2 == 0:  # from then on every second point is the bisection's
            other_x, other_f = torch.where(closer, old_x, x), torch.where(closer, old_f, f)
            secant = best_x - best_f * ((best_x - other_x) / (best_f - other_f))
            # A root close to one end: a point a little beyond it brings the other end close as well.
            secant = torch.minimum(torch.maximum(secant, low + width), high - width)
            candidate = torch.where((low < secant) & (secant < high), secant, candidate)
            closer = torch.zeros_like(closer)
        x = candidate
        f = function(x) - target
    # If no float in the domain reaches the target, the far end is the nearest answer.
    unreached = best_f.abs() > 64 * tolerance
    edge = torch.where(upward, low, high)
    best_x = torch.where(unreached & ((function(edge) - target).abs() <= best_f.abs()), edge, best_x)
    best_x = torch.where(delta.isinf(), far_end, best_x)
    best_x = torch.where(delta.isnan() | start.isnan(), torch.nan, best_x)
    return torch.where(delta == 0, start, best_x).to(dtype)
