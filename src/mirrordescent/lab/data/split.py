"""A seeded split into training and test set, class by class; or none, where every sample is to be trained on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from mirrordescent.lab.data.base import DataError

FEW = 0.01  # share of the samples; fewer copies than that change nothing
# For equal rows to be copies and not chance:
MANY = 0.5  # values that some column must have per different row, unless it would be a wonder
WONDER = 1e-6  # equal pairs of rows that independent columns would have; so few of them are no chance
OFTEN = 10.0  # times as often as independent columns would have it


def split(labels: Tensor, share: float, seed: int, name: str = "data") -> tuple[Tensor, Tensor]:
    """Positions of the training and of the test samples, each ascending; the same on every machine.

    Every class keeps its share as nearly as whole samples allow, at least one sample of each stays in training, and
    at least one in total goes to the test set. Raises DataError if no class can spare a sample.

    >>> import torch
    >>> train, test = split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2]), share=0.25, seed=0)
    >>> len(train), len(test)
    (7, 2)
    """
    counts = torch.bincount(labels)
    spare = [max(count - 1, 0) for count in counts.tolist()]
    if not any(spare):
        raise DataError(
            f"{name}: every class has a single sample, which leaves none for a test set; add samples, or give a "
            "separate test set"
        )
    quotas = _quotas(counts.tolist(), spare, share)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    # shuffled samples grouped by class, so that the first ones of each class are a draw without replacement
    together = shuffled[torch.argsort(labels[shuffled], stable=True)]
    start = 0
    for count, quota in zip(counts.tolist(), quotas, strict=True):
        chosen[together[start : start + quota]] = True
        start += count
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def split_apart(labels: Tensor, inputs: Tensor, share: float, seed: int, name: str) -> tuple[Tensor, Tensor]:
    """As `split`, but copies of a sample go to the same side, so that no test sample is known from training.

    inputs: (n, ...), by which copies are recognised. Where they leave no choice, as there are hardly any other samples,
    it is `split`.
    """
    return _split_kinds(labels, inputs, share, seed) or split(labels, share, seed, name)


def _split_kinds(labels: Tensor, inputs: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor] | None:
    """As `split`, but samples of one kind, which counts for the class of its first, go to the same side.

    A kind of more than twice what is still to be set aside of its class stays in training. None if all have to, or
    `copies_of` finds no copies.
    """
    if (kinds := copies_of(inputs)) is None:
        return None
    of_kind, sizes = labels[first_of(kinds)], torch.bincount(kinds)
    members = [(of_kind == c).nonzero().flatten() for c in range(int(labels.max()) + 1)]
    counts = [int(sizes[those].sum()) for those in members]
    spare = [count - int(sizes[those].min()) if len(those) else 0 for count, those in zip(counts, members, strict=True)]
    if not any(spare):
        return None
    place = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(len(sizes), dtype=torch.bool)
    for c, quota in enumerate(_quotas(counts, spare, share)):
        those, left = members[c], quota
        for kind in those[place[those].argsort()].tolist():
            size = int(sizes[kind])
            if 2 * left >= size and quota - left + size <= spare[c]:
                chosen[kind] = True
                left -= size
    there = chosen[kinds]
    # a class may be left whose samples are all copies of those of other classes
    gone = there & ~torch.isin(labels, labels[~there])
    there &= ~torch.isin(kinds, kinds[gone])
    return ((~there).nonzero().flatten(), there.nonzero().flatten()) if there.any() else None


def copies_of(inputs: Tensor) -> Tensor | None:
    """A number per sample, (n,), that copies share, in order of appearance; None if there are next to no copies.

    Rows of categories and small numbers may be equal by chance, and are no copies then.

    >>> import torch
    >>> x = torch.rand(100, 2)
    >>> copies_of(x) is None, copies_of(torch.cat([x, x[:3]])).tolist()[-4:], copies_of((3 * x).round()) is None
    (True, [99, 0, 1, 2], True)
    """
    kinds = alike(inputs)
    first = first_of(kinds)
    if len(kinds) - len(first) < FEW * len(kinds):
        return None
    # whole pictures are not equal by chance
    return None if inputs.dim() == 2 and _by_chance(inputs, kinds, first) else kinds


def _by_chance(inputs: Tensor, kinds: Tensor, first: Tensor) -> bool:
    """Whether rows (n, d) may be equal because their columns take few values, as "age 31, female" does."""
    chance, pairs = 1.0, len(inputs) * (len(inputs) - 1) / 2
    for column in inputs.T:
        chance *= _chance(column, first)
        if chance * pairs < WONDER:
            return False
    few = max(len(column[first].unique()) for column in inputs.T) < MANY * len(first)
    return few or _equal_pairs(kinds) < OFTEN * chance


def _chance(column: Tensor, first: Tensor) -> float:
    """How likely it is that two samples have the same value, were no row a copy. first: a row of each kind."""
    ordered = column.sort().values.double()
    low, high = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.25, 0.75))
    if low == high:  # mostly 0, say
        return _equal_pairs(column)
    gaps = ordered.diff()
    possible = 2 * (high - low) / float(gaps[gaps > 0].min()) + 1  # if all are as far apart as the nearest two
    return max(1 / possible, _equal_pairs(column[first]))


def _equal_pairs(values: Tensor) -> float:
    """The share of equal ones among all pairs of values (n,)."""
    counts = values.unique(return_counts=True)[1].double()
    return float((counts * (counts - 1)).sum()) / max(len(values) * (len(values) - 1), 1)


def alike(inputs: Tensor) -> Tensor:
    """A number per input, (n,), that equal inputs share, in order of first appearance."""
    names: dict[bytes, int] = {}
    return torch.tensor([names.setdefault(digest, len(names)) for digest in _digests(inputs)])


def same_inputs(inputs: Tensor, targets: Tensor, unit: str) -> Iterator[str]:
    """Notes on samples with the same inputs; if their labels differ, no network can tell which one is right."""
    groups = alike(inputs)
    kinds = torch.unique(torch.stack([groups, targets], dim=1), dim=0)[:, 0]
    several = torch.bincount(kinds, minlength=int(groups.max()) + 1) > 1
    if copies := len(inputs) - len(kinds):
        yield f"{unit} with the same inputs and the same label as an earlier one: {copies:,}"
    if count := int(several[groups].sum()):
        yield f"{unit} with the same inputs as others that have another label: {count:,}"


def count_known(inputs: Tensor, test_inputs: Tensor) -> int:
    """How many test inputs are training inputs, too."""
    known = set(_digests(inputs))
    return sum(digest in known for digest in _digests(test_inputs))


def _digests(inputs: Tensor) -> Iterator[bytes]:
    for piece in inputs.flatten(1).split(4096):  # a few at a time: + 0, which turns -0 into 0, makes a copy
        rows = piece + 0 if piece.is_floating_point() else piece
        yield from (hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in rows.numpy())


def first_of(kinds: Tensor) -> Tensor:
    """The position of the first sample of each kind; kinds: a number per sample, as from `alike`."""
    first = kinds.new_full((int(kinds.max()) + 1,), len(kinds))
    return first.scatter_reduce(0, kinds, torch.arange(len(kinds)), "amin")


def divided(
    labels: Tensor, inputs: Callable[[], Tensor], share: float, seed: int, name: str, whole: bool
) -> tuple[Tensor, Tensor, str]:
    """Positions of the training and of the test samples, as `split_apart` gives them, and how they were set aside.

    inputs: gives (n, ...), by which copies are recognised, if that is needed.
    whole: all samples are training samples, and the test samples are those of them that would have been set aside, or
    all if none could be: training code needs a test set, though this one says nothing about other data. None is set
    aside then, and the last answer is empty.
    """
    if not whole:
        apart = _split_kinds(labels, inputs(), share, seed)
        train, test = apart or split(labels, share, seed, name)
        told = ", with copies on the same side" if apart else ""
        return train, test, f"split with seed {seed}{told}"
    everything = torch.arange(len(labels))
    test = split(labels, share, seed, name)[1] if (torch.bincount(labels) > 1).any() else everything
    return everything, test, ""


def told_of_parts(train: int, test: int, there: int, unit: str, how: str) -> str:
    """The note on how many samples are trained on and tested, of those that are there; `how` is from `divided`.

    >>> told_of_parts(80, 20, 100, "rows", "split with seed 0")
    'test set: 20 of 100 rows, split with seed 0'
    >>> told_of_parts(99, 20, 100, "images", "")
    '99 of 100 images are trained on, and none is set aside for testing'
    """
    if how:
        return f"test set: {test:,} of {there:,} {unit}, {how}"
    if train == there:
        return f"all {there:,} {unit} are trained on, and none is set aside"
    return f"{train:,} of {there:,} {unit} are trained on, and none is set aside for testing"


def _quotas(counts: list[int], spare: list[int], share: float) -> list[int]:
    # by largest remainder: rounding each class by itself would leave many small classes without any test sample
    wanted = min(max(1, round(sum(counts) * share)), sum(spare))
    quotas = [min(math.floor(count * share), free) for count, free in zip(counts, spare, strict=True)]
    by_remainder = sorted(range(len(counts)), key=lambda c: (quotas[c] - counts[c] * share, c))
    left = wanted - sum(quotas)
    while left > 0:
        for c in by_remainder:
            if left > 0 and quotas[c] < spare[c]:
                quotas[c] += 1
                left -= 1
    return quotas
