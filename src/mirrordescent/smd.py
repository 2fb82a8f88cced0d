"""The mirror step ∇ψ(w) ← ∇ψ(w) − η g, and SMD: stochastic mirror descent as a `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from mirrordescent import fused
from mirrordescent.potentials import Potential
from mirrordescent.specs import potential as as_potential

# Small tensors of a group are stepped together, up to this many elements at a time (the foreach path's transient).
_CHUNK = 1 << 22


@dataclass
class _Work:
    """One group's share of a step, in real tensors: w, g, and the momentum's m where there is one."""

    potential: Potential
    params: list[Tensor]
    grads: list[Tensor]
    buffers: list[Tensor]
    lr: float | Tensor
    momentum: float
    maximize: bool
    foreach: bool | None
    fused: bool | None
    # What a GradScaler leaves to a fused step, so that the host need not wait: divide g by the one, skip on the other.
    grad_scale: Tensor | None
    found_inf: Tensor | None


def _mirror_step_(w: Tensor, g: Tensor, potential: Potential, lr: float | Tensor) -> None:
    """∇ψ(w) ← ∇ψ(w) − η g (the paper's SMD equation), in place."""
    if potential.linear is None:
        w.copy_(potential.step(w, _scaled(g, lr)))
    elif isinstance(lr, Tensor):
        w.sub_(g * (lr / potential.linear).to(g.dtype))
    else:
        w.add_(g, alpha=-lr / potential.linear)


def _scaled(g: Tensor, lr: float | Tensor) -> Tensor:
    """δ = −η g, in float32 for half precision."""
    return (g if g.dtype == torch.float64 else g.float()) * -lr


def _momentum_(work: _Work, *, foreach: bool) -> list[Tensor]:
    """m ← μ m + g for every tensor, and what the step then uses in place of g."""
    grads = work.grads
    if work.grad_scale is not None:
        grads = [g / work.grad_scale.to(g) for g in grads]
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


def _momentum_unless_skipped_(work: _Work, grads: list[Tensor], skip: Tensor) -> list[Tensor]:
    """The same where the device alone knows whether the step is skipped: then m stays, and the step is by 0."""
    for m, g in zip(work.buffers, grads, strict=False):
        m.copy_(torch.where(skip, m, work.momentum * m + g))
    return [torch.where(skip, 0, g) for g in work.buffers or grads]


def _single(work: _Work) -> None:
    for w, g in zip(work.params, _momentum_(work, foreach=False), strict=True):
        _mirror_step_(w, g, work.potential, work.lr)


def _foreach(work: _Work) -> None:
    """The group in few large operations: a separable ψ does not care which tensor an element belongs to."""
    params, grads = work.params, _momentum_(work, foreach=True)
    h = work.potential.linear
    if h is not None:
        if isinstance(work.lr, Tensor):
            torch._foreach_sub_(params, torch._foreach_mul(grads, work.lr / h))
        else:
            torch._foreach_add_(params, grads, alpha=-work.lr / h)
        return
    for chunk in _chunks([w.numel() for w in params]):
        ws, gs = [params[k] for k in chunk], [grads[k] for k in chunk]
        if len(chunk) == 1:
            _mirror_step_(ws[0], gs[0], work.potential, work.lr)
            continue
        flat = torch.cat([w.reshape(-1) for w in ws])
        flat = work.potential.step(flat, _scaled(torch.cat([g.reshape(-1) for g in gs]), work.lr))
        pieces = flat.split([w.numel() for w in ws])
        torch._foreach_copy_(ws, [piece.view(w.shape) for piece, w in zip(pieces, ws, strict=True)])


def _chunks(sizes: Sequence[int]) -> Iterable[list[int]]:
    chunk: list[int] = []
    total = 0
    for k, size in enumerate(sizes):
        if chunk and total + size > _CHUNK:
            yield chunk
            chunk, total = [], 0
        chunk.append(k)
        total += size
    if chunk:
        yield chunk


def _apply(work: _Work) -> None:
    """Step one group, each kind of tensor on the path that was asked for, or on the fastest that it allows."""
    by_kind: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for k, w in enumerate(work.params):
        by_kind.setdefault((w.device, w.dtype), []).append(k)
    for (device, _), members in by_kind.items():
        part = replace(
            work,
            params=[work.params[k] for k in members],
            grads=[work.grads[k] for k in members],
            buffers=[work.buffers[k] for k in members] if work.buffers else [],
            lr=_lr_on(work.lr, device),
            grad_scale=_on(work.grad_scale, device),
            found_inf=_on(work.found_inf, device),
        )
        _path(part, device)(part)


def _path(work: _Work, device: torch.device) -> Callable[[_Work], None]:
    # Like torch.optim.SGD, ℓ2 takes foreach on the GPU unless told otherwise, so that the two agree to the last bit.
    free = device.type == "cuda" and work.foreach is None and work.fused is None
    wants_fused = work.fused or (free and work.potential.linear is None)
    if wants_fused and not torch.compiler.is_compiling() and _fits_fused(work):
        return _fused
    if (work.foreach or free) and (work.potential.uniform or work.potential.linear is not None):
        return _foreach
    return _single


def _fits_fused(work: _Work) -> bool:
    if work.potential.linear is not None:
        return all(fused.supports(work.potential, w) for w in work.params)
    together = zip(work.params, work.grads, *([work.buffers] if work.buffers else []), strict=True)
    return all(
        fused.supports(work.potential, w) and rest[0].dtype == w.dtype and fused.same_layout(w, *rest)
        for w, *rest in together
    )


def _fused(work: _Work) -> None:
    """One kernel reads w and g and writes w."""
    h = work.potential.linear
    if h is not None:
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
        return
    for k, (w, g) in enumerate(zip(work.params, work.grads, strict=True)):
        m = work.buffers[k] if work.buffers else None
        fused.mirror_step_(
            work.potential,
            w,
            g,
            m,
            lr=work.lr,
            momentum=work.momentum,
            maximize=work.maximize,
            grad_scale=work.grad_scale,
            found_inf=work.found_inf,
        )


def _lr_on(lr: float | Tensor, device: torch.device) -> float | Tensor:
    # A 0-d tensor on the CPU is a number to every kernel; on another accelerator it has to be moved.
    if not isinstance(lr, Tensor):
        return lr
    lr = lr.detach().reshape(())
    return lr if lr.device.type == "cpu" else lr.to(device, non_blocking=True)


def _on(t: Tensor | None, device: torch.device) -> Tensor | None:
    return None if t is None else t.reshape(()).to(device, non_blocking=True)


class SMD(Optimizer):
    """Stochastic mirror descent: ∇ψ(w) ← ∇ψ(w) − η g, with heavy-ball momentum in the dual.

    params: parameters, named parameters or groups; a group may set its own `lr`, `potential` and `momentum`.
    lr: η, a number or a one-element tensor (which a captured CUDA graph reads anew at every replay).
    potential: ψ, a name such as "l2", "l1", "linf", "q=3", "entropy", "hypentropy", or a `md.Potential`.
    momentum: μ in m ← μ m + g, ∇ψ(w) ← ∇ψ(w) − η m.
    maximize: climb instead of descend.
    foreach, fused: which implementation; by default the fastest that fits.

    Raises ValueError where a setting or a starting weight lies outside what ψ allows.

    >>> import torch, mirrordescent as md
    >>> w = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> optimizer = md.SMD([w], lr=0.5, potential="q=3")
    >>> w.square().sum().backward()
    >>> optimizer.step()
    >>> w.detach()                         # |w|w: 1 - 0.5 * 2 = 0, and -4 - 0.5 * -4 = -2 = -|w|w
    tensor([ 0.0000, -1.4142])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        potential: str | Potential = "l2",
        *,
        momentum: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        # Potentials that a string cannot hold (a user's function, a tensor of weights), by the key that stands for them.
        self._live: dict[str, Potential] = {}
        self._resolved: dict[str, Potential] = {}
        defaults: dict[str, Any] = {
            "lr": lr,
            "potential": self._register(potential),
            "momentum": momentum,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
        }
        _check_numbers(lr, momentum)
        super().__init__(params, defaults)

    # Potentials are kept as strings in the groups, so that a checkpoint holds plain data.

    def _register(self, potential: str | Potential) -> str:
        if isinstance(potential, str) and potential in self._live:
            return potential
        psi = as_potential(potential)
        if not psi.live:
            self._resolved[psi.spec] = psi
            return psi.spec
        for key, known in self._live.items():
            if known is psi:
                return key
        key = f"{psi.spec}#{len(self._live)}"
        self._live[key] = psi
        return key

    def potential_of(self, group: dict[str, Any]) -> Potential:
        """The potential of a parameter group, as an object (the group itself holds its name)."""
        key = group["potential"]
        if isinstance(key, Potential) or (key not in self._live and key not in self._resolved):
            key = group["potential"] = self._register(key)
        return self._live[key] if key in self._live else self._resolved[key]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, checked as in the constructor; on an error nothing is added."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise
        self._make_state(self.param_groups[-1])

    def _check_group(self, group: dict[str, Any]) -> None:
        _check_numbers(group["lr"], group["momentum"])
        if group["foreach"] and group["fused"]:
            raise ValueError("foreach and fused cannot both be True")
        group["potential"] = self._register(group["potential"])
        psi = self.potential_of(group)
        for k, w in enumerate(group["params"]):
            if w.is_sparse or not (w.is_floating_point() or w.is_complex()):
                kind = "sparse" if w.is_sparse else str(w.dtype)
                raise TypeError(f"{self._name(group, k)} is {kind}; mirror descent takes dense real or complex parameters")
            error = None if w.is_meta else psi.domain_error(w.detach())
            if error is not None:
                raise ValueError(f"{self._name(group, k)}: {error}")
            if group["fused"] and not w.is_meta and not fused.supports(psi, w):
                raise ValueError(
                    f"fused=True has no kernel for potential {psi.spec!r} on {w.device.type} ({w.dtype}); leave fused=None"
                )

    def _name(self, group: dict[str, Any], k: int) -> str:
        names = group.get("param_names")
        where = next((i for i, g in enumerate(self.param_groups) if g is group), len(self.param_groups))
        shape = tuple(group["params"][k].shape)
        return f"parameter {names[k]!r}" if names else f"parameter {k} of group {where} (shape {shape})"

    def _make_state(self, group: dict[str, Any]) -> None:
        # Made at once and not at the first step: a distributed checkpoint asks for it before there is one.
        if group["momentum"] != 0:
            for w in group["params"]:
                self._buffer(w)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_live": self._live, "_resolved": self._resolved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state, from a pickle, a copy or `load_state_dict`; refuse one that names an unknown potential."""
        live = state.get("_live", self.__dict__.get("_live", {}))
        for group in state["param_groups"]:
            key = group.setdefault("potential", "l2")
            if isinstance(key, str) and "[" in key and key not in live:
                raise ValueError(
                    f"the checkpoint was made with potential {key!r}, which is not stored in it; make the optimizer "
                    f"with that potential before loading (it has: {', '.join(live) or 'none of its kind'})"
                )
            if key not in live:
                as_potential(key)
            group.setdefault("momentum", 0.0)
            group.setdefault("maximize", False)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)
        super().__setstate__(state)

    def _gather(self) -> list[_Work]:
        """Everything the step will touch, checked before anything is touched."""
        works: list[_Work] = []
        for group in self.param_groups:
            members = [k for k, w in enumerate(group["params"]) if w.grad is not None]
            params = [group["params"][k] for k in members]
            for k, w in zip(members, params, strict=True):
                if w.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{self._name(group, k)} has a sparse gradient ({w.grad.layout}), which mirror descent does "
                        "not take; use sparse=False in the embedding"
                    )
                if group["fused"] and w.is_meta:
                    raise RuntimeError(
                        "`fused=True` requires all the params to be floating point Tensors on a device with memory, "
                        f"but {self._name(group, k)} is on the meta device"
                    )
            buffers = [self._buffer(w) for w in params] if group["momentum"] != 0 else []
            works.append(
                _Work(
                    potential=self.potential_of(group),
                    params=[_as_real(w) for w in params],
                    grads=[_as_real(w.grad) for w in params],
                    buffers=[_as_real(m) for m in buffers],
                    lr=group["lr"],
                    momentum=group["momentum"],
                    maximize=group["maximize"],
                    foreach=group["foreach"],
                    fused=group["fused"],
                    grad_scale=getattr(self, "grad_scale", None),
                    found_inf=getattr(self, "found_inf", None),
                )
            )
        return works

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What `torch.amp.GradScaler` asks before it leaves unscaling and skipping to the step itself."""
        return all(group["fused"] for group in self.param_groups)

    def _buffer(self, w: Tensor) -> Tensor:
        if "momentum_buffer" not in self.state[w]:  # a scheduler has switched momentum on
            self.state[w]["momentum_buffer"] = torch.zeros_like(w, memory_format=torch.preserve_format)
        buffer: Tensor = self.state[w]["momentum_buffer"]
        if buffer.device != w.device:  # the model has moved since
            buffer = self.state[w]["momentum_buffer"] = buffer.to(w.device)
        return buffer

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One mirror step on every parameter that has a gradient.

        closure: evaluates the model again and returns the loss, as in `torch.optim`.
        Raises RuntimeError for a sparse gradient, before anything has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for work in self._gather():
            if work.params:
                _apply(work)
        return loss


def _check_numbers(lr: float | Tensor, momentum: float) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if not 0 <= float(lr) < float("inf"):
        raise ValueError(f"lr must be a finite number >= 0, got {float(lr)}")
    if not 0 <= momentum < float("inf"):
        raise ValueError(f"momentum must be a finite number >= 0, got {momentum}")


def _as_real(t: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers, the way `torch.optim` treats it; shares memory."""
    return torch.view_as_real(t) if t.is_complex() else t
