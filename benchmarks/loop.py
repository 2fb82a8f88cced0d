"""The lab's loop against a plain PyTorch loop with a DataLoader on the same network, data and optimizer.

    python benchmarks/loop.py
    python benchmarks/loop.py --data mnist --model cnn --seconds 10

Blocks alternate, so that both see the same machine; the ratio is the median over the blocks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from recording import record
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mirrordescent as md
from mirrordescent.lab.data import Data, Scaling, Source, load
from mirrordescent.lab.job import Job, optimizer_for
from mirrordescent.lab.models import build
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run, settled


def plain_steps(run: Run, data: Data, workers: int) -> Iterator[None]:
    """One step per `next`, as most people would write it; the inputs are scaled beforehand."""
    assert data.classes is not None
    model = build(run.model, data.shape, data.classes)
    optimizer = optimizer_for(run, model, len(data))
    inputs = Scaling(data, torch.device("cpu"))(data.inputs)
    dataset = md.Indexed(TensorDataset(inputs, data.targets))
    loader: DataLoader[tuple[Tensor, Tensor, Tensor]] = DataLoader(
        dataset,
        batch_size=run.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    while True:
        for x, y, index in loader:
            losses = F.cross_entropy(model(x), y, reduction="none")
            loss = optimizer.loss(losses, index) if isinstance(optimizer, md.RMD) else losses.mean()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            yield


def lab_steps(run: Run, data: Data) -> Iterator[None]:
    """One step of the lab's loop per `next`, each epoch's draws included."""
    job = Job(run, data, Place("cpu"))
    epoch = 0
    while True:
        epoch += 1
        job.begin(epoch)
        for _ in range(job.steps):
            job.step()
            yield


def rate(steps: Iterator[None], run: Run, seconds: float) -> float:
    """Samples per second."""
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        next(steps)
        count += run.batch_size
    return count / (time.perf_counter() - begun)


def compared(run: Run, data: Data, workers: int, seconds: float, blocks: int) -> list[float]:
    """The lab's rate over the plain loop's, block by block."""
    contestants: list[Callable[[], Iterator[None]]] = [
        lambda: lab_steps(run, data),
        lambda: plain_steps(run, data, workers),
    ]
    lab, plain = (make() for make in contestants)
    for steps in (lab, plain):
        rate(steps, run, 0.5)
    return [rate(lab, run, seconds) / rate(plain, run, seconds) for _ in range(blocks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="*", default=[0], help="numbers of workers of the DataLoader")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each block of a loop takes")
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    arguments = parser.parse_args()
    data = load(Source(arguments.data))
    rows = []
    for algorithm in ("sgd", "rmd"):
        settings = {"data": arguments.data, "algorithm": algorithm, "batch_size": arguments.batch_size}
        run = settled(Run.from_dict({**settings, "model": arguments.model, "augment": "none"}), data)
        for workers in arguments.workers:
            ratios = compared(run, data, workers, arguments.seconds, arguments.blocks)
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{algorithm}, {run.model} on {data.name}, DataLoader with {workers} workers: ", end="")
            print(f"lab / plain = {middle:.2f}   quartiles [{low:.2f}, {high:.2f}]")
            row = {"algorithm": algorithm, "model": run.model, "workers": workers}
            rows.append({**row, "lab_over_plain": middle, "quartiles": [low, high]})
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    record("loop", {"settings": settings, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
