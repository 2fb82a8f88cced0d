"""A data set as training sees it: tensors of inputs and targets, in which a sample's index is its row."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


class DataError(ValueError):
    """Data that are missing, damaged or not what they should be; the message names the file or row and the remedy."""


@dataclass(frozen=True)
class Data:
    """A training and a test set in memory; training sample i is row i, in every run and on every machine.

    inputs, test_inputs: (n, ...), float32, or uint8 pixels in [0, 255] (which `Scaling` turns into float32).
    targets, test_targets: (n,), int64 classes, or float32 values where `classes` is None (regression).
    classes: how many classes; None for regression. class_names: their names, in order.
    mean, std: of the training inputs, per channel or feature, with pixels divided by 255; None: not standardised.
    model, augment: what "auto" means for these data. black_around: random crops see black beyond the edge, as in the
        paper; otherwise the pixels of the edge are repeated.
    notes: what loading did to the data ("2 constant columns left out"), for the user to read.
    rows, there: training sample i is entry `rows[i]` of the `there` in the user's table or arrays; None: in that order.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int | None
    class_names: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    model: str = "mlp"
    augment: str = "none"
    black_around: bool = False
    notes: tuple[str, ...] = ()
    rows: Tensor | None = None
    there: int = 0

    def __post_init__(self) -> None:
        for what, inputs, targets in (
            ("training", self.inputs, self.targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            if len(inputs) != len(targets):
                raise DataError(f"{self.name}: {len(inputs)} {what} inputs, but {len(targets)} targets")
            if len(inputs) == 0:
                raise DataError(f"{self.name}: the {what} set is empty")
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            shapes = f"{tuple(self.inputs.shape[1:])} and {tuple(self.test_inputs.shape[1:])}"
            raise DataError(f"{self.name}: training and test samples differ in shape: {shapes}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.inputs.shape[1:])

    def __len__(self) -> int:
        """The number of training samples."""
        return len(self.inputs)

    @cached_property
    def digest(self) -> str:
        """A hash of everything that training sees, so that a run notices when its data have changed."""
        total = hashlib.sha256()
        for tensor in (self.inputs, self.targets, self.test_inputs, self.test_targets):
            total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            total.update(tensor.contiguous().numpy().tobytes())
        total.update(repr((self.classes, self.mean, self.std)).encode())
        return total.hexdigest()[:16]

    def on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Training inputs, test inputs and test targets on a device; many runs share one copy."""
        if device not in self._places:
            self._places[device] = tuple(t.to(device) for t in (self.inputs, self.test_inputs, self.test_targets))
        inputs, test_inputs, test_targets = self._places[device]
        return inputs, test_inputs, test_targets

    def made_on(self, device: torch.device, make: Callable[[Tensor], Tensor]) -> Tensor:
        """The result of `make` on the training inputs on a device; many runs share one copy of it, too."""
        if (device, make) not in self._made:
            self._made[device, make] = make(self.on(device)[0])
        return self._made[device, make]

    def leave(self, device: torch.device) -> None:
        """Drop the shared copies on a device."""
        self._places.pop(device, None)
        for key in [key for key in self._made if key[0] == device]:
            del self._made[key]

    @cached_property
    def _places(self) -> dict[torch.device, tuple[Tensor, ...]]:
        return {}

    @cached_property
    def _made(self) -> dict[tuple[torch.device, Callable[[Tensor], Tensor]], Tensor]:
        return {}

    def digest_with(self, more: bytes) -> str:
        """A hash of the data and of `more` that training depends on."""
        return hashlib.sha256(self.digest.encode() + more).hexdigest()[:16]


def for_pictures(shape: tuple[int, ...]) -> tuple[str, str]:
    """The default model and augmentation for a user's images of this shape, (channels, height, width).

    Crops shift an image by up to two pixels, too much for a small one. No flips: they may change the class of a letter.

    >>> for_pictures((3, 64, 64)), for_pictures((1, 8, 8)), for_pictures((1, 2, 2))
    (('deep-cnn', 'crop'), ('cnn', 'none'), ('mlp', 'none'))
    """
    side = min(shape[1:])
    return ("deep-cnn", "crop") if side >= 16 else ("cnn" if side >= 4 else "mlp", "none")


class Scaling:
    """Inputs as the network sees them: pixels as float32 in [0, 1], standardised if the data have mean and std."""

    def __init__(self, data: Data, device: torch.device) -> None:
        self.mean = self.std = None
        if data.mean is not None and data.std is not None:
            shape = (-1, *[1] * (len(data.shape) - 1))  # channels, or features, come first
            self.mean = torch.tensor(data.mean, device=device).reshape(shape)
            self.std = torch.tensor(data.std, device=device).reshape(shape)

    def __call__(self, inputs: Tensor) -> Tensor:  # (batch, ...)
        """The inputs, scaled."""
        x = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std
