"""A long benchmark in parts: the result of each is kept in a file, so that the same command continues."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recording import machine

from mirrordescent.lab.engine import all_trained, side_by_side
from mirrordescent.lab.files import write_text
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.sweep import Finished, Work, sweep


def add_options(parser: argparse.ArgumentParser, root: Path) -> None:
    """The options of such a benchmark. root: the default folder for its runs and parts."""
    parser.add_argument("--model", default="auto", help="the network; auto is what suits the data")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--root", type=Path, default=root)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes; the same command continues")
    parser.add_argument("--out", type=Path, help="where to write the record")
    parser.add_argument("--known", type=Path, help="a record of this benchmark, whose parts are not measured again")


def cell(root: Path, name: str, of: Sequence[str], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The part that is kept under that name, or what `measure` returns, which is kept with the machine's name.

    of: all that it depends on, such as the ids of runs and the data's digest; if any of it changes, it is another part.
    The code does not count: after a change to how labels are judged, remove the folder `cells`.
    """
    part = f"{name}-{hashlib.sha256(json.dumps([*of]).encode()).hexdigest()[:12]}"
    path = _path(root, part)
    if not path.exists():
        _keep(path, {**measure(), "machine": machine(), "part": part})
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def take_up(root: Path, known: Path | None) -> None:
    """Keep a record's parts as if they had been measured here, so that a benchmark continues on another machine."""
    if known is None:
        return
    each = json.loads(known.read_text())["results"]["each"]
    for one in itertools.chain(*each.values()) if isinstance(each, dict) else each:
        if "part" not in one:
            raise SystemExit(f"{known} was written before records named their parts: measure anew, without --known")
        if not (path := _path(root, one["part"])).exists():
            _keep(path, one)


def _path(root: Path, part: str) -> Path:
    return root / "cells" / f"{part}.json"


def _keep(path: Path, found: dict[str, Any]) -> None:
    write_text(path, json.dumps(found, indent=1) + "\n")


@contextlib.contextmanager
def within(minutes: float | None) -> Iterator[None]:
    """Stop as by Ctrl-C when the minutes are over: what is under way writes its checkpoint, and can continue."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(60 * (minutes or 0), stop)
    timer.daemon = True
    if minutes is not None:
        timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not over.is_set():
            raise
        print(f"the {minutes:g} minutes are over; the same command continues")
    finally:
        timer.cancel()


def trained(works: Sequence[Work], keeping: Keeping, place: Place) -> None:
    """Train all works: on a GPU side by side; on a CPU those on the data by name several at once, then the others."""
    works = list({(work.root, work.run.id): work for work in works}.values())
    if place.resolved.type == "cuda":
        _check(side_by_side(works, keeping, place))
        return
    known = [work.run for work in works if work.root == keeping.root]
    _check(sweep(known, keeping, dataclasses.replace(place, threads=1))[1])
    all_trained([work for work in works if work.root != keeping.root], keeping, place)


def _check(ended: Sequence[Finished]) -> None:
    for end in ended:
        if end.status != "done":
            raise RuntimeError(f"{end.run.title}: {end.status} {end.error}")
