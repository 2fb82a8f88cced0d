"""Reads the user's images: a folder with one sub-folder per class."""

from __future__ import annotations

import hashlib
import os
import statistics
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from mirrordescent.lab.data.arrays import channel_statistics
from mirrordescent.lab.data.base import Data, DataError, for_pictures
from mirrordescent.lab.data.labels import class_numbers
from mirrordescent.lab.data.split import divided, same_inputs, told_of_parts
from mirrordescent.lab.names import first_line, listed

if TYPE_CHECKING:
    from PIL import Image

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
JUNK = ("thumbs.db", "desktop.ini", "__macosx")
TRAINS = ("train", "training")
TESTS = ("test", "testing", "val", "valid", "validation")  # the first that is there is the test set
SMALLEST, LARGEST = 8, 64  # side of the images that training sees
FEW = 0.05  # share of the files that may be damaged
MOST_PIXELS = 50_000_000  # of one file; more is a mistake, or an attempt to exhaust the memory
GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "I;16N")

T = TypeVar("T")


@dataclass(frozen=True)
class PreparedFolder:
    """Data from a folder of images, and the way back: training sample i is `files[i]`.

    root: the folder that holds the training classes. held_out: whether the test samples are separate from the training
    samples. bits: per pixel of the images with more than 8; 0 if there are none.
    """

    data: Data
    files: tuple[Path, ...]
    root: Path
    held_out: bool
    bits: int = 0


def prepare_folder(
    path: Path,
    test: Path | None = None,
    test_share: float = 0.2,
    split_seed: int = 0,
    whole: bool = False,
) -> PreparedFolder:
    """Load a folder of images as data: square uint8 pixels, grey if every file is, else RGB; mean and std by channel.

    Its sub-folders are the classes; or it holds train/ (training/) with them, and perhaps test/ or val/. Images are
    turned as their EXIF says, laid on white where they are transparent, cropped to the central square and resized: its
    side is the median shorter side of the training images, but between 8 and 64. Of images with more than 8 bits, the
    brightest pixel of all tells how many bits they have.
    whole: without a separate test set, train on every image (see `divided`). A few files that cannot be read are left
    out, with a note. Raises DataError, which names the folder or up to five of the files in question.
    """
    root, own_test, notes = _parts(path)
    if own_test is not None and test is not None:
        raise DataError(f"{path} has a test set of its own, {own_test.name}/; leave test out, or name {root} as data")
    test = test or own_test
    folders = _class_folders(root, notes)
    if len(folders) < 2:
        raise DataError(f"{root}: only one class, {folders[0].name!r}; there must be at least two sub-folders")
    classes = tuple(folder.name for folder in folders)
    files, targets = _files(folders, classes, notes)
    if test is None:
        rows, test_rows, how = divided(targets, lambda: _contents(files), test_share, split_seed, str(path), whole)
        everything, (train, held_out) = files, (rows.tolist(), test_rows.tolist())
        targets, test_targets = targets[rows], targets[test_rows]
    else:
        test_files, test_targets = _files(_class_folders(test, notes), classes, notes)
        everything = files + test_files
        train, held_out = list(range(len(files))), list(range(len(files), len(everything)))
    images, broken, bits, told = _read(everything, train, path)
    if len(broken) > FEW * len(everything):
        raise DataError(_complaint(broken))
    if broken:
        kept, test_kept = (
            torch.tensor([everything[i] not in broken for i in part], dtype=torch.bool) for part in (train, held_out)
        )
        targets, test_targets = targets[kept], test_targets[test_kept]
        train, held_out = ([i for i in part if everything[i] not in broken] for part in (train, held_out))
        if lost := set(range(len(classes))) - set(targets.tolist()):
            raise DataError(
                f"{root}: no image of {listed([repr(classes[c]) for c in sorted(lost)])} can be read; add some"
            )
    # only now, as it is told how many images are there to be trained on or tested
    if test is None:
        notes.append(told_of_parts(len(train), len(held_out), len(files), "images", how))
    else:
        notes.append(f"test set: {len(held_out):,} images of {test.name}/")
    if broken:
        notes.append(f"left out of these, cannot be read as images: {listed(_told(broken))}")
    inputs = images[train]
    notes += same_inputs(inputs, targets, "images")
    if not bool((inputs != inputs[:1]).any()):
        told += "; all look the same, so there is nothing to learn from"
    mean, std = channel_statistics(inputs)
    model, augment = for_pictures(tuple(images.shape[1:]))
    data = Data(
        path.absolute().name,
        inputs,
        targets,
        images[held_out],
        test_targets,
        classes=len(classes),
        class_names=classes,
        mean=mean,
        std=std,
        model=model,
        augment=augment,
        notes=(*notes, told),
    )
    return PreparedFolder(data, tuple(everything[i] for i in train), root, test is not None or not whole, bits)


