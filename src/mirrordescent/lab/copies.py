"""Samples that are in the data several times: to a network they are one, which it sees too often.

An audit trains on one of each. With its copies it would learn a wrong label by heart, and a sample that is set aside to
be judged would be trained on after all. Where samples with the same inputs have several labels, all of them count: how
often each is there says which is right.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mirrordescent.auditing import Audit
from mirrordescent.lab.files import write_text
from mirrordescent.lab.records import RunError

FEW = 0.01  # of the samples; so few copies change nothing
ENOUGH = 100  # different samples, without which an audit rather takes all there are
KINDS = "copies.json"


@dataclass(frozen=True)
class Copies:
    """rows: the first sample of each kind, in their order. kinds: (n,), which of them each sample is, copies alike."""

    rows: Tensor
    kinds: Tensor

    def __len__(self) -> int:
        """How many samples are copies of an earlier one."""
        return len(self.kinds) - len(self.rows)

    def spread(self, found: Audit) -> Audit:
        """What was found about one of each, for all of them."""
        fields = {name: getattr(found, name) for name in ("given", "score", "probabilities", "margins", "z")}
        every = {name: held[self.kinds] for name, held in fields.items() if held is not None}
        return dataclasses.replace(found, **every)

    def parted(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """All samples but those of some kinds, and those, with their copies."""
        there = torch.isin(self.kinds, chosen)
        return (~there).nonzero()[:, 0], there.nonzero()[:, 0]

    def keep(self, folder: Path) -> None:
        """Write them into the folder of the run that saw one of each."""
        write_text(folder / KINDS, json.dumps(self.kinds.tolist()) + "\n")


def copies_in(inputs: Tensor, labels: Tensor) -> Copies | None:
    """The copies among the samples, with the same label; None where they are few, or where little would be left."""
    values = inputs.contiguous().flatten(1).numpy()
    alike = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in values]
    several: dict[bytes, int] = {}  # by the inputs, their label; -1 for more than one
    for inputs_are, label in zip(alike, labels.tolist(), strict=True):
        if several.setdefault(inputs_are, label) != label:
            several[inputs_are] = -1
    names: dict[bytes | int, int] = {}
    kinds = [names.setdefault(i if several[held] < 0 else held, len(names)) for i, held in enumerate(alike)]
    few = len(kinds) - len(names) < FEW * len(kinds)
    return None if few or len(names) < ENOUGH else _copies(kinds)


def kept_copies(folder: Path) -> Copies | None:
    """What `keep` wrote; None where there were none."""
    file = folder / KINDS
    if not file.exists():
        return None
    try:
        return _copies(json.loads(file.read_text()))
    except (TypeError, ValueError, KeyError) as error:
        raise RunError(f"{file} cannot be read; remove the folder, and audit again") from error


def _copies(kinds: list[int]) -> Copies:
    first = {kind: row for row, kind in reversed(list(enumerate(kinds)))}
    return Copies(torch.tensor([first[kind] for kind in range(len(first))]), torch.tensor(kinds))
