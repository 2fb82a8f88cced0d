"""The report on a folder of runs: what was compared, the table, the pictures, and how to make it again.

It reads records and nothing else: no training, no data set, no checkpoint.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from mirrordescent.lab.files import write_text, written
from mirrordescent.lab.records import DamagedError, Record, RunError, read_all
from mirrordescent.lab.report.page import (
    Block,
    Code,
    Heading,
    Page,
    Picture,
    Section,
    Table,
    Text,
    as_html,
    as_markdown,
)
from mirrordescent.lab.report.table import (
    NOTHING,
    Line,
    Task,
    best_lines,
    best_of_each_method,
    columns,
    distinct,
    ranged,
    table,
    tasks,
    why_ended,
)
from mirrordescent.lab.report.words import joined, plural, unfinished
from mirrordescent.lab.runs import USED_BY, Run

PICTURES = "pictures"  # the folder beside the report
METHODS = 8  # as many as there are colours
PANELS = 6
DRAWN_TASKS = 4


@dataclass(frozen=True)
class Pages:
    """A page that was written, with its pictures."""

    html: Path
    markdown: Path
    pictures: tuple[Path, ...]

    @property
    def named(self) -> list[tuple[str, Path]]:
        """What to look at: what it is, and its path."""
        drawn = [("pictures", self.pictures[0].parent)] if self.pictures else []
        return [("report", self.html), ("page", self.markdown), *drawn]


@dataclass(frozen=True)
class Report(Pages):
    """What was written, the lines of its table, and the records behind it."""

    lines: tuple[Line, ...]
    records: list[Record]


def write_report(root: Path, out: Path | None = None, skip: Callable[[DamagedError], None] | None = None) -> Report:
    """Write report.html, report.md and pictures/ about the runs under `root`, into `out` (`root`/report).

    The same records give the same files, byte for byte. skip: as for `read_all`.
    Raises RunError where there are no runs, or none that can be read, or no matplotlib.
    """
    records = read_all(root, skip)
    if not records:
        raise RunError(f"{root} holds no run whose record can be read")
    where = "" if out is None else f" --out {shlex.quote(str(out))}"
    page = page_of(records, f"rmd report {shlex.quote(str(root))}{where}")
    out = root / "report" if out is None else out
    made = saved(page, out / "report", PICTURES)
    return Report(made.html, made.markdown, made.pictures, tuple(table(records)), records)


def saved(page: Page, path: Path, pictures: str) -> Pages:
    """Write a page as `path`.md and `path`.html, and its pictures into the folder `pictures` beside them."""
    paths = []
    for picture in page.pictures:
        for ending, content in (("svg", picture.svg.encode("utf-8")), ("png", picture.png)):
            paths.append(path.parent / pictures / f"{picture.name}.{ending}")
            with written(paths[-1]) as file:
                file.write(content)
    # The pages come last: where there is one, there are its pictures.
    markdown, html = path.with_suffix(".md"), path.with_suffix(".html")
    write_text(markdown, _encodable(as_markdown(page, pictures)))
    write_text(html, _encodable(as_html(page)))
    return Pages(html, markdown, tuple(paths))


def _encodable(text: str) -> str:
    """The text with the bytes of paths that are not UTF-8 escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def page_of(records: Sequence[Record], command: str) -> Page:
    """The page about these runs; `command` makes it again."""
    found = tasks(records)
    runs = distinct(records)
    drawings = _drawings(found)
    sections = [
        _results(found),
        *(Section(heading, blocks) for heading, blocks in drawings if blocks),
        _settings(runs),
        _environment(runs),
        Section("Make this report again", [Text("From the records alone; nothing is trained."), Code(command)]),
    ]
    return Page(_title(found), [*map(Text, _lead(found, len(records) - len(runs)))], sections)


