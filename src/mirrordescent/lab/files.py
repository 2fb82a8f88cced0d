"""Files that are there whole or not at all."""

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
    """A file to write into; it takes its place at `path` when the block ends well, and leaves nothing when it does not.

    A reader, or a process that comes after a kill, sees the old file or the new one, never a part.

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
        if error.filename is None and error.errno is not None:  # what fails while it is written has no name yet
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def part_path(path: Path) -> Path:
    """Where this process writes what is to take its place at `path`; `remove_parts` knows such names."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def check_writable(path: Path) -> None:
    """OSError where nothing can be written to `path`, which need not be there: told before the work, not after it."""
    folder = path if path.is_dir() else path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def remove_parts(folder: Path, of: str | None = None) -> None:
    """What processes left there that were killed while they wrote, of one name or of all; not what others write now."""
    name = re.compile(rf"\.{'.*' if of is None else re.escape(of)}\.(\d+)\.part")
    for part in folder.glob(".*.part"):
        found = name.fullmatch(part.name)
        if found and int(found[1]) != os.getpid() and not _runs(int(found[1])):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def _runs(pid: int) -> bool:
    """Whether there is such a process; where one cannot ask, no."""
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
    """The MD5 sum of a file; `watch` hears how many bytes were read since it was last called."""
    total = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
            if watch is not None:
                watch(len(block))
    return total.hexdigest()
