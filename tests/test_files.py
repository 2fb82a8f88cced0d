"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mirrordescent.cli import main
from mirrordescent.lab.files import written


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_with_the_file_that_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught, written(path) as file:
        file.write(b"after")
    assert caught.value.filename == str(path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_says_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    assert main(["train", "--epochs", "1", "--root", str(tmp_path)]) == 1
    told = " ".join(capsys.readouterr().err.split())
    assert "metrics.jsonl: No space left on device; make room, and the same command continues" in told
    assert "Traceback" not in told
