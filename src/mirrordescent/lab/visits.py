"""An epoch's visits: the order of the samples, and the crop and flip of each visit, drawn before the epoch begins.

Everything is drawn on the CPU from the seed and the epoch's number alone. So a run that is continued in mid-epoch sees
what it would have seen, a GPU sees what a CPU sees, and a captured step draws nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.lab.runs import derived

PADDING = 2  # pixels on each side, from which a crop of the original size is taken


@dataclass(frozen=True)
class Visits:
    """One epoch's batches: row k belongs to step k."""

    index: Tensor  # (steps, batch), which samples
    top: Tensor  # (steps, batch), where the crop begins, 0 to 2·PADDING
    left: Tensor  # (steps, batch)
    flip: Tensor  # (steps, batch), bool
    share: Tensor  # (steps,), of each sample in the mixture with its partner, which has the rest (see `mixed`)

    def __len__(self) -> int:
        """Steps in the epoch."""
        return len(self.index)

    def to(self, device: torch.device) -> Visits:
        """The same on a device."""
        return Visits(*(table.to(device) for table in self.tables))

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """All the tensors, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))


def visits(n: int, batch: int, seed: int, epoch: int, augment: str = "none", mixup: float = 0.0) -> Visits:
    """The batches of an epoch over n samples; those that do not fill a batch are left out, others in every epoch.

    mixup: a batch's shares are drawn from Beta(mixup, mixup); 0 is none.

    >>> plan = visits(10, 4, seed=0, epoch=1)
    >>> plan.index.shape, len(plan.index.unique())
    (torch.Size([2, 4]), 8)
    """
    generator = torch.Generator().manual_seed(derived(seed, "epoch", epoch))
    steps = n // batch
    index = torch.randperm(n, generator=generator)[: steps * batch].reshape(steps, batch)
    middle = torch.full((steps, batch), PADDING)
    top, left, flip = middle, middle, torch.zeros(steps, batch, dtype=torch.bool)
    if augment in ("crop", "crop-flip"):
        top = torch.randint(2 * PADDING + 1, (steps, batch), generator=generator)
        left = torch.randint(2 * PADDING + 1, (steps, batch), generator=generator)
    if augment == "crop-flip":
        flip = torch.rand(steps, batch, generator=generator) < 0.5
    share = torch.ones(steps)
    if mixup:
        drawn = np.random.default_rng(derived(seed, "mixup", epoch)).beta(mixup, mixup, steps)
        share = torch.from_numpy(np.maximum(drawn, 1 - drawn)).float()  # a pair may be swapped, so ≥ ½ is enough
    return Visits(index, top, left, flip, share)


def padded(images: Tensor) -> Tensor:  # (n, channels, height, width)
    """Images with black around them, for `cropped` to take crops from."""
    return F.pad(images, (PADDING,) * 4)


def edged(images: Tensor) -> Tensor:  # (n, channels, height, width)
    """Images with their edge pixels around them: for data in which 0 may be any colour, or far from all values."""
    rows, columns = (torch.arange(-PADDING, side + PADDING).clamp(0, side - 1) for side in images.shape[2:])
    return images[:, :, rows.to(images.device)][:, :, :, columns.to(images.device)]


def cropped(images: Tensor, index: Tensor, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    """The images `index` of a padded set, cropped to the original size and flipped, in one gather.

    images: (n, channels, height + 2·PADDING, width + 2·PADDING). Returns (batch, channels, height, width), channels
    last in memory, as convolutions on a GPU like them.
    """
    height, width = (side - 2 * PADDING for side in images.shape[2:])
    rows = top[:, None] + torch.arange(height, device=images.device)  # (batch, height)
    across = torch.arange(width, device=images.device)
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - across, across)  # (batch, width)
    batch = images[index[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # (batch, height, width, channels)
    return batch.permute(0, 3, 1, 2)


def mixed(x: Tensor, share: Tensor) -> Tensor:
    """Every sample of a batch mixed with its partner, the first with the last and so on (mixup; Zhang et al. 2018)."""
    return share * x + (1 - share) * x.flip(0)
