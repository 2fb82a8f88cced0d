"""Data sets that need no download: the digits of scikit-learn, and a regression made here."""

from __future__ import annotations

import torch

from mirrordescent.lab.data.base import Data, DataError

DIGITS_TRAIN = 1200
SEED = 0  # part of the data sets' definition: results with another seed are results on other data


def digits() -> Data:
    """1,797 handwritten digits of 8×8 pixels in [0, 1]: 1,200 to train, 597 to test.

    Raises DataError when scikit-learn, which holds them, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError("digits needs scikit-learn, which is not installed; pip install 'mirrordescent[lab]'") from None
    pixels, labels = load_digits(return_X_y=True)
    inputs = (torch.from_numpy(pixels) / 16).float().reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels).long()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(SEED))
    train, test = order[:DIGITS_TRAIN], order[DIGITS_TRAIN:]
    return Data(
        "digits",
        inputs[train],
        targets[train],
        inputs[test],
        targets[test],
        classes=10,
        class_names=tuple("0123456789"),
        model="mlp",
    )


def regression(n: int = 100, features: int = 400, active: int = 20, noise: float = 0.05) -> Data:
    """Linear regression with four times as many weights as samples: y = xᵀw + noise, w with few entries that are not 0.

    active: how many of the weights are not 0; each is ±1/√active, so that y has variance 1 + noise².

    >>> data = regression()
    >>> tuple(data.inputs.shape), tuple(data.targets.shape), data.classes
    ((100, 400), (100,), None)
    """
    # Drawn in float64 and rounded: the last bits of a normal draw differ between processors, and are gone after it.
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(2 * n, features, dtype=torch.float64, generator=generator)
    signs = 2 * torch.randint(2, (active,), generator=generator) - 1
    w = torch.zeros(features, dtype=torch.float64)
    w[torch.randperm(features, generator=generator)[:active]] = signs.double() / active**0.5
    y = x @ w + noise * torch.randn(2 * n, dtype=torch.float64, generator=generator)
    x, y = x.float(), y.float()
    return Data("regression", x[:n], y[:n], x[n:], y[n:], classes=None, model="linear")
