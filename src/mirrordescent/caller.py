"""Warnings that point at the user's line, the first up the stack that is neither ours nor PyTorch's."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

INSIDE = tuple(str(Path(str(file)).parent) for file in (torch.__file__, __file__))


def warn(told: str, category: type[Warning] = UserWarning) -> None:
    """Give a warning at the user's line."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(told, category, stacklevel=level)
