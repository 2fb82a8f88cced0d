"""Batch norm, an optional sum and relu on a GPU, in four passes over memory: two forward, two backward.

Legend: x (rows, width) is a channels-last tensor, a channel per column; y = relu(x · scale + shift + added); g is what
the relu leaves of y's gradient. In a pass that sums over columns each program leaves its own sums, and the program that
ends last adds them up, always in the same order. The programs are few: a pass waits for memory, not for arithmetic, and
the processors that it does not hold compute the convolutions of other runs meanwhile.
The types in a kernel are Triton's, which a type checker does not know: hence the ignores on their first lines.
Imported only where there are a CUDA device and Triton; `Norm.plain` is the readable form of the same mathematics.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64  # of a block; the width must be a multiple of it
ROUNDING = {"enable_fp_fusion": True}  # a·b + c is rounded once; Triton's default depends on its release


class Blocks(NamedTuple):
    """How a pass over a tensor is cut up into blocks."""

    rows: int  # of a block
    warps: int
    programs: int  # of a launch, at most: each takes block after block
    stages: int  # at most: while one block is computed, the next are being loaded

    def launch(self, x: Tensor, reads: int) -> tuple[tuple[int, int], dict[str, int]]:
        """The launch of a pass that reads so many tensors like x: programs along rows and columns, and settings."""
        width = x.shape[1]
        block = reads * self.rows * COLUMNS * x.element_size()
        stages = min(self.stages, 1 + _room(x.device) // block)
        programs = self.programs if stages > 1 else BY_ITSELF * self.programs
        across = width // COLUMNS
        along = min(triton.cdiv(x.numel() // width, self.rows), max(1, programs // across))
        settings = {"ROWS": self.rows, "COLUMNS": COLUMNS, "STAGES": stages, "num_warps": self.warps, **ROUNDING}
        return (along, across), settings

    @property
    def fold(self) -> int:
        """How many rows of a block one thread holds, with two bytes per element and 16 bytes per load."""
        return self.rows // (4 * self.warps)


@cache
def _room(device: torch.device) -> int:
    """Bytes of shared memory that a program's blocks may take; a little is left for its sums."""
    properties = triton.runtime.driver.active.utils.get_device_properties(device.index)
    return int(properties["max_shared_mem"]) - 2048


# 33 is a quarter of an H200's processors: the best for eight runs side by side, a tenth slower for one alone. It must
# not depend on how many runs there are, or a run's sums would.
STATISTICS = Blocks(rows=128, warps=8, programs=33, stages=4)
NORMALISE = Blocks(rows=128, warps=8, programs=33, stages=4)
SUMS = Blocks(rows=128, warps=8, programs=33, stages=3)
GRADIENT = Blocks(rows=128, warps=8, programs=33, stages=4)
EVALUATE = Blocks(rows=128, warps=8, programs=132, stages=4)  # nothing else is computed meanwhile
BY_ITSELF = 4  # times as many programs where there is no room for a second block, so that as much is being loaded

NO_RELU, FROM_X, FROM_Y = 0, 1, 2  # how the backward pass knows where the relu was 0


