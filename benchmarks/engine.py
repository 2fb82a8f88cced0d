"""The engine's captured step, 1 to 8 runs side by side, against a plain loop with a DataLoader, on one GPU.

    python benchmarks/engine.py --out results/engine-h200.json
    python benchmarks/engine.py --data-root ~/.cache/mirrordescent --runs 1 8

The paper's setting: ResNet-18 on images of CIFAR's size, batch 128, crop and flip, near-zero start. The ways of
training take turns, so that all see the same machine. The plain loops (4 workers, PIL images, torchvision's transforms,
the loss and the accuracy read at every step) leave everything else as PyTorch has it: workers start anew at every
epoch, cuDNN takes the kernels that it thinks best. At the end: which kernels a captured step spends its time in, for
one run alone and for all side by side.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from recording import record
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

import mirrordescent as md
from mirrordescent.lab.captured import Captured
from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.data.catalog import known_set
from mirrordescent.lab.job import Job, optimizer_for
from mirrordescent.lab.models import build
from mirrordescent.lab.paper import our_rmd, paper_rmd
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run
from mirrordescent.lab.timing import ratio
from mirrordescent.lab.visits import PADDING

Transform = Callable[[Image.Image], Tensor]
Update = Callable[[Tensor, Tensor], None]  # per-sample losses with their graph, and which samples they are of

WARM_UP = 20  # steps: libraries choose their kernels
PROFILED = 5  # steps
LISTED = 40  # kernels of a profile that the record names

# A kernel is in the first group whose pattern fits its name: cuDNN 9's names, ours, and Inductor's, which say all that
# a kernel does.
GROUPS = {
    "convolutions, weights": "wgrad|ReduceSplitK",
    "convolutions, data": "dgrad",
    "convolutions, forward": "fprop|conv2d|convolve|implicit_gemm",
    "batch norm and relu": "batch_norm|threshold|relu|^_statistics|^_normalise|^_gradient|fused_add_copy_",
    "casts and layouts": "to_copy|copy_kernel|copy<|^_patches|AddPadding|nchwTo|nhwcTo",
    "optimizer": "multi_tensor_apply|^_step|indexFunc",  # the weights, and z
    "the rest": "",
}


def random_data() -> Data:
    """Noise of CIFAR-10's size and scale."""
    generator, like = torch.Generator().manual_seed(0), known_set("cifar10")
    inputs = torch.randint(256, (50_000, *like.shape), dtype=torch.uint8, generator=generator)
    targets = torch.randint(10, (50_000,), generator=generator)
    test = inputs[:10_000], targets[:10_000]
    return Data("random images", inputs, targets, *test, classes=10, mean=like.mean, std=like.std)


class Pictures(Dataset[tuple[Tensor, int, int]]):
    """Like torchvision's CIFAR10: transforms a PIL image at every visit; and gives its index, which z needs."""

    def __init__(self, data: Data, transform: Transform) -> None:
        self.images = data.inputs.permute(0, 2, 3, 1).contiguous().numpy()  # (n, height, width, channels)
        self.labels: list[int] = data.targets.tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, int, int]:
        return self.transform(Image.fromarray(self.images[i])), self.labels[i], i


def torchvision_transform(data: Data) -> Transform | None:
    """Crop, flip and scaling as most scripts do them; None where torchvision is missing."""
    try:
        transforms = importlib.import_module("torchvision.transforms")
    except ImportError as error:
        print(f"the plain loops are left out: {error}")
        return None
    assert data.mean is not None
    assert data.std is not None
    steps = [
        transforms.RandomCrop(data.shape[1], padding=PADDING),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(data.mean, data.std),
    ]
    transform: Transform = transforms.Compose(steps)
    return transform


def printed_update(run: Run, model: nn.Module, n: int) -> Update:
    """The paper's Algorithm 2 as it is printed, with ψ = ‖w‖², so that ∇ψ(w) = 2w."""
    weights = list(model.parameters())
    assert run.lam is not None
    lr, lam = run.lr, run.lam
    z = torch.zeros(n, device=weights[0].device)

    def update(losses: Tensor, index: Tensor) -> None:
        mean = losses.mean()
        model.zero_grad()
        torch.autograd.backward(mean)
        with torch.no_grad():
            s = (2 * mean).sqrt()
            c = lr * (z[index].mean() - s)
            for w in weights:
                assert w.grad is not None
                w.add_(c / s * w.grad / 2)
            z[index] -= c / lam

    return update


