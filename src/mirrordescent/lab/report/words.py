"""Phrases that the reports share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mirrordescent.lab.records import Record
from mirrordescent.lab.report.table import why_ended
from mirrordescent.lab.runs import Run

NAMED_RUNS = 8  # unfinished runs that a page names before it points to a list


def plural(word: str, count: int) -> str:
    """The word, in the plural unless there is one.

    >>> plural("run", 1), plural("run", 3)
    ('run', 'runs')
    """
    return word if count == 1 else f"{word}s"


def joined(words: Sequence[str]) -> str:
    """All the words, as a sentence lists them.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def unfinished(records: Sequence[Record], where: str, title: Callable[[Run], str]) -> str:
    """The runs that are not done, in a few sentences; empty where all are. where: what lists the rest."""
    those = [record for record in records if record.status != "done"]
    if not those:
        return ""
    named = [
        f"{title(record.run)}, seed {record.run.seed}: {why_ended(record)}, "
        f"{record.epochs:,} of {record.run.epochs:,} epochs"
        for record in those[:NAMED_RUNS]
    ]
    rest = f"; and {len(those) - len(named)} more, in {where}" if len(those) > len(named) else ""
    total = len(records)
    return f"Not done: {len(those)} of {total} {plural('run', total)}. {'; '.join(named)}{rest}."
