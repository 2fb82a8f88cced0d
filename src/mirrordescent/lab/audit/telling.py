"""Puts an audit into words, numbers and pictures: what the page and the terminal show, and the files written."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mirrordescent.auditing import write_columns
from mirrordescent.lab.audit.auditing import Audited
from mirrordescent.lab.audit.decisions import FINGERPRINT
from mirrordescent.lab.audit.page import Findings, Histogram, Shown, write_audit_page
from mirrordescent.lab.audit.rule import MEMORIES
from mirrordescent.lab.evaluation import auroc
from mirrordescent.lab.files import write_text
from mirrordescent.lab.kept import Check
from mirrordescent.lab.names import listed
from mirrordescent.suspicion import RARE

SHOWN = 1000  # samples with their picture or row on the page
LONG = 2000  # characters of a cell that the page shows
BINS = 60
SMALL = 500  # samples, below which numbers are rough
HARDLY = 0.25  # part of what the first network finds wrong; with less the second one finds hardly anything
FEW = 0.02  # share of wrong labels up to which the two are not compared
MUTUAL = 0.1  # share of each of two classes that is flagged for the other one, to say so
ALONE = 0.6  # share of all that is flagged in the two classes, to be about these two; three alike classes have 0.5
FAR = 0.1  # how far the share that the second network contradicts may exceed the estimate without a warning


def findings(audited: Audited, shown: int = SHOWN) -> Findings:
    """Everything that the page shows."""
    whole, found = audited.whole, audited.found
    worst = found.order[:shown].tolist()
    return Findings(
        title=whole.data.name,
        class_names=whole.class_names,
        given=found.given.tolist(),
        suggested=found.suggested.tolist(),
        confidence=found.confidence.tolist(),
        wrong=found.wrong.tolist(),
        score=found.score.tolist(),
        issue=found.issue.tolist(),
        names=whole.names,
        shown=[Shown(i, whole.names[i], whole.picture(i), _short(whole.cells(i))) for i in worst],
        sentences=sentences(audited),
        histogram=histogram(found.score, found.wrong),
        notes=whole.data.notes,
        fingerprints=whole.fingerprints,
    )


def _short(cells: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """A row for the page, where whole documents would make it too large to open."""
    return tuple(
        (name, text if len(text) <= LONG else f"{text[:LONG]} … ({len(text):,} characters)") for name, text in cells
    )


def sentences(audited: Audited) -> tuple[str, ...]:
    """What was found, and how far to trust it; what makes all of it worthless comes first."""
    found = audited.found
    told = [
        *_in_vain(audited),
        _estimate(audited),
        *_second_opinion(found.noise, audited.check),
        *_doubts(audited),
        "The estimate comes from what a network predicted for each sample during a training that kept it from learning "
        "labels by heart. It is no proof: a rare, ambiguous or badly recorded sample looks like a wrong label. Look at "
        "some of the flagged ones before you trust the rest.",
        "Mistakes that most labels of a class share cannot be seen: the network learns them as the truth.",
    ]
    members = torch.bincount(found.given, minlength=len(audited.whole.class_names)).tolist()
    if rare := [name for name, m in zip(audited.whole.class_names, members, strict=True) if 0 < m < RARE]:
        told.append(
            f"Nothing is flagged in classes with fewer than {RARE} samples, whatever their scores: {listed(rare)}."
        )
    if audited.changed is not None:
        told.append(_on_purpose(found.score, found.issue, audited.changed))
    return tuple(told)


def in_short(audited: Audited) -> tuple[str, ...]:
    """The estimate, and the doubts about it: what the user of a clean-up has to know."""
    return *_in_vain(audited), _estimate(audited), *_doubts(audited)


def _in_vain(audited: Audited) -> Iterator[str]:
    if audited.check is not None and audited.check.in_vain:
        yield (
            "Do not rely on this audit: its second network agrees with no more labels than by chance. It has found "
            "nothing in these data by which to tell the classes apart, so what is flagged says nothing."
        )


def _estimate(audited: Audited) -> str:
    found = audited.found
    flagged = int(found.issue.sum())
    return (
        f"About {100 * found.noise:.1f} % of the {len(found):,} labels are estimated to be wrong; {flagged:,} "
        f"{'is' if flagged == 1 else 'are'} flagged as more likely wrong than right."
    )


def _doubts(audited: Audited) -> Iterator[str]:
    check, n = audited.check, len(audited.found)
    if unlearnt := [audited.whole.class_names[c] for c in audited.found.unlearnt]:
        yield (
            f"The network takes hardly any sample for {listed([repr(name) for name in unlearnt])}: it has not learnt "
            "what such samples look like, or all labelled so are something else. Nothing is flagged there, and "
            "these labels are assumed to be wrong as often as the others."
        )
    if (memory := audited.record.run.memory) > MEMORIES[0]:
        yield (
            f"The network was trained with a longer memory ({memory:g}), so that it gives up no class. With that it "
            "learns more labels by heart: more of them may be wrong than are estimated and flagged."
        )
    if audited.unchecked:
        yield f"There is no second opinion: {audited.unchecked}."
    elif check is None:
        yield (
            "No second network has checked this estimate (--no-check): where classes overlap it may be far too high, "
            "and where labels were learnt by heart far too low."
        )
    elif not check.in_vain:
        yield from _disagreement(check, audited.found.noise)
    yield from _entangled(audited)
    if n < SMALL:
        yield f"With only {n:,} samples the numbers are rough."


def _entangled(audited: Audited) -> Iterator[str]:
    """Pairs of classes that are flagged mostly for each other, as where the data cannot tell them apart."""
    found, names = audited.found, audited.whole.class_names
    classes = len(names)
    if classes < 3:  # of two classes all that is flagged is; the check looks at that
        return
    members = torch.bincount(found.given, minlength=classes).clamp(min=1)
    moved = torch.bincount((found.given * classes + found.suggested)[found.issue], minlength=classes**2)
    flagged = moved.reshape(classes, classes)
    share, total = flagged / members[:, None], flagged.sum(1)
    for a, b in itertools.combinations(range(classes), 2):
        both = int(flagged[a, b] + flagged[b, a])
        if min(share[a, b], share[b, a]) >= MUTUAL and both >= ALONE * int(total[a] + total[b]):
            yield (
                f"{names[a]!r} and {names[b]!r} are flagged for each other ({100 * float(share[a, b]):.1f} % and "
                f"{100 * float(share[b, a]):.1f} % of them): people may have mixed them up, but if these data cannot "
                "tell the two apart, most of these labels are right. Look at some before you drop any."
            )


def _disagreement(check: Check, noise: float) -> Iterator[str]:
    """Where the second network finds far fewer labels wrong than the first, or contradicts far more of them."""
    if check.wrong < HARDLY * check.first and check.first > FEW:
        yield (
            f"The second network takes hardly any of the labels that it judged for wrong ({100 * check.wrong:.1f} %; "
            f"the first network {100 * check.first:.1f} %): what is flagged may be samples that are hard to tell "
            "apart, with the right labels of a small class among them. Look at them before you drop any."
        )
    if check.contradicted > noise + FAR:
        yield (
            "A second network, which had not seen the labels that it judged, contradicts far more of them "
            f"({100 * check.contradicted:.1f} %) than are estimated to be wrong: either the classes are hard to tell "
            "apart, or the first network has learnt labels by heart. Do not rely on the number; the ranking may still "
            "be of use."
        )


def _second_opinion(noise: float, check: Check | None) -> Iterator[str]:
    """What the second network says about labels that it was not trained on; its own mistakes contradict some, too."""
    if check is not None:
        before, after = (f"{100 * share:.1f}" for share in (check.before, noise))
        moved = f"was moved by half of that difference, from {before} to {after} %"
        yield (
            f"Check: a second network, trained on four fifths of the samples, contradicts "
            f"{100 * check.contradicted:.1f} % of the other labels, partly by its own mistakes. Judging by how sure it "
            f"was, {100 * check.wrong:.1f} % of these are wrong; of the same labels the first network says "
            f"{100 * check.first:.1f} %. The estimate for all {moved if before != after else f'stays {after} %'}."
        )


def _on_purpose(score: Tensor, issue: Tensor, changed: Tensor) -> str:
    count, flagged = int(changed.sum()), int(issue.sum())
    hits = int((issue & changed).sum())
    area = auroc(score, changed)
    ranked = "" if area is None else f" The score ranks them with an AUROC of {area:.4f}."
    return (
        f"{count:,} labels ({100 * count / len(changed):.1f} %) were corrupted on purpose: {hits:,} of them are among "
        f"the {flagged:,} that are flagged.{ranked} Labels that were wrong to begin with count as right here."
    )


def histogram(score: Tensor, wrong: Tensor) -> Histogram:
    """The histogram of the score; right and wrong labels in a bin are expected numbers, the sums of probabilities."""
    low, high = float(score.min()), float(score.max())
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1, dtype=torch.float64)
    place = (torch.bucketize(score.double(), edges, right=True) - 1).clamp(0, BINS - 1)
    expected = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, wrong.double())
    counts = torch.bincount(place, minlength=BINS)
    return Histogram(edges.tolist(), counts.tolist(), (counts - expected).tolist(), expected.tolist(), 0.0)


def audit_paths(out: Path) -> tuple[Path, Path]:
    """The table and the page of an audit in a folder."""
    return out / "audit.csv", out / "audit.html"


def _columns(audited: Audited) -> dict[str, list[Any]]:
    """The columns of audit.csv."""
    prints = list(audited.whole.fingerprints)
    return {**audited.found.columns(), **({FINGERPRINT: prints} if prints else {})}


def put_aside(audited: Audited, out: Path) -> Path | None:
    """Rename an audit.csv with other columns than this audit's, a person's decisions perhaps; returns its new path."""
    table, _ = audit_paths(out)
    if not table.is_file():
        return None
    with table.open(encoding="utf-8-sig", errors="replace") as file:
        if file.readline().strip() == ",".join(_columns(audited)):
            return None
    free = (table.with_name(f"{table.stem}-before{k}{table.suffix}") for k in itertools.count(1))
    return table.rename(next(path for path in free if not path.exists()))


def write_audit(audited: Audited, out: Path, shown: int = SHOWN) -> tuple[Path, Path]:
    """Write audit.csv, a line per sample, and audit.html into a folder; returns their paths."""
    table, page = audit_paths(out)
    lines = io.StringIO()
    write_columns(_columns(audited), lines)
    write_text(table, lines.getvalue())
    write_audit_page(findings(audited, shown), page)
    return table, page
