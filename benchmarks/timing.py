"""Timing on the CPU and on a GPU, and the record that a benchmark leaves."""

from __future__ import annotations

import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def seconds(call: Callable[[], object], repeats: int) -> float:
    """What `repeats` calls take, by CUDA events on a GPU and by the clock elsewhere."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return time.perf_counter() - start
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def alternating(calls: Mapping[str, Callable[[], object]], *, blocks: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per call of each, in `blocks` blocks taken in turn, so that a drifting machine touches all alike."""
    for call in calls.values():  # warm up: compilation, allocation, caches
        seconds(call, min(repeats, max(3, repeats // 10)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(blocks):
        for name, call in calls.items():
            times[name].append(seconds(call, repeats) / repeats)
    return times


def median(values: list[float]) -> float:
    return statistics.median(values)


def ratios(times: dict[str, list[float]], name: str, base: str) -> tuple[float, float, float]:
    """The median of the block-by-block ratio name/base, and the quartiles around it."""
    each = [a / b for a, b in zip(times[name], times[base], strict=True)]
    low, middle, high = statistics.quantiles(each, n=4)
    return middle, low, high


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph's replay."""
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


def machine() -> str:
    return (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {_count(torch.get_num_threads(), 'thread')}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _command() -> str:
    """The command line; the record is in results/, and for a folder of somebody's machine stands what it is for."""
    words = []
    for option, word in zip(sys.argv, sys.argv[1:], strict=False):
        if option == "--out":
            words.append(f"results/{Path(word).name}")
        elif Path(word).is_absolute():
            words.append(option.removeprefix("--").replace("-", "_").upper())
        else:
            words.append(word)
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def record(name: str, results: dict[str, Any], out: Path | None) -> None:
    """Write the results with the command and the machine that they come from."""
    if out is None:
        return
    content = {
        "benchmark": name,
        "command": _command(),
        "machine": machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"record: {out}")
