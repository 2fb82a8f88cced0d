"""Memory: making the C library keep what is freed, in a process that only trains, and telling that there is no more."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
KEPT = 2**30, 2**25  # bytes; glibc before 2.35 takes no more than the second
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
    """Whether an error says that memory ran out; PyTorch's allocator on the CPU has no class of its own for it.

    >>> ran_out(MemoryError()), ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    (True, True)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
