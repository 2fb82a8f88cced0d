"""Which labels are wrong? What a training run recorded of each sample (z, a trace, or both), as a ranked table."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from mirrordescent.caller import warn
from mirrordescent.rmd import RMD
from mirrordescent.suspicion import LEAST, RARE, Evidence, evidence, given_up, log_odds, mixture_log_odds, with_share
from mirrordescent.trace import Trace

if TYPE_CHECKING:
    from mirrordescent.lab.records import Record
    from mirrordescent.lab.runs import Run

CHANCE = 0.5  # a label is an issue only if it is wrong with more than this probability
MOST = 1_000_000  # class numbers end below it: larger ones are ids or measured values
SETTLED = 0.5  # age of z, in its time scale, before which it is too early to ask
FIRST = 3  # samples that an audit shows where it is printed
ODD = 0.01  # share of the samples whose margins fit no labels, up to which it is overlooked
ROUNDED = 1e-3  # of sums in float32
UNSEEN = 0.1  # share of the samples; short of it, the others are those of batches that were left incomplete
LOST = 0.1  # visits with outputs that are not finite, per finite one; above it training has diverged


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found: one entry per training sample, in the data's order.

    given: the labels that were trained on. score: the log-odds that each is wrong; higher is more suspicious.
    probabilities: (n, classes), the predicted probabilities, averaged along the run; 0 for samples that were never
        visited and for those labelled with an unlearnt class. None in an audit by z alone, which can suggest nothing.
    margins: p_given − max over the others, averaged along the run. z: RMD's, if the run had one.
    class_names: for the table, which has class numbers without them. names: the samples' names for the table, if any.
    unlearnt: classes that the network predicted for hardly any sample. It can say nothing about their labels: none of
        them is flagged, and all are given the share of wrong labels that the others have.
    visited: in an audit by z alone, (n,) of bool, which samples z knows of; None: all of them.

    Computed from these: `noise`, the estimated share of wrong labels (for each class, `noise_by_class`); `order`, the
    indices of the samples, the most suspicious first (`rank`: each one's place in it); `issue`, which labels are
    flagged (`found.issue.nonzero()[:, 0]` are their indices); `wrong`, the probability that each is wrong; `suggested`,
    the class to use instead, and the `confidence` in it; `table()`, `to_csv()` and `to_parquet()`.
    """

    given: Tensor
    score: Tensor
    probabilities: Tensor | None = None
    margins: Tensor | None = None
    z: Tensor | None = None
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    unlearnt: tuple[int, ...] = ()
    visited: Tensor | None = None

    def __len__(self) -> int:
        return len(self.given)

    def __repr__(self) -> str:
        """How many labels are wrong and flagged, and the most suspicious ones, flagged or not."""
        flagged, worst = int(self.issue.sum()), self.order[:FIRST]
        given, suggested = self._named(self.given[worst]), self._named(self.suggested[worst])
        changes = [f"{y} -> {c}" if y != c else f"{y}" for y, c in zip(given, suggested, strict=True)]
        named = [f"{k} ({change})" for k, change in zip(worst.tolist(), changes, strict=True)]
        return (
            f"Audit of {len(self):,} labels: {100 * self.noise:.1f} % are probably wrong, {flagged:,} are flagged\n"
            f"most suspicious: {', '.join(named)}"
        )

    @property
    def wrong(self) -> Tensor:
        """The probability that each label is wrong."""
        return torch.sigmoid(self.score)

    @property
    def noise(self) -> float:
        """The estimated share of wrong labels."""
        return float(self.wrong.mean())

    @property
    def noise_by_class(self) -> Tensor:
        """The estimated share of wrong labels in each given class; 0 for a class without members."""
        p = self.probabilities
        classes = max(int(self.given.max()) + 1, len(self.class_names)) if p is None else p.shape[1]
        members = torch.bincount(self.given, minlength=classes).clamp_min(1)
        return self.wrong.new_zeros(classes).index_add_(0, self.given, self.wrong) / members

    @property
    def issue(self) -> Tensor:
        """Which labels are more likely wrong than right, and contradicted by the network's predictions.

        Never those of a class with fewer than five samples: a network takes them for another class, right or wrong.
        """
        doubted = (self.wrong > CHANCE) & (torch.bincount(self.given)[self.given] >= RARE) & self._seen
        return doubted if self._evidence is None else doubted & (self._evidence.odds > 0)

    @property
    def order(self) -> Tensor:
        """The indices of the samples, the most suspicious first."""
        return self.score.argsort(descending=True, stable=True)

    @property
    def rank(self) -> Tensor:
        """Each sample's place in `order`, from 1 on."""
        rank = torch.empty_like(self.given)
        rank[self.order] = torch.arange(1, len(self) + 1, device=rank.device)
        return rank

    @property
    def suggested(self) -> Tensor:
        """For an issue the likeliest other class, else the predicted class; the given label where there is none."""
        if self._evidence is None:
            return self.given
        return torch.where(self.issue, self._evidence.other, torch.where(self._seen, self._evidence.taken, self.given))

    @property
    def confidence(self) -> Tensor:
        """The probability that the suggestion is right; 0 where the network predicts nothing."""
        if self._evidence is None:
            return torch.zeros_like(self.score)
        wrong, issue = self.wrong, self.issue
        other = wrong * torch.where(issue, self._evidence.part, self._evidence.taken_part)
        agreed = ~issue & (self._evidence.taken == self.given)
        return torch.where(self._seen, torch.where(agreed, 1 - wrong, other), 0.0)

    @cached_property
    def _evidence(self) -> Evidence | None:
        return None if self.probabilities is None else evidence(self.probabilities, self.given)

    @property
    def _seen(self) -> Tensor:
        if self.probabilities is not None:
            return self.probabilities.amax(1) > 0
        return torch.ones_like(self.given, dtype=torch.bool) if self.visited is None else self.visited

    def with_share(self, share: float) -> Audit:
        """The same audit, for a share of wrong labels known from elsewhere: all log-odds shift by the same amount.

        Labels of which nothing is known get the log-odds of the share itself. Raises ValueError for a share outside
        [0, 1].
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        seen = self._seen
        score = with_share(torch.zeros_like(self.score), share)
        if bool(seen.any()):
            score[seen] = with_share(self.score[seen], share)
        return replace(self, score=score)

    def columns(self) -> dict[str, list[Any]]:
        """The table as lists, by column name; some of the names are cleanlab's."""
        found: dict[str, list[Any]] = {
            "index": list(range(len(self))),
            **({"name": list(self.names)} if self.names else {}),
            "given_label": self._named(self.given),
            "predicted_label": self._named(self.suggested) if self.probabilities is not None else [None] * len(self),
            "is_label_issue": self.issue.tolist(),
            "label_quality": (1 - self.wrong).tolist(),
            "wrong": self.wrong.tolist(),
            "score": self.score.tolist(),
            "rank": self.rank.tolist(),
            "confidence": self.confidence.tolist(),
        }
        if self.margins is not None:
            found["margin"] = self.margins.tolist()
        if self.z is not None:
            found["z"] = self.z.tolist()
        return found

    def table(self) -> Any:
        """The table as a pandas.DataFrame if pandas is installed, else as `columns()`."""
        try:
            import pandas as pd
        except ImportError:
            return self.columns()
        return pd.DataFrame(self.columns()).set_index("index")

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the table as CSV, in UTF-8."""
        with open(path, "w", encoding="utf-8", newline="") as file:
            write_columns(self.columns(), file)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the table as Parquet; needs pyarrow."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise ImportError("to_parquet needs pyarrow; pip install 'mirrordescent[lab]', or use to_csv") from None
        pq.write_table(pa.table(self.columns()), path)

    def _named(self, labels: Tensor) -> list[Any]:
        return [self.class_names[label] for label in labels.tolist()] if self.class_names else labels.tolist()


def write_columns(columns: Mapping[str, Sequence[Any]], file: TextIO) -> None:
    """Write a table as CSV into an open file."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))


