"""What is measured about a network between epochs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.job import Job, per_sample
from mirrordescent.lab.records import Row, finite

# column: what it means; accuracies and shares are fractions
COLUMNS = {
    "epoch": "epochs trained",
    "running_loss": "mean loss over the epoch's steps",
    "running_accuracy": "accuracy over the epoch's steps, on the given labels",
    "train_loss": "mean loss on the training set, given labels",
    "train_accuracy": "accuracy on the training set, given labels",
    "test_loss": "mean loss on the test set",
    "test_accuracy": "accuracy on the test set",
    "clean_accuracy": "accuracy on the training samples whose label is right",
    "wrong_fitted": "share of the wrong labels that the network has learnt",
    "residual": "Σ|z − s|: how far the constraints are from holding (RMD)",
    "potential": "ψ(w)",
    "divergence": "D_ψ(w, start)",
    "z_auroc": "how well z tells wrong labels from right ones (RMD)",
    "margin_auroc": "how well the mean margin along the run tells them apart",
}
BINS = 60
CHUNK = 2000  # samples at a time


@torch.no_grad()
def evaluate(job: Job, epoch: int) -> Row:
    """One row of metrics; the keys are those of `COLUMNS`."""
    losses, outputs = predict(job, job.inputs, job.targets)
    test_losses, test_outputs = predict(job, job.test_inputs, job.test_targets)
    row: Row = dict.fromkeys(COLUMNS)
    seen = job.steps * job.batch
    row["epoch"] = epoch
    row["running_loss"] = finite(float(job.sums[0]) / seen)
    row["train_loss"], row["test_loss"] = finite(float(losses.mean())), finite(float(test_losses.mean()))
    row["potential"], row["divergence"] = regularizer(job)
    if isinstance(job.optimizer, md.RMD):
        root = outputs[:, 0] - job.targets if job.data.classes is None and job.run.reduction == "sample" else None
        row["residual"] = finite(float(job.optimizer.aux.residual(job.losses_at(outputs), root=root)))
    if job.data.classes is None:
        return row
    fitted = outputs.argmax(1) == job.targets
    row["running_accuracy"] = float(job.sums[1]) / seen
    row["train_accuracy"] = share(fitted)
    row["test_accuracy"] = share(test_outputs.argmax(1) == job.test_targets)
    row["clean_accuracy"], row["wrong_fitted"] = share(fitted[~job.changed]), share(fitted[job.changed])
    if isinstance(job.optimizer, md.RMD):
        row["z_auroc"] = auroc(job.optimizer.aux.values, job.changed)
    assert job.notes.trace is not None
    row["margin_auroc"] = auroc(-job.notes.trace.margins, job.changed)
    return row


@torch.no_grad()
def predict(job: Job, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (n,) and outputs (n, classes), without augmentation and with batch norm's running statistics."""
    job.model.eval()
    losses, outputs = [], []
    for x, y in zip(inputs.split(CHUNK), targets.split(CHUNK), strict=True):
        with job.place.autocast(job.run):
            out = job.model(job.scaled(x))
        losses.append(per_sample(out, y, job.data.classes)[0])
        outputs.append(out.float())
    job.model.train()
    return torch.cat(losses), torch.cat(outputs)


def regularizer(job: Job) -> tuple[float | None, float | None]:
    """ψ(w) and D_ψ(w, start), over all the weights."""
    value = divergence = 0.0
    for psi, w, start in zip(job.potentials, job.model.parameters(), job.start, strict=True):
        value += float(psi.value(w.detach()))
        divergence += float(psi.divergence(w.detach(), start))
    return finite(value), finite(divergence)


def objective(job: Job, row: Row) -> float:
    """λ·ΣL + ½‖w‖², what weight decay minimises."""
    assert job.run.lam is not None
    loss, value = row["train_loss"], row["potential"]
    return float("nan") if loss is None or value is None else job.run.lam * len(job.data) * loss + value


def share(hits: Tensor) -> float | None:
    """The share of hits; None if there are no samples."""
    return float(hits.double().mean()) if len(hits) else None


def beyond_chance(taken: Tensor, given: Tensor) -> float | None:
    """By how many standard deviations the predictions agree with more given labels than with shuffled ones.

    0 if all predictions are the same; None for fewer than two samples, or if shuffling changes nothing as all labels
    are the same.

    >>> f"{beyond_chance(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])):.3f}"
    '1.732'
    """
    n, classes = len(given), int(max(taken.max(), given.max())) + 1
    a, b = (torch.bincount(labels, minlength=classes).double() / n for labels in (taken, given))
    if n < 2 or float(b.max()) == 1:
        return None
    # the variance of a sum over a random permutation (Hoeffding 1951)
    off = torch.eye(classes, dtype=torch.float64) - a[None, :] - b[:, None] + (a * b).sum()
    variance = n * n * float((a[:, None] * b[None, :] * off.square()).sum()) / (n - 1)
    more = float((taken == given).sum()) - n * float((a * b).sum())
    return more / math.sqrt(variance) if variance > 1e-9 else 0.0


def auroc(score: Tensor, positive: Tensor) -> float | None:
    """The probability that a positive scores higher than a negative, ties counting half.

    None where there are no positives or no negatives, or a score is not finite.

    >>> auroc(torch.tensor([0.0, 1.0, 1.0, 2.0]), torch.tensor([False, True, False, True]))
    0.875
    """
    count = int(positive.sum())
    if count == 0 or count == len(positive) or not bool(score.isfinite().all()):
        return None
    _, place, repeats = score.unique(return_inverse=True, return_counts=True)
    last = repeats.cumsum(0).double()
    ranks = (last - (repeats.double() - 1) / 2)[place]  # ties share the mean of their ranks
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def histograms(job: Job) -> dict[str, dict[str, list[float]]]:
    """Histograms of the weights, and of z for right and for wrong labels in the same bins."""
    weights = torch.cat([w.detach().flatten().float().cpu() for w in job.model.parameters()])
    found = {"weights": histogram(weights, weights)}
    if isinstance(job.optimizer, md.RMD):
        z, changed = job.optimizer.aux.values.float().cpu(), job.changed.cpu()
        found["z_right"] = histogram(z[~changed], z)
        if bool(changed.any()):
            found["z_wrong"] = histogram(z[changed], z)
    return {name: bins for name, bins in found.items() if bins}


def histogram(values: Tensor, span: Tensor) -> dict[str, list[float]]:
    """Counts of `values` in bins over the range of `span`; empty where that is not finite."""
    low, high = float(span.min()), float(span.max())
    if not (low > float("-inf") and high < float("inf")):
        return {}
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, BINS + 1)
    if not bool(edges.isfinite().all()):
        return {}
    return {"edges": edges.tolist(), "counts": torch.histc(values, BINS, low, high).long().tolist()}
