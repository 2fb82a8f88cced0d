"""What the ranks of tests/test_ranks.py do; a script, called with rank, number of ranks, a folder, and the device."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import mirrordescent as md
from mirrordescent.sharded import everywhere

# name: settings of the optimizer, and two of the loop: "clip", and "micro", the batches before a step
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "objective": {"lam_convention": "objective", "lam": 0.5},
    "momentum": {"momentum": 0.9, "lr": 0.02},
    "scaled momentum": {"momentum": 0.5, "momentum_rule": "scaled"},
    "momentum, objective": {"momentum": 0.9, "lr": 0.02, "lam_convention": "objective", "lam": 0.5},
    "another potential": {"potential": "q=3", "penalty": "huber"},
    "batch": {"reduction": "batch", "potential": "2 * l2"},
    "clipped": {"clip": 0.3},
    "accumulated": {"micro": 2},
    "a tensor for a rate": {"lr": torch.tensor(0.1, dtype=torch.float64)},
}
# settings of SMD for parameters that are sharded over the ranks; "lam": of RMD that is SMD
SHARDED: dict[str, dict[str, Any]] = {
    "l2": {},
    "l2, fused": {"fused": True},
    "q=3": {"potential": "q=3"},
    "q=3, momentum": {"potential": "q=3", "momentum": 0.5},
    "q=3, foreach": {"potential": "q=3", "foreach": True},
    "a sum": {"potential": "l2 + hypentropy"},
    "RMD": {"potential": "q=1.5", "lam": float("inf"), "max_norm": 0.5},
}
NOT_SHARDED = {"norm": md.SquaredNorm(3), "weights": md.Quadratic(torch.ones(5, 4))}
UNEVEN = (4, 2)
RISING = torch.arange(1.0, 13.0).reshape(4, 3) / 12
SAMPLES, FEATURES, STEPS, LOCAL = 24, 5, 8, 3
DEVICE = sys.argv[4] if __name__ == "__main__" else "cpu"  # of model and data; what a sampler gives is on the CPU


def problem() -> tuple[Tensor, Tensor, nn.Linear]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES, dtype=torch.float64, generator=generator)
    model = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, FEATURES)[None])
    y = torch.randn(SAMPLES, dtype=torch.float64, generator=generator)
    return x.to(DEVICE), y.to(DEVICE), model.to(DEVICE)


def batches(count: int) -> list[Tensor]:
    """For every step, `count` samples."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randperm(SAMPLES, generator=generator)[:count] for _ in range(STEPS)]


def optimizer_of(case: dict[str, Any], model: nn.Module) -> md.RMD:
    own = {name: value for name, value in case.items() if name not in ("clip", "micro")}
    settings: dict[str, Any] = {"lr": 0.1, "lam": 2.0, **own}
    return md.RMD(model.parameters(), num_samples=SAMPLES, **settings)


def loss(optimizer: md.RMD, model: nn.Module, index: Tensor, *, rooted: bool = False) -> Tensor:
    x, y, _ = problem()
    r = model(x[index])[:, 0] - y[index]
    return optimizer.loss(r.square() / 2, index, root=r if rooted else None)


def trained(case: dict[str, Any], rank: int, world: int) -> dict[str, Tensor]:
    """This rank's part of a training by all of them."""
    _, _, model = problem()
    parallel, optimizer, micro = DistributedDataParallel(model), optimizer_of(case, model), case.get("micro", 1)
    for index in batches(world * LOCAL * micro):
        optimizer.zero_grad()
        for k, part in enumerate(index.split(LOCAL)[rank::world]):
            with parallel.no_sync() if k + 1 < micro else contextlib.nullcontext():
                (loss(optimizer, parallel, part) / micro).backward()
        if "clip" in case:
            optimizer.clip_grad_norm_(case["clip"])
        optimizer.step()
    return {"w": model.weight.detach(), "z": optimizer.aux.values}


def uneven(rank: int) -> dict[str, Tensor]:
    """The ranks have batches of different size; samples then weigh as their gradients do."""
    _, _, model = problem()
    parallel = DistributedDataParallel(model)
    optimizer = md.RMD(model.parameters(), 0.1, 0.5, SAMPLES, lam_convention="objective")
    for index in batches(sum(UNEVEN)):
        optimizer.zero_grad()
        loss(optimizer, parallel, index.split(list(UNEVEN))[rank], rooted=True).backward()
        optimizer.step()
    return {"w": model.weight.detach(), "z": optimizer.aux.values}


def told(rank: int, *, alone: bool) -> str:
    """What RMD says to ranks that train models of their own, or one model on z of their own."""
    _, _, model = problem()
    optimizer = md.RMD(model.parameters(), 0.1, 2.0, SAMPLES)
    if not alone:
        optimizer.aux.values.fill_(rank)
    taken = model if alone else DistributedDataParallel(model)
    loss(optimizer, taken, torch.arange(3) + rank).backward()
    before = model.weight.detach().clone()
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error) if torch.equal(model.weight.detach(), before) else "w has moved"
    return ""


def of_its_own(rank: int, world: int) -> dict[str, Tensor]:
    """Each rank trains a model of its own, in a group of itself alone, and rank 0 one more step than the others."""
    group = [distributed.new_group([member]) for member in range(world)][rank]
    _, _, model = problem()
    optimizer = md.RMD(model.parameters(), 0.1, 2.0, SAMPLES, process_group=group)
    for index in batches(LOCAL)[rank:]:
        optimizer.zero_grad()
        loss(optimizer, model, index).backward()
        optimizer.step()
    return {"w": model.weight.detach(), "z": optimizer.aux.values}


