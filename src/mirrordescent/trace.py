"""What a network predicts for each training sample in the course of training, kept as running sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mirrordescent.inputs import check_classes, check_outputs, checked_index, working


class Trace(nn.Module):
    """Each sample's predicted probabilities and margin, p_y − max over the others, averaged over all visits.

    A label that the network keeps contradicting has a low margin. Call it in the training loop on the logits that are
    there anyway. Memory: num_samples · (classes + 2) numbers, as buffers: save them with `state_dict()`. They stay
    float32 if a model that holds the trace is cast to float16 or bfloat16, which cannot count. A visit with logits that
    are not finite is left out, and counted in `lost`.

    >>> import torch, mirrordescent as md
    >>> trace = md.Trace(num_samples=10, classes=2)
    >>> trace(torch.tensor([[2.0, 0.0]]), torch.tensor([1]), torch.tensor([4]))
    >>> float(trace.margins[4]) < 0, trace.probabilities[4].argmax().item()
    (True, 0)
    """

    margin_sums: Tensor  # (num_samples,)
    probability_sums: Tensor  # (num_samples, classes)
    visits: Tensor  # (num_samples,)
    tried: Tensor  # (), visits of all samples, lost ones included

    def __init__(self, num_samples: int, classes: int) -> None:
        super().__init__()
        if num_samples < 1 or classes < 2:
            raise ValueError(f"there must be >= 1 samples and >= 2 classes, got {num_samples} and {classes}")
        self.register_buffer("margin_sums", torch.zeros(num_samples, dtype=torch.float32))
        self.register_buffer("probability_sums", torch.zeros(num_samples, classes, dtype=torch.float32))
        self.register_buffer("visits", torch.zeros(num_samples, dtype=torch.float32))
        self.register_buffer("tried", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Trace:
        """Move with the model to another device, but not to another type."""

        def moved(held: Tensor) -> Tensor:
            there = fn(held)
            return there if there.dtype == held.dtype else held.to(there.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]  # torch's
        return self

    @torch.no_grad()
    def forward(self, logits: Tensor, labels: Tensor, index: Tensor) -> None:
        """Take note of a batch: logits (batch, classes), the given labels (batch,), which samples they are (batch,)."""
        check_outputs(logits, labels, self.probability_sums.shape[1])
        index = checked_index(index, labels, len(self.visits), "label").to(self.visits.device, non_blocking=True)
        p = working(logits).softmax(-1).to(self.probability_sums.dtype)
        first, own = p[:, 0], labels[:, None].long()
        seen = first == first  # a NaN in a row of the softmax means that all of the row is
        p = p.nan_to_num(0.0)
        try:
            margin = p.gather(1, own)[:, 0] - p.scatter(1, own, -1.0).amax(1)
        except RuntimeError:
            check_classes(labels, p.shape[1])
            raise
        self.margin_sums.index_add_(0, index, margin)
        self.probability_sums.index_add_(0, index, p)
        self.visits.index_add_(0, index, seen.to(margin.dtype))
        self.tried.add_(len(index))

    @property
    def lost(self) -> int:
        """How many visits were left out. Waits for the device."""
        return int(self.tried - self.visits.double().sum().long())

    @property
    def margins(self) -> Tensor:
        """(num_samples,), in [−1, 1]; 0 where a sample was never visited."""
        return self.margin_sums / self.visits.clamp_min(1)

    @property
    def probabilities(self) -> Tensor:
        """(num_samples, classes); all 0 where a sample was never visited."""
        return self.probability_sums / self.visits[:, None].clamp_min(1)
