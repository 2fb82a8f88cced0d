"""Which score finds wrong labels: along RMD, SGD and robust losses, and cleanlab's way, over kinds of label noise.

    python benchmarks/scores.py --data digits --out results/scores-digits.json
    python benchmarks/scores.py --data cifar10 --kinds uniform=0.4 pair=0.2 --device cuda --root runs/scores

Every row but the last costs one training run, of the same number of epochs; the last trains five times, for 20 epochs,
each time on four fifths of the samples. Cost is in passes over the data, as a multiple of one run's. All are runs of
the lab, side by side on a GPU. If it is stopped, the same command continues (on another machine: with --known and
the record); what is measured is in cells/ of its root, and the table is of what is there. It has the AUROC for "the
label is wrong", mean over seeds; the audit's estimates beside the truth, and its precision at the number of errors that
it estimates.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cells import add_options, cell, take_up, trained, within
from recording import record
from torch import Tensor
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.audit.auditing import Asked, judged_by, outputs_of, part_of, run_for
from mirrordescent.lab.data import Data, Source, load
from mirrordescent.lab.evaluation import auroc, predict
from mirrordescent.lab.job import Job, given_labels
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import load_checkpoint, read
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Work

KINDS = ["uniform=0.2", "uniform=0.4", "pair=0.2", "pair=0.4", "instance=0.2", "instance=0.4"]
FOLDS = 5
CROSS_VALIDATED = "self-confidence over five folds (cleanlab's way)"
SHORT = 20  # epochs of each fold: longer training learns the wrong labels by heart, and ranks worse


@dataclass(frozen=True)
class Kept:
    """What a run leaves behind. score: higher is more suspicious."""

    z: Tensor | None
    margin: Tensor  # mean along the run
    final_loss: Tensor  # cross-entropy at the end
    audit: md.Audit
    changed: Tensor


def kept(run: Run, data: Data, keeping: Keeping, place: Place) -> Kept:
    state = load_checkpoint(keeping.root / run.id)
    assert state is not None
    job = Job(run, data, place)
    job.load_state_dict(state["job"])
    with place.taken():
        _, outputs = predict(job, job.inputs, job.targets)
    losses = F.cross_entropy(outputs, job.targets, reduction="none").cpu()
    z = job.optimizer.aux.values.cpu() if isinstance(job.optimizer, md.RMD) else None
    assert job.notes.trace is not None
    return Kept(z, -job.notes.trace.margins.cpu(), losses, md.audit(keeping.root / run.id), job.changed.cpu())


def likeliest(audit: md.Audit) -> Tensor:
    """The log-odds of the likeliest other class against the given one, whichever classes these are."""
    assert audit.probabilities is not None
    p, own = audit.probabilities.clamp_min(1e-6), audit.given[:, None]
    return (p.scatter(1, own, 0.0).amax(1) / p.gather(1, own)[:, 0]).log()


def runs_of(audit: Run) -> dict[str, Run]:
    """The audit's run, and others of the same length on the same labels, each at the step that suits it."""
    plain = dataclasses.replace(audit, algorithm="sgd", lam=None, loss="ce", lr=0.1)
    return {
        "RMD, λ = 4": dataclasses.replace(audit, loss="ce", lam=4.0, lr=0.1),
        "SGD": plain,
        "generalized cross-entropy": dataclasses.replace(plain, loss="gce"),
        "early learning": dataclasses.replace(plain, loss="elr"),
        "early learning, the audit's step": dataclasses.replace(plain, loss="elr", lr=audit.lr),
        "audit": audit,
    }


# row: the run it comes from, and its score
ROWS: dict[str, tuple[str, Callable[[Kept], Tensor | None]]] = {
    "z of RMD, λ = 4": ("RMD, λ = 4", lambda kept: kept.z),
    "mean margin along the same run": ("RMD, λ = 4", lambda kept: kept.margin),
    "final loss of SGD": ("SGD", lambda kept: kept.final_loss),
    "mean margin along SGD (AUM)": ("SGD", lambda kept: kept.margin),
    "final loss of generalized cross-entropy": ("generalized cross-entropy", lambda kept: kept.final_loss),
    "mean margin along early learning": ("early learning", lambda kept: kept.margin),
    "mean margin along early learning, the audit's step": (
        "early learning, the audit's step",
        lambda kept: kept.margin,
    ),
    "the audit's score along that run": (
        "early learning, the audit's step",
        lambda kept: kept.audit.score,
    ),
    "z of the audit's run": ("audit", lambda kept: kept.z),
    "mean margin along the audit's run": ("audit", lambda kept: kept.margin),
    "odds of the likeliest other class along it": ("audit", lambda kept: likeliest(kept.audit)),
    "the audit's score": ("audit", lambda kept: kept.audit.score),
}


def folds(run: Run, data: Data, root: Path) -> list[tuple[Work, Tensor]]:
    """Training without a fifth of the samples, for each fifth: what is to train, and which samples are left out."""
    given = given_labels(run, data).labels
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(run.seed))
    plain = dataclasses.replace(run, corruption=0.0, noise="uniform", epochs=min(run.epochs, SHORT))
    works = []
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        rest = torch.ones(len(data), dtype=torch.bool)
        rest[out] = False
        part = judged_by(part_of(data, rest, given), data.inputs[out], given[out])
        works.append((Work(plain, part, root / f"{run.id}-folds" / str(fold)), out))
    return works


