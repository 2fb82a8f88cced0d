"""Writing files so that each is there whole or not at all, and what goes with it: checks, clearing up, MD5 sums."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into; it takes its place at `path` when the block ends without an error, else nothing is left.

    A reader, also after this process was killed, finds the old file or the new one, never a part.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "a"
    >>> with written(path) as file:
    ...     _ = file.write(b"whole")
    >>> path.read_bytes(), len(list(path.parent.iterdir()))
    (b'whole', 1)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_path(path)
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # errors while writing do not name the file
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def part_path(path: Path) -> Path:
    """Where this process writes what will be moved to `path`; `remove_parts` knows such names."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def check_writable(path: Path) -> None:
    """Raise OSError where nothing can be written to `path` (it need not exist): fail before the work, not after it."""
    folder = path if path.is_dir() else path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def remove_parts(folder: Path, of: str | None = None) -> None:
    """Remove what killed processes have left half written, of one name or of all; not what live ones are writing."""
    name = re.compile(rf"\.{'.*' if of is None else re.escape(of)}\.(\d+)\.part")
    for part in folder.glob(".*.part"):
        found = name.fullmatch(part.name)
        if found and int(found[1]) != os.getpid() and not _runs(int(found[1])):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Whether a process with this id exists; no where that cannot be asked."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with written(path) as file:
        file.write(text.encode("utf-8"))


def md5(path: Path, watch: Callable[[int], None] | None = None) -> str:
    """The MD5 sum of a file; `watch` hears, block by block, how many bytes were read."""
    total = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
            if watch is not None:
                watch(len(block))
    return total.hexdigest()