def audit(
    source: RMD | Trace | Record | Run | str | os.PathLike[str],
    labels: Tensor | Sequence[int] | None = None,
    *,
    trace: Trace | None = None,
    class_names: Sequence[str] = (),
) -> Audit:
    """How suspicious each training label is, from a run that was trained on them.

    source: an RMD optimizer, with its `labels` and the `trace` that was kept beside it; or a trace with the labels,
        from training with any optimizer; or a run of the lab: its record, its folder, or its `Run`. If `rmd audit`
        checked the run by a second network, that counts here too. An optimizer without a trace has z alone, which
        ranks the labels, but takes most wrong ones for right unless their z form a peak of their own. With
        `reduction="batch"` they never do, and there is a warning; there is one, too, if z has not had time to settle,
        or has never moved for many samples: they are left out, and get what the others have on average.
    labels: (n,), the classes that were trained on; a run of the lab has its own.
    class_names: for the table.
    Raises ValueError if lengths or classes do not fit, TypeError for any other source.

    >>> import torch, mirrordescent as md
    >>> trace, labels = md.Trace(num_samples=4, classes=2), torch.tensor([0, 0, 1, 1])
    >>> trace(torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 4.0], [0.0, 4.0]]), labels, torch.arange(4))
    >>> found = md.audit(trace, labels)
    >>> found.order[0].item(), found.suggested[1].item()
    (1, 1)
    """
    if isinstance(source, (RMD, Trace)):
        if labels is None:
            raise ValueError("labels are missing: the classes that the samples were trained on, one per sample")
        if isinstance(source, RMD):
            _look_at_optimizer(source, alone=trace is None)
            signed, visited = source.param_groups[0]["signed"], _visited(source)
            return audited(source.aux.values, trace, _as_tensor(labels), class_names, signed=signed, visited=visited)
        if trace is not None:
            raise ValueError("the source is a trace already; leave the other one out")
        return audited(None, source, _as_tensor(labels), class_names)
    from mirrordescent.lab.records import Record
    from mirrordescent.lab.runs import Run

    if not isinstance(source, (Record, Run, str, os.PathLike)):
        raise TypeError(
            f"source must be an RMD optimizer, a Trace, or a run of the lab, got {type(source).__name__}; data are "
            "audited by `rmd audit`, or by the trace of a training on them"
        )
    if labels is not None or trace is not None:
        raise ValueError("labels and trace go with an optimizer; a run has its own")
    from mirrordescent.lab.kept import audit_of_run

    return audit_of_run(Path(source) if isinstance(source, (str, os.PathLike)) else source, class_names)


