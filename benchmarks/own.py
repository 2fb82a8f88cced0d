"""How long `rmd audit` takes and what it finds on one's own data: a table, texts, and a folder of pictures.

    python benchmarks/own.py --out results/own.json

The table and the pictures are made here; the texts are what installed libraries say of their functions (up to 600
characters each; the class is the library), so they change with the releases. Nothing was tuned on the table; the
network for pictures and the way to read texts were chosen on such pictures and texts, among others. The table is of
four kinds of customers, told apart by numbers (with thousands separators, gaps and a long tail) and words; the pictures
are of five shapes, 64 x 64, any colour, size and angle, on a noisy ground. A label is wrong with probability 0.15: any
of the others. The command is called as a person would call it, in a process of its own, and its audit.csv is compared
with the truth.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import inspect
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw
from recording import record

WRONG = 0.15
KINDS = ("household", "shop", "farm", "office")
COLUMNS = ("customer", "use", "peak hour", "rooms", "heating", "region", "bill", "since", "meter", "kind")
HEATING = {"gas": (6, 4, 1, 3), "oil": (1, 2, 4, 1), "wood": (1, 0, 5, 0), "electric": (2, 4, 1, 6)}  # for each kind
SHAPES = ("disc", "square", "triangle", "cross", "ring")
SIDE = 64

Truth = dict[str, str]  # the right label by the name in audit.csv


def given(right: str, names: tuple[str, ...], draw: random.Random) -> str:
    """The label that is written down, sometimes a wrong one."""
    return draw.choice([name for name in names if name != right]) if draw.random() < WRONG else right


def table(path: Path, rows: int, draw: random.Random) -> Truth:
    """Write a table; returns what each row's label should be."""
    truth = {}
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in range(rows):
            kind = draw.randrange(len(KINDS))
            use = math.exp(draw.gauss((8.0, 9.3, 9.0, 9.6)[kind], 0.5))
            peak = draw.gauss((19, 15, 7, 11)[kind], 1.8) % 24
            rooms = max(1, round(draw.gauss((5, 4, 9, 16)[kind], 2)))
            heat = draw.choices(list(HEATING), [shares[kind] for shares in HEATING.values()])[0]
            region = draw.choice(("north", "south", "east", "west"))
            bill = f"{use * draw.gauss(0.31, 0.03):,.2f}" if draw.random() > 0.06 else ""
            since, meter = draw.randint(1975, 2024), draw.gauss(0, 1)
            label = given(KINDS[kind], KINDS, draw)
            told = f"K-{row:05d}", f"{use:.0f}", f"{peak:.1f}", rooms, heat, region, bill, since, meter, label
            writer.writerow(told)
            truth[f"line {row + 2}"] = KINDS[kind]
    return truth


def folder(path: Path, pictures: int, draw: random.Random) -> Truth:
    """Write a folder of pictures by class; returns which class each should be in."""
    truth = {}
    for shape in SHAPES:
        (path / shape).mkdir(parents=True)
    for number in range(pictures):
        right = draw.choice(SHAPES)
        name = f"{given(right, SHAPES, draw)}/{number:04d}.png"
        picture(right, draw).save(path / name)
        truth[name] = right
    return truth


LIBRARIES = {
    "python": "argparse asyncio collections csv datetime decimal email http inspect json logging re socket unittest",
    "numpy": "numpy numpy.fft numpy.linalg numpy.ma numpy.polynomial numpy.random numpy.testing",
    "scipy": "scipy.fft scipy.linalg scipy.ndimage scipy.optimize scipy.signal scipy.sparse scipy.special scipy.stats",
    "sklearn": "sklearn.cluster sklearn.datasets sklearn.decomposition sklearn.ensemble sklearn.linear_model "
    "sklearn.metrics sklearn.model_selection sklearn.neighbors sklearn.preprocessing sklearn.svm sklearn.tree",
    "matplotlib": "matplotlib.axes matplotlib.colors matplotlib.figure matplotlib.lines matplotlib.patches "
    "matplotlib.pyplot matplotlib.text matplotlib.ticker matplotlib.transforms",
    "torch": "torch torch.distributions torch.fft torch.linalg torch.nn torch.nn.functional torch.optim",
}


