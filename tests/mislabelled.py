"""A table of one's own with wrong labels."""

from __future__ import annotations

import csv
import random
from pathlib import Path


def table(path: Path, rows: int = 300, classes: int = 2, wrong: float = 0.1, lonely: bool = False) -> set[int]:
    """A CSV file with wrong labels; returns the file's lines that have them."""
    draw, bad = random.Random(0), set()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "a", "b", "colour"])
        for line in range(2, rows + 2):
            true = draw.randrange(classes)
            given = (true + 1) % classes if draw.random() < wrong else true
            if given != true:
                bad.add(line)
            numbers = [f"{draw.gauss(4 * (true == k), 1):.3f}" for k in range(2)]
            writer.writerow([f"kind {given}", *numbers, draw.choice(["red", "blue"])])
        if lonely:
            writer.writerow(["alone", "30", "30", "red"])
    return bad
