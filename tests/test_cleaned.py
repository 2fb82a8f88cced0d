"""A cleaned copy holds exactly what was kept, with the labels it was given, and everything else as it was."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_whole import LABELS, PIXELS, N, images
from torch import Tensor

from mirrordescent.lab.data import DataError, Source, load
from mirrordescent.lab.data.whole import Whole, load_whole

ALL = torch.ones(N, dtype=torch.bool)
TEXT = "number,label,text\n" + "".join(f"{i * i % 7},{'pqr'[i % 3]},{'ab'[i % 2]}\n" for i in range(N))


def keeping(n: int, *dropped: int) -> Tensor:
    keep = torch.ones(n, dtype=torch.bool)
    keep[list(dropped)] = False
    return keep


def with_labels(whole: Whole, **new: str) -> Tensor:
    """The labels, some of them replaced: s3="cat" makes a cat of sample 3."""
    labels = whole.data.targets.clone()
    for sample, name in new.items():
        labels[int(sample[1:])] = whole.data.class_names.index(name)
    return labels


def cleaned(path: Path, out: Path, *dropped: int, label: str | None = None, **new: str) -> Whole:
    """The copy without some samples and with some new labels, read again."""
    whole = load_whole(Source(str(path), label))
    assert whole.write(out, keeping(len(whole.data), *dropped), with_labels(whole, **new))[0].is_relative_to(out)
    return load_whole(Source(str(out), label))


def given_labels(whole: Whole) -> list[str]:
    return [whole.data.class_names[c] for c in whole.data.targets.tolist()]


# --- text tables ---


def text(draw: st.DrawFn, cells: list[list[str]], mark: str) -> str:
    """Cells as text, each quoted or not as csv allows, with spaces before them, blank lines and any line ends."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = []
    for row in cells:
        parts = []
        for cell in row:
            plain = not set(cell) & {mark, "\n", "\r"} and not cell.lstrip(" ").startswith('"')
            quoted = '"' + cell.replace('"', '""') + '"'
            parts.append(" " * draw(st.integers(0, 1)) + (cell if plain and draw(st.booleans()) else quoted))
        lines.append(mark.join(parts) + end + draw(st.sampled_from(["", "", end])))
    whole = "".join(lines)
    return whole.removesuffix(end) if draw(st.booleans()) else whole


CELL = st.text("ab ,;\t\"é\n\r'", max_size=4) | st.sampled_from(["1.50", "01", "", "NA", "x"])
# several ways to write one class
WAYS = {"yes": ["yes", "yes ", " yes"], "1": ["1", "01", "1.0"], 'n,"o;': ['n,"o;'], "é\tè": ["é\tè"]}


@st.composite
def text_tables(draw: st.DrawFn) -> tuple[str, bytes, int, list[str]]:
    n, mark = draw(st.integers(3, 12)), draw(st.sampled_from([",", ";", "\t"]))
    classes = ["yes", "1", *draw(st.lists(st.sampled_from(list(WAYS)), min_size=n - 2, max_size=n - 2))]
    columns = draw(st.lists(st.lists(CELL, min_size=n, max_size=n), max_size=3))
    columns.append([str(i * i + 1) for i in range(n)])  # to learn from, and to know a row by
    at = draw(st.integers(0, len(columns)))
    columns.insert(at, [draw(st.sampled_from(WAYS[name])) for name in classes])
    header = ["label" if i == at else f"c{i}" for i in range(len(columns))]
    content = text(draw, [header, *[list(row) for row in zip(*columns, strict=True)]], mark).encode()
    suffix = ".tsv" if mark == "\t" and draw(st.booleans()) else ".csv"
    return suffix, draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + content, at, classes


