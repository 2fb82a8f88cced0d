"""Data sets that need no download: scikit-learn's digits, and a synthetic regression."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError

DIGITS_TRAIN = 1200
SEED = 0  # part of the data sets' definition: another seed makes other data


def digits() -> Data:
    """1,797 handwritten digits of 8×8 pixels in [0, 1]: 1,200 to train, 597 to test.

    Raises DataError if scikit-learn, which ships them, is not installed.
    """
    table = _of_scikit_learn()
    inputs, targets = (table[:, :-1] / 16).float().reshape(-1, 1, 8, 8), table[:, -1].long()
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


def _of_scikit_learn() -> Tensor:
    """A row per digit: 64 pixels from 0 to 16, and the label. Reads the file alone: the import takes a second."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("digits needs scikit-learn, which is not installed; pip install 'mirrordescent[lab]'")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        with gzip.open(path, "rt", encoding="ascii") as file:
            return torch.tensor([[float(cell) for cell in line.split(",")] for line in file], dtype=torch.float64)
    from sklearn.datasets import load_digits  # in a version that keeps them elsewhere

    pixels, labels = load_digits(return_X_y=True)
    return torch.cat([torch.from_numpy(pixels), torch.from_numpy(labels).double()[:, None]], 1)


def regression(n: int = 100, features: int = 400, active: int = 20, noise: float = 0.05) -> Data:
    """Linear regression with four times as many weights as samples: y = xᵀw + noise, most entries of w are 0.

    active: how many of the weights are not 0; each is ±1/√active, so that y has variance 1 + noise².

    >>> data = regression()
    >>> tuple(data.inputs.shape), tuple(data.targets.shape), data.classes
    ((100, 400), (100,), None)
    """
    # Drawn in float64 and then rounded, because the last bits of a normal draw differ between processors.
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(2 * n, features, dtype=torch.float64, generator=generator)
    signs = 2 * torch.randint(2, (active,), generator=generator) - 1
    w = torch.zeros(features, dtype=torch.float64)
    w[torch.randperm(features, generator=generator)[:active]] = signs.double() / active**0.5
    y = x @ w + noise * torch.randn(2 * n, dtype=torch.float64, generator=generator)
    x, y = x.float(), y.float()
    return Data("regression", x[:n], y[:n], x[n:], y[n:], classes=None, model="linear")
