"""The mirror step of every closed-form separable potential, as one Triton kernel.

Legend: w weight, g gradient, m momentum, δ (`delta`) change of the dual, α = 1/(q − 1).
`potentials.py` is the readable form of the same mathematics. This file is imported only where there are Triton and a
CUDA device. A type checker does not know Triton's types: hence the ignores on the first lines of the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from mirrordescent.floating import least

if TYPE_CHECKING:
    from mirrordescent.fused import Form

_BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _power(x, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """The power x^K for an integer 0 < K < 64, by squaring."""
    result = 1.0
    for bit in tl.static_range(6):
        if (K >> bit) & 1:
            result = result * x
        x = x * x
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _series(w, t, A: tl.constexpr):  # type: ignore[no-untyped-def]
    """The product w (1 + t)^α for a small t, by the binomial series, as an increment that vanishes with t."""
    C5: tl.constexpr = (A - 4.0) / 5.0
    C4: tl.constexpr = (A - 3.0) / 4.0
    C3: tl.constexpr = (A - 2.0) / 3.0
    C2: tl.constexpr = (A - 1.0) / 2.0
    series = A * C2 * C3 * C4 * C5 * t + A * C2 * C3 * C4
    series = series * t + A * C2 * C3
    series = series * t + A * C2
    series = series * t + A
    return w + w * (series * t)


@triton.jit  # type: ignore[untyped-decorator]
def _qnorm(w, delta, Q: tl.constexpr, POWER: tl.constexpr, ROOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The q-norm step; POWER = q − 1 and ROOT = α where they are integers, else 0.

    a = |w|^{q−1}, t = δ sign(w) / a. Numbers below 2^-126 count as 0.
    """
    A: tl.constexpr = 1.0 / (Q - 1.0)
    # The series is used while its sixth term is below rounding.
    SMALL: tl.constexpr = 1.0 / 32.0 if A <= 1.0 else 1.0 / (32.0 * A)
    signed = tl.where(w < 0, -delta, delta)
    if ROOT > 0:  # |ξ|^α by multiplications
        a = tl.exp2((Q - 1.0) * tl.log2(tl.abs(w)))
        inverse_root = tl.rsqrt(a)
        t = signed * inverse_root * inverse_root
        xi = a + signed
        far = _power(tl.abs(xi), ROOT)
        far = tl.where((xi < 0) != (w < 0), -far, far)
        return tl.where(tl.abs(t) < SMALL, _series(w, t, A), far)
    size = tl.abs(w)
    if POWER > 0:  # a by multiplications
        inverse_root = tl.rsqrt(_power(size, POWER))
        t = signed * inverse_root * inverse_root
    else:
        # w's exponent and the logarithm of its mantissa, kept apart so that q − 1 does not magnify the rounding of
        # their sum. The exponent, put into the bits of 2^23, becomes a float without a conversion, slow on a GPU.
        bits = size.to(tl.int32, bitcast=True)
        e = ((bits >> 23) | 0x4B000000).to(tl.float32, bitcast=True) - 8388735.0  # 2^23 + 127
        rest = tl.log2(((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True))
        t = signed * tl.exp2((1.0 - Q) * e + (1.0 - Q) * rest)
    # A large change: |w| |1 + t|^α, or |δ|^α where w is 0 or below the rounding of ξ.
    free = ~(tl.abs(t) < 16777216.0)
    if Q < 2.0:
        free = free | (size < 1.17549435e-38)
    ratio = tl.where(free, delta, 1.0 + t)
    logarithm = A * tl.log2(tl.abs(ratio))
    if Q < 2.0:  # |1 + t|^α may overflow where its product with |w| does not
        far = tl.exp2(logarithm + tl.where(free, 0.0, e + rest))
    else:
        far = tl.exp2(logarithm) * tl.where(free, 1.0, size)
    far = tl.where(tl.where(free, delta, ratio * w) < 0, -far, far)
    return tl.where((tl.abs(t) < SMALL) & ~free, _series(w, t, A), far)


@triton.jit  # type: ignore[untyped-decorator]
def _entropy(w, delta, TINY: tl.constexpr):  # type: ignore[no-untyped-def]
    # w (e^δ − 1) by its series while |δ| < ½, as an increment that vanishes with δ.
    series = 1.0 + delta * (1.0 / 9.0)
    series = 1.0 + delta * (1.0 / 8.0) * series
    series = 1.0 + delta * (1.0 / 7.0) * series
    series = 1.0 + delta * (1.0 / 6.0) * series
    series = 1.0 + delta * (1.0 / 5.0) * series
    series = 1.0 + delta * (1.0 / 4.0) * series
    series = 1.0 + delta * (1.0 / 3.0) * series
    series = 1.0 + delta * (1.0 / 2.0) * series
    near = w + w * (delta * series)
    half = tl.exp(0.5 * delta)  # e^δ of a large δ may overflow where w e^δ does not
    far = w * half * half
    new = tl.where(tl.abs(delta) < 0.5, near, far)
    return tl.where(new < TINY, TINY, new)  # a NaN stays one


@triton.jit  # type: ignore[untyped-decorator]
def _hypentropy(w, delta, BETA: tl.constexpr):  # type: ignore[no-untyped-def]
    # |δ| ≤ 1: the addition theorem of sinh, as an increment; sinh(δ/2) by its series.
    h = 0.5 * tl.minimum(tl.maximum(delta, -1.0), 1.0)
    h2 = h * h
    sh = h * (1.0 + h2 * (1.0 / 6.0) * (1.0 + h2 * 0.05 * (1.0 + h2 * (1.0 / 42.0) * (1.0 + h2 * (1.0 / 72.0)))))
    size = tl.abs(w)
    if BETA < 1e-15 or BETA > 1e15:  # float32 may not hold its square or its reciprocal
        low, high = tl.minimum(size, BETA), tl.maximum(size, BETA)
        radius = high * tl.sqrt(1.0 + (low / high) * (low / high))
        dual = tl.log(size + radius) - tl.log(BETA)
    else:
        radius = tl.sqrt(w * w + BETA * BETA)
        dual = tl.log((size + radius) * (1.0 / BETA))
    near = w + 2.0 * sh * (w * sh + radius * tl.sqrt(1.0 + sh * sh))
    # Otherwise β sinh(asinh(w/β) + δ); the exponential of a large dual may overflow where β times it does not.
    dual = tl.where(w < 0, -dual, dual) + delta
    up, down = tl.exp(0.5 * dual), tl.exp(-0.5 * dual)
    far = (0.5 * BETA) * up * up - (0.5 * BETA) * down * down
    return tl.where(tl.abs(delta) <= 1.0, near, far)


@triton.jit  # type: ignore[untyped-decorator]
def _step(  # type: ignore[no-untyped-def]
    w_at,
    g_at,
    m_at,
    h_at,
    lr_at,
    scale_at,
    found_at,
    lr,
    momentum,
    n,
    KIND: tl.constexpr,
    NUMBER: tl.constexpr,
    POWER: tl.constexpr,
    ROOT: tl.constexpr,
    FACTOR: tl.constexpr,
    TINY: tl.constexpr,
    MOMENTUM: tl.constexpr,
    LR_TENSOR: tl.constexpr,
    UNSCALE: tl.constexpr,
    MAYBE_SKIP: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    if LR_TENSOR:
        lr = tl.load(lr_at).to(tl.float32)
    stored = tl.load(w_at + at, mask=inside, other=1.0)
    w = stored.to(tl.float32)
    g = tl.load(g_at + at, mask=inside, other=0.0).to(tl.float32)
    if UNSCALE:
        g = g / tl.load(scale_at).to(tl.float32)
    if MAXIMIZE:
        g = -g
    if MOMENTUM:
        m = tl.load(m_at + at, mask=inside, other=0.0)
        # Rounded to its own type before it is used, as a separate buffer would be.
        g = (momentum * m.to(tl.float32) + g).to(m.dtype).to(tl.float32)
    delta = (-lr / FACTOR) * g
    if KIND == "quadratic":
        new = w + delta / tl.load(h_at + at, mask=inside, other=1.0).to(tl.float32)
    elif KIND == "entropy":
        new = _entropy(w, delta, TINY)
    elif KIND == "hypentropy":
        new = _hypentropy(w, delta, NUMBER)
    elif KIND == "linear":
        new = w + delta
    else:
        new = _qnorm(w, delta, NUMBER, POWER, ROOT)
    write = inside
    if MAYBE_SKIP:
        write = write & (tl.load(found_at).to(tl.float32) == 0.0)
    if MOMENTUM:
        tl.store(m_at + at, g.to(m.dtype), mask=write)
    # Numbers below 2^-126 count as 0 here, and a change by 0 leaves every bit as it is.
    tl.store(w_at + at, tl.where(tl.abs(delta) < 1.17549435e-38, stored, new.to(stored.dtype)), mask=write)


def _integer(x: float) -> int:
    """The whole number from 2 to 63 that x is, to within rounding; else 0."""
    near = round(x)
    return near if 2 <= near <= 63 and abs(x - near) < 1e-9 * near else 0


def launch(
    form: Form,
    w: Tensor,
    g: Tensor,
    m: Tensor | None,
    lr: float | Tensor,
    momentum: float,
    maximize: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """One step of one tensor, in place; w, g, m and a tensor `form.weight` must share one dense layout."""
    if w.numel() == 0:
        return
    lr_tensor = isinstance(lr, Tensor) and lr.is_cuda
    with torch.cuda.device(w.device):
        _step[(triton.cdiv(w.numel(), _BLOCK),)](
            w,
            g,
            w if m is None else m,
            w if form.weight is None else form.weight,
            lr if lr_tensor else w,
            w if grad_scale is None else grad_scale,
            w if found_inf is None else found_inf,
            0.0 if lr_tensor else float(lr),
            float(momentum),
            w.numel(),
            KIND=form.kind,
            NUMBER=form.number,
            POWER=_integer(form.number - 1) if form.kind == "qnorm" else 0,
            ROOT=_integer(1 / (form.number - 1)) if form.kind == "qnorm" else 0,
            FACTOR=form.scale,
            TINY=least(w.dtype),
            MOMENTUM=m is not None,
            LR_TENSOR=lr_tensor,
            UNSCALE=grad_scale is not None,
            MAYBE_SKIP=found_inf is not None,
            MAXIMIZE=maximize,
            BLOCK=_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,  # a·b + c is rounded once; Triton's default depends on its release
        )
