"""Wrong labels: `rmd audit` and `rmd clean`."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Annotated

import tyro

from mirrordescent.commands.words import DataName, Kept, Where, say_notes
from mirrordescent.lab.audit.auditing import Asked
from mirrordescent.lab.audit.cleaning import Cleaning
from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.datasets import check_apart
from mirrordescent.lab.display import show_audit, show_cleaned
from mirrordescent.lab.files import check_writable
from mirrordescent.lab.watching import Watching, console, say

AskedAudit = Annotated[Asked, tyro.conf.arg(name="audit")]


def audit(
    data: DataName,
    asked: AskedAudit,
    keeping: Kept,
    place: Where,
    out: Path | None = None,
    top: int = 20,
    json: bool = False,
) -> int:
    """Find the labels that are probably wrong: train on all of them, and see which ones the network contradicts.

    It needs no clean labels and no settings. It prints an estimate of how many are wrong and the top suspects, and
    writes audit.csv (a line per sample) and audit.html (a page to review them and export decisions for rmd clean).

    Args:
        data: a name (rmd data list), or the path of a table (.csv, .tsv, .jsonl, .parquet), .npz or folder of images
        out: where to write audit.csv and audit.html; the run's folder unless given
        top: how many of the most suspicious samples to print, flagged or not
        json: print the results for every sample as JSON
    """
    from mirrordescent.lab.audit.auditing import audit_whole, whole_of
    from mirrordescent.lab.audit.telling import audit_paths, put_aside, write_audit

    if top < 0:
        raise ValueError(f"top must be >= 0, got {top}")
    if out is not None and out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file; --out takes a folder")
    check_writable(keeping.root if out is None else out)
    check_apart(data, root=keeping.root, out=out)
    whole = whole_of(data, asked, keeping)
    if out is not None:
        whole.check_beside(*audit_paths(out))
    say_notes(whole.data.notes)
    with Watching(console(), total=1, name="training") as watch:
        audited = audit_whole(whole, asked, keeping, place, watch=watch)
    home = audited.record.folder if out is None else out
    if aside := put_aside(audited, home):
        say(f"note: audit.csv had other columns than this audit's; it is kept as {aside.name}")
    paths = write_audit(audited, home)
    if json:
        sys.stdout.write(json_format.dumps(audited.found.columns()) + "\n")
    else:
        show_audit(audited, top)
    for path in paths:
        say(str(path))
    return 0


def clean(
    data: DataName,
    asked: AskedAudit,
    cleaning: Cleaning,
    keeping: Kept,
    place: Where,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Audit the labels, write a copy of the data without the wrong ones, and see what training on it is worth.

    The copy has the format of the original (.npz for a known data set), which is never touched. A list of what was left
    out or relabelled is written beside it; --decisions can read it. With --corruption your own data are not copied.

    Args:
        data: a name (rmd data list), or the path of a table (.csv, .tsv, .jsonl, .parquet), .npz or folder of images
        out: path of the copy; the data's name with "-cleaned" in the current folder unless given
        json: print what was changed, and what training on the copy is worth, as JSON
    """
    from mirrordescent.lab.audit import cleaning as lab
    from mirrordescent.lab.audit.auditing import audit_whole, whole_of
    from mirrordescent.lab.audit.telling import in_short

    # report what is wrong with a path or a file before anything is trained
    check_apart(data, root=keeping.root)
    whole = whole_of(data, asked, keeping)
    given = lab.labels_of(whole, asked)
    choice = lab.person(whole, cleaning, given)
    trial = bool(asked.corruption) and whole.kind != "known"
    if trial and out is not None:
        raise ValueError("a copy would hold labels that were corrupted on purpose; leave out --corruption, or --out")
    if not trial:
        out = lab.copy_path(whole, out)
        lab.check_list(whole, out, given, choice)
        check_writable(out)
    say_notes(whole.data.notes)
    outcomes: list[lab.Outcome] = []
    found: tuple[str, ...] = ()
    if choice is None or not cleaning.no_compare:
        with Watching(console(), total=1, name="training") as watch:
            audited = audit_whole(whole, asked, keeping, place, watch=watch)
            if choice is None:
                found = in_short(audited)
                choice = lab.clean(audited, asked, cleaning, keeping, place, watch=watch)
            if not cleaning.no_compare and choice.changes(given):
                outcomes = lab.compared(audited, choice, asked, cleaning, keeping, place, watch=watch)
    # the copy comes last: whoever is cut off before it has nothing in the way of the same command
    by_person = cleaning.decisions is not None
    show_cleaned(whole, given, choice, outcomes, found, copy=out, by_person=by_person, json=json)
    if out is None:
        say("no copy is written: it would hold the labels that were corrupted on purpose")
        return 0
    count = lab.write_copy(whole, out, given, choice)
    held = f"{count:,} files" if whole.kind == "folder" else f"{int(choice.keep.sum()):,} samples"
    say(f"{out}: {held}")
    say(f"{lab.changes_path(out)}: what was changed")
    return 0
