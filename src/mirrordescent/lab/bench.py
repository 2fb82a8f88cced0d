"""What RMD and SMD cost on this machine: the time of whole training steps, relative to SGD's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.models import build
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run
from mirrordescent.lab.timing import Ratio, alternating, captured, ratio, seconds

GREY, COLOURED = (1, 28, 28), (3, 32, 32)
SHAPES = {"linear": GREY, "mlp": GREY, "cnn": GREY, "deep-cnn": COLOURED, "resnet18": COLOURED}
CLASSES = 10
SGD = "SGD"
LR = 1e-12  # so small that weights stay as they are under every potential; a step takes as long with any lr
WARM_UP = 3  # steps
NOISY = 0.2  # quartiles further apart than this share of their ratio make a measurement noisy


@dataclass(frozen=True)
class Bench:
    """What to time, and for how long."""

    model: Literal["auto", "linear", "mlp", "cnn", "deep-cnn", "resnet18"] = "auto"
    """the network, on random images; auto is cnn on a CPU and resnet18 on a GPU"""
    batch_size: int = 128
    """samples per step"""
    samples: int = 50_000
    """samples in the training set: RMD keeps a number for each"""
    seconds: float = 15.0
    """how long to measure, roughly"""
    blocks: int = 11
    """blocks in which the methods take turns; shown are the median of their ratios and the quartiles"""

    def __post_init__(self) -> None:
        if self.model != "auto" and self.model not in SHAPES:
            raise ValueError(f"model must be one of auto, {', '.join(SHAPES)}, got {self.model!r}")
        for name, least in (("batch_size", 2), ("samples", 1), ("blocks", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be > 0 and finite, got {self.seconds}")
        if self.batch_size > self.samples:
            raise ValueError(f"batch_size must be at most samples, got {self.batch_size} of {self.samples}")


@dataclass(frozen=True)
class Cost:
    """The time of a method's training step relative to SGD's: run eagerly, and on a GPU also as a CUDA graph."""

    method: str
    eager: Ratio
    graph: Ratio | None


@dataclass(frozen=True)
class Costs:
    """What was timed, and how long it took."""

    bench: Bench
    parameters: int
    state_bytes: int  # of z
    sgd_ms: dict[str, float]  # the median of SGD's step, by way: "eager", "graph"
    environment: dict[str, Any]
    rows: tuple[Cost, ...]

    @property
    def noisy(self) -> bool:
        """Whether the blocks differ so much that something else must have been using the machine."""
        ratios = [found for row in self.rows for found in (row.eager, row.graph) if found is not None]
        return any(found.high - found.low > NOISY * found.middle for found in ratios)

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary for JSON."""
        return asdict(self)


class Training:
    """A network and a random batch on a device, and one training step."""

    def __init__(self, bench: Bench, device: torch.device, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]):
        shape, draw = SHAPES[bench.model], torch.Generator(device).manual_seed(0)
        model = build(bench.model, shape, CLASSES).to(device)
        # (torch's stubs do not have it)
        self.model: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = torch.randn(bench.batch_size, *shape, device=device, generator=draw)
        self.x = x.to(memory_format=torch.channels_last)
        self.y = torch.randint(CLASSES, (bench.batch_size,), device=device, generator=draw)
        self.index = torch.randperm(bench.samples, device=device, generator=draw)[: bench.batch_size]
        self.optimizer = make(list(self.model.parameters()))

    def step(self) -> None:
        """Forward, backward and update; on a GPU the forward pass is in bfloat16."""
        self.optimizer.zero_grad()
        with torch.autocast(self.x.device.type, dtype=torch.bfloat16, enabled=self.x.is_cuda):
            outputs = self.model(self.x)
        if isinstance(self.optimizer, md.RMD):
            loss = self.optimizer.loss(F.cross_entropy(outputs.float(), self.y, reduction="none"), self.index)
        else:
            loss = F.cross_entropy(outputs.float(), self.y)
        loss.backward()
        self.optimizer.step()


def trainings(bench: Bench, device: torch.device, potentials: Sequence[str]) -> dict[str, Training]:
    """SGD, and SMD and RMD with each potential; on a GPU by kernels that update many weight tensors at once."""
    fused = True if device.type == "cuda" else None
    made = {SGD: Training(bench, device, lambda w: torch.optim.SGD(w, LR, fused=fused))}
    for spec in dict.fromkeys(potentials):

        def smd(w: list[nn.Parameter], spec: str = spec) -> md.SMD:
            return md.SMD(w, LR, spec)

        def rmd(w: list[nn.Parameter], spec: str = spec) -> md.RMD:
            return md.RMD(w, LR, 20 * LR, bench.samples, spec)

        made |= {f"SMD {spec}": Training(bench, device, smd), f"RMD {spec}": Training(bench, device, rmd)}
    return made


def measured(
    bench: Bench,
    place: Place | None = None,
    potentials: Sequence[str] = ("l2",),
    hear: Callable[[int, int], None] = lambda _done, _all: None,
) -> Costs:
    """Time the methods in turn. hear: is told how many blocks are done, and how many there are.

    Raises ValueError for an unknown potential, or one that is not defined at the network's weights (entropy).

    >>> costs = measured(Bench(model="linear", batch_size=2, samples=10, seconds=0.01, blocks=2), Place("cpu"))
    >>> [row.method for row in costs.rows]
    ['SGD', 'SMD l2', 'RMD l2']
    """
    if not potentials:
        raise ValueError("potentials is empty; name some, such as l2")
    place = place or Place()
    device = place.resolved
    if bench.model == "auto":
        bench = replace(bench, model="resnet18" if device.type == "cuda" else "cnn")
    ways = ("eager", "graph") if device.type == "cuda" else ("eager",)
    found: dict[str, dict[str, Ratio]] = {}
    sgd_ms: dict[str, float] = {}
    with place.taken():
        made = trainings(bench, device, potentials)
        for number, way in enumerate(ways):
            calls = {name: one.step if way == "eager" else captured(one.step) for name, one in made.items()}
            one_of_each = sum(seconds(call, WARM_UP, device) / WARM_UP for call in calls.values())
            repeats = max(1, round(bench.seconds / (len(ways) * bench.blocks * one_of_each)))

            def done(blocks: int, before: int = number * bench.blocks) -> None:
                hear(before + blocks, len(ways) * bench.blocks)

            times = alternating(calls, blocks=bench.blocks, repeats=repeats, device=device, hear=done)
            sgd_ms[way] = 1e3 * statistics.median(times[SGD])
            for name in calls:
                found.setdefault(name, {})[way] = ratio(times, name, SGD)
    rmd = next(one.optimizer for one in made.values() if isinstance(one.optimizer, md.RMD))
    return Costs(
        bench,
        sum(w.numel() for w in made[SGD].model.parameters()),
        rmd.aux.values.nbytes,
        sgd_ms,
        place.described(Run()),
        tuple(Cost(name, held["eager"], held.get("graph")) for name, held in found.items()),
    )
