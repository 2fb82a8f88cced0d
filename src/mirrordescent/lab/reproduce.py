"""The paper's tables again: which runs, and how what they gave stands beside the paper's figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirrordescent.lab import paper
from mirrordescent.lab.files import write_text
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.report.table import Spread, spread, why_ended
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished, sweep

QUICK_EPOCHS = 10
QUICK_RUNS = 3  # of each table: RMD sample, RMD batch, SGD


@dataclass(frozen=True)
class Row:
    """One setting at one corruption level, over its seeds, beside the paper's row; accuracies in %."""

    corruption: int
    title: str
    train: Spread
    test: Spread
    epochs: int
    ended: str
    paper_train: float | None
    paper_test: float | None

    @property
    def difference(self) -> float | None:
        """Our test accuracy less the paper's, in points."""
        return None if self.paper_test is None else self.test.mean - self.paper_test


def runs_of(table: str, *, quick: bool = False) -> list[Run]:
    """The runs of a table ("40", "25", "10", "0") or of all, the most telling first.

    quick: only the first few of each table, for ten epochs: to see that it works.

    >>> len(runs_of("all")), len(runs_of("40")), len(runs_of("40", quick=True))
    (96, 24, 3)
    """
    levels = paper.TABLES if table == "all" else (int(table),)
    if not quick:
        return paper.all_runs() if table == "all" else paper.table_runs(levels[0])
    chosen = [run for level in levels for run in paper.table_runs(level)[:QUICK_RUNS]]
    return [dataclasses.replace(run, epochs=QUICK_EPOCHS) for run in chosen]


def reproduce(
    runs: Sequence[Run],
    keeping: Keeping,
    place: Place,
    *,
    minutes: float | None = None,
    at_once: int | None = None,
    watch: Callable[[Progress | Finished], None] | None = None,
) -> tuple[list[Record], list[Finished]]:
    """Train the runs: side by side on a GPU, else one by one; what is done is only read.

    minutes: stop cleanly when they are over (on a GPU).
    """
    if place.resolved.type == "cuda":
        from mirrordescent.lab.engine import engine

        return engine(runs, keeping, place, at_once=at_once, minutes=minutes, watch=watch)
    if minutes is not None or at_once is not None:
        raise ValueError(
            "minutes and at_once are for a GPU; on a CPU stop with Ctrl-C, and go on with the same command"
        )
    return sweep(runs, keeping, place, jobs=1, watch=watch)


def compared(records: Sequence[Record]) -> list[Row]:
    """The records of the paper's runs beside its figures, table by table; others are left out."""
    settings: dict[str, list[Record]] = {}
    known = {dataclasses.replace(run, seed=0, epochs=1).id for run in paper.all_runs()}
    for record in records:
        if dataclasses.replace(record.run, seed=0, epochs=1).id in known and record.rows:
            settings.setdefault(dataclasses.replace(record.run, seed=0).id, []).append(record)
    rows = [row for held in settings.values() if (row := _row(held)) is not None]
    return sorted(rows, key=lambda row: paper.TABLES.index(row.corruption))


def _row(held: Sequence[Record]) -> Row | None:
    run = held[0].run
    corruption = round(100 * run.corruption)
    train = spread(_percent(record, "train_accuracy") for record in held)
    test = spread(_percent(record, "test_accuracy") for record in held)
    if train is None or test is None:
        return None
    same = [f for f in paper.figures(corruption) if (f.algorithm, f.lam) == (run.algorithm, run.lam)]
    if run.reduction == "sample" and run.algorithm == "rmd":
        same = []  # the paper has no such row
    ended = ", ".join(sorted({why_ended(record) for record in held}))
    epochs = max(record.epochs for record in held)
    published = (same[0].train, same[0].test) if same else (None, None)
    return Row(corruption, run.title, train, test, epochs, ended, *published)


def _percent(record: Record, name: str) -> float | None:
    value = record.final.get(name)
    return None if value is None else 100 * value


def page(rows: Sequence[Row]) -> str:
    """The comparison as Markdown."""
    lines = ["# The paper's tables on CIFAR-10 and ResNet-18", ""]
    for corruption in paper.TABLES:
        held = [row for row in rows if row.corruption == corruption]
        if not held:
            continue
        best = max((figure.test for figure in paper.figures(corruption) if figure.algorithm == "rmd"), default=0.0)
        lines += [
            f"## {corruption} % of the labels redrawn",
            "",
            f"The paper's best RMD: {best:.2f} % test accuracy.",
            "",
        ]
        lines += ["| | seeds | epochs | ended | train % | paper | test % | paper | difference |"]
        lines += ["|---|---|---|---|---|---|---|---|---|"]
        lines += [_line(row) for row in held] + [""]
    return "\n".join(lines)


def _line(row: Row) -> str:
    published = ["–" if value is None else f"{value:.2f}" for value in (row.paper_train, row.paper_test)]
    difference = "–" if row.difference is None else f"{row.difference:+.2f}"
    ours = [row.train.text(".2f"), row.test.text(".2f")]
    cells = [row.title, row.test.count, row.epochs, row.ended, ours[0], published[0], ours[1], published[1], difference]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def write_page(records: Sequence[Record], keeping: Keeping) -> str:
    """Write the comparison beside the runs; returns its path."""
    path = keeping.root / "reproduction.md"
    write_text(path, page(compared(records)))
    return str(path)
