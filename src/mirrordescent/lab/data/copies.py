"""Finds the files of an official data set in a folder, an archive or a single file, in any published form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import prod
from pathlib import Path

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.catalog import Official, Stored
from mirrordescent.lab.data.extract import ARCHIVES, blocks, members, whole
from mirrordescent.lab.data.formats import labels_of_json, rows_of_pickle, rows_of_picture

# What an archive may hold besides the data set, in bytes, before it is taken for a bomb.
SLACK = 1 << 26
# What a pickle or a picture may have besides its samples, in bytes.
OVERHEAD = 1 << 12
# As the npm package spells them.
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"


@dataclass(frozen=True)
class Copy:
    """A copy of a stored file: where it is, and its contents, which are not checked yet."""

    file: Stored
    where: str
    blocks: Iterator[bytes]


def places(spec: Official, source: Path) -> Iterator[Path]:
    """Where below `source` a data set may be: the folder itself, the folders others keep it in, and archives there."""
    if not source.is_dir():
        yield source
        return
    folders = [source, *(source / name for name in spec.elsewhere)]
    folders = [folder for folder in folders if folder.is_dir()]
    yield from folders
    packed = [item.name for item in spec.downloads if item.name.endswith(ARCHIVES)]
    packed += ["cifar-10-python.tar.gz"] if spec.pickles else []
    packages = f"{spec.package.partition('@')[0]}-*.tgz" if spec.package else ""
    for folder in folders:
        yield from (folder / name for name in packed if (folder / name).is_file())
        yield from sorted(folder.glob(packages)) if packages else ()


def copies(spec: Official, place: Path, missing: Collection[Stored]) -> Iterator[Copy]:
    """The copies of missing files at a place, in whatever form it has them; read one before asking for the next.

    The same file may come more than once. Damaged contents raise DataError only when they are read.
    """
    forms = _forms(spec, missing)
    labels = cache(partial(_labels, spec, place))
    for name, contents in _each(place, forms, _most(spec)):
        where = str(place) if place.is_file() and not place.name.endswith(ARCHIVES) else f"{place}/{name}"
        yield Copy(forms[name], where, _read(spec, name, contents, where, labels))


def _most(spec: Official) -> int:
    return 2 * spec.size + SLACK


def _forms(spec: Official, missing: Collection[Stored]) -> dict[str, Stored]:
    """The names under which copies of the files may be found, and the file that each becomes; plainest form first."""
    forms: dict[str, Stored] = {}
    for file in missing:
        forms[file.name] = file
        if spec.layout == "idx":
            dotted = file.name.replace("-idx", ".idx")  # as some unpackers call them
            forms |= {f"{file.name}.gz": file, dotted: file, f"{dotted}.gz": file}
        else:
            batch = file.name.removesuffix(".bin")
            forms |= {batch: file, f"{batch}.png": file} if spec.pickles else {f"{batch}.png": file}
    return forms


def _each(place: Path, names: Collection[str], most: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The files with these names at a place, as (name, contents); a folder's in the order of the names."""
    own = place.name.removesuffix(".part")  # a download keeps that ending until it has been read
    if place.is_dir():
        for name in names:
            if (place / name).is_file():
                yield name, blocks(place / name, name.endswith(".gz"))
    elif own.endswith(ARCHIVES):
        yield from members(place, names, most)
    elif own in names:
        yield own, blocks(place, own.endswith(".gz"))


def _read(
    spec: Official, name: str, contents: Iterator[bytes], where: str, labels: Callable[[str], list[int]]
) -> Iterator[bytes]:
    """The contents, converted to the form in which they are stored."""
    batches = [file.name.removesuffix(".bin") for file in spec.files]
    number = batches.index(name.removesuffix(".png")) if name.removesuffix(".png") in batches else None
    if spec.layout == "idx" or number is None:
        yield from contents
        return
    raw = whole(contents, 2 * spec.files[number].size + OVERHEAD, where)
    if name.endswith(".png"):
        # The package keeps labels apart from the pictures, with one list for all training batches.
        training = number < len(spec.train)
        start = spec.samples(spec.files[:number] if training else spec.files[len(spec.train) : number])
        some = labels(TRAIN_LABELS if training else TEST_LABELS)[start : start + spec.samples((spec.files[number],))]
        yield rows_of_picture(raw, some, spec.shape, where)
    else:
        yield rows_of_pickle(raw, spec.pickles[number], prod(spec.shape), where)


def _labels(spec: Official, place: Path, name: str) -> list[int]:
    for _, contents in _each(place, {name}, _most(spec)):
        what = f"{place}/{name}"
        return labels_of_json(whole(contents, SLACK, what), what)
    raise DataError(f"{place} has no {name}")
