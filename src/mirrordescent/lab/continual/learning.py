"""A course under way: each task is a run of the lab that starts where the previous one ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent.lab.continual.courses import Course, Lessons
from mirrordescent.lab.continual.tasks import tasks_of
from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.files import write_text
from mirrordescent.lab.job import Job, network
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import COURSE, DamagedError, RunError, held, load_checkpoint, save_checkpoint
from mirrordescent.lab.runs import Run, derived
from mirrordescent.lab.train import train

FORMAT = 1
KEPT = ("status", "reason", "accuracies", "data", "environment")  # in course.json, beside the course itself
CHUNK = 256  # samples at a time, for importance and accuracy

Weights = dict[str, Tensor]


class Listener(Protocol):
    """What hears the progress."""

    def __call__(self, event: Progress) -> None:
        """Hear where the run of a task is."""

    def now(self, name: str) -> None:
        """Hear what the runs that come next are called."""

    def through(self, line: str) -> None:
        """Hear that a course has ended."""


@dataclass
class Learnt:
    """What is known about a course.

    status: "running" (or cut off) or "done"; reason: "tasks", or "diverged" if training did.
    accuracies: after each task, the test accuracy on it and on all before it, as fractions.
    """

    folder: Path
    course: Course
    status: str = "running"
    reason: str = ""
    accuracies: list[list[float]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        own = {"format": FORMAT, "id": self.course.id, "course": self.course.to_dict()}
        return {**own, **{name: getattr(self, name) for name in KEPT}}

    def write(self) -> None:
        """Write course.json."""
        write_text(self.folder / COURSE, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def read_course(folder: Path) -> Learnt:
    """The course in a folder. Raises DamagedError where it cannot be read."""
    path = folder / COURSE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] > FORMAT:
            raise RunError(f"{path} was written by a newer mirrordescent; upgrade to read it")
        course = Course.from_dict(kept["course"])
        return Learnt(folder, course, **{name: kept[name] for name in KEPT})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} cannot be read: {error}; remove {folder} and train again") from None


def read_courses(root: Path, skip: Callable[[DamagedError], None] | None = None) -> list[Learnt]:
    """All courses under a folder that have learnt a task, in a fixed order. Raises RunError if there are none.

    skip: is called with the error of each damaged record, which is left out; without it, the first one is raised.
    """
    found = []
    for path in sorted(root.rglob(COURSE)) if root.is_dir() else []:
        try:
            found.append(read_course(path.parent))
        except DamagedError as error:
            if skip is None:
                raise
            skip(error)
    known = [one for one in found if one.accuracies]
    if not known:
        raise RunError(f"{root} holds no course that has learnt a task; make some with `rmd continual`")
    return sorted(known, key=lambda one: str(one.course.to_dict()))


def learn(
    course: Course,
    keeping: Keeping | None = None,
    place: Place | None = None,
    *,
    data: Data | None = None,
    watch: Listener | None = None,
) -> Learnt:
    """Learn a course's tasks one after the other; one that is done is only read, one that was cut off is continued.

    data: already loaded. watch: hears the progress. Ctrl-C leaves a checkpoint and raises KeyboardInterrupt.
    Raises DataError where such tasks cannot be made of the data, RunError where another process has the folder or it
    holds something else.

    >>> import tempfile
    >>> from mirrordescent.lab.continual import Course, Lessons, learn
    >>> course = Course(Lessons(tasks=2, epochs=1, samples=200), "sgd")
    >>> [len(row) for row in learn(course, Keeping(Path(tempfile.mkdtemp()))).accuracies]
    [1, 2]
    """
    keeping, place = keeping or Keeping(), place or Place()
    lessons = course.lessons
    data = data or load(source_of(lessons), keeping.data_root)
    folder = keeping.root / course.id
    with held(folder, wait=keeping.wait):
        learnt = read_course(folder) if (folder / COURSE).exists() else Learnt(folder, course)
        if learnt.course != course:
            raise RunError(f"{folder} holds another course of the same name; remove it, or choose another --root")
        if learnt.data and learnt.data["digest"] != data.digest:
            raise RunError(f"{lessons.data} has changed since {folder} was begun; remove it, or choose another --root")
        if learnt.status != "done":
            _Teaching(learnt, data, keeping, place).go(watch)
    if watch is not None:
        watch.through(f"{course.title}, seed {course.seed}, {'done' if learnt.reason == 'tasks' else learnt.reason}")
    return learnt


def source_of(lessons: Lessons) -> Source:
    """The data that the tasks are made of."""
    return Source(lessons.data, lessons.label, without=lessons.without)


class _Teaching:
    """Learns a course, from where it was left."""

    def __init__(self, learnt: Learnt, data: Data, keeping: Keeping, place: Place) -> None:
        self.learnt, self.course, self.folder, self.place = learnt, learnt.course, learnt.folder, place
        self.tasks = tasks_of(self.course, data)
        self.keeping = keeping
        self.weights: Weights = {}
        self.importance: list[Weights] = []  # of each task so far
        state = load_checkpoint(self.folder)
        if state is not None:
            self.weights, self.importance = state["weights"], state["importance"]
            learnt.accuracies = json.loads(state["accuracies"])
        learnt.data = {"name": data.name, "digest": data.digest, "samples": len(self.tasks[0])}
        learnt.data |= {"shape": list(self.tasks[0].shape), "classes": self.tasks[0].classes, "notes": list(data.notes)}
        learnt.environment = place.described(self._run(0))
        learnt.write()

    def go(self, watch: Listener | None) -> None:
        """Learn the tasks that are left."""
        learnt = self.learnt
        while len(learnt.accuracies) < len(self.tasks):
            number = len(learnt.accuracies)
            if watch is not None:
                watch.now(f"{self.course.title}, seed {self.course.seed}, task {number + 1} of {len(self.tasks)}")
            if not self._learn(number, watch):
                learnt.status, learnt.reason = "done", "diverged"
                break
        else:
            learnt.status, learnt.reason = "done", "tasks"
        learnt.write()
        for number in range(len(self.tasks)):  # what they hold is in the course's own files
            shutil.rmtree(self._root(number), ignore_errors=True)

    def _learn(self, number: int, watch: Listener | None) -> bool:
        """Learn one task; returns whether that went well."""
        run, task = self._run(number), self.tasks[number]
        make = partial(Later, course=self.course, weights=self.weights, importance=self.importance) if number else Job
        keeping = Keeping(self._root(number), checkpoint_seconds=self.keeping.checkpoint_seconds)
        record = train(run, keeping, self.place, data=task, watch=watch, make=make)
        state = load_checkpoint(record.folder)
        assert state is not None, "a run that is done has a checkpoint"
        weights = state["job"]["model"]
        if record.reason == "diverged" or not all(bool(w.isfinite().all()) for w in weights.values()):
            return False
        model = network(run, task).to(self.place.resolved).eval()
        model.load_state_dict(weights)
        self.weights = weights
        with self.place.taken():
            if self.course.method in ("ewc", "anchored"):
                found = md.fisher(model, task.inputs.split(CHUNK), generator=self._draw(number))
                self.importance.append({name: part.cpu() for name, part in found.items()})
            self.learnt.accuracies.append([_accuracy(model, one) for one in self.tasks[: number + 1]])
        kept = {"weights": self.weights, "importance": self.importance}
        save_checkpoint(self.folder, {**kept, "accuracies": json.dumps(self.learnt.accuracies)})
        self.learnt.write()
        return True

    def _draw(self, number: int) -> torch.Generator:
        seed = derived(self.course.seed, "importance", number)
        return torch.Generator(self.place.resolved).manual_seed(seed)

    def _run(self, number: int) -> Run:
        """A task's run; the first task is learnt by SGD, whatever the method."""
        lessons, method = self.course.lessons, self.course.method if number else "sgd"
        lam = {"rmd": lessons.rmd_lam, "anchored": lessons.anchored_lam}.get(method)
        return Run(
            data=lessons.data,
            label=lessons.label,
            without=lessons.without,
            model=lessons.model,
            augment="none",
            algorithm="sgd" if lam is None else "rmd",
            lam=lam,
            lr=lessons.lr,
            batch_size=lessons.batch_size,
            epochs=lessons.epochs,
            stop="never",
            every=lessons.epochs,
            seed=derived(self.course.seed, "task", number),
        )

    def _root(self, number: int) -> Path:
        return self.folder / f"task-{number + 1}"