def _contents(files: Sequence[Path]) -> Tensor:
    """A number per file, (n, 1, 1), that files with the same content share; only those of one size are read."""
    sizes = [_or_none(lambda file: file.stat().st_size, file) for file in files]
    several = Counter(sizes)
    names: dict[object, int] = {}
    numbers = []
    for file, size in zip(files, sizes, strict=True):
        content = _or_none(_digest, file) if several[size] > 1 else file
        numbers.append(names.setdefault(file if content is None else content, len(names)))
    return torch.tensor(numbers)[:, None, None]


def _digest(file: Path) -> bytes:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).digest()


def _or_none(look: Callable[[Path], T], file: Path) -> T | None:
    """What a look at a file gives, or None if it cannot be read, which `_read` will say."""
    try:
        return look(file)
    except OSError:
        return None


def _parts(path: Path) -> tuple[Path, Path | None, list[str]]:
    """The folder with the training classes, the one with the test classes, and notes."""
    inside = {folder.name.lower(): folder for folder in _folders(path, [])}
    tests = [inside[name] for name in TESTS if name in inside]
    if (train := training_folder(set(inside))) is None:
        trains = [inside[name] for name in TRAINS if name in inside]
        parts = [*trains, *tests]
        if trains and len(parts) > 1 and all(_folders(folder, []) for folder in parts[:2]):  # so these are no classes
            others = listed([f"{folder.name}/" for folder in inside.values() if folder not in (*tests, *trains)])
            raise DataError(
                f"{path} holds {parts[0].name}/ and {parts[1].name}/{f' beside {others}' if others else ''}; name the "
                f"folder of the classes, such as {trains[0]}, and the test set with --test"
            )
        return path, None, []
    return inside[train], tests[0] if tests else None, [f"not used: {folder.name}/" for folder in tests[1:]]


def training_folder(names: set[str]) -> str | None:
    """The training folder among `names` (in lower case), if they are the parts of a split and not classes; else None.

    >>> training_folder({"train", "val"}), training_folder({"train", "car"})
    ('train', None)
    """
    found = names & set(TRAINS)
    return found.pop() if len(found) == 1 and names <= {*TRAINS, *TESTS} else None


