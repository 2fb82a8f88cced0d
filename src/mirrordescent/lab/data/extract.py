"""Reads copies of a data set that others made: plain files, compressed files and archives, none of them trusted.

Nothing is ever unpacked under the name it has in an archive: the wanted members are read as streams of bytes, and the
caller decides where they go. A file that cannot be read raises a DataError that names it.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from mirrordescent.lab.data.base import DataError

CHUNK = 1 << 20
ARCHIVES = (".tar.gz", ".tgz")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file into a DataError that names it."""
    try:
        yield
    except DataError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is cut short or damaged ({error})") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def blocks(path: Path, compressed: bool = False) -> Iterator[bytes]:
    """A file's contents piece by piece, decompressed where asked for."""
    with reading(path), gzip.open(path) if compressed else path.open("rb") as file:
        yield from _pieces(file)


def members(archive: Path, wanted: Collection[str], most: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The members of a .tar.gz whose last name is wanted, as (name, contents), in the order of the archive.

    The contents must be read before the next member is asked for. Raises DataError for a link, an absolute path or a
    path through ".." under a wanted name, and for an archive that unpacks to more than `most` bytes, however small it
    is. Members that are not wanted are skipped.
    """
    with (
        reading(archive),
        gzip.open(archive) as stream,
        tarfile.open(fileobj=_Bounded(stream, most, archive), mode="r|", bufsize=CHUNK) as tar,
    ):
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in wanted:
                _refuse_tricks(archive, member)
                file = tar.extractfile(member)
                assert file is not None  # None only for links and folders, which were refused
                yield name, _member(archive, file)


def whole(pieces: Iterable[bytes], most: int, what: str) -> bytes:
    """All pieces joined; DataError if they have more than `most` bytes."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) > most:
            raise DataError(f"{what} has more than the {most:,} bytes expected")
    return bytes(found)


def _pieces(file: _Readable) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece


def _member(archive: Path, file: _Readable) -> Iterator[bytes]:
    with reading(archive):
        yield from _pieces(file)


def _refuse_tricks(archive: Path, member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive} is refused: its member {member.name!r} points outside the archive")
    if not member.isreg():
        raise DataError(f"{archive} is refused: its member {member.name!r} is not a plain file but a link or the like")


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """The next bytes, at most `size`."""
        ...


class _Bounded(io.RawIOBase):
    """A stream that raises DataError beyond `most` bytes."""

    def __init__(self, stream: _Readable, most: int, archive: Path) -> None:
        self.stream, self.most, self.left, self.archive = stream, most, most, archive

    def readable(self) -> bool:
        """Always true."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer as far as there are bytes left."""
        block = self.stream.read(min(len(buffer), self.left + 1))
        self.left -= len(block)
        if self.left < 0:
            raise DataError(f"{self.archive} is refused: it unpacks to more than {self.most:,} bytes")
        buffer[: len(block)] = block
        return len(block)
