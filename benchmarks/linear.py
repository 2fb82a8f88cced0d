"""Over-parameterised linear problems with known minimisers, on which RMD's theorem can be checked exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor, nn

import mirrordescent as md


@dataclass(frozen=True)
class Problem:
    """n equations x_i·w = y_i in p > n unknowns, a potential, and the point w₀ that D_ψ is measured from."""

    potential: str
    x: Tensor  # (n, p)
    y: Tensor  # (n,)
    start: Tensor  # (p,)


def regression(potential: str, *, n: int = 24, p: int = 80, anchor: bool = False, seed: int = 0) -> Problem:
    """Random rows and noisy targets; w₀ is the potential's own minimum, or with `anchor` a random point."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = normal(n, p) / p**0.5
    positive = potential == "entropy"
    truth = normal(p).abs() if positive else normal(p)
    y = x @ truth + 0.1 * normal(n)
    if anchor:
        start = 0.2 + normal(p).abs() if positive else 0.3 * normal(p)
    else:
        start = torch.full((p,), 1 / np.e if positive else 0.0, dtype=torch.float64)
    return Problem(potential, x, y, start)


def exact_minimiser(problem: Problem, lam: float) -> Tensor:
    """argmin λ Σ ½ (x_i·w − y_i)² + D_ψ(w, w₀): closed form for ℓ2, else cvxpy. λ = ∞: argmin D_ψ over solutions."""
    x, y, start = problem.x, problem.y, problem.start
    if problem.potential == "l2":
        ridge = 0.0 if lam == float("inf") else 1 / lam
        kernel = x @ x.T + ridge * torch.eye(len(x), dtype=torch.float64)
        multiplier: Tensor = torch.linalg.solve(kernel, y - x @ start)
        return start + x.T @ multiplier
    w = cp.Variable(x.shape[1])
    slope = md.potential(problem.potential).gradient(start).numpy()
    if problem.potential == "entropy":
        psi = -cp.sum(cp.entr(w))
    else:
        q = float(problem.potential.removeprefix("q="))
        psi = cp.sum(cp.power(cp.abs(w), q)) / q
    divergence = psi - slope @ w
    if lam == float("inf"):
        task = cp.Problem(cp.Minimize(divergence), [x.numpy() @ w == y.numpy()])
    else:
        task = cp.Problem(cp.Minimize(lam / 2 * cp.sum_squares(x.numpy() @ w - y.numpy()) + divergence))
    accuracy = 1e-9
    task.solve(solver=cp.CLARABEL, tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy, max_iter=500)
    assert w.value is not None
    return polish(problem, lam, torch.from_numpy(np.asarray(w.value)))


def polish(problem: Problem, lam: float, w: Tensor) -> Tensor:
    """Newton's method on the optimality condition in the n residuals, from the solver's six or seven digits to all.

    ∇ψ(w) = ∇ψ(w₀) − λ Xᵀ r with r = X w − y (λ = ∞: λ r becomes the multiplier u, and r = 0).
    """
    psi, x, y = md.potential(problem.potential), problem.x, problem.y
    dual0 = psi.gradient(problem.start)
    # u = λ r, from the solver's w by least squares
    u = torch.linalg.lstsq(x.T, (dual0 - psi.gradient(w)).unsqueeze(1)).solution.squeeze(1)

    def defect(u: Tensor) -> Tensor:
        return x @ inverse(dual0 - x.T @ u) - y - (0 if lam == float("inf") else u / lam)

    def inverse(dual: Tensor) -> Tensor:
        if problem.potential == "entropy":
            return (dual - 1).exp()
        q = float(problem.potential.removeprefix("q="))
        return dual.abs().pow(1 / (q - 1)) * dual.sign()

    # The defect has a kink where a weight crosses 0, so a step is taken only as far as it helps.
    for _ in range(50):
        value = defect(u)
        jacobian = torch.func.jacrev(defect)(u)
        step = torch.linalg.lstsq(jacobian, -value.unsqueeze(1)).solution.squeeze(1)
        factor = 1.0
        while factor > 1e-8 and not defect(u + factor * step).norm() < value.norm():
            factor /= 2
        if factor <= 1e-8:
            break
        u = u + factor * step
    return inverse(dual0 - x.T @ u)


@dataclass
class Outcome:
    """Where a run ended."""

    w: Tensor
    z: Tensor
    objective_lam: float
    residual: float  # the largest |z_i − s_i|


def train(
    problem: Problem,
    *,
    lr: float,
    lam: float,
    batch_size: int,
    epochs: int,
    signed: bool = True,
    ragged: bool = False,
    clip: float | None = None,
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
    seed: int = 0,
    settled: float = 0.0,
    **settings: Any,
) -> Outcome:
    """Run RMD on the problem, in float64, in shuffled batches; `ragged` keeps a smaller last batch.

    settled: end before the epochs are over once every |z_i − s_i| is below it, as z and w then stay as they are.
    """
    n = len(problem.y)
    w = nn.Parameter(problem.start.clone())
    optimizer = md.RMD([w], lr=lr, lam=lam, num_samples=n, potential=problem.potential, **settings)
    scheduler = None if schedule is None else schedule(optimizer)
    generator = torch.Generator().manual_seed(seed)
    usable = n if ragged else n - n % batch_size

    @torch.no_grad()
    def gap() -> float:
        residual = problem.x @ w - problem.y
        return (optimizer.aux.values - (residual if signed else residual.abs())).abs().max().item()

    for _ in range(epochs):
        for index in torch.randperm(n, generator=generator)[:usable].split(batch_size):
            residual = problem.x[index] @ w - problem.y[index]
            loss = optimizer.loss(residual.square() / 2, index, root=residual if signed else None)
            loss.backward()
            if clip is not None:
                optimizer.clip_grad_norm_(clip)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
        if settled and gap() < settled:
            break
    return Outcome(w.detach(), optimizer.aux.values.clone(), optimizer.objective_lam(batch_size), gap())


def distance(w: Tensor, exact: Tensor) -> float:
    """‖w − exact‖ / ‖exact‖."""
    return float((w - exact).norm() / exact.norm())