def _title(found: Sequence[Task]) -> str:
    methods = list(dict.fromkeys(line.method for task in found for line in task.lines))
    what = joined(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    where = found[0].title if len(found) == 1 else f"{len(found)} tasks"
    return f"{what} on {where}"


def _lead(found: Sequence[Task], copies: int) -> Iterable[str]:
    if len(found) == 1:
        yield _compared(found[0])
    else:
        yield f"Runs on {len(found)} tasks, each with a table of its own: {'; '.join(task.title for task in found)}."
    records = [record for task in found for record in task.records]
    if standing := unfinished(records, "the list of runs below", lambda run: run.title):
        yield standing
    if copies:
        yield f"Left out: {copies} further {plural('record', copies)} of runs that are in more than one folder."


def _compared(task: Task) -> str:
    """One sentence on what was compared."""
    settings, seeds = len(task.lines), len(task.records)
    what = f"{settings} {plural('setting', settings)} in {seeds} {plural('run', seeds)}"
    data = next((record.data for record in task.records if record.data), {})
    facts = [what]
    if data.get("samples"):
        wrong = [record.data["wrong"] for record in task.records if record.data.get("wrong")]
        of_them = f", {ranged(wrong)} of them with a wrong label" if wrong else ""
        facts.append(f"{data['samples']:,} training samples{of_them}")
    if data.get("test_samples"):
        facts.append(f"{data['test_samples']:,} test samples")
    if data.get("classes"):
        facts.append(f"{data['classes']} classes")
    models = dict.fromkeys((record.run.model, record.parameters) for record in task.records if record.parameters)
    networks = [f"{model} with {parameters:,} parameters" for model, parameters in models]
    if networks:
        facts.append(f"{plural('network', len(networks))}: {joined(networks)}")
    return f"On {task.title}: {'; '.join(facts)}."


def _results(found: Sequence[Task]) -> Section:
    blocks: list[Block] = []
    for task in found:
        if len(found) > 1:
            blocks += [Heading(task.title), Text(_compared(task))]
        shown = columns(task.lines)
        rows = [[column.cell(line) for column in shown] for line in task.lines]
        headings = [column.heading for column in shown]
        score = next((place for place, text in enumerate(headings) if text.startswith("test ")), 0)
        strong = frozenset((place, score) for place, line in enumerate(task.lines) if line.best)
        numbers = frozenset(place for place, column in enumerate(shown) if column.number)
        blocks.append(Table(headings, rows, f"Results on {task.title}", numbers, strong))
        if notes := " ".join(_notes(task, strong=bool(strong))):
            blocks.append(Text(notes))
    return Section("Results", blocks)


def _notes(task: Task, *, strong: bool) -> Iterable[str]:
    lines = task.lines
    if strong:
        accuracy = any("test_accuracy" in line.figures for line in lines)
        yield f"Bold: the best test {'accuracy' if accuracy else 'loss'}."
    if any(line.figures.keys() & {"train_accuracy", "wrong_fitted"} for line in lines):
        yield "Train accuracy is on the labels as given."
    if any("wrong_fitted" in line.figures for line in lines):
        yield "Wrong labels learnt: the share of the wrong training labels that the network predicts."
    if any("z_auroc" in line.figures for line in lines):
        yield "AUROC of z: how well z alone tells wrong labels from right ones; 1 is perfect, 0.5 is chance."
    if any(len(line.counted) > 1 for line in lines):
        yield "Over seeds: mean ± standard deviation."
    if any(line.records and not line.finished and line.counted for line in lines):
        yield "Where none of a setting's runs is done, the figures are those of the last evaluation."


def _drawings(found: Sequence[Task]) -> list[tuple[str, list[Block]]]:
    """The sections with pictures: for each kind of picture, one per task for which there is something to draw."""
    with needs_matplotlib():
        from mirrordescent.lab.report import pictures
    # Lines that are drawn get their colours first, for there may be more methods than colours.
    drawn = [line for task in found for line in best_of_each_method(task.lines, METHODS)]
    look = pictures.looks(line.method for line in (*drawn, *(line for task in found for line in task.lines)))
    kinds: tuple[tuple[str, Callable[..., Picture | None]], ...] = (
        ("Accuracy against λ" if _any_accuracy(found) else "Loss against λ", _against_lam),
        ("Learning curves", _curves),
        ("z, one number per training sample", _z),
        ("Weights", _weights),
    )
    sections = []
    for heading, draw in kinds:
        blocks: list[Block] = []
        for place, task in enumerate(found[:DRAWN_TASKS], 1):
            ending = "" if len(found) == 1 else f"-{place}"
            if block := draw(pictures, task, ending, look):
                blocks += [Heading(task.title)] * (len(found) > 1) + [block]
        if blocks and len(found) > DRAWN_TASKS:
            blocks.append(Text(f"Pictures are of the first {DRAWN_TASKS} of {len(found)} tasks."))
        sections.append((heading, blocks))
    return sections


@contextmanager
def needs_matplotlib() -> Iterator[None]:
    """For the import of what draws: raises RunError, saying what to install, where there is no matplotlib."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        raise RunError("the report's pictures need matplotlib: pip install 'mirrordescent[lab]'") from None


def picture(name: str, label: str, caption: Iterable[str], draw: Callable[[], Any]) -> Picture:
    """The figure that `draw` makes, as a picture of a page; caption: its sentences."""
    from mirrordescent.lab.report.pictures import rendered  # needs matplotlib, as what draws does

    svg, png = rendered(draw, name)
    return Picture(name, label, " ".join(caption), svg, png)


def _against_lam(pictures: ModuleType, task: Task, ending: str, look: dict[str, Any]) -> Picture | None:
    kind = pictures.quantity(task.lines)
    lines = [line for line in task.lines if f"test_{kind}" in line.figures]
    kept = {line.method for line in best_of_each_method(lines, METHODS)}
    shown = [line for line in lines if line.method in kept]
    placed = [line for line in shown if line.lam is not None and line.lam < math.inf]
    if len({line.lam for line in placed}) < 2:
        return None
    best = [line for line in lines if line.best] or [max(lines, key=lambda line: line.score)]
    figure = best[0].figures[f"test_{kind}"]
    value = f"{100 * figure.mean:.2f} %" if kind == "accuracy" else f"loss {figure.mean:.4g}"
    more = [f"{len(best) - 3} more"] * (len(best) > 3)
    caption = [f"Best on the test set, with {value}: {joined([*(line.title for line in best[:3]), *more])}."]
    if kind == "accuracy":
        caption.append("Training accuracy (dashed) is on the labels as given.")
    if any("wrong_fitted" in line.figures for line in shown):
        caption.append("Where the dashed line nears 100 %, the wrong labels have been learnt as well.")
    if len({line.decays for line in placed}) > 1:
        caption.append(
            "Weight decay's λ weighs the sum over the data set, RMD's the loss of a batch; in both, small is strong."
        )
    if any(line.lam is None for line in shown):
        caption.append("Methods without λ are horizontal lines.")
    if any(line.lam == math.inf for line in shown):
        caption.append("λ = ∞ has no place on the axis.")
    caption += _left_out(len({line.method for line in lines}) - len(kept), "method")
    label = f"Test and train {kind} against λ on {task.title}"
    return picture(f"lam{ending}", label, caption, lambda: pictures.against_lam(shown, look))


def _curves(pictures: ModuleType, task: Task, ending: str, look: dict[str, Any]) -> Picture | None:
    kind = pictures.quantity(task.lines)
    lines = [
        line for line in task.lines if any(r.get(f"test_{kind}") is not None for x in line.records for r in x.rows)
    ]
    shown = best_of_each_method(lines, METHODS)
    if not shown:
        return None
    wrong = any("wrong_fitted" in line.figures for line in shown)
    caption = [f"Above: {kind} on the test set. Below: {kind} on the training labels as given (dashed)"]
    caption[0] += ", and the share of the wrong labels learnt (dotted)." if wrong else "."
    if wrong:
        caption.append("A method that does not overfit keeps its dotted line low while its test accuracy stays up.")
    if len(lines) > len({line.method for line in lines}):
        caption.append(f"Of each method, the setting with the best test {kind}.")
    if any(len(line.counted) > 1 for line in shown):
        caption.append(f"One curve per seed, at most {pictures.SEEDS}.")
    caption += _left_out(len({line.method for line in lines}) - len(shown), "method")
    label = f"Test and train {kind} over the epochs on {task.title}"
    return picture(f"curves{ending}", label, caption, lambda: pictures.curves(shown, look))


def _z(pictures: ModuleType, task: Task, ending: str, look: dict[str, Any]) -> Picture | None:
    del look  # right and wrong have colours of their own
    lines = [line for line in task.lines if pictures.first_with(line, "z_right")]
    shown = best_lines(lines, PANELS)
    if not shown:
        return None
    caption = ["z grows with the loss of a sample: a label that the network does not learn keeps a large z."]
    if aurocs := [(figure.mean, line.title) for line in shown if (figure := line.figures.get("z_auroc"))]:
        value, title = max(aurocs)
        caption.append("The less the two histograms overlap, the better z finds the wrong labels;")
        caption.append(f"best here: {title}, AUROC {value:.3f}. Each hill is scaled to its own peak.")
    if any(len(line.records) > 1 for line in shown):
        caption.append("Each panel is the setting's first seed.")
    caption += _left_out(len(lines) - len(shown), "setting")
    label = f"Histograms of z, for right and wrong labels, on {task.title}"
    return picture(f"z{ending}", label, caption, lambda: pictures.z_histograms(shown))


def _weights(pictures: ModuleType, task: Task, ending: str, look: dict[str, Any]) -> Picture | None:
    lines = [line for line in task.lines if pictures.first_with(line, "weights")]
    shown = best_of_each_method(lines, METHODS)
    if not shown:
        return None
    caption = [
        "The density of the trained weights, on a log axis: a narrow line means small weights, a peak at 0 sparse ones."
    ]
    if len(lines) > len(shown):
        caption.append(f"Of each method, the setting with the best test {pictures.quantity(task.lines)}.")
    if any(len(line.records) > 1 for line in shown):
        caption.append("Each line is the setting's first seed.")
    caption += _left_out(len({line.method for line in lines}) - len(shown), "method")
    label = f"Histogram of the weights on {task.title}"
    return picture(f"weights{ending}", label, caption, lambda: pictures.weight_histograms(shown, look))


def _left_out(count: int, what: str) -> list[str]:
    return [f"{count} {plural(what, count)} with worse test results left out."] if count > 0 else []


def _any_accuracy(found: Sequence[Task]) -> bool:
    return any("test_accuracy" in line.figures for task in found for line in task.lines)


def _settings(records: Sequence[Record]) -> Section:
    """Each run with the settings in which runs differ, and how far it is; then the settings that all share."""
    each = [_used(record.run) for record in records]
    names = list(each[0])
    common = [name for name in names if all(run[name] == each[0][name] for run in each)]
    own = [name for name in names if name not in common]
    rows = [
        [
            record.id,
            *(_value(run[name]) for name in own),
            f"{record.epochs:,} of {record.run.epochs:,}",
            f"{record.seconds:,.1f}",
            why_ended(record),
        ]
        for record, run in zip(records, each, strict=True)
    ]
    headings = ["run", *own, "epochs done", "seconds", "status"]
    numbers = frozenset({len(headings) - 3, len(headings) - 2})
    shared = [[name, _value(each[0][name])] for name in common]
    heading = Heading("The same in all of them" if len(records) > 1 else "Its settings")
    own_table, shared_table = (
        Table(headings, rows, "The runs", numbers),
        Table(["setting", "value"], shared, "Settings"),
    )
    return Section("Runs and settings", [own_table, heading, shared_table])


def _used(run: Run) -> dict[str, Any]:
    """A run's settings; those that its algorithm does not use are None."""
    return {
        name: value if name not in USED_BY or run.algorithm in USED_BY[name] else None
        for name, value in run.to_dict().items()
    }


def _environment(records: Sequence[Record]) -> Section:
    all_of_them = [one for record in records for one in (*record.earlier, record.environment)]
    names = dict.fromkeys(name for one in all_of_them for name in one)
    rows = []
    for name in names:
        values = dict.fromkeys(_value(one.get(name)) for one in all_of_them)
        rows.append([name, "; ".join(values)])
    blocks: list[Block] = [Table(["name", "value"], rows, "Environment")] if rows else [Text("The records do not say.")]
    return Section("Environment", blocks)


def _value(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
