"""An audit from end to end: the data, a run on all of them, and what it found about each label."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.audit.rule import MEMORIES, SMALLER, chosen
from mirrordescent.lab.data import Data, DataError, Source
from mirrordescent.lab.data.split import split_apart
from mirrordescent.lab.data.whole import Whole, load_whole
from mirrordescent.lab.engine import all_trained
from mirrordescent.lab.evaluation import beyond_chance, predict
from mirrordescent.lab.job import Job, given_labels
from mirrordescent.lab.kept import LEARNT, Check, audit_alone, forget_check
from mirrordescent.lab.loop import Keeping, Progress, Watch
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import AUDITS, Record, RunError, load_checkpoint
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.sweep import Work
from mirrordescent.suspicion import share_wrong

EVALUATIONS = 10  # along a run
TRIES = 3  # step sizes
SHARE = 0.2  # that is set aside where something must be judged by samples that were not trained on


@dataclass(frozen=True)
class Asked:
    """What to audit, and how. What is not given is chosen from the data."""

    label: str | None = None
    """the label's column, for a table"""
    without: str | None = None
    """columns of a table that are no inputs, separated by commas, such as the label under another name"""
    test: str | None = None
    """path of a test set, which is not audited"""
    model: Literal["auto", "linear", "mlp", "cnn", "deep-cnn", "resnet18"] = "auto"
    """the network; auto is what suits the data"""
    lam: float | None = None
    """λ of RMD"""
    lr: float | None = None
    """step size"""
    epochs: int | None = None
    """passes over the data"""
    batch_size: int | None = None
    """samples per step"""
    corruption: float = 0.0
    """corrupt labels on purpose with this probability, in order to see how many are found"""
    noise: Literal["uniform", "symmetric", "pair", "instance"] = "uniform"
    """how, as in rmd train"""
    seed: int = 0
    """of the start, the order and the corruption"""
    no_check: bool = False
    """do not train a second time, on four fifths of the samples, to see how far the estimate can be trusted"""

    @property
    def as_given(self) -> Asked:
        """The same for labels that have been corrupted already."""
        return dataclasses.replace(self, corruption=0.0, noise="uniform")

    def __post_init__(self) -> None:
        for name in ("lam", "lr", "epochs", "batch_size"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if self.noise != "uniform" and not self.corruption:
            raise ValueError(f"noise {self.noise!r} does nothing without corruption")


@dataclass(frozen=True)
class Judged:
    """What was found about labels, by which run. check: None if there was none; `unchecked` says why if asked for."""

    record: Record
    found: md.Audit
    check: Check | None = None
    unchecked: str = ""


@dataclass(frozen=True, kw_only=True)
class Audited(Judged):
    """The same with the data that the labels are of. changed: which were corrupted on purpose, if any were."""

    whole: Whole
    changed: Tensor | None


def audit_data(data: str, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None) -> Audited:
    """Train on every label of the data and audit them; the same call again goes on, or only reads what is there.

    Raises DataError for data without classes, RunError where training diverges.
    """
    return audit_whole(whole_of(data, asked, keeping), asked, keeping, place, watch=watch)


def audit_whole(whole: Whole, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None) -> Audited:
    """The same for data that are loaded already."""
    keeping = _apart(keeping, whole)
    run = run_for(whole.data, whole.source.data, asked)
    hear = _honest(watch, held_out=whole.held_out)
    judged = audit_labels(run, whole.data, asked, keeping, place, watch=hear)
    changed = given_labels(judged.record.run, whole.data).changed if run.corruption else None
    found = dataclasses.replace(judged.found, names=whole.names)
    return Audited(judged.record, found, judged.check, judged.unchecked, whole=whole, changed=changed)


def works_of(whole: Whole, asked: Asked, keeping: Keeping) -> list[Work]:
    """What such an audit trains first, so that those of several audits can be trained side by side before them."""
    return _works(run_for(whole.data, whole.source.data, asked), whole.data, asked, _apart(keeping, whole))


def _works(run: Run, data: Data, asked: Asked, keeping: Keeping) -> list[Work]:
    second = None if asked.no_check else _second(run, data, keeping)[0]
    return [Work(run, data, keeping.root), *([] if second is None else [second])]


def _apart(keeping: Keeping, whole: Whole) -> Keeping:
    """Where the audits of these data are: other labels in the same file are other data, and so another audit."""
    return dataclasses.replace(keeping, root=keeping.root / AUDITS / whole.data.digest[:8])


def whole_of(data: str, asked: Asked, keeping: Keeping) -> Whole:
    """The data to audit."""
    return load_whole(Source(data, asked.label, asked.test, without=asked.without), keeping.data_root)


def audit_labels(
    run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None
) -> Judged:
    """Train a run on the data and another to check it, on a GPU side by side, and audit the labels.

    Where training diverges it begins again with a smaller step, unless the step was asked for; raises RunError if that
    does not help. Where a class is given up it begins again with a longer memory. The share of wrong labels is what the
    run says, moved half the way to what the check says.
    """
    if place.resolved.type == "cuda":
        all_trained(_works(run, data, asked, keeping), keeping, place, watch=watch)
    record, found = _learnt(run, data, asked, keeping, place, watch)
    forget_check(record.folder)
    second, others = (None, None) if asked.no_check else _second(record.run, data, keeping)
    if second is None or others is None:
        return Judged(record, found, unchecked="" if asked.no_check else "every class has a single sample")
    for memory in _longer(record.run.memory):
        work = dataclasses.replace(second, run=dataclasses.replace(second.run, memory=memory))
        other = all_trained([work], keeping, place, watch=watch)[0]
        if other.reason == "diverged":
            return Judged(record, found, unchecked="the second network's training diverged")
        check = _check(other, work.data, found, others, place)
        # by chance alone it may have given classes up, and then that is what there is to say
        if check.in_vain or set(audit_alone(other, data.class_names).unlearnt) <= set(found.unlearnt):
            check.keep(record.folder)
            return Judged(record, check.judged(found), check)
    return Judged(record, found, unchecked="the second network did not learn all classes")


def _learnt(
    run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, watch: Watch | None
) -> tuple[Record, md.Audit]:
    """The run with which the fewest classes are given up, and its audit: the first with none, if there is one."""
    tried: list[tuple[Record, md.Audit]] = []
    for memory in _longer(run.memory):
        try:
            record = _not_diverged(dataclasses.replace(run, memory=memory), data, asked, keeping, place, watch)
        except RunError:
            if not tried:
                raise
            break
        run = record.run  # with the step that it took
        tried.append((record, audit_alone(record, data.class_names)))
        if not tried[-1][1].unlearnt:
            break
    return min(tried, key=lambda one: len(one[1].unlearnt))


def _longer(memory: float) -> list[float]:
    """The same, and those to try where it is too short."""
    return [memory, *(longer for longer in MEMORIES if longer > memory)]


def _not_diverged(run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, watch: Watch | None) -> Record:
    """The run's record, with a smaller step if need be and nobody asked for the one it has."""
    for _ in range(TRIES if asked.lr is None else 1):
        record = all_trained([Work(run, data, keeping.root)], keeping, place, watch=watch)[0]
        if record.reason != "diverged":
            return record
        assert run.lam is not None
        lam = run.lam / SMALLER if asked.lam is None else run.lam
        run = dataclasses.replace(run, lr=run.lr / SMALLER, lam=lam)
    told = f"training diverged at epoch {record.epochs} with a step size of {record.run.lr:g}"
    raise RunError(f"{told}; give a smaller one with --lr")


def _second(run: Run, data: Data, keeping: Keeping) -> tuple[Work, Tensor] | tuple[None, None]:
    """The same training on four fifths of the samples, judged by the given labels of the others; and which those."""
    given = given_labels(run, data).labels
    try:
        rows, others = split_apart(given, data.inputs, SHARE, 0, data.name)
    except DataError:  # every class has a single sample
        return None, None
    part = judged_by(part_of(data, rows, given), data.inputs[others], given[others])
    plain = {"corruption": 0.0, "noise": "uniform", "batch_size": min(run.batch_size, len(rows))}
    return Work(Run.from_dict({**run.to_dict(), **plain}), part, keeping.root / run.id / "check"), others


def _check(second: Record, part: Data, found: md.Audit, others: Tensor, place: Place) -> Check:
    """What the second network says about labels that it has not seen, and the first one about the same.

    Whether it has learnt anything, all of them tell; how many are wrong, those of classes that were learnt.
    """
    probabilities, given = outputs_of(second, part, place).double().softmax(1).cpu(), part.test_targets
    most = beyond_chance(given, given)  # of a few labels even agreement with all may be chance
    beyond = None if most is None or most < LEARNT else beyond_chance(probabilities.argmax(1), given)
    learnt = ~torch.isin(given, torch.tensor(found.unlearnt, dtype=given.dtype))
    probabilities, given = probabilities[learnt], given[learnt]
    contradicted = float((probabilities.argmax(1) != given).double().mean())
    there = float(found.wrong[others[learnt]].mean())
    return Check(contradicted, share_wrong(probabilities, given), found.noise, beyond, there)


def outputs_of(record: Record, data: Data, place: Place) -> Tensor:
    """What a trained network says about the test samples, (samples, classes)."""
    state = load_checkpoint(record.folder)
    if state is None:
        raise RunError(f"{record.folder} has no checkpoint; remove the folder and train again")
    with place.taken():
        job = Job(record.run, data, place)
        job.load_state_dict(state["job"])
        return predict(job, job.test_inputs, job.test_targets)[1]


def run_for(held: Data, data: str, asked: Asked) -> Run:
    """The run that audits the data `held`, which came from `data`."""
    if held.classes is None:
        raise DataError(f"{held.name} has no classes, and an audit is of classes")
    same = {name: getattr(asked, name) for name in ("label", "without", "test", "model", "seed")}
    base = Run(data=data, **same)
    base = settled(base, held)
    given = {"lr": asked.lr, "lam": asked.lam, "epochs": asked.epochs, "batch_size": asked.batch_size}
    choice = chosen(len(held), base.model, **given)  # type: ignore[arg-type]  # None where nothing is given
    noise = {"corruption": asked.corruption, "noise": asked.noise} if asked.corruption else {}
    how = {"loss": "elr", "every": math.ceil(choice.epochs / EVALUATIONS), "stop": "never"}
    return Run.from_dict({**base.to_dict(), **dataclasses.asdict(choice), **noise, **how})


def part_of(data: Data, rows: Tensor, labels: Tensor) -> Data:
    """Some of the training samples, with labels of all of them."""
    return dataclasses.replace(data, inputs=data.inputs[rows], targets=labels[rows])


def judged_by(data: Data, inputs: Tensor, labels: Tensor) -> Data:
    """The data with another test set."""
    return dataclasses.replace(data, test_inputs=inputs, test_targets=labels)


def _honest(watch: Watch | None, *, held_out: bool) -> Watch | None:
    """Says nothing of accuracy on a test set that was trained on."""
    if watch is None or held_out:
        return watch

    def hear(progress: Progress) -> None:
        watch(dataclasses.replace(progress, row={}))

    return hear
