"""How to train for an audit, from the data alone: no clean label is needed, and nothing is left to tune."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 2200  # that a small network needs in order to know what a class looks like
FEWEST, MOST = 20, 200  # epochs
FEWEST_OF = {"resnet18": 50}  # a deep network, which sees every sample in other crops, takes more
RATES = {"linear": 0.3, "mlp": 0.3, "cnn": 0.03, "deep-cnn": 0.1, "resnet18": 0.1}  # step size of each network
# Of the loss, how much it remembers: in few steps a rare class that is like a larger one is taken for that, and a short
# memory makes the network stay with it. The next one is for where that has happened; it learns more labels by heart.
MEMORIES = (0.7, 0.9, 0.97)
SMALLER = 3.0  # the factor by which it is less the next time, where training diverged
BATCHES = {"resnet18": 128}  # samples per step; 32 else
FEW = 8  # steps at least in an epoch of the deep CNN, and samples at least in one: with one step it gives up classes


@dataclass(frozen=True)
class Chosen:
    """The settings of an audit's run."""

    lr: float
    lam: float
    epochs: int
    batch_size: int


def chosen(
    n: int,
    model: str,
    *,
    lr: float | None = None,
    lam: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
) -> Chosen:
    """The settings for n samples and a network; what is given stays.

    As many epochs as give the network its steps, but each sample 20 visits (50 for ResNet-18), and at most 200. λ such
    that z's time scale, λ/lr epochs, is the length of the run: a shorter one would hold every sample back before it is
    known, a longer one none until it is over.

    >>> chosen(20_000, "mlp")
    Chosen(lr=0.3, lam=6.0, epochs=20, batch_size=32)
    >>> chosen(1437, "mlp", epochs=100).lam
    30.0
    """
    if batch_size is None:
        batch_size = min(n, BATCHES.get(model, 32))
        batch_size = min(batch_size, max(FEW, n // FEW)) if model == "deep-cnn" else batch_size
    lr = RATES[model] if lr is None else lr
    if epochs is None:
        epochs = min(MOST, max(FEWEST_OF.get(model, FEWEST), round(STEPS / max(1, n // batch_size))))
    return Chosen(lr, lr * epochs if lam is None else lam, epochs, batch_size)
