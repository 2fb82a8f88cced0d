"""Predictions of a network that knows the truth more or less, and the trace that it would leave."""

from __future__ import annotations

import torch
from torch import Tensor

import mirrordescent as md


def known(
    seed: int, n: int = 400, classes: int = 4, rate: float = 0.3, sharp: float = 4.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions that know the truth as well as `sharp` says, given labels, true labels."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randint(classes, (n,), generator=generator)
    chosen = torch.rand(n, generator=generator) < rate
    labels = torch.where(chosen, torch.randint(classes, (n,), generator=generator), true)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), true] += sharp
    return logits.softmax(1), labels, true


def traced(p: Tensor, labels: Tensor) -> md.Trace:
    trace = md.Trace(*p.shape)
    trace(p.log(), labels, torch.arange(len(p)))
    return trace
