"""Compile every kernel for a GPU that need not be there, as its callers launch it, and tell what came of it as JSON.

python tests/compiled.py BACKEND ARCHITECTURE SHARED, as in `cuda 90 232448`, where SHARED is what shared memory a
program may have, in bytes. A process of its own: the tests' other kernels are Triton's interpreter's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import mirrordescent as md
from mirrordescent import fused, kernels
from mirrordescent.lab import passes, patches

POTENTIALS = [
    md.L2(),
    md.L1(),
    md.QNorm(1.5),
    md.QNorm(2.7),
    md.QNorm(3),
    md.LInf(),
    md.NegativeEntropy(),
    md.HyperbolicEntropy(),
    md.HyperbolicEntropy(1e-20),
    md.Quadratic(torch.ones(1000)),
]


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def steps() -> None:
    """As SMD and RMD launch them: plainly, and with all that there is."""
    for psi in POTENTIALS:
        form = fused.form_of(psi)
        assert form is not None
        kernels.launch(form, empty(1000), empty(1000), None, 0.1, 0.0, False, None, None)
        w, g, m = (empty(1000, dtype=torch.bfloat16) for _ in range(3))
        kernels.launch(form, w, g, m, 0.1, 0.9, True, empty(), empty())


def norms(dtype: torch.dtype) -> None:
    def picture() -> Tensor:
        return empty(128, 64, 32, 32, dtype=dtype).to(memory_format=torch.channels_last)

    count, tracked = empty(64, dtype=torch.int32), empty(dtype=torch.int64)
    gamma, beta, mean, var = (empty(64) for _ in range(4))
    for added, relu in ((None, True), (picture(), True), (None, False)):
        buffers = mean, var, tracked
        y, channel = passes.forward(picture(), gamma, beta, buffers, count, added, eps=1e-5, momentum=0.1, relu=relu)
        passes.evaluated(picture(), gamma, beta, mean, var, added, eps=1e-5, relu=relu)
        how = passes.NO_RELU if not relu else passes.FROM_X if added is None else passes.FROM_Y
        for other in (None, picture()):
            passes.backward(picture(), other, picture(), y if how == passes.FROM_Y else None, channel, count, relu=how)


def main(backend: str, architecture: str, shared: int) -> None:
    arch = int(architecture) if architecture.isdecimal() else architecture
    properties = {"max_shared_mem": shared}
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda _: 0,
            get_current_target=lambda: GPUTarget(backend, arch, 32 if backend == "cuda" else 64),
            utils=SimpleNamespace(get_device_properties=lambda _: properties),
        )
    )
    found: dict[str, dict[str, Any]] = {}
    compiled = JITFunction.run

    def noted(kernel: Any, *args: Any, **settings: Any) -> None:
        made = compiled(kernel, *args, **{**settings, "warmup": True})
        found[made.hash] = {"kernel": kernel.fn.__name__, "shared": made.metadata.shared, "spilled": spilled(made)}

    with (
        mock.patch.object(JITFunction, "run", noted),
        mock.patch.object(torch.cuda, "device", return_value=nullcontext()),
    ):
        steps()
        for dtype in (torch.bfloat16, torch.float32):
            norms(dtype)
        for channels, dtype in product((1, 3), (torch.bfloat16, torch.float32)):
            patches.patches_by_kernel(empty(128, channels, 32, 32, dtype=dtype), -9 * channels % 8)
    json.dump([*found.values()], sys.stdout)


def spilled(made: Any) -> int:
    """What a kernel keeps in memory because its registers are too few."""
    if "amdgcn" in made.asm:
        return sum(int(n) for n in re.findall(r"[sv]gpr_spill_count:\s*(\d+)", made.asm["amdgcn"]))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    numbers = re.findall(r"(?:STACK|LOCAL):(\d+)", usage.stdout)
    assert numbers, usage.stdout
    return sum(int(n) for n in numbers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
