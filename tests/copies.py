"""Cleaned copies for tests: what is dropped, what is relabelled, and what is read again."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.lab.data import Source
from mirrordescent.lab.data.whole import Whole, load_whole


def keeping(n: int, *dropped: int) -> Tensor:
    keep = torch.ones(n, dtype=torch.bool)
    keep[list(dropped)] = False
    return keep


def with_labels(whole: Whole, **new: str) -> Tensor:
    """The labels, some of them replaced: s3="cat" makes a cat of sample 3."""
    labels = whole.data.targets.clone()
    for sample, name in new.items():
        labels[int(sample[1:])] = whole.data.class_names.index(name)
    return labels


def cleaned(path: Path, out: Path, *dropped: int, label: str | None = None, **new: str) -> Whole:
    """The copy without some samples and with some new labels, read again."""
    whole = load_whole(Source(str(path), label))
    assert whole.write(out, keeping(len(whole.data), *dropped), with_labels(whole, **new))[0].is_relative_to(out)
    return load_whole(Source(str(out), label))


def given_labels(whole: Whole) -> list[str]:
    return [whole.data.class_names[c] for c in whole.data.targets.tolist()]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder).as_posix()): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
