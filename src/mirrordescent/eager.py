"""Keeping a function out of torch.compile's graphs, and the host from waiting for a GPU where it must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])

# The form that torch's own optimizers use loads the compiler when it is first called; `torch.compiler.disable` loads it
# here, and importing this package would take seconds.
_disable: Callable[..., Any] = getattr(torch, "_disable_dynamo", torch.compiler.disable)


def always_eager(function: F) -> F:
    """A function that torch.compile runs as it is, with the type it has."""
    return cast(F, _disable(function))


def may_wait() -> bool:
    """Whether the host may wait for a GPU: not while a graph is captured, nor where somebody has forbidden it."""
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() == 0
