"""What several commands take and say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.watching import say

DataName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
Kept = Annotated[Keeping, tyro.conf.arg(name="storage")]  # which the help has as a title
Where = Annotated[Place, tyro.conf.arg(name="device")]


def say_notes(notes: Sequence[str]) -> None:
    """What there is to know beforehand."""
    for note in notes:
        say(f"note: {note}")
