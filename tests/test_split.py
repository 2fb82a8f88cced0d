"""Copies go to one side of a split; rows that are equal by chance are no copies."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from mislabelled import table

from mirrordescent.lab.audit.auditing import Asked, audit_data, works_of
from mirrordescent.lab.audit.cleaning import Cleaning, by_audit, compared
from mirrordescent.lab.data import Source, load
from mirrordescent.lab.data.split import copies_of, count_known, first_of, split, split_apart
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place

CPU = Place("cpu", 1)


def several(n: int, times: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows that are there several times, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = torch.randn(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)
    order = torch.randperm(n * times, generator=generator)
    return inputs.repeat(times, 1)[order], labels.repeat(times)[order]


@pytest.mark.parametrize("times", [2, 8, 30])
def test_copies_are_of_one_kind(times: int) -> None:
    inputs, _ = several(100, times)
    kinds = copies_of(inputs)
    assert kinds is not None
    assert torch.equal(inputs[first_of(kinds)][kinds], inputs)
    assert first_of(kinds).tolist() == sorted(first_of(kinds).tolist())
    assert len(first_of(kinds)) == 100


def test_few_copies_are_none() -> None:
    inputs, _ = several(1000, 1)
    assert copies_of(inputs) is None
    assert copies_of(torch.cat([inputs, inputs[:9]])) is None
    assert copies_of(torch.cat([inputs, inputs[:20]])) is not None


def test_rows_of_categories_are_observations() -> None:
    generator = torch.Generator().manual_seed(0)
    categories = torch.randint(7, (3000, 3), generator=generator).float()
    assert copies_of(categories) is None
    assert copies_of(torch.nn.functional.one_hot(categories.long()).flatten(1).float()) is None
    beside = torch.cat([categories, torch.rand(3000, 1, generator=generator)], dim=1)
    assert copies_of(beside) is None
    assert copies_of(beside.repeat(2, 1)) is not None


@pytest.mark.parametrize("columns", [1, 2])
def test_few_columns_of_few_values_are_observations(columns: int) -> None:
    """An age, or an age and a sex: one column has as many values as there are different rows, or half of that."""
    generator = torch.Generator().manual_seed(0)
    values = torch.stack([torch.randint(n, (1000,), generator=generator) for n in (80, 2)[:columns]], dim=1)
    assert copies_of(values.double()) is None


def test_pictures_are_equal_only_as_copies() -> None:
    pictures = torch.randint(2, (50, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert copies_of(pictures) is None
    assert copies_of(pictures.repeat(2, 1, 1, 1)) is not None


@pytest.mark.parametrize("times", [2, 8])
def test_no_sample_is_judged_by_its_copy(times: int) -> None:
    inputs, labels = several(100, times)
    kinds = copies_of(inputs)
    assert kinds is not None
    rows, others = split_apart(labels, inputs, 0.2, 0, "data")
    assert sorted([*rows.tolist(), *others.tolist()]) == list(range(100 * times))
    assert not set(kinds[rows].tolist()) & set(kinds[others].tolist())
    assert len(others) == pytest.approx(20 * times, abs=4 * times)


@pytest.mark.parametrize("kind", ["table", "arrays", "folder"])
def test_no_test_sample_of_ones_own_data_is_known_from_training(kind: str, tmp_path: Path) -> None:
    inputs, labels = several(60, 3)
    path = tmp_path / {"table": "a.csv", "arrays": "a.npz", "folder": "a"}[kind]
    if kind == "table":  # with a column that tells copies apart, and is no input
        cells = zip(range(180), *inputs.T.tolist(), labels.tolist(), strict=True)
        lines = [",".join(map(str, row)) for row in cells]
        path.write_text("\n".join(["row,a,b,c,label", *lines]))
    elif kind == "arrays":
        np.savez(path, x=inputs.numpy(), y=labels.numpy())
    else:
        image = pytest.importorskip("PIL.Image")
        for i, (row, y) in enumerate(zip(inputs, labels.tolist(), strict=True)):
            (path / str(y)).mkdir(parents=True, exist_ok=True)
            pixels = (row.sigmoid() * 255).byte().repeat_interleave(8).repeat(24, 1)
            image.fromarray(pixels.numpy()).save(path / str(y) / f"{i}.bmp")
    data = load(Source(str(path)))
    assert len(data) + len(data.test_inputs) == 180
    assert len(data.test_inputs) == pytest.approx(36, abs=6)
    assert count_known(data.inputs, data.test_inputs) == 0
    assert any(note.endswith("split with seed 0, with copies on the same side") for note in data.notes)


def test_a_class_whose_samples_are_all_copies_of_others_stays_in_training() -> None:
    inputs = torch.arange(50.0)[:, None] * torch.tensor([1.0, -2.0, 3.0])
    inputs, labels = torch.cat([inputs, inputs]), torch.cat([torch.arange(50) % 2, torch.full((50,), 2)])
    labels[50:99] = labels[:49]  # one sample alone is of class 2, and its first copy of class 1
    for seed in range(20):
        rows, others = split_apart(labels, inputs, 0.3, seed, "data")
        assert set(labels[rows].tolist()) == {0, 1, 2}
        assert count_known(inputs[rows], inputs[others]) == 0


def test_a_test_set_that_is_known_from_training_is_told(tmp_path: Path) -> None:
    inputs, labels = several(100, 1)
    lines = [f"{','.join(map(str, row))},{y}" for row, y in zip(inputs.tolist(), labels.tolist(), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,c,label", *lines[:80]]))
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,label", *lines[50:]]))
    told = load(Source(str(tmp_path / "a.csv"), test=str(tmp_path / "t.csv"))).notes[-1]
    assert told == "test samples with the same inputs as a training sample: 30 of 50"
    (tmp_path / "t.csv").write_text("\n".join(["a,b,c,label", *lines[80:]]))
    assert "same inputs" not in load(Source(str(tmp_path / "a.csv"), test=str(tmp_path / "t.csv"))).notes[-1]


def test_without_copies_it_is_the_plain_split() -> None:
    inputs, labels = several(100, 1)
    for one, other in zip(split_apart(labels, inputs, 0.2, 3, "a"), split(labels, 0.2, 3, "a"), strict=True):
        assert torch.equal(one, other)


def test_what_an_audit_sets_aside_it_has_not_trained_on(tmp_path: Path) -> None:
    """Neither its check nor the comparison of a clean-up, where rows are repeated."""
    path = tmp_path / "a.csv"
    table(path)
    head, *rows = path.read_text().splitlines()
    repeated = rows * 6
    random.Random(0).shuffle(repeated)
    path.write_text("\n".join([head, *repeated]) + "\n")
    keeping, asked = Keeping(tmp_path / "runs"), Asked(label="kind", epochs=2)
    audited = audit_data(str(path), asked, keeping, CPU)
    assert "rows with the same inputs and the same label as an earlier one: 1,500" in audited.whole.data.notes
    _, second = works_of(audited.whole, asked, keeping)
    known, judged = ({tuple(row) for row in held.tolist()} for held in (second.data.inputs, second.data.test_inputs))
    assert len(known) == 240
    assert len(judged) == 60
    assert not known & judged
    cleaning = Cleaning(retrain_epochs=1)
    everything = compared(audited, by_audit(audited.found, cleaning), asked, cleaning, keeping, CPU)[0]
    assert everything.samples == 6 * 240
