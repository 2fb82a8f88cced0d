"""Audits from what a run's folder keeps about its labels: its checkpoint, and a second network's check beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from mirrordescent.auditing import Audit, audited
from mirrordescent.lab.files import write_text
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.names import first_line
from mirrordescent.lab.records import AUDITS, Record, RunError, load_checkpoint, read
from mirrordescent.lab.runs import Run
from mirrordescent.trace import Trace

CHECK = "check.json"
LEARNT = 2.5  # a network that agrees with the labels by fewer standard deviations beyond chance has learnt nothing


@dataclass(frozen=True)
class Check:
    """What a second network says about labels that it was not trained on.

    contradicted: the share of them for which it predicts something else. wrong: the share that is wrong, estimated from
    its probabilities. before: the share that is wrong of all labels, by the audit's own network; there: of those that
    the second one judged. beyond_chance: by how many standard deviations it agrees with more labels than if they were
    shuffled; None where that cannot be told.
    """

    contradicted: float
    wrong: float
    before: float
    beyond_chance: float | None = None
    there: float | None = None

    @property
    def first(self) -> float:
        """The share that is wrong by the audit's own network, of the same labels where that is known."""
        return self.before if self.there is None else self.there

    @property
    def in_vain(self) -> bool:
        """Whether the network has learnt nothing: then all labels but those of the largest class look suspicious."""
        return self.beyond_chance is not None and self.beyond_chance < LEARNT

    def keep(self, folder: Path) -> None:
        """Write it into the folder of the run that was checked."""
        write_text(folder / CHECK, json.dumps(asdict(self), indent=1) + "\n")

    def judged(self, found: Audit) -> Audit:
        """The audit by both networks: the first one's share of wrong labels plus half of the second's difference to it.

        Both judge the same labels there: how many of these few are wrong is chance, and says nothing of the others.
        """
        return found.with_share(min(max(found.noise + (self.wrong - self.first) / 2, 0.0), 1.0))


def forget_check(folder: Path) -> None:
    """Remove what `Check.keep` wrote."""
    (folder / CHECK).unlink(missing_ok=True)


def audit_of_run(source: Record | Run | Path, class_names: Sequence[str] = ()) -> Audit:
    """The audit of a run of the lab, corrected by its check if there is one; see `audit_alone`."""
    folder = _folder(source)
    found = audit_alone(folder, class_names)
    if not (folder / CHECK).exists():
        return found
    try:
        return Check(**json.loads((folder / CHECK).read_text())).judged(found)
    except (TypeError, ValueError) as error:
        raise RunError(f"{folder / CHECK} cannot be read; remove it, and audit again") from error


def audit_alone(source: Record | Run | Path, class_names: Sequence[str] = ()) -> Audit:
    """The audit of a run of the lab, as far as it has come, by its own network alone.

    source: the run's record, its folder, or the run itself, whose folder is under runs/.
    Raises RunError where there is no such run, or it has kept nothing about its labels.
    """
    folder = _folder(source)
    if folder.is_file():
        raise RunError(f"{folder} is a file, not the folder of a run; `rmd audit {folder}` audits a file of data")
    if not (folder / "run.json").exists():
        raise RunError(f"{folder} is not the folder of a run (it has no run.json)")
    state = load_checkpoint(folder)
    if state is None:
        raise RunError(f"{folder} has no checkpoint yet: the run was cut off before its first, or it was removed")
    record = read(folder)
    class_names = class_names if len(class_names) else record.data.get("class_names", ())
    try:
        job, labels = state["job"], torch.as_tensor(state["job"]["given"])
        z = job["optimizer"]["param_groups"][0].get("z") if record.run.algorithm == "rmd" else None
        kept = dict(job.get("notes", {}))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        path = folder / "checkpoint.pt"
        raise RunError(f"{path} is damaged ({first_line(error)}); remove {folder} and train again") from None
    if labels.is_floating_point():
        raise RunError(f"{folder} is the run of a regression: it has no classes to audit")
    if z is None and "trace.visits" not in kept:
        raise RunError(f"{folder} has kept nothing about its labels: train it again")
    trace = None
    if "trace.visits" in kept:
        trace = Trace(*kept["trace.probability_sums"].shape)
        trace.load_state_dict({name.removeprefix("trace."): v for name, v in kept.items() if name.startswith("trace.")})
    if trace is not None and not bool(trace.visits.any()) and not trace.lost:
        raise RunError(f"{folder} has seen no sample yet; continue that run first")
    return audited(z, trace, labels, class_names)


def _folder(source: Record | Run | Path) -> Path:
    if isinstance(source, Run):
        root = Keeping().root
        audits = max((root / AUDITS).glob(f"*/{source.id}"), key=lambda path: path.stat().st_mtime, default=None)
        return root / source.id if audits is None or (root / source.id).exists() else audits
    return source.folder if isinstance(source, Record) else source
