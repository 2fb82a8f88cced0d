"""The paper's tables: its figures as published, runs as it describes them, and a comparison that adds nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mirrordescent.lab import paper
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import Record, read_all
from mirrordescent.lab.reproduce import compared, page, reproduce, runs_of, write_page

RECORDS = Path(__file__).parent.parent / "results" / "paper"


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


def test_the_comparison_is_the_records_and_the_papers() -> None:
    records = read_all(RECORDS)
    rows = compared(records)
    assert rows
    for row in rows:
        held = [record for record in records if record.run.title == row.title]
        tests = [100 * (record.final["test_accuracy"] or 0.0) for record in held]
        assert row.test.mean == pytest.approx(sum(tests) / len(tests))
        if row.paper_test is not None:
            assert any(figure.test == row.paper_test for figure in paper.figures(row.corruption))
            assert row.difference == pytest.approx(row.test.mean - row.paper_test)
        assert f"| {row.title} |" in page(rows)


def test_what_is_not_the_papers_is_left_out() -> None:
    record = read_all(RECORDS)[0]
    other = Record(record.folder, dataclasses.replace(record.run, lr=0.05), rows=record.rows)
    assert compared([other]) == []
    assert compared([Record(record.folder, record.run)]) == []  # nothing evaluated yet


def test_the_page_lies_beside_the_runs(tmp_path: Path) -> None:
    path = write_page(read_all(RECORDS), Keeping(tmp_path))
    assert Path(path).parent == tmp_path
    assert "40 % of the labels redrawn" in Path(path).read_text(encoding="utf-8")


def test_minutes_are_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="minutes and at_once are for a GPU"):
        reproduce(runs_of("40"), Keeping(tmp_path), Place("cpu"), minutes=1)


def test_the_papers_figures_are_packed_with_the_library() -> None:
    held = json.loads((Path(paper.__file__).parent / "paper.json").read_text())
    assert {int(level) for level in held} == set(paper.TABLES)
