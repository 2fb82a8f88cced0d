"""An audit from end to end: load the data, train on all of them, judge every label, check that by a second network."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.audit.rule import MEMORIES, SMALLER, chosen, variance
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
TRIES = 3  # step sizes, before training counts as diverged for good
SHARE = 0.2  # of the samples, set aside where a network must be judged by samples that it was not trained on


@dataclass(frozen=True)
class Asked:
    """How to audit. What is not given is chosen from the data."""

    label: str | None = None
    """column of the labels, for a table"""
    without: str | None = None
    """columns of a table not to train on, separated by commas, such as the label under another name"""
    test: str | None = None
    """path of a test set, which is not audited"""
    model: Literal["auto", "linear", "mlp", "cnn", "deep-cnn", "resnet18"] = "auto"
    """the network; auto picks one that suits the data"""
    lam: float | None = None
    """λ of RMD"""
    lr: float | None = None
    """step size"""
    epochs: int | None = None
    """passes over the data"""
    batch_size: int | None = None
    """samples per step"""
    corruption: float = 0.0
    """probability with which to corrupt labels on purpose, to see how many of these are found"""
    noise: Literal["uniform", "symmetric", "pair", "instance"] = "uniform"
    """how to corrupt them, as in rmd train"""
    seed: int = 0
    """random seed of the initial weights, the order of samples and the corruption"""
    no_check: bool = False
    """leave out the check: a second network, trained on four fifths of the samples, that judges the other labels"""

    @property
    def as_given(self) -> Asked:
        """The settings for labels that have been corrupted already."""
        return dataclasses.replace(self, corruption=0.0, noise="uniform")

    def __post_init__(self) -> None:
        for name in ("lam", "lr", "epochs", "batch_size"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if not 0 <= self.corruption <= 1:
            raise ValueError(f"corruption must be in [0, 1], got {self.corruption}")
        if self.noise != "uniform" and not self.corruption:
            raise ValueError(f"noise {self.noise!r} does nothing without corruption")


@dataclass(frozen=True)
class Judged:
    """What a run found about labels. check: None if there was none; if one was asked for, `unchecked` says why."""

    record: Record
    found: md.Audit
    check: Check | None = None
    unchecked: str = ""


@dataclass(frozen=True, kw_only=True)
class Audited(Judged):
    """What an audit found, with its data. changed: which labels were corrupted on purpose; None if none were."""

    whole: Whole
    changed: Tensor | None


def audit_data(data: str, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None) -> Audited:
    """Train on every label of the data and audit them; called again, it resumes, or only reads what is there.

    Raises DataError for data without classes, RunError where training diverges.
    """
    return audit_whole(whole_of(data, asked, keeping), asked, keeping, place, watch=watch)


def audit_whole(whole: Whole, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None) -> Audited:
    """As `audit_data`, for data that are loaded already."""
    data = held_down(whole.data)
    run = run_for(data, whole.source.data, asked)
    hear = _honest(watch, held_out=whole.held_out)
    judged = audit_labels(run, data, asked, _apart(keeping, data), place, watch=hear)
    changed = given_labels(judged.record.run, data).changed if run.corruption else None
    found = dataclasses.replace(judged.found, names=whole.names)
    return Audited(judged.record, found, judged.check, judged.unchecked, whole=whole, changed=changed)


def works_of(whole: Whole, asked: Asked, keeping: Keeping) -> list[Work]:
    """The runs with which an audit begins, so that those of several audits can be trained side by side beforehand."""
    data = held_down(whole.data)
    return _works(run_for(data, whole.source.data, asked), data, asked, _apart(keeping, data))


def _works(run: Run, data: Data, asked: Asked, keeping: Keeping) -> list[Work]:
    second = None if asked.no_check else _second(run, data, keeping)[0]
    return [Work(run, data, keeping.root), *([] if second is None else [second])]


def _apart(keeping: Keeping, data: Data) -> Keeping:
    """Keep the audit in a folder of these data, by their digest: other labels in the same file are another audit."""
    return dataclasses.replace(keeping, root=keeping.root / AUDITS / data.digest[:8])


def held_down(data: Data) -> Data:
    """The data with rows of numbers no longer than the rule allows, so that hundreds of inputs are not learnt by heart.

    Rows that have a scale of their own, and images, stay as they are.
    """
    if data.inputs.dim() != 2 or data.std is not None:
        return data
    total = float(data.inputs.double().var(dim=0, correction=0).sum())
    most = variance(len(data), max(1, int(data.inputs.any(dim=0).sum())))
    if total <= most:
        return data
    inputs = data.inputs.shape[1]
    return dataclasses.replace(data, mean=(0.0,) * inputs, std=(math.sqrt(total / most),) * inputs)


def whole_of(data: str, asked: Asked, keeping: Keeping) -> Whole:
    """Load the data to audit."""
    return load_whole(Source(data, asked.label, asked.test, without=asked.without), keeping.data_root)


def audit_labels(
    run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None
) -> Judged:
    """Train a run on the data and another to check it, on a GPU side by side, and audit the labels.

    If training diverges, it starts over with a smaller step, unless the user gave a step size; raises RunError if that
    does not help. If the network gives up a class, training starts over with a longer memory. The share of wrong labels
    is what the run says, moved half the way to what the check says.
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
        # a network no better than chance may give up classes by chance; a longer memory would not help
        if check.in_vain or set(audit_alone(other, data.class_names).unlearnt) <= set(found.unlearnt):
            check.keep(record.folder)
            return Judged(record, check.judged(found), check)
    return Judged(record, found, unchecked="the second network did not learn all classes")


