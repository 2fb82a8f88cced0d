"""What the origins and cleaned copies of all formats have in common: a base class, checks, and spellings of labels."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.files import part_path
from mirrordescent.lab.names import listed


class Origin(ABC):
    """Where a data set came from: shows training sample i as it is there, and writes a cleaned copy."""

    def cells(self, i: int) -> tuple[tuple[str, str], ...]:  # noqa: ARG002 (a table needs it)
        """A table's row as (column, text) pairs; () for other data."""
        return ()

    def fingerprint(self, i: int) -> str:  # noqa: ARG002 (a table needs it)
        """A hash that identifies a table's row wherever it stands; "" for other data, whose names identify samples."""
        return ""

    def picture(self, i: int, side: int) -> bytes | None:  # noqa: ARG002 (images need them)
        """An image as PNG, at most `side` pixels on its longer side; None for other data."""
        return None

    @abstractmethod
    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write the copy to `out`, which `check_place` has passed; OSError if that fails. Returns the paths written."""


def label_givers(targets: Tensor, labels: Tensor, spellings: Sequence[str]) -> list[int]:
    """For every sample, the sample to copy the written label from: itself where the class stays.

    targets, labels: the old and the new classes, (n,). spellings: each label as it is written ("1", "01"). A changed
    label is copied from a sample with the most frequent spelling of its new class.

    >>> import torch
    >>> label_givers(torch.tensor([0, 1, 1, 1]), torch.tensor([1, 1, 1, 1]), ["a", "1", "01", "01"])
    [2, 1, 2, 3]
    """
    old, new = targets.tolist(), labels.tolist()
    often: dict[int, Counter[str]] = {}
    for target, spelling in zip(old, spellings, strict=True):
        often.setdefault(target, Counter())[spelling] += 1
    first: dict[tuple[int, str], int] = {}
    for i, key in enumerate(zip(old, spellings, strict=True)):
        first.setdefault(key, i)
    giver = {target: first[target, counts.most_common(1)[0][0]] for target, counts in often.items()}
    return [i if old[i] == new[i] else giver[new[i]] for i in range(len(old))]


def check_choice(data: Data, keep: Tensor, labels: Tensor) -> None:
    """ValueError unless `keep` and `labels` fit the samples and classes; DataError if fewer than two classes remain."""
    n, classes = len(data), len(data.class_names)
    for what, tensor, kind in (("keep", keep, "torch.bool"), ("labels", labels, "torch.int64")):
        if tuple(tensor.shape) != (n,) or str(tensor.dtype) != kind:
            raise ValueError(f"{what} must be ({n},) of {kind}, got {tuple(tensor.shape)} of {tensor.dtype}")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise ValueError(f"labels must be classes from 0 to {classes - 1}, got {wrong}")
    left = sorted(set(labels[keep].tolist()))
    if len(left) < 2:
        which = f"only {data.class_names[left[0]]!r}" if left else "none"
        raise DataError(f"{data.name}: fewer than two classes would be left ({which}); keep more samples")


def check_test_classes(data: Data, keep: Tensor, labels: Tensor) -> None:
    """DataError if the test set, which is part of the copy, has a class of which no training sample is kept."""
    lost = sorted(set(data.test_targets.tolist()) - set(labels[keep].tolist()))
    if lost:
        names = listed([repr(data.class_names[c]) for c in lost])
        raise DataError(
            f"{data.name}: no training sample of {names} would be left, but the test set has some; keep one"
        )


def check_originals(paths: Sequence[Path], originals: Sequence[Path]) -> None:
    """DataError if one of the paths that will be written is an original."""
    for path in paths:
        if any(path.resolve() == original.resolve() for original in originals):
            raise DataError(f"{path} is the original, which stays as it is; choose another name")


def check_place(out: Path, originals: Sequence[Path], suffix: str) -> None:
    """DataError unless `out` does not exist yet, is outside the originals, and ends in `suffix`."""
    check_originals([out], originals)
    for original in originals:
        if out.resolve().is_relative_to(original.resolve()):
            raise DataError(f"{out} is inside the original {original}, which stays as it is; choose another place")
    if os.path.lexists(out):
        raise DataError(f"{out} exists already; choose another name, or remove it")
    if suffix and out.suffix.lower() != suffix:
        raise DataError(f"{out} must end in {suffix}, the format that is written")


@contextmanager
def written_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to write into; it is moved to `path` if the block succeeds, and removed if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(path)
    try:
        part.mkdir()
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


class Stamp:
    """Notices, by size and time of modification, that a file has changed since it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = self._state()

    def check(self) -> None:
        """DataError if the file has changed or gone since the stamp was made."""
        if self._state() != self.seen:
            raise DataError(f"{self.path} has changed since it was read; start again with the file as it is now")

    def _state(self) -> tuple[int, int] | None:
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns
