from __future__ import annotations

import copy
import pickle
from collections import UserDict
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import mirrordescent as md


class Items(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_loader_batches_carry_the_index_of_each_row() -> None:
    x = torch.arange(20.0)
    loader = DataLoader(md.Indexed(TensorDataset(x, x * 2)), batch_size=6, shuffle=True)
    seen = []
    for a, b, index in loader:
        assert torch.equal(a, x[index])
        assert torch.equal(b, 2 * x[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(20))


def test_an_index_of_the_items_own_is_not_lost() -> None:
    with pytest.raises(ValueError, match="sample 1 has a key 'index' of its own \\(7\\)"):
        md.Indexed(Items([{"index": 0}, {"index": 7}]))[1]
    assert md.Indexed(Items([{"index": 0, "x": 5}]))[0] == {"index": 0, "x": 5}


def test_kinds_of_items() -> None:
    assert md.Indexed(Items([5, 6]))[1] == (6, 1)
    assert md.Indexed(Items([{"x": 5}]))[0] == {"x": 5, "index": 0}
    assert md.Indexed(Items([[5, 6]]))[0] == (5, 6, 0)
    assert md.Indexed(Items([5, 6]))[-1] == (6, 1)
    assert len(md.Indexed(Items([5, 6]))) == 2


def test_index_is_the_position_in_what_was_wrapped() -> None:
    subset = Subset(TensorDataset(torch.arange(10)), [7, 3])
    assert md.Indexed(subset)[1] == (torch.tensor(3), 1)
    assert md.Indexed(subset).__getitems__([1, 0]) == [(torch.tensor(3), 1), (torch.tensor(7), 0)]


def test_streams_are_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(TypeError, match=r"with a length .* give each sample's number itself: any number in \[0, num_"):
        md.Indexed(Stream())


def test_a_whole_batch_at_once_is_refused_with_the_way_to_do_it() -> None:
    with pytest.raises(TypeError, match="the number of one sample, got list; give a DataLoader a batch_sampler"):
        md.Indexed(Items([1, 2, 3]))[[0, 1]]  # type: ignore[index]


class Endless(Dataset[int]):
    """Has a length, but an item for every number."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return 10 * index


def test_an_index_may_count_from_the_end_and_not_beyond() -> None:
    data = md.Indexed(Endless())
    assert [data[k] for k in (-2, -1, 0, 1)] == [(0, 0), (10, 1), (0, 0), (10, 1)]
    for beyond in (2, -3):
        with pytest.raises(IndexError, match="out of range for 2 samples"):
            data[beyond]


def test_a_whole_batch_of_the_datasets_own() -> None:
    class Whole(Endless):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * k for k in indices[:short]]

    short: int | None = None
    assert md.Indexed(Whole()).__getitems__([-1, 0]) == [(10, 1), (0, 0)]
    short = 1
    with pytest.raises(ValueError, match="longer"):
        md.Indexed(Whole()).__getitems__([0, 1])


def test_a_stream_that_looks_like_a_list_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return index

        def __iter__(self) -> Iterator[int]:
            return iter(range(2))

    with pytest.raises(TypeError, match="Indexed needs a dataset with a length"):
        md.Indexed(Stream())


@pytest.mark.parametrize("own", [torch.tensor([0, 1]), np.array([0, 1]), "0", None, [0]])
def test_an_index_that_is_no_number_of_the_samples_is_told(own: Any) -> None:
    data = md.Indexed(Items([{"x": 1, "index": own}]))
    with pytest.raises(ValueError, match=r"key 'index' of its own .* give it another name"):
        data[0]


def test_any_mapping_gets_the_key() -> None:
    items = [UserDict(x=1.0, y=0), UserDict(x=2.0, y=1)]  # as tokenizers give them
    assert md.Indexed(Items(items))[1] == {"x": 2.0, "y": 1, "index": 1}
    with pytest.raises(ValueError, match="key 'index' of its own"):
        md.Indexed(Items([UserDict(index=7)]))[0]


class Labelled(Items):
    classes: ClassVar = ["cat", "dog"]
    _private = 1

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.items[index] for index in indices]

    def __str__(self) -> str:
        return "two animals"

    def told(self) -> str:
        return f"{len(self)} of {self.classes}"


@pytest.mark.parametrize(
    "copier",
    [lambda data: data, copy.copy, copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))],
    ids=["itself", "copy", "deepcopy", "pickle"],
)
def test_what_the_dataset_has_can_be_read(copier: Any) -> None:
    data = copier(md.Indexed(Labelled([5, 6])))
    assert (data.items, data.classes, data.told()) == ([5, 6], ["cat", "dog"], "2 of ['cat', 'dog']")
    assert data.dataset.items == [5, 6]
    assert [data[0], *data.__getitems__([1])] == [(5, 0), (6, 1)]
    data.dataset.items = [7, 8]
    assert data.items == [7, 8]
    with pytest.raises(AttributeError, match="'Labelled' object has no attribute 'target'"):
        data.target  # noqa: B018


def test_what_protocols_ask_for_is_not_the_datasets() -> None:
    data = md.Indexed(Labelled([5, 6]))
    for name in ("_private", "__array__", "_repr_html_", "__missing__"):
        assert not hasattr(data, name)
    bare = md.Indexed.__new__(md.Indexed)  # as pickle makes it, before it has a dataset
    assert not hasattr(bare, "dataset")
    assert not hasattr(bare, "classes")
    assert "Indexed" in str(data)


def test_workers_give_the_index_too() -> None:
    data = md.Indexed(Labelled([5, 6, 7, 8]))
    loader = DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [part.tolist() for batch in loader for part in batch] == [[5, 6], [0, 1], [7, 8], [2, 3]]
    assert loader.dataset.classes == ["cat", "dog"]  # type: ignore[attr-defined]
