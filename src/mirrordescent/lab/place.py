"""Where a run is computed: the device, how it is used, and what "auto" precision is there. No part of a run's id."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mirrordescent import __version__
from mirrordescent.lab.runs import Run


@dataclass(frozen=True)
class Place:
    """A device and how it is used."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto is a GPU where there is one"""
    threads: int | None = None
    """CPU threads; unless given, PyTorch's number, or side by side a share of it; other numbers change the last bits"""
    deterministic: bool = False
    """on a GPU, use only kernels that give the same result to the last bit every time (slower)"""

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        try:
            device = self.resolved
        except RuntimeError:
            raise ValueError(f"device must be auto, cpu, cuda, cuda:1, …, got {self.device!r}") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {self.device!r} was asked for, but PyTorch finds no GPU; use --device cpu")
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ValueError(f"device {self.device!r} was asked for, but there are {torch.cuda.device_count()} GPUs")
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}")

    @property
    def resolved(self) -> torch.device:
        """The device, with "auto" decided."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Set up PyTorch for this place; its settings are as before when the block ends."""
        threads, cudnn = torch.get_num_threads(), torch.backends.cudnn.deterministic
        search = torch.backends.cudnn.benchmark
        everything = torch.are_deterministic_algorithms_enabled()
        only_warn = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            if self.threads is not None:
                torch.set_num_threads(self.threads)
            torch.backends.cudnn.benchmark = not self.deterministic  # the fastest kernel, or always the same one
            if self.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # older cuBLAS asks for it
                torch.backends.cudnn.deterministic = True
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn, search
            torch.use_deterministic_algorithms(everything, warn_only=only_warn)

    def autocast(self, run: Run) -> AbstractContextManager[Any]:
        """PyTorch's autocast to bfloat16 where that is the run's precision here; else nothing."""
        if precision(run, self.resolved) == "bfloat16":
            return torch.autocast(self.resolved.type, dtype=torch.bfloat16)
        return nullcontext()

    def described(self, run: Run) -> dict[str, Any]:
        """What the run was computed with, for its record."""
        device = self.resolved
        return {
            "mirrordescent": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": self.threads or torch.get_num_threads(),
            "precision": precision(run, device),
            "deterministic": self.deterministic or device.type == "cpu",
        }


def precision(run: Run, device: torch.device) -> Literal["float32", "bfloat16"]:
    """The forward pass's precision. Raises ValueError for bfloat16 on a CPU, where convolutions may not have it."""
    if run.precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    if run.precision == "bfloat16" and device.type != "cuda":
        raise ValueError("precision 'bfloat16' needs a GPU; use --precision float32")
    return run.precision
