"""Tasks one after the other: what they are, that each method is what it says, and that a course survives a kill."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.continual import Course, Learnt, Lessons, courses, learn, read_courses, settings
from mirrordescent.lab.continual.courses import METHODS, SETTINGS
from mirrordescent.lab.continual.learning import Later
from mirrordescent.lab.continual.tasks import batch_notes, tasks_of
from mirrordescent.lab.data import Data, DataError
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import DamagedError, RunError, load_checkpoint, read_all
from mirrordescent.lab.runs import Run

HERE = Place("cpu", threads=1)


def small(classes: int = 4, n: int = 96, features: int = 6) -> Data:
    """Blobs, a class each."""
    generator = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(classes, features, generator=generator)
    y = torch.arange(2 * n) % classes
    x = 5 + centres[y] + torch.randn(2 * n, features, generator=generator)
    return Data("blobs", x[:n], y[:n], x[n:], y[n:], classes, tuple(f"c{k}" for k in range(classes)))


def course(method: str = "sgd", seed: int = 0, **lessons: Any) -> Course:
    return Course(replace(Lessons(tasks=3, epochs=2, batch_size=16), **lessons), method, seed)


def taken(asked: Course, root: Path, **more: Any) -> Learnt:
    return learn(asked, Keeping(root), HERE, data=small(), **more)


# The tasks


def test_a_permuted_task_is_the_first_in_another_order_of_the_inputs() -> None:
    data, tasks = small(), tasks_of(course(), small())
    scaled = (data.inputs - data.inputs.mean()) / data.inputs.std()
    torch.testing.assert_close(tasks[0].inputs, scaled)
    for task in tasks:
        assert torch.equal(task.inputs.sort(1).values, tasks[0].inputs.sort(1).values)
        assert torch.equal(task.targets, data.targets)
        # the test set has the same order as the training set: a feature's range of values goes where it goes
        same = [(task.inputs[:, k] == tasks[0].inputs[:, j]).all() for k in range(6) for j in range(6)]
        again = [(task.test_inputs[:, k] == tasks[0].test_inputs[:, j]).all() for k in range(6) for j in range(6)]
        assert same == again
    others = tasks_of(course(seed=1), small())
    for one, other in [*pairwise(tasks), *zip(tasks[1:], others[1:], strict=True)]:
        assert not torch.equal(one.inputs, other.inputs)


def test_split_tasks_share_the_classes_out() -> None:
    data, asked = small(classes=7), course(kind="split", raw=True)
    tasks = tasks_of(asked, data)
    assert [task.classes for task in tasks] == [2, 2, 2]
    names = [name for task in tasks for name in task.class_names]
    assert len(set(names)) == 6
    for task in tasks:
        for number, name in enumerate(task.class_names):
            of_class = data.inputs[data.targets == data.class_names.index(name)]
            assert torch.equal(task.inputs[task.targets == number], of_class)
            of_class = data.test_inputs[data.test_targets == data.class_names.index(name)]
            assert torch.equal(task.test_inputs[task.test_targets == number], of_class)
    assert [task.class_names for task in tasks_of(replace(asked, seed=1), data)] != [task.class_names for task in tasks]


def test_a_task_has_as_many_samples_as_asked_for() -> None:
    assert [len(task) for task in tasks_of(course(samples=10), small())] == [10] * 3
    assert [len(task.test_inputs) for task in tasks_of(course(samples=10), small())] == [96] * 3
    assert [len(task) for task in tasks_of(course(samples=10, kind="split", tasks=2), small())] == [10] * 2


def test_batches_of_more_than_a_task_are_told() -> None:
    assert not batch_notes(course(batch_size=96), small())
    assert batch_notes(course(batch_size=97), small()) == ["a task has 96 samples; --batch-size 97 is more than that"]


def test_inputs_that_are_all_alike_stay_finite() -> None:
    flat = replace(small(), inputs=torch.ones(96, 6), test_inputs=torch.ones(96, 6))
    assert all(bool(task.inputs.isfinite().all()) for task in tasks_of(course(), flat))


def test_data_that_make_no_such_tasks_are_refused() -> None:
    with pytest.raises(DataError, match="4 classes, and each of 3 tasks needs two of its own"):
        tasks_of(course(kind="split"), small())
    with pytest.raises(DataError, match="two of its own; --kind permuted makes tasks of any data"):
        tasks_of(course(kind="split", tasks=2), small(classes=2))
    quantity = replace(small(), targets=torch.ones(96), test_targets=torch.ones(96), classes=None)
    with pytest.raises(DataError, match="regression"):
        tasks_of(course(), quantity)
    gone = replace(small(), test_targets=torch.zeros(96, dtype=torch.int64))
    with pytest.raises(DataError, match=r"no training or no test samples of c\d, c\d"):
        tasks_of(course(kind="split", tasks=2), gone)


# A course as a value


def test_a_course_is_what_its_method_uses() -> None:
    assert course("sgd", ewc_alpha=3.0) == course("sgd")
    assert course("ewc", ewc_alpha=3.0) != course("ewc")
    ids = {course(method, seed).id for method in METHODS for seed in (0, 1)}
    assert len(ids) == 2 * len(METHODS)
    assert course("ewc").id == Course.from_dict(json.loads(json.dumps(course("ewc").to_dict()))).id
    for method, names in SETTINGS.items():
        for name in names:
            changed: dict[str, Any] = {name: 0.5}
            assert course(method, **changed).id != course(method).id


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tasks": 1}, "tasks must be >= 2, got 1"),
        ({"samples": 0}, "samples must be >= 1, got 0"),
        ({"lr": 0.0}, "lr must be > 0 and finite, got 0.0"),
        ({"ewc_alpha": float("inf")}, "ewc_alpha must be > 0 and finite, got inf"),
        ({"strength": -1.0}, "strength must be >= 0 and finite, got -1.0"),
        ({"model": "cnn"}, "sees nothing in permuted pixels"),
        ({"kind": "rotated"}, "kind must be one of permuted, split, got 'rotated'"),
        ({"epochs": 1.5}, "epochs must be a whole number, got 1.5"),
        ({"data": ""}, "data must be a name or a path"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        course(**wrong)


def test_a_step_has_to_suit_the_methods_own_lam_alone() -> None:
    with pytest.raises(ValueError, match="lr/rmd_lam must be < 2"):
        course("rmd", rmd_lam=0.05)
    with pytest.raises(ValueError, match="lr/anchored_lam must be < 2"):
        course("anchored", lr=0.6, anchored_lam=0.3)
    for method in ("sgd", "anchored"):
        assert course(method, lr=1.0).lessons.lr == 1.0
    assert len(courses(Lessons(lr=0.6, rmd_lam=5, anchored_lam=5))) == 15


def test_a_setting_without_its_method_is_refused() -> None:
    with pytest.raises(ValueError, match="ewc_alpha is for ewc, and does nothing in sgd, rmd"):
        courses(Lessons(ewc_alpha=3.0), ["sgd", "rmd"])
    with pytest.raises(ValueError, match="unknown method 'ancored' \\(did you mean 'anchored'\\?\\)"):
        courses(Lessons(), ["ancored"])
    with pytest.raises(ValueError, match="seeds must be >= 1, got 0"):
        courses(Lessons(), seeds=0)
    assert len(courses(Lessons(), ["sgd", "sgd"], seeds=1)) == 1


# The methods


def later(method: str, **lessons: Any) -> tuple[Later, list[dict[str, Tensor]]]:
    """A second task's job, with weights and importance that somebody made up."""
    asked, task = course(method, **lessons), tasks_of(course(), small())[1]
    lam = {"rmd": 0.25, "anchored": 1.0}.get(method)
    algorithm = {"algorithm": "rmd", "lam": lam} if lam else {"algorithm": "sgd"}
    run = Run.from_dict({**algorithm, "model": "mlp", "augment": "none", "batch_size": 16, "seed": 7})
    first = Job(run, task, HERE)
    torch.manual_seed(1)
    weights = {name: w + 0.1 * torch.randn_like(w) for name, w in first.model.state_dict().items()}
    importance = [{name: 0.02 * torch.rand_like(w) for name, w in weights.items()} for _ in range(2)]
    return Later(run, task, HERE, course=asked, weights=weights, importance=importance), importance


