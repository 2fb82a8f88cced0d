"""Arrays: every usual shape and naming gives the same data; anything else gives one clear line."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mirrordescent.lab.data import Data, DataError, Scaling
from mirrordescent.lab.data.arrays import channel_statistics, prepare_arrays

N = 12
VECTORS = np.random.default_rng(0).normal(5, 3, (N, 4))
PIXELS = np.random.default_rng(1).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
LABELS = np.arange(N) % 3


def load(folder: Path, **arrays: Any) -> Data:
    np.savez(folder / "a.npz", **arrays)
    return prepare_arrays(folder / "a.npz").data


@pytest.mark.parametrize(
    "names",
    [("x", "y"), ("X", "Y"), ("inputs", "targets"), ("images", "labels"), ("x_train", "y_train"), ("data", "y")],
)
def test_any_usual_names(names: tuple[str, str], tmp_path: Path) -> None:
    data = load(tmp_path, **dict(zip(names, (VECTORS, LABELS), strict=True)))
    assert data.digest == load(tmp_path, x=VECTORS, y=LABELS).digest
    assert data.notes[0] == f"inputs: {names[0]}; labels: {names[1]}"
    assert (data.model, data.mean) == ("mlp", None)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int16])
def test_every_layout_of_images_is_the_same(dtype: type, tmp_path: Path) -> None:
    first = load(tmp_path, x=PIXELS.astype(dtype), y=LABELS)
    last = load(tmp_path, x=np.moveaxis(PIXELS, 1, 3).astype(dtype), y=LABELS)
    assert first.digest == last.digest
    assert first.shape == (3, 8, 8)
    assert first.model == "cnn"
    grey = load(tmp_path, x=PIXELS[:, 0].astype(dtype), y=LABELS)
    assert grey.digest == load(tmp_path, x=PIXELS[:, :1].astype(dtype), y=LABELS).digest
    seen = Scaling(first, torch.device("cpu"))(first.inputs).double()
    assert float(seen.mean(dim=(0, 2, 3)).abs().max()) < 1e-5
    assert float((seen.std(dim=(0, 2, 3), correction=0) - 1).abs().max()) < 1e-5


@given(st.permutations(range(4)), st.sampled_from([(3, 9, 9), (3, 5, 9), (1, 7, 7), (4, 6, 3)]))
@settings(max_examples=20, deadline=None)
def test_statistics_do_not_depend_on_the_chunks(order: list[int], shape: tuple[int, ...]) -> None:
    images = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    whole = torch.tensor(channel_statistics(images))
    torch.testing.assert_close(torch.tensor(channel_statistics(images[order], chunk=3)), whole)
    torch.testing.assert_close(whole[1], images.transpose(0, 1).flatten(1).std(dim=1, correction=0))


def test_the_split_is_complete_and_recoverable(tmp_path: Path) -> None:
    x = np.arange(N, dtype=np.float64)[:, None]
    np.savez(tmp_path / "a.npz", x=x, y=LABELS)
    prepared = prepare_arrays(tmp_path / "a.npz", test_share=0.25, split_seed=3)
    data = prepared.data
    assert (len(data), len(data.test_inputs)) == (9, 3)
    assert data.targets.tolist() == LABELS[prepared.rows.numpy()].tolist()
    units = torch.cat([data.inputs, data.test_inputs]).flatten()
    assert len(set(units.tolist())) == N
    assert torch.equal(prepare_arrays(tmp_path / "a.npz", test_share=0.25, split_seed=3).rows, prepared.rows)
    assert not torch.equal(prepare_arrays(tmp_path / "a.npz", test_share=0.25, split_seed=4).rows, prepared.rows)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (LABELS * 50 - 7, ("-7", "43", "93")),
        (LABELS.astype(np.float32), ("0", "1", "2")),
        (LABELS[:, None], ("0", "1", "2")),
        (np.array(["b", "a", "c"])[LABELS], ("a", "b", "c")),
        (np.array([b"b", b"a", b"c"])[LABELS], ("a", "b", "c")),
        (LABELS > 0, ("False", "True")),
    ],
)
def test_labels_of_any_values(labels: NDArray[Any], names: tuple[str, ...], tmp_path: Path) -> None:
    data = load(tmp_path, x=VECTORS, y=labels)
    assert data.class_names == names
    assert data.classes == len(names)


def test_a_test_set_in_the_file_or_beside_it(tmp_path: Path) -> None:
    inside = load(tmp_path, x=PIXELS, y=LABELS, x_test=PIXELS[:5], y_test=LABELS[:5], val_x=PIXELS)
    assert "test set: x_test of a.npz, 5 samples" in inside.notes
    assert "arrays that were not used: val_x" in inside.notes
    np.savez(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    for names in (("x", "y"), ("test_x", "test_y")):
        np.savez(tmp_path / "t.npz", **dict(zip(names, (PIXELS[:5], LABELS[:5]), strict=True)))  # type: ignore[arg-type]
        beside = prepare_arrays(tmp_path / "a.npz", tmp_path / "t.npz").data
        assert beside.digest == inside.digest
    np.savez(tmp_path / "t.npz", x=PIXELS[:, :, :4], y=LABELS)
    with pytest.raises(DataError, match=r"t\.npz, array 'x': samples of shape \(3, 4, 8\), but .* have \(3, 8, 8\)"):
        prepare_arrays(tmp_path / "a.npz", tmp_path / "t.npz")
    np.savez(tmp_path / "t.npz", x=PIXELS, y=LABELS + 1)
    with pytest.raises(DataError, match="array 'y', sample 2: the label '3' does not occur in the training set"):
        prepare_arrays(tmp_path / "a.npz", tmp_path / "t.npz")


@pytest.mark.parametrize("x", [VECTORS, PIXELS])
def test_samples_that_contradict_each_other_are_counted(x: NDArray[Any], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=LABELS)
    assert not any("same inputs" in note for note in prepare_arrays(path, whole=True).data.notes)
    np.savez(
        path, x=x[[*range(N), 0, 0, 1]], y=[*LABELS, 1, 1, 1]
    )  # as samples 0, 0 and 1, which are of classes 0 and 1
    notes = prepare_arrays(path, whole=True).data.notes
    assert "samples with the same inputs as others that have another label: 3" in notes
    assert "samples with the same inputs and the same label as an earlier one: 2" in notes


def broken(at: int, value: float) -> NDArray[np.float64]:
    x = VECTORS.copy()
    x[at, 2] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": VECTORS}, "has 'x', but no labels for it; it holds x"),
        ({"y": LABELS}, "has 'y', but no inputs for it"),
        ({"a": VECTORS, "b": LABELS}, r"no inputs and labels; call them x and y \(it holds a, b\)"),
        ({}, "it holds nothing"),
        ({"x": VECTORS, "X": VECTORS, "y": LABELS}, "both 'x' and 'X' could be meant"),
        ({"x": VECTORS, "y": LABELS[1:]}, "12 samples in 'x', but 11 labels in 'y'"),
        ({"x": VECTORS[0], "y": LABELS[:4]}, r"array 'x': shape \(4,\); it must be \(n, d\)"),
        ({"x": VECTORS[:0], "y": LABELS[:0]}, r"shape \(0, 4\).*not empty"),
        ({"x": VECTORS, "y": np.eye(3)[LABELS]}, r"labels must be a vector, but have shape \(12, 3\)"),
        ({"x": VECTORS, "y": LABELS * 1j}, "labels must be whole numbers or text, not complex128"),
        ({"x": VECTORS, "y": LABELS + 0.5}, "array 'y', sample 0: the label 0.5 is not a whole number"),
        (
            {"x": VECTORS, "y": np.where(LABELS == 1, np.nan, 0)},
            r"sample 1, sample 4.* the label is missing \(4 of 12\)",
        ),
        ({"x": VECTORS, "y": LABELS * 0}, "array 'y': only one class, '0'"),
        ({"x": VECTORS.astype(str), "y": LABELS}, "inputs must be numbers, not <U"),
        ({"x": broken(3, np.nan), "y": LABELS}, r"array 'x', sample 3: holds nan \(1 such samples\)"),
        ({"x": broken(5, -np.inf), "y": LABELS}, "array 'x', sample 5: holds -inf"),
        ({"x": broken(5, 1e300), "y": LABELS}, "numbers that float32 can hold"),
        ({"x": broken(5, np.inf).astype(np.float16), "y": LABELS}, "array 'x', sample 5: holds inf"),
        ({"x": VECTORS * 0, "y": LABELS}, "every feature is constant"),
        ({"x": np.zeros((N, 5, 6, 7)), "y": LABELS}, "cannot tell which axis holds the channels"),
        ({"x": np.array([{}] * N), "y": LABELS}, "array 'x': holds Python objects"),
    ],
)
def test_what_is_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, **arrays)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "a.npz") in str(caught.value)


def member(header: bytes) -> bytes:
    """An array file with this header, and nothing behind it."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        b"\x93NUMPY\x01\x00",
        member(b"garbage("),
        member(b"[" * 5000),
        *(
            member(f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}".encode())
            for descr, shape in (
                ("<f8", "(1000000000000, 5)"),
                ("<f8", "(99999999999999999999, 5)"),
                ("<f8", "(True, 5)"),
                ("<f8", "(-2, 5)"),
                ("<U500000000", "(500,)"),
            )
        ),
    ],
    ids=lambda content: str(content)[:80],
)
@pytest.mark.parametrize("name", ["x.npy", "x"])
def test_whatever_a_member_holds_is_read_or_told_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(name, content)
    with pytest.raises(
        DataError, match=r"a\.npz, array 'x': (is damaged|is no array|does not fit into memory)"
    ) as told:
        prepare_arrays(path)
    assert "\n" not in str(told.value)


# a byte of each member's two headers: encrypted, compressed in an unknown way, made for a later version of zip
@pytest.mark.parametrize(("at", "value"), [(2, 1), (4, 77), (0, 99)])
def test_a_member_that_zipfile_does_not_take(at: int, value: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=VECTORS, y=LABELS)
    content = bytearray(path.read_bytes())
    for mark, skip in ((b"PK\x03\x04", 4), (b"PK\x01\x02", 6)):
        content[content.index(mark) + skip + at] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz(, array 'x': is damaged| cannot be read as)") as told:
        prepare_arrays(path)
    assert "\n" not in str(told.value)


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match=r"a\.npz cannot be read as \.npz \(it is not one\); write it anew"):
        prepare_arrays(path)
    np.savez_compressed(path, x=VECTORS, y=LABELS)
    whole = path.read_bytes()
    for content in (b"", b"no zip", whole[: len(whole) // 2], whole[:120] + b"\xff" * 40 + whole[160:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.npz(, array 'x')?:? (cannot be read as \.npz|is damaged)"):
            prepare_arrays(path)
    with path.open("wb") as file:
        np.save(file, VECTORS)
    with pytest.raises(DataError, match=r"is a single array; save inputs and labels with numpy\.savez"):
        prepare_arrays(path)
