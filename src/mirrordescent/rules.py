"""Algorithms 1 and 2 of the paper: what a batch's losses and its z say about the step.

Legend: L_i losses, s_i = √(2 (L_i + ε)) root losses, z_i one scalar per sample, r_i = z_i − s_i, ℓ̂ the penalty on r_i,
c_i = η ℓ̂'(r_i).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Slope = Callable[[Tensor], Tensor]

# ℓ̂'(r), the slope of the constraint-enforcing loss.
PENALTIES: dict[str, Slope] = {
    "square": lambda r: r,  # r²/2
    "huber": lambda r: r.clamp(-1, 1),  # r²/2 up to 1, then |r| − ½
    "logcosh": torch.tanh,  # log cosh r
}


def root_loss(losses: Tensor, eps: float) -> Tensor:
    """s = √(2 (L + ε)), so that RMD runs on L + ε.

    Without ε, the gradient of a loss that rounds to 0 would be divided by 0, though it is not 0 itself.
    """
    return (2 * (losses.clamp_min(0) + eps)).sqrt()


def machine_epsilon(losses: Tensor) -> float:
    """ε: the machine epsilon of the type that the losses were computed in."""
    return torch.finfo(losses.dtype).eps


def sample_rule(losses: Tensor, z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for every sample of the batch at once: r_i = z_i − s_i, and s_i.

    With c_i = η ℓ̂'(r_i) the step is ∇ψ(w) ← ∇ψ(w) + (1/|B|) Σ (c_i / s_i) ∇L_i, z_i ← z_i − c_i / λ: a mirror step on
    the mean of a_i L_i with constants a_i = −ℓ̂'(r_i) / s_i, which costs what SGD costs.
    """
    s = root_loss(losses, eps)
    return z - s, s


def batch_rule(losses: Tensor, z: Tensor, eps: float, bad: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Algorithm 2: one r and one s for the whole batch, from its mean loss and mean z; `bad` samples do not count."""
    if bad is None:
        mean_loss, mean_z = losses.mean(), z.mean()
    else:
        count = (~bad).sum().clamp_min(1)
        mean_loss, mean_z = torch.where(bad, 0, losses).sum() / count, torch.where(bad, 0, z).sum() / count
    s = root_loss(mean_loss, eps)
    return (mean_z - s).expand_as(losses), s.expand_as(losses)


def coefficients(
    losses: Tensor,  # (batch,), float32 or float64
    z: Tensor,  # (batch,)
    slope: Slope,
    eps: float,
    *,
    root: Tensor | None = None,  # (batch,), signed
    whole: bool = False,
    bad: Tensor | None = None,  # (batch,), bool
) -> tuple[Tensor, Tensor]:
    """What a batch's losses and its z say: the weight −a_i of ∇L_i (of ∇root_i where there is a root), and ℓ̂'(r_i).

    whole: one r for the batch, Algorithm 2. bad: samples that count for nothing.
    """
    if root is not None:
        r, s = z - root, None
    elif whole:
        r, s = batch_rule(losses, z, eps, bad)
    else:
        r, s = sample_rule(losses, z, eps)
    weight = slope(r) if s is None else slope(r) / s
    if s is not None and eps == 0:  # such a loss counts as having no gradient
        weight = torch.where(s == 0, 0, weight)
    # A loss that is not finite may spoil w, as with any optimizer, but never z: ℓ̂'(0) = 0.
    d = slope(finite(r))
    if bad is not None:
        weight, d = torch.where(bad, 0, weight), torch.where(bad, 0, d)
    return weight, d


def finite(t: Tensor) -> Tensor:
    """0 in place of what is not finite."""
    return t.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def check_penalty(slope: Slope) -> None:
    """Refuse a function that a few points show to be no ℓ̂', which is elementwise, never falls, and is 0 at 0."""
    probe = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], device="cpu")
    try:
        values = slope(probe)
    except Exception as error:
        raise ValueError(f"penalty must take a tensor of residuals r and return the slope at each: {error}") from error
    if not isinstance(values, Tensor) or values.shape != probe.shape:
        raise ValueError("penalty must return the slope at each residual r, a tensor of the same shape")
    if values[2] != 0 or bool((values.diff() < 0).any()):
        raise ValueError(f"penalty must be 0 at r = 0 and never fall, got {values.tolist()} at {probe.tolist()}")
