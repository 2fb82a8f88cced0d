"""What RMD adds to a whole ResNet-18 training step: forward, backward and update, batch 128, against SGD.

python benchmarks/overhead.py --out results/overhead.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import alternating, captured, device, median, ratios, record
from torch import nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.models import ResNet18


class Training:
    """A network with its data on the device, and one step of it."""

    def __init__(self, algorithm: str, batch_size: int, *, samples: int = 50_000) -> None:
        torch.manual_seed(0)
        self.model = ResNet18().to(device())
        for w in self.model.parameters():
            if w.dim() == 4:
                w.data = w.data.to(memory_format=torch.channels_last)
        self.x = torch.randn(batch_size, 3, 32, 32, device=device()).to(memory_format=torch.channels_last)
        self.y = torch.randint(10, (batch_size,), device=device())
        self.index = torch.randperm(samples, device=device())[:batch_size]
        fused = True if torch.cuda.is_available() else None
        self.rmd: md.RMD | None = None
        self.optimizer: torch.optim.Optimizer
        if algorithm == "rmd":
            self.rmd = md.RMD(self.model.parameters(), lr=1e-3, lam=2.0, num_samples=samples, fused=fused)
            self.optimizer = self.rmd
        else:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, fused=fused)

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(device().type, dtype=torch.bfloat16, enabled=torch.cuda.is_available()):
            logits = self.model(self.x)
        if self.rmd is None:
            loss = F.cross_entropy(logits.float(), self.y)
        else:
            loss = self.rmd.loss(F.cross_entropy(logits.float(), self.y, reduction="none"), self.index)
        loss.backward()
        self.optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--steps", type=int, help="steps per block (default: 200 on a GPU, 2 on the CPU)")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    torch.backends.cudnn.benchmark = True
    steps = arguments.steps or (200 if on_gpu else 2)
    results: dict[str, Any] = {"batch_size": arguments.batch_size, "blocks": arguments.blocks, "steps": steps}
    for way in ("graph", "eager") if on_gpu else ("eager",):
        trainings = {name: Training(name, arguments.batch_size) for name in ("sgd", "rmd")}
        calls: dict[str, Callable[[], object]] = {name: training.step for name, training in trainings.items()}
        if way == "graph":
            calls = {name: captured(call) for name, call in calls.items()}
        times = alternating(calls, blocks=arguments.blocks, repeats=steps)
        middle, low, high = ratios(times, "rmd", "sgd")
        results[way] = {"ratio": middle, "quartiles": [low, high]}
        if on_gpu:
            results[way]["sgd_ms"] = median(times["sgd"]) * 1e3
        print(f"{way}: RMD / SGD = {middle:.4f}   quartiles [{low:.4f}, {high:.4f}]")
        assert all(bool(w.isfinite().all()) for t in trainings.values() for w in t.model.parameters())
        assert isinstance(trainings["rmd"].model, nn.Module)
    record("overhead", results, arguments.out)


if __name__ == "__main__":
    main()
