"""The record that a benchmark writes, and the device that it measures."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> str:
    return (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {_count(torch.get_num_threads(), 'thread')}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _command() -> str:
    """The command line, with the record in results/, and for other absolute paths the names of their options."""
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
