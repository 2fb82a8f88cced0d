"""What RMD solves, on linear models with fewer equations than weights, against exact minimisers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from linear import distance, exact_minimiser, regression, train
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import mirrordescent as md

# The largest convenient step for each potential, per unit of |B| (a batch averages its gradients).
RATES = {"l2": 0.5, "q=1.5": 0.35, "q=3": 0.2, "entropy": 0.5}
cosine = partial(CosineAnnealingLR, T_max=1500, eta_min=0.05)
SETTLED = 1e-12  # every |z_i − s_i|: from there on nothing moves, and a run may end before its epochs are over

WAYS: dict[str, dict[str, Any]] = {
    "batch 1": {"batch_size": 1, "epochs": 150},
    "batch 8": {"batch_size": 8, "epochs": 500},
    "batch 8, objective": {"batch_size": 8, "epochs": 500, "lam_convention": "objective"},
    "momentum": {"batch_size": 8, "epochs": 600, "momentum": 0.8},
    "cosine": {"batch_size": 8, "epochs": 700, "schedule": cosine},
    "momentum, cosine": {"batch_size": 8, "epochs": 700, "momentum": 0.8, "schedule": cosine},
    "clipping": {"batch_size": 8, "epochs": 700, "clip": 0.05},
    "ragged, objective": {"batch_size": 7, "epochs": 500, "ragged": True, "lam_convention": "objective"},
    "momentum, ragged, objective": {
        "batch_size": 7,
        "epochs": 700,
        "momentum": 0.8,
        "ragged": True,
        "lam_convention": "objective",
    },
    "huber": {"batch_size": 8, "epochs": 500, "penalty": "huber"},
    "logcosh": {"batch_size": 8, "epochs": 500, "penalty": "logcosh"},
}


def settings_for(potential: str, way: dict[str, Any]) -> dict[str, Any]:
    size = way["batch_size"]
    lr = (
        RATES[potential]
        * (1 if size == 1 else 0.6 * size)
        * (1 - way.get("momentum", 0)) ** 0.5
        * (0.5 if "momentum" in way else 1)
    )
    lam = 2.0 if way.get("lam_convention") == "objective" else 2.0 * size
    return {**way, "lr": lr, "lam": lam, "settled": SETTLED}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("anchor", [False, True], ids=["from the minimum of psi", "from an anchor"])
@pytest.mark.parametrize("potential", RATES)
def test_signed_root_ends_at_the_minimiser(potential: str, anchor: bool, way: str) -> None:
    problem = regression(potential, anchor=anchor)
    outcome = train(problem, **settings_for(potential, WAYS[way]))
    assert outcome.objective_lam == pytest.approx(2.0)
    assert outcome.residual < SETTLED
    assert distance(outcome.w, exact_minimiser(problem, outcome.objective_lam)) < 1e-10


@pytest.mark.parametrize("potential", RATES)
def test_smd_reaches_the_interpolating_solution_of_least_potential(potential: str) -> None:
    problem = regression(potential)
    w = nn.Parameter(problem.start.clone())
    # Where ψ is flat (q = 3 at 0) a step in the dual is long in w.
    optimizer = md.SMD([w], lr=0.02 if potential == "q=3" else RATES[potential], potential=potential)
    for _ in range(20_000):
        optimizer.zero_grad()
        residual = problem.x @ w - problem.y
        residual.square().sum().div(2).backward()
        optimizer.step()
        if residual.detach().abs().max() < 1e-11:
            break
    assert residual.detach().abs().max() < 1e-10
    assert distance(w.detach(), exact_minimiser(problem, float("inf"))) < 1e-6


@pytest.mark.filterwarnings("ignore:a batch of 3 after one of 7")
def test_what_scales_one_step_alone_moves_the_solution() -> None:
    """The tests above could not tell, if a wrong rule came out right as well."""
    problem = regression("l2")
    settings = settings_for("l2", WAYS["momentum"])
    exact = exact_minimiser(problem, 2.0)
    no_correction = train(problem, **{**settings, "lam": settings["lam"] / (1 - 0.8)})
    assert distance(no_correction.w, exact) > 0.1
    ragged = {**WAYS["ragged, objective"], "lam_convention": "paper", "lam": 14.0, "lr": 1.0, "settled": SETTLED}
    assert distance(train(problem, **ragged).w, exact) > 0.01


def test_scaled_momentum_is_right_for_constant_lr_only() -> None:
    problem = regression("l2")
    settings = {**settings_for("l2", WAYS["momentum"]), "momentum_rule": "scaled"}
    exact = exact_minimiser(problem, 2.0)
    assert distance(train(problem, **settings).w, exact) < 1e-6
    with_schedule = {**settings, "schedule": partial(CosineAnnealingLR, T_max=30, eta_min=0.01)}
    assert 1e-6 < distance(train(problem, **with_schedule).w, exact) < 0.2


@pytest.mark.parametrize("potential", ["l2", "q=3"])
def test_from_the_losses_alone_it_ends_close(potential: str) -> None:
    problem = regression(potential)
    outcome = train(problem, **settings_for(potential, WAYS["batch 8"]), signed=False)
    assert outcome.residual < 1e-6
    assert distance(outcome.w, exact_minimiser(problem, 2.0)) < 0.05


def test_groups_with_their_own_lr_solve_a_weighted_potential() -> None:
    """ψ = Σ_g (lr_0 / lr_g) ψ_g, z following the first group."""
    problem = regression("l2")
    first, second = nn.Parameter(problem.start[:40].clone()), nn.Parameter(problem.start[40:].clone())
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 1.0}]
    optimizer = md.RMD(groups, lr=2.0, lam=16.0, num_samples=24)
    for _ in range(1500):
        for index in torch.randperm(24).split(8):
            residual = problem.x[index] @ torch.cat([first, second]) - problem.y[index]
            optimizer.zero_grad()
            optimizer.loss(residual.square() / 2, index, root=residual).backward()
            optimizer.step()
        residual = problem.x @ torch.cat([first, second]) - problem.y
        if (optimizer.aux.values - residual.detach()).abs().max() < SETTLED:
            break
    h = torch.cat([torch.ones(40), torch.full((40,), 2.0)]).double()
    kernel = (problem.x / h) @ problem.x.T + torch.eye(24, dtype=torch.float64) / 2.0
    exact = (problem.x.T @ torch.linalg.solve(kernel, problem.y)) / h
    assert distance(torch.cat([first, second]).detach(), exact) < 1e-10


@pytest.mark.parametrize("size", [4, 16])
def test_batch_tells_samples_apart_over_as_many_epochs_as_a_batch_has_samples(size: int) -> None:
    """With losses that stay, z's deviations close as exp(−t / (|B| λ/lr)), their mean as exp(−t / (λ/lr))."""
    n, lam, lr = 256, 1.0, 0.1
    generator = torch.Generator().manual_seed(0)
    losses = 0.5 + 0.02 * torch.randn(n, dtype=torch.float64, generator=generator)  # s = 1 and a little
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = md.RMD([weight], lr, lam, n, reduction="batch")
    epochs = round(size * lam / lr)  # one time scale
    for _ in range(epochs):
        for index in torch.randperm(n, generator=generator).split(size):
            optimizer.zero_grad()
            optimizer.loss(losses[index] + 0 * weight, index).backward()
            optimizer.step()
    z, root = optimizer.aux.values.double(), (2 * losses).sqrt()
    assert float(z.mean() / root.mean()) == pytest.approx(1 - math.exp(-size), rel=0.01)
    away, wanted = z - z.mean(), root - root.mean()
    closed = float((away @ wanted) / (wanted @ wanted))
    assert closed == pytest.approx(1 - math.exp(-1), rel=0.1)


