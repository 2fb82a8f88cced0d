"""How many labels are wrong: what an audit estimates by itself and with a second opinion, beside the truth.

    python benchmarks/shares.py --out results/shares.json

Digits under six kinds of noise, Fashion-MNIST's first 2,000 images, and tables with classes that overlap more and less:
scikit-learn's wine and breast cancer, made ones of 5,000 rows, small ones whose classes are of unequal size, a small
class being much like a larger one, and ones of 200 inputs, as embeddings have. The wrong labels of all but digits are
uniform over the other classes. The audit's rule for the second opinion was chosen on the first twelve of these data,
how far inputs are held down on all from wine on but the last three.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import record
from sklearn import datasets
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.audit.auditing import Asked, Audited, audit_data
from mirrordescent.lab.data import Source, load
from mirrordescent.lab.evaluation import auroc
from mirrordescent.lab.kept import audit_alone
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place

UNEQUAL = {"unequal, 300": 300, "unequal, 650": 650, "unequal, 1,200": 1200}  # rows
KINDS = np.log(
    [[4.2, 24.0, 120.0], [18.0, 50.0, 300.0], [2.1, 18.0, 40.0], [480.0, 155.0, 4200.0]]
)  # means of three columns
WIDE = {"200 inputs, 300": 300, "200 inputs, 1,000": 1000, "200 inputs, 4,000": 4000}  # rows
MADE = {"overlap little": (2.0, 0.15), "overlap": (1.0, 0.15), "overlap much": (0.6, 0.1)}  # separation, share wrong


@dataclass(frozen=True)
class Case:
    """Data with wrong labels. wrong: which these are, where it is not the audit that corrupts them."""

    name: str
    data: str
    asked: Asked
    wrong: Tensor | None = None


def cases(folder: Path, data_root: Path | None) -> list[Case]:
    """The data, written into a folder where they have to be made."""
    found = [
        Case(f"digits, {noise} {rate:.0%}", "digits", Asked(model="mlp", corruption=rate, noise=noise))
        for noise in ("uniform", "pair", "instance")
        for rate in (0.2, 0.4)
    ]
    fashion = load(Source("fashion-mnist"), data_root)
    found.append(spoilt("Fashion-MNIST, 2,000", fashion.inputs[:2000].numpy(), fashion.targets[:2000].numpy(), folder))
    for name, made in (("wine", datasets.load_wine()), ("breast cancer", datasets.load_breast_cancer())):
        scaled = (made.data - made.data.mean(0)) / made.data.std(0)
        found.append(spoilt(name, scaled, made.target, folder))
    for name, (separation, share) in MADE.items():
        x, y = datasets.make_classification(
            5000, 20, n_informative=10, n_classes=5, class_sep=separation, flip_y=0, random_state=1
        )
        found.append(spoilt(name, x, y, folder, share))
    for name, rows in UNEQUAL.items():
        found.append(spoilt(name, *unequal(rows), folder, 0.05))
    for name, rows in WIDE.items():
        found.append(spoilt(name, *wide(rows), folder))
    return found


def unequal(rows: int) -> tuple[Any, Any]:
    """Four classes of 40, 35, 17 and 8 %: three columns that tell them apart, nine that do not."""
    random = np.random.default_rng(1)
    y = random.choice(4, rows, p=[0.40, 0.35, 0.17, 0.08])
    x = np.concatenate([random.normal(KINDS[y], [0.35, 0.15, 0.5]), random.normal(size=(rows, 9))], axis=1)
    return (x - x.mean(0)) / x.std(0), y


def wide(rows: int) -> tuple[Any, Any]:
    """Five classes that overlap in 200 inputs, the more spread out the first ones are, as in embeddings."""
    random = np.random.default_rng(2)
    y, spread = random.integers(0, 5, rows), 1 / np.sqrt(1 + np.arange(200))
    return (0.25 * random.normal(size=(5, 200))[y] + random.normal(size=(rows, 200))) * spread, y


def spoilt(name: str, x: Any, y: Any, folder: Path, share: float = 0.15) -> Case:
    """Arrays with some of their labels redrawn from the other classes."""
    random = np.random.default_rng(0)
    wrong = random.random(len(y)) < share
    classes = int(y.max()) + 1
    given = np.where(wrong, (y + random.integers(1, classes, len(y))) % classes, y)
    path = folder / f"{name.replace(' ', '-').replace(',', '')}.npz"
    np.savez(path, x=x if x.dtype == np.uint8 else x.astype(np.float32), y=given)
    return Case(name, str(path), Asked(), torch.from_numpy(wrong))


def judged(found: md.Audit, wrong: Tensor) -> dict[str, float | None]:
    flagged = found.issue
    return {
        "estimated": found.noise,
        "precision": float(wrong[flagged].double().mean()) if bool(flagged.any()) else None,
        "recall": float(flagged[wrong].double().mean()),
        "brier": float((found.wrong - wrong.double()).square().mean()),
        "auroc": auroc(found.score, wrong),
    }


def outcome(case: Case, audited: Audited) -> dict[str, Any]:
    wrong = case.wrong if case.wrong is not None else audited.changed
    assert wrong is not None
    assert audited.check is not None
    alone = audit_alone(audited.record)
    return {
        "data": case.name,
        "samples": len(wrong),
        "wrong": float(wrong.double().mean()),
        "contradicted": audited.check.contradicted,
        "second_opinion": audited.check.wrong,
        "alone": judged(alone, wrong),
        "both": judged(audited.found, wrong),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/shares"))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, help="where to write the record")
    arguments = parser.parse_args()
    arguments.root.mkdir(parents=True, exist_ok=True)
    keeping, place = Keeping(arguments.root, data_root=arguments.data_root), Place("cpu")
    results = []
    for case in cases(arguments.root, arguments.data_root):
        results.append(outcome(case, audit_data(case.data, case.asked, keeping, place)))
        one = results[-1]
        print(f"{one['data']:24} wrong {one['wrong']:.3f} contradicted {one['contradicted']:.3f}", end=" ")
        for way in ("alone", "both"):
            told = {name: None if value is None else round(value, 3) for name, value in one[way].items()}
            print(way, told, end=" ")
        print(flush=True)
    for way in ("alone", "both"):
        error = sum(abs(one[way]["estimated"] - one["wrong"]) for one in results) / len(results)
        print(f"{way}: mean error of the estimate {error:.4f}")
    record("shares", {"cases": results}, arguments.out)


if __name__ == "__main__":
    main()