@pytest.mark.parametrize("method", METHODS)
def test_a_later_task_begins_at_the_weights_of_the_last(method: str) -> None:
    job, _ = later(method)
    for name, w in job.model.state_dict().items():
        assert torch.equal(w, job.weights[name])


@pytest.mark.parametrize("method", METHODS)
def test_a_method_takes_the_steps_that_it_says(method: str) -> None:
    """Against a loop that is written out, in float32 as well."""
    job, importance = later(method)
    model, lessons = job.new_model(), Lessons()
    params: list[Tensor] = list(model.parameters())
    start = [w.detach().clone() for w in params]
    mattered = [importance[0][name] + importance[1][name] for name, _ in model.named_parameters()]
    mean = [sum(of[name].sum() for name in of) / sum(of[name].numel() for name in of) for of in importance]
    h = [
        1 + lessons.strength * sum(of[name] / scale for of, scale in zip(importance, mean, strict=True))
        for name, _ in model.named_parameters()
    ]
    z, lam = torch.zeros(96), lessons.rmd_lam if method == "rmd" else lessons.anchored_lam
    for epoch in (1, 2):
        job.begin(epoch)
        for index in job.drawn(epoch).index:
            job.step()
            losses = F.cross_entropy(model(job.data.inputs[index]), job.data.targets[index], reduction="none")
            s = (2 * (losses + torch.finfo(torch.float32).eps)).sqrt().detach()
            weight = (s - z[index]) / s if method in ("rmd", "anchored") else torch.ones(len(index))
            gradients = torch.autograd.grad((weight * losses).mean(), params)
            z[index] -= lessons.lr / lam * (z[index] - s)
            with torch.no_grad():
                for k, w in enumerate(params):
                    pull: dict[str, Any] = {"near": lessons.near_alpha, "ewc": lessons.ewc_alpha * mattered[k]}
                    step = lessons.lr * (gradients[k] + pull.get(method, 0.0) * (w - start[k]))
                    w.sub_(step / h[k] if method == "anchored" else step)
    for w, expected, before in zip(job.model.parameters(), params, start, strict=True):
        torch.testing.assert_close(w, expected, rtol=1e-3, atol=1e-5)
        assert not torch.equal(w, before)