def _look_at_optimizer(optimizer: RMD, *, alone: bool) -> None:
    """Warn if z cannot tell how many, or yet which, labels are wrong. alone: there is no trace beside z."""
    aux, whole = optimizer.aux, optimizer.param_groups[0]["reduction"] == "batch"
    age, visited = aux.age, _visited(optimizer)
    if age is not None and visited is not None:  # a mean over all samples; those that are judged are the visited ones
        age *= len(aux) / max(int(visited.sum()), 1)
    early = age is not None and 0 < age < SETTLED
    if alone and whole:
        warn(
            "z of reduction='batch' ranks the labels, but does not tell how many are wrong: keep a trace beside it "
            "(md.Trace), or train with reduction='sample'"
        )
    if early and (alone or not whole):
        warn(
            f"z has had at most {age:.2g} of the time over which it settles: too early to tell which labels are wrong; "
            "train longer, or with a smaller lam"
        )


def _visited(optimizer: RMD) -> Tensor | None:
    """Which samples' z has moved, (n,), bool; None where a visit may leave z at 0, as residuals of exactly 0 do."""
    group = optimizer.param_groups[0]
    return None if group["signed"] or group["eps"] == 0 else optimizer.aux.values.detach().cpu() != 0


def audited(
    z: Tensor | None,
    trace: Trace | None,
    labels: Tensor,
    class_names: Sequence[str] = (),
    *,
    signed: bool = False,
    visited: Tensor | None = None,
) -> Audit:
    """The audit of what a run has kept: z, or a trace, or both.

    signed: z has the signs of residuals. visited: which samples' z has moved; None: all of them.
    """
    y = _checked(labels, z, trace)
    if trace is not None and trace.lost > LOST * float(trace.visits.sum()):
        raise ValueError("the trace was given logits that are not finite: training diverged")
    if trace is not None and not bool(trace.visits.any()):
        raise ValueError("the trace has seen no sample: call it with the outputs of every batch in training")
    for name, kept in (("z", z), ("the trace", None if trace is None else trace.probability_sums)):
        if kept is not None and not bool(kept.isfinite().all()):
            raise ValueError(f"{name} is not finite: training diverged, and says nothing about the labels")
    if trace is None:
        assert z is not None
        if not bool(z.any()):
            warn("z is 0 for every sample and tells nothing: the optimizer has taken no step, or lam is inf")
        alone, known = z.detach().cpu(), visited if visited is not None and bool(visited.any()) else None
        if known is not None:
            _look_for_unseen(~known, "z has never moved for")
        classes = max(int(y.max()) + 1, len(class_names))
        scores = _by_z(alone.abs() if signed else alone, y, known)
        return Audit(y, scores, z=alone, class_names=_names(class_names, classes), visited=known)
    _look_for_unseen(trace.visits == 0, "the trace has not seen")
    p = trace.probabilities.detach().double().cpu()
    if others := _of_other_labels(trace.margins.detach().double().cpu(), p, y):
        warn(
            f"the trace was kept with other labels than these for {others:,} of {len(y):,} samples, at least: give the "
            "labels that were trained on, in the same order"
        )
    unlearnt = given_up(p, y)
    p = p.masked_fill(unlearnt[y][:, None], 0.0)
    return Audit(
        y,
        log_odds(p, y),
        p,
        trace.margins.detach().cpu(),
        None if z is None else z.detach().cpu(),
        _names(class_names, p.shape[1]),
        unlearnt=tuple(unlearnt.nonzero()[:, 0].tolist()),
    )


