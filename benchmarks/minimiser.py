"""How close RMD ends to the exact minimiser of λ' Σ L_i(w) + D_ψ(w, w₀), on models where that is known.

python benchmarks/minimiser.py --out results/minimiser.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from linear import Problem, distance, exact_minimiser, regression, train
from recording import record
from torch import Tensor, nn
from torch.nn import functional as F

import mirrordescent as md

RATES = {"l2": 2.4, "q=1.5": 1.6, "q=3": 0.9, "entropy": 2.4}
WAYS: dict[str, dict[str, Any]] = {
    "signed root": {"signed": True},
    "losses alone": {"signed": False},
    "batch (Algorithm 2)": {"signed": False, "reduction": "batch"},
}


def on_regression(epochs: int, seeds: int) -> dict[str, Any]:
    """40 equations in 200 unknowns, batch 8, λ' = 2: distance from the minimiser, and the largest |z − s| left."""
    results: dict[str, Any] = {}
    for potential, lr in RATES.items():
        for way, settings in WAYS.items():
            far, left = [], []
            for seed in range(seeds):
                problem: Problem = regression(potential, n=40, p=200, seed=seed)
                outcome = train(problem, lr=lr, lam=16.0, batch_size=8, epochs=epochs, seed=seed, **settings)
                far.append(distance(outcome.w, exact_minimiser(problem, outcome.objective_lam)))
                left.append(outcome.residual)
            results[f"{potential}, {way}"] = {"distance": far, "residual": left}
            print(f"{potential:8} {way:20} distance {max(far):.2g}   residual {max(left):.2g}   (worst of {seeds})")
    return results


def softmax_problem(seed: int) -> tuple[Tensor, Tensor]:
    """60 points of three classes in 100 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(3, 100, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (60,), generator=generator)
    x = (centres[y] + 2 * torch.randn(60, 100, generator=generator, dtype=torch.float64)) / 10
    return x, y


def softmax_objective(w: Tensor, x: Tensor, y: Tensor, lam: float) -> Tensor:
    return lam * F.cross_entropy(x @ w.T, y, reduction="sum") + w.square().sum() / 2


def exact_softmax(x: Tensor, y: Tensor, lam: float) -> Tensor:
    """argmin λ Σ cross-entropy + ½ ‖w‖², by Newton's method: smooth and strongly convex."""
    w = torch.zeros(3, x.shape[1], dtype=torch.float64)

    def objective(flat: Tensor) -> Tensor:
        return softmax_objective(flat.view(3, -1), x, y, lam)

    flat = w.flatten()
    for _ in range(30):
        gradient = torch.func.grad(objective)(flat)
        step = torch.linalg.solve(torch.func.hessian(objective)(flat), gradient)
        flat = flat - step
        if step.norm() < 1e-13 * flat.norm():
            break
    return flat.view(3, -1)


def on_softmax(epochs: int, seeds: int) -> dict[str, Any]:
    """Linear softmax with ψ = ½‖w‖² and batch 6, at mild and at strong regularization."""
    results: dict[str, Any] = {}
    for lam in (10.0, 1.0, 0.1):  # λ' in the objective
        for reduction in ("sample", "batch"):
            far, excess, left = [], [], []
            for seed in range(seeds):
                x, y = softmax_problem(seed)
                w = nn.Parameter(torch.zeros(3, 100, dtype=torch.float64))
                optimizer = md.RMD([w], lr=0.5 * min(1.0, 6 * lam), lam=6 * lam, num_samples=60, reduction=reduction)
                generator = torch.Generator().manual_seed(seed)
                for _ in range(epochs):
                    for index in torch.randperm(60, generator=generator).split(6):
                        optimizer.zero_grad()
                        losses = F.cross_entropy(x[index] @ w.T, y[index], reduction="none")
                        optimizer.loss(losses, index).backward()
                        optimizer.step()
                exact = exact_softmax(x, y, lam)
                far.append(distance(w.detach(), exact))
                best = softmax_objective(exact, x, y, lam)
                excess.append(float(softmax_objective(w.detach(), x, y, lam) / best - 1))
                with torch.no_grad():
                    s = (2 * F.cross_entropy(x @ w.T, y, reduction="none")).sqrt()
                    left.append(float((optimizer.aux.values - s).abs().max()))
            name = f"lam'={lam}, {reduction}"
            results[name] = {"distance": far, "excess objective": excess, "residual": left}
            print(f"softmax {name:20} distance {max(far):.2g}  excess {max(excess):.2g}  residual {max(left):.2g}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "regression": on_regression(arguments.epochs, arguments.seeds),
        "softmax": on_softmax(arguments.epochs, arguments.seeds),
    }
    record("minimiser", results, arguments.out)


if __name__ == "__main__":
    main()
