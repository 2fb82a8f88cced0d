"""The house stays in order: the core needs torch alone, and nothing imports from further down the data's way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "mirrordescent"
# potential → mirror step → z → RMD → the lab
ORDER = [
    "eager",
    "caller",
    "sharded",
    "inputs",
    "floating",
    "roots",
    "base",
    "potentials",
    "convex",
    "specs",
    "kernels",
    "fused",
    "sizes",
    "paths",
    "smd",
    "rules",
    "settings",
    "ranks",
    "stability",
    "auxiliary",
]
ORDER += ["stopping", "indexed", "pending", "rmd", "robust", "importance", "trace", "suspicion", "auditing"]
CORE = sorted(path.stem for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "__main__", "cli"))
# data → run → place → job → record → report → command
LAB = [
    "files",
    "memory",
    "names",
    "passes",
    "norm",
    "half",
    "patches",
    "stem",
    "models",
    "noise",
    "data",
    "runs",
    "records",
    "visits",
    "place",
]
LAB += [
    "signals",
    "timing",
    "bench",
    "job",
    "captured",
    "evaluation",
    "board",
    "loop",
    "kept",
    "train",
    "sweep",
    "engine",
    "paper",
    "report",
    "continual",
    "audit",
    "reproduction",
    "reproduce",
    "demo",
    "watching",
    "display",
    "usage",
]


def imported(path: Path, package: str = "mirrordescent") -> set[str]:
    """A package's own modules that a file imports when it is loaded (not inside functions, not for types alone)."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith(f"{package}."):
            parts = node.module.removeprefix(package).split(".")[1:]
            names.update([parts[0]] if parts else [alias.name for alias in node.names])
    return names


def test_every_module_has_its_place() -> None:
    assert sorted(ORDER) == CORE
    assert sorted(LAB) == sorted(
        path.stem for path in (SOURCE / "lab").iterdir() if path.stem in LAB and path.suffix in ("", ".py")
    )
    assert {path.stem for path in (SOURCE / "lab").glob("*.py")} <= {*LAB, "__init__"}


@pytest.mark.parametrize("module", LAB)
def test_the_lab_imports_from_above_only(module: str) -> None:
    path = SOURCE / "lab" / module
    for file in path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
        for name in imported(file, "mirrordescent.lab"):
            if name != module:
                assert LAB.index(name) < LAB.index(module), f"{file.name} imports {name}"


def test_training_needs_neither_the_commands_nor_the_reports_libraries() -> None:
    """So that a bare machine with torch and NumPy trains; nor are they loaded, which takes seconds, for the digits."""
    banned = ("tyro", "rich", "matplotlib", "sklearn", "pyarrow", "PIL", "tensorboard")
    code = f"""
import sys
import mirrordescent.lab.sweep
from mirrordescent.lab.data import Source, load
load(Source("digits"))
print([name for name in sys.modules if name.split('.')[0] in {banned}])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_nothing_imports_the_command_but_the_command() -> None:
    its_own = {SOURCE / "cli.py", SOURCE / "__main__.py", *(SOURCE / "commands").glob("*.py")}
    for path in set(SOURCE.rglob("*.py")) - its_own:
        assert not imported(path) & {"cli", "commands"}, path


@pytest.mark.parametrize("path", sorted((SOURCE / "integrations").glob("*.py")), ids=lambda path: path.stem)
def test_an_integration_stands_on_the_core_alone(path: Path) -> None:
    assert imported(path) <= set(CORE)


@pytest.mark.parametrize("module", ORDER)
def test_modules_import_from_above_only(module: str) -> None:
    below = {name for name in imported(SOURCE / f"{module}.py") if ORDER.index(name) >= ORDER.index(module)}
    assert not below, f"{module} imports {below}"


def test_modules_of_kernels_are_not_searched_for_examples() -> None:
    """They import Triton, which is not there without a GPU: collecting them would fail."""
    settings = (SOURCE.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    for path in SOURCE.rglob("*.py"):
        if "\nimport triton\n" in path.read_text(encoding="utf-8"):
            assert f"--ignore={path.relative_to(SOURCE.parent.parent).as_posix()}" in settings


# what is imported where it is used, and only if it is there
OPTIONAL = {"kernels": {"triton"}, "auditing": {"pandas", "pyarrow"}}


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_torch_alone(module: str) -> None:
    allowed = {*sys.stdlib_module_names, "torch", "mirrordescent"} | OPTIONAL.get(module, set())
    for node in ast.walk(ast.parse((SOURCE / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in allowed


def test_importing_it_loads_neither_the_compiler_nor_the_lab() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import mirrordescent; new = set(sys.modules) - before; "
        "print([name for name in new if name.startswith(('torch._dynamo', 'triton', 'mirrordescent.lab', 'sympy'))])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
