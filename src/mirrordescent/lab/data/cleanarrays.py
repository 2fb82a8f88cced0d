"""The origin of arrays and of known data sets: how their samples look, and a cleaned copy as .npz."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mirrordescent.lab.data.arrays import PreparedArrays
from mirrordescent.lab.data.base import Data
from mirrordescent.lab.data.cleaned import Origin, Stamp, check_test_classes, label_givers
from mirrordescent.lab.data.labels import class_names, label_names
from mirrordescent.lab.data.thumbnails import levels_of, png_of_pixels
from mirrordescent.lab.files import written


@dataclass(frozen=True)
class KnownOrigin(Origin):
    """The origin of a data set that the lab knows by name."""

    data: Data

    def picture(self, i: int, side: int) -> bytes | None:
        """A sample as PNG; None if it is no image."""
        if len(self.data.shape) != 3:
            return None
        return png_of_pixels(self.data.inputs[i], *self._levels, side)

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write x and y, x_test and y_test; labels are the classes' names, as numbers if all of them are numbers."""
        check_test_classes(self.data, keep, labels)
        names: NDArray[Any] = np.array(self.data.class_names)
        if all(name.isdecimal() for name in self.data.class_names):
            names = names.astype(np.int64)
        with written(out) as file:
            np.savez(
                file,
                x=self.data.inputs[keep].numpy(),
                y=names[labels[keep].numpy()],
                x_test=self.data.test_inputs.numpy(),
                y_test=names[self.data.test_targets.numpy()],
            )
        return [out]

    @cached_property
    def _levels(self) -> tuple[float, float]:
        return levels_of(self.data.inputs)


@dataclass(frozen=True)
class ArraysOrigin(KnownOrigin):
    """The origin of an .npz file, all of whose training inputs are training samples.

    own_test: whether the test set is in the same file.
    """

    prepared: PreparedArrays
    path: Path
    stamp: Stamp
    own_test: bool

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Write the same arrays, compressed as they were, without the dropped samples.

        Samples are dropped from the training inputs and labels, and from arrays with an entry per sample, such as ids.
        """
        self.stamp.check()
        if self.own_test:
            check_test_classes(self.data, keep, labels)
        x_name, y_name = self.prepared.names
        with np.load(self.path, allow_pickle=False) as file:
            x, y = file[x_name], file[y_name]
            beside = {name: file[name] for name in self.prepared.beside}
        givers = np.array(label_givers(self.data.targets, labels, [str(value) for value in y.reshape(-1).tolist()]))
        kept = keep.numpy()
        new = {name: held[kept] for name, held in beside.items()}
        new |= {x_name: x[kept], y_name: y[givers[kept]]}
        values = new[y_name].reshape(-1).tolist()
        # refuse labels that could not be read back: too many classes for the samples left, or only fractions
        class_names(label_names(values, lambda i: f"{out}, sample {i}"), f"{out}, array {y_name!r}")
        with (
            written(out) as target,
            zipfile.ZipFile(self.path) as old,
            zipfile.ZipFile(target, "w", allowZip64=True) as copy,
        ):
            for member in old.infolist():
                entry = zipfile.ZipInfo(member.filename)
                entry.compress_type = member.compress_type
                with copy.open(entry, "w", force_zip64=True) as writer:
                    name = member.filename.removesuffix(".npy")
                    if name in new:
                        np.lib.format.write_array(writer, new[name], allow_pickle=False)
                    else:
                        with old.open(member) as reader:
                            shutil.copyfileobj(reader, writer)
        return [out]
