"""The base class of all potentials ψ: what they have in common, and those made of others (sums and multiples).

Legend: w weights, d = ∇ψ(w) their dual, δ (`delta`) a change of the dual, ξ = d + δ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from mirrordescent.floating import just_inside, real, wide
from mirrordescent.inputs import positive
from mirrordescent.roots import origin, solve_increasing

_LINE = (-float("inf"), float("inf"))


class Potential(ABC):
    """A strictly convex function ψ of the weights, with its mirror map ∇ψ and the inverse of that.

    A sum `a + b`, a multiple `2 * a` and a fraction `a / 2` of potentials are potentials. `spec` is the string that
    `md.potential` turns back into an equal object. `live` is true if the spec does not hold everything (a user's
    function, a tensor of weights): a checkpoint cannot restore such a potential, so the optimizer that loads it must be
    made with it.

    >>> import torch, mirrordescent as md
    >>> w = torch.tensor([0.5, -2.0])
    >>> md.QNorm(3).gradient(w)
    tensor([ 0.2500, -4.0000])
    >>> (md.L2() + 0.5 * md.QNorm(3)).spec
    'l2 + 0.5 * q=3.0'
    """

    spec: str
    separable = True
    live = False
    # Whether ψ is the same function of one number for every element, so that a step may join tensors, cut them into
    # pieces, and take sharded ones. A user's class that changes the mathematics is not, unless it sets this itself.
    uniform = True
    # The open interval that every weight has to lie in.
    domain: tuple[float, float] = _LINE
    # h when ∇ψ(w) = h·w with one number h: the step is then the plain w + δ/h.
    linear: float | None = None
    # Whether the spec was made up from the name of a user's class, because the class has none.
    _named_by_us = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A user's class that changes the mathematics of one of ours does not inherit its shortcuts.
        changed = {"_terms", "_gradient", "_inverse", "_step"} & cls.__dict__.keys()
        if cls.__module__.partition(".")[0] == "mirrordescent":
            return
        if cls._named_by_us and "spec" in cls.__dict__:
            cls.live, cls._named_by_us = cls.__dict__.get("live", False), False
        elif cls._named_by_us or not hasattr(cls, "spec"):  # a class's name does not tell its objects apart
            cls.spec, cls.live, cls._named_by_us = f"class {cls.__name__}", True, True
        if changed:
            cls.uniform = cls.__dict__.get("uniform", False)  # it may have a number for each weight
            stated = cls.__dict__.get("linear")  # nor what the constructor of one of ours says of it
            if not isinstance(stated, property):
                setattr(cls, "linear", property(lambda self: stated, lambda self, value: None))  # noqa: ARG005, B010

    @abstractmethod
    def _terms(self, w: Tensor) -> Tensor:
        """ψ_k(w_k), elementwise (a potential that is not separable returns one term)."""

    @abstractmethod
    def _gradient(self, w: Tensor) -> Tensor: ...

    @abstractmethod
    def _inverse(self, dual: Tensor) -> Tensor: ...

    @abstractmethod
    def _step(self, w: Tensor, delta: Tensor) -> Tensor: ...

    def domain_error(self, w: Tensor) -> str | None:
        """Why w is outside ψ's domain and what to do about it, or None. Looks at the values, but not for the line."""
        low, high = self.domain
        if self.domain == _LINE or not w.numel():
            return None
        x = torch.view_as_real(w) if w.is_complex() else w
        if bool(((x > low) & (x < high)).all()):
            return None
        return (
            f"{self.spec} is defined on ({low}, {high}), but the weights run from {x.min().item():.4g} to "
            f"{x.max().item():.4g}; start them inside, or use another potential for this parameter group"
        )

    def value(self, w: Tensor) -> Tensor:
        """ψ(w), a scalar."""
        return self._terms(*real(w)).sum()

    def gradient(self, w: Tensor) -> Tensor:
        """∇ψ(w), in the type of w."""
        return self._gradient(*real(w)).to(w.dtype)

    def inverse(self, dual: Tensor) -> Tensor:
        """∇ψ⁻¹(dual), in the type of `dual`."""
        return self._inverse(*real(dual)).to(dual.dtype)

    def divergence(self, w: Tensor, anchor: Tensor) -> Tensor:
        """D_ψ(w, anchor) = ψ(w) − ψ(anchor) − ⟨∇ψ(anchor), w − anchor⟩ ≥ 0, a scalar.

        Close to the anchor the three terms cancel; there ½⟨∇ψ(w) − ∇ψ(anchor), w − anchor⟩ takes over, which differs
        from D_ψ by a term of third order in the distance and is never negative.
        """
        x, a = (wide(t) for t in real(w, anchor))
        psi_x, psi_a, dual = self._terms(x), self._terms(a), self._gradient(a)
        linear = dual * (x - a)
        with torch.no_grad():
            near = 0.5 * (self._gradient(x) - dual) * (x - a)
        if not self.separable:
            linear, near = linear.sum(), near.sum()
        plain = psi_x - psi_a - linear
        doubtful = plain < torch.finfo(plain.dtype).eps ** (2 / 3) * (psi_x.abs() + psi_a.abs() + linear.abs())
        # The derivatives are taken from the three terms everywhere: those do not cancel.
        near = near + (plain - plain.detach())
        return torch.where(doubtful, near, plain).sum().to(real(w)[0].dtype)

    def step(self, w: Tensor, delta: Tensor) -> Tensor:
        """∇ψ⁻¹(∇ψ(w) + delta), in the type of w; where delta is 0 it is w, bit for bit.

        >>> import torch, mirrordescent as md
        >>> md.NegativeEntropy().step(torch.tensor([0.5]), torch.tensor([1.0])) / 0.5
        tensor([2.7183])
        """
        x, change = real(w, delta)
        still = change == 0 if self.separable else (change == 0).all()
        stepped = self._step(x, change).to(w.dtype)
        if self.domain != _LINE:  # rounding to w's type must not put a weight on the edge, from where it never returns
            stepped = stepped.clamp(*just_inside(self.domain, w.dtype))
        kept = w if stepped.requires_grad else w.detach()  # without a gradient through `stepped`, none through w either
        return torch.where(still, kept, stepped)

    def linear_at(self, w: Tensor) -> float | Tensor | None:  # noqa: ARG002 (h may depend on the tensor)
        """h if ∇ψ(w) = h·w, as a number, or one for each weight in the type of w; None if ∇ψ is not linear."""
        return self.linear

    def __add__(self, other: object) -> Potential:
        if not isinstance(other, Potential):
            return NotImplemented
        return Sum([self, other])

    def __mul__(self, factor: object) -> Potential:
        number = _number(factor)
        if number is None:
            return NotImplemented
        if isinstance(self, Sum):  # distributed over the parts, so that no spec needs parentheses
            return Sum([Scaled(number, part) for part in self.parts])
        return Scaled(number, self)

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> Potential:
        number = _number(divisor)
        return NotImplemented if number is None else self * (1 / positive("a potential's divisor", number))

    def __radd__(self, other: object) -> Potential:
        return self if isinstance(other, int) and other == 0 else NotImplemented  # sum() begins with 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Potential):
            return NotImplemented
        return self is other or (not self.live and not other.live and self.spec == other.spec)

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"<potential {self.spec}>"


