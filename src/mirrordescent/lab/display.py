"""The results of a command, on the standard output: as tables for people, or as JSON."""

from __future__ import annotations

import dataclasses
import json as json_format
import math
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from mirrordescent.lab.audit.auditing import Audited
from mirrordescent.lab.audit.cleaning import Choice, Outcome, changes_path
from mirrordescent.lab.audit.telling import sentences
from mirrordescent.lab.bench import Costs
from mirrordescent.lab.continual import Learnt, settings
from mirrordescent.lab.data import official
from mirrordescent.lab.data.whole import Whole
from mirrordescent.lab.names import listed
from mirrordescent.lab.records import Record
from mirrordescent.lab.report.table import NOTHING, Line, or_nothing, tasks
from mirrordescent.lab.report.writing import Pages
from mirrordescent.lab.reproduce import Row, compared
from mirrordescent.lab.watching import say

WORD = 12  # characters: the least width of a column of words
CLASSES = 20  # lines of an audit's table, at most


def show(records: Sequence[Record], *, json: bool) -> None:
    """Print the runs as tables, or as JSON (without the histograms, which are in run.json)."""
    if json:
        rows = [{name: value for name, value in record.to_dict().items() if name != "histograms"} for record in records]
        print_json(rows)
    else:
        show_table(records)


def show_reproduction(records: Sequence[Record], *, json: bool) -> None:
    """Print the runs beside the paper's figures, or as JSON without these."""
    if json:
        show(records, json=True)
    else:
        show_comparison(compared(records))


def show_pages(report: Pages) -> None:
    """Print where a report is."""
    for name, path in report.named:
        say(f"{name}: {path}")


def _table(headings: Iterable[str], words: Container[str], title: str = "") -> Table:
    """An empty table: columns of words are left-aligned and may wrap, figures are right-aligned and never do."""
    table = Table(title=escape(title) or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in headings:
        left = heading in words
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    return table


def _out() -> Console:
    """The standard output, where a class called :cat: does not become an emoji."""
    return Console(emoji=False)


def _print(table: Table) -> None:
    """Print a table; where the terminal is too narrow for its figures, the lines run past the edge."""
    out = _out()
    for column in table.columns:
        lines = [line for text in (column.header, *column.cells) for line in str(text).splitlines()]
        longest = max(map(cell_len, lines), default=0)
        column.min_width = longest if column.no_wrap else min(longest, WORD)
    least = sum(column.min_width or 0 for column in table.columns) + 2 * len(table.columns) + 2  # with the padding
    out.width = max(out.width, least)
    out.print(table)


def show_table(records: Sequence[Record]) -> None:
    """Print the runs, one line per setting, in one table per task."""
    for task in tasks(records):
        columns = [(heading, cell) for heading, cell in TERMINAL if any(cell(line) for line in task.lines)]
        shown = _table([heading for heading, _ in columns], {"", "ended"}, task.title)
        for line in task.lines:
            shown.add_row(*[escape(cell(line)) for _, cell in columns], style="bold green" if line.best else None)
        _print(shown)


def _figure(key: str, form: str, scale: float = 1.0) -> Callable[[Line], str]:
    return lambda line: line.figures[key].text(form, scale) if key in line.figures else ""


def _mean(key: str, form: str) -> Callable[[Line], str]:
    return lambda line: format(line.figures[key].mean, form) if key in line.figures else ""


# heading, cell; a column whose cells are all empty is left out
TERMINAL: tuple[tuple[str, Callable[[Line], str]], ...] = (
    ("", lambda line: line.title),
    ("train\n%", _figure("train_accuracy", ".1f", 100)),
    ("test\n%", _figure("test_accuracy", ".1f", 100)),
    ("test\nloss", lambda line: "" if "test_accuracy" in line.figures else _figure("test_loss", ".4g")(line)),
    ("wrong\nlearnt %", _figure("wrong_fitted", ".1f", 100)),
    ("AUROC\nof z", _mean("z_auroc", ".3f")),
    ("epochs", lambda line: line.epochs_text),
    ("ended", lambda line: _unusual(line.ended)),
)


def _unusual(ended: str) -> str:
    """Why it ended, unless at the epoch limit, as usual."""
    return "" if ended == "epoch limit" else ended


def show_comparison(rows: Sequence[Row]) -> None:
    """Print our figures beside the paper's, in one table per level of corruption."""
    for corruption in dict.fromkeys(row.corruption for row in rows):
        level = [row for row in rows if row.corruption == corruption]
        columns = [(heading, cell) for heading, cell in COMPARISON if any(cell(row) for row in level)]
        shown = _table([heading for heading, _ in columns], {"", "ended"}, f"{corruption} % of the labels redrawn")
        for row in level:
            shown.add_row(*[escape(cell(row)) for _, cell in columns])
        _print(shown)


def _goes_on(row: Row) -> bool:
    """Whether none of the row's runs has ended: then the epochs, done and planned, are shown instead of a reason."""
    return all(record.status in ("running", "interrupted") for record in row.line.records)


# heading, cell; a column whose cells are all empty is left out
COMPARISON: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("", lambda row: row.title),
    ("train\n%", lambda row: f"{row.train.mean:.1f}"),
    ("paper", lambda row: or_nothing(row.paper_train, ".1f")),
    ("test\n%", lambda row: row.test.text(".1f")),
    ("paper", lambda row: or_nothing(row.paper_test, ".1f")),
    ("differ-\nence", lambda row: or_nothing(row.difference, "+.1f")),
    ("epochs", lambda row: f"{row.epochs_text}/{row.given}" if _goes_on(row) else row.epochs_text),
    ("ended", lambda row: "" if _goes_on(row) else _unusual(row.ended)),
)