def _learnt(
    run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, watch: Watch | None
) -> tuple[Record, md.Audit]:
    """The run that gives up the fewest classes, and its audit; longer memories are tried until none is given up."""
    tried: list[tuple[Record, md.Audit]] = []
    for memory in _longer(run.memory):
        try:
            record = _not_diverged(dataclasses.replace(run, memory=memory), data, asked, keeping, place, watch)
        except RunError:
            if not tried:
                raise
            break
        run = record.run  # with the step size that did not diverge
        tried.append((record, audit_alone(record, data.class_names)))
        if not tried[-1][1].unlearnt:
            break
    return min(tried, key=lambda one: len(one[1].unlearnt))


def _longer(memory: float) -> list[float]:
    """The memory given, and the longer ones to try if it is too short."""
    return [memory, *(longer for longer in MEMORIES if longer > memory)]


def _not_diverged(run: Run, data: Data, asked: Asked, keeping: Keeping, place: Place, watch: Watch | None) -> Record:
    """The run's record; if it diverges, it is trained again with smaller steps, unless the user gave a step size."""
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
    """The same training on four fifths of the samples, tested on the given labels of the others, and which they are."""
    given = given_labels(run, data).labels
    try:
        rows, others = split_apart(given, data.inputs, SHARE, 0, data.name)
    except DataError:  # every class has a single sample
        return None, None
    part = judged_by(part_of(data, rows, given), data.inputs[others], given[others])
    plain = {"corruption": 0.0, "noise": "uniform", "batch_size": min(run.batch_size, len(rows))}
    return Work(Run.from_dict({**run.to_dict(), **plain}), part, keeping.root / run.id / "check"), others


def _check(second: Record, part: Data, found: md.Audit, others: Tensor, place: Place) -> Check:
    """What the second network says about labels that it has not seen, and what the first one says about the same.

    All of these labels tell whether it has learnt anything; how many are wrong is judged without those of classes that
    the first network gave up.
    """
    probabilities, given = outputs_of(second, part, place).double().softmax(1).cpu(), part.test_targets
    most = beyond_chance(given, given)  # with few labels, full agreement may be chance, too
    beyond = None if most is None or most < LEARNT else beyond_chance(probabilities.argmax(1), given)
    learnt = ~torch.isin(given, torch.tensor(found.unlearnt, dtype=given.dtype))
    probabilities, given = probabilities[learnt], given[learnt]
    contradicted = float((probabilities.argmax(1) != given).double().mean())
    there = float(found.wrong[others[learnt]].mean())
    return Check(contradicted, share_wrong(probabilities, given), found.noise, beyond, there)


def outputs_of(record: Record, data: Data, place: Place) -> Tensor:
    """A trained network's outputs for the test samples, (samples, classes)."""
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
        raise DataError(f"{held.name} has no classes, but an audit needs them")
    same = {name: getattr(asked, name) for name in ("label", "without", "test", "model", "seed")}
    base = Run(data=data, **same)
    base = settled(base, held)
    choice = chosen(len(held), base.model, lr=asked.lr, lam=asked.lam, epochs=asked.epochs, batch_size=asked.batch_size)
    noise = {"corruption": asked.corruption, "noise": asked.noise} if asked.corruption else {}
    how = {"loss": "elr", "every": math.ceil(choice.epochs / EVALUATIONS), "stop": "never"}
    return Run.from_dict({**base.to_dict(), **dataclasses.asdict(choice), **noise, **how})


def part_of(data: Data, rows: Tensor, labels: Tensor) -> Data:
    """The data with only these rows as training samples; labels: new ones for all rows of `data`."""
    return dataclasses.replace(data, inputs=data.inputs[rows], targets=labels[rows], rows=None)


def judged_by(data: Data, inputs: Tensor, labels: Tensor) -> Data:
    """The data with another test set."""
    return dataclasses.replace(data, test_inputs=inputs, test_targets=labels)


def _honest(watch: Watch | None, *, held_out: bool) -> Watch | None:
    """The watch without evaluations, unless there is a separate test set: accuracy on trained samples says nothing."""
    if watch is None or held_out:
        return watch

    def hear(progress: Progress) -> None:
        watch(dataclasses.replace(progress, row={}))

    return hear
