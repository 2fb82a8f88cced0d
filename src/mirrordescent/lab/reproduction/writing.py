"""The report on the paper's tables: our rows and pictures beside the paper's, and which rows are far from it.

It reads records and nothing else: no training, no data set, no GPU.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mirrordescent.lab import paper
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.records import Record, RunError
from mirrordescent.lab.report.page import Block, Code, Page, Section, Table, Text, as_markdown
from mirrordescent.lab.report.table import NOTHING, or_nothing
from mirrordescent.lab.report.words import plural, unfinished
from mirrordescent.lab.report.writing import Pages, needs_matplotlib, picture, saved
from mirrordescent.lab.reproduction.comparison import (
    APART,
    Best,
    Row,
    bests,
    compared,
    done,
    leaders,
    level_of,
    method_of,
    unevaluated,
)
from mirrordescent.lab.runs import Run

NAME = "reproduction"  # of the pages, without the ending
PICTURES = f"pictures/{NAME}"  # the folder beside them


def write_page(records: Sequence[Record], keeping: Keeping, out: Path | None = None) -> Pages:
    """Write reproduction.html, reproduction.md and their pictures into `out`, or beside the runs.

    The same records give the same files, byte for byte. Raises RunError where none of the records is an evaluated run
    of the paper's tables, or where there is no matplotlib.
    """
    rows = compared(records)
    root = shlex.quote(str(keeping.root))
    if not rows:
        raise RunError(
            f"{root} holds no evaluated run of the paper's tables; `rmd reproduce --root {root}` trains them"
        )
    where = "" if out is None else f" --out {shlex.quote(str(out))}"
    path = (keeping.root if out is None else out) / NAME
    made = page_of(rows, f"rmd reproduce --report-only --root {root}{where}", unevaluated(records))
    return saved(made, path, PICTURES)


def page(rows: Sequence[Row], command: str) -> str:
    """The comparison as Markdown; `command` makes it."""
    return as_markdown(page_of(rows, command), PICTURES)


def page_of(rows: Sequence[Row], command: str, others: Sequence[Record] = ()) -> Page:
    """The page about these rows, which says of `others` that they are not done; `command` makes it again."""
    lead: list[Block] = [Text("Made from the records alone by"), Code(command), *map(Text, _lead(rows, others))]
    levels = {level: [row for row in rows if row.corruption == level] for level in paper.TABLES}
    sections = [_level(level, held) for level, held in levels.items() if held]
    return Page("The paper's tables on CIFAR-10 and ResNet-18", lead, [_headlines(bests(rows)), *sections])


def _lead(rows: Sequence[Row], others: Sequence[Record]) -> Iterable[str]:
    yield (
        "Each training label was redrawn from all ten classes with the probability that the table names. RMD batch is "
        "what the paper calls RMD: its Algorithm 2, with ψ = ‖w‖² as in the authors' runs. RMD sample has a "
        "coefficient per sample, and ψ = ½‖w‖²; the paper has no such rows."
    )
    yield (
        "The paper stops RMD and weight decay when 500 epochs improve the residual or the loss by less than 0.01 %. "
        "Our runs also have an epoch limit, and weight decay stops after 50 such epochs; each row says how far its "
        "runs went, and why they ended."
    )
    if any(time_scale(row) > row.epochs for row in rows):
        yield (
            "RMD batch moves all z of a batch alike. If the losses did not change, its z would need as many epochs as "
            "the batch size times λ/lr to tell samples apart. Our runs that are shorter than that are named below each "
            "table; the paper's rule ends none before 500 epochs."
        )
    if any(row.longer for row in rows):
        yield "A setting that was also trained for more epochs than the tables plan has a row for each length."
    if any(row.test.deviation is not None for row in rows):
        yield "Over seeds: mean ± standard deviation for test accuracy, the mean for train accuracy."
    yield off_text(rows)
    count, planned = done(rows)
    if count < planned:
        yield f"Of the {planned} runs that are planned for the tables, {count} {'is' if count == 1 else 'are'} done."
    records = [record for row in rows for record in row.line.records]
    if standing := unfinished([*records, *others], "the tables", _title):
        yield standing


def off_text(rows: Sequence[Row]) -> str:
    """A sentence on how many rows are off, and one on how many the paper has."""
    of_paper = [row for row in rows if row.difference is not None]
    held = [row for row in of_paper if not row.early]
    if not held:
        early = "The rows that the paper has too were given too few epochs to be compared, or are not finished."
        return early if of_paper else "None of these rows is in the paper."
    planned, longer = ([row for row in held if row.longer == wanted] for wanted in (False, True))
    counts = [_off_of(planned)] if planned else []
    counts += [f"{_off_of(longer)} of longer runs"] if longer else []
    levels = {row.corruption for row in rows}
    return (
        f"More than {APART:g} points from the paper's test accuracy, and marked “off”: {' and '.join(counts)}. "
        f"The paper has {sum(len(paper.figures(level)) for level in levels)} rows at "
        f"{'this level' if len(levels) == 1 else 'these levels'}."
    )


def _off_of(rows: Sequence[Row]) -> str:
    return f"{sum(row.off for row in rows) or 'none'} of {len(rows)} {plural('row', len(rows))}"


def _title(run: Run) -> str:
    title = method_of(run) if run.lam is None else f"{method_of(run)}, λ = {run.lam:g}"
    return f"{level_of(run)} %, {title}"


def _headlines(found: Sequence[Best]) -> Section:
    ours, theirs = ["ours", "λ tried", "best λ", "epochs", "test (%)"], ["the paper's", "λ", "test (%)"]
    headings = ["redrawn", *ours, *theirs, "difference"]
    rows = [
        [
            f"{best.row.corruption} %",
            best.row.method,
            NOTHING if best.row.lam is None else f"{best.tried} of {best.planned}",
            _lam(best.row.lam),
            best.row.epochs_text,
            best.row.test.text(".2f"),
            "RMD" if best.published.algorithm == "rmd" else "SGD",
            _lam(best.published.lam),
            f"{best.published.test:.2f}",
            f"{best.difference:+.2f}",
        ]
        for best in found
    ]
    note = (
        "Best by test accuracy, among our rows and among the paper's, which have more λ. A row without a finished run "
        "counts only where its method has no other."
    )
    title = "The best of each method"
    blocks: list[Block] = [Table(headings, rows, title, frozenset({2, 3, 4, 5, 7, 8, 9})), Text(note)]
    return Section(title, blocks if found else [Text("There is no row of RMD or SGD yet.")])


def _level(level: int, rows: Sequence[Row]) -> Section:
    title = f"{level} % of the labels redrawn"
    off = [f"{row.title} ({row.difference:+.2f})" for row in rows if row.off]
    named = [Text(f"Off: {'; '.join(off)}.")] if off else []
    short = [Text(text)] if (text := too_short(rows)) else []
    return Section(title, [_table(title, rows), *named, *short, *_pictures(level, rows)])


def too_short(rows: Sequence[Row]) -> str:
    """Which rows ended before z can have told their samples apart; empty if none did."""
    scales = {row.title: scale for row in rows if row.epochs < (scale := time_scale(row))}
    if not scales:
        return ""
    told = "; ".join(f"{title}: {scale:,.0f}" for title, scale in scales.items())
    return f"Shorter than z needs to tell samples apart, with the epochs that it needs: {told}."


def time_scale(row: Row) -> float:
    """Over how many epochs RMD batch tells samples apart; 0 for the other methods."""
    run = row.line.counted[0].run
    if run.algorithm != "rmd" or run.reduction != "batch" or run.lam is None:
        return 0.0
    return run.batch_size * run.lam / run.lr


def _table(title: str, rows: Sequence[Row]) -> Table:
    headings = [heading for heading, *_ in COLUMNS]
    numbers = frozenset(place for place, (_, number, _) in enumerate(COLUMNS) if number)
    mark = next(place for place, heading in enumerate(headings) if heading == WITHIN)
    off = frozenset((place, mark) for place, row in enumerate(rows) if row.off)
    return Table(headings, [[cell(row) for _, _, cell in COLUMNS] for row in rows], title, numbers, off)


def _within(row: Row) -> str:
    if row.difference is None:
        return NOTHING
    if row.early:
        return "too short" if row.short else "not yet"
    return "off" if row.off else "yes"


def _pictures(level: int, rows: Sequence[Row]) -> list[Block]:
    """The pictures for which there is something to draw."""
    with needs_matplotlib():
        from mirrordescent.lab.reproduction import pictures
    found: list[Block] = []
    if pictures.panels_of(rows):
        label = f"Test and train accuracy against λ, {level} % of the labels redrawn"
        found.append(picture(f"lam-{level}", label, _lam_caption(rows), lambda: pictures.against_lam(rows)))
    auroc = any(pictures.has_auroc(row) for row in rows)
    what = "Test accuracy and AUROC of z" if auroc else "Test accuracy"
    label, caption = f"{what} over the epochs, {level} % of the labels redrawn", _curves_caption(rows, auroc=auroc)
    return [*found, picture(f"curves-{level}", label, caption, lambda: pictures.curves(rows))]


def _lam_caption(rows: Sequence[Row]) -> Iterable[str]:
    yield "Accuracy against λ: ours filled and solid, the paper's hollow and dashed."
    yield "A smaller λ is more regularization; SGD has no λ: horizontal lines."
    yield "Train accuracy is on the labels as given."
    if any(row.test.deviation is not None for row in rows):
        yield "Bars: standard deviation over seeds."
    if any(row.longer for row in rows):
        yield "Crosses, a little to the right of their λ: runs that were given more epochs than the tables plan."


def _curves_caption(rows: Sequence[Row], *, auroc: bool) -> Iterable[str]:
    best = leaders(rows)
    yield "Test accuracy over the epochs, ours."
    if auroc:
        yield "Below: how well z alone tells wrong labels from right ones; 1 is perfect, 0.5 is chance."
    if len(best) < len(rows):
        yield "Strong lines: of each method, the row with the best test accuracy; faint lines: its other rows."
    if any(len(row.line.counted) > 1 for row in rows):
        yield "One line per seed."


def _lam(lam: float | None) -> str:
    return NOTHING if lam is None else f"{lam:g}"


WITHIN = f"within {APART:g}"
# heading, whether it is a number, cell
COLUMNS: tuple[tuple[str, bool, Callable[[Row], str]], ...] = (
    ("method", False, lambda row: row.method),
    ("λ", True, lambda row: _lam(row.lam)),
    ("seeds", True, lambda row: row.line.seeds),
    ("train (%)", True, lambda row: f"{row.train.mean:.2f}"),
    ("paper", True, lambda row: or_nothing(row.paper_train, ".2f")),
    ("test (%)", True, lambda row: row.test.text(".2f")),
    ("paper", True, lambda row: or_nothing(row.paper_test, ".2f")),
    ("difference", True, lambda row: or_nothing(row.difference, "+.2f")),
    (WITHIN, False, _within),
    ("epochs", True, lambda row: row.epochs_text),
    ("why it ended", False, lambda row: row.ended),
)
