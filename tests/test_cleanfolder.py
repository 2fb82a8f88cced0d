"""Cleaned copies of folders of images: every file is where it belongs, as it was."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from copies import cleaned, contents, given_labels, keeping, with_labels
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_whole import images

from mirrordescent.lab.data import DataError, Source
from mirrordescent.lab.data.whole import load_whole


def test_a_folder_comes_back(tmp_path: Path) -> None:
    folder = images(tmp_path / "pets", 3, ("cat", "dog", "fish"))
    (folder / "cat" / "deep").mkdir()
    (folder / "cat" / "2.png").rename(folder / "cat" / "deep" / "2.png")
    for name in ("notes.txt", "fish/1.json", "fish/.hidden"):
        (folder / name).write_text(name)
    before = contents(folder)
    whole = load_whole(Source(str(folder)))
    assert whole.names[:3] == ("cat/0.png", "cat/1.png", "cat/deep/2.png")
    # cat/0 and fish/0 become dogs, beside dog/0; dog/1 is dropped, and fish/1 does not take its name
    labels = with_labels(whole, s0="dog", s2="dog", s6="dog", s7="dog")
    paths = whole.write(tmp_path / "out", keeping(9, 4), labels)
    expected = {
        "dog/0-from-cat.png": "cat/0.png",
        "cat/1.png": "cat/1.png",
        "dog/deep/2.png": "cat/deep/2.png",
        "dog/0.png": "dog/0.png",
        "dog/2.png": "dog/2.png",
        "dog/0-from-fish.png": "fish/0.png",
        "dog/1-from-fish.png": "fish/1.png",
        "fish/2.png": "fish/2.png",
    }
    others = ("fish/1.json", "notes.txt")  # as they were
    assert [path.relative_to(tmp_path / "out").as_posix() for path in paths] == [*expected, *others]
    wanted = {**expected, **{name: name for name in others}}
    assert contents(tmp_path / "out") == {new: before[old] for new, old in wanted.items()}
    assert contents(folder) == before
    again = load_whole(Source(str(tmp_path / "out")))
    assert dict(zip(again.names, given_labels(again), strict=True)) == {name: name.split("/")[0] for name in expected}


def test_images_that_are_no_samples_stay(tmp_path: Path) -> None:
    """Damaged ones, which a person may mend, and those of no class; a new one takes nobody's name."""
    folder = images(tmp_path / "pets", 30, ("cat", "dog"))
    (folder / "dog" / "29.png").write_bytes(b"half of an image")
    (folder / "loose.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    before = contents(folder)
    whole = load_whole(Source(str(folder)))
    assert len(whole.names) == 59
    labels = whole.data.targets.clone()
    labels[whole.names.index("cat/29.png")] = 1  # becomes a dog
    whole.write(tmp_path / "out", keeping(59, whole.names.index("cat/3.png")), labels)
    after = contents(tmp_path / "out")
    gone = {"cat/3.png", "cat/29.png"}
    assert after == {
        **{name: held for name, held in before.items() if name not in gone},
        "dog/29-from-cat.png": before["cat/29.png"],
    }


def test_a_class_that_is_gone_leaves_no_folder(tmp_path: Path) -> None:
    folder = images(tmp_path / "pets", 2, ("cat", "dog", "fish"))
    (folder / "fish" / "notes.txt").write_text("of no use alone")
    whole = load_whole(Source(str(folder)))
    whole.write(tmp_path / "out", keeping(6, 4, 5), whole.data.targets)
    assert sorted(contents(tmp_path / "out")) == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert load_whole(Source(str(tmp_path / "out"))).class_names == ("cat", "dog")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=9, max_size=9))
@settings(max_examples=15, deadline=None)
def test_no_file_is_lost(choice: list[tuple[bool, int]]) -> None:
    keep, labels = torch.tensor([stays for stays, _ in choice]), torch.tensor([c for _, c in choice])
    assume(len(set(labels[keep].tolist())) >= 2)
    with tempfile.TemporaryDirectory() as place:
        # names that clash, also with those that a clash leads to, and in another case
        folder = images(Path(place, "pets"), 3, ("a", "b", "c"))
        (folder / "b" / "1.png").rename(folder / "b" / "0-from-a.png")
        (folder / "c" / "1.png").rename(folder / "c" / "0-FROM-a.PNG")
        whole = load_whole(Source(str(folder)))
        paths = whole.write(Path(place, "out"), keep, labels)
        kept = keep.nonzero().flatten().tolist()
        assert len({str(path).casefold() for path in paths}) == len(paths) == len(kept)
        assert len(contents(Path(place, "out"))) == len(kept)
        for i, path in zip(kept, paths, strict=True):
            assert path.read_bytes() == (folder / whole.names[i]).read_bytes()
            assert path.parent == Path(place, "out", "abc"[labels[i]])
        assert len(load_whole(Source(str(Path(place, "out")))).data) == len(kept)


def test_test_folders_stay_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    images(folder / "train", 3, ("cat", "dog", "fish"))
    images(folder / "test", 2)
    images(folder / "val", 1)
    (folder / "val" / "list.txt").write_text("kept")
    os.symlink(folder / "train", folder / "test" / "loop")
    whole = load_whole(Source(str(folder)))
    whole.write(tmp_path / "out", keeping(9, 0), with_labels(whole, s1="dog"))
    before, after = contents(folder), contents(tmp_path / "out")
    assert {n: c for n, c in after.items() if n[:3] != "tra"} == {n: c for n, c in before.items() if n[:3] != "tra"}
    assert sorted(n for n in after if n.startswith("train")) == [
        "train/cat/2.png",
        "train/dog/0.png",
        "train/dog/1-from-cat.png",
        *["train/dog/1.png", "train/dog/2.png", "train/fish/0.png", "train/fish/1.png", "train/fish/2.png"],
    ]
    assert load_whole(Source(str(tmp_path / "out"))).held_out
    with pytest.raises(DataError, match="no training sample of 'cat' would be left"):
        whole.write(tmp_path / "more", keeping(9, 0, 1, 2), whole.data.targets)
    whole.write(tmp_path / "more", keeping(9, 6, 7, 8), whole.data.targets)  # the test set has no fish
    assert load_whole(Source(str(tmp_path / "more"))).data.class_names == ("cat", "dog")


def test_classes_called_train_and_test(tmp_path: Path) -> None:
    folder = images(tmp_path / "odd", 2, ("cat", "test", "train"))
    again = cleaned(folder, tmp_path / "out", 0, 1)
    assert (again.data.class_names, len(again.data)) == (("test", "train"), 4)
