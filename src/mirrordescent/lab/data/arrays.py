"""Reads the user's .npz files: inputs x, labels y, and a test set if the file has one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError, for_pictures
from mirrordescent.lab.data.columns import standardised
from mirrordescent.lab.data.labels import class_names, class_numbers, label_names
from mirrordescent.lab.data.split import divided, same_inputs, told_of_parts
from mirrordescent.lab.names import first_line, listed

INPUTS = ("x", "inputs", "images", "data", "features")
LABELS = ("y", "labels", "targets", "label", "target")
CHANNELS = (1, 3, 4)
DATA = {*INPUTS, *LABELS, "ids", "id"}
# words in the name of an array that belongs to samples outside the training set, also run together: x_test, testx
OTHERS = ("test", "testing", "holdout", "validation", "val", "dev", "eval", "evaluation")
ROLE = "|".join((*INPUTS, *LABELS, "ids", "names", "set", "index", "idx", "weights", "groups"))
IN_ONE = re.compile(f"({ROLE})?({'|'.join(OTHERS)})({ROLE})?")
TAKEN = frozenset(map(np.dtype, ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")))  # by PyTorch, as they are
LARGEST = 1e30  # far below the largest float32, so that differences and sums fit too

Array = NDArray[Any]


@dataclass(frozen=True)
class PreparedArrays:
    """Data from an .npz file, and the way back: training sample i is row `rows[i]` of the file's inputs.

    names: of the arrays that hold the training inputs and labels. beside: of the other arrays with an entry for each
    of these rows. held_out: whether the test samples are separate from the training samples.
    """

    data: Data
    rows: Tensor  # (n,)
    names: tuple[str, str]
    beside: tuple[str, ...]
    held_out: bool


def prepare_arrays(
    path: Path, test: Path | None = None, test_share: float = 0.2, split_seed: int = 0, whole: bool = False
) -> PreparedArrays:
    """Load an .npz file as data.

    Inputs must be called x (or inputs, images, data, features), labels y (or labels, targets), in any case, alone or as
    in x_train and train_x; x_test, test_x and so on hold a test set. Inputs of shape (n, d) are standardised; images
    (n, h, w), (n, h, w, c) or (n, c, h, w) stay pixels, with mean and std per channel. Labels may be any whole numbers
    or any text. whole: without a separate test set, train on every sample (see `divided`).
    Raises DataError, which names the file, the array and the sample.
    """
    arrays = _read(path)
    found, found_test = _pair(path, arrays, "train"), None
    if found is None:
        raise DataError(
            f"{path} has no inputs and labels; call them x and y (it holds {listed(sorted(arrays)) or 'nothing'})"
        )
    used = [found.x_name, found.y_name]
    if test is not None:
        test_arrays = _read(test)
        found_test = _pair(test, test_arrays, "train") or _pair(test, test_arrays, "test")
        if found_test is None:
            raise DataError(f"{test} has no inputs and labels; call them x and y")
    else:
        found_test = _pair(path, arrays, "test")
        used += [found_test.x_name, found_test.y_name] if found_test else []
    notes = [f"inputs: {found.x_name}; labels: {found.y_name}"]
    classes = class_names(found.labels, f"{path}, array {found.y_name!r}")
    targets = class_numbers(found.labels, classes, found.place)
    if found_test is None:

        def everything() -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(found.x if found.x.dtype in TAKEN else found.x.astype(float)))

        rows, test_rows, how = divided(targets, everything, test_share, split_seed, str(path), whole)
        x, test_x = found.x[rows.numpy()], found.x[test_rows.numpy()]
        targets, test_targets = targets[rows], targets[test_rows]
        notes.append(told_of_parts(len(rows), len(test_rows), len(found.x), "samples", how))
    else:
        rows, x, test_x = torch.arange(len(found.x)), found.x, found_test.x
        test_targets = class_numbers(found_test.labels, classes, found_test.place)
        notes.append(f"test set: {found_test.x_name} of {found_test.path.name}, {len(test_x):,} samples")
        if x.shape[1:] != test_x.shape[1:]:
            raise DataError(
                f"{found_test.path}, array {found_test.x_name!r}: samples of shape {test_x.shape[1:]}, but those of "
                f"the training set have {x.shape[1:]}"
            )
    unused = sorted(set(arrays) - set(used))
    # its name puts an array elsewhere only if the file holds another set of data; else its length decides
    sets = any(_apart(name) and _is_data(name) for name in arrays)
    beside = tuple(n for n in unused if _has_each(arrays[n], len(found.x)) and not (sets and _apart(n)))
    for names, what in ((beside, " with an entry per sample"), (sorted(set(unused) - set(beside)), "")):
        notes += [f"arrays{what} that were not used: {listed(names, most=10)}"] if names else []
    as_long = [name for name in unused if name not in beside and arrays[name].shape[:1] == (len(found.x),)]
    if as_long:
        other = "not taken as one entry per sample, though of the same length (a cleaned copy keeps them whole)"
        notes.append(f"{other}: {listed(as_long, most=10)}")
    inputs, test_inputs, mean, std = _inputs(found.x_name, path, x, test_x, notes)
    notes += same_inputs(inputs, targets, "samples")
    model, augment = ("mlp", "none") if mean is None else for_pictures(tuple(inputs.shape[1:]))
    data = Data(
        path.name,
        inputs,
        targets,
        test_inputs,
        test_targets,
        classes=len(classes),
        class_names=classes,
        mean=mean,
        std=std,
        model=model,
        augment=augment,
        notes=tuple(notes),
        rows=rows,
        there=len(found.x),
    )
    return PreparedArrays(data, rows, (found.x_name, found.y_name), beside, found_test is not None or not whole)


def _has_each(array: Array, count: int) -> bool:
    """Whether an array has one entry for each of `count` samples, such as ids or weights, and not one per pair."""
    return array.shape[:1] == (count,) and count not in array.shape[1:]


def _apart(name: str) -> bool:
    """Whether an array's name puts it outside the training set; is_test does not: it is one mark per sample."""
    words = _words(name)
    others = set(words) & set(OTHERS) or ("valid" in words and _is_data(name))
    return bool(others) and words[0] not in ("is", "in")


