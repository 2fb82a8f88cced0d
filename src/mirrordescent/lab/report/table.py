"""Tables of runs: the seeds of one setting merged into a line, and the lines grouped by what was to be learnt."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import IN_TITLE, Run

NOTHING = "–"  # in place of a figure that does not apply, or is not there yet
# What the network was to learn; runs that differ in these are not compared with each other.
TASK = ("data", "label", "without", "test", "test_share", "corruption", "noise", "noise_file")


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of one figure over the seeds; no deviation for one seed."""

    mean: float
    deviation: float | None = None
    count: int = 1

    def text(self, form: str, scale: float = 1.0) -> str:
        """The figure for a person.

        >>> Spread(0.9306, 0.0042, 3).text(".2f", 100)
        '93.06 ± 0.42'
        """
        mean = format(self.mean * scale, form)
        return mean if self.deviation is None else f"{mean} ± {format(self.deviation * scale, form)}"


def ranged(values: Sequence[int]) -> str:
    """The least and the greatest of some whole numbers, or one number if they are equal.

    >>> ranged([3, 1, 2]), ranged([1000, 1000])
    ('1 to 3', '1,000')
    """
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def or_nothing(value: float | None, form: str) -> str:
    """A figure, or a dash where there is none.

    >>> or_nothing(1.25, "+.1f"), or_nothing(None, ".1f")
    ('+1.2', '–')
    """
    return NOTHING if value is None else format(value, form)