def texts(path: Path, most: int, draw: random.Random) -> Truth:
    """Write a table of what libraries say of their functions; returns which library each row is of."""
    said: dict[str, set[str]] = {}
    for library, modules in LIBRARIES.items():
        things = [thing for name in modules.split() for thing in _public(importlib.import_module(name))]
        things += [method for thing in things if inspect.isclass(thing) for method in _public(thing)]
        for thing in things:
            if isinstance(told := getattr(thing, "__doc__", None), str) and len(told.split()) > 5:
                said.setdefault(" ".join(told.split())[:600], set()).add(library)
    rows = sorted((text, *libraries) for text, libraries in said.items() if len(libraries) == 1)
    rows = draw.sample(rows, min(most, len(rows)))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "library"))
        writer.writerows((text, given(library, tuple(LIBRARIES), draw)) for text, library in rows)
    return {f"line {row + 2}": library for row, (_, library) in enumerate(rows)}


def _public(thing: object) -> list[object]:
    return [getattr(thing, name, None) for name in dir(thing) if not name.startswith("_")]


def picture(shape: str, draw: random.Random) -> Image.Image:
    ground = tuple(draw.randrange(256) for _ in range(3))
    colour = tuple((part + draw.randrange(70, 186)) % 256 for part in ground)
    image = Image.effect_noise((SIDE, SIDE), draw.uniform(5, 60)).convert("RGB")
    image = Image.blend(image, Image.new("RGB", (SIDE, SIDE), ground), 0.7)
    stamp = Image.new("L", (SIDE, SIDE))
    pen, r, middle = ImageDraw.Draw(stamp), draw.uniform(9, 24), SIDE / 2
    box = (middle - r, middle - r, middle + r, middle + r)
    if shape == "disc":
        pen.ellipse(box, fill=255)
    elif shape == "ring":
        pen.ellipse(box, outline=255, width=max(2, round(r / 3)))
    elif shape == "square":
        pen.rectangle(box, fill=255)
    elif shape == "triangle":
        pen.regular_polygon((middle, middle, r), 3, fill=255)
    else:
        pen.rectangle((middle - r, middle - r / 4, middle + r, middle + r / 4), fill=255)
        pen.rectangle((middle - r / 4, middle - r, middle + r / 4, middle + r), fill=255)
    move = (1, 0, draw.uniform(-6, 6), 0, 1, draw.uniform(-6, 6))
    stamp = stamp.rotate(draw.uniform(0, 360)).transform((SIDE, SIDE), Image.Transform.AFFINE, move)
    image.paste(colour, mask=stamp)
    return image


def audited(data: Path, options: list[str], truth: Truth, work: Path) -> dict[str, Any]:
    """Call the command, and compare what it wrote with the truth."""
    command = [sys.executable, "-m", "mirrordescent", "audit", str(data), *options]
    start = time.perf_counter()
    subprocess.run([*command, "--root", str(work / "runs"), "--out", str(work / "out")], check=True)
    taken = time.perf_counter() - start
    with open(work / "out" / "audit.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = [truth[row["name"]] != row["given_label"] for row in rows]
    flagged = [row["is_label_issue"] == "True" for row in rows]
    found = [row for row, bad, flag in zip(rows, wrong, flagged, strict=True) if bad and flag]
    return {
        "samples": len(rows),
        "seconds": taken,
        "wrong": sum(wrong) / len(rows),
        "estimated": sum(float(row["wrong"]) for row in rows) / len(rows),
        "flagged": sum(flagged),
        "precision_of_flagged": len(found) / max(1, sum(flagged)),
        "recall_of_flagged": len(found) / max(1, sum(wrong)),
        "suggestion_right": sum(truth[row["name"]] == row["predicted_label"] for row in found) / max(1, len(found)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--texts", type=int, default=4_000)
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    jobs: dict[str, tuple[str, Callable[[Path, int, random.Random], Truth], int, list[str]]] = {
        "table": ("customers.csv", table, arguments.rows, ["--label", "kind"]),
        "texts": ("documentation.csv", texts, arguments.texts, ["--label", "library"]),
        "pictures": ("shapes", folder, arguments.pictures, []),
    }
    results: dict[str, Any] = {"cores": os.cpu_count(), "seed": arguments.seed}
    for title, (name, make, count, options) in jobs.items():
        with tempfile.TemporaryDirectory() as at:
            work = Path(at)
            truth = make(work / name, count, random.Random(arguments.seed))
            results[title] = audited(work / name, options, truth, work)
    for title in jobs:
        print(title, {key: round(value, 3) for key, value in results[title].items()})
    record("own", results, arguments.out)


if __name__ == "__main__":
    main()
