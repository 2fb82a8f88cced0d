"""docs/scores.md and the tables of docs/audit.md, from the records in results/.

python benchmarks/tables.py
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
RESULTS = HERE / "results"
PAGE, AUDITS = HERE / "docs" / "scores.md", HERE / "docs" / "audit.md"
TITLES = {
    "digits": "digits",
    "digits-few": "digits, few wrong labels",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
NETWORKS = {"mlp": "An MLP", "cnn": "A small CNN", "resnet18": "ResNet-18"}
NOISES = {"uniform": "uniform", "pair": "pairs", "instance": "by sample"}
AUDIT = {
    "noise": "wrong labels, in truth",
    "estimated": "estimated",
    "precision_at_estimate": "precision at the estimated number",
    "flagged": "flagged",
    "precision_of_flagged": "precision of the flagged",
    "recall_of_flagged": "share of the wrong ones that is flagged",
}
HEAD = """# Which score finds wrong labels

How well does a score find wrong labels? The tables give its AUROC for "this label is wrong" on labels that were
corrupted on purpose, in three ways:

- `uniform` redraws a label from all classes;
- `pairs` moves it to the next class;
- `by sample` gives each sample a rate of its own, and a wrong label that depends on its inputs.

Every row but the last is one training run, of the same length and on the same labels. The last row trains five
networks, each for 20 epochs on four fifths of the samples, and ranks a sample by the probability that the network which
was not trained on it gives its label, as cleanlab does. Cost is in passes over the data, as a multiple of one run's.

The audit's rows are the first run of `rmd audit`, the one that ranks, with the network that each section names. Its
settings were found on digits, and follow from the data alone; the second run, which judges the estimate, costs 0.8
more. "Early learning, the audit's step" is plain SGD on the audit's loss with its step size, and "the audit's score
along that run" judges it as an audit does.

This page was made by `python benchmarks/tables.py` from the records that it names.
"""


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """By data set, in the order of TITLES."""
    found = {name: folder / f"scores-{name}.json" for name in TITLES}
    return {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def kind_title(kind: str) -> str:
    noise, rate = kind.split("=")
    return f"{NOISES[noise]} {100 * float(rate):.0f} %"


def summary(held: dict[str, dict[str, Any]]) -> str:
    """Every row's mean over the kinds of noise, on every data set."""
    tables = {name: one["results"]["table"] for name, one in held.items()}
    rows = [[row, *(f"{found[row]['all']:.4f}" for found in tables.values())] for row in next(iter(tables.values()))]
    return table(["mean over the kinds of noise", *(TITLES[name] for name in held)], rows)


def of_one(name: str, one: dict[str, Any]) -> Iterator[str]:
    """A data set's own tables."""
    results = one["results"]
    kinds = list(results["each"])
    seeds = {len(each) for each in results["each"].values()}
    epochs = next(iter(results["each"].values()))[0]["epochs"]
    many = " to ".join(map(str, sorted({min(seeds), max(seeds)}))) + (" seed" if seeds == {1} else " seeds")
    yield f"## {TITLES[name]}\n"
    yield (
        f"{NETWORKS[results['model']]}, {epochs} epochs, {many}. Record: "
        f"`results/scores-{name}.json`, command:\n`{one['command']}`\n"
    )
    rows = [
        [row, f"{found['cost']:.2f}", *(f"{found['mean'][kind]:.4f}" for kind in kinds), f"{found['all']:.4f}"]
        for row, found in results["table"].items()
    ]
    yield table(["", "cost", *map(kind_title, kinds), "mean"], rows)
    yield "What the audit estimates and flags, by the first of its two networks alone:\n"
    cells = []
    for key, title in AUDIT.items():
        by_kind = [[each["audit"][key] for each in results["each"][kind]] for kind in kinds]
        found = [statistics.mean(value for value in values if value is not None) for values in by_kind]
        cells.append([title, *map(percent, found)])
    yield table(["", *map(kind_title, kinds)], cells)


def page(folder: Path = RESULTS) -> str:
    held = records(folder)
    parts = [HEAD, summary(held), *(part for name, one in held.items() for part in of_one(name, one))]
    return "\n".join(parts)


def again(name: str) -> str:
    """What training again is worth: the table of a record of benchmarks/retrain.py."""
    found = json.loads((RESULTS / f"retrain-{name}.json").read_text())["results"]["table"]
    rows = []
    for row, one in found.items():
        spread = "" if one["deviation"] is None else f" ± {100 * one['deviation']:.1f}"
        accuracy = f"{100 * one['test_accuracy']:.1f}{spread} %"
        rows.append([row, f"{one['samples']:,.0f}", percent(one["right"]), accuracy])
    return table(["trained on", "samples", "of these right", "test accuracy"], rows)


def shares() -> str:
    """The share of wrong labels by one network and by two: the table of the record of benchmarks/shares.py."""
    rows = []
    for case in json.loads((RESULTS / "shares.json").read_text())["results"]["cases"]:
        both = case["both"]
        figures = [case["wrong"], case["contradicted"], case["alone"]["estimated"], both["estimated"]]
        name = case["data"].replace("%", " %").replace("pair ", "pairs ").replace("instance ", "by sample ")
        rows.append([name, *map(percent, [*figures, both["precision"], both["recall"]])])
    head = ["", "wrong, in truth", "contradicted by the second network", "estimated by the first alone", "by both"]
    return table([*head, "precision of the flagged", "share of the wrong ones that is flagged"], rows)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def with_tables(text: str) -> str:
    """The page with the tables filled in that its comments name."""
    made = {"scores": summary(records(RESULTS)), "shares": shares()}
    made |= {f"retrain-{name}": again(name) for name in ("digits", "cifar10")}
    for name, new in made.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        if text.count(begin) != 1:
            raise ValueError(f"{AUDITS} has {text.count(begin)} places for the table {name!r}")
        before, rest = text.split(begin)
        text = before + begin + new + rest[rest.index(end) :]
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
    AUDITS.write_text(with_tables(AUDITS.read_text()))
    print(f"pages: {PAGE}, {AUDITS}")
