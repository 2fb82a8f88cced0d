"""How long RMD takes to tell samples apart: `batch` over |B| λ/lr epochs, `sample` over λ/lr.

    python benchmarks/settling.py --out results/settling.json

An MLP on digits with 40 % of the labels redrawn. Of each run, over the epochs: test accuracy, how well z ranks wrong
labels (AUROC), and the residual Σ (z − s)²; and the first evaluation with an AUROC of 0.9.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from timing import record

from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import sweep

LAM, LR = 1.2, 0.1
SIZES = (8, 32, 128)
ENOUGH = 0.9  # AUROC
KEPT = ("epoch", "train_accuracy", "test_accuracy", "z_auroc", "residual")


def runs() -> list[Run]:
    """`batch` for each batch size, for twice the time that it takes; `sample` for the longest of them."""
    common: dict[str, Any] = {"corruption": 0.4, "algorithm": "rmd", "lam": LAM, "lr": LR, "stop": "never"}

    def one(reduction: str, size: int, time_scale: float) -> Run:
        epochs = math.ceil(2 * time_scale)
        # as the paper has them: ψ = ‖w‖² for `batch`
        potential = "2 * l2" if reduction == "batch" else "l2"
        made = {"reduction": reduction, "potential": potential, "batch_size": size, "epochs": epochs}
        return Run.from_dict({**common, **made, "every": math.ceil(epochs / 64)})

    longest = max(SIZES)
    return [one("batch", size, size * LAM / LR) for size in SIZES] + [one("sample", longest, longest * LAM / LR)]


def result(held: Record) -> dict[str, Any]:
    run, rows = held.run, held.rows
    scale = LAM / LR * (run.batch_size if run.reduction == "batch" else 1)
    reached = next((row["epoch"] for row in rows if (row["z_auroc"] or 0) >= ENOUGH), None)
    curve = [{name: row[name] for name in KEPT} for row in rows]
    return {
        "reduction": run.reduction,
        "batch_size": run.batch_size,
        "time_scale": scale,
        "epoch_of_auroc_0.9": reached,
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/settling"))
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    records, failed = sweep(runs(), Keeping(arguments.root), Place("cpu", threads=1))
    assert not failed, failed
    results = sorted(map(result, records), key=lambda each: (each["reduction"], each["batch_size"]))
    for each in results:
        print(f"\n{each['reduction']}, batches of {each['batch_size']}: AUROC 0.9 at {each['epoch_of_auroc_0.9']}")
        for row in each["curve"][7::8]:
            told = " ".join(f"{name} {row[name]:.4g}" for name in KEPT[1:])
            print(f"  {row['epoch'] / each['time_scale']:5.2f} time scales, epoch {row['epoch']}: {told}")
    record("settling", {"lam": LAM, "lr": LR, "runs": results}, arguments.out)


if __name__ == "__main__":
    main()
