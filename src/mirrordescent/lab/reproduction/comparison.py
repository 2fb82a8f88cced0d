"""Our runs beside the paper's figures: a row per setting and length, and the best of each method."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from mirrordescent.lab import paper
from mirrordescent.lab.records import Record
from mirrordescent.lab.report.table import Line, Spread, ranged, table
from mirrordescent.lab.runs import Run

METHODS = ("RMD sample", "RMD batch", "weight decay", "SGD")  # the order of the rows
HEADLINES = {"RMD sample": "rmd", "RMD batch": "rmd", "SGD": "sgd"}  # our method: the paper's algorithm beside it
APART = 2.0  # points of test accuracy; a row further from the paper's is marked


@dataclass(frozen=True)
class Row:
    """One setting and epoch limit at one corruption level, over its seeds, beside the paper's row; accuracies in %.

    line: the setting's runs. Its figures are those of the runs that are done, or, while none is, of all so far.
    published: the paper's row, where it has one.
    """

    corruption: int
    method: str
    lam: float | None
    line: Line
    published: paper.Figure | None

    @property
    def title(self) -> str:
        """For a person: "RMD batch, λ = 1.2"; runs that are longer than the tables plan have their length added."""
        setting = self.method if self.lam is None else f"{self.method}, λ = {self.lam:g}"
        return f"{setting}, {self.given} epochs" if self.longer else setting

    @property
    def train(self) -> Spread:
        """Accuracy on the training labels as given."""
        return _percent(self.line.figures["train_accuracy"])

    @property
    def test(self) -> Spread:
        """Accuracy on the test set."""
        return _percent(self.line.figures["test_accuracy"])

    @property
    def epochs(self) -> int:
        """The epochs behind the figures, of the longest of the runs."""
        return max(self._measured)

    @property
    def epochs_text(self) -> str:
        """The epochs behind the figures, of all runs: "100", or "85 to 100"."""
        return ranged(self._measured)

    @property
    def _measured(self) -> list[int]:
        """After how many epochs each run was evaluated last; one that is under way may be further."""
        return [int(record.final.get("epoch") or record.epochs) for record in self.line.counted]

    @property
    def ended(self) -> str:
        """Why the runs ended, or that they did not."""
        return f"{self.line.ended}, {self.planned} planned" if self.short else self.line.ended

    @property
    def planned(self) -> int:
        """The epoch limit that the tables plan for the setting."""
        return _settings()[_setting(self.line.records[0].run)]

    @property
    def given(self) -> int:
        """The epoch limit that the runs behind the figures had."""
        return max(record.run.epochs for record in self.line.counted)

    @property
    def short(self) -> bool:
        """Whether the runs were given fewer epochs than planned, as with `--quick`."""
        return self.given < self.planned

    @property
    def longer(self) -> bool:
        """Whether the runs were given more epochs than planned, as `--epochs` can ask for."""
        return self.given > self.planned

    @property
    def early(self) -> bool:
        """Whether it is too early to compare it: too short, or none of its runs is done."""
        return self.short or not self.line.finished

    @property
    def paper_train(self) -> float | None:
        """The paper's accuracy on the training labels."""
        return None if self.published is None else self.published.train

    @property
    def paper_test(self) -> float | None:
        """The paper's accuracy on the test set."""
        return None if self.published is None else self.published.test

    @property
    def difference(self) -> float | None:
        """Our test accuracy less the paper's, in points."""
        return None if self.paper_test is None else self.test.mean - self.paper_test

    @property
    def off(self) -> bool:
        """Whether the test accuracy is more than 2 points from the paper's, to the two decimals that are shown."""
        return self.difference is not None and not self.early and abs(round(self.difference, 2)) > APART


@dataclass(frozen=True)
class Best:
    """Our row with a method's best test accuracy at one level, beside the paper's best.

    tried: among how many λ it is the best; planned: how many the tables plan.
    """

    row: Row
    published: paper.Figure
    tried: int
    planned: int

    @property
    def difference(self) -> float:
        """Our test accuracy less the paper's, in points."""
        return self.row.test.mean - self.published.test


