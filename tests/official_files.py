"""The forms in which a data set comes, and what must hold after each fetch, whole or refused."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_official import tiny_idx, tiny_rows

from mirrordescent.lab.data import DataError
from mirrordescent.lab.data.catalog import Official
from mirrordescent.lab.data.fetch import fetch
from mirrordescent.lab.data.official import verify


@pytest.fixture(autouse=True)
def _no_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither npm nor a proxy of the machine has a say."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def pictures(spec: Official, contents: dict[str, bytes]) -> dict[str, bytes]:
    """The npm package's files."""
    labels: dict[str, list[int]] = {"train_lables.json": [], "test_lables.json": []}
    files = {}
    for name, raw in contents.items():
        rows = np.frombuffer(raw, np.uint8).reshape(-1, spec.row)
        labels["test_lables.json" if name.startswith("test") else "train_lables.json"] += rows[:, 0].tolist()
        buffer = io.BytesIO()
        Image.fromarray(rows[:, 1:].reshape(len(rows), 3, -1).transpose(0, 2, 1).copy()).save(buffer, "PNG")
        files[name.replace(".bin", ".png")] = buffer.getvalue()
    return files | {name: json.dumps(values).encode() for name, values in labels.items()}  # the labels come last


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, raw in files.items():
        (path / name).write_bytes(raw)
    return path


def archive(path: Path, files: dict[str, bytes], prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(raw)
            tar.addfile(member, io.BytesIO(raw))
    return path


def leftovers(root: Path) -> list[str]:
    """All files below a root that are neither locks nor whole files of a data set."""
    whole = {"mnist": tiny_idx()[1], "cifar10": tiny_rows()[1]}
    expected = {name: raw for contents in whole.values() for name, raw in contents.items()}
    found = [path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".lock"]
    return [str(path) for path in found if expected.get(path.name) != path.read_bytes()]


def assert_fetched(spec: Official, root: Path) -> None:
    assert {state.state for state in verify(spec.name, root, known={spec.name: spec})} == {"ok"}
    assert leftovers(root) == []


def assert_refused(spec: Official, root: Path, source: Path | None, *words: str) -> None:
    """It is refused in one line that has these words, and leaves nothing behind."""
    with pytest.raises(DataError) as caught:
        fetch(spec.name, root, source, known={spec.name: spec}, timeout=5)
    message = str(caught.value)
    assert "\n" not in message
    assert f"rmd data fetch {spec.name} --root {root}" in message
    for word in words:
        assert word in message
    assert leftovers(root) == []
