"""RMD: regularizer mirror descent, which heads for the minimiser of λ'·Σ L_i(w) + D_ψ(w, w₀), λ' = λ/|B| by default.

The algorithms themselves are two functions in `rules.py`; this is the optimizer around them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.optim.optimizer import ParamsT

from mirrordescent.auxiliary import KEPT, STORED, Auxiliary
from mirrordescent.base import Potential
from mirrordescent.caller import warn
from mirrordescent.eager import always_eager
from mirrordescent.inputs import check_losses, checked_index, number, working
from mirrordescent.paths import apply
from mirrordescent.pending import Batch, Pending, gradients
from mirrordescent.ranks import NO_BATCH, Ranks
from mirrordescent.rules import PENALTIES, Slope, check_penalty, coefficients, finite, machine_epsilon
from mirrordescent.settings import CUSTOM, SETTINGS, check_momentum, checked_lam, checked_settings
from mirrordescent.sharded import everywhere, own_part
from mirrordescent.smd import SMD
from mirrordescent.stability import Stability, in_all


class _WeightedMean(torch.autograd.Function):
    """The value of the mean loss with the gradient of mean(−weight · losses); reports when it goes backward."""

    @staticmethod
    def forward(
        ctx: Any, through: Tensor, value: Tensor, weight: Tensor, went_backward: Callable[[Tensor, Node], None]
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.went_backward, ctx.dtype = went_backward, through.dtype
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        ctx.went_backward(gradient, ctx)
        return (gradient / -weight.numel() * weight).to(ctx.dtype), None, None, None


class RMD(SMD):
    """Regularizer mirror descent: explicit regularization by ψ, at the price of one number per training sample.

    params, lr, potential, momentum, foreach, fused: as in `md.SMD`; a group may set its own `lr` and `potential`.
        z follows the first group's lr, so groups with other rates solve with ψ = Σ_g (lr_0/lr_g) ψ_g.
    lam: λ, the weight of the loss against ψ; `inf` is SMD (with the square penalty).
    num_samples: how many training samples there are; `loss` takes their numbers, from 0 on, as `index`.
    reduction: "sample" (Algorithm 1 for each sample of a batch) or "batch" (the paper's Algorithm 2).
    penalty: ℓ̂, "square", "huber", "logcosh", or a function that returns ℓ̂'(r).
    lam_convention: "paper", z_i −= c_i/λ, or "objective", z_i −= c_i/(λ|B|), which makes λ itself the weight of Σ L_i
        in the objective at any batch size (see `objective_lam`). Under "paper" all batches should have one size
        (`drop_last=True`): samples of a smaller one weigh more.
    eps: ε in s = √(2 (L + ε)); by default the machine epsilon of the losses' type.
    momentum_rule: "dense", z follows the same heavy ball as w, which keeps the objective (one more number per sample),
        or "scaled", z's step is divided by 1 − μ, which is right while lr is constant.
    max_norm: clip the gradient's norm to it at every step, as `clip_grad_norm_` does; for the loop of a trainer, whose
        own clipping would change the objective: switch that off.
    process_group: the ranks that train the model together (DistributedDataParallel), the default group unless given.
        Each has all of z, and they move it together. A rank that trains a model of its own gives a group of itself.

    Raises ValueError or TypeError if a setting makes no sense; every message says which and what to do. `step()` raises
    RuntimeError, before anything has changed, if there are gradients but none of them came from `loss()`.

    >>> import torch, mirrordescent as md
    >>> x, y = torch.eye(3), torch.tensor([1.0, 2.0, 3.0])
    >>> w = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = md.RMD([w], lr=0.5, lam=1.0, num_samples=3)
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     residual = x @ w - y
    ...     loss = optimizer.loss(residual.square() / 2, torch.arange(3), root=residual)
    ...     loss.backward()
    ...     optimizer.step()
    >>> optimizer.objective_lam(batch_size=3)          # it minimises (1/3) Σ (w_i - y_i)²/2 + ½ ‖w‖²
    0.3333333333333333
    >>> w.detach()
    tensor([0.2500, 0.5000, 0.7500])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        lam: float,
        num_samples: int,
        potential: str | Potential = "l2",
        *,
        reduction: str = "sample",
        penalty: str | Slope = "square",
        lam_convention: str = "paper",
        momentum: float = 0.0,
        momentum_rule: str = "dense",
        eps: float | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
        max_norm: float | None = None,
        process_group: Any = None,
    ) -> None:
        if callable(penalty):
            check_penalty(penalty)
        elif penalty == CUSTOM:  # what checkpoints call a function
            raise ValueError(f"penalty must be the function itself, which returns the slope, got {CUSTOM!r}")
        settings = checked_settings(
            {
                "lam": lam,
                "num_samples": num_samples,
                "reduction": reduction,
                "penalty": CUSTOM if callable(penalty) else penalty,
                "lam_convention": lam_convention,
                "momentum_rule": momentum_rule,
                "eps": eps,
                "max_norm": max_norm,
            }
        )
        self._pending, self._stability, self._ranks = Pending(), Stability(), Ranks(process_group)
        self._penalty: Slope | None = penalty if callable(penalty) else None
        self._ranks.check_member()
        super().__init__(params, lr, potential, momentum=momentum, foreach=foreach, fused=fused)
        everything = self._params()
        wide = any(w.dtype in (torch.float64, torch.complex128) for w in everything)
        dtype = torch.float64 if wide else torch.float32
        first = self.param_groups[0]
        first.update(settings, largest_batch=0, signed=False)
        device = everything[0].device if everything else torch.device("cpu")
        first.update(Auxiliary.new_store(settings["num_samples"], dtype, device))
        self._make_ball()
        self._look_at_lam(settings["lam"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own `lr` and `potential`; λ, z and the momentum are shared by all groups."""
        mine = [key for key in (*SETTINGS, "z") if key in param_group]
        if mine:
            raise ValueError(f"{mine[0]} is one for the whole optimizer; a parameter group cannot set its own")
        shared = {"momentum": self.param_groups[0]["momentum"]} if self.param_groups else {}
        super().add_param_group({**shared, **param_group})

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["maximize"]:
            raise ValueError("maximize has no meaning for RMD, which solves a minimisation; use md.SMD")
        check_momentum(group["momentum"])
        self._check_one_momentum()

    def _check_one_momentum(self) -> None:
        """Raises ValueError if groups differ in their momentum, as a scheduler may have left them."""
        if any(group["momentum"] != self.param_groups[0]["momentum"] for group in self.param_groups):
            raise ValueError("momentum is one for the whole optimizer; a parameter group cannot set its own")

    @property
    def aux(self) -> Auxiliary:
        """z, one scalar per training sample."""
        return Auxiliary(self.param_groups[0])

    @property
    def lam(self) -> float:
        """λ, one for the optimizer. It may be set between two steps, which changes the objective from then on.

        Raises ValueError or TypeError for a λ that makes no sense, as the constructor does.
        """
        return checked_lam(self.param_groups[0]["lam"])  # which a schedule may have set

    @lam.setter
    def lam(self, lam: float) -> None:
        lam = checked_lam(lam)
        self._look_at_lam(lam)
        self.param_groups[0]["lam"] = lam

    def _look_at_lam(self, lam: float) -> None:
        """Warn if z will not move with this λ, or hardly; raises ValueError if it diverges."""
        first = self.param_groups[0]
        if float(first["lr"]) == 0 and lam != math.inf and any(float(group["lr"]) > 0 for group in self.param_groups):
            warn("the first parameter group's lr is 0, and z follows it: it will stay 0")
        if first["lam_convention"] == "paper":
            self._stability.begin(float(first["lr"]) / lam, float(first["momentum"]), first["momentum_rule"])

    def objective_lam(self, batch_size: int) -> float:
        """λ', the weight of Σ L_i in the objective λ' Σ L_i(w) + D_ψ(w, w₀), for training in batches of this size.

        Linear models with `root=` reach its minimiser exactly; `reduction="batch"` solves another problem.
        """
        if not number("batch_size", batch_size) >= 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        return self.lam if self.param_groups[0]["lam_convention"] == "objective" else self.lam / batch_size

    def _slope(self) -> Slope:
        name = self.param_groups[0]["penalty"]
        if name != CUSTOM:
            return PENALTIES[name]
        assert self._penalty is not None
        return self._penalty

    @always_eager
    def loss(self, losses: Tensor, index: Tensor, *, root: Tensor | None = None) -> Tensor:
        """The scalar to call `backward()` on: its value is the mean loss, its gradient is RMD's.

        losses: (batch,), one loss ≥ 0 per sample, with its graph (`reduction="none"`).
        index: (batch,), which training sample each one is.
        root: (batch,), the signed residual r with L = r²/2, where there is one (regression). With it the fixed point on
            a linear model is the exact minimiser; from the losses alone RMD sees |r|.

        Nothing moves here: w and z move in `step()`, and only for batches whose loss has gone backward. Several calls
        before one step make one batch (in Algorithm 2 each is a batch of its own); scale each loss by its share of the
        samples, as with any mean loss.

        Raises ValueError, TypeError or IndexError for input that makes no sense. On a GPU, where looking at the values
        would make the host wait, a bad index or loss is left out, counted in `aux.rejected` and raised later.
        """
        group, slope = self.param_groups[0], self._slope()
        check_losses(losses, root, group["reduction"])
        aux = self.aux
        index = checked_index(index, losses, len(aux))
        L, eps = working(losses.detach()), group["eps"]
        eps = machine_epsilon(losses) if eps is None else eps
        if not torch.is_grad_enabled():  # a validation, perhaps elsewhere: z stays where a captured step writes to it
            if L.device.type == "cpu":
                self._reject(L, index, eps)
            return L.mean()
        self._stability.look_at_index(index, len(aux))
        if aux.values.device != losses.device:  # the model has moved since the optimizer was made
            aux.to(losses.device)
        index = index.to(losses.device, non_blocking=True) if losses.device.type != "cpu" else index.clone()
        with torch.no_grad():
            bad = self._reject(L, index, eps)
            if bad is not None:
                index = index.clamp(0, len(aux) - 1)
            z = aux.values[index].to(L.dtype)
            signed, whole = None if root is None else working(root.detach()), group["reduction"] == "batch"
            weight, d = coefficients(L, z, slope, eps, root=signed, whole=whole, bad=bad)
            d = finite(d.to(aux.values.dtype))  # whatever a user's own penalty returns
            value = L.mean()
        if root is not None:
            group["signed"] = True  # z has the root's sign from now on, which audits drop
        through = losses if root is None else root
        if not through.requires_grad:
            raise ValueError(
                f"{'losses' if root is None else 'root'} has no graph (detached, or no parameter requires a gradient), "
                "so backward() would reach no weight"
            )
        went_backward = partial(self._went_backward, index, d)
        # (torch gives `apply` no types)
        result: Tensor = _WeightedMean.apply(through, value, weight, went_backward)  # type: ignore[no-untyped-call]
        return result

    def _went_backward(self, index: Tensor, slope: Tensor, factor: Tensor, node: Node) -> None:
        self._pending.add(Batch(index, slope, factor.detach()), self._params(), node)

    def _reject(self, losses: Tensor, index: Tensor, eps: float) -> Tensor | None:
        """Which samples to leave out, after counting them; None on a CPU, where a bad one raises at once."""
        if losses.device.type != "cpu":
            bad = (index != index.clamp(0, len(self.aux) - 1)) | (losses < -eps)
            self.param_groups[0]["z_rejected"].add_(bad.sum())
            return bad
        low, high = (end.item() for end in losses.aminmax())  # NaN if any loss is
        if low < -eps or (math.isnan(low) and bool((losses < -eps).any())):
            low = losses.nan_to_num(nan=0.0).min().item()
            raise ValueError(f"losses must be >= 0, got {low:.4g}; RMD takes any such loss, shifted if need be")
        if not high < math.inf:
            self._stability.not_finite(high)
        return None

    def _params(self) -> list[Tensor]:
        return [w for group in self.param_groups for w in group["params"]]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and with them the batches that they came from."""
        super().zero_grad(set_to_none)
        self._pending.clear()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradient's norm over all parameters, and z's step by the same factor, so that the objective stays.

        Call it between `backward()` and `step()` in place of `torch.nn.utils.clip_grad_norm_`, which would scale w's
        step alone. Returns the norm before clipping.
        """
        max_norm = number("max_norm", max_norm)
        if not max_norm > 0:
            raise ValueError(f"max_norm must be > 0 (inf to measure the norm only), got {max_norm}")
        grads = gradients(self._params())
        if not grads:
            return torch.tensor(0.0)
        self._pending.take_what_was_put_there_by_hand(grads)
        total, factor = self._clip(grads, max_norm)
        self._pending.scale(factor)
        self._pending.remember(grads)
        return total

    def _clip(self, grads: list[Tensor], max_norm: float) -> tuple[Tensor, Tensor]:
        """Scale the gradients down to a norm; returns the norm that they had, and the factor, for z's step as well."""
        # 16-bit types may not hold a norm, and copies of all gradients in float32 would take twice their memory
        short = [torch.linalg.vector_norm(g, dtype=torch.float32) for g in grads if g.element_size() == 2]
        total = everywhere(torch.nn.utils.get_total_norm([*short, *(g for g in grads if g.element_size() > 2)]))
        scale = getattr(self, "grad_scale", None)  # of a GradScaler that leaves unscaling to a fused step
        if scale is not None:
            total = total / scale.to(total).reshape(())
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for g in grads:
            own_part(g).mul_(factor.to(g.device))
        return total, finite(factor)

    def _move(self) -> None:
        """One mirror step on w and one on z, for the batches whose `loss()` has gone backward since the last step."""
        self._pending.drop_what_broke_off()
        self._check_one_momentum()
        works = self._gather()
        if not any(work.params for work in works):
            if self._pending.unreached:
                self._stability.nothing_moves()
            return
        self._make_ball()
        grads = gradients(self._params())
        self._pending.drop_what_was_thrown_away(grads)
        self._pending.take_what_was_put_there_by_hand(grads)
        if not self._pending and self._ranks.number == 1:
            # All 0: cleared in place, or a distributed checkpoint's way of making an optimizer's state.
            if not any(bool(g.any()) for g in grads if g.numel()):
                return
            raise RuntimeError(NO_BATCH)
        if self.lam != math.inf:
            self._ranks.check(self._params(), grads, self.aux.values, batch=bool(self._pending))
        if self._pending.mixed:
            self._stability.gradients_stayed()
        self._stability.look_at_factors([batch.factor for batch in self._pending.batches])
        index, slope = self._pending.union(self.aux.values)
        rate = self._rate()
        if isinstance(rate, float):
            self._watch(rate, index)
        max_norm = self.param_groups[0]["max_norm"]
        if max_norm is not None:
            slope = slope * self._clip(grads, max_norm)[1].to(slope)
        try:
            where = None
            if rate is not None:  # before w moves: with several ranks it may be what fails
                where, slope = self._ranks.together(index, self._shared(slope), self.aux.values)
            for work in works:
                if work.params:
                    apply(work)
            self._pending.note_as_used()
            if rate is not None:
                self._descend(where, slope, rate)
                self._grow_older(rate, len(index) * self._ranks.number, len(self._pending.batches) * self._ranks.number)
        finally:  # even if a user's potential raises in the middle: no batch may be taken twice
            self._pending.clear()

    def _rate(self) -> float | Tensor | None:
        """η/λ, divided by 1 − μ under the "scaled" rule; None for λ = ∞, where z stays as it is."""
        group, divisor = self.param_groups[0], self.lam
        if divisor == math.inf:
            return None
        if group["momentum_rule"] == "scaled":
            divisor *= 1 - float(group["momentum"])
        lr: float | Tensor = group["lr"]
        if isinstance(lr, Tensor) and lr.device.type != "cpu":
            return lr.detach().reshape(()).to(self.aux.values.device, non_blocking=True) / divisor
        return float(lr) / divisor

    def _watch(self, rate: float, index: Tensor) -> None:
        """Check whether z settles at such a rate; warns, or raises ValueError if z diverges."""
        group, share, size = self.param_groups[0], rate, len(index) * self._ranks.number
        objective = group["lam_convention"] == "objective"
        of = ["lam"]
        if group["momentum_rule"] == "scaled" and group["momentum"] != 0:
            of.append("(1 - momentum)")
        if objective:
            # the largest, as a rare smaller one makes nothing diverge; 1, as only other ranks may have a batch
            group["largest_batch"] = max(group["largest_batch"], size, 1)
            share /= group["largest_batch"]
            of.append("batch size")
        name = "lr/lam" if len(of) == 1 else f"lr/({' * '.join(of)})"
        # Ranks may have batches of different sizes: one must not raise while the others go on.
        alike = self._ranks.number == 1 or not objective
        self._stability.check(share, name, self._tail, index, refuse=alike)
        if not objective:
            self._stability.look_at_sizes([(len(b.index), b.factor) for b in self._pending.batches])
        elif size:
            self._stability.look_at_small(rate / size, name, size, refuse=alike)

    def _make_ball(self) -> None:
        # Without a batch, too: a distributed checkpoint takes a step without one, and asks for the state it then finds.
        if self._tail != 0:
            self.aux.make_momentum()

    @property
    def _tail(self) -> float:
        """μ of z's own heavy ball; 0 under the "scaled" rule, where z has none."""
        group = self.param_groups[0]
        return float(group["momentum"]) if group["momentum_rule"] == "dense" else 0.0

    def _shared(self, slope: Tensor) -> Tensor:
        """The slopes ℓ̂'(r_i), divided by |B| under the "objective" convention."""
        if self.param_groups[0]["lam_convention"] == "paper":
            return slope
        # Divided before the momentum, as w's gradients are: these are means over a batch, and over the ranks.
        return slope / (self._pending.count() * self._ranks.number)

    def _descend(self, where: Tensor | None, slope: Tensor, rate: float | Tensor) -> None:
        """z_i ← z_i − c_i/λ for every batch that went backward; c_i/(λ|B|) under the "objective" convention."""
        found_inf = getattr(self, "found_inf", None)  # a GradScaler's skipped step, known to the device alone
        skip = None if found_inf is None else found_inf.to(slope.device).reshape(()) != 0
        self.aux.descend(where, slope, rate, self._tail, skip=skip)

    def _grow_older(self, rate: float | Tensor, size: int, batches: int) -> None:
        """Add a step on z, for `size` samples in so many batches, to the age of z."""
        group, aux = self.param_groups[0], self.aux
        faster = group["penalty"] == CUSTOM  # perhaps: the named ones, and clipping, only slow z down
        skipped = getattr(self, "found_inf", None) is not None  # perhaps: only the device knows
        unseen = torch.compiler.is_compiling() or (aux.values.is_cuda and torch.cuda.is_current_stream_capturing())
        if isinstance(rate, Tensor) or faster or skipped or unseen:  # a captured step is replayed without Python
            aux.grow_older(None)
            return
        visits = float(1 if group["lam_convention"] == "objective" else size)  # each by 1/|B| of the rate
        if group["reduction"] == "batch":  # of a batch's common step, a sample's own residual is one part in |B|
            visits *= batches / max(size, 1)
        aux.grow_older(in_all(rate, self._tail) * visits / len(aux))

    def __repr__(self) -> str:
        """As torch writes optimizers, but of z, which may be long, only how long it is."""
        told = f"{type(self).__name__} ("
        for k, group in enumerate(self.param_groups):
            told += f"\nParameter Group {k}\n"
            for key in sorted(group.keys() - {"params"}):
                told += f"    {key}: {f'{len(group[key])} numbers' if key in KEPT else group[key]}\n"
        return f"{told})"

    def state_dict(self) -> dict[str, Any]:
        """Everything, z included; plain data that `torch.load(..., weights_only=True)` takes.

        Warns of samples that were left out of z, if there are any.
        """
        self.aux.tell()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_pending", "_penalty", "_stability", "_ranks")
        return {**super().__getstate__(), **{key: self.__dict__[key] for key in mine}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state; z is copied in place, so that views and captured graphs of it stay valid."""
        loading = "param_groups" in self.__dict__
        group = state["param_groups"][0]
        if loading:
            here = self.param_groups[0]
            self.aux.check_fits(group)
            for key in SETTINGS:
                group.setdefault(key, here[key])
            group.setdefault("largest_batch", 0)
            group.setdefault("signed", False)
            group.update(checked_settings(group))
            check_momentum(group.get("momentum", 0.0))
            if group["num_samples"] != here["num_samples"]:
                raise ValueError(
                    f"the state is of {group['num_samples']} samples, but num_samples is {here['num_samples']}"
                )
            if group["penalty"] == CUSTOM and self._penalty is None:
                raise ValueError(
                    "the state was made with a penalty of your own; make the optimizer with it before loading"
                )
            loaded = {key: group[key] for key in ("z", "z_momentum", "z_age") if key in group}
            kept = {key: here[key] for key in STORED if key in here}
        super().__setstate__(state)
        if loading:
            group = {key: value for key, value in self.param_groups[0].items() if key not in STORED}
            here.clear()  # filled again, not replaced: an `aux` that somebody holds is a view of this dict
            here.update(group, **kept)
            self.param_groups[0] = here
            self.aux.load_state_dict(loaded)
            self._pending.clear()
            self._ranks = copy.copy(self._ranks)  # a new one, which checks again that all ranks loaded the same
