"""The potentials in closed form: value, gradient (the mirror map ∇ψ), inverse, and the step ∇ψ⁻¹(∇ψ(w) + δ).

Legend: w weights, d = ∇ψ(w) their dual, δ (`delta`) a change of the dual, ξ = d + δ, w′ = ∇ψ⁻¹(ξ).

A new potential is one small class: four pure functions on float32 or float64 tensors, and a row in the table of
`specs.py` so that it has a name. The base class (`base.py`) deals with half precision, the Bregman divergence and
δ = 0 for all of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent.base import Potential
from mirrordescent.floating import digest, except_where, wide
from mirrordescent.inputs import number, positive

_LARGE = 40.0  # from this exponent on an exponential is taken in two factors; in float32 it overflows at 88


class QNorm(Potential):
    """ψ(w) = (1/q) Σ |w|^q for a real q > 1 (the paper's equation for the q-norm update).

    Small q favours sparse weights, q = 2 is SGD's, large q favours weights of one size.
    """

    def __init__(self, q: float) -> None:
        self.q = number("q", q)
        if not 1 < self.q < float("inf"):
            raise ValueError(f"q must be a finite number > 1, got {self.q}")
        self.spec = f"q={self.q!r}"
        self.linear = 1.0 if self.q == 2 else None

    def _terms(self, w: Tensor) -> Tensor:
        return w.abs().pow(self.q) / self.q

    def _gradient(self, w: Tensor) -> Tensor:
        return w.abs().pow(self.q - 1).copysign(w)

    def _inverse(self, dual: Tensor) -> Tensor:
        return dual.abs().pow(1 / (self.q - 1)).copysign(dual)

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        if self.q == 2:
            return w + delta
        # a = |w|^{q−1} through its root, since a itself underflows in float32 (1e-5^9) where δ/a still matters.
        root = w.abs().pow((self.q - 1) / 2)
        t = delta.copysign(delta * w) / root / root  # δ sign(w) / a
        near = self._scaled(w, t.clamp(-0.5, 0.5))
        return except_where(~(t.abs() <= 0.5), near, self._direct, w, delta, root * root, t)

    def _scaled(self, w: Tensor, t: Tensor) -> Tensor:
        """w (1 + t)^{1/(q−1)} for |t| ≤ ½, as an increment that vanishes with t."""
        if self.q == 3:
            return torch.addcmul(w, w, t / (1 + (1 + t).sqrt()))
        if self.q == 1.5:
            return torch.addcmul(w, w, t * (2 + t))
        log = t.log1p() / (self.q - 1)
        relative = torch.addcmul(w, w, log.expm1())
        if math.log(0.5) / (self.q - 1) >= -1:
            return relative
        return except_where(log < -1, relative, lambda w, log: w * log.exp(), w, log)  # w + its increment cancels

    def _direct(self, w: Tensor, delta: Tensor, a: Tensor, t: Tensor) -> Tensor:
        """Through ξ, for a large change or w = 0; |w| |1 + t|^α where a is too small to be added to δ but matters."""
        faint = (a < 1e4 * torch.finfo(w.dtype).tiny) & (t.abs() < 1 / torch.finfo(w.dtype).eps)
        xi = torch.where(faint, (1 + t) * w.sign(), a.copysign(w) + delta)
        return QNorm._inverse(self, xi) * torch.where(faint, w.abs(), 1)


class L2(QNorm):
    """ψ(w) = ½ ‖w‖²: the mirror map is the identity, and SMD is SGD."""

    def __init__(self) -> None:
        super().__init__(2)
        self.spec = "l2"


class L1(QNorm):
    """ψ(w) = ‖w‖_q^q / q with q = 1 + eps: strictly convex, and close to the ℓ1 norm (sparse weights)."""

    def __init__(self, eps: float = 0.1) -> None:
        eps = positive("eps", eps)
        if eps > 1:
            raise ValueError(f"eps must be <= 1, got {eps}: q is 1 + eps; for another q take md.QNorm(q)")
        super().__init__(1 + eps)
        self.spec = "l1" if self.q == 1.1 else self.spec


class LInf(QNorm):
    """ψ(w) = ‖w‖_q^q / q with a large q: close to the ℓ∞ norm (weights in a small range)."""

    def __init__(self, q: float = 10) -> None:
        if number("q", q) < 2:
            raise ValueError(f"q must be >= 2, got {q}: a small q is near the ℓ1 norm, md.L1(eps) or md.QNorm(q)")
        super().__init__(q)
        self.spec = "linf" if self.q == 10 else self.spec


class NegativeEntropy(Potential):
    """ψ(w) = Σ w log w for w > 0; its divergence is the (generalised) Kullback–Leibler divergence."""

    spec = "entropy"
    domain = (0.0, float("inf"))

    def domain_error(self, w: Tensor) -> str | None:
        if w.is_complex():
            return "negative entropy is not defined for complex weights"
        if w.numel() == 0 or bool((w > 0).all()):
            return None
        return (
            f"negative entropy needs every weight > 0, but the smallest is {w.min().item():.4g}; start it from "
            "positive values, use 'hypentropy' for weights of both signs, or put it into a parameter group of its own "
            "with another potential"
        )

    def _terms(self, w: Tensor) -> Tensor:
        return torch.xlogy(w, w)

    def _gradient(self, w: Tensor) -> Tensor:
        return w.log() + 1

    def _inverse(self, dual: Tensor) -> Tensor:
        return (dual - 1).exp()

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        near = torch.addcmul(w, w, delta.expm1())
        return except_where(~(delta.abs() < 0.5), near, self._grown, w, delta)

    def _grown(self, w: Tensor, delta: Tensor) -> Tensor:
        """w e^δ for a large δ, where e^δ may overflow though the product does not."""
        half = (delta / 2).exp()
        return w * half * half


class HyperbolicEntropy(Potential):
    """ψ(w) = Σ w asinh(w/β) − √(w² + β²): weights of both signs, like ℓ2 for |w| ≪ β and like entropy for |w| ≫ β.

    With β = 1 it is ℓ2 for the weights of most networks: give a β below their size (0.01, say) for anything else.
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = positive("beta", beta)
        self.spec = "hypentropy" if self.beta == 1 else f"hypentropy={self.beta!r}"

    def _radius(self, w: Tensor) -> Tensor:
        return torch.hypot(w, torch.full((), self.beta, dtype=w.dtype, device=w.device))

    def _terms(self, w: Tensor) -> Tensor:
        return w * (w / self.beta).asinh() - self._radius(w)

    def _gradient(self, w: Tensor) -> Tensor:
        return (w / self.beta).asinh()

    def _inverse(self, dual: Tensor) -> Tensor:
        half = (dual.abs() / 2).exp()  # half of e^|dual|, as sinh is then, may overflow where β times it does not
        return torch.where(dual.abs() < _LARGE, self.beta * dual.sinh(), (self.beta / 2 * half * half).copysign(dual))

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        # Small change: sinh(asinh(w/β) + δ) by its addition theorem, as an increment that vanishes with δ.
        half = delta.clamp(-1, 1) / 2
        sinh = half.sinh()
        near = torch.addcmul(w, 2 * sinh, w * sinh + self._radius(w) * half.cosh())
        return except_where(~(delta.abs() <= 1), near, self._far, w, delta)

    def _far(self, w: Tensor, delta: Tensor) -> Tensor:
        return self._inverse((w / self.beta).asinh() + delta)


class Quadratic(Potential):
    """ψ(w) = ½ Σ h w² with weights h > 0: a number, or a tensor that broadcasts to the parameter (Fisher weights)."""

    def __init__(self, weight: float | Tensor) -> None:
        self.live = isinstance(weight, Tensor)
        self.uniform = not self.live
        if isinstance(weight, Tensor):
            if weight.numel() == 0 or not bool(((weight > 0) & weight.isfinite()).all()):
                found = f"its smallest is {weight.min().item()}" if weight.numel() else "it is empty"
                hint = "; md.anchored makes weights > 0 of Fisher weights, which may be 0"
                raise ValueError(f"weight must be finite and > 0 everywhere, but {found}{hint}")
            self.weight: float | Tensor = weight.detach().clone()
        else:
            self.weight = self.linear = positive("weight", weight)
        of_tensor = isinstance(self.weight, Tensor) and f"quadratic[tensor {digest(self.weight)}]"
        self.spec = of_tensor or f"quadratic={self.weight!r}"

    def domain_error(self, w: Tensor) -> str | None:
        if not isinstance(self.weight, Tensor):
            return None
        if w.is_complex():
            return "a quadratic potential with a tensor of weights is not defined for complex weights"
        shape = tuple(self.weight.shape)
        try:
            if torch.broadcast_shapes(shape, w.shape) == w.shape:
                return None
        except RuntimeError:
            pass
        return (
            f"the quadratic potential's weight has shape {shape}, which does not broadcast to {tuple(w.shape)}; give "
            "each parameter a group of its own with its own md.Quadratic(weight)"
        )

    def _at(self, w: Tensor) -> float | Tensor:
        if not isinstance(self.weight, Tensor):
            return self.weight
        if self.weight.device != w.device:  # move it once, not at every step
            self.weight = self.weight.to(w.device)
        return self.weight.to(w.dtype)

    def linear_at(self, w: Tensor) -> float | Tensor | None:
        return self._at(w) if type(self) is Quadratic else self.linear  # a subclass may step differently

    def _terms(self, w: Tensor) -> Tensor:
        return 0.5 * self._at(w) * w * w

    def _gradient(self, w: Tensor) -> Tensor:
        return self._at(w) * w

    def _inverse(self, dual: Tensor) -> Tensor:
        return dual / self._at(dual)

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return w + delta / self._at(w)


class SquaredNorm(Potential):
    """ψ(w) = ½ ‖w‖_q², the norm of one parameter tensor; not separable.

    With v the q-norm step of w/N by δ/N, where N = ‖w‖_q, the step is N·v·‖v‖_q^{q−2}, without forming the dual; only
    for δ much larger than N does the step go through it.
    """

    separable = False
    uniform = False

    def __init__(self, q: float) -> None:
        self._qnorm = QNorm(q)
        self.q = self._qnorm.q
        self.linear = self._qnorm.linear
        self.spec = f"squarednorm={self.q!r}"

    def _norm(self, w: Tensor, q: float) -> Tensor:
        if not w.numel():
            return w.new_zeros(())
        top = w.detach().abs().amax()  # relative to it, powers do not overflow
        top = torch.where((top > 0) & top.isfinite(), top, 1)
        norm: Tensor = top * torch.linalg.vector_norm((w / top).flatten(), q)
        return norm

    def _terms(self, w: Tensor) -> Tensor:
        return self._norm(w, self.q).square() / 2

    def _map(self, w: Tensor, q: float) -> Tensor:
        """∇ ½‖w‖_q²; with the conjugate exponent, its inverse."""
        norm = self._norm(w, q)
        scaled = w / torch.where(norm > 0, norm, 1)
        return norm * scaled.abs().pow(q - 1).copysign(w)

    def _gradient(self, w: Tensor) -> Tensor:
        return self._map(w, self.q)

    def _inverse(self, dual: Tensor) -> Tensor:
        return self._map(dual, self.q / (self.q - 1))

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        if self.linear is not None:
            return w + delta
        x, change = wide(w), wide(delta)
        if not x.numel():
            return w.clone()
        norm = self._norm(x, self.q)
        # If δ is much larger than N, the dual loses no accuracy, and a high power of δ/N would overflow (near q = 1 the
        # power 1/(q − 1) is so high that 1 + δ/N overflows under it for a smaller δ, too).
        near_enough = min(2.0, math.expm1(min((self.q - 1) * math.log(torch.finfo(x.dtype).max) / 2, 1.5)))
        far = change.abs().amax() > near_enough * norm
        norm = torch.where(norm > 0, norm, 1)
        v = self._qnorm.step(x / norm, torch.where(far, 0, change) / norm)
        size = self._norm(v, self.q)
        near = norm * v * torch.where(size > 0, size, 1).pow(self.q - 2)
        return torch.where(far, self._inverse(self._gradient(x) + change), near).to(w.dtype)
