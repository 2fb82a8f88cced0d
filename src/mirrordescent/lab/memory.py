"""Memory: making the C library keep what is freed, in a process that only trains, and telling that there is no more."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
KEPT = 2**30, 2**25  # bytes; glibc before 2.35 takes no more than the second
# in errors that have no class of their own for it: of PyTorch on a CPU, of CUDA, and of its libraries
NO_MEMORY = ("can't allocate memory", "out of memory", "alloc_failed", "allocation_failed")
IN_CAPTURE = "previous error during capture"  # of CUDA, at the end of a capture in which something failed
# in errors of CUDA and its libraries that mostly mean it, and may mean something else: PyTorch tries one of cuDNN's
# plans after another, and for want of memory none of them works; a library has no memory to begin; a capture broke
MOSTLY = ("unable to find an engine", "status_not_initialized", IN_CAPTURE)
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")  # set by somebody who has chosen


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for its next use; returns whether it does.

    Otherwise every activation of a training step on a CPU is given back to the system when the step ends, and taken
    again, page by page, in the next one. This is for the whole process, so a command may call it, but not a library.
    """
    if sys.platform != "linux" or any(name in os.environ for name in OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library, or none that can be called
        return False
    return any(all(mallopt(which, size) for which in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)) for size in KEPT)


def ran_out(error: BaseException) -> bool:
    """Whether an error, or one that it took the place of, says that memory ran out, on the CPU or on a GPU.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    return any(
        isinstance(e, (MemoryError, torch.OutOfMemoryError)) or _says(e, NO_MEMORY) for e in _with_earlier(error)
    )


def may_have_run_out(error: BaseException) -> bool:
    """Whether an error, or one that it took the place of, is as where a GPU's memory ran out: worth another try.

    >>> error = RuntimeError("GET was unable to find an engine to execute this computation")
    >>> ran_out(error), may_have_run_out(error)
    (False, True)
    """
    return ran_out(error) or any(_says(e, MOSTLY) for e in _with_earlier(error))


def _says(error: BaseException, words: Sequence[str]) -> bool:
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _with_earlier(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it took the place of, one after another."""
    while error is not None:
        yield error
        error = error.__context__
