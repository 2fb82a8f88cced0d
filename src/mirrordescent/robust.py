"""Losses per sample that fit wrong labels less than cross-entropy does; all are non-negative, as RMD needs them.

Legend: p the softmax of a sample's logits, y its label, t the running average of its p.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.inputs import check_classes, check_outputs, checked_index, working

SURE = 1 - 1e-4  # p, ⟨t, p⟩ and max t count as this at most: at 1 the logarithms diverge


def generalized_cross_entropy(logits: Tensor, labels: Tensor, q: float = 0.7) -> Tensor:
    """(1 − p_y^q) / q, between cross-entropy (q → 0) and the mean absolute error (q = 1) (Zhang & Sabuncu 2018).

    logits: (batch, classes). labels: (batch,). Returns (batch,), in [0, 1/q]. Raises ValueError unless 0 < q <= 1.

    >>> import torch, mirrordescent as md
    >>> md.generalized_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), q=1.0)
    tensor([0.5000])
    """
    if not 0 < q <= 1:
        raise ValueError(f"q must be in (0, 1], got {q}")
    return -torch.expm1(-q * F.cross_entropy(working(logits), labels, reduction="none")) / q


class EarlyLearning(nn.Module):
    """Cross-entropy, and a term that keeps a network at what it predicted before it had memorised the labels.

    −log p_y + strength · log((1 − ⟨t, p⟩) / (1 − max t)). The second term is that of early-learning regularization (Liu
    et al. 2020) less its smallest value, so that it is never negative. t has n · classes entries, starts at 0, and
    moves whenever the loss is computed, except in eval mode: call it once per visit. It is a buffer: save it with
    `state_dict()`.
    Raises ValueError for a strength < 0, a memory outside [0, 1), or fewer than two classes.

    >>> import torch, mirrordescent as md
    >>> loss = md.EarlyLearning(num_samples=100, classes=3)
    >>> loss(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([7, 8])).shape
    torch.Size([2])
    """

    averages: Tensor  # t, (num_samples, classes)

    def __init__(self, num_samples: int, classes: int, strength: float = 3.0, memory: float = 0.7) -> None:
        super().__init__()
        if num_samples < 1 or classes < 2:
            raise ValueError(f"there must be >= 1 samples and >= 2 classes, got {num_samples} and {classes}")
        if not strength >= 0:
            raise ValueError(f"strength must be >= 0, got {strength}")
        if not 0 <= memory < 1:
            raise ValueError(f"memory must be in [0, 1), got {memory}")
        self.strength, self.memory = strength, memory
        self.register_buffer("averages", torch.zeros(num_samples, classes))

    def forward(self, logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Losses (batch,) of the samples `index`; in training their averages move first. logits: (batch, classes)."""
        check_outputs(logits, labels, self.averages.shape[1])
        check_classes(labels, self.averages.shape[1])
        index = checked_index(index, labels, len(self.averages), "label").to(self.averages.device, non_blocking=True)
        if self.training:
            self._remember(logits, index)
        return self.at(logits, labels, index)

    @torch.no_grad()
    def _remember(self, logits: Tensor, index: Tensor) -> None:
        p = working(logits).softmax(-1).clamp(1 - SURE, SURE)
        p = (p / p.sum(-1, keepdim=True)).to(self.averages.dtype)
        before = self.averages[index]
        after = self.memory * before + (1 - self.memory) * p
        self.averages[index] = torch.where(after.isfinite(), after, before)  # what is not finite is not remembered

    def at(self, logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The losses with the averages as they stand; these do not move."""
        log_p = working(logits).log_softmax(-1)
        t = self.averages[index].to(log_p.dtype)
        agreement = (t * log_p.exp()).sum(-1).clamp(max=SURE)
        least = (1 - t.amax(-1)).clamp_min(1 - SURE)
        kept = ((1 - agreement) / least).log()
        return F.nll_loss(log_p, labels.long(), reduction="none") + self.strength * kept.clamp_min(0)
