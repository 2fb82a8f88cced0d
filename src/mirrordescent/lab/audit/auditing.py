"""An audit from end to end: the data, a run on all of them, and what it found about each label."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.audit.rule import chosen
from mirrordescent.lab.data import Data, DataError, Source
from mirrordescent.lab.data.whole import Whole, load_whole
from mirrordescent.lab.job import given_labels
from mirrordescent.lab.loop import Keeping, Progress, Watch
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.train import train

EVALUATIONS = 10  # along a run


@dataclass(frozen=True)
class Asked:
    """What to audit, and how. What is not given is chosen from the data."""

    label: str | None = None
    """the label's column, for a table"""
    test: str | None = None
    """path of a test set, which is not audited"""
    model: Literal["auto", "linear", "mlp", "cnn", "resnet18"] = "auto"
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


@dataclass(frozen=True)
class Audited:
    """What was found, about which data, by which run. changed: which labels were corrupted on purpose, if any were."""

    whole: Whole
    record: Record
    found: md.Audit
    changed: Tensor | None


def audit_data(data: str, asked: Asked, keeping: Keeping, place: Place, *, watch: Watch | None = None) -> Audited:
    """Train on every label of the data and audit them; the same call again goes on, or only reads what is there.

    Raises DataError for data without classes, or with a single one.
    """
    whole = load_whole(Source(data, asked.label, asked.test), keeping.data_root)
    run = run_for(whole.data, data, asked)
    record, found = audit_labels(run, whole.data, keeping, place, watch=_honest(watch, held_out=whole.held_out))
    corrupted = given_labels(run, whole.data)
    found = dataclasses.replace(found, names=whole.names)
    return Audited(whole, record, found, corrupted.changed if run.corruption else None)


def audit_labels(
    run: Run, data: Data, keeping: Keeping, place: Place, *, watch: Watch | None = None
) -> tuple[Record, md.Audit]:
    """Train a run on the data, and audit the labels that it was trained on."""
    record = train(run, keeping, place, data=data, watch=watch)
    return record, md.audit(record, class_names=data.class_names)


def run_for(held: Data, data: str, asked: Asked) -> Run:
    """The run that audits the data `held`, which came from `data`."""
    if held.classes is None:
        raise DataError(f"{held.name} has no classes, and an audit is of classes")
    base = Run(data=data, label=asked.label, test=asked.test, model=asked.model, seed=asked.seed)
    base = settled(base, held)
    given = {"lr": asked.lr, "lam": asked.lam, "epochs": asked.epochs, "batch_size": asked.batch_size}
    choice = chosen(len(held), base.model, **given)  # type: ignore[arg-type]  # None where nothing is given
    noise = {"corruption": asked.corruption, "noise": asked.noise} if asked.corruption else {}
    how = {"loss": "elr", "every": math.ceil(choice.epochs / EVALUATIONS), "stop": "never"}
    return Run.from_dict({**base.to_dict(), **dataclasses.asdict(choice), **noise, **how})


def _honest(watch: Watch | None, *, held_out: bool) -> Watch | None:
    """Says nothing of accuracy on a test set that was trained on."""
    if watch is None or held_out:
        return watch

    def hear(progress: Progress) -> None:
        watch(dataclasses.replace(progress, row={}))

    return hear
