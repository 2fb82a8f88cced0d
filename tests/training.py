"""Small runs for tests of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mirrordescent.lab.data import Data
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run
from mirrordescent.lab.train import train

CPU = Place("cpu", threads=1)


def small(classes: int | None = 3, n: int = 60, images: bool = False) -> Data:
    generator = torch.Generator().manual_seed(0)
    shape = (1, 8, 8) if images else (5,)
    inputs = torch.randn(n + 30, *shape, generator=generator)
    targets = torch.randn(n + 30, generator=generator)
    if classes is not None:
        targets = inputs.flatten(1)[:, :classes].argmax(1)
    return Data("small", inputs[:n], targets[:n], inputs[n:], targets[n:], classes, model="cnn" if images else "mlp")


def trained(tmp_path: Path, run: Run, data: Data | None = None, **more: Any) -> Record:
    return train(run, Keeping(tmp_path), CPU, data=data or small(), **more)


ALGORITHMS = [
    Run(algorithm="sgd"),
    Run(algorithm="weight-decay", lam=0.1),
    Run(algorithm="smd", potential="q=3", lr=0.01),
    Run(lam=2),
    Run(lam=2, reduction="batch", momentum=0.5, penalty="huber"),
]
