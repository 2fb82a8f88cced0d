"""Training's memory is taken from the system once, not at every step."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from mirrordescent.lab import memory

GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, torch
from mirrordescent.lab.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        a, b = torch.ones(2**20), torch.ones(2**21)  # 4 and 8 MiB
        del a, b
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, kept, _, then = faults(), keep_freed_memory(), faults(), faults()
print(int(kept), first, then)
"""


def measured(monkeypatch: pytest.MonkeyPatch, **environment: str) -> list[int]:
    for name in memory.OWN:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not GLIBC, reason="it is glibc's malloc")
def test_freed_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, before, after = measured(monkeypatch)
    assert kept
    assert 10 * after < before


@pytest.mark.skipif(not GLIBC, reason="it is glibc's malloc")
def test_what_a_person_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _, after = measured(monkeypatch, MALLOC_MMAP_THRESHOLD_="131072")
    assert not kept
    assert after > 40  # if pages are huge; else thousands


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert not memory.keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not memory.keep_freed_memory()


def test_an_older_library_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Older:
        def mallopt(self, which: int, size: int) -> int:
            asked.append((which, size))
            return int(size <= 2**25)

    for name in memory.OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("ctypes.CDLL", lambda _: Older())
    assert memory.keep_freed_memory()
    assert asked[-2:] == [(memory.M_MMAP_THRESHOLD, 2**25), (memory.M_TRIM_THRESHOLD, 2**25)]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    ],
    ids=str,
)
def test_that_there_is_no_memory_is_known_in_every_form(error: Exception) -> None:
    assert memory.ran_out(error)
    instead = RuntimeError("the capture ended")
    instead.__context__ = error
    assert memory.ran_out(instead)
    assert not memory.ran_out(RuntimeError("CUDA error: invalid argument"))


@pytest.mark.parametrize(
    "told",
    [
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "CUDA error: operation failed due to a previous error during capture",
    ],
)
def test_what_may_have_another_cause_is_a_reason_to_try_again_and_no_more(told: str) -> None:
    error = RuntimeError(told)
    assert memory.may_have_run_out(error)
    assert not memory.ran_out(error)  # of which a command tells as a lack of memory
    instead = RuntimeError("the step ended")
    instead.__context__ = error
    assert memory.may_have_run_out(instead)
    assert not memory.may_have_run_out(RuntimeError("CUDA error: invalid argument"))
    assert not memory.may_have_run_out(ValueError(told))
    assert memory.may_have_run_out(MemoryError())
