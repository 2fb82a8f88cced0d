"""Keeping a function out of torch.compile's graphs."""

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
