"""What potentials do to a network's weights: how few of them it needs, and how few values they need.

    python benchmarks/potentials.py --out results/potentials.json

An MLP on digits, trained by RMD from PyTorch's start, with a step that moves a weight of the usual size alike under
every potential: lr = 0.2 · ψ''(s), s being the root mean square of the weights at the start. λ is ten times that, so
that z's time scale is ten epochs; 40 epochs, batches of 32. Then the weight matrices are cut down in two ways, without
training again: only the largest weights stay, or every matrix is rounded to 2^bits values, evenly spaced over its
range.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from recording import record
from torch import Tensor, nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.data import Data, Scaling, Source, load
from mirrordescent.lab.models import build

POTENTIALS = {"l1": 1.1, "q=1.5": 1.5, "l2": 2.0, "q=3": 3.0, "linf": 10.0}
RATE, EPOCHS, BATCH = 0.2, 40, 32
SCALE = 10  # epochs over which z settles
KEPT, BITS = (0.2, 0.1, 0.05), (4, 3, 2)


def matrices(model: nn.Module) -> list[Tensor]:
    return [w.detach() for w in model.parameters() if w.dim() > 1]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([w.flatten() for w in matrices(model)])


def trained(data: Data, x: Tensor, potential: str, seed: int) -> tuple[nn.Module, float]:
    """The network, and the lr that it was trained with."""
    model = build("mlp", data.shape, 10, seed=seed)
    q, usual = POTENTIALS[potential], float(flat(model).square().mean().sqrt())
    lr = RATE * (q - 1) * usual ** (q - 2)
    optimizer = md.RMD(model.parameters(), lr=lr, lam=SCALE * lr, num_samples=len(data), potential=potential)
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(data), generator=order).split(BATCH):
            if len(index) == BATCH:
                losses = F.cross_entropy(model(x[index]), data.targets[index], reduction="none")
                optimizer.loss(losses, index).backward()
                optimizer.step()
                optimizer.zero_grad()
    return model, lr


def pruned(share: float) -> Callable[[list[Tensor]], None]:
    """Keep that share of all weights, the largest; the others become 0."""

    def change(weights: list[Tensor]) -> None:
        least = torch.cat([w.abs().flatten() for w in weights]).quantile(1 - share)
        for w in weights:
            w.mul_(w.abs() >= least)

    return change


def rounded(bits: int) -> Callable[[list[Tensor]], None]:
    """Round each matrix to 2^bits values."""

    def change(weights: list[Tensor]) -> None:
        for w in weights:
            gap = 2 * w.abs().max() / (2**bits - 1)
            w.copy_(((w / gap - 0.5).round() + 0.5) * gap)

    return change


def measured(data: Data, potential: str, seed: int) -> dict[str, float]:
    """What the weights are like, and test accuracy: as trained, and with weights cut down."""
    scaled = Scaling(data, torch.device("cpu"))
    x, test_x = scaled(data.inputs), scaled(data.test_inputs)
    model, lr = trained(data, x, potential, seed)

    @torch.no_grad()
    def accuracy(change: Callable[[list[Tensor]], None] = lambda _: None) -> float:
        weights = matrices(model)
        held = [w.clone() for w in weights]
        change(weights)
        right = float((model(test_x).argmax(1) == data.test_targets).double().mean())
        for w, before in zip(weights, held, strict=True):
            w.copy_(before)
        return right

    size = flat(model).abs()
    found = {"lr": lr, "largest": float(size.max()), "root_mean_square": float(size.square().mean().sqrt())}
    found |= {"below_1_percent_of_largest": float((size < 0.01 * size.max()).double().mean()), "test": accuracy()}
    found |= {f"largest_{share:.0%}": accuracy(pruned(share)) for share in KEPT}
    return found | {f"{bits}_bits": accuracy(rounded(bits)) for bits in BITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = load(Source("digits"))
    table = {}
    for potential in POTENTIALS:
        each = [measured(data, potential, seed) for seed in range(arguments.seeds)]
        table[potential] = {
            key: {"mean": statistics.mean(values), "each": values}
            for key in each[0]
            for values in [[one[key] for one in each]]
        }
        print(f"{potential:8}", "  ".join(f"{key} {held['mean']:.3g}" for key, held in table[potential].items()))
    record("potentials", {"data": data.name, "seeds": arguments.seeds, "table": table}, arguments.out)


if __name__ == "__main__":
    main()
