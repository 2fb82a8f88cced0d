"""A step size for every potential: the lr that acts like an lr of SGD's that one knows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mirrordescent.base import Potential
from mirrordescent.floating import widest
from mirrordescent.inputs import number
from mirrordescent.potentials import SquaredNorm
from mirrordescent.sharded import everywhere, is_sharded
from mirrordescent.specs import potential as as_potential

NEARBY = 1e-3  # relative distance of the points of a difference quotient
PIECE = 2**22  # elements
LOWEST, HIGHEST = 1e-4, 3.0  # the range of lr that somebody may mean for SGD
GRADIENT = 0.01  # a usual one
STILL = 1e-6  # a weight at 0 that moves this many times as far as others, or less, stays there


def step_size(params: Iterable[Any], potential: str | Potential, sgd_lr: float = 0.1) -> float:
    """The lr with which weights of the usual size u move under ψ as they do by SGD with `sgd_lr`: sgd_lr · ψ''(u).

    params: a model's parameters at the start of training, as an optimizer takes them; u is the root mean square of
        those with more than one dimension (of all, if none has).

    λ scales with lr, as z settles over λ/lr epochs: where λ = 2 suits lr = 0.1, it is 20 lr here. One size stands for
    all layers: if their weights differ much (an embedding beside convolutions, the gains of batch norm), call this for
    each group. Below q = 2 weights move faster the larger they grow: if you scale the first weights down, call this
    before you do, or lr is too large for the weights that grow all the same.
    Raises ValueError for a potential whose ψ'' is not the same for all weights, for a group whose own potential needs
    another lr, for weights that are all 0, and where ψ'' overflows or underflows, or lr in the type of the weights.

    >>> import torch, mirrordescent as md
    >>> model = torch.nn.Linear(100, 10)
    >>> lr = md.step_size(model.parameters(), "linf")
    >>> optimizer = md.RMD(model.parameters(), lr=lr, lam=20 * lr, num_samples=1000, potential="linf")
    """
    if not 0 < number("sgd_lr", sgd_lr) < math.inf:
        raise ValueError(f"sgd_lr must be > 0 and finite, got {sgd_lr}")
    psi, params = as_potential(potential), _groups(params)
    usual = usual_size(params)
    found = sgd_lr * curvature(psi, usual)
    if not 0 < found < math.inf:
        there = f"ψ'' is {found / sgd_lr:g} at weights of {usual:.2g}"
        raise ValueError(f"under {psi.spec} no lr is like {sgd_lr:g}: {there}")
    wide = all(w.dtype in (torch.float64, torch.complex128) for w in _tensors(params))
    held = torch.finfo(torch.float64 if wide else torch.float32)  # the type that steps are taken in
    if psi.linear is None and not held.tiny <= found <= held.max:
        raise ValueError(
            f"under {psi.spec} the lr that is like {sgd_lr:g} is {found:.2g}, which {held.dtype} does not hold; take "
            "a potential that is less extreme (a smaller q, say), or parameters in float64"
        )
    for group in params:
        own = as_potential(group.get("potential", psi)) if isinstance(group, dict) else psi
        if own != psi and not math.isclose(sgd_lr * curvature(own, usual), found, rel_tol=1e-6):
            raise ValueError(f"a group has the potential {own.spec} of its own: ask for each group's lr by itself")
    return found


class FarOffWarning(UserWarning):
    """An lr was given that acts like an absurdly large one of SGD's."""


class StuckWarning(UserWarning):
    """Tensors of zeros were given to a potential under which they stay there."""


@dataclass(frozen=True)
class Sizes:
    """How large parameters are."""

    usual: float  # the root mean square of those with more than one dimension, or of all if none has
    zeros: int  # tensors with elements, all of them 0, that are trained


@dataclass(frozen=True)
class FarOff:
    """An lr that moves weights of the usual size as no lr does that somebody would give SGD."""

    usual: float  # the usual size of a weight
    alike: float  # the lr with which SGD moves it as far
    better: float  # the lr that is like SGD's 0.1


@dataclass(frozen=True)
class Stuck:
    """Tensors of zeros that a usual gradient does not move."""

    tensors: int
    step: float  # how far it moves them
    other: float  # how far it moves a weight of the usual size


def far_off(sizes: Sizes, potential: Potential, lr: float) -> FarOff | None:
    """A `FarOff` if lr is far off; None if it is not, if ψ is SGD's own, and if nothing can be said."""
    if lr == 0 or potential.linear == 1:
        return None
    try:
        there = curvature(potential, sizes.usual)
    except ValueError:
        return None
    if not 0 < lr * there < math.inf:  # ψ'' may overflow or underflow
        return None
    alike = lr / there
    return None if LOWEST <= alike <= HIGHEST else FarOff(sizes.usual, alike, 0.1 * there)


