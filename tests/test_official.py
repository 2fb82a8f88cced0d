"""The official data sets as they are kept: what is loaded is what was stored, and what is wrong is named."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.catalog import OFFICIAL, Official, Stored
from mirrordescent.lab.data.official import Progress, available, default_root, folder_of, load_official, verify

Pixels = npt.NDArray[np.uint8]


def stored(name: str, raw: bytes) -> Stored:
    return Stored(name, len(raw), hashlib.md5(raw).hexdigest())


def idx(values: Pixels) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def tiny_idx() -> tuple[Official, dict[str, bytes]]:
    """A data set as MNIST is, of 7 and 5 images of 6 × 6 pixels, and the contents of its files."""
    rng = np.random.default_rng(1)
    contents = {}
    for split, n in (("train", 7), ("t10k", 5)):
        contents[f"{split}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (n, 6, 6), dtype=np.uint8))
        contents[f"{split}-labels-idx1-ubyte"] = idx(rng.integers(0, 10, n, dtype=np.uint8))
    files = tuple(stored(name, raw) for name, raw in contents.items())
    spec = replace(OFFICIAL["mnist"], train=files[:2], test=files[2:], shape=(1, 6, 6), downloads=())
    return spec, contents


def tiny_rows() -> tuple[Official, dict[str, bytes]]:
    """A data set as CIFAR-10 is, of 2 × 4 and 4 images of 3 × 4 × 2 pixels, and the contents of its files."""
    rng = np.random.default_rng(2)
    contents = {}
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        rows = rng.integers(0, 256, (4, 25), dtype=np.uint8)
        rows[:, 0] %= 10
        contents[name] = rows.tobytes()
    files = tuple(stored(name, raw) for name, raw in contents.items())
    cifar = OFFICIAL["cifar10"]
    spec = replace(cifar, train=files[:2], test=files[2:], shape=(3, 4, 2), downloads=(), pickles=())
    return spec, contents


TINY = {"mnist": tiny_idx, "cifar10": tiny_rows}


def kept(spec: Official, contents: dict[str, bytes], root: Path) -> Path:
    """The files of a data set, put where it is kept."""
    folder = folder_of(spec, root)
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in contents.items():
        (folder / name).write_bytes(raw)
    return folder


def test_idx_files_are_loaded_as_they_are(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    kept(spec, contents, tmp_path)
    data = load_official("mnist", tmp_path, {"mnist": spec})
    assert (data.inputs.shape, data.test_inputs.shape) == ((7, 1, 6, 6), (5, 1, 6, 6))
    assert (data.inputs.dtype, data.targets.dtype) == (torch.uint8, torch.int64)
    assert data.inputs.numpy().tobytes() == contents["train-images-idx3-ubyte"][16:]
    assert data.targets.tolist() == list(contents["train-labels-idx1-ubyte"][8:])
    assert data.test_targets.tolist() == list(contents["t10k-labels-idx1-ubyte"][8:])
    assert (data.classes, data.model, data.augment, data.mean) == (10, "cnn", "none", (0.1307,))


def test_rows_are_loaded_as_they_are(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    kept(spec, contents, tmp_path)
    data = load_official("cifar10", tmp_path, {"cifar10": spec})
    assert (data.inputs.shape, data.test_inputs.shape) == ((8, 3, 4, 2), (4, 3, 4, 2))
    rows = np.frombuffer(contents["data_batch_1.bin"] + contents["data_batch_2.bin"], np.uint8).reshape(8, 25)
    assert data.targets.tolist() == rows[:, 0].tolist()
    sample, channel, y, x = 5, 2, 3, 1  # channel by channel, and line by line
    assert int(data.inputs[sample, channel, y, x]) == rows[sample, 1 + channel * 8 + y * 2 + x]
    assert (data.classes, data.model, data.augment, data.class_names[3]) == (10, "resnet18", "crop-flip", "cat")


@pytest.mark.parametrize(("name", "train", "test"), [("mnist", 60000, 10000), ("cifar10", 50000, 10000)])
def test_the_published_numbers_of_samples(name: str, train: int, test: int) -> None:
    spec = OFFICIAL[name]
    assert (spec.samples(spec.train), spec.samples(spec.test), len(spec.class_names)) == (train, test, 10)


def test_published_sums_are_sums_and_no_two_files_share_one() -> None:
    sums = [total for spec in OFFICIAL.values() for total in spec.pickles]
    for spec in OFFICIAL.values():
        sums += [file.md5 for file in spec.files] + [item.md5 for item in spec.downloads]
    assert all(re.fullmatch("[0-9a-f]{32}", total) for total in sums)
    assert len(set(sums)) == len(sums)


@pytest.mark.parametrize("name", TINY)
def test_every_missing_or_cut_file_is_named_with_what_mends_it(name: str, tmp_path: Path) -> None:
    spec, contents = TINY[name]()
    folder = kept(spec, contents, tmp_path)
    for file, raw in contents.items():
        (folder / file).unlink()
        with pytest.raises(DataError, match=rf"{file} is missing; run: rmd data fetch {name} --root {tmp_path}$"):
            load_official(name, tmp_path, {name: spec})
        for wrong in (raw[:-1], raw + b"\0", b""):
            (folder / file).write_bytes(wrong)
            with pytest.raises(
                DataError, match=rf"{file} is damaged: .* bytes, expected .*; run: rmd data fetch {name}"
            ):
                load_official(name, tmp_path, {name: spec})
        (folder / file).unlink()
        (folder / file).mkdir()
        with pytest.raises(DataError, match=f"{file} is damaged: not a file"):
            load_official(name, tmp_path, {name: spec})
        (folder / file).rmdir()
        (folder / file).write_bytes(raw)
    load_official(name, tmp_path, {name: spec})


@given(
    file=st.sampled_from(["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]),
    byte=st.integers(0, 7),
    to=st.integers(0, 255),
)
def test_no_other_header_is_read(file: str, byte: int, to: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("headers")
    spec, contents = tiny_idx()
    changed = bytearray(contents[file])
    same = changed[byte] == to
    changed[byte] = to
    kept(spec, contents | {file: bytes(changed)}, root)
    if same:
        load_official("mnist", root, {"mnist": spec})
    else:
        with pytest.raises(DataError, match=f"{file} is damaged: its header does not say"):
            load_official("mnist", root, {"mnist": spec})


def test_a_label_beyond_the_classes_is_damage(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    raw = bytearray(contents["data_batch_2.bin"])
    raw[25] = 10  # the second sample's
    kept(spec, contents | {"data_batch_2.bin": bytes(raw)}, tmp_path)
    with pytest.raises(DataError, match=r"data_batch_2\.bin is damaged: label 10, but there are 10 classes"):
        load_official("cifar10", tmp_path, {"cifar10": spec})


@pytest.mark.parametrize("name", TINY)
def test_verify_sees_one_changed_byte_where_a_glance_does_not(name: str, tmp_path: Path) -> None:
    spec, contents = TINY[name]()
    known = {name: spec}
    assert [state.state for state in verify(name, tmp_path, known=known)] == ["missing"] * len(contents)
    assert [listed.state for listed in available(tmp_path, known)] == ["absent"]

    folder = kept(spec, contents, tmp_path)
    assert [state.state for state in verify(name, tmp_path, known=known)] == ["ok"] * len(contents)
    (listed,) = available(tmp_path, known)
    assert (listed.state, listed.size, listed.classes) == ("present", sum(map(len, contents.values())), 10)
    assert (listed.train, listed.test) == ((7, 5) if name == "mnist" else (8, 4))

    last = list(contents)[-1]
    changed = bytearray(contents[last])
    changed[-1] ^= 1
    (folder / last).write_bytes(changed)
    states = verify(name, tmp_path, known=known)
    assert [state.state for state in states] == ["ok"] * (len(contents) - 1) + ["damaged"]
    assert states[-1].file == folder / last
    assert spec.files[-1].md5 in states[-1].detail
    assert available(tmp_path, known)[0].state == "present"

    (folder / last).write_bytes(contents[last][:-1])
    assert available(tmp_path, known)[0].state == "damaged"
    (folder / last).unlink()
    assert (available(tmp_path, known)[0].state, available(tmp_path, known)[0].detail) == (
        "damaged",
        f"{last}: missing",
    )


def test_verify_tells_how_far_it_is(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    kept(spec, contents, tmp_path)
    heard: list[Progress] = []
    verify("mnist", tmp_path, heard.append, {"mnist": spec})
    assert [(step.file, step.done) for step in heard] == [(name, len(raw)) for name, raw in contents.items()]


def test_what_mends_the_default_root_needs_no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(tmp_path))
    for root in (None, tmp_path):
        with pytest.raises(DataError, match=r"run: rmd data fetch mnist$"):
            load_official("mnist", root)


def test_where_data_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(tmp_path / "mine"))
    assert default_root() == tmp_path / "mine"
    monkeypatch.delenv("MIRRORDESCENT_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root() == tmp_path / "cache" / "mirrordescent"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache" / "mirrordescent"


def test_an_unknown_name_has_a_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown data set 'cifar-10' \(did you mean 'cifar10'"):
        load_official("cifar-10", tmp_path)
