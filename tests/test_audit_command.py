"""`rmd audit` and `rmd clean` as people call them: what is written, what is told, and when."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mislabelled import table
from test_whole import images

from mirrordescent.commands import labels
from mirrordescent.lab.audit.cleaning import Choice, Outcome, changes_path
from mirrordescent.lab.audit.decisions import Decision, read_decisions
from mirrordescent.lab.data import Source
from mirrordescent.lab.data.whole import load_whole
from mirrordescent.lab.display import show_cleaned
from mirrordescent.lab.records import Record
from mirrordescent.lab.runs import Run

# a command that is killed before the file with the name of its first argument takes its place
KILLED = """
import os, signal, sys
replace = os.replace

def kill(source, target):
    if os.path.basename(target) == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = kill
from mirrordescent.cli import main
main(sys.argv[2:])
"""


class TestCommand:
    """`rmd audit` and `rmd clean`."""

    def call(self, *arguments: str) -> int:
        pytest.importorskip("tyro")
        from mirrordescent.cli import main

        return main([*arguments, "--device", "cpu", "--threads", "1"])

    def test_audit_decide_clean(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, runs = tmp_path / "things.csv", str(tmp_path / "runs")
        table(path)
        before = path.read_bytes()
        common = (str(path), "--label", "kind", "--epochs", "10", "--root", runs)
        assert self.call("audit", *common, "--out", str(tmp_path / "audit")) == 0
        shown = capsys.readouterr()
        assert "labels are estimated to be wrong" in " ".join(shown.out.split())
        for top in (3, 5):
            assert self.call("audit", *common, "--top", str(top)) == 0
            assert capsys.readouterr().out.count(" line ") == top
        assert str(tmp_path / "audit" / "audit.html") in shown.err
        assert self.call("audit", *common, "--json") == 0
        columns = json.loads(capsys.readouterr().out)
        assert len(columns["score"]) == 300
        decisions = tmp_path / "decisions.csv"
        kinds = columns["given_label"]
        other = next(kind for kind in kinds if kind != kinds[1])
        decisions.write_text(
            "index,name,given_label,action,label\n"
            f"0,{columns['name'][0]},{kinds[0]},drop,\n1,{columns['name'][1]},{kinds[1]},relabel,{other}\n"
        )
        copy = tmp_path / "copy.csv"
        settings = ("--decisions", str(decisions), "--out", str(copy), "--retrain-epochs", "2")
        assert self.call("clean", *common, *settings[:2], "--out", str(path)) == 1
        assert "is the original" in " ".join(capsys.readouterr().err.split())
        assert self.call("clean", *common, *settings) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "1 is left out and 1 relabelled" in told
        assert "estimated to be wrong" not in told  # a person has decided
        assert "by its given labels" in told
        whole = load_whole(Source(str(copy), "kind"))
        names = [whole.data.class_names[label] for label in whole.data.targets.tolist()]
        assert names == [other, *kinds[2:]]
        assert path.read_bytes() == before
        again = read_decisions(changes_path(copy), 300, whole.data.class_names)
        assert again == [Decision(0, "drop"), Decision(1, "relabel", other)]
        for more in ((), ("--relabel",), ("--no-compare",), ("--rounds", "2")):  # one after the other, from one audit
            copy.unlink()
            changes_path(copy).unlink()
            assert self.call("clean", *common, *settings[2 : 4 if "--no-compare" in more else 6], *more) == 0
            told = " ".join(capsys.readouterr().out.split())
            assert ("trained on" in told) == ("--no-compare" not in more)
            assert "labels are estimated to be wrong" in told
            assert "With only 300 samples the numbers are rough." in told

    def test_decisions_alone_need_no_training(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, runs, decisions = tmp_path / "things.csv", tmp_path / "runs", tmp_path / "decisions.csv"
        table(path)
        first = path.read_text().splitlines()[1].partition(",")[0]
        common = (str(path), "--label", "kind", "--root", str(runs), "--decisions", str(decisions))
        out = ("--out", str(tmp_path / "copy.csv"))
        decisions.write_text("index,name,given_label,action,label\n0,line 2,another,drop,\n")
        assert self.call("clean", *common, *out) == 1
        assert "unknown class 'another'" in " ".join(capsys.readouterr().err.split())
        decisions.write_text(f"index,name,given_label,action,label\n0,line 2,{first},drop,\n")
        assert self.call("clean", *common, *out, "--no-compare") == 0
        assert not runs.exists()
        assert len((tmp_path / "copy.csv").read_text().splitlines()) == 300
        shown = capsys.readouterr()
        assert "note: label column: kind" in shown.err
        assert "1 is left out" in shown.out
        assert (
            self.call("clean", *common, "--out", str(tmp_path / "b.csv"), "--epochs", "2", "--retrain-epochs", "1") == 0
        )
        assert "audited by themselves" not in " ".join(capsys.readouterr().out.split())

    def test_a_suspects_path_is_in_one_piece(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        classes = ("a-class-of-a-name-that-is-far-too-long", "another-one-that-is-hardly-any-shorter")
        folder = images(tmp_path / "photos", 10, classes)
        settings = ("--model", "linear", "--epochs", "1", "--no-check", "--top", "20")
        assert self.call("audit", str(folder), *settings, "--root", str(tmp_path / "runs")) == 0
        told = capsys.readouterr().out
        assert all(f"{name}/{i}.png" in told for name in classes for i in range(10))

    def test_a_clean_up_for_machines(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path, decisions, copy = tmp_path / "things.csv", tmp_path / "decisions.csv", tmp_path / "copy.csv"
        table(path)
        kinds = [line.partition(",")[0] for line in path.read_text().splitlines()[1:]]
        other = next(kind for kind in kinds if kind != kinds[1])
        rows = f"0,line 2,{kinds[0]},drop,\n1,line 3,{kinds[1]},relabel,{other}\n"
        decisions.write_text(f"index,name,given_label,action,label\n{rows}")
        common = (str(path), "--label", "kind", "--root", str(tmp_path / "runs"), "--decisions", str(decisions))
        short = ("--epochs", "2", "--retrain-epochs", "1")
        assert self.call("clean", *common, *short, "--out", str(copy), "--json") == 0
        shown = capsys.readouterr()
        assert f"{copy}: 299 samples" in shown.err.splitlines()
        told = json.loads(shown.out)
        comparison = told.pop("comparison")
        assert told == {
            "samples": 300,
            "left_out": [{"index": 0, "name": "line 2", "given_label": kinds[0]}],
            "relabelled": [{"index": 1, "name": "line 3", "given_label": kinds[1], "label": other}],
            "spared_classes": [],
            "copy": str(copy),
            "changes": str(changes_path(copy)),
        }
        assert all(Path(told[name]).is_file() for name in ("copy", "changes"))
        assert [(row["trained_on"], row["test_samples"]) for row in comparison] == [("all labels", 60), ("cleaned", 60)]
        assert all(0 <= row["test_accuracy"] <= 1 and 238 <= row["samples"] <= 240 for row in comparison)
        trial = (*common[:5], "--corruption", "0.2", "--epochs", "2", "--no-check", "--no-compare", "--json")
        assert self.call("clean", *trial) == 0
        shown = capsys.readouterr()
        told = json.loads(shown.out)
        assert "labels are estimated to be wrong" in " ".join(shown.err.split())  # a person is to know that
        assert (told["comparison"], told["copy"], told["changes"]) == ([], None, None)

    def test_decisions_are_not_taken_for_other_rows(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A line's number says which row is meant as long as the table is as it was."""
        path, out, decisions = tmp_path / "things.csv", tmp_path / "out", tmp_path / "decisions.csv"
        table(path)
        common = ("--label", "kind", "--root", str(tmp_path / "runs"))
        assert self.call("audit", str(path), *common, "--epochs", "1", "--no-check", "--out", str(out)) == 0
        with (out / "audit.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len({row["fingerprint"] for row in rows}) == len(rows)
        header = ["index", "name", "given_label", "action", "label", "fingerprint"]
        for row in rows[3:5]:
            row |= {"name": f"line {int(row['index']) + 2}", "action": "drop", "label": ""}
        with decisions.open("w", newline="") as file:
            writer = csv.DictWriter(file, header, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows[3:5])
        cleaning = ("--decisions", str(decisions), "--no-compare", "--out")
        assert self.call("clean", str(path), *common, *cleaning, str(tmp_path / "a.csv")) == 0
        head, *lines = path.read_text().splitlines()
        assert (tmp_path / "a.csv").read_text().splitlines() == [head, *lines[:3], *lines[5:]]
        changed = (tmp_path / "a.csv.changes.csv").read_text().splitlines()
        assert [line.rpartition(",")[2] for line in changed] == [
            "fingerprint",
            *(row["fingerprint"] for row in rows[3:5]),
        ]
        kind = lines[3].partition(",")[0]
        same = [line for line in lines if line.startswith(f"{kind},")]  # so that the label says nothing
        other = next(line for line in same if line not in lines[3:5])
        swapped = {lines[3]: other, other: lines[3]}
        path.write_text("\n".join([head, *(swapped.get(line, line) for line in lines)]) + "\n")
        capsys.readouterr()
        assert self.call("clean", str(path), *common, *cleaning, str(tmp_path / "b.csv")) == 1
        told = " ".join(capsys.readouterr().err.split())
        assert "line 2: sample 3 is another row than the one that was decided on" in told
        assert not (tmp_path / "b.csv").exists()

    def test_decisions_in_the_table_are_not_written_over(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, out = tmp_path / "things.csv", tmp_path / "out"
        table(path)
        common = (str(path), "--label", "kind", "--root", str(tmp_path / "runs"), "--epochs", "1", "--no-check")
        for _ in range(2):
            assert self.call("audit", *common, "--out", str(out)) == 0
        assert sorted(item.name for item in out.iterdir()) == ["audit.csv", "audit.html"]
        plain = (out / "audit.csv").read_text()
        for k in (1, 2):
            decided = "\n".join(f"{line},drop" for line in plain.splitlines())
            (out / "audit.csv").write_text(decided)
            capsys.readouterr()
            assert self.call("audit", *common, "--out", str(out)) == 0
            assert f"kept as audit-before{k}.csv" in " ".join(capsys.readouterr().err.split())
            assert (out / f"audit-before{k}.csv").read_text() == decided
            assert (out / "audit.csv").read_text() == plain

    @pytest.mark.parametrize("command", ["audit", "clean"])
    @pytest.mark.parametrize("nothing", ["", " "])
    def test_data_without_a_name_are_not_the_current_folder(
        self, command: str, nothing: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.call(command, nothing) == 2
        assert f"data must be a name or a path, got {nothing!r}" in capsys.readouterr().err

    @pytest.mark.parametrize("name", ["audit.csv", "audit.html.csv"])
    def test_the_data_are_never_written_over(
        self, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, other = tmp_path / name, tmp_path / "other.csv"
        table(path)
        table(other)
        before = path.read_bytes()
        runs = ("--label", "kind", "--epochs", "1", "--no-check", "--root", str(tmp_path / "runs"))
        codes = [
            self.call("audit", *data, *runs, "--out", str(tmp_path))
            for data in ((str(path),), (str(other), "--test", str(path)))
        ]
        told = " ".join(capsys.readouterr().err.split())
        assert codes == ([1, 1] if name == "audit.csv" else [0, 0])
        assert (f"{path} is the original, which stays as it is" in told) == (name == "audit.csv")
        assert path.read_bytes() == before

    def test_results_do_not_lie_among_the_data(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Else they would be taken for a class the next time."""
        image = pytest.importorskip("PIL.Image")
        for name in ("cat", "dog"):
            (tmp_path / "pets" / name).mkdir(parents=True)
            for i in range(3):
                image.new("L", (8, 8), 50 * i).save(tmp_path / "pets" / name / f"{i}.png")
        monkeypatch.chdir(tmp_path / "pets")
        runs = ("--root", str(tmp_path / "runs"))
        for line in (("audit", "."), ("clean", "."), ("train", "--data", "."), ("sweep", "--data", ".", "--jobs", "1")):
            assert self.call(*line, "--epochs", "1") == 2
            assert "runs is inside the data .; choose a place outside of them with --root" in capsys.readouterr().err
        assert self.call("audit", ".", "--epochs", "1", *runs, "--out", "found") == 2
        assert "with --out" in capsys.readouterr().err
        assert sorted(path.name for path in (tmp_path / "pets").iterdir()) == ["cat", "dog"]
        assert self.call("audit", ".", "--epochs", "1", "--no-check", *runs, "--out", str(tmp_path / "found")) == 0

    def test_a_trial_writes_no_copy(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "things.csv"
        table(path)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "things-cleaned.csv").touch()  # of a clean-up before, which is in nobody's way
        line = ("clean", "things.csv", "--label", "kind", "--corruption", "0.3", "--epochs", "10", "--no-compare")
        assert self.call(*line, "--out", "a.csv") == 2
        assert "leave out --corruption, or --out" in capsys.readouterr().err
        assert self.call(*line) == 0
        shown = capsys.readouterr()
        assert "no copy is written" in shown.err
        assert "By given label: " in shown.out
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["runs", "things-cleaned.csv", "things.csv"]

    def test_a_class_that_loses_most_is_told(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "a.csv"
        path.write_text("a,y\n" + "".join(f"{i * i % 7},{':cat:' if i % 3 else 'dog'}\n" for i in range(12)))
        (tmp_path / "d.csv").write_text(
            "index,name,given_label,action,label\n" + "".join(f"{i},line {i + 2},dog,drop,\n" for i in (0, 3, 6))
        )
        line = (
            "clean",
            str(path),
            "--decisions",
            str(tmp_path / "d.csv"),
            "--no-compare",
            "--out",
            str(tmp_path / "b.csv"),
        )
        assert self.call(*line) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "By given label: 3 of the 4 'dog'." in told
        assert "That is more than half of 'dog': either" in told

    def test_data_that_say_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An audit says so, and nothing is cleaned by it."""
        path, draw = tmp_path / "noise.csv", random.Random(0)
        lines = [
            f"{draw.gauss(0, 1):.3f},{draw.gauss(0, 1):.3f},{'yes' if draw.random() < 0.3 else 'no'}"
            for _ in range(300)
        ]
        path.write_text("\n".join(["a,b,y", *lines]))
        common = (str(path), "--root", str(tmp_path / "runs"), "--epochs", "20")
        assert self.call("audit", *common) == 0
        assert "agrees with no more labels than by chance" in " ".join(capsys.readouterr().out.split())
        assert self.call("clean", *common, "--out", str(tmp_path / "b.csv")) == 1
        assert "nothing can be cleaned by it; --decisions takes what you decide" in " ".join(
            capsys.readouterr().err.split()
        )
        assert not (tmp_path / "b.csv").exists()

    def test_a_rare_class_with_many_wrong_labels_is_cleaned(self, tmp_path: Path) -> None:
        """A network may contradict more labels than a guess would, and be right."""
        path, draw, wrong = tmp_path / "rare.csv", random.Random(0), set()
        with path.open("w") as file:
            file.write("a,b,y\n")
            for line in range(2, 802):
                true = draw.random() < 0.05
                given = true != (draw.random() < 0.2)
                wrong |= {line} if given != true else set()
                file.write(f"{draw.gauss(8 * true, 1):.3f},{draw.gauss(0, 1):.3f},{'yes' if given else 'no'}\n")
        out = tmp_path / "copy.csv"
        common = (str(path), "--root", str(tmp_path / "runs"), "--epochs", "20", "--out", str(out), "--no-compare")
        assert self.call("clean", *common) == 0
        dropped = {int(line.split(",")[1].split()[1]) for line in changes_path(out).read_text().splitlines()[1:]}
        assert len(dropped & wrong) > 0.9 * len(wrong)
        assert len(dropped & wrong) > 0.9 * len(dropped)

    def test_a_list_of_changes_is_not_written_over(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "a.npz"
        changes_path(out).write_text("mine")
        assert self.call("clean", "digits", "--root", str(tmp_path / "runs"), "--out", str(out)) == 1
        assert "a.npz.changes.csv exists already" in " ".join(capsys.readouterr().err.split())
        assert changes_path(out).read_text() == "mine"

    def decided(self, tmp_path: Path, row: int) -> tuple[str, ...]:
        """A clean-up that leaves out a row of a table, and needs no training."""
        path, decisions = tmp_path / "things.csv", tmp_path / "decisions.csv"
        table(path)
        decisions.write_text(f"index,name,given_label,action,label\n{row},line {row + 2},,drop,\n")
        runs = ("--root", str(tmp_path / "runs"), "--no-compare")
        out = ("--out", str(tmp_path / "copy.csv"))
        return ("clean", str(path), "--label", "kind", *runs, "--decisions", str(decisions), *out)

    def test_another_list_of_changes_of_the_same_data_is_not_written_over(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.call(*self.decided(tmp_path, 0)) == 0
        (tmp_path / "copy.csv").unlink()
        before = changes_path(tmp_path / "copy.csv").read_bytes()
        assert self.call(*self.decided(tmp_path, 1)) == 1
        assert "copy.csv.changes.csv exists already" in " ".join(capsys.readouterr().err.split())
        assert changes_path(tmp_path / "copy.csv").read_bytes() == before

    @pytest.mark.parametrize("before", ["copy.csv", "copy.csv.changes.csv"])
    def test_killed_at_any_moment_the_same_command_goes_on(
        self, before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = self.decided(tmp_path, 3)
        subprocess.run([sys.executable, "-c", KILLED, before, *line], capture_output=True)
        assert not (tmp_path / "copy.csv").exists()
        assert list(tmp_path.glob(".*.part"))
        assert self.call(*line) == 0
        assert "1 is left out" in capsys.readouterr().out
        assert not list(tmp_path.glob(".*.part"))
        assert len((tmp_path / "copy.csv").read_text().splitlines()) == 300
        assert len(changes_path(tmp_path / "copy.csv").read_text().splitlines()) == 2
        assert self.call(*line) == 1  # the copy is done, and is not written over
        assert "copy.csv exists already" in " ".join(capsys.readouterr().err.split())

    def test_cut_off_while_telling_the_same_command_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        line = self.decided(tmp_path, 3)
        before = sorted(tmp_path.iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(labels, "show_cleaned", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
            assert self.call(*line) == 130
        assert sorted(tmp_path.iterdir()) == before
        assert self.call(*line) == 0
        assert (tmp_path / "copy.csv").exists()

    @pytest.mark.parametrize("which", [0, 1])
    def test_on_a_full_disk_there_is_neither_and_the_same_command_goes_on(
        self, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = self.decided(tmp_path, 3)
        before, written = sorted(tmp_path.iterdir()), itertools.count()

        def full(_: int) -> None:
            if next(written) == which:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            assert self.call(*line) == 1
        assert "No space left" in " ".join(capsys.readouterr().err.split())
        assert sorted(tmp_path.iterdir()) == before
        assert self.call(*line) == 0
        assert (tmp_path / "copy.csv").exists()
        assert changes_path(tmp_path / "copy.csv").exists()

    def test_labels_corrupted_on_purpose_are_in_the_list_of_changes(self, tmp_path: Path) -> None:
        out = tmp_path / "a.npz"
        common = ("digits", "--root", str(tmp_path / "runs"), "--epochs", "3", "--corruption", "0.3", "--no-check")
        assert self.call("clean", *common, "--out", str(out), "--no-compare") == 0
        again = ("--decisions", str(changes_path(out)), "--out", str(tmp_path / "b.npz"))
        assert self.call("clean", *common, *again, "--no-compare") == 0
        assert changes_path(tmp_path / "b.npz").read_text() == changes_path(out).read_text()

    def test_a_file_that_was_corrected_is_audited_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "things.csv"
        table(path)
        common = (str(path), "--label", "kind", "--root", str(tmp_path / "runs"), "--epochs", "1", "--no-check")
        assert self.call("audit", *common) == 0
        text = path.read_text()
        path.write_text(text.replace("kind 0", "kind 1", 1))
        assert self.call("audit", *common) == 0
        assert self.call("audit", *common) == 0
        assert len(list((tmp_path / "runs" / "audits").glob("*/*/audit.csv"))) == 2

    def test_where_nothing_can_be_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is told before anything is trained."""
        monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
        runs = ("--root", str(tmp_path / "runs"))
        for command in (("audit", "digits"), ("clean", "digits", "--out", str(tmp_path / "a.npz"))):
            assert self.call(*command, *runs) == 1
            told = " ".join(capsys.readouterr().err.split())
            assert f"{tmp_path}: Permission denied; choose another folder (--root, --out)" in told
        (tmp_path / "file").touch()
        assert self.call("audit", "digits", *runs, "--out", str(tmp_path / "file" / "a")) == 1
        assert "file is a file, and a folder is needed there" in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "runs").exists()

    def test_a_copy_that_is_there_is_told_before_anything_is_trained_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "digits-cleaned.npz"
        out.touch()
        runs = str(tmp_path / "runs")
        assert self.call("clean", "digits", "--epochs", "1", "--root", runs, "--out", str(out)) == 1
        assert "exists" in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize(
        ("arguments", "code", "told"),
        [
            (("audit", "regression"), 1, "has no classes"),
            (("audit", "digit"), 2, "did you mean 'digits'?"),
            (("audit", "digits", "--top", "-1"), 2, "top must be >= 0"),
            (("clean", "digits", "--rounds", "0"), 2, "rounds must be >= 1"),
            (("clean", "digits", "--decisions", "nowhere.csv"), 1, "nowhere.csv"),
            (("audit", "digits", "--noise", "pair"), 2, "does nothing without corruption"),
            (("audit", "digits", "--epochs", "0"), 2, "epochs must be > 0"),
            (("audit",), 2, "DATA is missing"),
        ],
    )
    def test_mistakes_are_one_line(
        self, arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.call(*arguments) == code
        assert told in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (0.5, 0.9, "is better than on all of them."),
        (0.9, 0.5, "is worse than on all of them: look at what was left out"),
        (0.80, 0.81, "is no worse; a difference within two standard errors may be chance."),
        (0.81, 0.80, "is worse than on all of them, though within two standard errors it may be chance: look"),
        (None, 0.9, "Training diverged, which says nothing"),
    ],
)
def test_what_a_clean_up_is_worth_is_told(
    before: float | None, after: float | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    table(path)
    whole = load_whole(Source(str(path), "kind"))
    records = [Record(tmp_path, Run(), data={"test_samples": 100}) for _ in range(2)]
    for record, accuracy in zip(records, (before, after), strict=True):
        record.rows.append({"test_accuracy": accuracy})
    given = whole.data.targets
    outcomes = [Outcome(name, len(given), record) for name, record in zip(("all", "cleaned"), records, strict=True)]
    show_cleaned(whole, given, Choice(given >= 0, given), outcomes)
    assert told in " ".join(capsys.readouterr().out.split())