def _look_for_unseen(unseen: Tensor, told: str) -> None:
    """Warn if so many samples were never visited that it is no accident of a last, incomplete batch."""
    count = int(unseen.sum())
    if count > UNSEEN * len(unseen):
        warn(
            f"{told} {count:,} of {len(unseen):,} samples and can say nothing of their labels, which get what the "
            "others have on average"
        )


def _by_z(z: Tensor, y: Tensor, visited: Tensor | None) -> Tensor:
    """The log-odds from z alone; for samples that were not visited, those of the others' share of wrong labels."""
    if visited is None or bool(visited.all()):
        return mixture_log_odds(z, y)
    odds = mixture_log_odds(z[visited], y[visited])  # beside samples that were not, all of these would stand out
    found = torch.full_like(z, float(torch.sigmoid(odds).mean().logit(eps=LEAST)), dtype=odds.dtype)
    found[visited] = odds
    return found


def _of_other_labels(margins: Tensor, p: Tensor, y: Tensor) -> int:
    """For how many samples the margins cannot be those of labels y, as a mean of maxima is no less than the mean's."""
    own = y[:, None]
    most = p.gather(1, own)[:, 0] - p.scatter(1, own, -1.0).amax(1)
    count = int((margins > most + ROUNDED).sum())
    return count if count > ODD * len(y) else 0


def _as_tensor(labels: Tensor | Sequence[int]) -> Tensor:
    """Labels from a list, an array or a pandas column, as a tensor. Raises ValueError if they cannot be classes."""
    if not isinstance(labels, Tensor) and hasattr(labels, "to_numpy"):  # its index need not begin at 0
        labels = labels.to_numpy()
    try:
        if not isinstance(labels, Tensor) and hasattr(labels, "tolist") and len(labels):
            labels = labels.tolist()  # torch does not take all of NumPy's views, byte orders and types
        return labels if isinstance(labels, Tensor) else torch.tensor(labels, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ValueError("labels must be the numbers of classes, from 0 on; give their names as class_names") from None


def _checked(labels: Tensor, z: Tensor | None, trace: Trace | None) -> Tensor:
    """The labels as int64 on the CPU. Raises ValueError if they are no classes, or z or the trace does not fit them."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be a vector of classes, got {labels.dtype} of shape {tuple(labels.shape)}")
    if not len(labels):
        raise ValueError("labels are empty: there is nothing to audit")
    y = labels.detach().cpu().long()
    for name, held in (("z", z), ("the trace", None if trace is None else trace.visits)):
        if held is not None and len(held) != len(y):
            raise ValueError(f"{name} is of {len(held):,} samples, but there are {len(y):,} labels: of other data?")
    classes = None if trace is None else trace.probability_sums.shape[1]
    if int(y.min()) < 0 or (classes is not None and int(y.max()) >= classes):
        raise ValueError(f"labels must lie in [0, {classes or 'classes'}), got {int(y.min())} to {int(y.max())}")
    if int(y.max()) >= MOST:
        raise ValueError(f"labels must be the numbers of classes, from 0 on, got one of {int(y.max()):,}")
    return y


def _names(class_names: Sequence[str], classes: int) -> tuple[str, ...]:
    if len(class_names) not in (0, classes):
        raise ValueError(f"class_names must name {classes} classes, got {len(class_names)}")
    return tuple(str(name) for name in class_names)
