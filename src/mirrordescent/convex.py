"""`Convex`: a potential ψ made from a strictly convex function of the user's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mirrordescent.base import Potential
from mirrordescent.caller import warn
from mirrordescent.floating import wide
from mirrordescent.inputs import number
from mirrordescent.roots import origin, solve_increasing

SOME = slice(150, 250, 17)  # selects six of the probe's points


class Convex(Potential):
    """Σ f(w) for a strictly convex function f of your own: its gradient by autograd, the inverse by root finding.

    function: takes a tensor and returns one of the same shape, each element depending on its own input alone; or the
        sum over all elements, a scalar.
    domain: the open interval where it is defined, the whole line unless given; the gradient should run from −∞ to ∞
        over it, else a step beyond the gradient's range ends at the domain's edge.
    name: what checkpoints and messages call it.

    >>> import torch, mirrordescent as md
    >>> psi = md.Convex(lambda w: w**4 / 4 + w**2 / 2)
    >>> psi.inverse(psi.gradient(torch.tensor([0.5, -2.0])))
    tensor([ 0.5000, -2.0000])
    """

    live = True

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        *,
        domain: tuple[float, float] | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        ends = (-float("inf"), float("inf")) if domain is None else domain
        if not isinstance(ends, (tuple, list)):
            raise TypeError(f"domain must be an interval (low, high), got {ends!r}")
        low, high = (number("an end of domain", end) for end in ends) if len(ends) == 2 else (0.0, 0.0)
        if not low < high:
            raise ValueError(f"domain must be an interval (low, high) with low < high, got {ends}")
        self.function, self.domain = function, (low, high)
        self.summed, self.constant = False, 0.0  # whether the function returns the sum, and a constant in it
        self.spec = f"convex[{name or getattr(function, '__name__', type(function).__name__)}]"
        self._check()

    def _check(self) -> None:
        """Refuse what can be seen at once: a wrong shape, a gradient that does not increase, a corner at 0."""
        steps = torch.logspace(-4, math.log10(2), 200, dtype=torch.float64, device="cpu")
        probe = self._around(torch.cat([-steps.flip(0), torch.zeros_like(steps[:1]), steps]))
        try:
            output, some = self.function(probe), self.function(probe[SOME].reshape(2, 3))
        except Exception as error:
            hint = "; if each weight has a factor of its own, use md.Quadratic(weight)"
            raise ValueError(f"function must take a tensor of any shape: {str(error) or repr(error)}{hint}") from error
        self._check_output(probe, output)
        self._check_output(probe[SOME].reshape(2, 3), some)
        self.summed = output.dim() == 0
        if self.summed:
            self.constant = float(2 * self.function(probe[:1]) - self.function(probe[:1].repeat(2)))
        try:
            slopes, few = self._gradient(probe), self._gradient(probe[SOME])
        except RuntimeError as error:
            raise ValueError(f"function must be differentiable, and not constant: {error}") from None
        alone = self.summed or torch.allclose(some.flatten(), output[SOME], equal_nan=True)
        if not alone or not torch.allclose(few, slopes[SOME], equal_nan=True):
            raise ValueError("function must act elementwise: its value at a weight depends on the other weights")
        wide_apart = self._around(_numbers(-2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2))
        self._check_slopes(wide_apart, self._gradient(wide_apart), rising=True)
        self._check_slopes(probe, slopes, rising=False)
        self._check_corner()
        self._look_far_out()

    def _around(self, reach: Tensor) -> Tensor:
        """Map [−2, 2] to points around the middle of the domain, inside it; on the whole line, to themselves."""
        middle = origin(self.domain)
        low, high = max(self.domain[0], middle - 2.5), min(self.domain[1], middle + 2.5)
        return low + (high - low) * (reach + 2.5) / 5

    def _check_output(self, probe: Tensor, output: Tensor) -> None:
        if not isinstance(output, Tensor) or output.shape not in (probe.shape, ()):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"function must act elementwise: it turned shape {tuple(probe.shape)} into {shape}")
        if output.dtype != probe.dtype:
            raise ValueError(f"function must keep the type of its input: it turned {probe.dtype} into {output.dtype}")

    def _check_slopes(self, probe: Tensor, slopes: Tensor, *, rising: bool) -> None:
        """Refuse slopes that are not finite, fall, or stay equal; unless `rising`, rounding may make them equal.

        That happens to w^6 + w near 0, where the slopes beside the equal ones hardly rise either. If the gradient
        really stays the same for a while, it visibly rises beside that.
        """
        undefined = (~slopes.isfinite()).nonzero()
        if len(undefined):
            k = int(undefined[0])
            raise ValueError(
                f"function has gradient {slopes[k]:.4g} at {probe[k]:.4g}; if it is defined on an interval only, say "
                "so with domain=(low, high)"
            )
        rise = slopes.diff()
        beside = torch.nn.functional.pad(rise, (1, 1))
        most_beside = torch.maximum(beside[:-2], beside[2:])
        rounded = (rise == 0) & (most_beside <= 1e-9 * slopes.abs().max())
        falls = ((rise <= 0) & (rising | ~rounded)).nonzero()
        if len(falls):
            k = int(falls[0])
            raise ValueError(
                f"function is not strictly convex: its gradient goes from {slopes[k]:.4g} at {probe[k]:.4g} to "
                f"{slopes[k + 1]:.4g} at {probe[k + 1]:.4g}"
            )

    def _check_corner(self) -> None:
        """Refuse corners such as |w|'s: of the many slopes at 0 autograd knows one, and a weight that gets there stays.

        A steep slope is no corner: that of |w|^1.01 climbs only about half as far between ±1e-30 as between ±1e-3.
        """
        if not self.domain[0] < -1e-3 < 1e-3 < self.domain[1]:
            return
        reach = (1e-3, 1e-6, 1e-9)  # several, as the function may be curved beside a corner
        near = self._gradient(_numbers(*(-x for x in reach), -1e-30, 1e-30, *reversed(reach))).tolist()
        least, most = near[len(reach)], near[len(reach) + 1]
        climbs = [above - below for below, above in zip(near[: len(reach)], reversed(near[-len(reach) :]), strict=True)]
        if any(most - least > 0.9 * climb > 0 for climb in climbs):
            raise ValueError(
                f"function has a corner at 0, where its slope jumps from {least:.4g} to {most:.4g}: weights that come "
                "there would stay; round it off, as in (w**2 + 1e-6).sqrt() for w.abs(), or use md.L1()"
            )

    def _look_far_out(self) -> None:
        """Refuse a slope that falls further out, and warn of one that stops growing: a step may ask for any slope."""
        for end, sign in zip(self.domain, (-1, 1), strict=True):
            if end != sign * float("inf"):
                continue
            out = origin(self.domain) + sign * _numbers(*(10.0**k for k in range(7)))
            try:
                found = sign * self._gradient(out)
            except Exception:  # the function may not take weights as large as these
                return
            slopes = found[: int(found.isfinite().long().cumprod(0).sum())].tolist()  # cosh overflows early
            for k, (near, far) in enumerate(itertools.pairwise(slopes)):
                if far < near - 1e-9 * abs(near):
                    raise ValueError(
                        f"function is not strictly convex: its gradient goes from {sign * near:.4g} at {out[k]:.4g} to "
                        f"{sign * far:.4g} at {out[k + 1]:.4g}; if it is for an interval only, say so with "
                        "domain=(low, high)"
                    )
            if len(slopes) > 2 and slopes[-1] - slopes[-2] <= 1e-2 * abs(slopes[-2] - slopes[0]):
                warn(
                    f"the slope of {self.spec} does not go beyond {sign * slopes[-1]:.2g}: a step that asks for more "
                    "throws a weight far out; add what grows faster to the function, such as 0.1 * w**2 (a smaller "
                    "factor lets weights go further)"
                )
                return

    def _terms(self, w: Tensor) -> Tensor:
        x = wide(w)
        if not self.summed:
            return self.function(x).to(w.dtype)
        if not w.numel():
            return w.clone()
        terms: Tensor = torch.func.vmap(self.function)(x.reshape(-1, 1))
        return (terms.reshape(w.shape) - self.constant * (1 - 1 / w.numel())).to(w.dtype)

    def _gradient(self, w: Tensor) -> Tensor:
        differentiable = torch.is_grad_enabled() and w.requires_grad
        with torch.inference_mode(mode=False), torch.enable_grad():
            x = wide(w) if differentiable else _leaf(wide(w))
            (gradient,) = torch.autograd.grad(self.function(x).sum(), x, create_graph=differentiable)
        return gradient.to(w.dtype)

    def _inverse(self, dual: Tensor) -> Tensor:
        start = torch.full_like(dual, origin(self.domain))
        return self._step(start, dual - self._gradient(start))

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        found, most = solve_increasing(self._gradient, wide(w), wide(delta), self.domain), torch.finfo(w.dtype).max
        return torch.where(w.isfinite(), found.clamp(-most, most), found).to(w.dtype)


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _leaf(w: Tensor) -> Tensor:
    """The same numbers as a leaf to differentiate by; inference tensors cannot require gradients and are copied."""
    return (w.clone() if w.is_inference() else w.detach()).requires_grad_()