def of_others(rank: int, world: int) -> str:
    """What RMD says to a rank that is not in the group that it is given."""
    groups = [distributed.new_group([member]) for member in range(world)]
    _, _, model = problem()
    try:
        md.RMD(model.parameters(), 0.1, 2.0, SAMPLES, process_group=groups[rank - 1])
    except ValueError as error:
        return str(error)
    return ""


def with_an_empty_rank(rank: int, convention: str) -> dict[str, Tensor]:
    """Rank 1 has samples at every other step only; else it gives gradients of 0, as DDP wants them."""
    _, _, model = problem()
    parallel = DistributedDataParallel(model)
    optimizer = md.RMD(model.parameters(), 0.1, 2.0, SAMPLES, lam_convention=convention)
    for k, index in enumerate(batches(2 * LOCAL)):
        optimizer.zero_grad()
        part = index.split(LOCAL)[rank]
        if rank == 1 and k % 2 == 0:
            (parallel(torch.ones_like(problem()[0])).sum() * 0).backward()
        else:
            loss(optimizer, parallel, part).backward()
        optimizer.step()
    return {"w": model.weight.detach(), "z": optimizer.aux.values}


def after_odd_gradients(rank: int, factor: float) -> Tensor:
    """z after a first step whose gradients are 0, or not finite, on all ranks."""
    _, _, model = problem()
    parallel, optimizer = DistributedDataParallel(model), md.RMD(model.parameters(), 0.1, 2.0, SAMPLES)
    index = torch.arange(LOCAL) + LOCAL * rank
    optimizer.loss(parallel(problem()[0][index])[:, 0] * factor + 1, index).backward()
    optimizer.step()
    return optimizer.aux.values


def smd(rank: int) -> bool:
    """Whether ranks of their own may train with λ = ∞: z does not move, so there is nothing to share."""
    _, _, model = problem()
    optimizer = md.RMD(model.parameters(), 0.1, float("inf"), SAMPLES)
    loss(optimizer, model, torch.arange(3) + rank).backward()
    optimizer.step()
    return not optimizer.aux.values.any()


def stepped(case: dict[str, Any], world: int, *, sharded: bool) -> list[Tensor]:
    """Three steps on a large matrix, on a small one whose gradient is not cut as it is, and on one that is whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    generator = torch.Generator().manual_seed(2)
    shapes = ((515, 513), (5, 4), (3,))
    mesh = distributed.device_mesh.init_device_mesh("cpu", (world,)) if sharded else None
    cuts = ([Shard(0)], [Shard(1)], [Replicate()])

    def spread(t: Tensor, cut: Any) -> Tensor:
        return distribute_tensor(t, mesh, cut) if sharded else t

    weights = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    params = [nn.Parameter(spread(w, cut)) for w, cut in zip(weights, cuts, strict=True)]
    settings = {"lr": 0.1, **case}
    optimizer = md.RMD(params, num_samples=3, **settings) if "lam" in case else md.SMD(params, **settings)
    for _ in range(3):
        gradients = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
        for w, g, cut in zip(params, gradients, ([Shard(0)], [Replicate()], [Replicate()]), strict=True):
            w.grad = spread(g, cut)
        if isinstance(optimizer, md.RMD):  # any batch: z does not move
            leaf = torch.ones(3, requires_grad=True)
            optimizer.loss(leaf, torch.arange(3)).backward()
        optimizer.step()
    return [everywhere(w.detach()) for w in params]


def size_of_shards(world: int) -> float:
    """The step size for parameters of which each rank has other values."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = distributed.device_mesh.init_device_mesh("cpu", (world,))
    return md.step_size([nn.Parameter(distribute_tensor(RISING, mesh, [Shard(0)]))], "linf")


def refused_shards(world: int) -> dict[str, str]:
    """What SMD says of a potential that has to see a whole tensor."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh, said = distributed.device_mesh.init_device_mesh("cpu", (world,)), {}
    for name, potential in NOT_SHARDED.items():
        w = nn.Parameter(distribute_tensor(torch.ones(5, 4), mesh, [Shard(0)]))
        w.grad = distribute_tensor(torch.ones(5, 4), mesh, [Shard(0)])
        try:
            md.SMD([w], 0.1, potential).step()
        except RuntimeError as error:
            said[name] = str(error)
    return said


def main(rank: int, world: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    found: dict[str, Any] = {name: trained(case, rank, world) for name, case in CASES.items()}
    found["uneven"] = uneven(rank)
    found["told"] = [told(rank, alone=True), told(rank, alone=False)]
    found["smd"] = smd(rank)
    found["own"] = of_its_own(rank, world)
    found["of others"] = of_others(rank, world)
    found["empty"] = {convention: with_an_empty_rank(rank, convention) for convention in ("paper", "objective")}
    found["zero"], found["nan"] = after_odd_gradients(rank, 0.0), after_odd_gradients(rank, float("nan"))
    found["sharded"] = {name: stepped(case, world, sharded=True) for name, case in SHARDED.items()}
    found["refused shards"] = refused_shards(world)
    found["size of shards"] = size_of_shards(world)
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