@triton.jit  # type: ignore[untyped-decorator]
def _block(tile, M, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where a block's elements are, and which of them are there."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return rows[:, None] * C + columns[None, :], (rows < M)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _folded(block, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums over rows that are ROWS / FOLD apart: a thread holds them all, so that it is a few additions."""
    return tl.sum(tl.reshape(block, (FOLD, ROWS // FOLD, COLUMNS)), axis=0)


@triton.jit
def _last(count):  # type: ignore[no-untyped-def]
    """Whether all other programs of this column have written their sums; the counter is ready for the next use."""
    tl.debug_barrier()
    here = count + tl.program_id(1)
    last = tl.atomic_add(here, 1, sem="acq_rel") == tl.num_programs(0) - 1
    tl.debug_barrier()
    if last:
        tl.store(here, 0)
    return last


@triton.jit  # type: ignore[untyped-decorator]
def _keep(sums, first, second, C, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write this program's two sums over its rows."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = sums + tl.program_id(0) * 2 * C + columns
    tl.store(at, tl.sum(first, axis=0))
    tl.store(at + C, tl.sum(second, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _total(sums, C, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """All programs' two sums, added in their order."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.zeros((32, COLUMNS), tl.float32)
    second = tl.zeros((32, COLUMNS), tl.float32)
    for begin in range(0, tl.num_programs(0), 32):
        programs = begin + tl.arange(0, 32)
        at = sums + programs[:, None] * 2 * C + columns[None, :]
        there = (programs < tl.num_programs(0))[:, None]
        first += tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
        second += tl.load(at + C, mask=there, other=0.0, cache_modifier=".cg")
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _statistics(  # type: ignore[no-untyped-def]
    x, gamma, beta, running_mean, running_var, tracked, sums, count, channel, M, C, eps, momentum,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FOLD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Mean and variance of each column; `channel` gets scale, shift, mean and 1/deviation, the buffers are updated."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    about = tl.load(running_mean + columns)  # near the mean, so that the squares do not cancel
    first = tl.zeros((ROWS // FOLD, COLUMNS), tl.float32)
    second = tl.zeros((ROWS // FOLD, COLUMNS), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        at, there = _block(tile, M, C, ROWS, COLUMNS)
        off = tl.where(there, tl.load(x + at, mask=there, other=0.0).to(tl.float32) - about[None, :], 0.0)
        first += _folded(off, ROWS, COLUMNS, FOLD)
        second += _folded(off * off, ROWS, COLUMNS, FOLD)
    _keep(sums, first, second, C, COLUMNS)
    if _last(count):
        total, squares = _total(sums, C, COLUMNS)
        off_mean = total / M
        variance = tl.maximum(squares / M - off_mean * off_mean, 0.0)
        mean = about + off_mean
        inverse = 1.0 / tl.sqrt(variance + eps)
        scale = tl.load(gamma + columns) * inverse
        tl.store(channel + columns, scale)
        tl.store(channel + C + columns, tl.load(beta + columns) - mean * scale)
        tl.store(channel + 2 * C + columns, mean)
        tl.store(channel + 3 * C + columns, inverse)
        tl.store(running_mean + columns, about + momentum * off_mean)
        held = tl.load(running_var + columns)
        tl.store(running_var + columns, held + momentum * (variance * (M / (M - 1.0)) - held))
        if tl.program_id(1) == 0:
            tl.store(tracked, tl.load(tracked) + 1)


@triton.jit  # type: ignore[untyped-decorator]
def _remembered(gamma, beta, running_mean, running_var, channel, C, eps, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scale and shift from the buffers instead of the batch."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    scale = tl.load(gamma + columns) / tl.sqrt(tl.load(running_var + columns) + eps)
    tl.store(channel + columns, scale)
    tl.store(channel + C + columns, tl.load(beta + columns) - tl.load(running_mean + columns) * scale)


@triton.jit  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    x, added, y, channel, M, C,
    ADD: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The forward pass, y."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    scale = tl.load(channel + columns)[None, :]
    shift = tl.load(channel + C + columns)[None, :]
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        at, there = _block(tile, M, C, ROWS, COLUMNS)
        out = tl.load(x + at, mask=there).to(tl.float32) * scale + shift
        if ADD:
            out += tl.load(added + at, mask=there).to(tl.float32)
        if RELU:
            out = tl.maximum(out, 0.0)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _left(g, xs, scale, shift, y, at, there, RELU: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the relu leaves of a gradient."""
    if RELU == 1:
        g = tl.where(xs * scale + shift > 0, g, 0.0)
    if RELU == 2:
        g = tl.where(tl.load(y + at, mask=there, other=0.0).to(tl.float32) > 0, g, 0.0)
    return g


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_sums(  # type: ignore[no-untyped-def]
    dy, other, x, y, g, channel, sums, count, d_gamma, d_beta, coefficient, M, C,
    TWO: tl.constexpr, RELU: tl.constexpr, WRITE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FOLD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradients of gamma and beta; with WRITE also g; `coefficient` gets what `_gradient` needs of the sums."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    scale, shift = tl.load(channel + columns), tl.load(channel + C + columns)
    mean, inverse = tl.load(channel + 2 * C + columns), tl.load(channel + 3 * C + columns)
    first = tl.zeros((ROWS // FOLD, COLUMNS), tl.float32)
    second = tl.zeros((ROWS // FOLD, COLUMNS), tl.float32)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        at, there = _block(tile, M, C, ROWS, COLUMNS)
        xs = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        gs = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
        if TWO:
            gs += tl.load(other + at, mask=there, other=0.0).to(tl.float32)
        gs = _left(gs, xs, scale[None, :], shift[None, :], y, at, there, RELU)
        if WRITE:
            rounded = gs.to(g.dtype.element_ty)
            tl.store(g + at, rounded, mask=there)
            gs = rounded.to(tl.float32)
        first += _folded(gs, ROWS, COLUMNS, FOLD)
        second += _folded(gs * (xs - mean[None, :]), ROWS, COLUMNS, FOLD)  # where x is not there, g is 0
    _keep(sums, first, second, C, COLUMNS)
    if _last(count):
        total, along = _total(sums, C, COLUMNS)
        tl.store(d_beta + columns, total)
        tl.store(d_gamma + columns, along * inverse)
        tl.store(coefficient + columns, -scale * inverse * inverse * along / M)
        tl.store(coefficient + C + columns, -scale * total / M)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(  # type: ignore[no-untyped-def]
    g, x, dx, channel, coefficient, M, C,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of x."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    scale, shift = tl.load(channel + columns)[None, :], tl.load(channel + C + columns)[None, :]
    mean = tl.load(channel + 2 * C + columns)[None, :]
    along, level = tl.load(coefficient + columns)[None, :], tl.load(coefficient + C + columns)[None, :]
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        at, there = _block(tile, M, C, ROWS, COLUMNS)
        xs = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
        gs = tl.load(g + at, mask=there, other=0.0).to(tl.float32)
        gs = _left(gs, xs, scale, shift, x, at, there, RELU)
        out = scale * gs + (along * (xs - mean) + level)
        tl.store(dx + at, out.to(dx.dtype.element_ty), mask=there)


def forward(
    x: Tensor, gamma: Tensor, beta: Tensor, buffers: tuple[Tensor, Tensor, Tensor], count: Tensor,
    added: Tensor | None, *, eps: float, momentum: float, relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output, and per channel (4, width) what the backward pass needs."""
    width = x.shape[1]
    rows = x.numel() // width
    grid, settings = STATISTICS.launch(x, reads=1)
    sums = torch.empty(grid[0], 2, width, dtype=torch.float32, device=x.device)
    channel = torch.empty(4, width, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        _statistics[grid](
            x, gamma, beta, *buffers, sums, count, channel, rows, width, eps, momentum,
            FOLD=STATISTICS.fold, **settings,
        )  # fmt: skip
    return normalised(x, channel, added, relu=relu), channel


def evaluated(
    x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor, added: Tensor | None, *, eps: float, relu: bool
) -> Tensor:
    """The output with the running mean and variance."""
    width = x.shape[1]
    channel = torch.empty(2, width, dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        _remembered[(width // COLUMNS,)](gamma, beta, mean, var, channel, width, eps, COLUMNS=COLUMNS, **ROUNDING)
    return normalised(x, channel, added, relu=relu, blocks=EVALUATE)


def normalised(x: Tensor, channel: Tensor, added: Tensor | None, *, relu: bool, blocks: Blocks = NORMALISE) -> Tensor:
    """The output, for the scales and shifts of each channel; it does not depend on how the pass is cut up."""
    width = x.shape[1]
    rows = x.numel() // width
    y = torch.empty_like(x)
    has = added is not None
    grid, settings = blocks.launch(x, reads=1 + has)
    with torch.cuda.device(x.device):
        _normalise[grid](x, added if has else x, y, channel, rows, width, ADD=has, RELU=relu, **settings)
    return y


def backward(
    dy: Tensor, other: Tensor | None, x: Tensor, y: Tensor | None, channel: Tensor, count: Tensor, *, relu: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, gamma and beta, and g, the gradient of what was added.

    other: a second gradient of the output. y: the output, for relu FROM_Y.
    """
    width = x.shape[1]
    rows = x.numel() // width
    two = other is not None
    write = two or relu == FROM_Y
    grid, settings = SUMS.launch(x, reads=2 + two + (relu == FROM_Y))
    sums = torch.empty(grid[0], 2, width, dtype=torch.float32, device=x.device)
    coefficient = torch.empty(2, width, dtype=torch.float32, device=x.device)
    d_gamma, d_beta = torch.empty_like(channel[0]), torch.empty_like(channel[0])
    dx = torch.empty_like(x)
    g = torch.empty_like(x) if write else dy
    with torch.cuda.device(x.device):
        _gradient_sums[grid](
            dy, other if two else dy, x, x if y is None else y, g, channel, sums, count, d_gamma, d_beta, coefficient,
            rows, width, TWO=two, RELU=relu, WRITE=write, FOLD=SUMS.fold, **settings,
        )  # fmt: skip
        grid, settings = GRADIENT.launch(x, reads=2)
        _gradient[grid](g, x, dx, channel, coefficient, rows, width, RELU=NO_RELU if write else relu, **settings)
    return dx, d_gamma, d_beta, g