@given(text_tables(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_text_table_comes_back(table: tuple[str, bytes, int, list[str]], data: st.DataObject) -> None:
    suffix, content, at, classes = table
    n = len(classes)
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, f"a{suffix}"), Path(folder, f"b{suffix}")
        path.write_bytes(content)
        whole = load_whole(Source(str(path)))
        assert given_labels(whole) == classes
        names = whole.data.class_names
        new = torch.tensor(data.draw(st.lists(st.integers(0, len(names) - 1), min_size=n, max_size=n)))
        labels = torch.where(
            torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))), new, whole.data.targets
        )
        assume(len(set(labels[keep].tolist())) >= 2)
        assert whole.write(out, keep, labels) == [out]
        assert path.read_bytes() == content
        again = load_whole(Source(str(out)))
        assert given_labels(again) == [names[c] for c in labels[keep].tolist()]
        kept = keep.nonzero().flatten().tolist()
        for i, row in enumerate(kept):
            before, after = list(whole.cells(row)), list(again.cells(i))
            if labels[row] == whole.data.targets[row]:
                assert after == before
            assert after[:at] + after[at + 1 :] == before[:at] + before[at + 1 :]
        whole.write(Path(folder, f"same{suffix}"), torch.ones(n, dtype=torch.bool), whole.data.targets)
        assert Path(folder, f"same{suffix}").read_bytes() == content


def test_nothing_but_the_label_changes(tmp_path: Path) -> None:
    rows = [
        b'1.50, "a ""b""" ,01, x\r\n',  # refused: text after a closing quotation mark
        b"1.50,a,01, x\r\n",
        b'"2,\r\n3","",2,\r\n',
        b"\r\n",
        b'004,\xc3\xa9,01,""\r\n',
        b"5,a, 2,y\r\n",
        b"6,b,02,y\r\n",
        b"7,b,02,y",
    ]
    path, head = tmp_path / "a.csv", b"\xef\xbb\xbfn, word,class,rest\r\n"
    path.write_bytes(head + b"".join(rows[1:]))
    cleaned(path, tmp_path / "b.csv", 3, s0="2", s1="1")
    assert (tmp_path / "b.csv").read_bytes() == head + b"".join(
        [b"1.50,a,02, x\r\n", b'"2,\r\n3","",01,\r\n', rows[3], rows[4], rows[6], rows[7]]
    )
    path.write_bytes(head + b"".join(rows))
    with pytest.raises(DataError, match="line 2"):
        load_whole(Source(str(path)))


def test_spellings_stay_as_they_are(tmp_path: Path) -> None:
    """A new label is written as most are, and another spelling of the same class is no change."""
    path, out = tmp_path / "a.csv", tmp_path / "b.csv"
    lines = [f"{i * i},{'Cat' if i < 9 else 'CAT' if i == 9 else 'dog'}" for i in range(12)]
    path.write_text("\n".join(["n,label", *lines]) + "\n")
    assert given_labels(cleaned(path, out, 0, s11="Cat")) == ["Cat"] * 9 + ["dog", "Cat"]
    assert out.read_text().splitlines() == ["n,label", *lines[1:11], "121,Cat"]


