"""The report says what the records say, is whole in itself, and comes out of any set of runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mirrordescent.cli import main
from mirrordescent.lab.records import Record, RunError, read_all
from mirrordescent.lab.report import Report, write_report
from mirrordescent.lab.report import writing as report_module
from mirrordescent.lab.report.page import inline_svg
from mirrordescent.lab.report.table import Spread, columns, spread, table, tasks
from mirrordescent.lab.runs import Run

VOID = {"meta", "link", "br", "img", "hr", "input"}


def bins(counts: Sequence[int], low: float = 0.0, high: float = 2.0) -> dict[str, list[float]]:
    width = (high - low) / len(counts)
    return {"edges": [low + width * place for place in range(len(counts) + 1)], "counts": [*counts]}


def record(root: Path, run: Run, *, status: str = "done", rows: int = 6, **changes: Any) -> Record:
    """A record written under `root`, with figures that differ from run to run."""
    shift = int(run.id[:4], 16) / 65536  # in [0, 1)
    made = []
    for epoch in range(1, rows + 1):
        progress = epoch / max(rows, 1)
        row: dict[str, float | int | None] = {"epoch": epoch, "train_loss": 2 - progress, "test_loss": 2.1 - shift}
        if run.data != "regression":
            row |= {"train_accuracy": 0.5 * progress + 0.4 * shift, "test_accuracy": 0.4 + 0.3 * progress + 0.2 * shift}
            row["wrong_fitted"] = 0.3 * progress * shift if run.corruption else None
            row["z_auroc"] = 0.7 + 0.3 * shift if run.algorithm == "rmd" and run.corruption else None
        made.append(row)
    histograms = {"weights": bins([1, 40, 900, 0, 3], -1, 1)}
    if run.algorithm == "rmd":
        histograms["z_right"] = bins([50, 20, 3, 0])
        if run.corruption:
            histograms["z_wrong"] = bins([1, 5, 20, 4])
    held = Record(
        root / run.id,
        run,
        status=status,
        reason="plateau" if status == "done" else "",
        epochs=rows,
        parameters=1234,
        seconds=1.5,
        data={"name": run.data, "samples": 1437, "test_samples": 360, "classes": 10, "wrong": 517},
        environment={"torch": "2.6", "device": "cpu", "threads": 2},
        histograms=histograms if status == "done" else {},
        rows=made,
    )
    held = dataclasses.replace(held, **changes)
    held.write()
    return held


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of three methods, one of them with two λ and three seeds."""
    root = tmp_path_factory.mktemp("usual") / "runs"
    record(root, Run(corruption=0.4, algorithm="sgd"))
    record(root, Run(corruption=0.4, algorithm="smd"))
    for lam in (1.0, 2.0):
        for seed in (0, 1, 2):
            record(root, Run(corruption=0.4, lam=lam, seed=seed))
    return write_report(root)


