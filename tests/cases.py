"""Every potential, once: a new one is one more row here, and every law runs over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import mirrordescent as md


@dataclass(frozen=True)
class Case:
    name: str
    potential: md.Potential
    positive: bool = False  # weights > 0 only
    exact_specs: bool = True  # `md.potential(spec)` gives it back
    inverse: Callable[[Tensor], Tensor] | None = None  # by hand, where the potential itself looks for roots

    def weights(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        """Weights inside the domain, of ordinary size."""
        w = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (0.05 + w.abs() if self.positive else w).to(dtype)


def cosh(w: Tensor) -> Tensor:
    return w.cosh()


def barrier(w: Tensor) -> Tensor:
    return w.square() / 2 - w.log()


def of_the_sum(dual: Tensor) -> Tensor:
    """w + ½ w|w| = dual."""
    return ((1 + 2 * dual.abs()).sqrt() - 1).copysign(dual)


def of_the_sum_with_entropy(dual: Tensor) -> Tensor:
    """log w + 1 + w = dual, by Newton's method on t = log w from the right, where t + e^t is convex."""
    goal = dual - 1
    t = torch.where(goal < 1, goal, goal.clamp_min(1).log())
    for _ in range(20):
        t = t - (t + t.exp() - goal) / (1 + t.exp())
    return t.exp()


def of_the_barrier(dual: Tensor) -> Tensor:
    """w − 1/w = dual, without a difference."""
    radius = (dual.square() + 4).sqrt() + dual.abs()
    return torch.where(dual > 0, radius / 2, 2 / radius)


CASES = [
    Case("l2", md.L2()),
    Case("l1", md.L1()),
    Case("linf", md.LInf()),
    Case("q=1.5", md.QNorm(1.5)),
    Case("q=3", md.QNorm(3)),
    Case("entropy", md.NegativeEntropy(), positive=True),
    Case("hypentropy", md.HyperbolicEntropy()),
    Case("hypentropy=0.1", md.HyperbolicEntropy(0.1)),
    Case("quadratic", md.Quadratic(0.3)),
    Case("squarednorm=1.5", md.SquaredNorm(1.5)),
    Case("squarednorm=2", md.SquaredNorm(2)),
    Case("squarednorm=3", md.SquaredNorm(3)),
    Case("multiple", 2 * md.L2()),
    Case("multiple of q=3", 0.7 * md.QNorm(3)),
    Case("sum", md.L2() + 0.5 * md.QNorm(3), inverse=of_the_sum),
    Case("sum of linear", md.L2() + md.Quadratic(0.5)),
    Case("sum with entropy", md.NegativeEntropy() + md.L2(), positive=True, inverse=of_the_sum_with_entropy),
    Case("convex", md.Convex(cosh), exact_specs=False, inverse=torch.asinh),
    Case(
        "convex on a half line",
        md.Convex(barrier, domain=(0, float("inf"))),
        positive=True,
        exact_specs=False,
        inverse=of_the_barrier,
    ),
]
IDS = [case.name for case in CASES]
every_case = pytest.mark.parametrize("case", CASES, ids=IDS)
