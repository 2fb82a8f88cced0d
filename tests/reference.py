"""Algorithms 1 and 2 of the paper, written out in numpy, float64, one number at a time: slow, and nothing to hide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Map = Callable[[Array], Array]


def linear_losses(x: Array, y: Array, w: Array) -> tuple[Array, Array]:
    """½ (x_i·w − y_i)² and its gradient, for each row."""
    r = x @ w - y
    return r**2 / 2, r[:, None] * x


def rmd_step(
    w: Array,
    z: Array,
    batch: list[int],
    losses_of: Callable[[list[int], Array], tuple[Array, Array]],
    mirror: Map,
    inverse: Map,
    *,
    lr: float,
    lam: float,
    reduction: str,
    slope: Callable[[Any], Any] = lambda r: r,
    per_batch: bool = False,
    eps: float = 0.0,
) -> tuple[Array, Array]:
    """One step; `per_batch` is the convention that divides z's step by |B| as well."""
    losses, gradients = losses_of(batch, w)
    size = len(batch)
    dual, z = mirror(w), z.copy()
    divisor = lam * size if per_batch else lam
    if reduction == "batch":  # Algorithm 2
        s = np.sqrt(2 * (np.mean(losses) + eps))
        c = lr * slope(np.mean(z[batch]) - s)
        dual = dual + c / s * gradients.mean(axis=0)
        for i in batch:
            z[i] -= c / divisor
    else:  # Algorithm 1, for every sample of the batch
        change = np.zeros_like(dual)
        steps = []
        for i, loss, gradient in zip(batch, losses, gradients, strict=True):
            s = np.sqrt(2 * (loss + eps))
            c = lr * slope(z[i] - s)
            change += c / s * gradient / size
            steps.append((i, c / divisor))
        dual = dual + change
        for i, step in steps:
            z[i] -= step
    return inverse(dual), z
