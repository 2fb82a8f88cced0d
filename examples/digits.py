"""Digits with 40 % of the training labels redrawn at random: SGD learns the wrong labels, RMD does not.

python examples/digits.py            # about a minute on two cores
python examples/digits.py --epochs 100 --lam 2
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mirrordescent as md

TRAIN = 1200  # the other 597 are for testing


@dataclass
class Data:
    x: Tensor
    given: Tensor  # the labels that training sees
    true: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def wrong(self) -> Tensor:
        return self.given != self.true


def load(corruption: float, seed: int) -> Data:
    """scikit-learn's digits; each training label is, with the given probability, drawn anew from all ten."""
    generator = torch.Generator().manual_seed(seed)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=generator)
    x, y = x[order], y[order]
    redrawn = torch.rand(TRAIN, generator=generator) < corruption
    given = torch.where(redrawn, torch.randint(10, (TRAIN,), generator=generator), y[:TRAIN])
    return Data(x[:TRAIN], given, y[:TRAIN], x[TRAIN:], y[TRAIN:])


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def auroc(score: Tensor, positive: Tensor) -> float:
    """How likely a wrong label scores higher than a right one."""
    ranks = score.argsort().argsort().double() + 1
    count = int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def train(data: Data, lam: float, epochs: int, seed: int, name: str) -> tuple[str, ...]:
    """One run; λ = ∞ is SGD."""
    torch.manual_seed(seed)
    model = network()
    optimizer = md.RMD(model.parameters(), lr=0.1, lam=lam, num_samples=TRAIN)
    loader = DataLoader(md.Indexed(TensorDataset(data.x, data.given)), batch_size=32, shuffle=True, drop_last=True)
    for epoch in range(epochs):
        for x, y, index in loader:
            optimizer.loss(F.cross_entropy(model(x), y, reduction="none"), index).backward()
            optimizer.step()
            optimizer.zero_grad()
        if sys.stderr.isatty():
            print(f"\r{name}: epoch {epoch + 1}/{epochs} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    with torch.no_grad():
        fitted = (model(data.x).argmax(1) == data.given)[data.wrong].float().mean()
    found = "-" if lam == float("inf") else f"{auroc(optimizer.aux.values, data.wrong):.3f}"
    test = accuracy(model, data.x_test, data.y_test)
    return name, f"{100 * test:.1f} %", f"{100 * float(fitted):.0f} %", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corruption", type=float, default=0.4, help="share of the training labels that are redrawn")
    parser.add_argument("--lam", type=float, nargs="*", default=[2.0, 4.0], help="λ of the RMD runs")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the table as JSON")
    arguments = parser.parse_args()
    data = load(arguments.corruption, arguments.seed)
    print(f"{int(data.wrong.sum())} of {TRAIN} training labels are wrong; {arguments.epochs} epochs each\n")
    row = "{:<18}{:>15}{:>22}{:>28}"
    print(row.format("", "test accuracy", "wrong labels learnt", "AUROC of z for 'is wrong'"))
    rows = []
    for lam in (float("inf"), *arguments.lam):
        name = "SGD" if lam == float("inf") else f"RMD, lam = {lam:g}"
        rows.append(train(data, lam, arguments.epochs, arguments.seed, name))
        print(row.format(*rows[-1]), flush=True)
    if arguments.out is not None:
        settings = {key: value for key, value in vars(arguments).items() if key != "out"}
        columns = ("run", "test accuracy", "wrong labels learnt", "AUROC of z")
        table = [dict(zip(columns, values, strict=True)) for values in rows]
        record = {"example": "digits", "torch": torch.__version__, "settings": settings, "rows": table}
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
