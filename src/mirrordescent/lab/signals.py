"""Listening to signals for a while: everything is as before when a block ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Have signals go to `handler` within the block; off the main thread, which alone may say so, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
