"""Timing calls against each other, on the CPU and on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """The time of one call relative to another's: the median over blocks, and the quartiles around it."""

    middle: float
    low: float
    high: float


def seconds(call: Call, repeats: int, device: torch.device) -> float:
    """How long `repeats` calls take, by CUDA events on a GPU and by the clock elsewhere."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return time.perf_counter() - start
    with torch.cuda.device(device):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def alternating(
    calls: Mapping[str, Call],
    *,
    blocks: int,
    repeats: int,
    device: torch.device,
    hear: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds per call of each, in `blocks` blocks taken in turn, so that a drifting machine touches all alike.

    hear: is told how many blocks are done.
    """
    for call in calls.values():  # warm up: compilation, allocation, caches
        seconds(call, min(repeats, max(3, repeats // 10)), device)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks):
        for name, call in calls.items():
            times[name].append(seconds(call, repeats, device) / repeats)
        hear(block + 1)
    return times


def ratio(times: Mapping[str, list[float]], name: str, base: str) -> Ratio:
    """The times of two calls that were timed in the same blocks, divided block by block.

    >>> ratio({"a": [1.0, 2.0, 3.0], "b": [2.0, 2.0, 2.0]}, "a", "b")
    Ratio(middle=1.0, low=0.5, high=1.5)
    """
    each = [a / b for a, b in zip(times[name], times[base], strict=True)]
    low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    return Ratio(middle, low, high)


def captured(call: Call) -> Call:
    """The call captured as a CUDA graph; to call the result is to replay it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
