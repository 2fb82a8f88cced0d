"""Converts other forms of a data set to the layout "rows": official pickles, and pictures with a sample per line."""

from __future__ import annotations

import hashlib
import io
import json
import pickle

import numpy as np
import numpy.typing as npt
from PIL import Image

from mirrordescent.lab.data.base import DataError


def rows_of_pickle(raw: bytes, md5: str, pixels: int, what: str) -> bytes:
    """The rows of an official pickle; one with another MD5 sum is not even unpickled.

    Raises DataError for another sum, or for contents that are not labels and samples of `pixels` bytes.
    """
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"{what} is not the official file: MD5 sum {found}, expected {md5}; no other pickle is opened")
    try:
        batch = _Plain(io.BytesIO(raw), encoding="bytes").load()
        return _rows(np.asarray(batch[b"labels"]), np.asarray(batch[b"data"]).reshape(-1, pixels), what)
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError, EOFError) as error:
        raise DataError(f"{what} does not hold samples and labels ({error})") from error


def rows_of_picture(raw: bytes, labels: list[int], shape: tuple[int, int, int], what: str) -> bytes:
    """The rows of a PNG in which every line is one sample, its pixels one after the other."""
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as picture:
            # Checked before a single pixel is decoded: a small file can claim to be a huge picture.
            if picture.size != (height * width, len(labels)) or len(picture.getbands()) != channels:
                raise DataError(
                    f"{what} is not {len(labels)} lines of {height * width} pixels of {channels} bytes, "
                    f"but {picture.size[1]} of {picture.size[0]} of {len(picture.getbands())}"
                )
            pixels = np.asarray(picture).reshape(len(labels), height * width, channels)
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{what} is not a whole PNG picture ({error})") from error
    return _rows(np.asarray(labels), pixels.transpose(0, 2, 1).reshape(len(labels), -1), what)


def labels_of_json(raw: bytes, what: str) -> list[int]:
    """Labels written as a list of numbers."""
    try:
        labels = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} is not JSON ({error})") from error
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{what} is not a list of labels")
    return labels


def _rows(labels: npt.NDArray[np.generic], pixels: npt.NDArray[np.generic], what: str) -> bytes:
    if labels.shape != pixels.shape[:1] or labels.dtype.kind not in "iu" or pixels.dtype != np.uint8:
        raise DataError(f"{what} holds {labels.shape} labels and {pixels.shape} pixels, which do not match")
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < 256:
        raise DataError(f"{what} has labels that are no classes (0 to 255)")
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1).tobytes()


# All that the official pickles need. NumPy has since moved the first, so it is taken from an array.
_ALLOWED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Plain(pickle.Unpickler):
    """An unpickler that makes numbers, strings, lists, dictionaries and NumPy arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> object:
        """The object of that name, if it is one of the few allowed."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]