def stuck(sizes: Sizes, potential: Potential, lr: float) -> Stuck | None:
    """A `Stuck` if there are tensors of zeros beside others and ψ'' is so large at 0 that they stay, as near ℓ1.

    If all are 0, the start is ψ's minimum, and meant: the weights that are needed leave it, late.
    """
    low, high = potential.domain
    if not (sizes.zeros and sizes.usual) or potential.linear is not None or not _alike(potential) or not low < 0 < high:
        return None
    at = torch.tensor([0.0, sizes.usual], dtype=torch.float64, device="cpu")
    step, other = (potential.step(at, torch.full_like(at, -lr * GRADIENT)) - at).abs().tolist()
    return Stuck(sizes.zeros, step, other) if step < STILL * other else None


def usual_size(params: Iterable[Any]) -> float:
    """The root mean square of the parameters with more than one dimension, or of all if none has."""
    return measured(params).usual


def measured(params: Iterable[Any]) -> Sizes:
    """How large parameters are, by one look at all of them."""
    all_of = list(_tensors(params))
    held = [w.detach() for w in all_of]
    if not held:
        raise ValueError("params is empty")
    norms = [_norm(w) for w in held]
    found = [float(norm) for norm in torch.stack([norm.to(norms[0]) for norm in norms]).cpu()]
    matrices = [k for k, w in enumerate(held) if w.dim() > 1] or range(len(held))
    whole = math.hypot(*(found[k] for k in matrices))
    return Sizes(
        usual=whole / math.sqrt(max(1, sum(held[k].numel() for k in matrices))),
        zeros=sum(norm == 0 and w.numel() > 0 and w.requires_grad for norm, w in zip(found, all_of, strict=True)),
    )


def _norm(w: Tensor) -> Tensor:
    """The norm in float64, where the device has it: a float32 sum of many squares is off by percents, or overflows."""
    dtype = widest(w.device)
    if is_sharded(w):
        return everywhere(torch.linalg.vector_norm(w, dtype=dtype))
    x = torch.view_as_real(w) if w.is_complex() else w
    pieces = x.reshape(-1).split(PIECE)  # on a CPU, each is copied in that type
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p, dtype=dtype) for p in pieces]))
    return norm


def _groups(params: Iterable[Any]) -> list[Any]:
    """`params` as a list, since an iterator could be gone through only once."""
    return [params] if isinstance(params, (Tensor, torch.nn.Module, dict)) else list(params)


def _tensors(params: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in parameters, named parameters or groups of either, as an optimizer takes them."""
    for item in _groups(params):
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, dict):
            yield from _tensors(item["params"])
        elif isinstance(item, tuple):
            yield item[1]
        else:
            raise TypeError(
                f"params must be parameters, (name, parameter) pairs or groups of them, got {type(item).__name__}; "
                "for a model give model.parameters()"
            )


def _alike(psi: Potential) -> bool:
    """Whether ψ is the same function of every weight."""
    return psi.separable and not (psi.live and not psi.uniform)


def curvature(psi: Potential, size: float) -> float:
    """ψ'' at a weight of this size, by a difference quotient; at a negative weight if ψ is defined there alone.

    Raises ValueError if ψ'' differs between weights of that size, for weights outside of ψ's domain, and for a size of
    0 unless ψ'' is constant.
    """
    if not _alike(psi):
        if isinstance(psi, SquaredNorm):
            hint = f"for each tensor w take md.step_size([w], md.QNorm({psi.q:g})) times ‖w‖_q^(2 − q)"
        else:
            hint = "begin with SGD's lr times ψ'' of the weights that are to move as by SGD (1 under md.anchored)"
        raise ValueError(f"{psi.spec} has no curvature that is the same for every weight; {hint}")
    if psi.linear is not None:
        return psi.linear
    if size == 0:
        raise ValueError("the weights are all 0, so they have no usual size; initialise them as for training first")
    reach = NEARBY * size
    sides = [w for w in (size, -size) if psi.domain[0] < w - reach and w + reach < psi.domain[1]]
    if not sides:
        raise ValueError(f"{psi.spec} is not defined at weights of the usual size, {size:.2g}")
    around = torch.tensor([sides[0] - reach, sides[0] + reach], dtype=torch.float64, device="cpu")
    low, high = psi.gradient(around).tolist()
    return float(high - low) / (2 * reach)
