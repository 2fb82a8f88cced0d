"""`Indexed`: a dataset that also gives each sample's index, as RMD keeps one number for each training sample."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sized
from typing import Any, cast

from torch.utils.data import Dataset, IterableDataset


class Indexed(Dataset[Any]):
    """The dataset with each item's index appended: `(x, y)` becomes `(x, y, index)`.

    A dict or another mapping becomes a dict with the key "index" (if it has one, that must be the same number), a named
    tuple becomes a plain one, and any other item `(item, index)`. The index is the position in *this* dataset, so wrap
    what you train on (a `Subset`, not the set it was cut from; a `ConcatDataset`, not its parts, which each count from
    0), and pass `num_samples=len(dataset)` to RMD. A stream (`IterableDataset`) has no positions: let it give a number
    that stays with the sample, below `num_samples`. The dataset's attributes (`.targets`, `.classes`) can be read
    here; set them on the dataset itself.

    >>> import torch, mirrordescent as md
    >>> from torch.utils.data import TensorDataset
    >>> md.Indexed(TensorDataset(torch.tensor([1.0, 2.0]), torch.tensor([0, 1])))[1]
    (tensor(2.), tensor(1), 1)
    """

    def __init__(self, dataset: Dataset[Any]) -> None:
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        ):
            raise TypeError(
                f"Indexed needs a dataset with a length and items by index, got {type(dataset).__name__}; a stream has "
                "to give each sample's number itself: any number in [0, num_samples) that is the same at every visit"
            )
        self.dataset = dataset

    def __getattr__(self, name: str) -> Any:
        """The dataset's own `.targets`, `.classes` and so on."""
        # No names with underscores, by which protocols ask (a DataLoader for `__getitems__`, a notebook for a table):
        # the dataset would answer for itself. And not the dataset's own name, which pickle asks for before it is there.
        if name.startswith("_") or name == "dataset":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(cast(Sized, self.dataset))

    def __getitem__(self, index: int) -> Any:
        index = self._position(index)
        return _append(self.dataset[index], index)

    def _position(self, index: int) -> int:
        if not hasattr(index, "__index__"):
            kind = type(index).__name__
            raise TypeError(f"Indexed takes the number of one sample, got {kind}; give a DataLoader a batch_sampler")
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"index {position} is out of range for {len(self)} samples")
        return position + len(self) if position < 0 else position

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """A whole batch at once, through the dataset's own `__getitems__` where it has one."""
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is None:
            return [self[index] for index in indices]
        positions = [self._position(index) for index in indices]
        return [_append(item, index) for item, index in zip(fetch(positions), positions, strict=True)]


def _is(own: Any, index: int) -> bool:
    """Whether an item's own index is that number; an array of several numbers is not."""
    try:
        return bool(own == index)
    except (RuntimeError, ValueError):
        return False


def _append(item: Any, index: int) -> Any:
    if isinstance(item, Mapping):
        own = item.get("index", index)
        if not _is(own, index):
            told = f"sample {index} has a key 'index' of its own ({own!r:.40}), which would be lost"
            raise ValueError(f"{told}; give it another name in the dataset")
        return {**item, "index": index}
    if isinstance(item, (tuple, list)):
        return (*item, index)
    return (item, index)
