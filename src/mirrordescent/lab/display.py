"""What a person sees on the terminal: progress while it runs, a table at the end. Machines get JSON instead."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from mirrordescent.lab import loop
from mirrordescent.lab.audit.auditing import Audited
from mirrordescent.lab.audit.cleaning import Choice, Outcome
from mirrordescent.lab.audit.telling import sentences
from mirrordescent.lab.data import official
from mirrordescent.lab.records import Record
from mirrordescent.lab.records import Row as Metrics
from mirrordescent.lab.report.table import NOTHING, Line, tasks
from mirrordescent.lab.reproduce import Row
from mirrordescent.lab.sweep import Finished

CLASSES = 20  # lines of an audit's table
EVERY = 10.0  # seconds between lines where there is no terminal to draw on


def percent(value: float | None) -> str:
    """A fraction for people.

    >>> percent(0.9414), percent(None)
    ('94.1 %', '–')
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def standing(row: Metrics) -> str:
    """The last evaluation in a few words."""
    if not row:
        return ""
    if row["test_accuracy"] is None:
        return f"test loss {row['test_loss']:.4g}" if row["test_loss"] is not None else "loss not finite"
    learnt = "" if row["wrong_fitted"] is None else f", wrong labels learnt {percent(row['wrong_fitted'])}"
    return f"test {percent(row['test_accuracy'])}{learnt}"


class Watching:
    """The progress of one run or of many; a live display on a terminal, a line now and then elsewhere.

    total: how many runs there are.
    """

    def __init__(self, console: Console, total: int) -> None:
        self.console, self.total, self.ended, self.said = console, total, 0, time.monotonic()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[standing]}", style="dim"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.all = self.bars.add_task("runs", total=total, standing="") if total > 1 else None

    def __enter__(self) -> Watching:
        """Begin to draw."""
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        self.bars.stop()

    def __call__(self, event: loop.Progress | Finished) -> None:
        """Show what a run says."""
        if isinstance(event, Finished):
            self._finish(event)
            return
        key = event.run.id
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(event.run.title, total=event.run.epochs, standing="")
        where = event.epoch + event.step / event.steps
        self.bars.update(self.tasks[key], completed=round(where, 2), standing=standing(event.row))
        if not self.console.is_terminal and time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            words = [f"epoch {where:.1f} of {event.run.epochs}", standing(event.row)]
            self.console.print(f"{event.run.title}: {', '.join(word for word in words if word)}", highlight=False)

    def _finish(self, event: Finished) -> None:
        self.ended += 1
        if event.run.id in self.tasks:
            self.bars.remove_task(self.tasks.pop(event.run.id))
        if self.all is not None:
            self.bars.update(self.all, completed=self.ended)
        if event.status == "failed":
            self.console.print(f"[red]failed[/red] {event.run.title} ({event.run.id}): ", end="")
            self.console.print(event.error, markup=False)
        elif self.total > 1 and not self.console.is_terminal:
            self.console.print(f"{self.ended} of {self.total}: {event.run.title}, {event.status}")


@contextmanager
def transfers(console: Console) -> Iterator[Callable[[official.Progress], None]]:
    """Bars for bytes, one per file that is downloaded, written or checked; lines for everything else."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[tuple[str, str], TaskID] = {}

    def watch(event: official.Progress) -> None:
        if not event.total:
            console.print(f"{event.action} {event.file} {event.detail}".strip(), markup=False, highlight=False)
            return
        key = (event.action, event.file)
        if key not in tasks:
            tasks[key] = bars.add_task(f"{event.action} {event.file}", total=event.total)
        bars.update(tasks[key], completed=event.done)

    with bars:
        yield watch


def show_table(records: Sequence[Record]) -> None:
    """The runs on the standard output, one line per setting, task after task; narrow enough for any terminal."""
    console = Console()
    for task in tasks(records):
        shown = Table(title=escape(task.title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        columns = [(heading, cell) for heading, cell in TERMINAL if any(cell(line) for line in task.lines)]
        for heading, _ in columns:
            words = heading in ("", "ended")  # which may be long and are wrapped; figures never are
            shown.add_column(heading, justify="left" if words else "right", no_wrap=not words)
        for line in task.lines:
            shown.add_row(*[escape(cell(line)) for _, cell in columns], style="bold green" if line.best else None)
        console.print(shown)


def _figure(key: str, form: str, scale: float = 1.0) -> Callable[[Line], str]:
    return lambda line: line.figures[key].text(form, scale) if key in line.figures else ""


def _mean(key: str, form: str) -> Callable[[Line], str]:
    return lambda line: format(line.figures[key].mean, form) if key in line.figures else ""


# heading, cell; a column without a cell to show is left out
TERMINAL: tuple[tuple[str, Callable[[Line], str]], ...] = (
    ("", lambda line: line.title),
    ("train\n%", _figure("train_accuracy", ".1f", 100)),
    ("test\n%", _figure("test_accuracy", ".1f", 100)),
    ("test\nloss", lambda line: "" if "test_accuracy" in line.figures else _figure("test_loss", ".4g")(line)),
    ("wrong\nlearnt %", _figure("wrong_fitted", ".1f", 100)),
    ("AUROC\nof z", _mean("z_auroc", ".3f")),
    ("epochs", _mean("epochs", ".0f")),
    ("ended", lambda line: "" if line.ended == "epoch limit" else line.ended),
)


def show_comparison(rows: Sequence[Row]) -> None:
    """The paper's tables and ours on the standard output."""
    for corruption in dict.fromkeys(row.corruption for row in rows):
        title = f"{corruption} % of the labels redrawn"
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for heading in ("", "epochs", "train\n%", "paper", "test\n%", "paper", "by"):
            shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
        for row in rows:
            if row.corruption == corruption:
                cells = [row.train.text(".1f"), _or_nothing(row.paper_train), row.test.text(".1f")]
                cells += [_or_nothing(row.paper_test), _or_nothing(row.difference, "+.1f")]
                shown.add_row(escape(row.title), str(row.epochs), *cells)
        Console().print(shown)


