"""The paper's experiments on CIFAR-10 with ResNet-18: its figures, and the runs that reproduce them.

What the paper calls RMD is Algorithm 2 (`batch`) with ψ = ‖w‖²; `sample` with ψ = ½‖w‖² is our addition. All runs start
near zero, with augmentation drawn anew at every visit, batches of 128, a constant step and no momentum.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from mirrordescent.lab.runs import Run

TABLES = (40, 25, 10, 0)  # % of the labels redrawn, the most interesting first
BATCH_LAMS = (1.2, 1.0, 1.5, 0.7, 2.0, 4.0, 16.0)  # the headline rows first
SAMPLE_LAMS = (2.0, 1.2, 1.6, 2.5, 0.7, 4.0, 16.0)
DECAY_LAMS = {
    40: (0.0012, 0.002, 0.01),
    25: (0.0012, 0.002, 0.004),
    10: (0.0012, 0.0018, 0.004),
    0: (0.0015, 0.003, 0.005),
}
SEEDS = (0, 1, 2)  # of the headline rows; the other rows have only the first


@dataclass(frozen=True)
class Figure:
    """A row of the paper's tables; accuracies in %."""

    corruption: int
    algorithm: str  # sgd, rmd, weight-decay
    lam: float | None
    train: float
    test: float


def figures(corruption: int) -> list[Figure]:
    """The paper's table for a corruption level.

    >>> figures(40)[0]
    Figure(corruption=40, algorithm='sgd', lam=None, train=100.0, test=67.41)
    """
    held = json.loads(resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return [Figure(corruption, *row) for row in held[str(corruption)]]


def paper_rmd(corruption: int, lam: float, seed: int = 0) -> Run:
    """RMD as the paper ran it."""
    settings = {"algorithm": "rmd", "reduction": "batch", "potential": "2 * l2", "lam": lam}
    return lasting(Run.from_dict({**_common(corruption, seed), **settings}), epochs_for(lam))


def our_rmd(corruption: int, lam: float, seed: int = 0) -> Run:
    """RMD with a coefficient per sample."""
    settings = {"algorithm": "rmd", "reduction": "sample", "lam": lam}
    return lasting(Run.from_dict({**_common(corruption, seed), **settings}), epochs_for(lam))


def paper_sgd(corruption: int) -> Run:
    """SGD until it interpolates."""
    return Run.from_dict({**_common(corruption), "algorithm": "sgd", "epochs": 300})


def paper_decay(corruption: int, lam: float) -> Run:
    """Weight decay as the paper ran it, but with an epoch limit and a tenth of its patience.

    A step leaves 1 - lr/(λn) of the weights, so that they forget their start over λ·128/lr epochs: 15 for the smallest
    of these λ, 128 for the largest. The limit is six times that, rounded up to tens, and 300 at most; the smallest λ
    with 40 % redrawn would need more, as its decay works against the first steps away from a start near zero.
    """
    settings = {"algorithm": "weight-decay", "lam": lam, "lr": 0.01, "patience": 50}
    run = Run.from_dict({**_common(corruption), **settings})
    memory = lam * run.batch_size / run.lr
    return lasting(run, min(300, 10 * math.ceil(6 * memory / 10)))


def epochs_for(lam: float) -> int:
    """As many epochs as are affordable: enough for `sample`, whose z settles over λ/lr of them, but not for `batch`."""
    return 100 if lam < 4 else 250 if lam < 16 else 300


def lasting(run: Run, epochs: int) -> Run:
    """The run for so many epochs; a long one is evaluated half as often, as each time takes almost half an epoch."""
    if epochs == run.epochs:
        return run
    return dataclasses.replace(run, epochs=epochs, every=5 if epochs <= 100 else 10)


def table_runs(corruption: int) -> list[Run]:
    """The runs behind a table, those that matter most first.

    >>> [run.title for run in table_runs(40)[:3]]
    ['RMD sample, λ = 2', 'RMD batch 2 * l2, λ = 1.2', 'SGD']
    """
    sample = [our_rmd(corruption, lam) for lam in SAMPLE_LAMS]
    batch = [paper_rmd(corruption, lam) for lam in BATCH_LAMS]
    headline, *again = (
        [dataclasses.replace(run, seed=seed) for run in (sample[0], batch[0], paper_sgd(corruption))] for seed in SEEDS
    )
    decay = [paper_decay(corruption, lam) for lam in DECAY_LAMS[corruption]]
    return [*headline, *batch[1:3], *sample[1:4], *itertools.chain(*again), *batch[3:], *sample[4:], *decay]


def all_runs(levels: Sequence[int] = TABLES) -> list[Run]:
    """The runs behind all tables, or some: the headline rows of each before the rest of any."""
    by_table = [table_runs(corruption) for corruption in levels]
    return [run for k in range(max(map(len, by_table))) for runs in by_table for run in runs[k : k + 1]]


def _common(corruption: int, seed: int = 0) -> dict[str, Any]:
    return {
        "data": "cifar10",
        "corruption": corruption / 100,
        "model": "resnet18",
        "start": "near-zero",
        "augment": "crop-flip",
        "batch_size": 128,
        "every": 5,
        "seed": seed,
    }
