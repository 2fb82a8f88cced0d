"""What README and the guide show, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/lab.md", "docs/audit.md"])
def test_the_code_on_the_page_runs(page: str) -> None:
    runs(page)


@pytest.mark.filterwarnings("ignore")  # what the trainers say of a machine and of themselves
def test_the_code_for_trainers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("lightning", "transformers", "accelerate"):
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    runs("docs/trainers.md")


def runs(page: str) -> None:
    """The blocks of a page, in order, in one namespace."""
    names: dict[str, object] = {}
    assert blocks(page)
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


def test_the_ten_lines_train() -> None:
    names: dict[str, object] = {}
    exec(compile(blocks("README.md")[0], "README.md", "exec"), names)
    suspects = names["suspects"]
    assert isinstance(suspects, torch.Tensor)
    assert len(suspects.unique()) == 10
    optimizer = names["optimizer"]
    assert bool((optimizer.aux.values > 0).all())  # type: ignore[attr-defined]


def test_every_figures_record_is_there() -> None:
    for page in ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        for name in re.findall(r"`(results/[a-z0-9-]+\.json)`", (ROOT / page).read_text(encoding="utf-8")):
            assert (ROOT / name).is_file(), f"{page} names {name}"
