"""Every potential, once: a new one is one more row here, and every law runs over it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import mirrordescent as md


@dataclass(frozen=True)
class Case:
    name: str
    potential: md.Potential
    positive: bool = False  # weights > 0 only
    exact_specs: bool = True  # `md.potential(spec)` gives it back

    def weights(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        """Weights inside the domain, of ordinary size."""
        w = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (0.05 + w.abs() if self.positive else w).to(dtype)


def cosh(w: Tensor) -> Tensor:
    return w.cosh()


def barrier(w: Tensor) -> Tensor:
    return w.square() / 2 - w.log()


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
    Case("sum", md.L2() + 0.5 * md.QNorm(3)),
    Case("sum of linear", md.L2() + md.Quadratic(0.5)),
    Case("sum with entropy", md.NegativeEntropy() + md.L2(), positive=True),
    Case("convex", md.Convex(cosh), exact_specs=False),
    Case("convex on a half line", md.Convex(barrier, domain=(0, float("inf"))), positive=True, exact_specs=False),
]
IDS = [case.name for case in CASES]