def show_courses(found: Sequence[Learnt], *, json: bool) -> None:
    """Print how much of the old tasks each method has kept, or the records as JSON."""
    if json:
        print_json([one.to_dict() for one in found])
        return
    for setting in settings(found):
        headings = ["", "all tasks\n%", "forgotten\npoints", "learnt\n%", "two tasks\n%", "seeds", "not counted"]
        shown = _table(headings if any(line.ended for line in setting.lines) else headings[:-1], {""}, setting.title)
        for line in setting.lines:
            row = [escape(line.title), *line.cells, line.seeds, line.ended][: len(shown.columns)]
            shown.add_row(*row, style="bold green" if line is setting.best else None)
        _print(shown)


def show_costs(costs: Costs, *, json: bool) -> None:
    """Print the time of training steps relative to SGD's, or all figures as JSON."""
    if json:
        print_json(costs.to_dict())
        return
    bench, out = costs.bench, _out()
    ways = {"eager": "time of a step\nover SGD's", "graph": "as a\nCUDA graph"}
    shown = _table(("", *(f"{ways[way]}\n(quartiles)" for way in costs.sgd_ms)), {""})
    for row in costs.rows:
        found = [ratio for ratio in (row.eager, row.graph) if ratio is not None]
        shown.add_row(escape(row.method), *(f"{r.middle:.3f} ({r.low:.3f} to {r.high:.3f})" for r in found))
    what = f"{bench.model}, {costs.parameters:,} weights, batches of {bench.batch_size}"
    out.print(f"{what}, on {costs.environment['device']}", highlight=False, markup=False)
    _print(shown)
    took = " and ".join(f"{ms:.3g} ms" for ms in costs.sgd_ms.values())
    out.print(f"A step of SGD: {took}. z of {bench.samples:,} samples: {costs.state_bytes:,} bytes.", highlight=False)
    if costs.noisy:
        out.print("The quartiles are far apart: something else is using the machine.", highlight=False)


