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


def drawn(kind: str, n: int, seed: int) -> torch.Tensor:
    """Different rows, or rows that are equal by chance."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, 2, generator=generator)
    whole = {k: torch.randint(k, (n, 20), generator=generator).float() for k in (2, 5, 20, 50, 80)}
    rare = -torch.rand(n, 3, generator=generator).log()  # exponential
    return {
        "an age": whole[80][:, :1],
        "an age and a sex": torch.cat([whole[80][:, :1], whole[2][:, :1]], dim=1),
        "an age, a sex and a town": torch.cat([whole[80][:, :1], whole[2][:, :1], whole[50][:, :1]], dim=1),
        "a town, what follows from it, and an age": torch.stack(
            [whole[50][:, 0], whole[50][:, 0] // 5, whole[50][:, 0] // 15, whole[80][:, 0] // 10], dim=1
        ),
        "counts, mostly 0": (rare / 2).floor(),
        "counts, and an outlier": torch.cat([(3 * rare[:-1, :1]).floor(), torch.tensor([[1e4]])]),
        "twenty answers": whole[5],
        "a measurement": normal[:, :1],
        "a measurement and a sex": torch.cat([normal[:, :1], whole[2][:, :1]], dim=1),
        "a measurement and a one-hot text": torch.cat([normal[:, :1], whole[20][:, :1] == torch.arange(20)], dim=1),
        "two rounded measurements": (100 * normal).round() / 100,
        "flat pictures": (255 * normal.sigmoid()).round().repeat_interleave(50, dim=1) + whole[2].repeat(1, 5),
    }[kind]


AGES = ["an age", "an age and a sex", "an age, a sex and a town", "a town, what follows from it, and an age"]
CHANCE = [*AGES, "counts, mostly 0", "counts, and an outlier"]
MEASURED = ["a measurement", "a measurement and a sex", "a measurement and a one-hot text"]
DIFFERENT = [*MEASURED, "two rounded measurements", "flat pictures", "twenty answers"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", CHANCE)
def test_few_columns_of_few_values_are_observations(kind: str, seed: int) -> None:
    assert copies_of(drawn(kind, 1000, seed)) is None


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize("kind", DIFFERENT)
def test_repeated_rows_are_copies(kind: str, times: int) -> None:
    inputs = drawn(kind, 1000 // times, 0)
    assert copies_of(inputs) is None
    inputs = inputs.repeat(times, 1)
    labels = torch.arange(1000 // times).repeat(times) % 3
    rows, others = split_apart(labels, inputs, 0.2, 0, "data")
    assert len(others) == pytest.approx(200, abs=6)
    assert count_known(inputs[rows], inputs[others]) == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_test_set_has_its_share_of_each_class_whatever_the_copies(seed: int) -> None:
    pictures = torch.randint(256, (1000, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    pictures[:500] = 0  # half of them blank: they stay in training
    labels = torch.arange(1000) % 2
    rows, others = split_apart(labels, pictures, 0.2, seed, "data")
    assert 150 <= len(others) <= 200
    assert count_known(pictures[rows], pictures[others]) == 0
    inputs, labels = several(90, 10, seed)
    labels = inputs[:, 0].sort().indices.argsort() // 300  # three classes of 300
    _, others = split_apart(labels, inputs, 0.2, seed, "data")
    assert torch.bincount(labels[others]).tolist() == 3 * [60]


def test_where_copies_leave_no_choice_it_is_the_plain_split(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,label\n" + 10 * "0.25,1.75,x\n-3.5,0.125,y\n")
    data = load(Source(str(tmp_path / "a.csv")))
    assert (len(data), len(data.test_inputs)) == (16, 4)
    assert "test set: 4 of 20 rows, split with seed 0" in data.notes
    assert "test samples with the same inputs as a training sample: 4 of 4" in data.notes
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    inputs[5] = inputs[0]
    for seed in range(20):  # class 1 is one copy of a sample of class 0
        rows, others = split_apart(torch.tensor([0, 0, 0, 0, 0, 1]), inputs, 0.2, seed, "data")
        assert len(others) == 1
        assert 5 in rows.tolist()


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
