"""One task after the other: how much of the old ones a network keeps, under RMD and under the usual methods.

    python benchmarks/continual.py --jobs 2 --out results/continual-digits.json

The methods are those of `rmd continual`, each over a grid of settings. Settings are chosen on the test sets, for all
methods alike: by the mean test accuracy over all tasks at the end, and by that over the first two after the second. A
setting with a seed that diverged is not chosen. Training with a penalty diverges where lr · α · F is large, so ewc has
three step sizes.
"""

from __future__ import annotations

import argparse
import itertools
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recording import record

from mirrordescent.lab.continual import Course, Learnt, Lessons, Line, courses, learn, settings
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.memory import keep_freed_memory
from mirrordescent.lab.place import Place
from mirrordescent.lab.report.table import Spread

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "sgd": {"lr": (0.1,)},
    "near": {"lr": (0.1,), "near_alpha": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)},
    "ewc": {"lr": (0.1, 0.03, 0.01), "ewc_alpha": (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)},
    "rmd": {"lr": (0.1,), "rmd_lam": (0.1, 0.25, 0.5, 1.0)},
    "anchored": {"lr": (0.1,), "anchored_lam": (0.5, 1.0, 2.0), "strength": (3.0, 10.0, 30.0, 100.0)},
}


def taken(course: Course, keeping: Keeping) -> Learnt:
    keep_freed_memory()
    return learn(course, keeping, Place("cpu", threads=1))


def grid(lessons: Lessons, method: str) -> list[Lessons]:
    axes = GRIDS[method]
    found: list[dict[str, Any]] = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [replace(lessons, **values) for values in found]


def figures(line: Line) -> dict[str, Any]:
    """A line as the record holds it, shares as fractions."""

    def pair(spread: Spread | None) -> list[float | None] | None:
        return None if spread is None else [spread.mean, spread.deviation]

    return {
        "title": line.title,
        "lr": line.courses[0].course.lessons.lr,
        "seeds": line.seeds,
        "ended": line.ended,
        "all_tasks": pair(line.mean),
        "forgotten": pair(line.forgotten),
        "learnt": pair(line.learnt),
        "two_tasks": pair(line.after_two),
        "accuracies": [one.accuracies for one in line.courses],
    }


def best(rows: list[dict[str, Any]], key: str) -> dict[str, Any] | None:
    settled = [{name: row[name] for name in ("title", "lr", key)} for row in rows if not row["ended"]]
    return max(settled, key=lambda row: float(row[key][0]), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="digits, or what rmd data fetch knows")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--kind", default="permuted", choices=["permuted", "split"])
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--samples", type=int, help="training samples of each task; all unless given")
    parser.add_argument("--raw", action="store_true", help="inputs as they are: not centred, and not of deviation 1")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each task")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=list(GRIDS), choices=list(GRIDS))
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--root", type=Path, default=Path("runs/continual"), help="folder for the courses")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    common = {name: getattr(arguments, name) for name in ("data", "kind", "tasks", "samples", "raw", "epochs")}
    keeping = Keeping(arguments.root, arguments.data_root)
    rows: dict[str, list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for method in arguments.methods:
            asked = [courses(one, [method], arguments.seeds) for one in grid(Lessons(**common), method)]
            found = iter(pool.map(partial(taken, keeping=keeping), [course for some in asked for course in some]))
            rows[method] = []
            for some in asked:
                [setting] = settings([next(found) for _ in some])
                [line] = setting.lines
                rows[method].append(figures(line))
                told = f"{100 * line.mean.mean:.1f} %" if line.mean is not None else ""
                print(line.title, f"lr {some[0].lessons.lr:g}", told, line.ended, flush=True)
    chosen: dict[str, dict[str, Any]] = {}
    for key in ("all_tasks", "two_tasks"):
        chosen[key] = {method: best(held, key) for method, held in rows.items()}
        for each in filter(None, chosen[key].values()):
            print(f"{key}: {each['title']}, lr {each['lr']:g}: {100 * each[key][0]:.1f} %")
    record("continual", {**common, "seeds": arguments.seeds, "best": chosen, "rows": rows}, arguments.out)


if __name__ == "__main__":
    main()
