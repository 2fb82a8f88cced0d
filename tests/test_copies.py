"""Copies: an audit of data in which samples are there several times is that of one of each."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from mislabelled import animals

import mirrordescent as md
from mirrordescent.lab.audit.auditing import Asked, audit_data, works_of
from mirrordescent.lab.audit.cleaning import Cleaning, by_audit, compared
from mirrordescent.lab.audit.telling import sentences
from mirrordescent.lab.copies import ENOUGH, Copies, copies_in
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import RunError

CPU = Place("cpu", 1)


def several(n: int, times: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)
    return inputs.repeat(times, 1), labels.repeat(times)


@pytest.mark.parametrize("times", [2, 5])
def test_copies_are_of_the_first_of_their_kind(times: int) -> None:
    inputs, labels = several(ENOUGH, times)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    inputs, labels = inputs[order], labels[order]
    found = copies_in(inputs, labels)
    assert found is not None
    assert len(found) == (times - 1) * ENOUGH
    assert torch.equal(inputs[found.rows][found.kinds], inputs)
    assert torch.equal(labels[found.rows][found.kinds], labels)
    assert found.rows.tolist() == sorted(found.rows.tolist())
    assert all(row <= i for i, row in enumerate(found.rows[found.kinds].tolist()))


def test_few_copies_are_none_and_few_samples_are_all_taken() -> None:
    inputs, labels = several(1000, 1)
    assert copies_in(inputs, labels) is None
    assert copies_in(torch.cat([inputs, inputs[:9]]), torch.cat([labels, labels[:9]])) is None
    assert copies_in(torch.cat([inputs, inputs[:20]]), torch.cat([labels, labels[:20]])) is not None
    assert copies_in(*several(ENOUGH - 1, 9)) is None


def test_samples_with_several_labels_all_count() -> None:
    """Of a hundred that look alike, 95 say one thing: that is evidence, and no copy."""
    inputs, labels = several(ENOUGH, 4)
    labels[:2] = (labels[:2] + 1) % 4  # the first of four alike has another label than the rest
    found = copies_in(inputs, labels)
    assert found is not None
    assert len(found.rows) == ENOUGH - 2 + 2 * 4
    assert len(found.rows[found.kinds].unique()) == len(found.rows)


def test_what_is_set_aside_takes_its_copies_along() -> None:
    inputs, labels = several(ENOUGH, 3)
    found = copies_in(inputs, labels)
    assert found is not None
    rows, others = found.parted(torch.tensor([1, 5]))
    assert others.tolist() == [1, 5, 101, 105, 201, 205]
    assert len(rows) + len(others) == len(labels)


def written(path: Path, times: int) -> None:
    """The table of animals, each row several times."""
    animals(path)
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([head, *rows * times]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copies")
    for times in (1, 3):
        (folder / str(times)).mkdir()
        written(folder / str(times) / "a.csv", times)
    return folder


ASKED = Asked(label="species")


def test_an_audit_of_copies_is_that_of_one_of_each(root: Path) -> None:
    once, thrice = (
        audit_data(str(root / times / "a.csv"), ASKED, Keeping(root / times / "runs"), CPU) for times in ("1", "3")
    )
    n = len(once.found)
    assert (once.copies, thrice.copies) == (0, 2 * n)
    # standardised by other sums, the inputs differ in their last bits
    assert torch.equal(thrice.found.issue, once.found.issue.repeat(3))
    torch.testing.assert_close(thrice.found.wrong, once.found.wrong.repeat(3), atol=0.02, rtol=0.0)
    assert once.check is not None
    assert thrice.check is not None
    assert thrice.check.wrong == pytest.approx(once.check.wrong, abs=0.01)
    told = " ".join(sentences(thrice))
    assert f"{2 * n:,} samples repeat another one, label and all." in told
    assert "samples repeat" not in " ".join(sentences(once))
    again = md.audit(thrice.record.folder)  # whose run has seen one of each
    assert len(again) == 3 * n
    assert torch.equal(again.score, thrice.found.score)
    works = works_of(thrice.whole, ASKED, Keeping(root / "3" / "runs"))
    assert works[0].root == thrice.record.folder.parent
    assert len(works[0].data) == n
    (thrice.record.folder / "copies.json").write_text('{"a": 1}')
    with pytest.raises(RunError, match=r"copies\.json cannot be read; remove the folder"):
        md.audit(thrice.record.folder)


def test_training_again_is_judged_by_samples_it_has_not_seen(root: Path) -> None:
    keeping = Keeping(root / "3" / "runs")
    audited = audit_data(str(root / "3" / "a.csv"), ASKED, keeping, CPU)
    cleaning = Cleaning(retrain_epochs=1)
    outcomes = compared(audited, by_audit(audited.found, cleaning), ASKED, cleaning, keeping, CPU)
    n = len(audited.found)
    everything = outcomes[0]
    assert everything.samples % 3 == 0
    assert 0.15 * n < n - everything.samples < 0.25 * n
    assert json.loads((everything.record.folder / "run.json").read_text())["data"]["test_samples"] == (
        n - everything.samples
    )


def test_corrupted_labels_are_found_among_copies(root: Path) -> None:
    """Corruption comes first: copies that it has made different are no copies any more."""
    asked = dataclasses.replace(ASKED, corruption=0.1, no_check=True, epochs=5)
    audited = audit_data(str(root / "3" / "a.csv"), asked, Keeping(root / "3" / "runs"), CPU)
    assert audited.changed is not None
    assert len(audited.changed) == len(audited.found)
    assert 0 < audited.copies < len(audited.found)


def test_an_audit_by_z_alone_is_spread_too() -> None:
    found = md.Audit(torch.tensor([0, 1]), torch.tensor([0.5, -0.5]), z=torch.tensor([1.0, 2.0]))
    every = Copies(torch.tensor([0, 1]), torch.tensor([0, 1, 1])).spread(found)
    assert every.z is not None
    assert every.z.tolist() == [1.0, 2.0, 2.0]
    assert every.probabilities is None
    assert len(every) == 3
