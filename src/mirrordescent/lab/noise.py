"""Label noise: seeded, and with a mask of the labels that it changed (for analysis; training never sees that)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("none", "uniform", "symmetric", "pair", "instance")
SPREAD = 0.1  # for "instance": standard deviation of the samples' own rates about the rate, at most


@dataclass(frozen=True)
class Noise:
    """How labels are corrupted.

    kind: "uniform", each label with probability `rate` replaced by a draw from *all* classes (the paper's: of 40 %
        redrawn, 36 % end up wrong with ten classes); "symmetric", by a draw from the other classes, so always wrong;
        "pair", by the next class; "instance", by another class that depends on the sample's inputs, and at a rate of
        the sample's own (Xia et al. 2020); "none".
    rate: the probability, in [0, 1]. seed: of the draws.
    """

    kind: str = "none"
    rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"noise kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"noise rate must be in [0, 1], got {self.rate}")


@dataclass(frozen=True)
class Corrupted:
    """Labels to train on, and where they differ from the true ones."""

    labels: Tensor  # (n,)
    changed: Tensor  # (n,), bool


def corrupt(labels: Tensor, classes: int, noise: Noise, inputs: Tensor | None = None) -> Corrupted:
    """Labels (n,) of `classes` classes, corrupted; the same noise gives the same labels on every machine.

    inputs: (n, ...), scaled, for kind "instance". Raises ValueError for labels outside [0, classes).

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
    if noise.kind == "instance":
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
