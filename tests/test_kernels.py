"""The kernels compile for GPUs that need not be there; what they compute is in test_cuda.py and test_lab_cuda.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from standin import has_interpreter

TARGETS = {"A100": ("cuda", "80", 166912), "H200": ("cuda", "90", 232448), "MI300X": ("hip", "gfx942", 65536)}
FEW = 16  # bytes; one pass spills so many on an A100, under one of its settings


@pytest.mark.skipif(not has_interpreter(), reason="needs Triton 3.7")
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_and_fits(target: str, tmp_path: Path) -> None:
    """Without a warning, into the shared memory that there is and, but for a few numbers, into the registers."""
    backend, architecture, room = TARGETS[target]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, "-W", "error", Path(__file__).parent / "compiled.py", backend, architecture, str(room)],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    kernels = json.loads(result.stdout)
    names = {"_step", "_statistics", "_remembered", "_normalise", "_gradient_sums", "_gradient", "_patches"}
    assert {kernel["kernel"] for kernel in kernels} == names
    assert not [kernel for kernel in kernels if kernel["spilled"] > FEW or kernel["shared"] > room]