def show_audit(audited: Audited, top: int) -> None:
    """Print what an audit found, class by class, and its top suspects."""
    found, out = audited.found, _out()
    names = audited.whole.class_names
    for sentence in sentences(audited):
        out.print(sentence, highlight=False, markup=False)
    classes = _table(("given label", "samples", "wrong %", "flagged"), {"given label"})
    worst = found.noise_by_class.argsort(descending=True)[:CLASSES].tolist()
    for label in sorted(worst):
        name, here = names[label], found.given == label
        if bool(here.any()):
            share, flagged = float(found.wrong[here].mean()), int(found.issue[here].sum())
            classes.add_row(escape(name), f"{int(here.sum()):,}", f"{100 * share:.1f}", f"{flagged:,}")
    _print(classes)
    if len(names) > CLASSES:
        out.print(f"(the {CLASSES} classes with most wrong labels by share, of {len(names):,})", highlight=False)
    words = ("", "given", "suggested")
    headings = (*words, "wrong with\nprobability", "confidence\nin suggestion", "flagged")
    suspects = _table(headings, {*words, "flagged"}, "most suspicious")
    suspects.columns[0].no_wrap = True  # a path in two pieces cannot be looked for or copied
    issue, suggested, wrong, confidence = found.issue, found.suggested, found.wrong, found.confidence
    for i in found.order[:top].tolist():
        labels = (escape(names[int(label[i])]) for label in (found.given, suggested))
        figures = f"{float(wrong[i]):.3f}", f"{float(confidence[i]):.2f}"
        suspects.add_row(escape(audited.whole.names[i]), *labels, *figures, "yes" if bool(issue[i]) else NOTHING)
    if suspects.row_count:
        _print(suspects)


def show_cleaned(
    whole: Whole,
    given: Tensor,
    choice: Choice,
    outcomes: Sequence[Outcome],
    found: Sequence[str] = (),
    *,
    copy: Path | None = None,
    by_person: bool = False,
    json: bool = False,
) -> None:
    """Print what was left out or relabelled, and what training on the rest is worth, for people or as JSON.

    found: the audit's sentences. copy: where the copy goes, if there is one; JSON names it.
    """
    if json:
        print_json(_cleaned(whole, given, choice, outcomes, copy))
        for sentence in found:
            say(sentence)
        return
    out, n = _out(), len(choice.keep)
    for sentence in found:
        out.print(sentence, highlight=False, markup=False)
    dropped, renamed = int((~choice.keep).sum()), int((choice.keep & (choice.labels != given)).sum())
    verb = "is" if dropped == 1 else "are"
    out.print(f"Of {n:,} samples {dropped:,} {verb} left out and {renamed:,} relabelled.", highlight=False)
    names = whole.class_names
    if choice.changes(given):
        for told in _by_class(given, choice, names):
            out.print(told, highlight=False, markup=False)
    if choice.spared:
        spared = listed([repr(names[c]) for c in choice.spared])
        out.print(
            f"Every label of {spared} is flagged: these stay as they are. Look at them, and choose with --decisions "
            "which to leave out.",
            highlight=False,
            markup=False,
        )
    lost = [names[c] for c in given.unique().tolist() if not (choice.labels[choice.keep] == c).any()]
    if lost:
        out.print(f"No sample of {', '.join(lost)} is left.", highlight=False, markup=False)
    if not outcomes:
        return
    count = outcomes[0].record.data["test_samples"]
    shown = _table(("trained on", "samples", "test %"), {"trained on"})
    for outcome in outcomes:
        accuracy = outcome.record.final["test_accuracy"]
        cell = NOTHING if accuracy is None else f"{100 * accuracy:.1f} ± {100 * _error(accuracy, count):.1f}"
        shown.add_row(outcome.name, f"{outcome.samples:,}", cell)
    out.print(shown)
    judged = f"the test set ({count:,} samples)"
    if not whole.held_out:
        judged = f"a fifth that was set aside ({count:,} samples), by its given labels, of which some are wrong"
        if not by_person:
            judged += "; for this, the other four fifths were audited by themselves"
    out.print(f"Accuracy on {judged}; ± its standard error; one run each.", highlight=False)
    out.print(_verdict(outcomes, count), highlight=False)