def library_update(run: Run, model: nn.Module, n: int) -> Update:
    """The update by the run's md.RMD."""
    optimizer = optimizer_for(run, model, n)
    assert isinstance(optimizer, md.RMD)

    def update(losses: Tensor, index: Tensor) -> None:
        optimizer.zero_grad()
        optimizer.loss(losses, index).backward()
        optimizer.step()

    return update


def plain_steps(
    run: Run,
    data: Data,
    transform: Transform,
    device: torch.device,
    updating: Callable[[Run, nn.Module, int], Update],
    *,
    workers: int,
    bfloat16: bool,
) -> Iterator[tuple[float, float]]:
    """One step per `next`, as most people would write it; gives the step's mean loss and accuracy.

    Not in channels-last, so that the network consists of PyTorch's own operations.
    """
    assert data.classes is not None
    model = build(run.model, data.shape, data.classes, start=run.start, seed=run.seed).to(device)
    update = updating(run, model, len(data))
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(
        Pictures(data, transform),  # type: ignore[arg-type]  # the loader collates them
        batch_size=run.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
    )
    while True:
        for batch in loader:
            x, y, index = (tensor.to(device) for tensor in batch)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
                outputs = model(x)
            losses = F.cross_entropy(outputs.float(), y, reduction="none")
            update(losses, index)
            yield losses.mean().item(), (outputs.argmax(1) == y).float().mean().item()


def plain_seconds(loop: Iterator[object], in_epoch: int, steps: int) -> float:
    """Seconds per epoch, scaled up from `steps`; in a whole epoch, the workers start once."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        begun = time.perf_counter()
        for _ in range(steps):
            next(loop)
        return (time.perf_counter() - begun) * in_epoch / steps


def engine_seconds(graphs: Sequence[Captured], steps: int) -> float:
    """Seconds per run and epoch: the epoch's draws, and `steps` steps of every run in turn, scaled up."""
    begun = time.perf_counter()
    for graph in graphs:
        graph.begin(1)
    torch.cuda.synchronize()
    drawn = time.perf_counter()
    for _ in range(steps):
        for graph in graphs:
            graph.step()
    torch.cuda.synchronize()
    took = (time.perf_counter() - drawn) * graphs[0].job.steps / steps
    return (drawn - begun + took) / len(graphs)


@dataclass(frozen=True)
class Way:
    """A way to train. seconds: measures a run's epoch over a number of steps, which is `steps` when it counts."""

    name: str
    steps: int
    seconds: Callable[[int], float]


def plain_ways(data: Data, device: torch.device, workers: int, steps: int | None) -> list[Way]:
    """The plain loop as the authors have it, and in bfloat16 with our optimizer; none where torchvision is missing."""
    transform = torchvision_transform(data)
    if transform is None:
        return []
    make = partial(plain_steps, data=data, transform=transform, device=device, workers=workers)
    theirs = make(paper_rmd(40, 1.2), updating=printed_update, bfloat16=False)
    ours = make(our_rmd(40, 2.0), updating=library_update, bfloat16=True)
    loops = {"plain loop, float32, Algorithm 2": theirs, "plain loop, bfloat16, md.RMD": ours}
    in_epoch = len(data) // our_rmd(40, 2.0).batch_size
    return [Way(name, steps or in_epoch, partial(plain_seconds, loop, in_epoch)) for name, loop in loops.items()]


def described(workers: int) -> dict[str, Any]:
    """What the plain loops are, for the record."""
    return {
        "loader": f"{workers} workers, which start anew at every epoch; PIL images; memory not pinned",
        "transforms": f"RandomCrop(padding={PADDING}), RandomHorizontalFlip, ToTensor, Normalize",
        "each_step": "loss and accuracy by .item()",
        "memory_format": "NCHW",
        "tf32_convolutions_in_float32": torch.backends.cudnn.allow_tf32,
        "cudnn_looks_for_the_fastest": False,
    }


