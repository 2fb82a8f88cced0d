"""ψ as any strictly convex function of a user's."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from mirrordescent.potentials import Potential, wide
from mirrordescent.roots import origin, solve_increasing


class Convex(Potential):
    """Any strictly convex function of a user's that is a sum over the weights: gradient by autograd, inverse by roots.

    function: takes a tensor and returns one of the same shape, each element depending on its own input alone; or their
        sum over all elements, a scalar.
    domain: the open interval where it is defined; the gradient should run from −∞ to ∞ over it, else a step that asks
        for more ends at the domain's edge.
    name: how checkpoints and messages call it.

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
        domain: tuple[float, float] = (-float("inf"), float("inf")),
        name: str | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, got {type(function).__name__}")
        low, high = (float(end) for end in domain) if len(domain) == 2 else (0.0, 0.0)
        if not low < high:
            raise ValueError(f"domain must be an interval (low, high) with low < high, got {domain}")
        self.function, self.domain = function, (low, high)
        self.summed, self.constant = False, 0.0  # whether the function returns the sum, and what it has beside it
        self.spec = f"convex[{name or getattr(function, '__name__', type(function).__name__)}]"
        self._check()

    def _check(self) -> None:
        """Refuse what can be seen at once: a wrong shape, or a gradient that does not increase."""
        reach = torch.tensor([-2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2], dtype=torch.float64, device="cpu")
        middle = origin(self.domain)
        low, high = max(self.domain[0], middle - 2.5), min(self.domain[1], middle + 2.5)
        probe = low + (high - low) * (reach + 2.5) / 5
        try:
            output = self.function(probe)
        except Exception as error:
            raise ValueError(f"function must take a tensor of any shape: {error}") from error
        self._check_output(probe, output)
        try:
            slopes, some = self._gradient(probe), self._gradient(probe[2:5])
        except RuntimeError as error:
            raise ValueError(f"function must be differentiable, and not constant: {error}") from None
        alone = self.summed or torch.allclose(self.function(probe[2:5]), output[2:5], equal_nan=True)
        if not alone or not torch.allclose(some, slopes[2:5], equal_nan=True):
            raise ValueError("function must act elementwise: its value at a weight depends on the other weights")
        self._check_slopes(probe, slopes)
        self._look_far_out()

    def _check_output(self, probe: Tensor, output: Tensor) -> None:
        if not isinstance(output, Tensor) or output.shape not in (probe.shape, ()):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"function must act elementwise: it turned shape {tuple(probe.shape)} into {shape}")
        if output.dtype != probe.dtype:
            raise ValueError(f"function must keep the type of its input: it turned {probe.dtype} into {output.dtype}")
        self.summed = output.dim() == 0
        if self.summed:
            one = probe[:1]
            self.constant = float(2 * self.function(one) - self.function(one.repeat(2)))

    def _check_slopes(self, probe: Tensor, slopes: Tensor) -> None:
        undefined = (~slopes.isfinite()).nonzero()
        if len(undefined):
            k = int(undefined[0])
            raise ValueError(
                f"function has gradient {slopes[k]:.4g} at {probe[k]:.4g}; if it is defined on an interval only, say "
                "so with domain=(low, high)"
            )
        falls = (slopes.diff() <= 0).nonzero()
        if len(falls):
            k = int(falls[0])
            raise ValueError(
                f"function is not strictly convex: its gradient goes from {slopes[k]:.4g} at {probe[k]:.4g} to "
                f"{slopes[k + 1]:.4g} at {probe[k + 1]:.4g}"
            )

    def _look_far_out(self) -> None:
        """Warn of a slope that stops growing: the mirror step has to find a weight with any slope."""
        for end, sign in zip(self.domain, (-1, 1), strict=True):
            if end != sign * float("inf"):
                continue
            out = origin(self.domain) + sign * torch.tensor([1, 1e3, 1e6], dtype=torch.float64, device="cpu")
            try:
                here, near, far = self._gradient(out).tolist()
            except Exception:  # it may not be for weights as large as that
                return
            if abs(far - near) <= 1e-2 * abs(near - here):
                warnings.warn(
                    f"the slope of {self.spec} does not go beyond {far:.2g}: a step that asks for more throws a weight "
                    "far out; add a little of what grows faster to the function, such as 0.005 * w**2",
                    stacklevel=4,
                )
                return

    def domain_error(self, w: Tensor) -> str | None:
        x = torch.view_as_real(w) if w.is_complex() else w
        low, high = self.domain
        if x.numel() == 0 or bool(((x > low) & (x < high)).all()):
            return None
        return (
            f"{self.spec} is defined on ({low}, {high}), but the weights run from {x.min().item():.4g} to "
            f"{x.max().item():.4g}; start them inside, or use another potential for this parameter group"
        )

    def _terms(self, w: Tensor) -> Tensor:
        if not self.summed:
            return self.function(w)
        if not w.numel():
            return w.clone()
        terms: Tensor = torch.func.vmap(self.function)(w.reshape(-1, 1))
        return terms.reshape(w.shape) - self.constant * (1 - 1 / w.numel())

    def _gradient(self, w: Tensor) -> Tensor:
        differentiable = torch.is_grad_enabled() and w.requires_grad
        with torch.enable_grad():
            x = w if differentiable else w.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.function(x).sum(), x, create_graph=differentiable)
        return gradient

    def _inverse(self, dual: Tensor) -> Tensor:
        start = torch.full_like(dual, origin(self.domain))
        return self._step(start, dual - self._gradient(start))

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return solve_increasing(self._gradient, wide(w), wide(delta), self.domain).to(w.dtype)
