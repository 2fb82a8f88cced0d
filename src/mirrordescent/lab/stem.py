"""The first convolution of a network for pictures, as a product of matrices on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.fused import has_triton

ALIGNED = 8  # a matrix in bfloat16 is read slowly unless its rows are a multiple of so many numbers long


class Stem(nn.Conv2d):
    """A 3×3 convolution that keeps the size of a picture; to others it is an nn.Conv2d.

    cuDNN's kernels want many channels, and are slow with three. In training in bfloat16 on a GPU the pictures' patches
    are laid out as rows, and their product with the weights is the convolution; elsewhere it is PyTorch's own.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(channels, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, channels, height, width)
        """The output, (batch, self.out_channels, height, width)."""
        halves = x.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        if not (halves and self.training) or x.requires_grad:
            return super().forward(x)
        return convolved(x.bfloat16(), self.weight)


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """F.conv2d(x, weight, padding=1) for a 3×3 weight, in channels-last; x gets no gradient.

    >>> import torch
    >>> from mirrordescent.lab.stem import convolved
    >>> convolved(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3))[0, 0]
    tensor([[4., 6., 4.],
            [6., 9., 6.],
            [4., 6., 4.]])
    """
    spare = -9 * x.shape[1] % ALIGNED
    columns = F.pad(weight.permute(0, 2, 3, 1).flatten(1), (0, spare))
    return F.linear(patches(x.detach(), spare), columns).permute(0, 3, 1, 2)


def patches(x: Tensor, spare: int) -> Tensor:
    """The 3×3 patch around every pixel, 0 outside the picture, (batch, height, width, 9·channels + spare)."""
    if x.is_cuda and not torch.compiler.is_compiling() and has_triton():
        from mirrordescent.lab.patches import patches_by_kernel

        return patches_by_kernel(x, spare)
    batch, channels, height, width = x.shape
    windows = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    rows = x.new_zeros(batch, height, width, 9 * channels + spare)
    rows[..., : 9 * channels].unflatten(-1, (3, 3, channels)).copy_(windows.permute(0, 1, 2, 4, 5, 3))
    return rows
