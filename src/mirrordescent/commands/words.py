"""Argument types and messages that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import DamagedError
from mirrordescent.lab.watching import say

DataName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
Kept = Annotated[Keeping, tyro.conf.arg(name="storage")]  # the title of these options in the help
Where = Annotated[Place, tyro.conf.arg(name="device")]


def left_out(error: DamagedError) -> None:
    """Say that a record is damaged, and that the report is about the others."""
    say(f"rmd: left out of the report: {error}")


def say_notes(notes: Sequence[str]) -> None:
    """Print what a person should know before the work begins."""
    for note in notes:
        say(f"note: {note}")
