"""Batch norm together with the sum and the relu that follow it, fused on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.fused import has_triton


class Norm(nn.BatchNorm2d):
    """Batch norm, then a sum with `added` if there is one, then relu if `relu`; to others it is an nn.BatchNorm2d.

    On a GPU all of it is done in four passes over memory (two forward, two backward) instead of nine; elsewhere, and
    when compiled, by PyTorch's own operations.
    """

    def __init__(self, width: int, *, relu: bool = True) -> None:
        super().__init__(width)
        self.relu = relu
        self.count: Tensor | None = None  # where the kernels count the programs that are done; all 0 between launches

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:  # (batch, width, height, width)
        """The output, of the shape of x."""
        return self.twice(x, added)[0]

    def twice(self, x: Tensor, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output twice, for two uses, whose gradients the backward pass sums on its way, not in an extra pass."""
        if not self._fusable(x, added):
            out = self.plain(x, added)
            return out, out
        if not self.training:
            out = self._evaluated(x, added)
            return out, out
        if self.count is None or self.count.device != x.device:
            self.count = torch.zeros(self.num_features, dtype=torch.int32, device=x.device)
        out, again = _Fused.apply(x, self.weight, self.bias, added, self)  # type: ignore[no-untyped-call]  # torch's
        return out, again

    def plain(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """The output by PyTorch's own operations."""
        out = super().forward(x)
        if added is not None:
            out = out + added
        return F.relu(out) if self.relu else out

    def _evaluated(self, x: Tensor, added: Tensor | None) -> Tensor:
        from mirrordescent.lab import passes

        assert self.running_mean is not None
        assert self.running_var is not None
        buffers = self.running_mean, self.running_var
        return passes.evaluated(x, self.weight, self.bias, *buffers, added, eps=self.eps, relu=self.relu)

    def _fusable(self, x: Tensor, added: Tensor | None) -> bool:
        return (
            x.is_cuda
            and (self.training or not torch.is_grad_enabled())
            and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
            and self.num_features % 64 == 0
            and self.num_features < x.numel() < 2**31
            and _channels_last(x)
            and (added is None or (self.relu and added.dtype == x.dtype and _channels_last(added)))
            and not torch.compiler.is_compiling()
            and has_triton()
        )


class _Fused(torch.autograd.Function):
    """The kernels as one differentiable operation with two equal outputs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, added: Tensor | None, norm: Norm
    ) -> tuple[Tensor, Tensor]:
        from mirrordescent.lab import passes

        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        assert norm.count is not None
        buffers = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
        y, channel = passes.forward(
            x, gamma, beta, buffers, norm.count, added, eps=norm.eps, momentum=norm.momentum, relu=norm.relu
        )
        ctx.how = passes.NO_RELU if not norm.relu else passes.FROM_X if added is None else passes.FROM_Y
        ctx.save_for_backward(x, channel, y if ctx.how == passes.FROM_Y else None)
        ctx.count, ctx.has_added = norm.count, added is not None
        ctx.set_materialize_grads(False)
        return y, y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, again: Tensor | None) -> tuple[Tensor | None, ...]:
        from mirrordescent.lab import passes

        x, channel, y = ctx.saved_tensors
        given = [g.contiguous(memory_format=torch.channels_last) for g in (dy, again) if g is not None]
        if not given:
            return None, None, None, None, None
        dx, d_gamma, d_beta, g = passes.backward(
            given[0], given[1] if len(given) > 1 else None, x, y, channel, ctx.count, relu=ctx.how
        )
        return dx, d_gamma, d_beta, g if ctx.has_added else None, None


def _channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
