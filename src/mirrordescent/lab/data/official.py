"""The official data sets on disk: whether they are there and whole, and loading them. `fetch` downloads them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.catalog import OFFICIAL, Official, Stored, known_set
from mirrordescent.lab.files import md5


@dataclass(frozen=True)
class Progress:
    """What is being done, to be shown to the user.

    action: "checking", "downloading" or "writing" (a file, `done` of `total` bytes), "packing" (npm is at work on the
        package `file`), "waiting" (another process fetches the same data set), or "failed" (one way to get the data
        failed, as `detail` says, and the next is tried).
    """

    action: str
    file: str
    done: int = 0
    total: int = 0
    detail: str = ""


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class State:
    """The state of one stored file: "ok", "missing" or "damaged", and what is wrong with it."""

    file: Path
    state: Literal["ok", "missing", "damaged"]
    detail: str = ""


@dataclass(frozen=True)
class Listed:
    """A known data set, and whether it is there: "present", "absent" or "damaged"; size: of the whole set in bytes."""

    name: str
    state: Literal["present", "absent", "damaged"]
    folder: Path
    size: int
    train: int
    test: int
    classes: int
    detail: str = ""


def default_root() -> Path:
    """Where data sets are kept: $MIRRORDESCENT_DATA, or else `mirrordescent` in the user's cache folder."""
    given = os.environ.get("MIRRORDESCENT_DATA")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "mirrordescent"


def folder_of(spec: Official, root: Path | None = None) -> Path:
    """The folder that holds the data set's files."""
    return (default_root() if root is None else root) / spec.name / spec.folder


def command(name: str, root: Path | None = None) -> str:
    """The command that fetches a data set to where it is looked for.

    >>> command("mnist"), command("mnist", Path("my data"))
    ('rmd data fetch mnist', "rmd data fetch mnist --root 'my data'")
    """
    where = "" if root is None or root == default_root() else f" --root {shlex.quote(str(root))}"
    return f"rmd data fetch {name}{where}"


def remedy(name: str, root: Path | None = None) -> str:
    """What to do about a missing or damaged data set."""
    return f"run: {command(name, root)}"


def glance(folder: Path, file: Stored) -> State:
    """The state of a file by its size alone."""
    path = folder / file.name
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return State(path, "missing")
    except OSError as error:
        return State(path, "damaged", f"cannot be read: {error.strerror}")
    if not path.is_file():
        return State(path, "damaged", "not a file")
    if size != file.size:
        return State(path, "damaged", f"{size:,} bytes, expected {file.size:,}")
    return State(path, "ok")


def check(folder: Path, file: Stored, watch: Watch | None = None) -> State:
    """The state of a file by its size and its MD5 sum."""
    state = glance(folder, file)
    if state.state != "ok":
        return state
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if watch is not None:
            watch(Progress("checking", file.name, done, file.size))

    try:
        found = md5(state.file, watch=read)
    except OSError as error:
        return State(state.file, "damaged", f"cannot be read: {error.strerror}")
    if found != file.md5:
        return State(state.file, "damaged", f"MD5 sum {found}, expected {file.md5}")
    return state


def verify(
    name: str, root: Path | None = None, watch: Watch | None = None, known: Mapping[str, Official] = OFFICIAL
) -> list[State]:
    """The state of every file of a data set, by its MD5 sum."""
    spec = known_set(name, known)
    return [check(folder_of(spec, root), file, watch) for file in spec.files]


def available(root: Path | None = None, known: Mapping[str, Official] = OFFICIAL) -> list[Listed]:
    """Every known data set, and whether it is there (by the sizes of its files; `verify` reads the files)."""
    return [_listed(spec, folder_of(spec, root)) for spec in known.values()]


def _listed(spec: Official, folder: Path) -> Listed:
    counts = (spec.size, spec.samples(spec.train), spec.samples(spec.test), len(spec.class_names))
    bad = [state for state in (glance(folder, file) for file in spec.files) if state.state != "ok"]
    if not bad:
        return Listed(spec.name, "present", folder, *counts)
    if len(bad) == len(spec.files) and all(state.state == "missing" for state in bad):
        return Listed(spec.name, "absent", folder, *counts)
    detail = ", ".join(f"{state.file.name}: {state.detail or state.state}" for state in bad)
    return Listed(spec.name, "damaged", folder, *counts, detail)


def load_official(name: str, root: Path | None = None, known: Mapping[str, Official] = OFFICIAL) -> Data:
    """Load a data set as tensors: images uint8 (n, channels, height, width), classes int64 (n,).

    To be quick, it checks only sizes, headers and the range of the labels; `verify` compares MD5 sums.
    Raises DataError for a file that is missing or damaged, with the command that fetches it again.
    """
    spec = known_set(name, known)
    read = partial(_idx_split if spec.layout == "idx" else _rows_split, spec, folder_of(spec, root))
    try:
        inputs, targets = read(spec.train)
        test_inputs, test_targets = read(spec.test)
    except DataError as error:
        raise DataError(f"{error}; {remedy(name, root)}") from error
    return Data(
        name=spec.name,
        inputs=inputs,
        targets=targets,
        test_inputs=test_inputs,
        test_targets=test_targets,
        classes=len(spec.class_names),
        class_names=spec.class_names,
        mean=spec.mean,
        std=spec.std,
        model=spec.model,
        augment=spec.augment,
        black_around=True,
    )


def _idx_split(spec: Official, folder: Path, files: tuple[Stored, ...]) -> tuple[Tensor, Tensor]:
    images, labels = files
    n = spec.samples(files)
    pixels = torch.from_numpy(_idx(folder, images, (n, *spec.shape[1:])))
    targets = _targets(_idx(folder, labels, (n,)), spec, folder / labels.name)
    return pixels.reshape(n, *spec.shape), targets


def _rows_split(spec: Official, folder: Path, files: tuple[Stored, ...]) -> tuple[Tensor, Tensor]:
    batches = [(file, _bytes(folder, file).reshape(-1, spec.row)) for file in files]
    targets = torch.cat([_targets(rows[:, 0], spec, folder / file.name) for file, rows in batches])
    pixels = np.concatenate([rows[:, 1:] for _, rows in batches])
    return torch.from_numpy(pixels).reshape(-1, *spec.shape), targets


def _idx(folder: Path, file: Stored, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    # Two zeros, 8 for bytes, the number of dimensions, and each dimension as four bytes, the highest first.
    header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
    raw = _bytes(folder, file)
    if raw[: len(header)].tobytes() != header:
        raise DataError(f"{folder / file.name} is damaged: its header does not say {' × '.join(map(str, shape))} bytes")
    return raw[len(header) :]


def _bytes(folder: Path, file: Stored) -> npt.NDArray[np.uint8]:
    state = glance(folder, file)
    if state.state == "missing":
        raise DataError(f"{state.file} is missing")
    if state.state == "damaged":
        raise DataError(f"{state.file} is damaged: {state.detail}")
    try:
        return np.fromfile(state.file, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{state.file} cannot be read: {error.strerror}") from error


def _targets(labels: npt.NDArray[np.uint8], spec: Official, path: Path) -> Tensor:
    if labels.max() >= len(spec.class_names):
        raise DataError(f"{path} is damaged: label {labels.max()}, but there are {len(spec.class_names)} classes")
    return torch.from_numpy(labels.astype(np.int64))