def _number(value: object) -> float | None:
    """A factor as a plain number; None for what is no number. Raises TypeError for a tensor of several."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool:
            raise TypeError(
                f"a potential's factor must be one number > 0, got {value.dtype} of shape {tuple(value.shape)}; "
                "md.Quadratic(weight) has a number for each weight"
            )
        value = value.detach().item()
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


class Scaled(Potential):
    """c·ψ for a number c > 0; made by `c * psi`."""

    def __init__(self, factor: float, base: Potential) -> None:
        assert not isinstance(base, Sum)  # its multiple is the sum of its parts' multiples
        factor = positive("a potential's factor", factor)
        if isinstance(base, Scaled):
            factor, base = factor * base.factor, base.base
        self.factor: float = factor
        self.base: Potential = base
        self.live, self.separable = base.live, base.separable
        self.uniform, self.domain = base.uniform, base.domain
        self.linear = None if base.linear is None else self.factor * base.linear
        self.spec = f"{self.factor!r} * {base.spec}"

    def domain_error(self, w: Tensor) -> str | None:
        return self.base.domain_error(w)

    def linear_at(self, w: Tensor) -> float | Tensor | None:
        h = self.base.linear_at(w)
        return None if h is None else self.factor * h

    def _terms(self, w: Tensor) -> Tensor:
        return self.factor * self.base._terms(w)

    def _gradient(self, w: Tensor) -> Tensor:
        return self.factor * self.base._gradient(w)

    def _inverse(self, dual: Tensor) -> Tensor:
        return self.base._inverse(dual / self.factor)

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return self.base._step(w, delta / self.factor)


class Sum(Potential):
    """ψ₁ + ψ₂ + … of separable potentials; made by `a + b`. The inverse is found by root finding."""

    def __init__(self, parts: Sequence[Potential]) -> None:
        self.parts: list[Potential] = [p for part in parts for p in (part.parts if isinstance(part, Sum) else [part])]
        for part in self.parts:
            if not part.separable:
                raise TypeError(f"a sum needs separable potentials: {part.spec} couples all weights of a tensor")
        self.live = any(part.live for part in self.parts)
        self.uniform = all(part.uniform for part in self.parts)
        self.linear = None
        if all(part.linear is not None for part in self.parts):
            self.linear = sum(part.linear for part in self.parts if part.linear is not None)
        # The interval on which all parts are defined; roots are looked for only there.
        self.domain = (max(part.domain[0] for part in self.parts), min(part.domain[1] for part in self.parts))
        if not self.domain[0] < self.domain[1]:
            raise ValueError(
                f"the parts of the sum are defined on no common interval: {[p.domain for p in self.parts]}"
            )
        self.spec = " + ".join(part.spec for part in self.parts)

    def domain_error(self, w: Tensor) -> str | None:
        return next((error for part in self.parts if (error := part.domain_error(w)) is not None), None)

    def _terms(self, w: Tensor) -> Tensor:
        return torch.stack([part._terms(w) for part in self.parts]).sum(0)

    def _gradient(self, w: Tensor) -> Tensor:
        return torch.stack([part._gradient(w) for part in self.parts]).sum(0)

    def _inverse(self, dual: Tensor) -> Tensor:
        start = torch.full_like(dual, origin(self.domain))
        return self._step(start, dual - self._gradient(start))

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        if self.linear is not None:
            return w + delta / self.linear
        # In float64: rounding the dual to float32 would swallow small steps that a closed form takes.
        return solve_increasing(self._gradient, wide(w), wide(delta), self.domain).to(w.dtype)