def in_use() -> int:
    """Bytes of the GPU's memory that are taken, by graphs too."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def captures(data: Data, place: Place, count: int) -> tuple[list[Captured], dict[str, Any]]:
    """Capture `count` runs; also what the first (with what all share) and each further one take, in bytes and time."""
    graphs: list[Captured] = []
    used, clock = [in_use()], [time.perf_counter()]
    for seed in range(count):
        graphs.append(Captured(Job(our_rmd(40, 2.0, seed), data, place)))
        used.append(in_use())
        clock.append(time.perf_counter())

    def further(values: Sequence[float]) -> float | None:
        return (values[-1] - values[1]) / (count - 1) if count > 1 else None

    memory = {"first_run": used[1] - used[0], "each_further_run": further(used), "all": used[-1] - used[0]}
    seconds = {"first_run": clock[1] - clock[0], "each_further_run": further(clock)}
    return graphs, {"bytes": memory, "seconds_to_capture": seconds}


def engine_ways(graphs: Sequence[Captured], runs: Sequence[int], steps: int) -> list[Way]:
    """The captured step with so many runs side by side."""
    return [Way(engine_name(count), steps, partial(engine_seconds, graphs[:count])) for count in runs]


def engine_name(count: int) -> str:
    return f"engine, {count} run{'s' if count > 1 else ''}"


def measured(ways: Sequence[Way], repeats: int) -> dict[str, list[float]]:
    """Seconds per run and epoch of each way, the ways taken in turn."""
    for way in ways:
        way.seconds(WARM_UP)
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            times[way.name].append(way.seconds(way.steps))
    return times


@dataclass(frozen=True)
class Kernel:
    """What a profiler saw on the GPU; times in microseconds."""

    name: str
    start: float
    end: float


def kernels(graphs: Sequence[Captured], steps: int) -> list[Kernel]:
    """All that runs on the GPU during some steps of every run."""
    for graph in graphs:
        graph.begin(1)
    for _ in range(2):  # the first time, the profiler itself starts
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(steps):
                for graph in graphs:
                    graph.step()
            torch.cuda.synchronize()
    events = [event for event in seen.events() or [] if event.device_type.name == "CUDA"]
    return [Kernel(event.name, event.time_range.start, event.time_range.end) for event in events]


def group_of(name: str) -> str:
    """What a kernel is for."""
    return next(group for group, pattern in GROUPS.items() if re.search(pattern, name, re.IGNORECASE))


def busy(seen: Sequence[Kernel]) -> float:
    """For how long at least one kernel ran."""
    total, until = 0.0, -float("inf")
    for kernel in sorted(seen, key=lambda kernel: kernel.start):
        total += max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return total


def summed(seen: Sequence[Kernel], steps: int) -> dict[str, Any]:
    """A profile of `steps` steps (of all runs together): microseconds and numbers of kernels per step of one run."""
    took: dict[str, list[float]] = {}
    for kernel in seen:
        took.setdefault(kernel.name, []).append(kernel.end - kernel.start)
    rows: list[dict[str, Any]] = [
        {"group": group_of(name), "us": sum(each) / steps, "number": len(each) / steps, "name": name[:160]}
        for name, each in sorted(took.items(), key=lambda item: -sum(item[1]))
    ]
    groups = {
        group: {key: sum(row[key] for row in rows if row["group"] == group) for key in ("us", "number")}
        for group in GROUPS
    }
    span = max(kernel.end for kernel in seen) - min(kernel.start for kernel in seen)
    kernel_us = sum(row["us"] for row in groups.values())
    return {
        "us": span / steps,
        "kernels": len(seen) / steps,
        "kernel_us": kernel_us,
        "between_kernels_us": (span - busy(seen)) / steps,
        "kernels_at_once": kernel_us * steps / busy(seen),
        "groups": groups,
        "longest": rows[:LISTED],
    }


def show_times(ways: Sequence[Way], times: dict[str, list[float]], in_epoch: int) -> dict[str, Any]:
    """The table of times, printed and for the record."""
    print(f"\n{'seconds per run and epoch':34} median   quartiles")
    results: dict[str, Any] = {}
    for way in ways:
        low, middle, high = statistics.quantiles(times[way.name], n=4)
        note = "" if way.steps == in_epoch else f"   ({way.steps} steps, scaled up to {in_epoch})"
        print(f"{way.name:34} {middle:6.3f}   [{low:.3f}, {high:.3f}]{note}")
        row = {"seconds": middle, "quartiles": [low, high], "each": times[way.name]}
        results[way.name] = {**row, "steps_timed": way.steps, "scaled_up_to": in_epoch}
    return results


def show_ratios(times: dict[str, list[float]], runs: Sequence[int]) -> dict[str, Any]:
    """Each plain loop over the engine with the most and with the fewest runs, printed and for the record."""
    results: dict[str, Any] = {}
    for count in sorted({min(runs), max(runs)}, reverse=True):
        for name in (name for name in times if name.startswith("plain")):
            found = ratio(times, name, engine_name(count))
            print(f"{name} / {engine_name(count)} = {found.middle:.2f}   quartiles [{found.low:.2f}, {found.high:.2f}]")
            results[f"{name} / {engine_name(count)}"] = {"ratio": found.middle, "quartiles": [found.low, found.high]}
    return results


def show_profile(name: str, found: dict[str, Any]) -> None:
    """Where a step's time goes."""
    print(f"\n{name}, a step under the profiler: {found['us']:.0f} µs, {found['kernels']:.0f} kernels, ", end="")
    print(f"{found['kernels_at_once']:.2f} at once; {found['between_kernels_us']:.0f} µs between kernels")
    for group, row in found["groups"].items():
        print(f"  {group:24} {row['us']:7.0f} µs {row['us'] / found['kernel_us']:6.1%} {row['number']:5.0f} kernels")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, help="folder with CIFAR-10 (default: random images of its size)")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4, 8], help="how many runs side by side")
    parser.add_argument("--epochs-part", type=int, help="steps per timing of the engine (default: a whole epoch)")
    parser.add_argument("--plain-steps", type=int, help="steps per timing of a plain loop (default: a whole epoch)")
    parser.add_argument("--workers", type=int, default=4, help="workers of the plain loops' DataLoader")
    parser.add_argument("--repeats", type=int, default=5, help="timings of each")
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    for name in ("runs", "epochs_part", "plain_steps"):
        value = getattr(arguments, name)
        if value is not None and min(value if isinstance(value, list) else [value]) < 1:
            parser.error(f"--{name.replace('_', '-')} must be >= 1")
    if arguments.repeats < 2:
        parser.error(f"--repeats must be >= 2, for quartiles, got {arguments.repeats}")
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/engine.py needs a CUDA GPU: the engine's step is a CUDA graph")
    return arguments


