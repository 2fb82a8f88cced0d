"""Keeping a function out of torch.compile's graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def always_eager(function: F) -> F:
    """`torch.compiler.disable`, which has no types of its own, with the function's."""
    return cast(F, torch.compiler.disable(function))
