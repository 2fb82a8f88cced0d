"""Which line a warning points at: the user's, the first up the stack that is neither ours nor PyTorch's."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

INSIDE = tuple(str(Path(str(file)).parent) for file in (torch.__file__, __file__))


def outside() -> int:
    """The `stacklevel` with which a warning given by the calling function points at the user's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    return level
