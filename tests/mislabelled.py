"""A table of one's own with wrong labels."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path


def animals(path: Path, rows: int = 654, wrong: float = 0.05, seed: int = 0) -> set[int]:
    """Four kinds of unequal size, of which one is like a larger one; returns the file's lines with a wrong label."""
    draw, bad = random.Random(seed), set()
    kinds = {"cat": (4.2, 24, 120), "dog": (18.0, 50, 300), "rabbit": (2.1, 18, 40), "horse": (480.0, 155, 4200)}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["weight", "height", "price", "age", "coat", "colour", "vet", "species"])
        for line in range(2, rows + 2):
            (true,) = draw.choices(list(kinds), [0.40, 0.35, 0.17, 0.08])
            given = draw.choice([kind for kind in kinds if kind != true]) if draw.random() < wrong else true
            if given != true:
                bad.add(line)
            weight, height, price = kinds[true]
            numbers = [
                f"{size * math.exp(draw.gauss(0, spread)):.2f}"
                for size, spread in ((weight, 0.35), (height, 0.15), (price, 0.5))
            ]
            words = [draw.choice(["short", "long", "wire"]), draw.choice(["black", "brown", "white", "grey", "mixed"])]
            writer.writerow([*numbers, f"{draw.gammavariate(2, 3):.1f}", *words, draw.choice(["Lee", "Okoye"]), given])
    return bad


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
