"""The paper's tables: its figures as published, runs as it describes them, and a report that adds nothing to either."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import math
import random
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab import paper
from mirrordescent.lab import reproduce as lab
from mirrordescent.lab.display import show_reproduction
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record, RunError, read_all
from mirrordescent.lab.report import pictures as shared
from mirrordescent.lab.report.writing import Pages
from mirrordescent.lab.reproduce import METHODS as METHOD_NAMES
from mirrordescent.lab.reproduce import compared, page, reproduce, runs_of, write_page
from mirrordescent.lab.reproduction import Row, bests, pictures
from mirrordescent.lab.reproduction.comparison import METHODS, done, leaders, method_of
from mirrordescent.lab.reproduction.writing import off_text, time_scale, too_short
from mirrordescent.lab.runs import Run
from mirrordescent.lab.sweep import Finished

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "paper"
COMMAND = "rmd reproduce --report-only --root results/paper --out docs"  # docs/reproduction.md


def record(run: Run, test: float, *, train: float = 0.5, status: str = "done", reason: str = "epochs") -> Record:
    """A record in memory with two evaluations; half the epochs where it is not done."""
    epochs = run.epochs if status == "done" else run.epochs // 2
    auroc = 0.9 if run.algorithm == "rmd" and run.corruption else None
    last: dict[str, float | int | None] = {"train_accuracy": train, "test_accuracy": test, "z_auroc": auroc}
    rows = [{**last, "epoch": epochs // 2, "test_accuracy": test / 2}, {**last, "epoch": epochs}]
    return Record(Path(run.id), run, status, reason if status != "interrupted" else "", epochs, rows=rows)


def everything() -> list[Record]:
    """A record of every run, in any order."""
    held = [record(run, random.Random(run.id).uniform(0.5, 0.95)) for run in runs_of("all")]
    random.Random(0).shuffle(held)
    return held


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with pictures that nobody looks at."""
    monkeypatch.setattr(shared, "rendered", lambda _draw, _name: ('<svg viewBox="0 0 1 1"></svg>', b"png"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The report on the records in the repository."""
    return write_page(read_all(RECORDS), Keeping(RECORDS), tmp_path_factory.mktemp("real"))


def cells(text: str) -> list[list[str]]:
    """The rows of a Markdown page's tables, as they are shown."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [[re.sub(r"\\(.)|\*\*", r"\1", cell.strip()) for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.parametrize(
    ("corruption", "sgd", "best_rmd"), [(40, 67.41, 83.63), (25, 79.42, 86.92), (10, 87.87, 88.49), (0, 92.81, 92.35)]
)
def test_the_papers_headline_figures(corruption: int, sgd: float, best_rmd: float) -> None:
    figures = paper.figures(corruption)
    assert [figure.test for figure in figures if figure.algorithm == "sgd"] == [sgd]
    assert max(figure.test for figure in figures if figure.algorithm == "rmd") == best_rmd


def test_every_run_is_there_once_and_the_headline_rows_come_first() -> None:
    runs = runs_of("all")
    assert len({run.id for run in runs}) == len(runs)
    for corruption in paper.TABLES:
        held = [run for run in runs if run.corruption == corruption / 100]
        assert [run.title for run in held] == [run.title for run in runs_of(str(corruption))]
        for lams, reduction in ((paper.BATCH_LAMS, "batch"), (paper.SAMPLE_LAMS, "sample")):
            assert {run.lam for run in held if run.algorithm == "rmd" and run.reduction == reduction} == set(lams)
        # what stands beside the paper has a row there
        for run in held:
            if run.reduction == "batch" or run.algorithm != "rmd":
                assert any((f.algorithm, f.lam) == (run.algorithm, run.lam) for f in paper.figures(corruption))
    assert {run.title for run in runs[:4]} == {"RMD sample, λ = 2"}
    quick = runs_of("all", quick=True)
    assert {run.epochs for run in quick} == {10}
    assert not {run.id for run in quick} & {run.id for run in runs}


def test_some_of_the_runs_can_be_asked_for() -> None:
    everything_there = runs_of("all")
    assert runs_of() == runs_of("40", "all") == everything_there
    assert runs_of("25", "40") == [run for run in everything_there if run.corruption in (0.4, 0.25)]
    assert [run.corruption for run in runs_of("25", "40", quick=True)] == 3 * [0.4] + 3 * [0.25]
    assert [run for name in METHOD_NAMES for run in runs_of("40", methods=[name])] == sorted(
        runs_of("40"), key=lambda run: list(METHOD_NAMES.values()).index(method_of(run))
    )
    for run in runs_of("all", methods=["rmd-batch"], lams=[0.7, 4]):
        assert method_of(run) == "RMD batch"
        assert run.lam in (0.7, 4.0)
        assert run in everything_there
    assert len(runs_of("all", methods=["rmd-batch"], lams=[0.7, 4])) == 8
    longer = runs_of("25", methods=["rmd-batch", "sgd"], epochs=1500)
    assert {(run.epochs, run.every) for run in longer} == {(1500, 10)}
    with pytest.raises(ValueError, match="unknown table '4' "):
        runs_of("40", "4")
    with pytest.raises(ValueError, match="unknown method 'rmd-bach' \\(did you mean 'rmd-batch'\\?\\)"):
        runs_of("40", methods=["rmd-bach"])
    with pytest.raises(ValueError, match=r"has lam 3; there are 0\.7, 1, 1\.2, 1\.5, 2, 4, 16$"):
        runs_of("40", methods=["rmd-batch"], lams=[2, 3])
    with pytest.raises(ValueError, match="has lam 2; they have no lam"):
        runs_of("40", methods=["sgd"], lams=[2])
    assert [(run.lam, run.seed) for run in runs_of("40", methods=["rmd-batch"], lams=[1, 1.2], seeds=[0])] == [
        (1.2, 0),
        (1.0, 0),
    ]
    assert {(run.lam, run.seed) for run in runs_of("all", methods=["rmd-batch"], lams=[1, 1.2], seeds=[7, 0, 7])} == {
        (lam, seed) for lam in (1, 1.2) for seed in (0, 7)
    }
    assert set(runs_of("40", methods=["sgd"], seeds=[0, 1, 2])) == set(runs_of("40", methods=["sgd"]))
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        runs_of("40", seeds=[-1])
    for epochs in {run.epochs for run in everything_there}:
        those = runs_of("all", methods=[], epochs=epochs)
        assert all(run in those for run in everything_there if run.epochs == epochs)


def test_how_often_a_run_is_looked_at_makes_no_other_setting() -> None:
    [run] = runs_of("40", methods=["rmd-batch"], lams=[1])
    [longer] = runs_of("40", methods=["rmd-batch"], lams=[1], epochs=1500)
    assert longer.every > run.every
    rows = compared([record(longer, 0.83), record(run, 0.79)])
    assert [(row.epochs, round(row.test.mean)) for row in rows] == [(100, 79), (1500, 83)]


def test_a_row_is_its_records_beside_the_papers_row() -> None:
    records = everything()
    rows = compared(records)
    assert sum(len(row.line.records) for row in rows) == len(records)
    for row in rows:
        held = [100 * float(one.final["test_accuracy"] or 0) for one in row.line.records]
        assert row.test.mean == pytest.approx(statistics.fmean(held))
        if len(held) > 1:
            assert row.test.deviation == pytest.approx(statistics.stdev(held))
        assert {(round(100 * one.run.corruption), one.run.lam) for one in row.line.records} == {
            (row.corruption, row.lam)
        }
        algorithm = {"RMD batch": "rmd", "weight decay": "weight-decay", "SGD": "sgd"}.get(row.method)
        same = [f for f in paper.figures(row.corruption) if (f.algorithm, f.lam) == (algorithm, row.lam)]
        assert row.published == (same[0] if same else None)
        assert (row.published is None) == (row.method == "RMD sample")
        if row.paper_test is not None:
            assert row.difference == pytest.approx(row.test.mean - row.paper_test)


def test_rows_stand_by_level_then_method_then_lam() -> None:
    places = [
        (paper.TABLES.index(row.corruption), METHODS.index(row.method), row.lam or 0) for row in compared(everything())
    ]
    assert places == sorted(set(places))


@given(
    st.sampled_from([run for run in runs_of("all") if run.reduction == "batch" or run.algorithm != "rmd"]), st.data()
)
def test_a_row_is_off_beyond_two_points_and_only_then(run: Run, data: st.DataObject) -> None:
    """In hundredths of a point, which are exact."""
    (row,) = compared([record(run, 0.5)])
    theirs = round(100 * (row.paper_test or 0))
    edges = st.sampled_from([theirs + hundredths for hundredths in (-201, -200, 200, 201)])
    ours = data.draw(st.one_of(edges, st.integers(0, 10_000)))
    (row,) = compared([record(run, ours / 10_000)])
    assert row.off == (abs(ours - theirs) > 200)
    count = len(paper.figures(row.corruption))
    assert off_text([row]) == (
        "More than 2 points from the paper's test accuracy, and marked “off”: "
        f"{'1' if row.off else 'none'} of 1 row. The paper has {count} rows at this level."
    )


def test_rows_of_batch_that_are_too_short_are_named() -> None:
    """Whether they are off or not."""
    runs = [paper.paper_rmd(40, 1.2), paper.paper_rmd(40, 1.5), paper.our_rmd(40, 2.0), paper.paper_sgd(40)]
    rows = compared([record(run, test) for run, test in zip(runs, (0.7, 0.82, 0.7, 0.5), strict=True)])
    scales = {row.title: round(time_scale(row)) for row in rows if time_scale(row)}
    assert scales == {"RMD batch, λ = 1.2": 1536, "RMD batch, λ = 1.5": 1920}
    assert too_short(rows).endswith("needs: RMD batch, λ = 1.2: 1,536; RMD batch, λ = 1.5: 1,920.")
    long = dataclasses.replace(runs[0], epochs=2000)
    assert not too_short(compared([record(long, 0.7)]))


def test_the_best_of_each_method_beside_the_papers_best() -> None:
    rows = compared(everything())
    found = bests(rows)
    assert [(best.row.corruption, best.row.method) for best in found] == [
        (level, method) for level in paper.TABLES for method in ("RMD sample", "RMD batch", "SGD")
    ]
    for best in found:
        held = [r.test.mean for r in rows if (r.corruption, r.method) == (best.row.corruption, best.row.method)]
        assert best.row.test.mean == max(held)
        algorithm = "sgd" if best.row.method == "SGD" else "rmd"
        theirs = [f.test for f in paper.figures(best.row.corruption) if f.algorithm == algorithm]
        assert best.published.test == max(theirs)
        assert best.difference == best.row.test.mean - max(theirs)


@pytest.mark.usefixtures("_undrawn")
def test_runs_that_are_not_done_are_named_and_not_averaged_in() -> None:
    seeds = [paper.our_rmd(40, 2.0, seed) for seed in (0, 1, 2)]
    records = [record(seeds[0], 0.86), record(seeds[1], 0.88), record(seeds[2], 0.2, status="interrupted")]
    records += [record(paper.our_rmd(40, 4.0), 0.9, status="running"), Record(Path("x"), paper.our_rmd(40, 16.0))]
    rows = compared(records)
    mixed, alone = rows  # the last has no evaluation, and no row
    assert mixed.test.mean == pytest.approx(87)
    assert mixed.line.seeds == "2 of 3"
    assert alone.test.mean == pytest.approx(90)
    assert leaders(rows) == [mixed]  # what is not done has shown nothing yet
    (best,) = bests(rows)
    assert (best.row, best.tried, best.planned) == (mixed, 1, 7)
    text = page(rows, COMMAND)
    assert "87.00 ± 1.41" in text
    table = [line for line in cells(text) if len(line) > 10]
    assert table[1][-2:] == ["100", "epoch limit (2), not finished (interrupted) (1)"]
    assert table[2][-2:] == ["125", "not finished (running or killed)"]
    assert "Of the 96 runs that are planned for the tables, 2 are done." in text
    assert (
        "Not done: 2 of 4 runs. 40 %, RMD sample, λ = 2, seed 2: not finished (interrupted), 50 of 100 epochs" in text
    )


@pytest.mark.usefixtures("_undrawn")
def test_runs_that_never_came_to_an_evaluation_are_named(tmp_path: Path) -> None:
    sgd, rmd, ours = paper.table_runs(40)[2], paper.paper_rmd(40, 1.2), paper.our_rmd(40, 2.0)
    failed = Record(Path("x"), rmd, "failed", "it is full")
    records = [record(sgd, 0.7), failed, Record(Path("y"), ours, epochs=4), Record(Path("z"), Run(), "failed")]
    text = write_page(records, Keeping(tmp_path)).markdown.read_text(encoding="utf-8")
    assert "Not done: 2 of 3 runs." in text
    assert "40 %, RMD batch, λ = 1.2, seed 0: failed: it is full, 0 of 100 epochs" in text
    assert "40 %, RMD sample, λ = 2, seed 0: not finished (running or killed), 4 of 100 epochs" in text


def test_the_epochs_of_a_row_are_those_of_its_figures() -> None:
    under_way = record(paper.paper_rmd(40, 1.2), 0.8, status="running")
    [row] = compared([dataclasses.replace(under_way, epochs=under_way.epochs + 4)])
    assert (row.epochs, row.epochs_text) == (50, "50")


@pytest.mark.usefixtures("_undrawn")
def test_a_row_without_a_finished_run_is_not_compared_yet() -> None:
    rows = compared([record(paper.paper_sgd(40), 0.1, status="interrupted"), record(paper.paper_sgd(25), 0.1)])
    assert [row.off for row in rows] == [False, True]
    text = page(rows, COMMAND)
    assert "marked “off”: 1 of 1 row. The paper has 49 rows at these levels." in text
    assert [line[8] for line in cells(text) if line[0] == "SGD"] == ["not yet", "off"]


def test_runs_that_are_done_are_counted_once_and_only_if_long_enough() -> None:
    run = paper.paper_rmd(40, 1.2)
    longer, shorter = (dataclasses.replace(run, epochs=epochs) for epochs in (200, 50))
    assert done(compared([record(run, 0.8), record(longer, 0.8)])) == (1, 96)
    assert done(compared([record(shorter, 0.8)])) == (0, 96)
    assert done(compared(everything())) == (96, 96)


@pytest.mark.usefixtures("_undrawn")
def test_longer_runs_than_the_tables_have_are_a_row_of_their_own() -> None:
    run = paper.paper_rmd(25, 1.2)
    longer, most = (paper.lasting(run, epochs) for epochs in (360, 1500))
    rows = compared([record(most, 0.83), record(run, 0.8), record(longer, 0.9)])
    assert [row.given for row in rows] == [100, 360, 1500]
    assert [row.longer for row in rows] == [False, True, True]
    assert [row.title.partition("1.2")[2] for row in rows] == ["", ", 360 epochs", ", 1500 epochs"]
    (best,) = bests(rows)
    assert (best.row, best.tried) == (rows[1], 1)  # one λ, however often it was trained
    text = page(rows, COMMAND)
    assert "has a row for each length" in text
    assert "RMD batch, λ = 1.2, 360 epochs (+3.08)" in text
    assert "marked “off”: 2 of 2 rows of longer runs. The paper" in page(rows[1:], COMMAND)
    assert "marked “off”: 1 of 1 row and 2 of 2 rows of longer runs. The paper" in text
    assert "row for those" not in page(rows[:1], COMMAND)


def test_of_epoch_limits_below_the_tables_the_longest_counts_where_nothing_else_does() -> None:
    run = paper.paper_rmd(25, 1.2)
    short = record(dataclasses.replace(run, epochs=10), 0.1)
    for records in ([record(run, 0.8), short], [short, record(run, 0.8)]):
        (row,) = compared(records)
        assert row.epochs == 100
        assert row.test.mean == pytest.approx(80)
    (row,) = compared([record(dataclasses.replace(run, epochs=50), 0.5), short])
    assert row.epochs == 50


@pytest.mark.usefixtures("_undrawn")
def test_a_row_of_a_quick_look_is_not_compared() -> None:
    (row,) = compared([record(dataclasses.replace(paper.paper_rmd(25, 1.2), epochs=10), 0.1)])
    assert row.short
    assert not row.off
    assert row.ended == "epoch limit, 100 planned"
    text = page([row], COMMAND)
    assert "given too few epochs to be compared" in text
    assert "| too short |" in text
    assert "| 1 of 7 |" in text  # of the λ that are planned


def test_what_is_not_the_papers_is_left_out() -> None:
    held = read_all(RECORDS)[0]
    other = Record(held.folder, dataclasses.replace(held.run, lr=0.05), rows=held.rows)
    assert compared([other]) == []
    assert compared([Record(held.folder, held.run)]) == []  # nothing evaluated yet


@pytest.mark.usefixtures("_undrawn")
def test_the_page_says_what_the_rows_say() -> None:
    rows = compared(everything())
    text = page(rows, COMMAND)
    lines = cells(text)
    for row in rows:
        published = ["–", "–", "–", "–"]
        if row.paper_train is not None:
            published = [f"{row.paper_train:.2f}", f"{row.paper_test:.2f}", f"{row.difference:+.2f}", "yes"]
            published[3] = "off" if row.off else "yes"
        ours = [row.method, "–" if row.lam is None else f"{row.lam:g}", str(row.test.count)]
        figures = [f"{row.train.mean:.2f}", published[0], row.test.text(".2f"), *published[1:]]
        assert [*ours, *figures, str(row.epochs), "epoch limit"] in lines
    off = sum(row.off for row in rows)
    assert text.count("**off**") == off > 1
    theirs = sum(row.published is not None for row in rows)
    assert f"marked “off”: {off} of {theirs} rows. The paper has 100 rows at these levels." in text
    assert text.index(COMMAND) < text.index("##")
    for level in paper.TABLES:
        assert f"## {level} % of the labels redrawn" in text
        assert f"pictures/reproduction/lam-{level}.png" in text


@pytest.mark.usefixtures("_undrawn")
def test_hostile_words_are_only_text(tmp_path: Path) -> None:
    hostile = '<script src="https://evil.example/x.js">a</script>|*b*'
    pages = write_page([record(paper.paper_sgd(40), 0.5, status="failed", reason=hostile)], Keeping(tmp_path))
    text = pages.html.read_text(encoding="utf-8")
    assert "<script" not in text
    assert f"failed: {html.escape(hostile)}" in text
    markdown = pages.markdown.read_text(encoding="utf-8")
    assert "<script" not in re.sub(r"\\.", "", markdown)


def test_pictures_are_there_in_both_formats_and_the_pages_show_them(real: Pages) -> None:
    names = [path.name for path in real.pictures]
    levels = dict.fromkeys(row.corruption for row in compared(read_all(RECORDS)))
    kinds = itertools.product(levels, ("lam", "curves"), ("svg", "png"))
    assert names == [f"{kind}-{level}.{ending}" for level, kind, ending in kinds]
    assert {path.parent for path in real.pictures} == {real.html.parent / "pictures" / "reproduction"}
    for path in real.pictures:
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")
    shown = re.findall(r"\]\((.*?)\)", real.markdown.read_text(encoding="utf-8"))
    assert [real.markdown.parent / name for name in shown] == [p for p in real.pictures if p.suffix == ".png"]
    text = real.html.read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("<figcaption>") == len(shown)
    assert not re.search(r'(?:src|href)="(?!#)|@import|url\((?!#)', text)  # it asks for nothing


def test_two_reports_are_the_same_bytes(real: Pages, tmp_path: Path) -> None:
    again = write_page(read_all(RECORDS), Keeping(RECORDS), tmp_path)
    said = str(real.html.parent).encode(), str(tmp_path).encode()  # in the command that makes it again
    for one, two in zip((real.html, *real.pictures), (again.html, *again.pictures), strict=True):
        assert one.read_bytes().replace(*said) == two.read_bytes()


def drawn(rows: Sequence[Row]) -> list[list[tuple[float, float]]]:
    """The points of every line in the panels of accuracy against λ, without the horizontal lines."""
    lines = [line for axes in pictures.against_lam(rows).axes for line in axes.get_lines()]
    points = [np.column_stack(line.get_data()).tolist() for line in lines]
    return [[(x, y) for x, y in held] for held in points if [x for x, _ in held] != [0, 1]]


@pytest.mark.parametrize("level", paper.TABLES)
def test_the_pictures_points_are_the_rows_and_the_papers(level: int) -> None:
    rows = [row for row in compared(everything()) if row.corruption == level]
    found = drawn(rows)
    for method in ("RMD sample", "RMD batch", "weight decay"):
        held = [row for row in rows if row.method == method]
        assert [(row.lam, row.test.mean) for row in held] in found
        assert [(row.lam, row.train.mean) for row in held] in found
    for algorithm in ("rmd", "weight-decay"):
        theirs = [f for f in paper.figures(level) if f.algorithm == algorithm]
        assert sorted((f.lam, f.test) for f in theirs) in found
        assert sorted((f.lam, f.train) for f in theirs) in found


@pytest.mark.usefixtures("_undrawn")
def test_what_has_no_data_is_not_drawn() -> None:
    sgd, rmd = record(paper.paper_sgd(40), 0.6), record(paper.our_rmd(40, 2.0), 0.8)
    decay, clean = record(paper.paper_decay(40, 0.002), 0.5), record(paper.our_rmd(0, 2.0), 0.9)
    assert "lam-40" not in page(compared([sgd]), COMMAND)  # SGD has no λ
    assert len(pictures.against_lam(compared([sgd, rmd])).axes) == 2
    assert len(pictures.against_lam(compared([sgd, rmd, decay])).axes) == 4
    assert len(pictures.curves(compared([rmd])).axes) == 2
    assert len(pictures.curves(compared([sgd])).axes) == 1  # without z
    assert len(pictures.curves(compared([clean])).axes) == 1  # z has nothing to find
    text = page(compared([sgd]), COMMAND)
    assert "AUROC" not in text
    assert "25 %" not in text


def test_without_runs_of_the_paper_one_line_says_so(tmp_path: Path) -> None:
    for records in ([], [record(Run(corruption=0.4), 0.5)]):
        with pytest.raises(RunError, match="holds no evaluated run of the paper's tables") as caught:
            write_page(records, Keeping(tmp_path))
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_undrawn")
def test_the_page_in_docs_is_what_the_command_writes() -> None:
    """After new records: run the command that the page names."""
    assert (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8") == page(compared(read_all(RECORDS)), COMMAND)
    shown = re.findall(r"\]\((.*?)\)", page(compared(read_all(RECORDS)), COMMAND))
    assert all((ROOT / "docs" / name).is_file() for name in shown)


@pytest.mark.usefixtures("_undrawn")
class TestCommand:
    """`rmd reproduce`."""

    def call(self, *arguments: str) -> int:
        pytest.importorskip("tyro")
        from mirrordescent.cli import main

        return main(["reproduce", *arguments])

    def test_the_report_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.call("--report-only", "--root", str(RECORDS), "--out", str(tmp_path)) == 0
        shown = capsys.readouterr()
        assert "RMD sample, λ = 2" in shown.out
        for name in ("reproduction.html", "reproduction.md", "pictures/reproduction"):
            assert (tmp_path / name).exists()
            assert str(tmp_path / name) in shown.err
        assert self.call("--report-only", "--root", str(RECORDS), "--out", str(tmp_path), "--json") == 0
        assert {held["id"] for held in json.loads(capsys.readouterr().out)} == {one.id for one in read_all(RECORDS)}

    def test_a_damaged_record_is_left_out_and_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        whole, damaged = (
            dataclasses.replace(record(run, 0.9), folder=tmp_path / run.id) for run in paper.table_runs(40)[:2]
        )
        for held in (whole, damaged):
            held.write()
        (damaged.folder / "run.json").write_text("{")
        assert self.call("--report-only", "--root", str(tmp_path), "--json") == 0
        shown = capsys.readouterr()
        assert [held["id"] for held in json.loads(shown.out)] == [whole.id]
        assert f"rmd: left out of the report: {damaged.folder / 'run.json'} cannot be read" in shown.err
        (whole.folder / "run.json").write_text("{")
        assert self.call("--report-only", "--root", str(tmp_path)) == 1
        assert "holds no evaluated run of the paper's tables" in capsys.readouterr().err

    def test_in_a_terminal_no_title_is_broken_and_open_runs_say_how_far_they_are(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        going = [record(paper.our_rmd(40, 4.0), 0.9, status=status) for status in ("interrupted", "running")]
        failed = dataclasses.replace(record(paper.paper_rmd(40, 16.0), 0.9), status="failed", reason="no memory")
        for open_run in going:
            show_reproduction([record(paper.our_rmd(40, 2.0), 0.86), open_run], json=False)
            shown = capsys.readouterr().out
            assert "RMD sample, λ = 4" in shown
            assert "125/250" in shown
            assert "ended" not in shown
        show_reproduction([*going[:1], failed], json=False)
        shown = capsys.readouterr().out
        assert "ended" in shown
        assert "125/250" in shown
        assert "failed" in shown

    def test_after_training_it_is_about_all_that_lies_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = tmp_path / "runs"
        shutil.copytree(RECORDS, root)
        records = read_all(root)
        monkeypatch.setattr(lab, "reproduce", lambda *_, **__: (records[:1], []))
        assert self.call("--root", str(root), "--table", "40", "25", "--json") == 0
        shown = capsys.readouterr()
        assert [held["id"] for held in json.loads(shown.out)] == [records[0].id]
        assert str(root / "reproduction.html") in shown.err
        text = (root / "reproduction.md").read_text(encoding="utf-8")
        rows = compared(records)
        lines = [line for line in cells(text) if len(line) > 10]
        assert len(lines) == len({row.corruption for row in rows}) + len(rows)

    def test_a_damaged_record_beside_them_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        root = tmp_path / "runs"
        shutil.copytree(RECORDS, root)
        records = read_all(root)
        (root / "other").mkdir()
        (root / "other" / "run.json").write_text("{")
        monkeypatch.setattr(lab, "reproduce", lambda *_, **__: (records[:1], []))
        assert self.call("--root", str(root), "--table", "40") == 0
        assert f"left out of the report: {root / 'other' / 'run.json'} cannot be read" in capsys.readouterr().err
        assert (root / "reproduction.html").exists()

    def test_where_it_cannot_write_it_says_so_before_it_trains(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").write_text("")
        assert self.call("--quick", "--root", str(tmp_path / "runs"), "--out", str(tmp_path / "file")) == 1
        assert capsys.readouterr().err == f"rmd: {tmp_path / 'file'} is a file, and a folder is needed there\n"

    def test_where_nothing_was_evaluated_there_is_no_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ends = [Finished(run, "failed", "no data") for run in runs_of("40", quick=True)]
        monkeypatch.setattr(lab, "reproduce", lambda *_, **__: ([], ends))
        assert self.call("--root", str(tmp_path), "--quick", "--json") == 1
        assert json.loads(capsys.readouterr().out) == []
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("more", [["--quick"], ["--minutes", "1"], ["--at-once", "2"], ["--table", "40"]])
    def test_nothing_to_train_needs_no_choice_of_runs(
        self, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.call("--report-only", "--root", str(tmp_path), *more) == 2
        assert "--report-only trains nothing" in capsys.readouterr().err

    def test_a_folder_without_the_papers_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.call("--report-only", "--root", str(tmp_path)) == 1
        assert self.call("--report-only", "--root", str(ROOT / "results" / "fashion"), "--out", str(tmp_path)) == 1
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 2
        assert "holds no runs" in told[0]
        assert "no evaluated run of the paper's tables" in told[1]


def test_rows_need_no_matplotlib() -> None:
    code = "import sys, mirrordescent.lab.reproduce; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_minutes_end_it_on_a_cpu_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(lab, "sweep", lambda *_, **more: given.update(more) or ([], []))
    assert reproduce(runs_of("40"), Keeping(tmp_path), Place("cpu"), minutes=7) == ([], [])
    assert (given["jobs"], given["minutes"]) == (1, 7)


def test_side_by_side_is_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at_once is for a GPU; a CPU trains one run after another"):
        reproduce(runs_of("40"), Keeping(tmp_path), Place("cpu"), at_once=2)


def test_the_papers_figures_are_packed_with_the_library() -> None:
    held = json.loads((Path(paper.__file__).parent / "paper.json").read_text())
    assert {int(level) for level in held} == set(paper.TABLES)


def test_weight_decay_forgets_its_start_six_times_or_has_300_epochs() -> None:
    runs = runs_of("all", methods=["weight-decay"])
    assert len(runs) == 12
    for run in runs:
        assert run.lam is not None
        left = (1 - run.lr / (run.lam * 50_000)) ** (run.epochs * (50_000 // run.batch_size))  # of the start, by decay
        assert run.epochs == 300 or (run.epochs < 300 and left < 1.01 * math.exp(-6))