def show_audit(audited: Audited, top: int) -> None:
    """What an audit found, class by class, and its top suspects, on the standard output."""
    found, out = audited.found, Console()
    names = audited.whole.class_names
    for sentence in sentences(audited):
        out.print(sentence, highlight=False, markup=False)
    classes = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("given label", "samples", "wrong %", "flagged"):
        classes.add_column(heading, justify="left" if heading == "given label" else "right", no_wrap=True)
    worst = found.noise_by_class.argsort(descending=True)[:CLASSES].tolist()
    for label in sorted(worst):
        name, here = names[label], found.given == label
        if bool(here.any()):
            share, flagged = float(found.wrong[here].mean()), int(found.issue[here].sum())
            classes.add_row(escape(name), f"{int(here.sum()):,}", f"{100 * share:.1f}", f"{flagged:,}")
    out.print(classes)
    if len(names) > CLASSES:
        out.print(f"(the {CLASSES} classes with the largest share of {len(names):,})", highlight=False)
    suspects = Table(title="most suspicious", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("", "given", "suggested", "wrong with\nprobability", "confidence\nin suggestion"):
        suspects.add_column(heading, justify="right" if "\n" in heading else "left")
    for i in found.order[:top].tolist():
        if bool(found.issue[i]):
            given, suggested = names[int(found.given[i])], names[int(found.suggested[i])]
            figures = f"{float(found.wrong[i]):.3f}", f"{float(found.confidence[i]):.2f}"
            suspects.add_row(escape(audited.whole.names[i]), escape(given), escape(suggested), *figures)
    if suspects.row_count:
        out.print(suspects)


def show_cleaned(audited: Audited, choice: Choice, outcomes: Sequence[Outcome]) -> None:
    """What was left out or relabelled, and what training on the rest is worth, on the standard output."""
    out, n = Console(), len(choice.keep)
    dropped, renamed = int((~choice.keep).sum()), int((choice.keep & (choice.labels != audited.found.given)).sum())
    out.print(f"Of {n:,} samples {dropped:,} are left out and {renamed:,} relabelled.", highlight=False)
    names = audited.whole.class_names
    lost = [names[c] for c in audited.found.given.unique().tolist() if not (choice.labels[choice.keep] == c).any()]
    if lost:
        out.print(f"No sample is left of {', '.join(lost)}.", highlight=False, markup=False)
    if not outcomes:
        return
    count = outcomes[0].record.data["test_samples"]
    judged = f"the test set ({count:,} samples)"
    if not audited.whole.held_out:
        judged = f"a fifth that was set aside ({count:,} samples), by its given labels"
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("trained on", "samples", "test %"):
        shown.add_column(heading, justify="left" if heading == "trained on" else "right", no_wrap=True)
    for outcome in outcomes:
        accuracy = outcome.record.final["test_accuracy"]
        cell = NOTHING
        if accuracy is not None:
            cell = f"{100 * accuracy:.1f} ± {100 * math.sqrt(accuracy * (1 - accuracy) / count):.1f}"
        shown.add_row(outcome.name, f"{outcome.samples:,}", cell)
    out.print(shown)
    out.print(f"Accuracy on {judged} ± its standard error; one run each.", highlight=False)


def _or_nothing(value: float | None, form: str = ".1f") -> str:
    return NOTHING if value is None else format(value, form)


def show_data(root: Path | None, *, json: bool) -> None:
    """The known data sets on the standard output."""
    listed = official.available(root)
    if json:
        rows = [{**dataclasses.asdict(item), "folder": str(item.folder)} for item in listed]
        print_json(rows)
        return
    shown = Table(box=SIMPLE_HEAD)
    for heading in ("name", "state", "training", "test", "classes", "where, or how to get it"):
        number = heading in ("training", "test", "classes")
        shown.add_column(heading, justify="right" if number else "left", overflow="fold")
    shown.add_row("digits", "built in", "1,200", "597", "10", "scikit-learn's")
    shown.add_row("regression", "built in", "100", "100", NOTHING, "made from a seed")
    for item in listed:
        where = str(item.folder) if item.state == "present" else official.command(item.name, root)
        where = f"{item.detail}; {where}" if item.detail else where
        counts = [f"{count:,}" for count in (item.train, item.test, item.classes)]
        shown.add_row(item.name, item.state, *counts, escape(where))
    Console().print(shown)
    Console().print("Your own: the path of a .csv, .tsv, .parquet or .npz file, or of a folder of images.")


def show_states(states: Sequence[official.State]) -> None:
    """A data set's files on the standard output."""
    for state in states:
        line = f"{state.state:<8} {state.file}" + (f": {state.detail}" if state.detail else "")
        Console().print(line, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """For machines."""
    Console().print_json(data=value)