def test_rows_without_a_label_stay_as_they_are(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    labels = ["x", None, "y", "x", None, "y", "x", "y"]
    path, out = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text("n,label\n" + "".join(f"{i * i},{label or ''}\n" for i, label in enumerate(labels)))
    parquet.write_table(pyarrow.table({"n": [i * i for i in range(8)], "label": labels}), tmp_path / "a.parquet")
    for one in (path, tmp_path / "a.parquet"):
        whole = load_whole(Source(str(one)))
        assert whole.names == tuple(
            f"{'line' if one == path else 'row'} {i + 1 + (one == path)}" for i in (0, 2, 3, 5, 6, 7)
        )
        assert dict(whole.cells(1)) == {"n": "4", "label": "y"}
        whole.write(out.with_suffix(one.suffix), keeping(6, 0), with_labels(whole, s3="x"))
    assert out.read_text() == "n,label\n1,\n4,y\n9,x\n16,\n25,x\n36,x\n49,y\n"
    copy = parquet.read_table(tmp_path / "b.parquet").to_pydict()
    assert copy == {"n": [1, 4, 9, 16, 25, 36, 49], "label": [None, "y", "x", None, "x", "x", "y"]}


def test_labels_are_written_as_most_are(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('n\ty\n1\t" a"\n2\ta\n3\ta\n4\t"b ""c"""\n5\t"b ""c"""\n6\tb "c"\n')
    again = cleaned(tmp_path / "a.tsv", tmp_path / "b.tsv", s0='b "c"', s3="a")
    assert (tmp_path / "b.tsv").read_text() == 'n\ty\n1\t"b ""c"""\n2\ta\n3\ta\n4\ta\n5\t"b ""c"""\n6\tb "c"\n'
    assert given_labels(again) == ['b "c"', "a", "a", "a", 'b "c"', 'b "c"']


def test_a_chosen_label_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    again = cleaned(tmp_path / "a.csv", tmp_path / "b.csv", 1, label="text", s0="b")
    assert given_labels(again) == ["b", *["a", "b"] * 5]
    assert (tmp_path / "b.csv").read_text().splitlines()[1:3] == ["0,p,b", "4,r,a"]


def test_a_copy_of_what_the_csv_module_writes(tmp_path: Path) -> None:
    words = ["plain", "com,ma", 'quo"te', "new\nline", "", " space", "semi;colon"]
    file = io.StringIO()
    csv.writer(file).writerows([["y", "text", "n"], *[[words[i % 2], words[i % 7], i * i % 5] for i in range(14)]])
    (tmp_path / "a.csv").write_bytes(file.getvalue().encode())
    cleaned(tmp_path / "a.csv", tmp_path / "b.csv", 0, 6, s3="plain", s4="com,ma")
    with (tmp_path / "b.csv").open(newline="") as copy:
        rows = list(csv.reader(copy))[1:]
    expected = [[words[i % 2], words[i % 7], str(i * i % 5)] for i in range(14)]
    expected[3][0], expected[4][0] = "plain", "com,ma"
    assert rows == [row for i, row in enumerate(expected) if i not in (0, 6)]


# --- Parquet ---


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    kinds: dict[str, tuple[Any, list[str]]] = {
        "int8": (pyarrow.array(LABELS.tolist(), pyarrow.int8()), ["0", "1", "2"]),
        "float": (pyarrow.array([float(c) for c in LABELS]), ["0", "1", "2"]),
        "text": (pyarrow.array(["xyz"[c] + " " for c in LABELS]), ["x", "y", "z"]),
        "bool": (pyarrow.array([bool(c) for c in LABELS]), ["False", "True", "True"]),
        "dictionary": (pyarrow.array(["xyz"[c] for c in LABELS]).dictionary_encode(), ["x", "y", "z"]),
    }
    for kind, (column, names) in kinds.items():
        path, out = tmp_path / f"{kind}.parquet", tmp_path / f"{kind} cleaned.parquet"
        content = pyarrow.table(
            {
                "n": pyarrow.array([i * i % 7 for i in range(N)], pyarrow.uint16()),
                "label": column,
                "when": pyarrow.array(range(N), pyarrow.timestamp("ns", "UTC")),
                "lists": [[i, None] for i in range(N)],
                "__index_level_0__": [f"row {i}" for i in range(N)],
            }
        ).replace_schema_metadata({"made by": "a person"})
        parquet.write_table(content, path, compression="zstd", row_group_size=5)
        again = cleaned(path, out, 2, 7, s0=names[1])
        copy = parquet.ParquetFile(out)
        assert copy.schema_arrow.equals(parquet.ParquetFile(path).schema_arrow, check_metadata=True)
        assert copy.metadata.row_group(0).column(0).compression == "ZSTD"
        assert [copy.metadata.row_group(i).num_rows for i in range(copy.num_row_groups)] == [5, 5]
        kept = [i for i in range(N) if i not in (2, 7)]
        table = copy.read()
        assert given_labels(again) == [names[1], *[names[LABELS[i]] for i in kept[1:]]]
        rest = content.drop_columns(["label"]).take(kept)
        assert table.drop_columns(["label"]).equals(rest)
        assert table["label"].to_pylist()[1:] == column.take(pyarrow.array(kept)).to_pylist()[1:]


# --- arrays ---


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
    # of other samples by their names, or of pairs of samples, or of something else
    kept: dict[str, Any] = dict.fromkeys(("val_ids", "Xtest", "testing", "x_valid", "y_dev", "eval"), ids)
    kept |= {"gram": np.ones((N, N)), "names": np.array(["a", "b", "c"]), "scale": np.array(2.0)}
    np.savez(path, x=PIXELS, y=LABELS, **cut, **kept)
    notes = load_whole(Source(str(path))).data.notes
    assert "arrays with an entry per sample that were not used: ids, valid, value, weights" in notes
    cleaned(path, tmp_path / "b.npz", 0, 4)
    stays = keeping(N, 0, 4).numpy()
    with np.load(tmp_path / "b.npz") as copy:
        assert np.array_equal(copy["x"], PIXELS[stays])
        for name, array in cut.items():
            assert np.array_equal(copy[name], array[stays]), name
        for name, array in kept.items():
            assert np.array_equal(copy[name], array), name


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = images(tmp_path / "pets", 2)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = [tmp_path / f".out.{pid}.part" for pid in (int(dead.stdout), os.getppid())]
    others = [tmp_path / f"{name}.{int(dead.stdout)}.part" for name in (".mine", ".out.mine", "out")]
    for part in (*left, *others):
        part.mkdir()
        (part / "file").touch()
    cleaned(folder, tmp_path / "out", 0)
    assert [part.exists() for part in (*left, *others)] == [False, True, True, True, True]


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


# --- folders ---


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder).as_posix()): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


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


