"""The tasks of a course, all made of one data set."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from mirrordescent.lab.continual.courses import Course
from mirrordescent.lab.data import Data, DataError, Scaling
from mirrordescent.lab.runs import derived


def tasks_of(course: Course, data: Data) -> list[Data]:
    """The course's tasks, in their order; the seed decides which they are.

    permuted: the first has the inputs as they are, each other one in an order of its own. split: each has as many
    classes as the others, drawn from all of them, and its labels are their numbers within the task.
    Raises DataError where such tasks cannot be made of the data.
    """
    if data.classes is None:
        raise DataError(f"{data.name} is a regression; tasks one after the other are of classes")
    data = _scaled(data, raw=course.lessons.raw)
    if course.lessons.kind == "permuted":
        return [_permuted(course, data, number) for number in range(course.lessons.tasks)]
    count, tasks = len(data.class_names), course.lessons.tasks
    if count < 2 * tasks:
        told = f"{data.name} has {count} classes, and each of {tasks} tasks needs two of its own"
        fewer = "choose fewer with --tasks, or " if count >= 4 else ""
        raise DataError(f"{told}; {fewer}--kind permuted makes tasks of any data")
    order = torch.randperm(count, generator=_draw(course, "classes"))
    return [_of_classes(course, data, chosen) for chosen in order[: count - count % tasks].chunk(tasks)]


def _scaled(data: Data, *, raw: bool) -> Data:
    """Inputs scaled as the data set says and, unless `raw`, all together centred and divided by their deviation."""
    scaled = Scaling(data, torch.device("cpu"))
    x, test_x = scaled(data.inputs), scaled(data.test_inputs)
    if not raw:
        mean, deviation = x.mean(), x.std().clamp(min=torch.finfo(x.dtype).tiny)
        x, test_x = (x - mean) / deviation, (test_x - mean) / deviation
    return replace(data, inputs=x, test_inputs=test_x, mean=None, std=None, augment="none", rows=None)


def _permuted(course: Course, data: Data, number: int) -> Data:
    order = torch.arange(data.inputs[0].numel())
    if number:
        order = torch.randperm(len(order), generator=_draw(course, "order", number))
    some = _some(course, torch.arange(len(data)))
    x, test_x = data.inputs[some].flatten(1)[:, order], data.test_inputs.flatten(1)[:, order]
    return replace(data, inputs=x, targets=data.targets[some], test_inputs=test_x)


def _of_classes(course: Course, data: Data, chosen: Tensor) -> Data:
    """A task of some classes, numbered from 0."""
    number = torch.full((len(data.class_names),), -1)
    number[chosen] = torch.arange(len(chosen))
    places = [(number[targets] >= 0).nonzero()[:, 0] for targets in (data.targets, data.test_targets)]
    train, test = _some(course, places[0]), places[1]
    names = [data.class_names[c] for c in chosen.tolist()]
    if not len(train) or not len(test):
        raise DataError(f"{data.name} has no training or no test samples of {', '.join(names)}")
    return replace(
        data,
        inputs=data.inputs[train],
        targets=number[data.targets[train]],
        test_inputs=data.test_inputs[test],
        test_targets=number[data.test_targets[test]],
        classes=len(chosen),
        class_names=tuple(names),
    )


def _some(course: Course, places: Tensor) -> Tensor:
    """As many of the samples as a task is to have; the same ones for all tasks with the same to choose from."""
    if course.lessons.samples is None:
        return places
    return places[torch.randperm(len(places), generator=_draw(course, "samples"))[: course.lessons.samples]]


def _draw(course: Course, *names: str | int) -> torch.Generator:
    return torch.Generator().manual_seed(derived(course.seed, "continual", *names))


def batch_notes(course: Course, data: Data) -> list[str]:
    """A note for those whose batches are larger than a task."""
    least = min(len(task) for task in tasks_of(course, data))
    if course.lessons.batch_size <= least:
        return []
    return [f"a task has {least:,} samples; --batch-size {course.lessons.batch_size:,} is more than that"]
