"""The page on courses: how much each method keeps of the old tasks. It reads records and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mirrordescent.lab.continual.learning import Learnt, read_courses
from mirrordescent.lab.continual.table import Line, Setting, settings
from mirrordescent.lab.records import DamagedError
from mirrordescent.lab.report.page import Block, Code, Page, Section, Table, Text
from mirrordescent.lab.report.table import NOTHING
from mirrordescent.lab.report.writing import Pages, needs_matplotlib, picture, saved

NAME = "continual"
PICTURES = f"pictures/{NAME}"


def write_page(root: Path, out: Path | None = None, skip: Callable[[DamagedError], None] | None = None) -> Pages:
    """Write continual.html, continual.md and their pictures on all courses under `root`, into `out` (`root`).

    skip: see `read_courses`. Raises RunError where no course has learnt anything, or where there is no matplotlib.
    """
    found = read_courses(root, skip)
    where = "" if out is None else f" --out {shlex.quote(str(out))}"
    command = f"rmd continual --report-only --root {shlex.quote(str(root))}{where}"
    return saved(page_of(found, command), (root if out is None else out) / NAME, PICTURES)


def page_of(found: Sequence[Learnt], command: str) -> Page:
    """The page about these courses."""
    sections = [_section(number, setting) for number, setting in enumerate(settings(found), 1)]
    again = Section("Make this page again", [Text("From the records alone; nothing is trained."), Code(command)])
    return Page("One task after the other", [*map(Text, _lead())], [*sections, again])


def _lead() -> Iterable[str]:
    yield (
        "A network learns tasks one after the other and never sees an old one again. The first is learnt by SGD, the "
        "others by the row's method, from the weights that the previous task left."
    )
    yield (
        "“All tasks” is the mean test accuracy over all of them at the end. “Forgotten” is by how many points the "
        "accuracy on a task falls from right after it to the end, over all but the last. “Learnt” is the accuracy on "
        "each task right after it, “two tasks” that on the first two after the second. Over seeds: mean ± standard "
        "deviation."
    )


def _section(number: int, setting: Setting) -> Section:
    rows = [[line.title, *line.cells, line.seeds] for line in setting.lines]
    ended = [line.ended or NOTHING for line in setting.lines]
    headings = ["method", "all tasks (%)", "forgotten", "learnt (%)", "two tasks (%)", "seeds"]
    if any(line.ended for line in setting.lines):
        headings, rows = [*headings, "not counted"], [[*row, end] for row, end in zip(rows, ended, strict=True)]
    best = setting.best
    strong = frozenset((place, 1) for place, line in enumerate(setting.lines) if line is best)
    table = Table(headings, rows, setting.title, frozenset(range(1, 6)), strong)
    return Section(setting.title[:1].upper() + setting.title[1:], [table, *_picture(number, setting)])


def _picture(number: int, setting: Setting) -> list[Block]:
    """The picture of each method's best line; nothing where no course is done."""
    with needs_matplotlib():
        from mirrordescent.lab.continual import pictures
    best: dict[str, tuple[float, Line]] = {}
    for line in setting.lines:
        if line.mean is not None and (line.method not in best or line.mean.mean > best[line.method][0]):
            best[line.method] = (line.mean.mean, line)
    lines = [line for _, line in best.values()]
    if not lines:
        return []
    caption = ["Above: mean test accuracy over the tasks learnt so far. Below: on the first task alone."]
    if len(lines) < len(setting.lines):
        caption.append("Of each method, the setting with the best accuracy over all tasks.")
    if any(len(line.counted) > 1 for line in lines):
        caption.append("Bars: standard deviation over seeds.")
    label = f"What is left of old tasks: {setting.title}"
    return [picture(f"kept-{number}", label, caption, lambda: pictures.kept(setting, lines))]
