"""A forward pass in bfloat16 that converts all weights at once, with one kernel instead of one per weight tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def halved(model: nn.Module, x: Tensor) -> Tensor:
    """The forward pass under autocast, with the same result to the bit; vectors (batch norm's, biases) stay float32."""
    named = {name: w for name, w in model.named_parameters() if w.dim() > 1}
    halves = _Converted.apply(*named.values())  # type: ignore[no-untyped-call]  # torch's
    outputs: Tensor = functional_call(model, dict(zip(named, halves, strict=True)), (x,))
    return outputs


class _Converted(torch.autograd.Function):
    """Converts tensors to bfloat16, and their gradients back to float32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_as(torch.bfloat16, weights))

    @staticmethod
    def backward(_: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = iter(_as(torch.float32, [g for g in gradients if g is not None]))
        return tuple(None if g is None else next(there) for g in gradients)


def _as(dtype: torch.dtype, tensors: Any) -> list[Tensor]:
    converted = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if converted:
        torch._foreach_copy_(converted, list(tensors))
    return converted