def ridge(x: Tensor, y: Tensor, lam: float) -> Tensor:
    """The minimiser of λ·Σ (xᵢ·w − yᵢ)²/2 + ½ ‖w‖²."""
    w: Tensor = x.T @ torch.linalg.solve(x @ x.T + torch.eye(len(y), dtype=x.dtype) / lam, y)
    return w


def solved(
    x: Tensor, y: Tensor, batches: Callable[[], Iterable[Tensor]], epochs: int = 600, extra: float = 0
) -> Tensor:
    """What RMD with λ = 2 ends at, if `extra`·½‖w‖² is added to its loss."""
    w = nn.Parameter(torch.zeros(x.shape[1], dtype=x.dtype))
    optimizer = md.RMD([w], lr=0.5, lam=2.0, num_samples=len(y), lam_convention="objective")
    for _ in range(epochs):
        for index in batches():
            optimizer.zero_grad()
            r = x[index] @ w - y[index]
            (optimizer.loss(r.square() / 2, index, root=r) + extra * w.square().sum() / 2).backward()
            optimizer.step()
    return w.detach()


def test_how_often_a_sample_is_visited_does_not_change_the_objective() -> None:
    """A sampler that favours some does, under SGD; here the losses have to be weighed instead."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 30, generator=generator).double() / 5, torch.randn(12, generator=generator).double()
    often = torch.linspace(1, 8, 12)

    def drawn() -> Iterable[Tensor]:
        yield from torch.multinomial(often, 24, replacement=True, generator=generator).split(4)

    exact = ridge(x, y, 2.0)
    assert float((solved(x, y, drawn) - exact).norm() / exact.norm()) < 1e-6


def test_a_term_beside_rmds_loss_takes_over() -> None:
    """When z = s, RMD's own gradient is 0, and only the other one still moves w: to its own minimiser, 0."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 30, generator=generator).double() / 5, torch.randn(12, generator=generator).double()

    def all_of_them() -> Iterable[Tensor]:
        yield from torch.randperm(12, generator=generator).split(4)

    alone = solved(x, y, all_of_them)
    assert float((alone - ridge(x, y, 2.0)).norm()) < 1e-9
    assert float(solved(x, y, all_of_them, extra=0.05).norm() / alone.norm()) < 0.01
