"""What a training step on a CPU takes if freed memory is kept, as `rmd` does, relative to what it takes otherwise.

    python benchmarks/memory.py

Every measurement is a process of its own, with and without in turn; the ratios are medians over pairs of these.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from recording import record

from mirrordescent.lab.data import Data
from mirrordescent.lab.job import Job
from mirrordescent.lab.memory import OWN, keep_freed_memory
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run, settled

CASES = {  # network: shape of an image, samples in a batch
    "cnn": [((1, 8, 8), 32), ((1, 28, 28), 32), ((1, 28, 28), 128)],
    "deep-cnn": [((3, 32, 32), 32), ((3, 64, 64), 32)],
}

RATIOS = ("clock", "processors", "most_memory")


def measured(model: str, shape: list[int], batch: int, seconds: float) -> dict[str, float]:
    """This process's use per step: seconds of clock and processors, pages from the system; and its most memory."""
    images, labels = torch.randint(256, (4 * batch, *shape), dtype=torch.uint8), torch.randint(10, (4 * batch,))
    data = Data("images", images, labels, images[:1], labels[:1], 10)
    settings = {"model": model, "batch_size": batch, "augment": "none"}
    job = Job(settled(Run.from_dict(settings), data), data, Place("cpu"))
    job.begin(1)
    job.step()
    job.step()
    begun, before, steps = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), 0
    while (clock := time.perf_counter() - begun) < seconds:
        job.begin(1)
        for _ in range(job.steps):
            job.step()
        steps += job.steps
    used = resource.getrusage(resource.RUSAGE_SELF)
    processors = used.ru_utime - before.ru_utime + used.ru_stime - before.ru_stime
    found = {"clock": clock, "processors": processors, "pages": used.ru_minflt - before.ru_minflt}
    return {**{name: value / steps for name, value in found.items()}, "most_memory": used.ru_maxrss}


def in_a_process(case: dict[str, Any], *, kept: bool) -> dict[str, float]:
    """`measured` in a process of its own, which keeps freed memory or does not."""
    words = [sys.executable, __file__, "--case", json.dumps(case), *(["--kept"] if kept else [])]
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def pair(case: dict[str, Any], *, first: bool) -> tuple[dict[str, float], dict[str, float]]:
    """One measurement with memory kept, one without. first: whether that with comes first, as the machine may drift."""
    one, other = in_a_process(case, kept=first), in_a_process(case, kept=not first)
    return (one, other) if first else (other, one)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--out", type=Path, help="where to write the record as JSON")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        if arguments.kept and not keep_freed_memory():
            raise SystemExit("this is not glibc, which keeps memory if asked to")
        print(json.dumps(measured(**arguments.case)))
        return
    rows = []
    for model, cases in CASES.items():
        for shape, batch in cases:
            case = {"model": model, "shape": shape, "batch": batch, "seconds": arguments.seconds}
            pairs = [pair(case, first=bool(k % 2)) for k in range(arguments.pairs)]
            each = {name: [kept[name] / freed[name] for kept, freed in pairs] for name in RATIOS}
            ratios = {name: median(values) for name, values in each.items()}
            quartiles = {name: quantiles(values, n=4)[::2] for name, values in each.items()}
            pages = {"kept": median(kept["pages"] for kept, _ in pairs), "not": median(f["pages"] for _, f in pairs)}
            told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
            print(f"{model}, {shape}, {batch} in a batch: {told}", flush=True)
            rows.append({**case, "kept_over_not": ratios, "quartiles": quartiles, "pages_per_step": pages})
    record("memory", {"pairs": arguments.pairs, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