def spread(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are known and finite; None where there are none.

    >>> spread([1.0, None, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Measure:
    """A figure of the last evaluation, and how a table writes it."""

    key: str
    heading: str
    form: str
    scale: float = 1.0


ACCURACIES = (
    Measure("train_accuracy", "train accuracy (%)", ".2f", 100),
    Measure("test_accuracy", "test accuracy (%)", ".2f", 100),
    Measure("wrong_fitted", "wrong labels learnt (%)", ".2f", 100),
)
LOSSES = (Measure("train_loss", "train loss", ".4g"), Measure("test_loss", "test loss", ".4g"))
SUSPICION = Measure("z_auroc", "AUROC of z", ".3f")


@dataclass(frozen=True)
class Line:
    """One setting, over its seeds.

    task: the title of the task (data and corruption). method: the setting without λ. lam: λ, where there is one.
    records: the setting's runs, one per seed. counted: those behind the figures: the runs that are done, or, while
        none is, those with an evaluation to show.
    figures: by the metric's name, a fraction or a loss; only what is known.
    best: has the best test accuracy (test loss, in regression) of its task.
    """

    task: str
    method: str
    lam: float | None
    records: tuple[Record, ...]
    counted: tuple[Record, ...]
    figures: dict[str, Spread]
    best: bool = False

    @property
    def title(self) -> str:
        """For a person: "RMD sample, λ = 2"."""
        return self.method if self.lam is None else f"{self.method}, λ = {self.lam:g}"

    @property
    def decays(self) -> bool:
        """Whether it is weight decay, whose λ weighs a different sum than RMD's."""
        return self.records[0].run.algorithm == "weight-decay"

    @property
    def finished(self) -> bool:
        """Whether the figures are those of runs that are done."""
        return any(record.status == "done" for record in self.counted)

    @property
    def score(self) -> float:
        """The higher, the better: test accuracy, or minus the test loss; −∞ where neither is known."""
        if accuracy := self.figures.get("test_accuracy"):
            return accuracy.mean
        return -loss.mean if (loss := self.figures.get("test_loss")) else -math.inf

    @property
    def seeds(self) -> str:
        """How many seeds are behind the figures: "3", or "2 of 3"."""
        all_of_them, counted = len(self.records), len(self.counted)
        return str(all_of_them) if counted == all_of_them else f"{counted} of {all_of_them}"

    @property
    def epochs_text(self) -> str:
        """Of the runs behind the figures: "100", or "85 to 100"."""
        return ranged([record.epochs for record in self.counted or self.records])

    @property
    def ended(self) -> str:
        """Why the runs ended: "plateau", or "plateau (2), interrupted (1)"."""
        whys = Counter(why_ended(record) for record in self.records)
        return next(iter(whys)) if len(whys) == 1 else ", ".join(f"{why} ({count})" for why, count in whys.items())

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON; λ = ∞ is the text "inf"."""
        return {
            "task": self.task,
            "method": self.method,
            "lam": "inf" if self.lam == math.inf else self.lam,
            "runs": [record.id for record in self.records],
            "counted": [record.id for record in self.counted],
            "figures": {key: dataclasses.asdict(figure) for key, figure in self.figures.items()},
            "ended": self.ended,
            "best": self.best,
        }


@dataclass(frozen=True)
class Task:
    """What the network was to learn, and how each setting did."""

    title: str
    lines: tuple[Line, ...]

    @property
    def records(self) -> list[Record]:
        """All runs on it."""
        return [record for line in self.lines for record in line.records]


@dataclass(frozen=True)
class Column:
    """A column of a table of lines."""

    heading: str
    cell: Callable[[Line], str]
    number: bool = True


def table(records: Sequence[Record]) -> list[Line]:
    """One line per setting, task after task; see `columns` for the headings and the cells."""
    return [line for task in tasks(records) for line in task.lines]


def tasks(records: Sequence[Record]) -> list[Task]:
    """The runs, grouped by task; a run that is in two folders counts once."""
    by_task: dict[tuple[Any, ...], list[Record]] = {}
    for record in distinct(records):
        key = (*(getattr(record.run, name) for name in TASK), record.data.get("digest"))
        by_task.setdefault(key, []).append(record)
    titles = [_title(held[0]) for held in by_task.values()]
    runs = [held[0].run for held in by_task.values()]
    found = []
    for title, run, held in zip(titles, runs, by_task.values(), strict=True):
        alike = [other for name, other in zip(titles, runs, strict=True) if name == title]
        told = differences(run, alike, TASK)
        if len(alike) > 1 and not told:
            told = [f"data {str(held[0].data.get('digest'))[:8]}"]  # different data with the same name
        whole = ", ".join([title, *told])
        found.append(Task(whole, _lines(whole, held)))
    return found


def columns(lines: Sequence[Line]) -> list[Column]:
    """The columns for one task's lines: those with something to show. Where there are no accuracies, losses."""
    measures = _known(ACCURACIES, lines) or _known(LOSSES, lines)
    shown = [_measured(measure) for measure in [*measures, *_known([SUSPICION], lines)]]
    lam = [Column("λ", lambda line: NOTHING if line.lam is None else f"{line.lam:g}")]
    return [
        Column("method", lambda line: line.method, number=False),
        *(lam if any(line.lam is not None for line in lines) else []),
        *shown,
        Column("epochs", lambda line: line.epochs_text),
        Column("seeds", lambda line: line.seeds),
        Column("why it ended", lambda line: line.ended, number=False),
    ]


def best_of_each_method(lines: Sequence[Line], most: int) -> list[Line]:
    """The line with the best score of each method; of these, the `most` best, in the table's order."""
    best: dict[str, Line] = {}
    for line in lines:
        if line.method not in best or line.score > best[line.method].score:
            best[line.method] = line
    return best_lines(list(best.values()), most)


def best_lines(lines: Sequence[Line], most: int) -> list[Line]:
    """The `most` lines with the best scores, in the table's order."""
    ranked = sorted(range(len(lines)), key=lambda place: -lines[place].score)
    return [lines[place] for place in sorted(ranked[:most])]


def distinct(records: Sequence[Record]) -> list[Record]:
    """Each run once, though it may be in several folders: the record that is done, or else the furthest."""
    kept: dict[tuple[Any, ...], Record] = {}
    for record in records:
        key = (record.id, record.data.get("digest"))  # on other data it is another run
        old = kept.get(key)
        if old is None or (record.status == "done", record.epochs) > (old.status == "done", old.epochs):
            kept[key] = record
    return list(kept.values())


def differences(run: Run, others: Iterable[Run], names: Iterable[str]) -> list[str]:
    """The settings in which the run differs from any of the others, as text: ["lr 0.1"]."""
    others = list(others)
    return [
        f"{name} {getattr(run, name)}"
        for name in names
        if any(getattr(other, name) != getattr(run, name) for other in others)
    ]


def why_ended(record: Record) -> str:
    """Why a run ended, or that it did not."""
    if record.status == "done":
        return {"": "done", "epochs": "epoch limit"}.get(record.reason, record.reason)
    if record.status == "failed":
        return f"failed: {record.reason}" if record.reason else "failed"
    return {"running": "not finished (running or killed)"}.get(record.status, f"not finished ({record.status})")


def _lines(task: str, records: Sequence[Record]) -> tuple[Line, ...]:
    by_setting: dict[str, list[Record]] = {}
    for record in records:
        by_setting.setdefault(dataclasses.replace(record.run, seed=0).id, []).append(record)
    settings = [held[0].run for held in by_setting.values()]
    lines = [_line(task, _method(held[0].run, settings), held) for held in by_setting.values()]
    # Runs that are not done do not compete with those that are.
    ranked = [line for line in lines if line.finished] or lines
    top = max((line.score for line in ranked), default=-math.inf)
    marked = len(ranked) > 1 and top > -math.inf
    return tuple(dataclasses.replace(line, best=marked and line in ranked and line.score == top) for line in lines)


def _line(task: str, method: str, held: Sequence[Record]) -> Line:
    counted = [record for record in held if record.status == "done"] or [record for record in held if record.rows]
    found = {
        measure.key: spread(record.final.get(measure.key) for record in counted)
        for measure in (*ACCURACIES, *LOSSES, SUSPICION)
    }
    found["epochs"] = spread(record.epochs for record in counted or held)
    figures = {key: figure for key, figure in found.items() if figure is not None}
    return Line(task, method, held[0].run.lam, tuple(held), tuple(counted), figures)


def _method(run: Run, settings: Sequence[Run]) -> str:
    """The run's title without λ, and how it differs from other settings with that title."""

    def base(run: Run) -> str:
        return run.title.split(", λ = ")[0]

    alike = [other for other in settings if base(other) == base(run)]
    rest = [name for name in run.to_dict() if name not in (*TASK, *IN_TITLE, "seed")]
    return ", ".join([base(run), *differences(run, alike, rest)])


def _title(record: Record) -> str:
    run = record.run
    name = str(record.data.get("name") or run.data)
    if run.noise == "file":
        return f"{name}, labels of {run.noise_file}"
    if not run.corruption:
        return name
    kind = "" if run.noise == "uniform" else f" ({run.noise})"
    return f"{name}, {100 * run.corruption:g} % of the labels corrupted{kind}"


def _known(measures: Iterable[Measure], lines: Sequence[Line]) -> list[Measure]:
    return [measure for measure in measures if any(measure.key in line.figures for line in lines)]


def _measured(measure: Measure) -> Column:
    def cell(line: Line) -> str:
        figure = line.figures.get(measure.key)
        return NOTHING if figure is None else figure.text(measure.form, measure.scale)

    return Column(measure.heading, cell)
