"""Which mirror steps have a fused kernel, one that reads w and g once and writes w once, and how it is launched.

With `fused=True` ℓ2 and its multiples go through PyTorch's own fused SGD kernel, on the CPU too, which takes many small
tensors in one launch. The other closed forms, and ℓ2 on a large tensor, have a Triton kernel (`kernels.py`, imported
when first used, so that the core needs torch alone).
"""

from __future__ import annotations

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from mirrordescent.base import Potential, Scaled
from mirrordescent.potentials import (
    L1,
    L2,
    HyperbolicEntropy,
    LInf,
    NegativeEntropy,
    QNorm,
    Quadratic,
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Form(NamedTuple):
    """A closed-form step as the kernel knows it."""

    kind: str
    number: float = 0.0  # q or β
    scale: float = 1.0  # c in c·ψ
    weight: Tensor | None = None


def form_of(potential: Potential) -> Form | None:
    """The kernel's description of a potential, or None where there is no kernel."""
    if potential.linear is not None:
        return Form("linear", scale=potential.linear)
    kind = type(potential)  # exactly: a subclass may have changed the step
    if isinstance(potential, Scaled):
        inner = form_of(potential.base)
        return None if inner is None else inner._replace(scale=inner.scale * potential.factor)
    if isinstance(potential, QNorm) and kind in (QNorm, L1, L2, LInf):
        return Form("qnorm", potential.q)
    if kind is NegativeEntropy:
        return Form("entropy")
    if isinstance(potential, HyperbolicEntropy) and kind is HyperbolicEntropy:
        return Form("hypentropy", potential.beta)
    if isinstance(potential, Quadratic) and kind is Quadratic and isinstance(potential.weight, Tensor):
        return Form("quadratic", weight=potential.weight)
    return None


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed, which our own kernels need."""
    return importlib.util.find_spec("triton") is not None


# From this many elements on PyTorch's kernel, made for many small tensors, is a fifth slower than the memory allows.
LARGE = 1 << 24


def is_large(w: Tensor, *others: Tensor) -> bool:
    """Whether a tensor that PyTorch's fused SGD could step is better off with the kernel here."""
    return (
        w.numel() >= LARGE
        and w.is_cuda
        and has_triton()
        and w.dtype in _DTYPES
        and all(t.dtype == w.dtype for t in others)
        and same_layout(w, *others)
    )


def supports(potential: Potential, w: Tensor) -> bool:
    """Whether a fused step exists for this potential on this parameter's device and type."""
    if w.is_complex():
        w = torch.view_as_real(w)
    if potential.linear is not None:
        return w.is_floating_point() and w.device.type in ("cpu", "cuda")
    form = form_of(potential)
    if form is None or w.device.type != "cuda" or not has_triton():
        return False
    if w.dtype not in _DTYPES:
        return False
    h = form.weight
    return h is None or (h.shape == w.shape and h.device == w.device and same_layout(w, h))


def unreliable(w: Tensor) -> bool:
    """Whether PyTorch's fused kernel fails on this tensor: on a CPU it skips most 16-bit weights.

    Seen in 2.12.1 and 2.13 (pytorch/pytorch#191763).
    """
    return w.device.type == "cpu" and w.element_size() < 4


def same_layout(w: Tensor, *others: Tensor) -> bool:
    """Whether the tensors are dense with the same strides, so that a kernel can walk through their memory together."""
    dense = w.is_contiguous() or (w.dim() == 4 and w.is_contiguous(memory_format=torch.channels_last))
    return dense and all(t.stride() == w.stride() for t in others)


def mirror_step_(
    potential: Potential,
    w: Tensor,
    g: Tensor,
    m: Tensor | None,
    *,
    lr: float | Tensor,
    momentum: float,
    maximize: bool,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:
    """m ← μ m + g, ∇ψ(w) ← ∇ψ(w) − η m, in one kernel and in place."""
    from mirrordescent import kernels

    form = form_of(potential)
    assert form is not None
    kernels.launch(form, w, g, m, lr, momentum, maximize, grad_scale, found_inf)
