"""The flagged images of an audit as one picture, the most suspicious first, and their lines of audit.csv.

    rmd audit mnist --out audit
    python benchmarks/flagged.py audit/audit.csv --data mnist --record results/audit-mnist.csv \
        --picture docs/pictures/audit-mnist.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib.pyplot as plt

from mirrordescent.lab.data import Source, load

ACROSS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audit", type=Path, help="audit.csv")
    parser.add_argument("--data", required=True, help="the data set that was audited; its images must be gray")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--record", type=Path, required=True, help="where to write the flagged lines")
    parser.add_argument("--picture", type=Path, required=True)
    arguments = parser.parse_args()
    with open(arguments.audit, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["is_label_issue"] == "True"]
    if not rows:
        parser.error(f"{arguments.audit} flags nothing")
    rows.sort(key=lambda row: int(row["rank"]))
    with open(arguments.record, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, arguments.data, arguments.data_root, arguments.picture)
    print(f"{len(rows)} flagged: {arguments.record}, {arguments.picture}")


def draw(rows: list[dict[str, str]], data: str, root: Path | None, picture: Path) -> None:
    images = load(Source(data), root).inputs
    down = -(-len(rows) // ACROSS)
    figure, places = plt.subplots(down, ACROSS, figsize=(ACROSS, 1.35 * down), squeeze=False, layout="tight")
    for place in places.flat:
        place.axis("off")
    for place, row in zip(places.flat, rows, strict=False):
        place.imshow(images[int(row["index"]), 0], cmap="gray_r")
        place.set_title(f"given {row['given_label']}\nsuggested {row['predicted_label']}", fontsize=8)
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main()
