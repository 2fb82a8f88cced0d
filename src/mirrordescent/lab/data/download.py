"""Downloads a file of known size and MD5 sum, and goes on where an earlier attempt was cut off."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.catalog import Download
from mirrordescent.lab.data.official import Progress, Watch
from mirrordescent.lab.files import md5

ATTEMPTS = 5
TIMEOUT = 20.0  # seconds without a byte
BLOCK = 1 << 16
NETWORK_ERRORS = (OSError, http.client.HTTPException)  # no route, no answer, cut off, not HTTP


def download(item: Download, part: Path, watch: Watch, timeout: float = TIMEOUT) -> None:
    """Download the whole file to `part`, from the first address that serves it with the right MD5 sum.

    What `part` already holds is not downloaded again if the server can send the rest. If every address fails, DataError
    gives the reason for each, and `part` is kept for the next time. An OSError means that `part` cannot be written.
    """
    reasons = []
    for url in item.urls:
        try:
            return _from_address(url, item, part, watch, timeout)
        except _FailedError as error:
            reasons.append(f"{urlsplit(url).netloc}: {error}")
    raise DataError("; ".join(reasons))


class _FailedError(Exception):
    """Why an address, or one attempt at it, did not give the file."""


def _from_address(url: str, item: Download, part: Path, watch: Watch, timeout: float) -> None:
    """Try one address, up to ATTEMPTS times, as long as each attempt brings more of the file."""
    failed = None
    for _ in range(ATTEMPTS):
        before = _size(part)
        if before < item.size:
            try:
                _go_on(url, item, part, watch, timeout)
                failed = _FailedError(f"cut off after {_size(part):,} of {item.size:,} bytes")
            except _FailedError as error:
                failed = error
        if _size(part) >= item.size:
            if _size(part) == item.size and md5(part) == item.md5:
                return
            part.unlink()
            failed = _FailedError(f"{item.name} does not have the official size and MD5 sum")
            if before == 0:  # all of it came from this server, which would send the same again
                raise failed
        elif _size(part) == before and failed is not None:
            raise failed
    raise _FailedError(f"{failed}, after {ATTEMPTS} attempts")


def _go_on(url: str, item: Download, part: Path, watch: Watch, timeout: float) -> None:
    """Ask for the missing bytes and append them, or start over if the server sends the whole file."""
    start = _size(part)
    headers = {"User-Agent": "mirrordescent"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=timeout)  # noqa: S310 (addresses of the catalogue)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink()  # so that the next attempt starts at the beginning
        raise _FailedError(f"{error.code} {error.reason}") from error
    except NETWORK_ERRORS as error:
        raise _FailedError(_words(error)) from error
    with response:
        start = _start(response, start, item)
        with part.open("ab" if start else "wb") as file:
            for block in _blocks(response):
                file.write(block)
                start += len(block)
                watch(Progress("downloading", item.name, min(start, item.size), item.size))
                if start > item.size:
                    return


def _start(response: http.client.HTTPResponse, asked: int, item: Download) -> int:
    """Where in the file the answer begins; refuses an answer whose size or range is not the official file's."""
    sent = response.headers.get("Content-Length")
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        if response.headers.get("Content-Range") != f"bytes {asked}-{item.size - 1}/{item.size}":
            raise _FailedError(
                f"sends {response.headers.get('Content-Range')}, but was asked for bytes {asked}- of {item.size}"
            )
        return asked
    if sent is not None and sent != str(item.size):
        raise _FailedError(f"sends {sent} bytes, but the official {item.name} has {item.size}")
    return 0


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            block = response.read1(BLOCK)
        except NETWORK_ERRORS as error:
            raise _FailedError(_words(error)) from error
        if not block:
            return
        yield block


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return " ".join(str(getattr(reason, "strerror", None) or reason or type(reason).__name__).split())
