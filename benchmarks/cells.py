"""A long benchmark in parts: what a part has found is kept in a file, so that the same command goes on."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirrordescent.lab.engine import all_trained, side_by_side
from mirrordescent.lab.files import write_text
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.sweep import Finished, Work, sweep


class OutOfTimeError(Exception):
    """The benchmark's minutes are over; what was begun has its checkpoints."""


def cell(path: Path, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is in the file, or what `measure` finds, which is in the file then."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    found = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=1))
    return found


def trained(works: Sequence[Work], keeping: Keeping, place: Place, until: float) -> None:
    """Train all of them: side by side on a GPU; on a CPU those on known data several at once, then the others.

    Raises OutOfTimeError where that is not done by `until` (of time.monotonic()).
    """
    works = list({(work.root, work.run.id): work for work in works}.values())
    if place.resolved.type == "cuda":
        _check(side_by_side(works, keeping, place, until=until))
        return
    known = [work.run for work in works if work.root == keeping.root]
    minutes = None if until == float("inf") else max(0.0, until - time.monotonic()) / 60
    _check(sweep(known, keeping, dataclasses.replace(place, threads=1), minutes=minutes)[1])
    for work in works:
        if work.root != keeping.root:
            if time.monotonic() > until:
                raise OutOfTimeError
            all_trained([work], keeping, place)


def _check(ended: Sequence[Finished]) -> None:
    for end in ended:
        if end.status == "failed":
            raise RuntimeError(f"{end.run.title}: {end.error}")
    if any(end.status != "done" for end in ended):
        raise OutOfTimeError