def _is_data(name: str) -> bool:
    """Whether a name is that of inputs, labels or ids."""
    return bool(DATA & set(_words(name)))


def _words(name: str) -> list[str]:
    words: list[str] = []
    for word in re.findall("[a-z]+", name.lower()):
        several = IN_ONE.fullmatch(word)
        words += [part for part in several.groups() if part] if several else [word]
    return words


@dataclass(frozen=True)
class _Pair:
    """Inputs and labels that belong together, checked."""

    path: Path
    x_name: str
    y_name: str
    x: Array
    labels: list[str]

    def place(self, sample: int) -> str:
        return f"{self.path}, array {self.y_name!r}, sample {sample}"


def _read(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as handle:
            file = np.load(handle, allow_pickle=False)  # a pickle would run any code its author wanted
            if isinstance(file, np.ndarray):
                raise DataError(f"{path} is a single array; save inputs and labels with numpy.savez(path, x=…, y=…)")
            with file:
                return {name: _member(path, file, name) for name in file.files}
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        # numpy's own message would tell how to load it unsafely
        why = "it is not one" if "pickle" in str(error) else first_line(error)
        raise DataError(f"{path} cannot be read as .npz ({why}); write it anew") from None


def _member(path: Path, file: Any, name: str) -> Array:
    try:
        array = file[name]
        if isinstance(array, np.ndarray):
            return array
        reason = "is no array; write the file anew, without it"
    except MemoryError as error:  # of an array that is too large, or of one that is damaged and only says so
        reason = f"does not fit into memory ({first_line(error)})"
    except Exception as error:
        reason = f"is damaged ({first_line(error)}); write the file anew"
        if "pickle" in str(error):
            reason = "holds Python objects; convert it to numbers or text (astype) before saving"
    raise DataError(f"{path}, array {name!r}: {reason}")


def _pair(path: Path, arrays: dict[str, Array], part: str) -> _Pair | None:
    x_name, y_name = (_named(path, arrays, names, part) for names in (INPUTS, LABELS))
    if x_name is None and y_name is None:
        return None
    if x_name is None or y_name is None:
        there, lacking, names = (x_name, "labels", LABELS) if y_name is None else (y_name, "inputs", INPUTS)
        raise DataError(
            f"{path} has {there!r}, but no {lacking} for it; it holds {listed(sorted(arrays))}, and the {lacking} must "
            f"be called {' or '.join(names)}"
        )
    x, y = arrays[x_name], arrays[y_name]
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DataError(f"{path}, array {y_name!r}: labels must be a vector, but have shape {y.shape}")
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise DataError(
            f"{path}, array {x_name!r}: shape {x.shape}; it must be (n, d), (n, h, w), (n, h, w, c) or (n, c, h, w), "
            "and not empty"
        )
    if len(x) != len(y):
        raise DataError(f"{path}: {len(x):,} samples in {x_name!r}, but {len(y):,} labels in {y_name!r}")
    if y.dtype.kind not in "biufUS":
        raise DataError(f"{path}, array {y_name!r}: labels must be whole numbers or text, not {y.dtype}")
    _check_values(path, x_name, x)
    labels = label_names(y.tolist(), lambda i: f"{path}, array {y_name!r}, sample {i}")
    return _Pair(path, x_name, y_name, x, labels)


def _named(path: Path, arrays: dict[str, Array], names: tuple[str, ...], part: str) -> str | None:
    forms = {form for name in names for form in (f"{name}_{part}", f"{part}_{name}")}
    if part == "train":
        forms |= set(names)
    found = [name for name in arrays if name.lower() in forms]
    if len(found) > 1:
        raise DataError(f"{path}: both {found[0]!r} and {found[1]!r} could be meant; keep one of them")
    return found[0] if found else None


def _check_values(path: Path, name: str, x: Array) -> None:
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}, array {name!r}: inputs must be numbers, not {x.dtype}")
    if x.dtype.kind != "f":
        return
    wide = x.astype(np.float32) if x.dtype == np.float16 else x  # float16 cannot hold the bound
    bad = ~(np.abs(wide) <= LARGEST)  # NaN is not ≤ anything
    samples = np.flatnonzero(bad.reshape(len(x), -1).any(axis=1))
    if len(samples):
        value = x[samples[0]][bad[samples[0]]].flat[0]
        raise DataError(
            f"{path}, array {name!r}, sample {samples[0]}: holds {value} ({len(samples):,} such samples); remove them, "
            "or fill in numbers that float32 can hold"
        )