def compared(records: Sequence[Record]) -> list[Row]:
    """The records of the paper's runs beside its figures, by level, method and λ; other records are left out.

    A setting without an evaluation has no row. One that was trained with several epoch limits has a row for each limit
    of at least what the tables plan or, where there is none, for the highest.
    """
    rows = [_row(line) for line in _lines(records) if _evaluated(line)]
    by_place: dict[tuple[int, int, float], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (_place(row), row.given)):
        by_place.setdefault(_place(row), []).append(row)
    return [row for held in by_place.values() for row in [row for row in held if not row.short] or held[-1:]]


def unevaluated(records: Sequence[Record]) -> list[Record]:
    """Those of the paper's runs whose setting has no row, as none of its runs has come to an evaluation."""
    return [record for line in _lines(records) if not _evaluated(line) for record in line.records]


def leaders(rows: Sequence[Row]) -> list[Row]:
    """The row with the best test accuracy of each method; the rows are those of one level."""
    by_method = [candidates(rows, method) for method in METHODS]
    return [max(held, key=lambda row: row.test.mean) for held in by_method if held]


def candidates(rows: Sequence[Row], method: str) -> list[Row]:
    """The rows that may be a method's best: those with a run that is done, or all while there are none."""
    held = [row for row in rows if row.method == method]
    return [row for row in held if row.line.finished] or held


def bests(rows: Sequence[Row]) -> list[Best]:
    """At each level our best RMD sample and RMD batch beside the paper's best RMD, and SGD beside SGD."""
    found = []
    for corruption in paper.TABLES:
        level = [row for row in rows if row.corruption == corruption]
        for row in leaders(level):
            if algorithm := HEADLINES.get(row.method):
                theirs = [figure for figure in paper.figures(corruption) if figure.algorithm == algorithm]
                tried = {held.lam for held in candidates(level, row.method)}
                planned = {run.lam for run in paper.table_runs(corruption) if method_of(run) == row.method}
                found.append(Best(row, max(theirs, key=lambda figure: figure.test), len(tried), len(planned)))
    return found


def done(rows: Sequence[Row]) -> tuple[int, int]:
    """How many of the tables' runs are done, as long as planned or longer, and how many there are."""
    planned = {(_setting(run), run.seed): run.epochs for run in paper.all_runs()}
    held = {
        key
        for row in rows
        for record in row.line.records
        if record.status == "done"
        and (key := (_setting(record.run), record.run.seed)) in planned
        and record.run.epochs >= planned[key]
    }
    return len(held), len(planned)


def method_of(run: Run) -> str:
    """The method's name in the report.

    >>> [method_of(run) for run in paper.table_runs(40)[:3]]
    ['RMD sample', 'RMD batch', 'SGD']
    """
    return {"sgd": "SGD", "weight-decay": "weight decay", "rmd": f"RMD {run.reduction}"}[run.algorithm]


def level_of(run: Run) -> int:
    """The share of the labels that were redrawn, in %."""
    return round(100 * run.corruption)


def _lines(records: Sequence[Record]) -> list[Line]:
    """A line per setting of the paper's runs; other records are left out."""
    return table([record for record in records if _setting(record.run) in _settings()])


def _evaluated(line: Line) -> bool:
    return {"train_accuracy", "test_accuracy"} <= line.figures.keys()


def _row(line: Line) -> Row:
    run = line.records[0].run
    same = [f for f in paper.figures(level_of(run)) if (f.algorithm, f.lam) == (run.algorithm, run.lam)]
    theirs = same[0] if same and method_of(run) != "RMD sample" else None  # the paper has no RMD sample
    return Row(level_of(run), method_of(run), run.lam, line, theirs)


def _place(row: Row) -> tuple[int, int, float]:
    return paper.TABLES.index(row.corruption), METHODS.index(row.method), row.lam or 0.0


@functools.cache
def _settings() -> dict[str, int]:
    """The settings behind the paper's tables, and their epoch limits."""
    return {_setting(run): run.epochs for run in paper.all_runs()}


def _setting(run: Run) -> str:
    """A run's setting: all but the seed, how long it is and how often it is evaluated."""
    return dataclasses.replace(run, seed=0, epochs=1, every=1).id


def _percent(figure: Spread) -> Spread:
    deviation = None if figure.deviation is None else 100 * figure.deviation
    return Spread(100 * figure.mean, deviation, figure.count)