def test_what_holds_on_is_measured_by_its_own_potential() -> None:
    job, _ = later("anchored")
    w = next(job.model.parameters()).detach()
    psi = job.potentials[0]
    assert isinstance(psi, md.Quadratic)
    assert float(psi.value(w)) > 5 * float(md.L2().value(w))
    assert [type(one) for one in later("ewc")[0].potentials] == [type(md.potential("l2"))] * len(job.potentials)


@pytest.mark.parametrize("method", ["rmd", "anchored", "ewc"])
def test_the_first_task_is_learnt_alike_by_all(tmp_path: Path, method: str) -> None:
    """By SGD, from the same start in the same order; another seed has another."""
    first = taken(course("sgd"), tmp_path).accuracies[0]
    assert taken(course(method), tmp_path).accuracies[0] == first
    weights = [_first_weights(course(method, seed), tmp_path / f"{seed}") for seed in (0, 1)]
    assert torch.equal(weights[0], _first_weights(course("sgd"), tmp_path / "sgd"))
    assert not torch.equal(*weights)


def _first_weights(asked: Course, root: Path) -> Tensor:
    """As the first task left them."""
    with pytest.raises(KeyboardInterrupt):
        taken(asked, root, watch=Stopping(3))  # in the second task
    [state] = [load_checkpoint(path.parent) for path in root.rglob("course.json")]
    assert state is not None
    return torch.cat([w.flatten() for w in state["weights"].values()])


def test_tasks_are_not_trained_in_one_and_the_same_order(tmp_path: Path) -> None:
    seeds: list[int] = []

    class Listening(Stopping):
        def __call__(self, event: Progress) -> None:
            seeds.append(event.run.seed)

    taken(course(), tmp_path, watch=Listening(0))
    assert len(set(seeds)) == 3


def test_test_sets_are_scaled_as_training_sets_are() -> None:
    data = replace(small(), test_inputs=small().test_inputs + 100)
    [task, *_] = tasks_of(course(), data)
    expected = (data.test_inputs - data.inputs.mean()) / data.inputs.std()
    torch.testing.assert_close(task.test_inputs, expected)


def test_an_anchor_without_strength_is_none(tmp_path: Path) -> None:
    anchored = taken(course("anchored", strength=0.0, anchored_lam=0.5), tmp_path)
    assert anchored.accuracies == taken(course("rmd", rmd_lam=0.5), tmp_path).accuracies


def test_after_each_task_all_tasks_so_far_are_judged(tmp_path: Path) -> None:
    learnt = taken(course("sgd", epochs=10), tmp_path)
    assert (learnt.status, learnt.reason) == ("done", "tasks")
    assert [len(row) for row in learnt.accuracies] == [1, 2, 3]
    assert all(row[-1] > 0.9 for row in learnt.accuracies)
    assert learnt.accuracies[2][0] < learnt.accuracies[0][0]  # it forgets
    kept = load_checkpoint(learnt.folder)
    assert kept is not None
    assert sorted(path.name for path in learnt.folder.iterdir()) == ["checkpoint.pt", "course.json", "lock"]


