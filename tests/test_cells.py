"""The parts of a long benchmark, and that its columns are what they say."""

from __future__ import annotations

import functools
import json
import signal
import time
from pathlib import Path

import pytest
import shares
import tables
from cells import cell, take_up, trained, within

from mirrordescent.lab.audit.auditing import Asked, audit_data
from mirrordescent.lab.data import Source, load
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import read
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.signals import handled
from mirrordescent.lab.sweep import Work
from mirrordescent.lab.train import train

CPU = Place("cpu", threads=1)


def test_a_part_is_measured_once_and_anew_where_something_differs(tmp_path: Path) -> None:
    asked: list[int] = []

    def measure() -> dict[str, int]:
        asked.append(1)
        return {"found": len(asked)}

    for of, found in ((["a", "b"], 1), (["a", "b"], 1), (["ab"], 2), (["b", "a"], 3), (["a", "b"], 1)):
        held = cell(tmp_path, "uniform", of, measure)
        assert held["found"] == found
        assert held["machine"].startswith("CPU")
    assert all(json.loads(path.read_text())["found"] for path in (tmp_path / "cells").iterdir())


@pytest.mark.parametrize("by_kind", [False, True])
def test_a_record_goes_on_elsewhere(tmp_path: Path, by_kind: bool) -> None:
    names = "pair=0.2-0", "1"
    here = [cell(tmp_path / "here", name, ["a"], functools.partial(dict[str, str], found=name)) for name in names]
    known = tmp_path / "record.json"
    known.write_text(json.dumps({"results": {"each": {"pair": here[:1], "all": here[1:]} if by_kind else here}}))
    for _ in range(2):
        take_up(tmp_path / "there", known)
        take_up(tmp_path / "there", None)
        there = [cell(tmp_path / "there", name, ["a"], lambda: pytest.fail("measured anew")) for name in names]
        assert there == here
    assert cell(tmp_path / "there", "1", ["b"], lambda: {"found": "another"})["found"] == "another"
    known.write_text(json.dumps({"results": {"each": [{"found": 1}]}}))
    with pytest.raises(SystemExit, match=r"record\.json was written before"):
        take_up(tmp_path, known)


def test_what_is_under_way_when_time_is_over_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = load(Source("digits"), None)
    run = settled(Run(epochs=100_000, every=1000, stop="never"), data)
    begun = time.monotonic()
    with within(2 / 60):
        trained([Work(run, data, tmp_path / "apart")], Keeping(tmp_path), CPU)
    assert "minutes are over; the same command continues" in capsys.readouterr().out
    assert time.monotonic() - begun < 60
    assert read(tmp_path / "apart" / run.id).status == "interrupted"
    assert (tmp_path / "apart" / run.id / "checkpoint.pt").exists()
    as_ever = handled(signal.default_int_handler, signal.SIGINT)  # a shell's background jobs ignore it
    with as_ever, pytest.raises(KeyboardInterrupt), within(60):  # a person's Ctrl-C is one
        signal.raise_signal(signal.SIGINT)
    with within(None):
        pass


def test_the_same_run_twice_is_trained_once_and_as_alone(tmp_path: Path) -> None:
    data = load(Source("digits"), None)
    run = settled(Run(epochs=1), data)
    trained([Work(run, data, tmp_path), Work(run, data, tmp_path)], Keeping(tmp_path), CPU)
    assert read(tmp_path / run.id).rows == train(run, Keeping(tmp_path / "alone"), CPU, data=data).rows


def test_the_first_network_alone_is_without_the_second_ones_opinion(tmp_path: Path) -> None:
    asked = Asked(model="linear", corruption=0.2, epochs=3)
    audited = audit_data("digits", asked, Keeping(tmp_path), CPU)
    assert audited.check is not None
    found = shares.outcome(shares.Case("digits", "digits", asked), audited)
    assert found["alone"]["estimated"] == audited.check.before
    assert audited.check.there is not None
    half = (audited.check.wrong - audited.check.there) / 2
    assert found["both"]["estimated"] == pytest.approx(audited.check.before + half, abs=1e-4)
    assert found["alone"]["estimated"] != found["both"]["estimated"]


def test_the_tables_of_the_docs_are_those_of_the_records() -> None:
    assert tables.PAGE.read_text() == tables.page()
    told = tables.AUDITS.read_text()
    assert tables.with_tables(told) == told
    with pytest.raises(ValueError, match="0 places for the table 'scores'"):
        tables.with_tables(told.replace("<!-- scores -->", ""))