def all_of_it(arguments: argparse.Namespace, data: Data, place: Place) -> dict[str, Any]:
    """Measure everything, and print it as it comes."""
    runs, run = sorted(set(arguments.runs)), our_rmd(40, 2.0)
    in_epoch = len(data) // run.batch_size
    plain = plain_ways(data, place.resolved, arguments.workers, arguments.plain_steps)
    for way in plain:
        way.seconds(1)  # the workers start while the process is small
    graphs, taken = captures(data, place, runs[-1])
    each = taken["bytes"]["each_further_run"] or taken["bytes"]["first_run"]
    print(f"memory: {each / 2**30:.2f} GiB per run, {taken['bytes']['all'] / 2**30:.2f} GiB for {runs[-1]}")
    ways = plain + engine_ways(graphs, runs, min(arguments.epochs_part or in_epoch, in_epoch))
    times = measured(ways, arguments.repeats)
    results: dict[str, Any] = {
        "data": data.name,
        "run": run.to_dict(),
        "steps_per_epoch": in_epoch,
        "repeats": arguments.repeats,
        "plain_loop": described(arguments.workers) if plain else None,
        "seconds_per_run_and_epoch": show_times(ways, times, in_epoch),
        "ratios": show_ratios(times, runs),
        "memory_in_bytes": taken["bytes"],
        "seconds_to_capture": taken["seconds_to_capture"],
        "profile_of_a_step": {},
    }
    for count in sorted({runs[0], runs[-1]}):
        found = summed(kernels(graphs[:count], PROFILED), PROFILED * count)
        results["profile_of_a_step"][engine_name(count)] = found
        show_profile(engine_name(count), found)
    assert all(bool(w.isfinite().all()) for graph in graphs for w in graph.job.model.parameters())
    return results


def main() -> None:
    arguments = parsed()
    data = random_data() if arguments.data_root is None else load(Source("cifar10"), arguments.data_root)
    place = Place("cuda")
    with place.taken():
        results = all_of_it(arguments, data, place)
    record("engine", results, arguments.out)


if __name__ == "__main__":
    main()
