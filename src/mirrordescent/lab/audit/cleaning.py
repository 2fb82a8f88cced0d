"""A clean-up: drop or relabel samples whose labels are probably wrong, and see what training on the rest is worth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.audit.auditing import (
    EVALUATIONS,
    SHARE,
    Asked,
    Audited,
    audit_labels,
    held_down,
    judged_by,
    part_of,
    run_for,
)
from mirrordescent.lab.audit.decisions import Decision, decisions_csv, read_decisions
from mirrordescent.lab.audit.rule import chosen
from mirrordescent.lab.data import Data, DataError
from mirrordescent.lab.data.split import split_apart
from mirrordescent.lab.data.whole import Whole
from mirrordescent.lab.engine import all_trained
from mirrordescent.lab.files import remove_parts, write_text
from mirrordescent.lab.job import given_labels
from mirrordescent.lab.loop import Keeping, Watch
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Work

MIXUP = 0.4


@dataclass(frozen=True)
class Cleaning:
    """What to do with suspicious labels."""

    decisions: Path | None = None
    """a CSV file of decisions, as audit.html exports it; only these are carried out, all other samples stay"""
    relabel: bool = False
    """give a flagged sample the suggested label where that is probable enough, instead of leaving it out"""
    confidence: float = 0.9
    """how probable the suggested label must be, for --relabel"""
    rounds: int = 1
    """how many audits in all; each one after the first audits what is left"""
    recipe: Literal["sgd", "rmd"] = "sgd"
    """train again by SGD (Nesterov, weight decay, cosine), or by RMD as for the audit"""
    retrain_epochs: int | None = None
    """passes over the data when training again"""
    mixup: float | None = None
    """mixup of --recipe sgd, as in rmd train; 0.4 unless given, 0 is none"""
    no_compare: bool = False
    """do not compare training on all labels with training on the cleaned ones"""

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence must be in [0, 1], got {self.confidence}")
        if self.rounds < 1:
            raise ValueError(f"rounds must be >= 1, got {self.rounds}")
        if self.retrain_epochs is not None and self.retrain_epochs < 1:
            raise ValueError(f"retrain_epochs must be >= 1, got {self.retrain_epochs}")
        if self.mixup is not None and not 0 <= self.mixup < math.inf:
            raise ValueError(f"mixup must be >= 0, got {self.mixup}")
        if self.mixup is not None and self.recipe != "sgd":
            raise ValueError("mixup is for recipe 'sgd'")
        if self.no_compare and (self.mixup is not None or self.recipe != "sgd" or self.retrain_epochs is not None):
            raise ValueError("no_compare trains nothing again: leave out recipe, retrain_epochs and mixup")
        if not self.relabel and self.confidence != Cleaning.confidence:
            raise ValueError("confidence does nothing without relabel")
        if self.decisions is not None and (self.relabel or self.rounds > 1):
            raise ValueError("decisions alone decide: leave out relabel and rounds")


@dataclass(frozen=True)
class Choice:
    """Which samples stay, and with which labels. spared: classes left as they are, as nothing would remain of them."""

    keep: Tensor  # (n,), bool
    labels: Tensor  # (n,)
    spared: tuple[int, ...] = ()

    def changes(self, given: Tensor) -> bool:
        """Whether any sample is left out or gets another label than the given one."""
        return not bool((self.keep & (self.labels == given)).all())


def labels_of(whole: Whole, asked: Asked) -> Tensor:
    """The labels that are audited: the data's, or those after corruption on purpose."""
    return given_labels(run_for(whole.data, whole.source.data, asked), whole.data).labels


def person(whole: Whole, cleaning: Cleaning, given: Tensor) -> Choice | None:
    """The choice by a file of decisions, if there is one. Raises DataError for a file that does not fit the data."""
    if cleaning.decisions is None:
        return None
    return decided(given, _read_list(cleaning.decisions, whole, given), whole.class_names)


def clean(
    audited: Audited, asked: Asked, cleaning: Cleaning, keeping: Keeping, place: Place, *, watch: Watch | None = None
) -> Choice:
    """The choice by the audit. Raises DataError for an audit that has found nothing to go by."""
    if audited.check is not None and audited.check.in_vain:
        raise DataError(
            f"{audited.whole.data.name}: a network tells the classes apart no better than chance, so nothing can be "
            "cleaned by it; --decisions takes what you decide yourself"
        )
    return in_rounds(audited, audited.found, audited.whole.data, asked, cleaning, keeping, place, watch)