def test_training_that_diverges_ends_a_course(tmp_path: Path) -> None:
    learnt = taken(course("near", near_alpha=1e4), tmp_path)
    assert (learnt.status, learnt.reason, len(learnt.accuracies)) == ("done", "diverged", 1)
    [setting] = settings([learnt, taken(course("near", seed=1, near_alpha=1e4), tmp_path)])
    [line] = setting.lines
    assert (line.mean, line.seeds, line.ended, setting.best) == (None, "0 of 2", "2 diverged", None)


# Cut off, and on


class Stopping:
    """Somebody who presses Ctrl-C after so many epochs: of what is told in between, the clock decides how much."""

    def __init__(self, after: int) -> None:
        self.left, self.names = after, list[str]()

    def __call__(self, event: Progress) -> None:
        assert event.run.stop == "never"
        self.left -= event.step == 0
        if self.left == 0:
            raise KeyboardInterrupt

    def now(self, name: str) -> None:
        self.names.append(name)

    def through(self, line: str) -> None:
        self.names.append(line)


@pytest.mark.parametrize("method", ["ewc", "anchored"])
@pytest.mark.parametrize("after", [1, 3, 5])
def test_cut_off_anywhere_it_ends_as_if_it_had_not_been(tmp_path: Path, method: str, after: int) -> None:
    whole = taken(course(method), tmp_path / "whole")
    keeping = Keeping(tmp_path / "cut", checkpoint_seconds=0)
    watch = Stopping(after)
    with pytest.raises(KeyboardInterrupt):
        learn(course(method), keeping, HERE, data=small(), watch=watch)
    before = len(read_courses(keeping.root)[0].accuracies) if after > 2 else 0
    again = Stopping(10**6)
    learnt = learn(course(method), keeping, HERE, data=small(), watch=again)
    assert learnt.accuracies == whole.accuracies
    assert again.names[0].endswith(f"task {before + 1} of 3")
    [one, other] = [load_checkpoint(found.folder) for found in (whole, learnt)]
    assert one is not None
    assert other is not None
    for name, w in one["weights"].items():
        assert torch.equal(w, other["weights"][name])


def test_killed_between_checkpoint_and_record_no_task_is_learnt_twice(tmp_path: Path) -> None:
    whole = taken(course("ewc"), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        taken(course("ewc"), tmp_path / "cut", watch=Stopping(5))
    [path] = (tmp_path / "cut").rglob("course.json")
    kept = json.loads(path.read_text())
    assert len(kept["accuracies"]) == 2
    path.write_text(json.dumps({**kept, "accuracies": kept["accuracies"][:1]}))
    watch = Stopping(10**6)
    assert taken(course("ewc"), tmp_path / "cut", watch=watch).accuracies == whole.accuracies
    assert watch.names[0].endswith("task 3 of 3")


def test_what_is_done_is_only_read(tmp_path: Path) -> None:
    first = taken(course(), tmp_path)
    watch = Stopping(1)
    assert taken(course(), tmp_path, watch=watch) == first
    assert watch.names == ["SGD, seed 0, done"]


def test_changed_data_and_damage_are_told(tmp_path: Path) -> None:
    learnt = taken(course(), tmp_path)
    with pytest.raises(RunError, match="has changed since"):
        learn(course(), Keeping(tmp_path), HERE, data=small(n=80))
    (learnt.folder / "course.json").write_text("{")
    with pytest.raises(DamagedError, match=r"course\.json cannot be read.*remove"):
        taken(course(), tmp_path)
    taken(course(seed=1), tmp_path)
    told: list[DamagedError] = []
    assert [one.course.seed for one in read_courses(tmp_path, told.append)] == [1]
    assert len(told) == 1
    with pytest.raises(RunError, match="holds no course"):
        read_courses(tmp_path / "nowhere")


def test_the_runs_of_a_course_are_no_runs_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        taken(course(), tmp_path, watch=Stopping(2))
    assert list(tmp_path.rglob("run.json"))
    with pytest.raises(RunError, match="holds tasks of `rmd continual`, which `rmd continual --report-only --root"):
        read_all(tmp_path)
