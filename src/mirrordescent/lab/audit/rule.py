"""Chooses the settings of an audit's training from the size of the data and the network, without any clean label."""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 2200  # steps that a small network needs in order to know what a class looks like
FEWEST, MOST = 20, 200  # epochs
FEWEST_OF = {"resnet18": 50}  # a deep network, which sees a sample in another crop each time, takes more
RATES = {"linear": 0.3, "mlp": 0.3, "cnn": 0.03, "deep-cnn": 0.1, "resnet18": 0.1}  # step size of each network
# How much the loss remembers of a sample's predictions. Early on, a rare class that is like a larger one is taken for
# it, and with a short memory the loss makes the network stay with that. If this happens, the next longer one is tried;
# with that, the network learns more labels by heart.
MEMORIES = (0.7, 0.9, 0.97)
SMALLER = 3.0  # what to divide the step size by when training has diverged
BATCHES = {"resnet18": 128}  # samples per step; 32 for the others
VARIANCE = 3.0  # of all inputs together, at most
ROWS = 1000  # per unit of it, where there are few rows
PLENTY = 50  # rows per input; with more, the variance may be larger
FEW = 8  # least steps per epoch and least samples per step of the deep CNN: with one step it gives up classes


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

    As many epochs as give the network its steps, but at least 20 (50 for ResNet-18) and at most 200. λ is such that z's
    time scale, λ/lr epochs, is the length of the run: a shorter one would hold back every sample before anything is
    known of it, a longer one would hold back none until the run is over.

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


def variance(n: int, inputs: int) -> float:
    """The variance that all inputs of a row together may have, given n rows.

    In a step on one row its own output moves by the row's squared length, that of another row by their product. Rows of
    many inputs are nearly at right angles, so each is learnt by heart, the sooner the longer it is, and the more often
    it is visited, which is in proportion to 1/n. A row of few inputs is held by its neighbours, and may be longer.

    >>> variance(600, 384), variance(4_200, 384), variance(20_000, 20)
    (0.6, 3.0, 60.0)
    """
    return min(VARIANCE, n / ROWS) * max(1.0, n / (PLENTY * inputs))