def changes(choice: Choice, given: Tensor, whole: Whole) -> str:
    """What is left out and what is relabelled, as the text of a file of decisions."""
    names, labels = whole.class_names, choice.labels.tolist()
    changed = (~choice.keep | (choice.labels != given)).nonzero()[:, 0].tolist()
    decisions = [
        Decision(i, "relabel", names[labels[i]]) if bool(choice.keep[i]) else Decision(i, "drop") for i in changed
    ]
    return decisions_csv(decisions, names, whole.names, given.tolist(), whole.fingerprints)


def changes_path(copy: Path) -> Path:
    """Where the file of `changes` goes, beside the copy."""
    return copy.with_name(f"{copy.name}.changes.csv")


def in_rounds(
    audited: Audited,
    found: md.Audit,
    data: Data,
    asked: Asked,
    cleaning: Cleaning,
    keeping: Keeping,
    place: Place,
    watch: Watch | None,
) -> Choice:
    """The choice by the audit `found`, and then by further audits of what is left."""
    choice = by_audit(found, cleaning)
    for _ in range(cleaning.rounds - 1):
        rows = choice.keep.nonzero()[:, 0]
        part = part_of(data, rows, choice.labels)
        next_one = by_audit(_again(audited, "round", part, asked, keeping, place, watch), cleaning)
        keep, labels = choice.keep.clone(), choice.labels.clone()
        keep[rows], labels[rows] = next_one.keep, next_one.labels
        choice = Choice(keep, labels)
    return _sparing(choice, found.given)


def _sparing(choice: Choice, given: Tensor) -> Choice:
    """The choice, but a class of which nothing would be left stays as it is: to drop it is for a person to decide."""
    classes = given.unique()
    spared = classes[~torch.isin(classes, choice.labels[choice.keep])]
    here = torch.isin(given, spared)
    return Choice(choice.keep | here, torch.where(here, given, choice.labels), tuple(spared.tolist()))


def _again(
    audited: Audited, name: str, part: Data, asked: Asked, keeping: Keeping, place: Place, watch: Watch | None
) -> md.Audit:
    """Another audit of some of the data, with their labels as they are."""
    part = held_down(part)
    run = run_for(part, audited.record.run.data, asked.as_given)
    return audit_labels(run, part, asked.as_given, _beside(audited, name, part, keeping), place, watch=watch).found


def _beside(audited: Audited, name: str, data: Data, keeping: Keeping) -> Keeping:
    """Keep runs on some of an audit's data in a folder inside its own, named by their digest."""
    return dataclasses.replace(keeping, root=audited.record.folder / f"{name}-{data.digest[:8]}")


def by_audit(found: md.Audit, cleaning: Cleaning) -> Choice:
    """Flagged samples are left out, or get the suggested label where that is probable enough."""
    sure = found.issue & (found.confidence >= cleaning.confidence) & (found.suggested != found.given)
    if not cleaning.relabel:
        sure = torch.zeros_like(sure)
    return Choice(~found.issue | sure, torch.where(sure, found.suggested, found.given))


def decided(given: Tensor, decisions: Sequence[Decision], class_names: Sequence[str]) -> Choice:
    """The choice by a person's decisions; samples without one stay as they are."""
    keep, labels = torch.ones(len(given), dtype=torch.bool), given.clone()
    for decision in decisions:
        if decision.action == "drop":
            keep[decision.index] = False
        elif decision.label is not None:
            labels[decision.index] = list(class_names).index(decision.label)
    return Choice(keep, labels)


def copy_path(whole: Whole, out: Path | None) -> Path:
    """Where the cleaned copy goes. Raises DataError if it must not go there."""
    if out is None:
        name = Path(whole.data.name)
        ending = ".npz" if whole.kind == "known" else "" if whole.kind == "folder" else name.suffix
        out = Path(f"{name.name if whole.kind == 'folder' else name.stem}-cleaned{ending}")
    whole.check_out(out)
    return out


def write_copy(whole: Whole, out: Path, given: Tensor, choice: Choice) -> int:
    """Write the file of `changes` and then the copy: both, or neither; returns how many files the copy has.

    The copy takes its place last, so that where there is one, everything is done. A process that is killed before
    leaves the list alone, which counts as ours the next time if it is the same to the byte.
    """
    beside = changes_path(out)
    check_list(whole, out, given, choice)
    remove_parts(beside.parent, beside.name)
    there = beside.exists()
    try:
        if not there:
            write_text(beside, changes(choice, given, whole))
        return len(whole.write(out, choice.keep, choice.labels))
    except BaseException:
        if not there and not out.exists():
            beside.unlink(missing_ok=True)
        raise


