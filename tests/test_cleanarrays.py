"""Cleaned copies of arrays and of known data sets: what was not changed is as it was."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from copies import cleaned, given_labels, keeping
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_whole import LABELS, PIXELS, N

from mirrordescent.lab.data import DataError, Source, load
from mirrordescent.lab.data.whole import load_whole


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=N, max_size=N),
    st.sampled_from([np.uint8, np.int16, ">f8", np.float32]),
    st.sampled_from([LABELS * 50 - 7, LABELS.astype(np.uint8)[:, None], np.array(["b ", "a", "c"])[LABELS]]),
    st.sampled_from([np.savez, np.savez_compressed]),
)
@settings(max_examples=30, deadline=None)
def test_any_arrays_come_back(choice: list[tuple[bool, int]], dtype: Any, y: Any, save: Callable[..., None]) -> None:
    keep, labels = torch.tensor([stays for stays, _ in choice]), torch.tensor([c for _, c in choice])
    assume(len(set(labels[keep].tolist())) >= 2)
    kept = keep.numpy()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "a.npz"), Path(folder, "b.npz")
        save(path, train_y=y, more=np.arange(5.0), X_train=PIXELS.astype(dtype))
        content = path.read_bytes()
        whole = load_whole(Source(str(path)))
        assert whole.write(out, keep, labels) == [out]
        assert path.read_bytes() == content
        with np.load(out) as copy, zipfile.ZipFile(out) as packed, zipfile.ZipFile(path) as before:
            assert copy.files == ["train_y", "more", "X_train"]
            assert np.array_equal(copy["X_train"], PIXELS.astype(dtype)[kept])
            assert copy["X_train"].dtype == np.dtype(dtype)
            assert copy["train_y"].dtype == y.dtype
            assert copy["train_y"].shape[1:] == y.shape[1:]
            same = kept & (labels == whole.data.targets).numpy()
            assert np.array_equal(copy["train_y"][same[kept]], y[same])
            kinds = [member.compress_type for member in packed.infolist()]
            assert kinds == [member.compress_type for member in before.infolist()]
        again = load_whole(Source(str(out)))
        assert np.array_equal(again.data.inputs.numpy(), whole.data.inputs.numpy()[kept])
        assert given_labels(again) == [whole.data.class_names[c] for c in labels[keep].tolist()]


def test_test_arrays_stay_as_they_are(tmp_path: Path) -> None:
    path, out = tmp_path / "a.npz", tmp_path / "b.npz"
    np.savez(path, x=PIXELS, y=LABELS, x_test=PIXELS[:4], y_test=LABELS[:4])
    again = cleaned(path, out, 0, s1="2")
    assert again.held_out
    assert np.array_equal(again.data.test_inputs.numpy(), PIXELS[:4])
    assert given_labels(again)[:2] == ["2", "2"]
    whole = load_whole(Source(str(path)))
    without = keeping(N, *np.flatnonzero(LABELS == 1).tolist())
    with pytest.raises(DataError, match=r"a\.npz: no training sample of '1' would be left, but the test set has some"):
        whole.write(tmp_path / "c.npz", without, whole.data.targets)
    np.savez(path, x=PIXELS, y=LABELS)  # a class that is lost from a set without a test set
    whole = load_whole(Source(str(path)))
    whole.write(tmp_path / "c.npz", without, whole.data.targets)
    assert load_whole(Source(str(tmp_path / "c.npz"))).data.class_names == ("0", "2")


def test_what_goes_with_the_samples_stays_with_them(tmp_path: Path) -> None:
    path, ids = tmp_path / "a.npz", np.arange(N) * 10
    cut: dict[str, Any] = {"ids": ids, "weights": np.ones((N, 2)) * ids[:, None], "valid": ids > 30, "value": ids}
    cut |= dict.fromkeys(("contest_id", "is_test", "latest_visit", "sex_valid"), ids)
    # of other samples by their names, or of pairs of samples, or of something else
    kept: dict[str, Any] = dict.fromkeys(("val_ids", "Xtest", "testing", "x_valid", "y_dev", "eval"), ids)
    kept |= dict.fromkeys(("testids", "testset", "ids_test_raw", "y_test_pred", "x_val_names"), ids)
    kept |= {"gram": np.ones((N, N)), "names": np.array(["a", "b", "c"]), "scale": np.array(2.0)}
    np.savez(path, x=PIXELS, y=LABELS, **cut, **kept)
    notes = load_whole(Source(str(path))).data.notes
    of_samples = "contest_id, ids, is_test, latest_visit, sex_valid, valid, value, weights"
    assert f"arrays with an entry per sample that were not used: {of_samples}" in notes
    (apart,) = [note for note in notes if note.startswith("not taken as one entry per sample")]
    assert apart.partition("whole): ")[2].startswith(
        "Xtest, eval, gram, ids_test_raw, testids, testing, testset, val_ids"
    )
    cleaned(path, tmp_path / "b.npz", 0, 4)
    stays = keeping(N, 0, 4).numpy()
    with np.load(tmp_path / "b.npz") as copy:
        assert np.array_equal(copy["x"], PIXELS[stays])
        for name, array in cut.items():
            assert np.array_equal(copy[name], array[stays]), name
        for name, array in kept.items():
            assert np.array_equal(copy[name], array), name


def test_without_another_set_every_array_that_long_is_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    held: dict[str, Any] = dict.fromkeys(("eval", "test_result", "test_names"), np.arange(N))
    np.savez(path, x=PIXELS, y=LABELS, **held)
    cleaned(path, tmp_path / "b.npz", 0, 4)
    with np.load(tmp_path / "b.npz") as copy:
        assert all(len(copy[name]) == N - 2 for name in held)


def test_known_sets_become_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = load_whole(Source("digits"))
    out = tmp_path / "digits.npz"
    labels = whole.data.targets.clone()
    labels[1] = 9 - labels[1]
    assert whole.write(out, keeping(1200, 0), labels) == [out]
    again = load_whole(Source(str(out)))
    assert torch.equal(again.data.inputs, whole.data.inputs[1:])
    assert torch.equal(again.data.targets, labels[1:])
    assert torch.equal(again.data.test_inputs, whole.data.test_inputs)
    assert torch.equal(again.data.test_targets, whole.data.test_targets)
    assert (again.held_out, again.data.class_names) == (True, whole.data.class_names)
    with np.load(out) as copy:
        assert (copy["x"].dtype, copy["y"].dtype) == (np.float32, np.int64)
    digits = load(Source("digits"))
    names = tuple(reversed("abcdefghij"))
    object.__setattr__(digits, "class_names", names)
    monkeypatch.setattr("mirrordescent.lab.data.builtin.digits", lambda: digits)
    load_whole(Source("digits")).write(tmp_path / "named.npz", keeping(1200, 0), labels)
    assert given_labels(load_whole(Source(str(tmp_path / "named.npz")))) == [names[c] for c in labels[1:]]
