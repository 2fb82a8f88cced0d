"""A run is a value: everything that decides what a training run computes, and nothing else."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import mirrordescent as md
from mirrordescent.inputs import check_rate
from mirrordescent.lab.data import Data
from mirrordescent.lab.names import nearest, unknown
from mirrordescent.lab.noise import Noise

IN_TITLE = ("algorithm", "lam", "potential", "reduction", "loss")  # settings that a run's title tells
LARGEST = 1e38  # lr; float32 ends not far beyond
Algorithm = Literal["sgd", "weight-decay", "smd", "rmd"]
# the settings that only some algorithms use, and which these are
USED_BY: dict[str, tuple[Algorithm, ...]] = {
    "lam": ("rmd", "weight-decay"),
    "potential": ("smd", "rmd"),
    "reduction": ("rmd",),
    "penalty": ("rmd",),
    "acceleration": ("sgd",),
    "decay": ("sgd",),
    "schedule": ("sgd",),
    "mixup": ("sgd",),
}


@dataclass(frozen=True)
class Run:
    """One training run. Two runs with the same settings have the same id, and on the same machine the same metrics."""

    data: str = "digits"
    """a name (rmd data list), or the path of a .csv, .tsv, .jsonl, .parquet or .npz file or of a folder of images"""
    label: str | None = None
    """a table's column with the labels"""
    without: str | None = None
    """a table's columns that are not inputs, separated by commas"""
    test: str | None = None
    """path of the test set; without it a share of the data is split off"""
    test_share: float = 0.2
    """the share that is split off as the test set"""
    corruption: float = 0.0
    """probability with which a training label is corrupted"""
    noise: Literal["uniform", "symmetric", "pair", "instance", "file"] = "uniform"
    """how: uniform draws from all classes (the paper's), symmetric from the others, pair takes the next class,
    instance one that depends on the sample's inputs, file the one in --noise-file"""
    noise_file: str | None = None
    """labels for noise "file": a line with a class for each row of your table, or for each sample"""
    model: Literal["auto", "linear", "mlp", "cnn", "deep-cnn", "resnet18"] = "auto"
    """the network; auto is what suits the data"""
    start: Literal["default", "near-zero"] = "default"
    """initial weights: PyTorch's, or the paper's, near zero"""
    augment: Literal["auto", "none", "crop", "crop-flip"] = "auto"
    """random crops and flips of images, drawn anew at every visit; auto is what suits the data and the network"""
    loss: Literal["ce", "gce", "elr"] = "ce"
    """for classes: cross-entropy, generalized cross-entropy, or cross-entropy with early-learning regularization"""
    memory: float = 0.7
    """loss elr: how slowly its running average of a sample's predictions moves; nearer to 1 it takes effect later"""
    algorithm: Algorithm = "rmd"
    """SGD, SGD with weight decay, stochastic mirror descent, or regularizer mirror descent"""
    lam: float | None = None
    """rmd: λ, 2 unless given; it weighs the loss of a batch, so halve it with the batch; inf is SMD (penalty square).
    weight-decay: λ in λ·ΣL + ½‖w‖², that is, a decay of 1/(λ·n)"""
    potential: str = "l2"
    """ψ of smd and rmd: l2, l1, linf, q=3, hypentropy, "2 * l2", ... (entropy needs weights > 0)"""
    reduction: Literal["sample", "batch"] = "sample"
    """rmd: one coefficient per sample, or one per batch (the paper's Algorithm 2)"""
    penalty: Literal["square", "huber", "logcosh"] = "square"
    """rmd: what enforces the constraints"""
    lr: float = 0.1
    """step size η"""
    momentum: float = 0.0
    """momentum; 0 is none"""
    acceleration: Literal["heavy-ball", "nesterov"] = "heavy-ball"
    """sgd: the kind of momentum"""
    decay: float = 0.0
    """sgd: weight decay, as torch.optim.SGD takes it"""
    schedule: Literal["constant", "cosine"] = "constant"
    """sgd: the step size from epoch to epoch; cosine falls to 0 over --epochs"""
    mixup: float = 0.0
    """sgd: train on mixtures of two samples and of their labels, in shares drawn from Beta(mixup, mixup); 0 is none"""
    batch_size: int = 32
    """samples per step; a last batch that is not full is left out of the epoch"""
    epochs: int = 100
    """how many epochs at most"""
    stop: Literal["paper", "never"] = "paper"
    """by the paper's rules (sgd, smd: when every label is fitted; else see --patience), or never unless it diverges"""
    patience: int = 500
    """rmd and weight-decay stop when the residual, or the objective, improved by less than 0.01 % in so many epochs"""
    every: int = 1
    """epochs between evaluations"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """precision of the forward pass; auto is bfloat16 on a GPU, float32 on a CPU"""
    seed: int = 0
    """random seed of the initial weights, the order of samples, the augmentation and the corruption"""

    def __post_init__(self) -> None:
        if self.algorithm == "rmd" and self.lam is None:
            object.__setattr__(self, "lam", 2.0)
        for name, kind in kinds_of(Run).items():  # 2 and 2.0 are one λ, and give one id
            object.__setattr__(self, name, parsed(name, getattr(self, name), kind))
        _check_numbers(self)
        _check_nothing_inert(self)
        md.potential(self.potential)  # refuses a wrong spec, and lists the known ones
        if self.algorithm == "rmd" and self.lam is not None:
            check_rate(self.lr / self.lam, "lr/lam")

    @property
    def id(self) -> str:
        """A hash of what differs from the defaults, so that a field added later leaves old ids alone.

        >>> Run(algorithm="sgd").id == Run(algorithm="sgd", seed=0).id
        True
        """
        changed = {name: value for name, value in self.to_dict().items() if value != _DEFAULTS[name]}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def noise_of_labels(self) -> Noise:
        """The corruption, as `noise.corrupt` takes it; none where a file holds the labels."""
        return Noise(self.noise, self.corruption, derived(self.seed, "noise")) if self.corruption else Noise()

    @property
    def title(self) -> str:
        """For a person: "RMD sample, λ = 2"."""
        words = [{"sgd": "SGD", "weight-decay": "weight decay", "smd": "SMD", "rmd": "RMD"}[self.algorithm]]
        if self.algorithm == "rmd":
            words.append(self.reduction)
        if self.potential != "l2":
            words.append(self.potential)
        if self.loss != "ce":
            words.append(self.loss)
        beside = {"decay": self.decay, "cosine": self.schedule == "cosine", "mixup": self.mixup}
        if named := [name for name, there in beside.items() if there]:  # the usual recipe, not the paper's plain one
            words += ["with", *named]
        title = " ".join(words)
        return title if self.lam is None else f"{title}, λ = {self.lam:g}"

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON, in which infinity is the text "inf"."""
        return {
            field.name: "inf" if (value := getattr(self, field.name)) == math.inf else value
            for field in dataclasses.fields(self)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Run:
        """A run from `to_dict()`, or from text as a person types it.

        Raises ValueError for an unknown name (with the nearest), or a value that does not fit.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("setting", name, names)
        return cls(**values)


@functools.cache
def kinds_of(settings: type) -> dict[str, Any]:
    """The types of a class's settings by their names; finding them takes longer than the rest of making a Run."""
    return get_type_hints(settings)


def parsed(name: str, value: Any, kind: Any) -> Any:
    """A setting's value from JSON or from text. Raises ValueError, naming the setting, where it does not fit."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            hint = nearest(value, get_args(kind)) if isinstance(value, str) else ""
            raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, got {value!r}{hint}")
        return value
    options = get_args(kind) or (kind,)
    if type(None) in options and value in (None, "None"):
        return None
    wanted = next(option for option in options if option is not type(None))
    try:
        if isinstance(value, bool) or (wanted is str and not isinstance(value, str)):
            raise ValueError
        if wanted is int and not isinstance(value, int):
            number = int(value)
            if number != value and not isinstance(value, str):
                raise ValueError
            return number
        return wanted(value)
    except (TypeError, ValueError, OverflowError):
        what = {int: "a whole number", float: "a number", str: "text"}[wanted]
        raise ValueError(f"{name} must be {what}, got {value!r}") from None


def derived(seed: int, *names: str | int) -> int:
    """A seed of its own for each use, so that no two streams of random numbers are the same.

    >>> derived(0, "order", 1) != derived(0, "order", 2) != derived(0, "noise")
    True
    """
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


SMALL = ("linear", "mlp", "cnn")  # networks


def settled(run: Run, data: Data) -> Run:
    """The run with the model and the augmentation that "auto" means for these data."""
    model = data.model if run.model == "auto" else run.model
    suited = "none" if model in SMALL else data.augment  # crops are too much for a small network
    augment = suited if run.augment == "auto" else run.augment
    return Run.from_dict({**run.to_dict(), "model": model, "augment": augment})


def _check_numbers(run: Run) -> None:
    rules: tuple[tuple[str, bool, str], ...] = (
        ("test_share", 0 < run.test_share < 1, "in (0, 1)"),
        ("corruption", 0 <= run.corruption <= 1, "in [0, 1]"),
        ("memory", 0 <= run.memory < 1, "in [0, 1)"),
        ("lam", run.lam is None or run.lam > 0, "> 0"),
        ("lr", 0 < run.lr < LARGEST, f"> 0 and < {LARGEST:g}, so that float32 holds it"),
        ("momentum", 0 <= run.momentum < 1, "in [0, 1)"),
        ("decay", 0 <= run.decay < math.inf, ">= 0"),
        ("mixup", 0 <= run.mixup < math.inf, ">= 0"),
        ("batch_size", run.batch_size >= 1, ">= 1"),
        ("epochs", run.epochs >= 1, ">= 1"),
        ("patience", run.patience >= 1, ">= 1"),
        ("every", run.every >= 1, ">= 1"),
        ("seed", run.seed >= 0, ">= 0"),
    )
    for name, holds, rule in rules:
        if not holds:
            raise ValueError(f"{name} must be {rule}, got {getattr(run, name)}")


def _check_nothing_inert(run: Run) -> None:
    """Refuse settings that would do nothing: every one that is accepted changes the result."""
    if run.algorithm == "weight-decay" and run.lam is None:
        raise ValueError("weight-decay needs lam: weight_decay = 1/(lam * number of training samples)")
    if run.algorithm == "weight-decay" and run.lam == math.inf:
        raise ValueError("weight-decay with lam inf decays nothing: that is sgd")
    for name, users in USED_BY.items():
        if run.algorithm not in users and getattr(run, name) != _DEFAULTS[name]:
            raise ValueError(f"{name} is for {' and '.join(users)}, and does nothing in {run.algorithm}")
    if run.mixup and run.loss == "elr":
        raise ValueError("mixup does not go with loss 'elr', which remembers the predictions for single samples")
    if run.loss != "elr" and run.memory != _DEFAULTS["memory"]:
        raise ValueError(f"memory does nothing with loss {run.loss!r}; it goes with loss 'elr'")
    if run.acceleration == "nesterov" and not run.momentum:
        raise ValueError("acceleration 'nesterov' does nothing without momentum")
    if run.noise == "file" and run.noise_file is None:
        raise ValueError("noise 'file' needs noise_file, a file with one label per line")
    if run.noise != "file" and run.noise_file is not None:
        raise ValueError(f"noise_file does nothing with noise {run.noise!r}; it goes with noise 'file'")
    if run.noise not in ("uniform", "file") and not run.corruption:
        raise ValueError(f"noise {run.noise!r} does nothing without corruption")
    if run.stop == "never" and run.patience != _DEFAULTS["patience"]:
        raise ValueError("patience does nothing with stop 'never'")
    if run.test is not None and run.test_share != _DEFAULTS["test_share"]:
        raise ValueError("test_share does nothing beside a test set of its own")
    if not run.data:
        raise ValueError("data must be a name or a path, got ''")
    if run.noise == "file" and run.corruption:
        raise ValueError("corruption does nothing with noise 'file', which holds every label")


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Run)}
