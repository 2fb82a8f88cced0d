"""Loads any data set by its name or its path: `Source` says which one, `load` reads it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.catalog import OFFICIAL
from mirrordescent.lab.data.jsonlines import ENDINGS
from mirrordescent.lab.data.labels import loosely
from mirrordescent.lab.data.split import FEW, count_known
from mirrordescent.lab.names import listed, unknown

if TYPE_CHECKING:
    from mirrordescent.lab.data.arrays import PreparedArrays
    from mirrordescent.lab.data.imagefolder import PreparedFolder
    from mirrordescent.lab.data.tables import PreparedTable

BUILTIN = ("digits", "regression")
KNOWN = ("digits", *OFFICIAL, "regression")
TABLES = (".csv", ".tsv", *ENDINGS, ".parquet")
ARRAYS = (".npz",)
MANY = 30  # classes; if there are more and all are numbers, they may be a quantity


@dataclass(frozen=True)
class Source:
    """Where data come from.

    data: a known name, or a path: a table (.csv, .tsv, .jsonl, .parquet), arrays (.npz), or a folder of images with one
        sub-folder per class. A known name wins over a path: write ./digits for a folder called digits.
    label: a table's label column; without it, the column called label, target, class or y.
    test: path of a separate test set, in the same format.
    test_share: if there is none, the share of the samples to set aside as one, in (0, 1), class by class.
    split_seed: decides which samples these are.
    without: columns of a table that are not to become inputs, separated by commas.
    """

    data: str
    label: str | None = None
    test: str | None = None
    test_share: float = 0.2
    split_seed: int = 0
    without: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share must be in (0, 1), got {self.test_share}")
        own = (self.label, self.without, self.test, self.test_share, self.split_seed)
        if self.data in KNOWN and own != (None, None, None, 0.2, 0):
            told = "label, without, test, test_share and split_seed are for data of your own"
            raise ValueError(f"{told}; {self.data!r} has its own test set")


def load(spec: Source, root: Path | None = None) -> Data:
    """Load the data set that a source names.

    root: where official downloads are kept; `official.default_root()` if None.
    Raises ValueError for what is neither a known name nor a path, DataError for data that are missing, damaged or not
    of a kind that can be trained on.

    >>> from mirrordescent.lab.data.datasets import Source, load
    >>> data = load(Source("regression"))
    >>> len(data), data.shape
    (100, (400,))
    """
    if spec.data not in KNOWN:
        return prepare(spec).data
    data = _known(spec.data, root)
    if not Path(spec.data).exists():
        return data
    told = f"this is the known data set {spec.data}; for the file or folder of that name write ./{spec.data}"
    return replace(data, notes=(*data.notes, told))


def expanded(path: str) -> Path:
    """The path with ~ replaced by the home folder; unchanged if there is no such user."""
    return Path(os.path.expanduser(path))


def check_apart(data: str, **folders: Path | None) -> None:
    """Raises ValueError if a folder for results is inside a folder of images, where it would look like a class.

    folders: by the name of the option that gives them.
    """
    if not data.strip():  # such as an unset shell variable; as a path it would be the current folder
        raise ValueError(f"data must be a name or a path, got {data!r}")
    home = expanded(data)
    if data in KNOWN or not home.is_dir():
        return
    for option, folder in folders.items():
        if folder is not None and folder.resolve().is_relative_to(home.resolve()):
            raise ValueError(f"{folder} is inside the data {home}; choose a place outside of them with --{option}")


def _known(name: str, root: Path | None) -> Data:
    if name in BUILTIN:
        from mirrordescent.lab.data import builtin

        return builtin.digits() if name == "digits" else builtin.regression()
    from mirrordescent.lab.data.official import default_root, load_official

    return load_official(name, default_root() if root is None else root)


def prepare(spec: Source, whole: bool = False) -> PreparedTable | PreparedArrays | PreparedFolder:
    """Load a user's data from a path, with the way back from samples to rows or files.

    whole: without a separate test set, train on every sample (see `divided`).
    Raises what `load` raises.
    """
    made = _prepare(spec, whole=whole)
    data = made.data
    known = count_known(data.inputs, data.test_inputs) if made.held_out else 0
    told = [f"test samples with the same inputs as a training sample: {known:,} of {len(data.test_inputs):,}"]
    notes = (*data.notes, *_doubts(data.class_names), *(told if known >= FEW * len(data.test_inputs) else []))
    return replace(made, data=replace(data, notes=notes))


def _doubts(class_names: Sequence[str]) -> Iterator[str]:
    """Notes on classes that may be a mistake."""
    names: dict[str, list[str]] = {}
    for name in class_names:
        names.setdefault(loosely(name), []).append(repr(name))
    twins = [" and ".join(alike) for alike in names.values() if len(alike) > 1]
    if twins:
        yield f"classes whose names differ in case or spaces alone: {listed(twins)}; if they are one, write them alike"
    if len(class_names) > MANY and all(name.lstrip("-").isdigit() for name in class_names):
        yield f"{len(class_names)} classes that are all numbers; if the label is a quantity, put it into bins"


def _prepare(spec: Source, *, whole: bool) -> PreparedTable | PreparedArrays | PreparedFolder:
    path = expanded(spec.data)
    if not path.exists():
        missing = f"there is no file or folder {str(path)!r}"
        if path.suffix or len(path.parts) > 1:
            raise ValueError(missing)
        raise ValueError(f"{unknown('data set', spec.data, KNOWN)}; and {missing}")
    test = None if spec.test is None else _test_path(spec.test, path)
    kind = _kind(path)
    if kind == "table":
        from mirrordescent.lab.data.tables import prepare_table

        return prepare_table(
            path, spec.label, test, spec.test_share, spec.split_seed, whole=whole, without=spec.without
        )
    for option, given in (("label", spec.label), ("without", spec.without)):
        if given is not None:
            raise ValueError(f"--{option} is for tables ({', '.join(TABLES)}), and {path} is not one; leave it out")
    if kind == "arrays":
        from mirrordescent.lab.data.arrays import prepare_arrays

        return prepare_arrays(path, test, spec.test_share, spec.split_seed, whole=whole)
    from mirrordescent.lab.data.imagefolder import prepare_folder

    return prepare_folder(path, test, spec.test_share, spec.split_seed, whole=whole)


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return "table"
    if suffix in ARRAYS:
        return "arrays"
    raise DataError(
        f"{path}: a file that ends in {suffix or 'nothing'!r} is of no known kind; give a table "
        f"({', '.join(TABLES)}), arrays ({', '.join(ARRAYS)}) or a folder of images"
    )


def _test_path(test: str, path: Path) -> Path:
    found = expanded(test)
    if not found.exists():
        raise DataError(f"the test set {str(found.absolute())!r} does not exist; correct the path or leave test out")
    if _kind(found) != _kind(path):
        raise DataError(
            f"the test set {found} must be of the same kind as {path} ({_kind(path)}), but is {_kind(found)}"
        )
    if found.resolve() == path.resolve():
        raise DataError(f"the test set {found} is the training set; leave test out to set a share of it aside")
    return found