# --- what is refused ---


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    table, arrays, folder = tmp_path / "a.csv", tmp_path / "a.npz", images(tmp_path / "pets", 2)
    table.write_text(TEXT)
    np.savez(arrays, x=PIXELS, y=LABELS)
    (tmp_path / "taken.csv").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(folder)
    os.link(table, tmp_path / "t.csv")
    cases = [
        (table, table, "is the original, which stays as it is"),
        (table, tmp_path / "pets" / ".." / "a.csv", "is the original"),
        (table, tmp_path / "taken.csv", "exists already; choose another name"),
        (table, tmp_path / "b.tsv", r"b\.tsv must end in \.csv"),
        (table, tmp_path / "t.csv", "is the original"),
        (arrays, tmp_path / "b.csv", r"must end in \.npz"),
        (Path("digits"), tmp_path / "b", r"must end in \.npz"),
        (folder, folder, "is the original"),
        (folder, folder / "cleaned", "is inside the original"),
        (folder, tmp_path / "link" / "cleaned", "is inside the original"),
        (folder, tmp_path, "exists already"),
        (table, table / "b.csv", "is inside the original"),
        (table, arrays / "b.csv", "cannot be written: "),
    ]
    before = contents(tmp_path)
    for path, out, message in cases:
        test = str(tmp_path / "t.csv") if out.name == "t.csv" else None
        whole = load_whole(Source(str(path), test=test))
        with pytest.raises(DataError, match=message) as caught:
            whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
        assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def everything(tmp_path: Path) -> list[tuple[Whole, str]]:
    """One data set of every kind, and the ending of its copy."""
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    (tmp_path / "a.csv").write_text(TEXT)
    parquet.write_table(pyarrow.table({"n": (LABELS * 2).tolist(), "y": LABELS.tolist()}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    images(tmp_path / "pets", 2)
    found = [(tmp_path / f"a{suffix}", suffix) for suffix in (".csv", ".parquet", ".npz")] + [(tmp_path / "pets", "")]
    return [(load_whole(Source(str(path))), suffix) for path, suffix in [*found, (Path("digits"), ".npz")]]


def refused(whole: Whole, out: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    sets = everything(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for whole, suffix in sets:
        out = tmp_path / "out" / f"b{suffix}"
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))  # a disk with room for 50 bytes
        try:
            refused(whole, out, f"b{suffix} cannot be written: .*[Ff]ile too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(out.parent.iterdir()) == []


def test_a_killed_copy_leaves_nothing_at_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = everything(tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    for whole, suffix in sets:
        out = tmp_path / "out" / f"b{suffix}"
        with pytest.raises(KeyboardInterrupt):
            whole.write(out, torch.ones(len(whole.data), dtype=torch.bool), whole.data.targets)
        assert list(out.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = everything(tmp_path)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    if os.geteuid() == 0:  # whom nothing stops
        locked = Path("/proc/mirrordescent")
    for whole, suffix in sets:
        refused(whole, locked / f"b{suffix}", "cannot be written: ")
    (tmp_path / "locked").chmod(0o755)


def test_an_original_that_has_changed(tmp_path: Path) -> None:
    for whole, suffix in everything(tmp_path)[:3]:
        with (tmp_path / f"a{suffix}").open("ab") as file:
            file.write(b" ")
        refused(whole, tmp_path / f"b{suffix}", "has changed since it was read")
    whole = load_whole(Source(str(tmp_path / "pets")))
    (tmp_path / "pets" / "dog" / "1.png").unlink()
    refused(whole, tmp_path / "out", r"1\.png cannot be read: No such file or directory; start again")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "out"))]


def test_wrong_choices(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT)
    whole = load_whole(Source(str(tmp_path / "a.csv")))
    y, out = whole.data.targets, tmp_path / "b.csv"
    for keep, labels, message in (
        (ALL[1:], y, r"keep must be \(12,\) of torch\.bool, got \(11,\) of torch\.bool"),
        (ALL.long(), y, r"keep must be .* of torch\.int64"),
        (ALL, y.int(), r"labels must be \(12,\) of torch\.int64, got \(12,\) of torch\.int32"),
        (ALL, y + 1, "labels must be classes from 0 to 2, got 3"),
        (ALL, y - 1, "labels must be classes from 0 to 2, got -1"),
        (~ALL, y, r"a\.csv: fewer than two classes would be left \(none\); keep more samples"),
        (y == 0, y, r"fewer than two classes would be left \(only 'p'\)"),
        (ALL, y * 0 + 2, r"fewer than two classes would be left \(only 'r'\)"),
    ):
        with pytest.raises(ValueError, match=message):
            whole.write(out, keep, labels)
    assert not out.exists()


def test_a_copy_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    labels = [str(i) for i in range(150)] * 10
    (tmp_path / "a.csv").write_text("n,y\n" + "".join(f"{i * i % 7},{y}\n" for i, y in enumerate(labels)))
    np.savez(tmp_path / "a.npz", x=np.arange(1500.0)[:, None], y=np.array(labels))
    for suffix in (".csv", ".npz"):
        whole = load_whole(Source(str(tmp_path / f"a{suffix}")))
        with pytest.raises(DataError, match=r"b\..*: 150 different labels for 1,499 samples"):
            whole.write(tmp_path / f"b{suffix}", keeping(1500, 3), whole.data.targets)
    (tmp_path / "a.csv").write_text("n,y\n1,1.5\n2,2.5\n3,word\n4,word\n")
    whole = load_whole(Source(str(tmp_path / "a.csv")))
    with pytest.raises(DataError, match=r"the label 1\.5 is not a whole number"):
        whole.write(tmp_path / "b.csv", keeping(4, 2, 3), whole.data.targets)


def test_a_class_of_one_can_be_kept_relabelled_or_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,y\n1,p\n2,q\n3,p\n4,lonely\n5,q\n")
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "b.csv", s3="p")) == ["p", "q", "p", "p", "q"]
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "c.csv", 3)) == ["p", "q", "p", "q"]
    assert given_labels(cleaned(tmp_path / "a.csv", tmp_path / "d.csv", 0, 1, 2, s4="lonely", s3="q")) == [
        "q",
        "lonely",
    ]
