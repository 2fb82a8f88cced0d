"""One task after the other: how much of the old ones a network keeps, under RMD and under what is usual.

    python benchmarks/continual.py --data digits --out results/continual-digits.json

The tasks are one data set whose pixels are permuted, each task by a permutation of its own; they come one after the
other, and no sample of an old one is ever seen again. Inputs are centred and of deviation 1, or as they are (--raw).
The first task is learnt by SGD, the others by

    sgd     SGD alone
    near    SGD with the penalty α/2 Σ (w − w₀)² beside the mean loss, w₀ the weights after the last task
    ewc     SGD with α/2 Σ F (w − w₀)², F the sum of all old tasks' Fisher weights (elastic weight consolidation)
    rmd     RMD with ψ = ½‖w‖²: no penalty, D_ψ(w, w₀) comes from the start
    fisher  RMD with md.anchored: ψ = ½ Σ h w², h from the old tasks' Fisher weights

Each method has a grid of settings, and the table shows its best by the mean over tasks and seeds of the test accuracy
at the end, and after two of them: the choice is made on the test sets, for all alike. Penalties diverge where lr · α ·
F is large, so ewc has two step sizes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from timing import record
from torch import Tensor, nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.data import Scaling, Source, load
from mirrordescent.lab.memory import keep_freed_memory

Settings = dict[str, float]
BATCH, WIDTH = 32, 400
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"lr": (0.1,)},
    "near": {"lr": (0.1,), "alpha": (0.01, 0.03, 0.1, 0.3)},
    "ewc": {"lr": (0.1, 0.03), "alpha": (30.0, 100.0, 300.0, 1000.0)},
    "rmd": {"lr": (0.1,), "lam": (0.1, 0.25, 0.5, 1.0)},
    "fisher": {"lr": (0.1,), "lam": (0.5, 1.0, 2.0), "strength": (3.0, 10.0, 30.0)},
}


class Task:
    """A data set with its pixels in another order."""

    def __init__(self, asked: argparse.Namespace, seed: int, number: int) -> None:
        data = load(Source(asked.data), asked.data_root)
        scaled = Scaling(data, torch.device("cpu"))
        chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[: asked.samples]
        x, test_x = scaled(data.inputs[chosen]).flatten(1), scaled(data.test_inputs).flatten(1)
        if not asked.raw:
            mean, deviation = x.mean(), x.std()
            x, test_x = (x - mean) / deviation, (test_x - mean) / deviation
        order = torch.arange(x.shape[1])
        if number:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(1000 * seed + number))
        self.x, self.y = x[:, order], data.targets[chosen]
        self.test_x, self.test_y = test_x[:, order], data.test_targets

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        return float((model(self.test_x).argmax(1) == self.test_y).double().mean())


def network(inputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    widths = (inputs, WIDTH, WIDTH, 10)
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def penalty(method: str, model: nn.Module, start: list[Tensor], importance: list[dict[str, Tensor]]) -> Tensor:
    """Σ (w − w₀)², or Σ F (w − w₀)²."""
    moved = [(name, w - before) for (name, w), before in zip(model.named_parameters(), start, strict=True)]
    if method == "near":
        return torch.stack([d.square().sum() for _, d in moved]).sum()
    return torch.stack([(sum(f[name] for f in importance) * d.square()).sum() for name, d in moved]).sum()


def learn(
    model: nn.Module, task: Task, method: str, settings: Settings, epochs: int, seed: int, old: list[Any]
) -> None:
    """One task, beside the Fisher weights of the old ones."""
    params, n = list(model.parameters()), len(task.x)
    optimizer: torch.optim.Optimizer
    if old and method in ("rmd", "fisher"):
        groups: Any = md.anchored(model, old, settings["strength"]) if method == "fisher" else params
        optimizer = md.RMD(groups, settings["lr"], settings["lam"], n)
    else:
        optimizer = torch.optim.SGD(params, settings["lr"])
    start, order = [w.detach().clone() for w in params], torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for index in torch.randperm(n, generator=order).split(BATCH):
            if len(index) < BATCH:
                continue
            losses = F.cross_entropy(model(task.x[index]), task.y[index], reduction="none")
            loss = optimizer.loss(losses, index) if isinstance(optimizer, md.RMD) else losses.mean()
            if old and "alpha" in settings:
                loss = loss + settings["alpha"] / 2 * penalty(method, model, start, old)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ended(job: tuple[str, Settings, int, argparse.Namespace]) -> list[list[float]]:
    """Test accuracy on each task so far, after each task; it ends early where training diverges."""
    method, settings, seed, arguments = job
    torch.set_num_threads(1)
    keep_freed_memory()
    tasks = [Task(arguments, seed, k) for k in range(arguments.tasks)]
    model = network(tasks[0].x.shape[1], seed)
    old: list[dict[str, Tensor]] = []
    rows: list[list[float]] = []
    for number, task in enumerate(tasks):
        learn(model, task, method, settings, arguments.epochs, seed + 100 * number, old)
        if not all(bool(w.isfinite().all()) for w in model.parameters()):
            return rows
        rows.append([one.accuracy(model) for one in tasks[: number + 1]])
        draw = torch.Generator().manual_seed(seed)
        old.append(md.fisher(model, task.x.split(256), generator=draw))
    return rows


def summary(settings: Settings, each: list[list[list[float]]], tasks: int) -> dict[str, Any]:
    """Of all seeds. Forgetting: what was known of an old task right after it, less what is known at the end."""
    found: dict[str, Any] = {"settings": settings, "diverged": sum(len(rows) < tasks for rows in each)}
    whole = [rows for rows in each if len(rows) == tasks]
    if found["diverged"]:
        return found
    means = [statistics.mean(rows[-1]) for rows in whole]
    forgotten = [statistics.mean(rows[k][k] - rows[-1][k] for k in range(tasks - 1)) for rows in whole]
    learnt = [statistics.mean(rows[k][k] for k in range(tasks)) for rows in whole]
    old, new = (statistics.mean(rows[1][k] for rows in whole) for k in (0, 1))
    found |= {"mean": statistics.mean(means), "deviation": statistics.stdev(means) if len(means) > 1 else 0.0}
    found |= {"forgotten": statistics.mean(forgotten), "learnt": statistics.mean(learnt)}
    return found | {"after_two": {"old": old, "new": new, "mean": (old + new) / 2}, "each": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or what rmd data fetch knows")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--samples", type=int, help="of each task; all unless given")
    parser.add_argument("--raw", action="store_true", help="inputs as they are: not centred, and not of deviation 1")
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20, help="of each task")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for method in arguments.methods:
            grid = [
                dict(zip(GRIDS[method], values, strict=True)) for values in itertools.product(*GRIDS[method].values())
            ]
            jobs = [(method, settings, seed, arguments) for settings in grid for seed in range(arguments.seeds)]
            found = iter(pool.map(ended, jobs))
            rows[method] = []
            for settings in grid:
                row = summary(settings, [next(found) for _ in range(arguments.seeds)], arguments.tasks)
                rows[method].append(row)
                told = " ".join(f"{key} {row[key]:.3f}" for key in ("mean", "forgotten", "learnt") if key in row)
                print(f"{method:7}", settings, told, f"diverged {row['diverged']}", flush=True)
    settled = {method: [row for row in found if not row["diverged"]] for method, found in rows.items()}
    best = {method: max(found, key=lambda row: row["mean"])["settings"] for method, found in settled.items()}
    of_two = {m: max(found, key=lambda row: row["after_two"]["mean"])["settings"] for m, found in settled.items()}
    asked = {
        key: str(value)
        for key, value in vars(arguments).items()
        if key in ("data", "samples", "raw", "tasks", "epochs", "seeds")
    }
    record(
        "continual",
        {**asked, "width": WIDTH, "batch": BATCH, "best": best, "best_after_two": of_two, "rows": rows},
        arguments.out,
    )


if __name__ == "__main__":
    main()
