"""The origin of a folder of images: how its images look, and a cleaned copy with every file byte for byte."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from mirrordescent.lab.data.base import Data, DataError
from mirrordescent.lab.data.cleaned import Origin, check_test_classes, written_folder
from mirrordescent.lab.data.imagefolder import TESTS, PreparedFolder, junk, training_folder, walk
from mirrordescent.lab.data.thumbnails import png_of_file


@dataclass(frozen=True)
class FolderOrigin(Origin):
    """The origin of a folder of images, all of them training samples except those in test/ or the like.

    own_test: whether the folder has such a test set inside.
    """

    prepared: PreparedFolder
    path: Path
    own_test: bool

    def picture(self, i: int, side: int) -> bytes:
        """The file's image as a viewer shows it, as PNG."""
        return png_of_file(self.prepared.files[i], side, self.prepared.bits)

    def write(self, out: Path, keep: Tensor, labels: Tensor) -> list[Path]:
        """Copy the kept files, each to its class; test folders and files that are no samples are copied as they are.

        Returns the copies, those of the kept samples first, in their order.
        """
        if self.own_test:
            check_test_classes(self.data, keep, labels)
        inside = self._inside(keep.tolist(), labels.tolist())
        pairs = self._places(keep.tolist(), labels.tolist(), inside)
        pairs += self._others({place.relative_to(inside).parts[0] for _, place in pairs}, inside)
        if self.prepared.root != self.path:
            pairs += [(file, file.relative_to(self.path)) for file in self._test_files()]
        with written_folder(out) as part:
            for file, place in pairs:
                _copy(file, part / place)
        return [out / place for _, place in pairs]

    @property
    def data(self) -> Data:
        """The data that the folder was read as."""
        return self.prepared.data

    def _inside(self, keep: list[bool], labels: list[int]) -> Path:
        """Where the folders of the classes go inside the copy."""
        left = {self.data.class_names[label].lower() for label, stays in zip(labels, keep, strict=True) if stays}
        if self.prepared.root == self.path and training_folder(left) is not None:
            return Path("train")  # else folders of these classes would be read as a training and a test set
        return self.prepared.root.relative_to(self.path)

    def _places(self, keep: list[bool], labels: list[int], inside: Path) -> list[tuple[Path, Path]]:
        """The kept files, and where each goes inside the copy; no file takes the place of another of the same name."""
        root, names, targets = self.prepared.root, self.data.class_names, self.data.targets.tolist()
        kept = [i for i in range(len(keep)) if keep[i]]
        moved = [i for i in kept if labels[i] != targets[i]]
        places = {i: inside / self.prepared.files[i].relative_to(root) for i in kept}
        # places of dropped files count as taken: a reader who knows samples by their paths would mix them up
        taken = {_key(inside / file.relative_to(root)) for name in names for file in walk(root / name)}
        for i in moved:
            within = self.prepared.files[i].relative_to(root / names[targets[i]])
            places[i] = _free(inside / names[labels[i]] / within, names[targets[i]], taken)
            taken.add(_key(places[i]))
        return [(self.prepared.files[i], places[i]) for i in kept]

    def _others(self, classes: set[str], inside: Path) -> list[tuple[Path, Path]]:
        """Files that are no samples, in the remaining classes and outside of all classes, and where each goes.

        These are files that are no images, images that cannot be read (someone may repair them), and images outside of
        every class.
        """
        root, samples = self.prepared.root, set(self.prepared.files)
        found = [file for name in classes for file in walk(root / name)]
        for folder in {root, self.path}:
            found += [file for file in folder.iterdir() if not junk(file.name)]
        files = sorted(file for file in found if file not in samples and file.is_file())
        return [
            (file, inside / file.relative_to(root) if file.is_relative_to(root) else file.relative_to(self.path))
            for file in files
        ]

    def _test_files(self) -> list[Path]:
        folders = [folder for folder in self.path.iterdir() if folder.name.lower() in TESTS and not folder.is_symlink()]
        found = [Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names]
        return sorted(file for file in found if file.is_file())


def _key(place: Path) -> str:
    return str(place).casefold()  # on some systems A.png and a.png are one file


def _free(place: Path, old: str, taken: set[str]) -> Path:
    """The place if it is free; else with the old class after the name, and with a number if even that is taken."""
    choice, count = place, 1
    while _key(choice) in taken:
        more = f"-{count}" if count > 1 else ""
        choice, count = place.with_name(f"{place.stem}-from-{old}{more}{place.suffix}"), count + 1
    return choice


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        reader = file.open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}; start again") from None
    with reader, to.open("xb") as writer:  # never over another file
        shutil.copyfileobj(reader, writer, 1 << 20)
