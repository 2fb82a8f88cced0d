"""Label noise: seeded, and with a mask of the labels that it changed (for analysis; training never sees that)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.lab.names import listed

KINDS = ("none", "uniform", "symmetric", "pair", "instance", "file")
SPREAD = 0.1  # for "instance": standard deviation of the samples' own rates about the rate, at most


@dataclass(frozen=True)
class Noise:
    """How labels are corrupted.

    kind: "uniform", each label with probability `rate` replaced by a draw from *all* classes (the paper's: of 40 %
        redrawn, 36 % end up wrong with ten classes); "symmetric", by a draw from the other classes, so always wrong;
        "pair", by the next class; "instance", by another class that depends on the sample's inputs, and at a rate of
        the sample's own (Xia et al. 2020); "file", labels from a text file, one per line; "none".
    rate: the probability, in [0, 1].
    seed: of the draws. path: of the file.
    """

    kind: str = "none"
    rate: float = 0.0
    seed: int = 0
    path: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"noise kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"noise rate must be in [0, 1], got {self.rate}")
        if (self.kind == "file") != (self.path is not None):
            raise ValueError(f"noise path goes with kind 'file', got kind {self.kind!r} and path {self.path!r}")


@dataclass(frozen=True)
class Corrupted:
    """Labels to train on, and where they differ from the true ones."""

    labels: Tensor  # (n,)
    changed: Tensor  # (n,), bool


def corrupt(
    labels: Tensor,
    classes: int,
    noise: Noise,
    inputs: Tensor | None = None,
    *,
    names: Sequence[str] = (),
    rows: Tensor | None = None,
    there: int = 0,
) -> Corrupted:
    """Labels (n,) of `classes` classes, corrupted; the same noise gives the same labels on every machine.

    inputs: (n, ...), scaled, for kind "instance".
    names, rows, there: for kind "file", whose lines are names, or else numbers, of classes, and stand for the samples,
        or for the `there` entries of which the samples are `rows`, (n,).
    Raises ValueError for labels outside [0, classes), or a file that does not fit.

    >>> import torch
    >>> from mirrordescent.lab.noise import Noise, corrupt
    >>> true = torch.arange(10_000) % 10
    >>> corrupt(true, 10, Noise("uniform", 0.4)).changed.float().mean()
    tensor(0.3592)
    """
    if labels.dim() != 1 or labels.is_floating_point():
        raise ValueError(f"labels must be a vector of integers, got {labels.dtype} of shape {tuple(labels.shape)}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise ValueError(f"labels must lie in [0, {classes}), got {int(labels.min())} to {int(labels.max())}")
    true = labels.cpu().long()
    if noise.path is not None:
        given = _from_file(Path(noise.path), len(true), classes, names, rows, there)
    elif noise.kind == "instance":
        if inputs is None or classes < 2:
            raise ValueError(f"noise 'instance' needs the inputs and at least two classes, got {classes}")
        given = _by_instance(true, classes, noise, inputs.cpu().flatten(1).double())
    else:
        given = _drawn(true, classes, noise)
    return Corrupted(given.to(labels), (given != true).to(labels.device))


def _drawn(true: Tensor, classes: int, noise: Noise) -> Tensor:
    if noise.kind == "none":
        return true
    # On the CPU, wherever the labels are, so that the draws are the same everywhere.
    generator = torch.Generator().manual_seed(noise.seed)
    chosen = torch.rand(len(true), generator=generator) < noise.rate
    if noise.kind == "uniform":
        other = torch.randint(classes, (len(true),), generator=generator)
    elif noise.kind == "symmetric":
        if classes < 2:
            raise ValueError("symmetric noise needs at least two classes")
        other = (true + torch.randint(1, classes, (len(true),), generator=generator)) % classes
    else:  # "pair"
        other = (true + 1) % classes
    return torch.where(chosen, other, true)


def _by_instance(true: Tensor, classes: int, noise: Noise, x: Tensor) -> Tensor:
    """Each sample gets a rate about the given one, and a random projection per true class says what it is taken for."""
    generator = torch.Generator().manual_seed(noise.seed)
    rates = torch.full((len(true),), -1.0, dtype=torch.float64)
    spread = min(SPREAD, noise.rate / 2, (1 - noise.rate) / 2)  # so that little is cut off, which would move the mean
    while bool((outside := (rates < 0) | (rates > 1)).any()):  # a normal distribution, cut off at 0 and 1
        drawn = torch.randn(int(outside.sum()), generator=generator, dtype=torch.float64)
        rates[outside] = noise.rate + spread * drawn
    likeness = torch.empty(len(true), classes, dtype=torch.float64)
    for label in range(classes):
        direction = torch.randn(x.shape[1], classes, generator=generator, dtype=torch.float64)
        likeness[true == label] = x[true == label] @ direction
    likeness[torch.arange(len(true)), true] = -torch.inf
    place = torch.rand(len(true), generator=generator, dtype=torch.float64)
    other = (likeness.softmax(1).cumsum(1) < place[:, None]).sum(1).clamp(max=classes - 1)
    chosen = torch.rand(len(true), generator=generator, dtype=torch.float64) < rates
    return torch.where(chosen & (other != true), other, true)


def _from_file(path: Path, n: int, classes: int, names: Sequence[str], rows: Tensor | None, there: int) -> Tensor:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    while lines and not lines[-1] and len(lines) not in (n, there):
        lines.pop()
    which = list(range(n)) if rows is None or len(lines) == n else rows.tolist()
    if len(lines) not in (n, there if rows is not None else n):
        whole = f", of {there} in the data's own file" if rows is not None and there != n else ""
        raise ValueError(f"{path} holds {len(lines)} labels, but there are {n} samples to train on{whole}")
    given = [lines[row] for row in which]
    named = {name: place for place, name in enumerate(names)}
    numbered = {text: int(text) for text in set(given) if text.isdecimal() and int(text) < classes}
    places = named if set(given) <= named.keys() else numbered
    for known in (named | numbered, places):  # what is neither first
        for row, text in zip(which, given, strict=True):
            if text not in known:
                one_of = f"one of {listed(list(names), most=10)}, nor a number" if names else "a class"
                raise ValueError(f"{path}, line {row + 1}: {text!r} is not {one_of} in [0, {classes})")
    return torch.tensor([places[text] for text in given], dtype=torch.int64)
