"""Listening to signals for a while: everything is as before when a block ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def ending() -> tuple[int, ...]:
    """What asks a process to end: SIGTERM, and a terminal that is gone, unless nohup has silenced that."""
    hangup = getattr(signal, "SIGHUP", None)  # which Windows has not
    if hangup is None or signal.getsignal(hangup) == signal.SIG_IGN:
        return (signal.SIGTERM,)
    return (signal.SIGTERM, hangup)


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