def check_list(whole: Whole, out: Path, given: Tensor, choice: Choice | None) -> None:
    """DataError for a list of changes that is there already, unless it is this clean-up's, which was killed.

    choice: None before it is known; then a list that fits the data may be ours.
    """
    beside = changes_path(out)
    if beside.exists() and not _ours(beside, whole, given, choice):
        raise DataError(f"{beside} exists already; choose another name for the copy, or remove it")


def _ours(beside: Path, whole: Whole, given: Tensor, choice: Choice | None) -> bool:
    if not beside.is_file():
        return False
    if choice is not None:
        return beside.read_bytes() == changes(choice, given, whole).encode("utf-8")
    try:
        _read_list(beside, whole, given)
    except DataError:
        return False
    return True


def _read_list(path: Path, whole: Whole, given: Tensor) -> list[Decision]:
    """The decisions in a file. Raises DataError where it does not fit the data."""
    return read_decisions(path, len(given), whole.class_names, whole.names, given.tolist(), whole.fingerprints)


@dataclass(frozen=True)
class Outcome:
    """One training of the comparison. samples: how many it was trained on."""

    name: str
    samples: int
    record: Record


def compared(
    audited: Audited,
    choice: Choice,
    asked: Asked,
    cleaning: Cleaning,
    keeping: Keeping,
    place: Place,
    *,
    watch: Watch | None = None,
) -> list[Outcome]:
    """Train by the same recipe on all labels, on the cleaned ones, and, where they are known, on the right ones.

    Without a test set, a fifth of the samples is set aside to test them all on, by its given labels. The audit has seen
    that fifth, and must not choose the training samples by it: the other samples are audited again by themselves.
    """
    data, given = audited.whole.data, audited.found.given
    rows = torch.arange(len(given))
    if not audited.whole.held_out:
        rows, others = split_apart(given, data.inputs, SHARE, 0, data.name)
        data = judged_by(data, data.inputs[others], given[others])
        if cleaning.decisions is None:
            apart = part_of(data, rows, given)
            found = _again(audited, "apart", apart, asked, keeping, place, watch)
            part = in_rounds(audited, found, apart, asked, cleaning, keeping, place, watch)
            keep, labels = choice.keep.clone(), choice.labels.clone()
            keep[rows], labels[rows] = part.keep, part.labels
            choice = Choice(keep, labels)
    trained_on = {"all labels": (torch.ones_like(choice.keep), given), "cleaned": (choice.keep, choice.labels)}
    if audited.changed is not None:
        trained_on["right labels only"] = (~audited.changed, given)
    works = []
    for name, (keep, labels) in trained_on.items():
        part_rows = rows[keep[rows]]
        if len(labels[part_rows].unique()) < 2:
            raise DataError(f"{data.name}: fewer than two classes are left to train on ({name}); try --no-compare")
        held = part_of(data, part_rows, labels)
        run = recipe_for(held, audited.record.run, cleaning)
        works.append(Work(run, held, _beside(audited, name.replace(" ", "-"), held, keeping).root))
    records = all_trained(works, keeping, place, watch=watch)
    return [
        Outcome(name, len(work.data), record) for name, work, record in zip(trained_on, works, records, strict=True)
    ]


def recipe_for(data: Data, audit: Run, cleaning: Cleaning) -> Run:
    """The run that trains again, with the audit's network and seed."""
    choice = chosen(len(data), audit.model, epochs=cleaning.retrain_epochs)
    same = {name: getattr(audit, name) for name in ("data", "label", "without", "test", "model", "augment", "seed")}
    how: dict[str, Any] = {"loss": "elr", "lr": audit.lr, "lam": audit.lam}
    if cleaning.recipe == "sgd":
        how = {
            "algorithm": "sgd",
            "lr": 0.1 if audit.model == "resnet18" else 0.02,
            "momentum": 0.9,
            "acceleration": "nesterov",
        }
        mixup = MIXUP if cleaning.mixup is None else cleaning.mixup
        how |= {"decay": 5e-4, "schedule": "cosine", "mixup": mixup}
    how |= {"epochs": choice.epochs, "batch_size": choice.batch_size, "stop": "never"}
    return Run.from_dict({**same, **how, "every": math.ceil(choice.epochs / EVALUATIONS)})
