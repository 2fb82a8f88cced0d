"""A course is a value: a sequence of tasks, and the method by which a network learns one after the other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mirrordescent.inputs import check_rate
from mirrordescent.lab.names import unknown
from mirrordescent.lab.runs import kinds_of, parsed

Method = Literal["sgd", "near", "ewc", "rmd", "anchored"]
# the settings that only this method has
SETTINGS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "near": ("near_alpha",),
    "ewc": ("ewc_alpha",),
    "rmd": ("rmd_lam",),
    "anchored": ("anchored_lam", "strength"),
}
METHODS: tuple[str, ...] = get_args(Method)
SEEDS = 3
NAMES = {
    "sgd": "SGD",
    "near": "SGD near the old weights",
    "ewc": "SGD with EWC",
    "rmd": "RMD",
    "anchored": "RMD anchored",
}
SYMBOLS = {
    "near_alpha": "α = ",
    "ewc_alpha": "α = ",
    "rmd_lam": "λ = ",
    "anchored_lam": "λ = ",
    "strength": "strength ",
}


@dataclass(frozen=True)
class Lessons:
    """What all courses of a comparison have in common, and the settings of each method."""

    data: str = "digits"
    """a name (rmd data list), or the path of a .csv, .tsv, .jsonl, .parquet or .npz file or of a folder of images"""
    label: str | None = None
    """a table's column with the labels"""
    without: str | None = None
    """a table's columns that are not inputs, separated by commas"""
    kind: Literal["permuted", "split"] = "permuted"
    """each task has the same inputs in an order of its own (permuted), or classes of its own (split)"""
    tasks: int = 5
    """number of tasks"""
    samples: int | None = None
    """training samples of each task; all unless given"""
    raw: bool = False
    """leave the inputs as they are, instead of centring them and scaling them to deviation 1"""
    model: Literal["linear", "mlp", "cnn"] = "mlp"
    """the network; all tasks use the same outputs"""
    lr: float = 0.1
    """step size η, of all methods"""
    near_alpha: float = 0.03
    """near: α in the penalty α/2 Σ (w − w₀)² beside the mean loss, w₀ being the weights after the previous task"""
    ewc_alpha: float = 30.0
    """ewc: α in α/2 Σ F (w − w₀)², F being how much each weight matters to the old tasks (md.fisher)"""
    rmd_lam: float = 0.25
    """rmd: λ; it has no penalty: as it starts from w₀, it keeps D_ψ(w, w₀) small by itself"""
    anchored_lam: float = 1.0
    """anchored: λ of RMD with ψ = ½ Σ h w² (md.anchored)"""
    strength: float = 10.0
    """anchored: how much an old task adds to h for a weight of mean importance to it"""
    batch_size: int = 32
    """samples per step"""
    epochs: int = 20
    """epochs of each task"""

    def __post_init__(self) -> None:
        for name, kind in kinds_of(Lessons).items():
            if kind is not bool:
                object.__setattr__(self, name, parsed(name, getattr(self, name), kind))
        for name, (holds, rule) in self._rules().items():
            if not holds:
                raise ValueError(f"{name} must be {rule}, got {getattr(self, name)}")
        if self.kind == "permuted" and self.model == "cnn":
            raise ValueError("model 'cnn' sees nothing in permuted pixels; use 'mlp', or kind 'split'")

    def _rules(self) -> dict[str, tuple[bool, str]]:
        positive = ("lr", "near_alpha", "ewc_alpha", "rmd_lam", "anchored_lam")
        return {
            "data": (bool(self.data), "a name or a path"),
            "tasks": (self.tasks >= 2, ">= 2"),
            "samples": (self.samples is None or self.samples >= 1, ">= 1"),
            "batch_size": (self.batch_size >= 1, ">= 1"),
            "epochs": (self.epochs >= 1, ">= 1"),
            "strength": (0 <= self.strength < math.inf, ">= 0 and finite"),
            **{name: (0 < getattr(self, name) < math.inf, "> 0 and finite") for name in positive},
        }


@dataclass(frozen=True)
class Course:
    """One method on one sequence of tasks, from one seed. Settings that the method does not use have their defaults."""

    lessons: Lessons
    method: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")
        others = [name for method, names in SETTINGS.items() for name in names if method != self.method]
        plain = dataclasses.replace(self.lessons, **{name: DEFAULTS[name] for name in others})
        object.__setattr__(self, "lessons", plain)
        for name in SETTINGS[self.method]:
            if name.endswith("_lam"):
                check_rate(plain.lr / getattr(plain, name), f"lr/{name}")

    @property
    def id(self) -> str:
        """A hash of what differs from the defaults, and of method and seed."""
        changed = {name: value for name, value in self.to_dict().items() if value != DEFAULTS.get(name)}
        return hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """For a person.

        >>> Course(Lessons(), "anchored").title
        'RMD anchored, λ = 1, strength 10'
        """
        words = [f"{SYMBOLS[name]}{getattr(self.lessons, name):g}" for name in SETTINGS[self.method]]
        return ", ".join([NAMES[self.method], *words])

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return {**dataclasses.asdict(self.lessons), "method": self.method, "seed": self.seed}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Course:
        """From `to_dict()`. Raises ValueError, KeyError or TypeError where something is not as it should be."""
        lessons = {name: value for name, value in values.items() if name not in ("method", "seed")}
        return cls(Lessons(**lessons), values["method"], values["seed"])


def courses(lessons: Lessons, methods: Sequence[str] = METHODS, seeds: int = SEEDS) -> list[Course]:
    """Every method with every seed. Raises ValueError for a method's setting where that method is not asked for.

    >>> [(course.method, course.seed) for course in courses(Lessons(), ["sgd", "rmd"], seeds=2)]
    [('sgd', 0), ('sgd', 1), ('rmd', 0), ('rmd', 1)]
    """
    if seeds < 1:
        raise ValueError(f"seeds must be >= 1, got {seeds}")
    if not methods:
        raise ValueError(f"methods is empty; known: {', '.join(METHODS)}")
    methods = list(dict.fromkeys(methods))
    found = [Course(lessons, method, seed) for method in methods for seed in range(seeds)]
    for method, names in SETTINGS.items():
        for name in names:
            if method not in methods and getattr(lessons, name) != DEFAULTS[name]:
                raise ValueError(f"{name} is for {method}, and does nothing in {', '.join(methods)}")
    return found


DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Lessons)}
