"""The mirror step ∇ψ(w) ← ∇ψ(w) − η m of a parameter group, in place: one by one, joined, or by a fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mirrordescent import fused
from mirrordescent.base import Potential
from mirrordescent.inputs import working
from mirrordescent.sharded import is_sharded, own_part

# How many elements are stepped at a time where a step is many operations: small tensors of a group together, large ones
# in pieces. That bounds the memory that a step needs, and on the CPU keeps intermediate results in its cache.
_CHUNK = 1 << 22
_CPU_CHUNK = 1 << 17


@dataclass
class Work:
    """One group's share of a step: w, g, and the momentum's m where there is one."""

    potential: Potential
    params: list[Tensor]
    grads: list[Tensor]
    buffers: list[Tensor]
    lr: float | Tensor
    momentum: float
    maximize: bool
    foreach: bool | None
    fused: bool | None
    # What a GradScaler leaves to a fused step, so that the host need not wait: divide g by grad_scale, and do nothing
    # if found_inf is not 0.
    grad_scale: Tensor | None
    found_inf: Tensor | None


def _mirror_step_(w: Tensor, g: Tensor, potential: Potential, lr: float | Tensor) -> None:
    """∇ψ(w) ← ∇ψ(w) − η g (the paper's SMD equation), in place."""
    h = potential.linear_at(w)
    if h is None or (isinstance(h, Tensor) and not _is_wide(w, g)):
        for part, slope in _pieces(w, g) if elementwise(potential) else [(w, g)]:
            part.copy_(potential.step(part, _scaled(slope, lr)))
    elif isinstance(lr, Tensor):
        w.sub_(g * (lr.to(g.dtype) / h) if isinstance(h, Tensor) else g * (lr / h).to(g.dtype))
    elif isinstance(h, Tensor):
        w.addcdiv_(g, h, value=-lr)
    else:
        w.add_(g, alpha=-lr / h)


def _is_wide(w: Tensor, g: Tensor) -> bool:
    """Whether both are of the same type, and one that ψ is computed in."""
    return w.dtype == g.dtype and w.dtype in (torch.float32, torch.float64)


def elementwise(potential: Potential) -> bool:
    """Whether ψ treats all elements alike, so that tensors may be cut up and joined."""
    return potential.linear is not None or (potential.uniform and potential.separable)


def _pieces(w: Tensor, g: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """A large tensor in pieces that share its memory; whole under a compiler, which fuses the operations by itself."""
    size = _chunk_on(w.device)
    if w.numel() <= size or torch.compiler.is_compiling() or not (w.is_contiguous() and g.is_contiguous()):
        return [(w, g)]
    return zip(w.view(-1).split(size), g.view(-1).split(size), strict=True)


def _chunk_on(device: torch.device) -> int:
    return _CPU_CHUNK if device.type == "cpu" else _CHUNK


def _scaled(g: Tensor, lr: float | Tensor) -> Tensor:
    """δ = −η g, in float32 for half precision."""
    return working(g) * -lr


def _momentum_(work: Work, *, foreach: bool) -> list[Tensor]:
    """m ← μ m + g for every tensor; returns what the step uses in place of g."""
    grads = work.grads
    if work.grad_scale is not None:
        grads = [working(g) / work.grad_scale for g in grads]  # in float32: a usual scale is beyond float16
    if work.maximize:
        grads = list(torch._foreach_neg(grads))
    if work.found_inf is not None:
        return _momentum_unless_skipped_(work, grads, work.found_inf != 0)
    if not work.buffers:
        return grads
    if foreach:
        torch._foreach_mul_(work.buffers, work.momentum)
        torch._foreach_add_(work.buffers, grads)
    else:
        for m, g in zip(work.buffers, grads, strict=True):
            m.mul_(work.momentum).add_(g)
    return work.buffers


def _momentum_unless_skipped_(work: Work, grads: list[Tensor], skip: Tensor) -> list[Tensor]:
    """`_momentum_` where only the device knows whether the step is skipped: if so, m stays, and the step is by 0."""
    for m, g in zip(work.buffers, grads, strict=False):
        m.copy_(torch.where(skip, m, work.momentum * m + g))
    return [torch.where(skip, 0, g) for g in work.buffers or grads]


def _single(work: Work) -> None:
    for w, g in zip(work.params, _momentum_(work, foreach=False), strict=True):
        _mirror_step_(w, g, work.potential, work.lr)


def _foreach(work: Work) -> None:
    """The group in few large operations: a separable ψ does not care which tensor an element belongs to."""
    params, grads = work.params, _momentum_(work, foreach=True)
    h = work.potential.linear
    if h is not None:
        if isinstance(work.lr, Tensor):
            torch._foreach_sub_(params, torch._foreach_mul(grads, work.lr / h))
        else:
            torch._foreach_add_(params, grads, alpha=-work.lr / h)
        return
    for chunk in _chunks([w.numel() for w in params], _chunk_on(params[0].device)):
        ws, gs = [params[k] for k in chunk], [grads[k] for k in chunk]
        if len(chunk) == 1:
            _mirror_step_(ws[0], gs[0], work.potential, work.lr)
            continue
        flat = torch.cat([w.reshape(-1) for w in ws])
        flat = work.potential.step(flat, _scaled(torch.cat([g.reshape(-1) for g in gs]), work.lr))
        pieces = flat.split([w.numel() for w in ws])
        torch._foreach_copy_(ws, [piece.view(w.shape) for piece, w in zip(pieces, ws, strict=True)])


def _chunks(sizes: Sequence[int], most: int) -> Iterable[list[int]]:
    """Which tensors to join: runs of their places, of at most `most` elements each unless one tensor has more."""
    chunk: list[int] = []
    total = 0
    for k, size in enumerate(sizes):
        if chunk and total + size > most:
            yield chunk
            chunk, total = [], 0
        chunk.append(k)
        total += size
    if chunk:
        yield chunk


def apply(work: Work) -> None:
    """Step one group: tensors of each device and type on the path that was asked for, or the fastest they allow."""
    if any(is_sharded(w) for w in work.params):
        work = _of_this_rank(work)
    kinds = [(w.device, w.dtype) for w in work.params]
    for kind in dict.fromkeys(kinds):
        device, dtype = kind
        members = [k for k, other in enumerate(kinds) if other == kind]
        params, grads, buffers = (_select(t, members) for t in (work.params, work.grads, work.buffers))
        if dtype.is_complex:  # as pairs of real numbers, the way torch.optim treats them; shares memory
            grads = [g.resolve_conj() for g in grads]  # autograd may have left the conjugation undone
            params, grads, buffers = ([torch.view_as_real(t) for t in ts] for ts in (params, grads, buffers))
        part = replace(
            work,
            params=params,
            grads=grads,
            buffers=buffers,
            lr=_lr_on(work.lr, device),
            grad_scale=_on(work.grad_scale, device),
            found_inf=_on(work.found_inf, device),
        )
        _path(part)(part)


def _of_this_rank(work: Work) -> Work:
    """The work on this rank's parts of sharded tensors: ψ is elementwise, so it needs no other part."""
    grads = [own_part(g, like=w) if is_sharded(w) else g for w, g in zip(work.params, work.grads, strict=True)]
    params, buffers = ([own_part(t) for t in ts] for ts in (work.params, work.buffers))
    return replace(work, params=params, grads=grads, buffers=buffers)


def _select(tensors: list[Tensor], members: list[int]) -> list[Tensor]:
    return tensors if len(members) >= len(tensors) else [tensors[k] for k in members]


def _path(work: Work) -> Callable[[Work], None]:
    # Unless told otherwise ℓ2 takes foreach only on a GPU, as torch.optim.SGD does, so that the two agree to the last
    # bit. Other steps are many operations, for which joining tensors pays on a CPU too.
    cuda, free = work.params[0].is_cuda, work.foreach is None and work.fused is None
    wants_fused = work.fused or (free and cuda and work.potential.linear is None)
    if wants_fused and not torch.compiler.is_compiling() and _fits_fused(work):
        return _fused
    joins = work.foreach or (free and (cuda or work.potential.linear is None) and not _compiled_on_cpu(work))
    if joins and elementwise(work.potential):
        return _foreach
    return _single


def _compiled_on_cpu(work: Work) -> bool:
    """Whether this is compiled for a CPU, where the compiler fuses the operations by itself, tensor by tensor."""
    return torch.compiler.is_compiling() and not work.params[0].is_cuda


def _fits_fused(work: Work) -> bool:
    if not fused.supports(work.potential, work.params[0]) or fused.unreliable(work.params[0]):
        return False
    together = zip(work.params, work.grads, *([work.buffers] if work.buffers else []), strict=True)
    linear = work.potential.linear is not None  # supported for all tensors, as they are of one device and type
    return all(
        g.dtype == w.dtype and fused.same_layout(w, g, *m) and (linear or fused.supports(work.potential, w))
        for w, g, *m in together
    )


def _fused(work: Work) -> None:
    """One kernel reads w and g and writes w."""
    h = work.potential.linear
    if h is None:
        _kernel_each(work)
        return
    if any(w.numel() >= fused.LARGE for w in work.params):
        large, work = _split(work)
        _kernel_each(large)
    if work.params:
        _fused_sgd(work, h)


def _kernel_each(work: Work) -> None:
    """Our own kernel, launched once per tensor."""
    for k, w in enumerate(work.params):
        fused.mirror_step_(
            work.potential,
            w,
            work.grads[k],
            work.buffers[k] if work.buffers else None,
            lr=work.lr,
            momentum=work.momentum,
            maximize=work.maximize,
            grad_scale=work.grad_scale,
            found_inf=work.found_inf,
        )


def _fused_sgd(work: Work, h: float) -> None:
    """∇ψ(w) = h·w: PyTorch's own kernel, all tensors in one launch."""
    torch._fused_sgd_(
        work.params,
        work.grads,
        work.buffers,
        weight_decay=0.0,
        momentum=work.momentum if work.buffers else 0.0,
        lr=work.lr / h,
        dampening=0.0,
        nesterov=False,
        maximize=work.maximize,
        is_first_step=False,
        grad_scale=work.grad_scale,
        found_inf=work.found_inf,
    )


def _split(work: Work) -> tuple[Work, Work]:
    """The tensors of an ℓ2 group that are large enough for a launch each, and the others."""
    columns = [work.params, work.grads, *([work.buffers] if work.buffers else [])]
    rows = list(zip(*columns, strict=True))
    large = [fused.is_large(*row) for row in rows]
    parts = []
    for wanted in (True, False):
        chosen = [row for row, is_large in zip(rows, large, strict=True) if is_large == wanted]
        params, grads, buffers = ([row[k] for row in chosen if len(row) > k] for k in range(3))
        parts.append(replace(work, params=params, grads=grads, buffers=buffers))
    return parts[0], parts[1]


def _lr_on(lr: float | Tensor, device: torch.device) -> float | Tensor:
    # A tensor on the CPU is read as a number, as in torch.optim.SGD; not under a compiler, to which that is a constant.
    if not isinstance(lr, Tensor):
        return lr
    lr = lr.detach().reshape(())
    if lr.device.type != "cpu":
        return lr.to(device, non_blocking=True)
    return lr if torch.compiler.is_compiling() else lr.item()


def _on(t: Tensor | None, device: torch.device) -> Tensor | None:
    return None if t is None else t.reshape(()).to(device, non_blocking=True)
