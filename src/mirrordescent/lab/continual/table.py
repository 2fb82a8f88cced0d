"""Courses as lines of a table: the seeds of one setting together, under the tasks that they are about."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mirrordescent.lab.continual.courses import DEFAULTS, METHODS, SETTINGS
from mirrordescent.lab.continual.learning import Learnt
from mirrordescent.lab.report.table import NOTHING, Spread, spread

OWN = ("method", "seed", *(name for names in SETTINGS.values() for name in names))  # may differ within a table


@dataclass(frozen=True)
class Line:
    """One method with its settings, over its seeds; shares are fractions, None while no course is done.

    mean: test accuracy over all tasks, after the last. forgotten: what was known of a task right after it, less what is
    left at the end, over all but the last. learnt: test accuracy on each task right after it.
    after_two: mean test accuracy on the first two tasks, after the second.
    """

    title: str
    method: str
    courses: tuple[Learnt, ...]

    @property
    def counted(self) -> list[Learnt]:
        """The courses that have learnt all their tasks."""
        return [one for one in self.courses if one.reason == "tasks"]

    @property
    def seeds(self) -> str:
        """How many courses are behind the figures: "3", or "2 of 3"."""
        whole, all_of_them = len(self.counted), len(self.courses)
        return f"{whole}" if whole == all_of_them else f"{whole} of {all_of_them}"

    @property
    def ended(self) -> str:
        """How many courses diverged or are not done, and so are not counted; empty if none."""
        diverged = sum(one.reason == "diverged" for one in self.courses)
        open_ = sum(one.status != "done" for one in self.courses)
        told = [(diverged, "diverged"), (open_, "not done")]
        return ", ".join(f"{count} {what}" for count, what in told if count)

    @property
    def mean(self) -> Spread | None:
        """Test accuracy over all tasks, after the last."""
        return spread(statistics.fmean(one.accuracies[-1]) for one in self.counted)

    @property
    def forgotten(self) -> Spread | None:
        """The loss of accuracy since each task was learnt, over all but the last."""
        return spread(
            statistics.fmean(row[-1] - last for row, last in zip(one.accuracies[:-1], one.accuracies[-1], strict=False))
            for one in self.counted
        )

    @property
    def learnt(self) -> Spread | None:
        """Test accuracy on each task right after it."""
        return spread(statistics.fmean(row[-1] for row in one.accuracies) for one in self.counted)

    @property
    def after_two(self) -> Spread | None:
        """Test accuracy on the first two tasks, after the second."""
        return self.so_far(2)

    @property
    def cells(self) -> list[str]:
        """The cells for all tasks, forgotten, learnt and the first two, in % and points."""
        figures = (self.mean, self.forgotten, self.learnt, self.after_two)
        return [NOTHING if figure is None else figure.text(".1f", 100) for figure in figures]

    def so_far(self, number: int) -> Spread | None:
        """Test accuracy over the first `number` tasks, right after them."""
        return spread(statistics.fmean(one.accuracies[number - 1]) for one in self.counted)

    def of_first(self, number: int) -> Spread | None:
        """Test accuracy on the first task, after `number` of them."""
        return spread(one.accuracies[number - 1][0] for one in self.counted)


@dataclass(frozen=True)
class Setting:
    """Courses that can be compared: what they have in common, and their lines."""

    title: str
    tasks: int
    lines: tuple[Line, ...]

    @property
    def best(self) -> Line | None:
        """The line with the best accuracy over all tasks at the end; None while there is none."""
        known = [(line.mean.mean, line) for line in self.lines if line.mean is not None]
        return max(known, key=lambda pair: pair[0])[1] if known else None


def settings(found: Sequence[Learnt]) -> list[Setting]:
    """Courses grouped by what they learn under which conditions, and within that into lines, by method."""
    together: dict[tuple[object, ...], list[Learnt]] = {}
    for one in found:
        held = {name: value for name, value in one.course.to_dict().items() if name not in OWN}
        together.setdefault((*held.items(), one.data.get("digest")), []).append(one)
    return [_setting(courses) for courses in together.values()]


def _setting(found: Sequence[Learnt]) -> Setting:
    lines: dict[tuple[int, str], list[Learnt]] = {}
    for one in found:
        lines.setdefault((METHODS.index(one.course.method), one.course.title), []).append(one)
    first, lessons = found[0], found[0].course.lessons
    what = "the inputs in another order" if lessons.kind == "permuted" else f"{first.data['classes']} classes each"
    words = [f"{lessons.tasks} tasks of {first.data['name']}", what, f"{first.data['samples']:,} samples"]
    words += [f"{lessons.epochs} epochs each", lessons.model, *(["inputs as they are"] if lessons.raw else [])]
    words += [f"lr {lessons.lr:g}"] * (lessons.lr != DEFAULTS["lr"])
    words += [f"batches of {lessons.batch_size}"] * (lessons.batch_size != DEFAULTS["batch_size"])
    return Setting(
        ", ".join(words),
        lessons.tasks,
        tuple(Line(title, courses[0].course.method, tuple(courses)) for (_, title), courses in sorted(lines.items())),
    )
