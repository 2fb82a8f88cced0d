"""The runs of `rmd demo`: every algorithm on digits with wrong labels."""

from __future__ import annotations

from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import grid


def demo_runs(epochs: int = 60, seeds: int = 3) -> list[Run]:
    """SGD, weight decay, RMD batch and RMD sample on digits with the small CNN, each regularizer at several λ.

    Weight decay's λ weighs the sum of all losses, RMD's that of a batch of 32 (docs/mathematics.md), so the two grids
    cover the same strengths.

    >>> sorted({run.title for run in demo_runs(seeds=1)})[0], len(demo_runs(seeds=1))
    ('RMD batch, λ = 2', 10)
    """
    base = {"data": "digits", "corruption": 0.4, "model": "cnn", "epochs": epochs, "every": 5}
    seeds_axis = {"seed": range(seeds)}
    return [
        *grid(base, {"algorithm": ["sgd"], **seeds_axis}),
        *grid(base, {"algorithm": ["weight-decay"], "lam": [0.07, 0.1, 0.2], **seeds_axis}),
        *grid(base, {"algorithm": ["rmd"], "reduction": ["batch", "sample"], "lam": [2, 3, 4], **seeds_axis}),
    ]
