"""How long RMD takes to tell samples apart: `batch` over |B| λ/lr epochs, `sample` over λ/lr.

    python benchmarks/settling.py --out results/settling.json

That is the law for losses that stay as they are (tests/test_theorem.py). Here it is seen with a network that learns
meanwhile: an MLP on digits with 40 % of the labels redrawn. λ is the same for all, so the objective's λ/|B| is not.
Of each setting, over the epochs and as the mean of three seeds: test accuracy, how well z ranks wrong labels (AUROC),
and the residual Σ |z − s|; and the first evaluation with an AUROC of 0.9.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from recording import record

from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import sweep

LAM, LR = 1.2, 0.1
SIZES = (8, 32, 128)
SEEDS = 3
TIMES = 4  # length of a run, in time scales
ENOUGH = 0.9  # AUROC
KEPT = ("epoch", "train_accuracy", "test_accuracy", "z_auroc", "residual")


def runs() -> list[Run]:
    """`batch` for each batch size, and `sample` for the largest, each for four of its time scales."""
    common: dict[str, Any] = {"corruption": 0.4, "algorithm": "rmd", "lam": LAM, "lr": LR, "stop": "never"}

    def one(reduction: str, size: int, time_scale: float, seed: int) -> Run:
        epochs = math.ceil(TIMES * time_scale)
        # as the paper has them: ψ = ‖w‖² for `batch`
        potential = "2 * l2" if reduction == "batch" else "l2"
        made = {"reduction": reduction, "potential": potential, "batch_size": size, "epochs": epochs, "seed": seed}
        return Run.from_dict({**common, **made, "every": math.ceil(epochs / 64)})

    return [
        run
        for seed in range(SEEDS)
        for run in (
            *(one("batch", size, size * LAM / LR, seed) for size in SIZES),
            one("sample", max(SIZES), LAM / LR, seed),
        )
    ]


def result(records: list[Record]) -> dict[str, Any]:
    """One setting's figures: means over its seeds."""
    run = records[0].run
    scale = LAM / LR * (run.batch_size if run.reduction == "batch" else 1)
    curve = [
        {name: statistics.fmean(float(row[name] or 0) for row in rows) for name in KEPT}
        for rows in zip(*(record.rows for record in records), strict=True)
    ]
    reached = next((row["epoch"] for row in curve if row["z_auroc"] >= ENOUGH), None)
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
    settings = sorted({(record.run.reduction, record.run.batch_size) for record in records})
    results = [
        result([record for record in records if (record.run.reduction, record.run.batch_size) == setting])
        for setting in settings
    ]
    for each in results:
        print(f"\n{each['reduction']}, batches of {each['batch_size']}: AUROC 0.9 at {each['epoch_of_auroc_0.9']}")
        quarter = max(1, len(each["curve"]) // (4 * TIMES))
        for row in each["curve"][quarter - 1 :: quarter]:
            told = " ".join(f"{name} {row[name]:.4g}" for name in KEPT[1:])
            print(f"  {row['epoch'] / each['time_scale']:5.2f} time scales, epoch {row['epoch']}: {told}")
    record("settling", {"lam": LAM, "lr": LR, "seeds": SEEDS, "runs": results}, arguments.out)


if __name__ == "__main__":
    main()
