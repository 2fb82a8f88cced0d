"""One function loads any data set; the split is fair and the same everywhere; known data never change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrordescent.lab.data import Data, DataError, builtin
from mirrordescent.lab.data.columns import standardised
from mirrordescent.lab.data.datasets import KNOWN, Source, load
from mirrordescent.lab.data.split import split

TABLE = "a,b,kind\n" + "".join(f"{i},{i * i % 7},{'xyz'[i % 3]}\n" for i in range(30))


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.floats(0.01, 0.99), st.integers(0, 2**40))
@settings(max_examples=200, deadline=None)
def test_a_split_is_complete_and_fair(labels: list[int], share: float, seed: int) -> None:
    targets = torch.tensor(labels)
    counts = torch.bincount(targets)
    if int(counts.max()) == 1:
        with pytest.raises(DataError, match="every class has a single sample"):
            split(targets, share, seed)
        return
    train, test = split(targets, share, seed)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(labels)))
    assert train.tolist() == sorted(train.tolist())
    assert test.tolist() == sorted(test.tolist())
    spare = int((counts - 1).clamp(min=0).sum())
    assert len(test) == min(max(1, round(share * len(labels))), spare)
    assert set(targets[train].tolist()) == set(labels)
    there = counts[counts > 0]
    if bool(((share * there).ceil() <= there - 1).all()):  # no class had to stand in for another
        held_out = torch.bincount(targets[test], minlength=len(counts))
        assert float((held_out - share * counts).abs().max()) <= 1 + 1e-9
    again = split(targets, share, seed)
    assert torch.equal(again[0], train)


def test_the_split_is_the_same_on_every_machine() -> None:
    train, test = split(torch.arange(12) % 3, 0.25, seed=7)
    assert test.tolist() == [3, 4, 5]
    torch.manual_seed(99)  # the global generator has no say
    assert torch.equal(split(torch.arange(12) % 3, 0.25, seed=7)[0], train)
    assert not torch.equal(split(torch.arange(12) % 3, 0.25, seed=8)[0], train)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(FINITE, min_size=1, max_size=20), st.lists(FINITE, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_standard_units_for_any_numbers(train: list[float], test: list[float]) -> None:
    x, test_x = standardised(*[torch.tensor(v, dtype=torch.float64)[:, None] for v in (train, test)])
    assert bool(x.isfinite().all())
    assert bool(test_x.isfinite().all())
    if len(set(train)) == 1:
        assert not x.any()
        assert not test_x.any()
    else:
        assert abs(float(x.double().mean())) < 1e-5
        assert abs(float(x.double().std(correction=0)) - 1) < 1e-5
        order = torch.tensor(train, dtype=torch.float64).argsort()
        assert bool((x.flatten()[order].diff() >= 0).all())


def test_known_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    digits = load(Source("digits"))
    assert (len(digits), len(digits.test_inputs), digits.shape, digits.classes) == (1200, 597, (1, 8, 8), 10)
    assert (digits.model, digits.augment) == ("mlp", "none")
    assert (float(digits.inputs.min()), float(digits.inputs.max())) == (0, 1)
    assert load(Source("digits")).digest == digits.digest == "f23282e997e5afbc"
    regression = load(Source("regression"))
    assert (regression.inputs.dtype, regression.targets.dtype, regression.model) == (
        torch.float32,
        torch.float32,
        "linear",
    )
    assert load(Source("regression")).digest == regression.digest
    asked: list[tuple[str, Path]] = []

    def official(name: str, root: Path) -> Data:
        asked.append((name, root))
        return digits

    module = pytest.importorskip("mirrordescent.lab.data.official")
    monkeypatch.setattr(module, "load_official", official)
    assert load(Source("cifar10"), tmp_path) is digits
    load(Source("mnist"))
    assert asked == [("cifar10", tmp_path), ("mnist", module.default_root())]


def test_regression_has_many_interpolants_and_little_noise() -> None:
    data = builtin.regression()
    w = torch.linalg.lstsq(data.inputs.double(), data.targets.double()[:, None]).solution
    torch.testing.assert_close(data.inputs.double() @ w, data.targets.double()[:, None])
    assert 0.5 < float(data.targets.var()) < 2


def test_every_kind_of_path(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    table = load(Source(str(tmp_path / "a.csv"), label="kind", test_share=0.3, split_seed=5))
    assert (table.name, len(table.test_inputs), table.class_names) == ("a.csv", 9, ("x", "y", "z"))
    (tmp_path / "t.csv").write_text(TABLE)
    assert len(load(Source(str(tmp_path / "a.csv"), "kind", str(tmp_path / "t.csv"))).test_inputs) == 30
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((20, 3)), y=np.arange(20) % 2)
    assert len(load(Source(str(tmp_path / "a.npz"), test_share=0.5)).test_inputs) == 10
    image = pytest.importorskip("PIL.Image")
    for i in range(8):
        path = tmp_path / "folder" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (8, 8), 9 * i).save(path)
    assert load(Source(str(tmp_path / "folder"))).shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data": "mnits"},
            r"^unknown data set 'mnits' \(did you mean 'mnist'\?\); known: .*no file or folder '.*mnits'",
        ),
        ({"data": "gone.csv"}, "there is no file or folder '.*gone.csv'"),
        ({"data": "a.doc"}, r"a\.doc: a file that ends in '\.doc' is of no known kind; give a table"),
        ({"data": "a.csv"}, "no column called label, target, class or y"),
        ({"data": "a.csv", "test": "gone.csv"}, "the test set '.*gone.csv' does not exist"),
        ({"data": "a.csv", "test": "."}, r"must be of the same kind as a\.csv \(table\), but is folder"),
        ({"data": "a.csv", "test": "./a.csv"}, "is the training set; leave test out"),
    ],
)
def test_what_is_missing_or_wrong(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "a.doc").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load(Source(**settings))
    assert "\n" not in str(caught.value)


def test_no_argument_is_without_effect(tmp_path: Path) -> None:
    inert: dict[str, Any] = {"label": "y", "without": "a", "test": "a.csv", "test_share": 0.3, "split_seed": 1}
    for name in KNOWN:
        for more in ({option: value} for option, value in inert.items()):
            with pytest.raises(ValueError, match=f"for data of your own; '{name}' has its own test set"):
                Source(name, **more)
    with pytest.raises(ValueError, match=r"test_share must be in \(0, 1\), got 1\.0"):
        Source("a.csv", test_share=1.0)
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4) % 2)
    with pytest.raises(ValueError, match=r"label is for tables .*a\.npz is not one"):
        load(Source(str(tmp_path / "a.npz"), label="y"))
    with pytest.raises(ValueError, match=r"without is for tables .*a\.npz is not one"):
        load(Source(str(tmp_path / "a.npz"), without="y"))


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        DataError, match=r"needs scikit-learn, which is not installed; pip install 'mirrordescent\[lab\]'"
    ):
        load(Source("digits"))


def test_digits_are_scikit_learns_wherever_it_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    read = builtin._of_scikit_learn()
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    assert torch.equal(builtin._of_scikit_learn(), read)
    assert read.shape == (1797, 65)


def test_a_text_table_needs_nothing_but_torch(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    code = (
        "import sys\n"
        "for name in ('pandas', 'pyarrow', 'PIL', 'sklearn'): sys.modules[name] = None\n"
        "from mirrordescent.lab.data.datasets import Source, load\n"
        f"print(len(load(Source({str(tmp_path / 'a.csv')!r}, 'kind'))))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "24"


def test_classes_that_differ_in_case_alone_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{k * k % 7},{('Red fox', 'red  FOX', 'wolf')[k % 3]}" for k in range(30)]
    path.write_text("\n".join(["x,label", *lines]) + "\n")
    [told] = [note for note in load(Source(str(path))).notes if "alone" in note]
    assert "'Red fox' and 'red  FOX'" in told
    path.write_text(path.read_text().replace("red  FOX", "bear"))
    assert not [note for note in load(Source(str(path))).notes if "alone" in note]


def test_a_known_name_beside_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not load(Source("digits")).notes
    (tmp_path / "digits").mkdir()
    assert load(Source("digits")).notes == (
        "this is the known data set digits; for the file or folder of that name write ./digits",
    )
    assert load(Source("digits")).digest == builtin.digits().digest


@pytest.mark.parametrize(("classes", "told"), [(31, True), (30, False)])
def test_a_quantity_as_a_label_is_doubted(tmp_path: Path, classes: int, told: bool) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{i * i % 7},{i % classes}\n" for i in range(20 * classes)))
    assert any("if the label is a quantity" in note for note in load(Source(str(path))).notes) == told


def test_measurements_with_gaps_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,y\n" + "".join(f"{i},{'' if i % 9 == 0 else i / 7}\n" for i in range(60)))
    with pytest.raises(DataError, match="not a whole number; labels are classes here"):
        load(Source(str(path)))
