"""The 3×3 patches of pictures as rows of a matrix, in one pass over memory on a GPU.

The types in a kernel are Triton's, which a type checker does not know: hence the ignores on its first lines.
Imported only where there are a CUDA device and Triton; `stem.patches` is the readable form.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096  # elements of a program's block
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _patches(  # type: ignore[no-untyped-def]
    x, rows, N, height, width, of_picture, of_channel, of_row, of_column,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """A row per pixel: the patch's rows, in each its columns, in each of these the channels; zeros up to SIZE."""
    pixel = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    picture, row, column = pixel // (height * width), pixel // width % height, pixel % width
    k = tl.arange(0, COLUMNS)
    down, across, channel = k // (3 * CHANNELS), k // CHANNELS % 3, k % CHANNELS
    i = row[:, None] + down[None, :] - 1
    j = column[:, None] + across[None, :] - 1
    inside = (i >= 0) & (i < height) & (j >= 0) & (j < width)
    there = inside & (pixel < N)[:, None] & (k < 9 * CHANNELS)[None, :]
    at = picture[:, None] * of_picture + channel[None, :] * of_channel + i * of_row + j * of_column
    value = tl.load(x + at, mask=there, other=0.0)
    kept = (pixel < N)[:, None] & (k < SIZE)[None, :]
    tl.store(rows + pixel[:, None] * SIZE + k[None, :], value.to(rows.dtype.element_ty), mask=kept)


def patches_by_kernel(x: Tensor, spare: int) -> Tensor:
    """(batch, height, width, 9·channels + spare), for x (batch, channels, height, width) in any layout."""
    batch, channels, height, width = x.shape
    size = 9 * channels + spare
    rows = torch.empty(batch, height, width, size, dtype=x.dtype, device=x.device)
    pixels, columns = batch * height * width, triton.next_power_of_2(size)
    block = max(1, NUMBERS // columns)
    with torch.cuda.device(x.device):
        _patches[(triton.cdiv(pixels, block),)](
            x, rows, pixels, height, width, *x.stride(), CHANNELS=channels, SIZE=size,
            COLUMNS=columns, PIXELS=block, num_warps=WARPS, enable_fp_fusion=True,
        )  # fmt: skip
    return rows
