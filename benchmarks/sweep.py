"""A sweep of 12 runs on digits: several at once against one by one, one thread per run on both sides.

python benchmarks/sweep.py --out results/sweep-cpu.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from recording import record

from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.sweep import cores, grid, sweep


def timed(jobs: int, epochs: int) -> tuple[float, list[Record]]:
    runs = grid(
        {"corruption": 0.4, "epochs": epochs}, {"algorithm": ["sgd", "rmd"], "lam": [1, 2, 4, 8, 16], "seed": [0, 1]}
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as root:
        records, failed = sweep(runs, Keeping(Path(root)), Place("cpu", threads=1), jobs=jobs)
    assert not failed
    return time.perf_counter() - begun, records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    serial, apart = timed(1, arguments.epochs)
    parallel, together = timed(arguments.jobs, arguments.epochs)
    same = [one.rows for one in apart] == [other.rows for other in together]
    print(
        f"{len(apart)} runs, {arguments.jobs} at once / one by one = {parallel / serial:.3f}; the same metrics: {same}"
    )
    results = {"runs": len(apart), "epochs": arguments.epochs, "jobs": arguments.jobs}
    record("sweep", {**results, "ratio": parallel / serial, "same_metrics": same}, arguments.out)


if __name__ == "__main__":
    main()