def _cleaned(
    whole: Whole, given: Tensor, choice: Choice, outcomes: Sequence[Outcome], copy: Path | None
) -> dict[str, Any]:
    names = whole.class_names

    def samples(those: Tensor) -> list[dict[str, Any]]:
        rows = those.nonzero()[:, 0].tolist()
        return [{"index": i, "name": whole.names[i], "given_label": names[int(given[i])]} for i in rows]

    relabelled = choice.keep & (choice.labels != given)
    new = [names[label] for label in choice.labels[relabelled].tolist()]
    return {
        "samples": len(choice.keep),
        "left_out": samples(~choice.keep),
        "relabelled": [{**row, "label": label} for row, label in zip(samples(relabelled), new, strict=True)],
        "spared_classes": [names[c] for c in choice.spared],
        "comparison": [
            {
                "trained_on": outcome.name,
                "samples": outcome.samples,
                "test_accuracy": outcome.record.final["test_accuracy"],
                "test_samples": outcome.record.data["test_samples"],
            }
            for outcome in outcomes
        ],
        "copy": None if copy is None else str(copy),
        "changes": None if copy is None else str(changes_path(copy)),
    }


def _by_class(given: Tensor, choice: Choice, names: Sequence[str]) -> Iterator[str]:
    """How many labels of each given class are changed, the largest shares first, and a warning for over a half."""
    touched = ~choice.keep | (choice.labels != given)
    members, changed = (torch.bincount(labels, minlength=len(names)).tolist() for labels in (given, given[touched]))
    worst = sorted((c for c in range(len(names)) if changed[c]), key=lambda c: -changed[c] / members[c])
    counts = [f"{changed[c]:,} of the {members[c]:,} {names[c]!r}" for c in worst]
    yield f"By given label: {listed(counts, most=CLASSES)}."
    if half := [repr(names[c]) for c in worst if 2 * changed[c] > members[c]]:
        yield (
            f"That is more than half of {listed(half)}: either most of these labels are wrong, or the classes are hard "
            "to tell from others. Look at some before you trust the copy."
        )


def _error(accuracy: float, count: int) -> float:
    """The standard error of an accuracy on so many samples."""
    return math.sqrt(accuracy * (1 - accuracy) / count)


def _verdict(outcomes: Sequence[Outcome], count: int) -> str:
    """What the clean-up is worth: training on the cleaned labels compared with training on all."""
    before, after = (outcome.record.final["test_accuracy"] for outcome in outcomes[:2])
    if before is None or after is None:
        return "Training diverged, which says nothing about the clean-up."
    chance = abs(after - before) <= 2 * max(_error(before, count), _error(after, count))
    if after >= before:
        if chance:
            return "Training on the cleaned labels is no worse; a difference within two standard errors may be chance."
        return "Training on the cleaned labels is better than on all of them."
    maybe = ", though within two standard errors it may be chance" if chance else ""
    return (
        f"Training on the cleaned labels is worse than on all of them{maybe}: look at what was left out before you use "
        "the copy."
    )


def show_data(root: Path | None, *, json: bool) -> None:
    """Print the known data sets, as a table or as JSON."""
    sets = official.available(root)
    if json:
        rows = [{**dataclasses.asdict(item), "folder": str(item.folder)} for item in sets]
        print_json(rows)
        return
    where = "where, or how to get it"
    shown = _table(("name", "state", "training", "test", "classes", where), {"name", "state", where})
    shown.add_row("digits", "built in", "1,200", "597", "10", "scikit-learn's")
    shown.add_row("regression", "built in", "100", "100", NOTHING, "made from a seed")
    for item in sets:
        where = str(item.folder) if item.state == "present" else official.command(item.name, root)
        where = f"{item.detail}; {where}" if item.detail else where
        counts = [f"{count:,}" for count in (item.train, item.test, item.classes)]
        shown.add_row(item.name, item.state, *counts, escape(where))
    _out().print(shown)
    _out().print("Your own: the path of a .csv, .tsv, .jsonl, .parquet or .npz file, or of a folder of images.")


def show_states(states: Sequence[official.State]) -> None:
    """Print the state of a data set's files."""
    for state in states:
        line = f"{state.state:<8} {state.file}" + (f": {state.detail}" if state.detail else "")
        _out().print(line, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json_format.dumps(value, indent=1) + "\n")
