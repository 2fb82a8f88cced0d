"""Keep a function out of torch.compile's graphs, and the host from waiting for a GPU where it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

# `torch._disable_dynamo`, which torch's own optimizers use, loads the compiler when the function is first called;
# `torch.compiler.disable` would load it here, and importing this package would take seconds.
_disable: Callable[..., Any] = getattr(torch, "_disable_dynamo", torch.compiler.disable)


def always_eager(function: F) -> F:
    """Decorator: torch.compile runs the function as it is, outside its graphs. The function keeps its type."""
    return cast(F, _disable(function))


def may_wait() -> bool:
    """Whether the host may wait for a GPU: not during graph capture, nor under `torch.cuda.set_sync_debug_mode`."""
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0
