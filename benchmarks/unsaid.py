"""What the authors' public scripts leave open about RMD batch, and how much that matters: precision, batch norm, seed.

    python benchmarks/unsaid.py --data-root DATA_ROOT --out results/unsaid-h200.json

CIFAR-10 with 40 % of the labels redrawn, as in the paper's tables (`rmd reproduce`), for 50 epochs. The scripts compute
in float32, and wrap the network in `DataParallel`: on several GPUs each of them normalises its part of the batch by
itself, and the first one's statistics are those that are kept. On a GPU, float32 means PyTorch's default:
convolutions in TensorFloat-32. Accuracies are means over the last three evaluations. Beside each setting stands the
tables' own run with the same λ at the same epochs, read from --tables, and with the same seed but for "another seed".
It is meant for a GPU. If it is stopped, the same command continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from recording import record
from torch import Tensor, nn

from mirrordescent.lab import paper
from mirrordescent.lab.data import Data, load
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record, Row, read_all
from mirrordescent.lab.runs import Run
from mirrordescent.lab.train import source_of, train

CORRUPTION = 40
LAST = 3  # evaluations, over which accuracies are averaged
KEPT = ("train_accuracy", "test_accuracy", "divergence")


@dataclass(frozen=True)
class Setting:
    """A run of the tables, changed as said here."""

    name: str
    lam: float
    seed: int
    beside: int  # seed of the tables' run that it is compared with
    precision: str = "auto"
    parts: int = 1  # of a batch, each with a batch norm of its own

    def run(self, epochs: int) -> Run:
        run = paper.lasting(paper.paper_rmd(CORRUPTION, self.lam, self.seed), epochs)
        return Run.from_dict({**run.to_dict(), "precision": self.precision})

    def job(self, run: Run, data: Data, place: Place) -> Job:
        job = Job(run, data, place)
        if self.parts > 1:
            job.call = in_parts(job.call, self.parts)
        return job


SETTINGS = (
    Setting("float32", 1.2, 0, 0, precision="float32"),
    Setting("float32", 1.2, 1, 1, precision="float32"),
    Setting("parts of 64", 1.2, 0, 0, parts=2),
    Setting("parts of 32", 1.2, 0, 0, parts=4),
    Setting("parts of 32", 1.2, 1, 1, parts=4),
    Setting("parts of 32", 0.7, 0, 0, parts=4),
    Setting("another seed", 0.7, 1, 0),
    Setting("another seed", 1.0, 1, 0),
)


def in_parts(call: Callable[[nn.Module, Tensor], Tensor], parts: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """The forward pass part by part, as `DataParallel` divides a batch; the first part's statistics are kept."""

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        usual = [norm.momentum for norm in norms]
        outputs = []
        for part in x.chunk(parts):
            outputs.append(call(model, part))
            for norm in norms:
                norm.momentum = 0.0
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum
        return torch.cat(outputs)

    return forward


def result(setting: Setting, rows: Sequence[Row], tables: Sequence[Record]) -> dict[str, Any]:
    """One setting's figures, beside those of the tables' run with its λ if that has all the same epochs."""
    wanted = paper.paper_rmd(CORRUPTION, setting.lam, setting.beside)
    [plain] = [held.rows for held in tables if held.run == wanted]
    epochs = [row["epoch"] for row in rows]
    beside = [row for row in plain if row["epoch"] in epochs]
    return {
        **dataclasses.asdict(setting),
        **_over(rows),
        "in_the_tables": _over(beside) if len(beside) == len(rows) else None,
        "curve": [{"epoch": row["epoch"], **{name: row[name] for name in KEPT}} for row in rows],
    }


def _over(rows: Sequence[Row]) -> dict[str, float]:
    return {name: statistics.fmean(float(row[name] or 0) for row in rows[-LAST:]) for name in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/unsaid"))
    parser.add_argument("--data-root", type=Path, help="folder of the fetched data sets")
    parser.add_argument("--tables", type=Path, default=Path("results/paper"), help="records of the tables' runs")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    tables = read_all(arguments.tables)
    data = load(source_of(SETTINGS[0].run(1)), arguments.data_root)
    results = []
    for setting in SETTINGS:
        keeping = Keeping(arguments.root / f"{setting.parts}", arguments.data_root)
        done = train(setting.run(arguments.epochs), keeping, Place(), data=data, make=setting.job)
        results.append(result(setting, done.rows, tables))
        told = f"{setting.name}, λ = {setting.lam:g}, seed {setting.seed}"
        print(f"{told}: test {results[-1]['test_accuracy']:.2%}, train {results[-1]['train_accuracy']:.2%}", flush=True)
    record("unsaid", {"corruption": CORRUPTION, "epochs": arguments.epochs, "settings": results}, arguments.out)


if __name__ == "__main__":
    main()