def _folders(path: Path, notes: list[str]) -> list[Path]:
    try:
        inside = sorted(path.iterdir(), key=lambda item: item.name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    inside = [item for item in inside if not junk(item.name) and item.is_dir()]
    links = [item.name for item in inside if item.is_symlink()]
    if links:  # a link may lead anywhere, even back to a folder above
        notes.append(f"links to folders, not followed: {listed(links)}")
    return [item for item in inside if not item.is_symlink()]


def _class_folders(root: Path, notes: list[str]) -> list[Path]:
    folders = _folders(root, notes)
    if not folders:
        beside = f", or give {root.parent / 'train'} alone as data" if (root.parent / "train").is_dir() else ""
        raise DataError(f"{root} has no sub-folders; put the images of each class into a sub-folder of its own{beside}")
    for folder in folders:
        if any("\ud800" <= letter <= "\udfff" for letter in folder.name):  # bytes that are not UTF-8
            raise DataError(f"{root}: the folder {folder.name!a} has a name that is not UTF-8; rename it")
    return folders


def _files(folders: Sequence[Path], classes: Sequence[str], notes: list[str]) -> tuple[list[Path], Tensor]:
    alike = {unicodedata.normalize("NFC", name): name for name in classes}  # some systems write é as two characters
    files: list[Path] = []
    names: list[str] = []
    others: list[str] = []
    for folder in folders:
        found = sorted(walk(folder))
        images = [file for file in found if file.suffix.lower() in IMAGES]
        others += [file.name for file in found if file.suffix.lower() not in IMAGES]
        if not images:
            raise DataError(f"{folder} has no images ({', '.join(IMAGES)}); add some, or remove the folder")
        files += images
        same = alike.get(unicodedata.normalize("NFC", folder.name), folder.name)
        names += [folder.name if folder.name in classes else same] * len(images)
    if others:
        notes.append(f"files that are no images, left out: {listed(others)}")
    return files, class_numbers(names, classes, lambda i: str(files[i].parent))


def walk(folder: Path) -> Iterator[Path]:
    """Every file in a folder and its sub-folders, except `junk`."""
    for place, folders, files in os.walk(folder):  # does not follow links to folders
        folders[:] = [name for name in folders if not junk(name)]
        yield from (Path(place, name) for name in files if not junk(name))


def junk(name: str) -> bool:
    """Whether a file or folder is hidden, or one that operating systems leave behind."""
    return name.startswith(".") or name.lower() in JUNK


def _read(files: Sequence[Path], train: Sequence[int], path: Path) -> tuple[Tensor, dict[Path, str], int, str]:
    """All images, (n, channels, side, side) in uint8; unreadable files, and why; bits as in PreparedFolder; a note."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{path} needs Pillow, which is not installed; pip install 'mirrordescent[lab]'") from None
    broken: dict[Path, str] = {}
    grey, sides, longer, bits = True, {}, {}, 0
    for i, file in enumerate(files):  # reads only headers, except of images with more than 8 bits
        with _damage(file, broken), Image.open(file) as image:
            _refuse_bomb(image)
            grey = grey and image.mode in GREY
            bits = max(bits, _bits(image) if image.mode.startswith("I") else 0)
            sides[i] = min(image.size)
            longer[i] = max(image.size)
    chosen = [sides[i] for i in train if i in sides]
    side = max(SMALLEST, min(LARGEST, round(statistics.median(chosen or [SMALLEST]))))
    mode = "L" if grey else "RGB"
    pixels = torch.zeros(len(files), len(mode), side, side, dtype=torch.uint8)
    for i in sides:
        with _damage(files[i], broken), Image.open(files[i]) as image:
            small = _fitted(image, mode, side, bits)
            pixels[i] = (
                torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(side, side, -1).permute(2, 0, 1)
            )
    kind = "grey" if grey else "RGB"
    deep = f"; 16-bit images read as {bits}-bit" if bits else ""
    cut = sum(longer[i] > 2 * sides[i] for i in sides if files[i] not in broken)
    lost = f"; of {cut:,} of them training sees less than half, the square in the middle" if cut else ""
    return pixels, broken, bits, f"images resized to {side}×{side}, {kind}{deep}{lost}"


@contextmanager
def _damage(file: Path, broken: dict[Path, str]) -> Iterator[None]:
    """Take note of a file that cannot be read, and go on: the user wants to hear of all of them at once."""
    from PIL import Image, UnidentifiedImageError

    with warnings.catch_warnings():
        # what Pillow warns of (odd metadata, large sizes) is checked here, or does no harm
        warnings.simplefilter("ignore")
        try:
            yield
        except UnidentifiedImageError:
            broken[file] = "it is empty" if file.stat().st_size == 0 else "its content is no image of a known format"
        except (Image.DecompressionBombError, MemoryError):
            broken[file] = f"more than {MOST_PIXELS:,} pixels"
        except Exception as error:  # decoders raise SyntaxError, struct.error, KeyError and others on damaged files
            broken[file] = first_line(error)


def _refuse_bomb(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"{image.width}×{image.height} pixels are more than {MOST_PIXELS:,}")


def _complaint(broken: dict[Path, str]) -> str:
    if len(broken) == 1:
        ((file, reason),) = broken.items()
        return f"{file} cannot be read as an image: {reason}; remove or replace it"
    return f"{len(broken):,} files cannot be read as images: {listed(_told(broken))}; remove or replace them"


def _told(broken: dict[Path, str]) -> list[str]:
    return [f"{file} ({reason})" for file, reason in sorted(broken.items())]


def _bits(image: Image.Image) -> int:
    """How many bits the brightest pixel of an image of integers needs: 8, 10, 12, 14 or 16."""
    # one pair in these modes; the type stubs also allow for a pair per channel
    low, high = (float(extreme) for extreme in image.getextrema())  # type: ignore[arg-type]
    if low < 0 or high > 65535:
        raise ValueError("its pixels have more than 16 bits; convert it to 8 or 16")
    return next(bits for bits in (8, 10, 12, 14, 16) if high < 2**bits)


def _fitted(image: Image.Image, mode: str, side: int, bits: int) -> Image.Image:
    from PIL import Image, ImageOps

    image.draft(None, (2 * side, 2 * side))  # lets JPEG decode large pictures at a fraction of their size
    turned = _plain(ImageOps.exif_transpose(image), mode, bits)
    return ImageOps.fit(turned, (side, side), Image.Resampling.BICUBIC)


def upright(file: Path, side: int, bits: int = 0) -> Image.Image:
    """One file as a viewer shows it, grey or RGB, turned as its EXIF says; at least `side` pixels, if it has so many.

    bits: per pixel of an image with more than 8; found out from its own pixels if 0.
    Raises DataError for a file that cannot be read.
    """
    from PIL import Image, ImageOps

    broken: dict[Path, str] = {}
    with _damage(file, broken), Image.open(file) as image:
        _refuse_bomb(image)
        image.draft(None, (2 * side, 2 * side))
        return _plain(ImageOps.exif_transpose(image), "L" if image.mode in GREY else "RGB", bits)
    raise DataError(_complaint(broken))


def _plain(image: Image.Image, mode: str, bits: int = 0) -> Image.Image:
    """The image with 8 bits per channel, in mode "L" or "RGB", transparent parts on white.

    bits: per pixel of an image with more than 8; found out from its own pixels if 0.
    """
    from PIL import Image

    if image.mode.startswith("I"):
        scale = 255 / (2 ** (bits or _bits(image)) - 1)
        image = image.convert("I").point(lambda value: value * scale + 0.5).convert("L")
    elif image.mode == "F":
        raise ValueError("its pixels are fractions; convert it to 8 or 16 bits")
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
