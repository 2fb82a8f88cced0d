"""What training again without the suspicious labels is worth, and what helps: mixup, new labels, a second round.

    python benchmarks/retrain.py --data digits --out results/retrain-digits.json
    python benchmarks/retrain.py --data cifar10 --model resnet18 --device cuda --minutes 9 --out retrain.json

Labels are redrawn with probability --corruption and audited as `rmd audit` does it, with its check. Every row is
then trained by the recipe of `rmd clean`, which takes about as many steps for few samples as for many (of ResNet-18: as
many epochs), and judged by the data's test set: all labels, the truly right ones, and what the audit leaves. If it is
stopped, the same command continues (on another machine: with --known and the record); the table is of what is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import add_options, cell, take_up, trained, within
from recording import record
from torch import Tensor

from mirrordescent.lab.audit.auditing import Asked, Audited, audit_whole, part_of, run_for, whole_of, works_of
from mirrordescent.lab.audit.cleaning import Cleaning, clean, recipe_for
from mirrordescent.lab.data.whole import Whole
from mirrordescent.lab.evaluation import auroc
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import read
from mirrordescent.lab.runs import settled
from mirrordescent.lab.sweep import Work

PLAIN, RELABEL = {"mixup": 0.0}, {"relabel": True}

# what to compare with, without an audit
COMPARED: dict[str, dict[str, Any]] = {
    "all labels": PLAIN,
    "the right labels only": PLAIN,
    "all labels, mixup": {},
    "the right labels only, mixup": {},
}

# what is done with the labels that the audit flags
CLEANED: dict[str, dict[str, Any]] = {
    "dropped": PLAIN,
    "dropped, mixup": {},
    "new label where sure (0.9)": {**RELABEL, **PLAIN},
    "new label where sure (0.9), mixup": RELABEL,
    "new label where sure (0.6), mixup": {**RELABEL, "confidence": 0.6},
    "dropped, two rounds, mixup": {"rounds": 2},
}

WAYS = {**COMPARED, **CLEANED}


@dataclass(frozen=True)
class Row:
    """What is trained on: which samples, with which labels; and how."""

    name: str
    keep: Tensor
    labels: Tensor
    cleaning: Cleaning


def rows(audited: Audited, asked: Asked, keeping: Keeping, place: Place, names: list[str]) -> Iterator[Row]:
    assert audited.changed is not None
    given, wrong = audited.found.given, audited.changed
    for name in names:
        how = Cleaning(**WAYS[name])
        if name in CLEANED:
            choice = clean(audited, asked, how, keeping, place)
            yield Row(name, choice.keep, choice.labels, how)
        else:
            yield Row(name, torch.ones_like(wrong) if name.startswith("all") else ~wrong, given, how)


def measured(
    whole: Whole, asked: Asked, keeping: Keeping, place: Place, arguments: argparse.Namespace
) -> dict[str, Any]:
    """For one seed: what was flagged, and test accuracy of every row."""
    audited = audit_whole(whole, asked, keeping, place)
    assert audited.changed is not None
    found, wrong, data = audited.found, audited.changed, whole.data
    works: list[Work] = []
    held: dict[str, dict[str, Any]] = {}
    for row in rows(audited, asked, keeping, place, arguments.rows):
        part = part_of(data, row.keep.nonzero()[:, 0], row.labels)
        how = dataclasses.replace(row.cleaning, retrain_epochs=arguments.epochs)
        run = settled(recipe_for(part, audited.record.run, how), part)
        works.append(Work(run, part, audited.record.folder / f"again-{part.digest[:8]}"))
        held[row.name] = {"samples": len(part), "right": float((row.labels == data.targets)[row.keep].double().mean())}
    trained(works, keeping, place)
    for name, work in zip(held, works, strict=True):
        held[name]["test_accuracy"] = read(work.root / work.run.id).final["test_accuracy"]
    return {
        "audit": {
            "noise": float(wrong.double().mean()),
            "estimated": found.noise,
            "flagged": float(found.issue.double().mean()),
            "precision_of_flagged": float(wrong[found.issue].double().mean()) if bool(found.issue.any()) else None,
            "recall_of_flagged": float(found.issue[wrong].double().mean()),
            "auroc": auroc(found.score, wrong),
        },
        "rows": held,
    }


def show(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds."""
    table = {}
    print(f"\n{'':42}{'samples':>9}{'right %':>9}{'test %':>9}{'':>7}")
    for name in results[0]["rows"]:
        each = [one["rows"][name] for one in results]
        means = {key: statistics.mean(one[key] for one in each) for key in each[0]}
        accuracy = [one["test_accuracy"] for one in each]
        spread = statistics.stdev(accuracy) if len(accuracy) > 1 else None
        table[name] = {**means, "deviation": spread}
        end = "" if spread is None else f" ± {100 * spread:.1f}"
        right, test = 100 * means["right"], 100 * means["test_accuracy"]
        print(f"{name:42}{means['samples']:9,.0f}{right:9.1f}{test:9.1f}{end:>7}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--corruption", type=float, default=0.4)
    parser.add_argument("--noise", default="uniform")
    parser.add_argument("--epochs", type=int, help="epochs of training again; chosen from the data unless given")
    parser.add_argument("--audit-epochs", type=int, help="epochs of the audit; chosen from the data unless given")
    parser.add_argument("--rows", nargs="+", default=list(WAYS), choices=list(WAYS), metavar="ROW", help="only these")
    add_options(parser, Path("runs/retrain"))
    arguments = parser.parse_args()
    keeping, place = Keeping(arguments.root, data_root=arguments.data_root), Place(arguments.device)
    settings = {name: getattr(arguments, name) for name in ("model", "corruption", "noise")}
    first = Asked(**settings, epochs=arguments.audit_epochs)
    whole = whole_of(arguments.data, first, keeping)
    if not whole.held_out:
        parser.error(f"{arguments.data} has no test set of its own, by which to judge")
    take_up(arguments.root, arguments.known)
    results = []
    with within(arguments.minutes):
        each = [dataclasses.replace(first, seed=seed) for seed in range(arguments.seeds)]
        if place.resolved.type == "cuda" and arguments.known is None:  # the audits of all seeds side by side
            trained([work for asked in each for work in works_of(whole, asked, keeping)], keeping, place)
        for seed, asked in enumerate(each):
            ways = {name: how for name, how in WAYS.items() if name in arguments.rows}
            of = [whole.data.digest, run_for(whole.data, arguments.data, asked).id, str(arguments.epochs), str(ways)]
            one = cell(arguments.root, str(seed), of, lambda: measured(whole, asked, keeping, place, arguments))  # noqa: B023  # called at once
            results.append(one)
            print(seed, {row: round(100 * found["test_accuracy"], 2) for row, found in one["rows"].items()}, flush=True)
    if results:
        table = show(results)
        asked_for = {**settings, "data": arguments.data, "epochs": arguments.epochs}
        asked_for |= {"audit_epochs": arguments.audit_epochs}
        record("retrain", {**asked_for, "seeds": len(results), "table": table, "each": results}, arguments.out)


if __name__ == "__main__":
    main()