def _inputs(
    name: str, path: Path, x: Array, test_x: Array, notes: list[str]
) -> tuple[Tensor, Tensor, tuple[float, ...] | None, tuple[float, ...] | None]:
    if x.ndim == 2:
        train, test = standardised(*[torch.from_numpy(part.astype(np.float64)) for part in (x, test_x)])
        constant = int((~train.any(dim=0)).sum())
        if constant == train.shape[1]:
            raise DataError(f"{path}, array {name!r}: every feature is constant, so there is nothing to learn from")
        notes += [f"constant features, which are 0 now: {constant:,}"] if constant else []
        return train, test, None, None
    if x.ndim == 3:
        x, test_x = x[:, None], test_x[:, None]
    elif _channels_last(path, name, x):
        x, test_x = np.moveaxis(x, 3, 1), np.moveaxis(test_x, 3, 1)
        notes.append("images taken as (n, height, width, channels)")
    mean, std = channel_statistics(_tensor(x))
    return _tensor(x), _tensor(test_x), mean, std


def _tensor(x: Array) -> Tensor:
    x = np.ascontiguousarray(x if x.dtype == np.uint8 else x.astype(np.float32))
    return torch.from_numpy(x)


def _channels_last(path: Path, name: str, x: Array) -> bool:
    first, middle, last = x.shape[1:]
    # most images are square, which says more than the number of channels
    if middle == last != first:
        return False
    if first == middle != last:
        return True
    if (first in CHANNELS) != (last in CHANNELS):
        return last in CHANNELS
    if first == middle == last and first in CHANNELS:
        return False
    raise DataError(
        f"{path}, array {name!r}: shape {x.shape}; cannot tell which axis holds the channels; use 1, 3 or 4"
    )


def channel_statistics(images: Tensor, chunk: int = 4096) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation of each channel of images (n, c, h, w); uint8 pixels are divided by 255 first.

    A constant channel gets standard deviation 1, so that one can divide by it.
    """
    scale = 255.0 if images.dtype == torch.uint8 else 1.0
    total = square = torch.zeros(images.shape[1], dtype=torch.float64)
    for piece in images.split(chunk):  # a few at a time: float64 takes much memory
        total = total + (piece.double() / scale).sum(dim=(0, 2, 3))
    pixels = images.numel() / images.shape[1]
    mean = total / pixels
    for piece in images.split(chunk):
        square = square + (piece.double() / scale - mean[:, None, None]).square().sum(dim=(0, 2, 3))
    std = (square / pixels).sqrt()
    # float32 cannot tell a channel that varies by less than this from a constant one
    std = torch.where(std > 1e-6 * mean.abs().clamp_min(1e-30), std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