class Later(Job):
    """The job of a task after the first: starts from the previous weights, and keeps to them by the course's method."""

    def __init__(
        self, run: Run, data: Data, place: Place, *, course: Course, weights: Weights, importance: list[Weights]
    ) -> None:
        self.course, self.weights = course, weights
        self.importance = importance
        super().__init__(run, data, place)
        names = [name for name, _ in self.model.named_parameters()] if course.method == "ewc" else []
        self.mattered = [torch.stack([of[name] for of in importance]).sum(0).to(self.device) for name in names]

    def new_model(self) -> nn.Module:
        """The network as the previous task left it."""
        model = super().new_model()
        model.load_state_dict(self.weights)
        return model

    def new_optimizer(self) -> torch.optim.Optimizer:
        """RMD with the anchored ψ where that is the method; else the run's own."""
        if self.course.method != "anchored":
            return super().new_optimizer()
        assert self.run.lam is not None
        groups = md.anchored(self.model, self.importance, self.course.lessons.strength)
        return md.RMD(groups, self.run.lr, self.run.lam, len(self.data))

    def added(self, loss: Tensor) -> Tensor:
        """The loss, plus the penalty of near or ewc where that is the method."""
        lessons, method = self.course.lessons, self.course.method
        if method not in ("near", "ewc"):
            return loss
        moved = [(w - start).square() for w, start in zip(self.model.parameters(), self.start, strict=True)]
        if method == "near":
            return loss + lessons.near_alpha / 2 * torch.stack([d.sum() for d in moved]).sum()
        weighed = [(f * d).sum() for f, d in zip(self.mattered, moved, strict=True)]
        return loss + lessons.ewc_alpha / 2 * torch.stack(weighed).sum()


@torch.no_grad()
def _accuracy(model: nn.Module, task: Data) -> float:
    device = next(model.parameters()).device
    inputs, targets = task.test_inputs.split(CHUNK), task.test_targets.split(CHUNK)
    hits = [model(x.to(device)).argmax(1).cpu() == y for x, y in zip(inputs, targets, strict=True)]
    return float(torch.cat(hits).double().mean())