def out_of_fold(works: list[tuple[Work, Tensor]], place: Place) -> Tensor:
    """The loss of the given label for a network that has not seen the sample; cleanlab ranks by its self-confidence."""
    score = torch.empty(sum(len(out) for _, out in works))
    for work, out in works:
        outputs = outputs_of(read(work.root / work.run.id), work.data, place)
        score[out] = F.cross_entropy(outputs.cpu(), work.data.test_targets, reduction="none")
    return score


def measured(
    data: Data, arguments: argparse.Namespace, kind: str, seed: int, keeping: Keeping, place: Place
) -> dict[str, Any]:
    """For one kind of noise and one seed: the AUROC of every row, and what the audit estimates."""
    noise, rate = kind.split("=")
    asked = Asked(model=arguments.model, corruption=float(rate), noise=noise, epochs=arguments.epochs, seed=seed)  # type: ignore[arg-type]  # checked there
    runs = runs_of(run_for(data, arguments.data, asked))

    apart = [] if arguments.no_folds else folds(runs["SGD"], data, keeping.root)
    works = [Work(run, data, keeping.root) for run in runs.values()] + [work for work, _ in apart]

    def measure() -> dict[str, Any]:
        trained(works, keeping, place)
        found = outcome(runs, data, keeping, place)
        wrong = found.pop("changed")
        if apart:
            found["auroc"][CROSS_VALIDATED] = auroc(out_of_fold(apart, place), wrong)
        return found

    return cell(keeping.root, f"{kind}-{seed}", [data.digest, *(work.run.id for work in works), *ROWS], measure)


def outcome(runs: dict[str, Run], data: Data, keeping: Keeping, place: Place) -> dict[str, Any]:
    """What one seed's runs show."""
    left = {title: kept(run, data, keeping, place) for title, run in runs.items()}
    wrong = left["audit"].changed
    found: dict[str, float | None] = {}
    for row, (title, score) in ROWS.items():
        value = score(left[title])
        assert value is not None
        found[row] = auroc(value, wrong)
    audit = left["audit"].audit
    flagged, count = audit.issue, max(1, round(audit.noise * len(audit)))
    estimates = {
        "noise": float(wrong.double().mean()),
        "estimated": audit.noise,
        "precision_at_estimate": float(wrong[audit.order[:count]].double().mean()),
        "flagged": float(flagged.double().mean()),
        "precision_of_flagged": float(wrong[flagged].double().mean()) if bool(flagged.any()) else None,
        "recall_of_flagged": float(flagged[wrong].double().mean()),
        "brier": float((audit.wrong - wrong.double()).square().mean()),
    }
    epochs = runs["audit"].epochs
    passes = {"epochs": epochs, "lam": runs["audit"].lam, "folds_cost": (FOLDS - 1) * min(SHORT, epochs) / epochs}
    return {"auroc": found, "audit": estimates, "changed": wrong, **passes}


def summed(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds, by kind of noise, and the mean over the kinds."""
    table: dict[str, Any] = {}
    for row in next(iter(results.values()))[0]["auroc"]:
        by_kind = {kind: [each["auroc"][row] for each in held] for kind, held in results.items()}
        means = {kind: statistics.mean(values) for kind, values in by_kind.items()}
        spread = {kind: statistics.stdev(values) if len(values) > 1 else None for kind, values in by_kind.items()}
        cost = next(iter(results.values()))[0]["folds_cost"] if row == CROSS_VALIDATED else 1.0
        table[row] = {"cost": cost, "mean": means, "deviation": spread, "all": statistics.mean(means.values())}
    return table


def show(table: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> None:
    kinds = list(results)
    print(f"\n{'AUROC':52}{'cost':>6}" + "".join(f"{kind:>14}" for kind in kinds) + f"{'mean':>10}")
    for row, held in table.items():
        cells = "".join(f"{held['mean'][kind]:14.4f}" for kind in kinds)
        print(f"{row:52}{held['cost']:6.2f}{cells}{held['all']:10.4f}")
    for key in results[kinds[0]][0]["audit"]:
        values = [[each["audit"][key] for each in results[kind]] for kind in kinds]
        cells = "".join(f"{statistics.mean(v for v in value if v is not None):14.4f}" for value in values)
        print(f"{'audit: ' + key:58}{cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--kinds", nargs="+", default=KINDS, help="NOISE=RATE")
    parser.add_argument("--epochs", type=int, help="epochs of every run; chosen from the data unless given")
    parser.add_argument("--no-folds", action="store_true", help="leave out the row that trains five times")
    add_options(parser, Path("runs/scores"))
    arguments = parser.parse_args()
    data = load(Source(arguments.data), arguments.data_root)
    keeping, place = Keeping(arguments.root, data_root=arguments.data_root), Place(arguments.device)
    take_up(arguments.root, arguments.known)
    results: dict[str, list[dict[str, Any]]] = {}
    with within(arguments.minutes):
        for seed in range(arguments.seeds):
            for kind in arguments.kinds:
                one = measured(data, arguments, kind, seed, keeping, place)
                results.setdefault(kind, []).append(one)
                print(kind, seed, {row: round(value, 4) for row, value in one["auroc"].items()}, flush=True)
    if not results:
        return
    table = summed(results)
    show(table, results)
    record(
        "scores",
        {
            "data": arguments.data,
            "model": arguments.model,
            "seeds": {kind: len(found) for kind, found in results.items()},
            "epochs": arguments.epochs,
            "table": table,
            "each": results,
        },
        arguments.out,
    )


if __name__ == "__main__":
    main()