class Parsed(HTMLParser):
    """Balanced tags, the ids, the cells of every table, the texts, and whatever could make a browser ask or act."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.references: list[str] = []
        self.cells: list[str] = []
        self.labels: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            text = value or ""
            if name == "id":
                self.ids.append(text)
            self.references += re.findall(r"url\(#([^)]*)\)", text) if name != "href" else [text.removeprefix("#")]
            if name in ("src", "srcset", "action", "data", "xlink:href") or (name == "href" and text[:1] != "#"):
                self.loads.append(f"{tag} {name}={text}")
            assert not name.startswith("on"), f"{tag} acts by itself: {name}"
            if tag == "svg" and name == "aria-label":
                self.labels.append(text)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.cells and {"td", "th"} & set(self.open):
            self.cells[-1] += data


def check(report: Report) -> Parsed:
    """The laws that hold for every report."""
    text = report.html.read_text(encoding="utf-8")
    page = Parsed(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.references) <= set(page.ids)
    assert not page.loads
    assert "script" not in page.tags
    assert "@import" not in text
    markdown = report.markdown.read_text(encoding="utf-8")
    linked = re.findall(r"\]\((pictures/[^)]*\.png)\)", markdown)
    names = [path.relative_to(report.markdown.parent).as_posix() for path in report.pictures]
    assert linked == [name for name in names if name.endswith(".png")]
    assert all(path.stat().st_size > 0 for path in report.pictures)
    assert page.tags.count("svg") == page.tags.count("figcaption") == len(linked) == len(page.labels)
    assert all(page.labels)
    return page


def markdown_cells(report: Report) -> list[str]:
    """The cells of the Markdown's tables, as they are shown."""
    lines = [line for line in report.markdown.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [cell.strip() for line in lines if "---" not in line for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    return [re.sub(r"\\(.)", r"\1", cell.replace("**", "")) for cell in cells]


def test_the_tables_say_what_the_records_say(usual: Report) -> None:
    page = check(usual)
    for cells in (page.cells, markdown_cells(usual)):
        for algorithm, lam in (("sgd", None), ("smd", None), ("rmd", 1.0), ("rmd", 2.0)):
            runs = [r for r in read_all(usual.html.parent.parent) if (r.run.algorithm, r.run.lam) == (algorithm, lam)]
            expected = [runs[0].run.title.split(",")[0], "–" if lam is None else f"{lam:g}"]
            for key, scale, form in (
                ("train_accuracy", 100, ".2f"),
                ("test_accuracy", 100, ".2f"),
                ("wrong_fitted", 100, ".2f"),
                ("z_auroc", 1, ".3f"),
            ):
                values = [scale * float(value) for r in runs if (value := r.final[key]) is not None]
                text = format(sum(values) / len(values), form) if values else "–"
                text += f" ± {format(statistics.stdev(values), form)}" if len(values) > 1 else ""
                expected.append(text)
            expected += ["6", str(len(runs)), "plateau"]
            assert any(cells[at : at + len(expected)] == expected for at in range(len(cells))), expected


def test_the_best_is_marked_and_only_that(usual: Report) -> None:
    best = [line for line in usual.lines if line.best]
    assert [line.score for line in best] == [max(line.score for line in usual.lines)]
    cell = best[0].figures["test_accuracy"].text(".2f", 100)
    text = usual.html.read_text(encoding="utf-8")
    assert re.findall("<strong>(.*?)</strong>", text) == [cell]
    assert f"**{cell}**" in usual.markdown.read_text(encoding="utf-8")


def test_two_reports_are_the_same_bytes(usual: Report, tmp_path: Path) -> None:
    paths = [usual.html, usual.markdown, *usual.pictures]
    assert len(paths) == 2 + 2 * 4
    before = [path.read_bytes() for path in paths]
    write_report(usual.html.parent.parent)
    assert [path.read_bytes() for path in paths] == before
    elsewhere = write_report(usual.html.parent.parent, tmp_path / "else where").html.read_text()
    assert "--out" in elsewhere.split("Make this report again")[-1]  # as it was made


def test_the_same_run_on_other_data_is_another(tmp_path: Path) -> None:
    for name, digest in (("a", "1" * 8), ("b", "2" * 8), ("c", "2" * 8)):
        record(tmp_path / name, Run(corruption=0.4, algorithm="sgd"))
        held = read_all(tmp_path / name)[0]
        held.data["digest"] = digest
        held.write()
    found = tasks(read_all(tmp_path))
    assert [len(task.lines) for task in found] == [1, 1]
    assert [task.title.endswith(f"data {digit * 8}") for task, digit in zip(found, "12", strict=True)] == [True, True]


def test_every_place_that_a_run_was_trained_on_is_told(tmp_path: Path) -> None:
    record(tmp_path, Run(corruption=0.4, algorithm="sgd"))
    held = read_all(tmp_path)[0]
    held.earlier = [{"threads": 17}]
    held.environment = {"threads": 23}
    held.write()
    assert "17; 23" in write_report(tmp_path).markdown.read_text()


def test_only_the_reports_folder_is_written(tmp_path: Path) -> None:
    record(tmp_path / "runs", Run(), histograms={})

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = files()
    report = write_report(tmp_path / "runs")
    after = files()
    new = after.keys() - before.keys()
    assert {path: after[path] for path in before} == before
    assert new == {report.html, report.markdown, *report.pictures}
    assert all((tmp_path / "runs" / "report") in path.parents for path in new)
    assert write_report(tmp_path / "runs") == report  # its own files are no runs


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    hostile = '<script src="https://evil.example/x.js">a</script>|`*_[x](y)\n"onload="b" $\\frac$ id="c"'
    run = Run(data=hostile, corruption=0.1, potential="l1")
    record(tmp_path, run, environment={hostile: hostile}, reason=hostile)
    report = write_report(tmp_path)
    page = check(report)
    assert hostile in page.cells
    markdown = report.markdown.read_text(encoding="utf-8")
    assert "<script" not in re.sub(r"\\.", "", markdown)
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", line)) for line in tables[:3]} == {len(columns(report.lines)) + 2}


def test_one_run_alone(tmp_path: Path) -> None:
    held = record(tmp_path, Run(lam=2.0))
    report = write_report(held.folder)  # a run's own folder
    check(report)
    assert {path.stem for path in report.pictures} == {"curves", "z", "weights"}
    text = report.html.read_text(encoding="utf-8")
    assert "against λ" not in text
    assert "<strong>" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    record(tmp_path, Run(), status="running", rows=0, data={}, environment={}, parameters=0)
    report = write_report(tmp_path)
    page = check(report)
    assert not report.pictures
    assert "not finished (running or killed)" in page.cells


def test_unfinished_runs_are_named_and_not_averaged_in(tmp_path: Path) -> None:
    done = record(tmp_path, Run(corruption=0.4, lam=2.0))
    record(tmp_path, Run(corruption=0.4, lam=2.0, seed=1), status="interrupted", rows=3)
    record(tmp_path, Run(corruption=0.4, lam=4.0), status="running", rows=1)
    record(tmp_path, Run(corruption=0.4, algorithm="sgd"), status="failed", rows=2, reason="diverged")
    report = write_report(tmp_path)
    check(report)
    text = report.html.read_text(encoding="utf-8")
    assert "Not done: 3 of 4 runs." in text
    for name in (
        "RMD sample, λ = 2, seed 1: not finished (interrupted), 3 of 100",
        "SGD, seed 0: failed: diverged",
    ):
        assert name in text
    line = next(line for line in report.lines if line.lam == 2.0)
    assert line.seeds == "1 of 2"
    assert line.figures["test_accuracy"] == Spread(float(done.final["test_accuracy"] or 0))
    assert line.ended == "plateau (1), not finished (interrupted) (1)"
    assert not any(line.best for line in report.lines)  # one setting that is done has nothing to be better than


def test_figures_that_are_not_there(tmp_path: Path) -> None:
    rows: list[dict[str, float | int | None]] = [{"epoch": 1, "test_accuracy": None}, {"epoch": 2}, {"epoch": None}]
    for seed in (0, 1):
        record(tmp_path, Run(corruption=0.4, algorithm="sgd", seed=seed), rows=3)
        record(tmp_path, Run(corruption=0.4, lam=1.0 + seed), histograms={"z_right": bins([0, 0])})
    lost = read_all(tmp_path)[0]
    lost.rows = rows
    lost.write()
    report = write_report(tmp_path)
    check(report)
    assert report.lines[0].figures["test_accuracy"].count == 1
    for held in read_all(tmp_path):
        held.rows = rows
        held.write()
    assert not write_report(tmp_path).lines[0].score > -math.inf


def test_regression_has_losses_for_accuracies(tmp_path: Path) -> None:
    for run in (Run(data="regression", algorithm="sgd"), *(Run(data="regression", lam=lam) for lam in (1, 2))):
        record(tmp_path, run)
    report = write_report(tmp_path)
    page = check(report)
    assert {"train loss", "test loss"} <= set(page.cells)
    assert not any("accuracy" in cell for cell in page.cells)
    best = next(line for line in report.lines if line.best)
    assert best.figures["test_loss"].mean == min(line.figures["test_loss"].mean for line in report.lines)
    assert {path.stem for path in report.pictures} == {"lam", "curves", "z", "weights"}


def test_sixty_runs_of_many_methods(tmp_path: Path) -> None:
    for potential in ("l2", "l1", "q=3", "q=4", "q=5", "2 * l2"):
        for place in range(10):
            record(
                tmp_path, Run(corruption=0.4, potential=potential, lam=2.0**place, batch_size=32 + place % 2), rows=2
            )
    report = write_report(tmp_path)
    check(report)
    assert len(report.lines) == 60
    text = report.html.read_text(encoding="utf-8")
    assert "4 methods with worse test results left out." in text
    assert "54 settings with worse test results left out." in text


def test_no_picture_against_lam_where_no_method_that_is_shown_has_one(tmp_path: Path) -> None:
    """The best eight have none, and the others are left out."""
    for q in range(3, 12):
        held = record(tmp_path, Run(algorithm="smd", potential=f"q={q}", lr=1e-3))
        held.rows[-1]["test_accuracy"] = 0.99
        held.write()
    for lam in (1.0, 2.0):
        record(tmp_path, Run(lam=lam))
    report = write_report(tmp_path)
    assert not (report.html.parent / "pictures" / "lam.png").exists()
    assert (report.html.parent / "pictures" / "curves.png").exists()


def test_several_tasks_have_a_table_each(tmp_path: Path) -> None:
    for data in ("digits", "mnist"):
        for corruption in (0.0, 0.2):
            record(tmp_path, Run(data=data, corruption=corruption, algorithm="sgd"), rows=2, histograms={})
            record(tmp_path, Run(data=data, corruption=corruption, lam=2.0), rows=2, histograms={})
    record(tmp_path, Run(data="mnist", test_share=0.5, algorithm="sgd"), rows=2, histograms={})
    report = write_report(tmp_path)
    check(report)
    found = tasks(read_all(tmp_path))
    titles = [task.title for task in found]
    assert len(set(titles)) == 5
    assert "digits, 20 % of the labels corrupted" in titles
    text = report.html.read_text(encoding="utf-8")
    assert all(f"<h3>{title}</h3>" in text for title in titles)
    assert "Pictures are of the first 4 of 5 tasks." in text
    assert sum(line.best for line in report.lines) == 4  # of each task with two settings


def test_settings_that_differ_are_told_apart(tmp_path: Path) -> None:
    for rate in (0.1, 0.2):
        record(tmp_path, Run(lam=2.0, lr=rate))
    record(tmp_path, Run(algorithm="sgd", lr=0.3))
    assert [line.title for line in table(read_all(tmp_path))] == [
        "SGD",
        "RMD sample, lr 0.1, λ = 2",
        "RMD sample, lr 0.2, λ = 2",
    ]


def test_a_copy_of_a_run_is_no_second_seed(tmp_path: Path) -> None:
    run = Run(lam=2.0)
    record(tmp_path / "a", run, status="interrupted", rows=2)
    done = record(tmp_path / "b", run)
    report = write_report(tmp_path)
    assert [line.records for line in report.lines] == [(done,)]
    assert "1 further record of runs that are in more than one folder" in report.html.read_text(encoding="utf-8")


def test_links_to_folders_are_not_followed_but_to_a_run(tmp_path: Path) -> None:
    held, elsewhere = record(tmp_path / "runs", Run()), record(tmp_path / "disk", Run(seed=1))
    for name in ("self", "again"):
        (tmp_path / "runs" / name).symlink_to(".")
    (tmp_path / "runs" / "linked").symlink_to(elsewhere.folder)
    (tmp_path / "link").symlink_to("runs")
    assert {found.run for found in read_all(tmp_path / "runs")} == {held.run, elsewhere.run}
    assert len(read_all(tmp_path / "link")) == 2


def test_bytes_of_paths_that_are_not_utf8_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / os.fsdecode(b"runs\xff")
    try:
        root.mkdir()
    except OSError:
        pytest.skip("this file system wants names in UTF-8")
    record(root, Run(data=os.fsdecode(b"a\xfe.csv"), lam=2.0))
    assert main(["report", str(root)]) == 0
    for name in ("report.html", "report.md"):
        text = (root / "report" / name).read_text(encoding="utf-8")
        assert "\\udcff" in text
        assert "udcfe.csv" in text


def test_a_damaged_record_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, damaged = (record(tmp_path, Run(lam=2.0, seed=seed)) for seed in (0, 1))
    (damaged.folder / "run.json").write_text("{")
    assert main(["report", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr()
    assert [held["id"] for held in json.loads(shown.out)] == [whole.id]
    assert f"rmd: left out of the report: {damaged.folder / 'run.json'} cannot be read" in shown.err
    assert whole.id in (tmp_path / "report" / "report.md").read_text()
    (whole.folder / "run.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 1
    assert f"rmd: {tmp_path} holds no run whose record can be read" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("make", [False, True])
def test_a_folder_without_runs(tmp_path: Path, make: bool) -> None:
    root = tmp_path / "none"
    if make:
        root.mkdir()
    with pytest.raises(RunError, match="none"):
        write_report(root)
    assert not (root / "report").exists()


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, Run())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "mirrordescent.lab.report.pictures", raising=False)
    monkeypatch.delattr("mirrordescent.lab.report.pictures", raising=False)
    with pytest.raises(RunError, match=re.escape("pip install 'mirrordescent[lab]'")) as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_table_needs_no_matplotlib() -> None:
    code = f"import sys, {report_module.__name__}; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_lines_as_json(tmp_path: Path) -> None:
    record(tmp_path, Run(lam=math.inf))
    (line,) = table(read_all(tmp_path))
    held = line.to_dict()
    assert held["lam"] == "inf"
    assert held["figures"]["epochs"] == {"mean": 6.0, "deviation": None, "count": 1}
    assert held["runs"] == [line.records[0].id]


def test_spread() -> None:
    assert spread([]) is None
    assert spread([None, math.nan]) is None
    assert spread([0.25, 0.75]) == Spread(0.5, statistics.stdev([0.25, 0.75]), 2)


def test_text_in_a_picture_stays_as_it_is() -> None:
    svg = '<?xml?><svg width="1pt" viewBox="0 0 1 1"><text id="a" style="fill: #24292f">id="a" #24292f</text></svg>'
    assert inline_svg(svg, "n", '"') == (
        '<svg role="img" aria-label="&quot;" viewBox="0 0 1 1">'
        '<text id="n-a" style="fill: currentColor">id="a" #24292f</text></svg>'
    )
