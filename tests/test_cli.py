"""The command: its examples work as printed, a mistake costs one line and exit code 2, machines get JSON."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tyro")
pytest.importorskip("rich")

from mirrordescent import __version__, cli
from mirrordescent.cli import COMMANDS, main
from mirrordescent.lab.records import read_all

ALONE = ("--jobs", "1", "--threads", "1")  # what else the machine does makes two threads wait for each other


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRRORDESCENT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "120")


def examples(name: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in COMMANDS[name].examples.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([*name.split(), "--help"])
    assert not leaving.value.code
    shown = capsys.readouterr().out
    for line in COMMANDS[name].examples.splitlines():
        assert line.strip().startswith(f"rmd {name}")
        assert line in shown
    assert "None" not in shown  # Python's word; what may be left out is "unset"


def test_what_may_be_left_out_may_be_given_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for threads, lam in (("None", "None"), ("1", "2.0")):
        assert main(["train", "--epochs", "1", "--threads", threads, "--lam", lam, "--json"]) == 0
        assert [record["run"]["lam"] for record in json.loads(capsys.readouterr().out)] == [2.0]


def test_a_run_that_diverged_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--algorithm", "sgd", "--lr", "1000", "--epochs", "3", "--threads", "1"]
    for _ in range(2):  # read again, it has still
        assert main(line) == 1
        assert "diverged; try a smaller --lr" in " ".join(capsys.readouterr().err.split())


def test_a_sweep_of_which_a_run_diverged_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sweep", "--algorithm", "sgd", "--grid", "lr=1000,0.1", "--epochs", "1", "--threads", "1", "--jobs", "1"]
    for _ in range(2):
        assert main(line) == 1
        told = capsys.readouterr().err
        assert "SGD, lr 1000.0, seed 0, diverged" in told
        assert "SGD, lr 0.1, seed 0, done" in told
        assert "rmd: 1 of 2 runs diverged; try a smaller lr" in told


@pytest.mark.parametrize("arguments", [*examples("train"), *examples("sweep"), *examples("data list")], ids=" ".join)
def test_the_examples_work_as_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip()


def test_the_reports_example_works_after_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["sweep", "--epochs", "2", "--corruption", "0.4", "--grid", "lam=1,2", *ALONE]) == 0
    [arguments] = examples("report")
    assert main(arguments) == 0
    assert Path("runs/report/report.html").is_file()
    assert "runs/report/report.html" in capsys.readouterr().err


def test_the_demo_compares_four_methods(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["demo", "--seeds", "1", "--epochs", "1", "--jobs", "1"]) == 0
    shown = capsys.readouterr()
    for method in ("SGD", "weight decay", "RMD batch", "RMD sample"):
        assert method in shown.out
    assert "report.html" in shown.err


def test_no_words_give_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == main(["help"]) == main(["data"]) == main(["help", "data"]) == 0
    shown = capsys.readouterr().out
    assert all(f"rmd {name}" in shown for name in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rmd {__version__}\n"
    with pytest.raises(SystemExit):
        main(["help", "data", "fetch"])
    assert "usage: rmd data fetch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "unknown command 'trian' (did you mean 'train'?)"),
        ("data fetsh mnist", "unknown command 'data fetsh' (did you mean 'data fetch'?)"),
        ("train --lamm 2", "unknown option '--lamm' (did you mean '--lam'?)"),
        ("train --batchsize=2", "unknown option '--batchsize' (did you mean '--batch-size'?)"),
        ("train --lam two", "--lam must be a number, got 'two'"),
        ("train --lam -1", "lam must be > 0, got -1.0"),
        ("train --lam 1 --lam 2", "option '--lam' is given twice"),
        ("sweep --grid lam=1 lam=2", "the grid has lam twice"),
        ("demo --seeds 0", "seeds must be >= 1"),
        ("train --checkpoint-seconds nan", "checkpoint_seconds must be >= 0"),
        ("train --lam", "option '--lam' needs a value"),
        ("train --epochs --json", "option '--epochs' needs a value"),
        ("train --epochs 1.5", "--epochs must be a whole number, got '1.5'"),
        ("train --model ccn", "got 'ccn' (did you mean 'cnn'?)"),
        ("train --algorithm weight-decay", "weight-decay needs lam"),
        ("train --algorithm sgd --lam 2", "lam is for rmd and weight-decay"),
        ("train --potential l3", "unknown potential 'l3'"),
        ("train --data digts", "unknown data set 'digts' (did you mean 'digits'?)"),
        ("train --device gpu", "device must be auto, cpu, cuda"),
        ("train digits", "'digits' is one word too many (did you mean --data digits?); see rmd train --help"),
        ("train --data digits mnist", "'mnist' is one word too many; see rmd train --help"),
        ("audit digits --corruption 1.5", "corruption must be in [0, 1], got 1.5"),
        ("sweep --grid lam", "a grid is NAME=VALUE,VALUE"),
        ("sweep --grid lamb=1", "unknown setting 'lamb' (did you mean 'lam'?)"),
        ("sweep --grid model=cn", "got 'cn' (did you mean 'cnn'?)"),
        ("sweep --jobs 0", "jobs must be >= 1"),
        ("data fetch", "NAME is missing"),
        ("data fetch mnist cifar10", "'cifar10' is one word too many"),
        ("data fetch mnits", "unknown data set 'mnits' (did you mean 'mnist'?)"),
        ("report", "FOLDER is missing"),
        ("report --root runs", "unknown option '--root'; FOLDER goes without one"),
        ("audit --data animals.csv", "unknown option '--data'; DATA goes without one"),
        ("sweep --grid lam=1,,2", "a grid is NAME=VALUE,VALUE"),
        ("reproduce --quick --epochs 3", "--quick chooses the runs itself"),
        ("reproduce --report-only --lams 2", "--report-only trains nothing"),
        ("reproduce --methods rmd", "unknown method 'rmd'"),
        ("train -e 3", "unknown option '-e'"),
    ],
)
def test_a_mistake_costs_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("rmd: ")
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report nowhere", "nowhere is not a folder"),
        (f"train --root {Path(__file__).as_posix()}", "test_cli.py is a file, and a folder is needed there"),
        ("report .", "holds no runs"),
        ("train --data mnist", "is missing; run: rmd data fetch mnist"),
        ("data fetch mnist --from nowhere", "nowhere"),
        ("data verify mnist", "mnist is incomplete or damaged; run: rmd data fetch mnist"),
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 1
    [told] = [text for text in capsys.readouterr().err.splitlines() if text.startswith("rmd: ")]
    assert message in told


def test_no_more_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def ask(allocate: Callable[[int], object]) -> int:
        def demo() -> int:
            """Ask for more than there is."""
            allocate(10**15)
            return 0

        monkeypatch.setitem(COMMANDS, "demo", cli.Command(demo, "  rmd demo"))
        return main(["demo"])

    for allocate in (torch.empty, bytearray):
        assert ask(allocate) == 1
        told = capsys.readouterr().err
        assert told.startswith("rmd: memory ran out (")
        assert "smaller batches" in told
        assert told.count("\n") == 1
    with pytest.raises(RuntimeError):  # any other is a mistake of ours
        ask(lambda _: torch.ones(2) @ torch.ones(3))


def test_a_mistake_without_a_standard_error_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `rmd train --nope 2>&-`."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["train", "--nope"]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_told_as_such() -> None:
    code = "import sys; from mirrordescent.cli import main; sys.exit(main(['data', 'list']))"
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert shown.returncode == 1
    assert shown.stderr == "rmd: the standard output cannot be written to: No space left on device\n"


@pytest.mark.parametrize("width", ["1", "5"])
def test_help_on_the_narrowest_terminal_ends(width: str) -> None:
    code = "from mirrordescent.cli import main; main(['train', '--help'])"
    asked = {**os.environ, "COLUMNS": width}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=asked)
    assert shown.returncode == 0
    assert "--epochs" in shown.stdout


TYPED = ["--lam", "--epochs", "--data", "--grid", "--json", "--model", "lam=1", "-1", "1", "x", "--", "-h x", "--from"]
typed = st.one_of(st.sampled_from(TYPED), st.text(max_size=8))


@given(st.sampled_from([name for name in COMMANDS if name != "demo"]), st.lists(typed, max_size=4))
def test_whatever_is_typed_is_understood_or_refused(name: str, more: list[str]) -> None:
    """With nothing behind the commands."""
    held = COMMANDS[name]

    @functools.wraps(held.function)
    def nothing(*_: object, **__: object) -> int:
        return 0

    COMMANDS[name] = cli.Command(nothing, held.examples)
    try:
        code = main([*name.split(), *more])
    except SystemExit as leaving:  # --help
        code = 0 if leaving.code is None else int(leaving.code)
    finally:
        COMMANDS[name] = held
    assert code in (0, 2)


def test_a_sweep_checks_its_settings_with_the_grid(capsys: pytest.CaptureFixture[str]) -> None:
    line = "sweep --algorithm weight-decay --epochs 1 --grid lam=0.1,0.2 --json"
    assert main([*shlex.split(line), *ALONE]) == 0
    assert [record["run"]["lam"] for record in json.loads(capsys.readouterr().out)] == [0.1, 0.2]
    line = "sweep --lam 2 --epochs 1 --grid algorithm=weight-decay,rmd,sgd --json"
    assert main([*shlex.split(line), *ALONE]) == 0
    assert [record["run"]["lam"] for record in json.loads(capsys.readouterr().out)] == [None, 2.0, 2.0]


def test_what_was_done_to_the_data_is_told_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,y\n5,\n")
    Path("runs").write_text("no folder")  # so that training cannot begin
    assert main(["train", "--data", "a.csv", "--epochs", "1"]) != 0
    assert "note: left out of a.csv, 1 row without a label: line 6\n" in capsys.readouterr().err


@pytest.mark.parametrize("width", ["20", "80"])
def test_a_narrow_terminal_loses_no_figure(
    width: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", "--epochs", "1", "--corruption", "0.4"])
    wide = capsys.readouterr().out.replace("─", "").split()
    monkeypatch.setenv("COLUMNS", width)
    main(["train", "--epochs", "1", "--corruption", "0.4"])
    assert sorted(wide) == sorted(capsys.readouterr().out.replace("─", "").split())


def test_machines_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--epochs", "1", "--json"]) == 0
    [record] = json.loads(capsys.readouterr().out)
    assert record["status"] == "done"
    assert record["final"] == read_all(Path("runs"))[0].final
    assert main(["data", "list", "--json"]) == 0
    assert {item["name"] for item in json.loads(capsys.readouterr().out)} >= {"mnist", "fashion-mnist", "cifar10"}


def test_nobodys_home_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "~nobody-of-that-name/a.csv"]) == 2
    assert "there is no file or folder '~nobody-of-that-name/a.csv'" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fetch", "verify"])
def test_what_is_built_in_needs_no_files(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", verb, "digits"]) == 0
    assert capsys.readouterr().err == "digits is built in: there are no files to fetch or to verify\n"


def test_it_is_installed_as_rmd() -> None:
    command = Path(sys.executable).parent / "rmd"
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"rmd {__version__}\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    """As in `rmd train --json | head`."""
    code = "import sys; from mirrordescent.cli import main; sys.exit(main(['data', 'list', '--json']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
