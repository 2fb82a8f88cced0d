"""RMD: regularizer mirror descent, which ends near the minimiser of λ·Σ L_i(w) + D_ψ(w, w₀).

Legend: L_i losses, s_i = √(2 (L_i + ε)) root losses, z_i one scalar per sample, ℓ̂ the penalty on z_i − s_i,
η `lr`, λ `lam`, c_i = η ℓ̂'(z_i − s_i). The paper's Algorithms 1 and 2 are the two functions below.
"""

from __future__ import annotations

import math
import operator
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mirrordescent.auxiliary import Auxiliary, machine_epsilon, root_loss
from mirrordescent.eager import always_eager
from mirrordescent.inputs import check_losses, checked_index, number, working
from mirrordescent.paths import apply
from mirrordescent.potentials import Potential
from mirrordescent.smd import SMD

Slope = Callable[[Tensor], Tensor]

# ℓ̂'(r), the slope of the constraint-enforcing loss.
PENALTIES: dict[str, Slope] = {
    "square": lambda r: r,  # r²/2
    "huber": lambda r: r.clamp(-1, 1),  # r²/2 up to 1, then |r| − ½
    "logcosh": torch.tanh,  # log cosh r
}
REDUCTIONS = ("sample", "batch")
CONVENTIONS = ("paper", "objective")
MOMENTUM_RULES = ("dense", "scaled")
# What one optimizer has once, kept in its first parameter group beside z.
SETTINGS = ("lam", "num_samples", "reduction", "penalty", "lam_convention", "momentum_rule", "eps")


def sample_rule(losses: Tensor, z: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Algorithm 1 for every sample of the batch at once: r_i = z_i − s_i, and s_i.

    With c_i = η ℓ̂'(r_i) the step is ∇ψ(w) ← ∇ψ(w) + (1/|B|) Σ (c_i / s_i) ∇L_i, z_i ← z_i − c_i / λ: a mirror step on
    the mean of a_i L_i with constants a_i = −ℓ̂'(r_i) / s_i, which costs what SGD costs.
    """
    s = root_loss(losses, eps)
    return z - s, s


def batch_rule(losses: Tensor, z: Tensor, eps: float, bad: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Algorithm 2: the same r and s for the whole batch, from its mean loss and its mean z."""
    if bad is None:
        mean_loss, mean_z = losses.mean(), z.mean()
    else:
        count = (~bad).sum().clamp_min(1)
        mean_loss, mean_z = torch.where(bad, 0, losses).sum() / count, torch.where(bad, 0, z).sum() / count
    s = root_loss(mean_loss, eps)
    return (mean_z - s).expand_as(losses), s.expand_as(losses)


@dataclass
class _Batch:
    """What z needs of a batch that has gone backward."""

    index: Tensor  # (batch,)
    slope: Tensor  # (batch,) ℓ̂'_i
    # 0 where the batch's gradient turned out to have been thrown away, which the device alone may know; else 1
    alive: Tensor | int = 1
    # the backward pass it was part of
    task: int = -1

    @property
    def size(self) -> Tensor | int:
        """How many samples of it count."""
        return self.alive * len(self.index)


class _WeightedMean(torch.autograd.Function):
    """Has the value of the mean loss and the gradient of mean(−weight · losses); reports when it goes backward."""

    @staticmethod
    def forward(ctx: Any, through: Tensor, value: Tensor, weight: Tensor, went_backward: Callable[[], None]) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.went_backward, ctx.dtype = went_backward, through.dtype
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (weight,) = ctx.saved_tensors
        ctx.went_backward()
        return (gradient / -weight.numel() * weight).to(ctx.dtype), None, None, None


class RMD(SMD):
    """Regularizer mirror descent: explicit regularization by ψ, at the cost of SGD and one number per sample.

    params, lr, potential, momentum, foreach, fused: as in `md.SMD`; a group may set its own `lr` and `potential`.
        z follows the first group's lr, so groups with other rates solve with ψ = Σ_g (lr_0/lr_g) ψ_g.
    lam: λ, the weight of the loss against ψ; `inf` is SMD (with the square penalty).
    num_samples: how many training samples there are; their numbers are what `loss` takes as `index`.
    reduction: "sample" (Algorithm 1 for each sample of a batch) or "batch" (the paper's Algorithm 2).
    penalty: ℓ̂, "square", "huber", "logcosh", or a function that returns ℓ̂'(r).
    lam_convention: "paper", z_i −= c_i/λ, or "objective", z_i −= c_i/(λ|B|), which makes λ itself the weight of Σ L_i
        in the objective at any batch size (see `objective_lam`).
    eps: ε in s = √(2 (L + ε)); by default the machine epsilon of the losses' type.
    momentum_rule: "dense", z follows the same heavy ball as w and the objective stays (one more number per sample), or
        "scaled", z's step is divided by 1 − μ, which is right while lr is constant.

    Raises ValueError or TypeError where a setting makes no sense; every message says which and what to do.

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
    ) -> None:
        if isinstance(num_samples, bool) or not hasattr(num_samples, "__index__"):
            raise TypeError(f"num_samples must be an integer, got {type(num_samples).__name__}")
        num_samples = operator.index(num_samples)
        if num_samples <= 0:
            raise ValueError(f"num_samples must be > 0, got {num_samples}; it is the length of the training set")
        lam = number("lam", lam)
        if not lam > 0:
            raise ValueError(f"lam must be > 0 (or inf for SMD), got {lam}")
        eps = None if eps is None else number("eps", eps)
        if eps is not None and not 0 <= eps < math.inf:
            raise ValueError(f"eps must be a finite number >= 0, or None for the losses' machine epsilon, got {eps}")
        _one_of("reduction", reduction, REDUCTIONS)
        _one_of("lam_convention", lam_convention, CONVENTIONS)
        _one_of("momentum_rule", momentum_rule, MOMENTUM_RULES)
        if callable(penalty):
            _check_penalty(penalty)
        else:
            _one_of("penalty", penalty, tuple(PENALTIES), or_else="or a function that returns the slope")
        # Batches that have gone backward since the last step: a list that is filled and emptied, since torch.compile
        # does not follow an optimizer's attribute that is set anew.
        self._pending: list[_Batch] = []
        # A gradient as the last backward left it, with its version: whether somebody has written to it since.
        self._witness: list[tuple[weakref.ref[Tensor], int]] = []
        self._penalty: Slope | None = penalty if callable(penalty) else None
        self._settings: dict[str, Any] = {
            "lam": lam,
            "num_samples": num_samples,
            "reduction": reduction,
            "penalty": "custom" if callable(penalty) else penalty,
            "lam_convention": lam_convention,
            "momentum_rule": momentum_rule,
            "eps": eps,
        }
        super().__init__(params, lr, potential, momentum=momentum, foreach=foreach, fused=fused)
        everything = [w for group in self.param_groups for w in group["params"]]
        wide = any(w.dtype in (torch.float64, torch.complex128) for w in everything)
        dense = momentum_rule == "dense" and momentum != 0
        dtype = torch.float64 if wide else torch.float32
        first = self.param_groups[0]
        first.update(self._settings)
        first.update(Auxiliary.new_store(num_samples, dtype, everything[0].device, momentum=dense))
        if lam_convention == "paper":
            self._check_stability(float(first["lr"]) / lam, first["momentum"], momentum_rule)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its own `lr` and `potential`; λ, z and the momentum are one for the optimizer."""
        mine = [key for key in (*SETTINGS, "z") if key in param_group]
        if mine:
            raise ValueError(f"{mine[0]} is one for the whole optimizer; a parameter group cannot set its own")
        if self.param_groups:
            param_group = {"momentum": self.param_groups[0]["momentum"], **param_group}
        super().add_param_group(param_group)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if group["maximize"]:
            raise ValueError("maximize has no meaning for RMD, which solves a minimisation; use md.SMD")
        if group["momentum"] >= 1:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']}")
        if self.param_groups[0]["momentum"] != group["momentum"]:
            raise ValueError("momentum is one for the whole optimizer; a parameter group cannot set its own")

    def _check_stability(self, rate: float, momentum: float, rule: str) -> None:
        """Refuse a step with which z diverges, warn of one with which it overshoots."""
        in_all = rate / (1 - momentum)  # what one visit moves z by, momentum's tail included
        _check_rate(rate, "lr/lam")
        if rule == "scaled":
            _check_rate(in_all, "lr/(lam (1 - momentum))")
        if rate > 1:
            warnings.warn(f"lr/lam = {rate:.3g} is above 1: z overshoots at every visit", stacklevel=3)
        elif in_all >= 2:
            warnings.warn(
                f"lr/(lam (1 - momentum)) = {in_all:.3g} is 2 or more: z diverges if batches are small", stacklevel=3
            )

    @property
    def aux(self) -> Auxiliary:
        """z, one scalar per training sample."""
        return Auxiliary(self.param_groups[0])

    @property
    def lam(self) -> float:
        """λ."""
        return float(self.param_groups[0]["lam"])

    def objective_lam(self, batch_size: int) -> float:
        """The weight λ' on Σ L_i in the objective λ' Σ L_i(w) + D_ψ(w, w₀) that training in such batches solves."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        return self.lam if self.param_groups[0]["lam_convention"] == "objective" else self.lam / batch_size

    def _slope(self) -> Slope:
        name = self.param_groups[0]["penalty"]
        if name != "custom":
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
        before one step are one batch, each scaled by its share of the samples, as with any mean loss (in Algorithm 2,
        each is a batch of its own).

        Raises ValueError, TypeError or IndexError for input that makes no sense. On a GPU, where looking at the values
        would make the host wait, a bad index or loss is left out, counted in `aux.rejected` and raised later.
        """
        self._refuse_several_ranks()
        group, slope = self.param_groups[0], self._slope()
        check_losses(losses, root, group["reduction"])
        aux = self.aux
        index = checked_index(index, losses, len(aux))
        if aux.values.device != losses.device:  # the model has moved since the optimizer was made
            aux.to(losses.device)
        index = index.to(losses.device, non_blocking=True) if losses.device.type != "cpu" else index.clone()
        with torch.no_grad():
            L = working(losses.detach())
            eps = machine_epsilon(losses) if group["eps"] is None else group["eps"]
            bad = self._reject(L, index, eps)
            if bad is not None:
                index = index.clamp(0, len(aux) - 1)
            z = aux.values[index].to(L.dtype)
            if root is not None:
                r, s = z - working(root.detach()), None
            elif group["reduction"] == "batch":
                r, s = batch_rule(L, z, eps, bad)
            else:
                r, s = sample_rule(L, z, eps)
            weight = slope(r) if s is None else slope(r) / s
            # A loss that is not finite may spoil w, as with any optimizer, but never z: ℓ̂'(0) = 0.
            d = slope(_finite(r)).to(aux.values.dtype)
            if self._penalty is not None:
                d = _finite(d)
            if bad is not None:
                weight, d = torch.where(bad, 0, weight), torch.where(bad, 0, d)
            value = L.mean()
        through = losses if root is None else root
        if not torch.is_grad_enabled():
            return value
        if not through.requires_grad:
            raise ValueError(
                f"{'losses' if root is None else 'root'} has no graph (detached, or no parameter requires a gradient), "
                "so backward() would reach no weight"
            )
        went_backward = partial(self._record, _Batch(index, d))
        result: Tensor = _WeightedMean.apply(through, value, weight, went_backward)  # type: ignore[no-untyped-call]
        return result

    def _reject(self, losses: Tensor, index: Tensor, eps: float) -> Tensor | None:
        """Which samples to leave out, counted; None where the host has looked (and raised if there was one)."""
        if losses.device.type != "cpu":
            bad = (index != index.clamp(0, len(self.aux) - 1)) | (losses < -eps)
            self.param_groups[0]["z_rejected"].add_(bad.sum())
            return bad
        if bool((losses < -eps).any()):
            worst = losses[losses < -eps].min().item()
            raise ValueError(f"losses must be >= 0, got {worst:.4g}; RMD takes any loss that is, shifted if need be")
        return None

    def _record(self, batch: _Batch) -> None:
        """A batch counts from the moment its loss goes backward."""
        batch.task = torch._C._current_graph_task_id()
        if self._pending and self._pending[-1].task != batch.task:  # several losses may go backward as one
            self._forget_what_was_thrown_away()
        self._pending.append(batch)
        # Only when the whole pass has ended do the parameters have their gradients.
        torch.autograd.Variable._execution_engine.queue_callback(self._remember_gradient)

    def _gradients(self) -> list[Tensor]:
        return [g for group in self.param_groups for w in group["params"] if (g := w.grad) is not None]

    def _remember_gradient(self) -> None:
        self._witness[:] = [(weakref.ref(g), g._version) for g in self._gradients()[:1]]

    def _forget_what_was_thrown_away(self) -> None:
        """Drop the batches whose gradients were cleared without a step: by a module's zero_grad, say."""
        grads = self._gradients()
        if not grads:
            self._forget()
            return
        if any(gradient() is grads[0] and version == grads[0]._version for gradient, version in self._witness):
            return  # nobody has touched them
        if all(g.device.type == "cpu" for g in grads):
            if not any(bool(g.any()) for g in grads):
                self._forget()
            return
        alive = torch.stack([g.any().to(self.aux.values.device) for g in grads]).any().to(self.aux.values.dtype)
        for batch in self._pending:
            batch.slope, batch.alive = batch.slope * alive, batch.alive * alive

    def _forget(self) -> None:
        self._pending.clear()
        self._witness.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and with them the batches that they came from."""
        super().zero_grad(set_to_none)
        self._forget()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradient's norm over all parameters, and z's step by the same factor, so that the objective stays.

        To be called between `backward()` and `step()` in place of `torch.nn.utils.clip_grad_norm_`, which would scale
        w's step alone. Returns the norm before clipping.
        """
        max_norm = float(max_norm)
        if not max_norm > 0:
            raise ValueError(f"max_norm must be > 0 (inf to measure the norm only), got {max_norm}")
        grads = self._gradients()
        if not grads:
            return torch.tensor(0.0)
        total = torch.nn.utils.get_total_norm(grads)
        factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(factor.to(g.device))
        for batch in self._pending:
            batch.slope = batch.slope * _finite(factor).to(batch.slope)
        self._remember_gradient()
        return total

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One mirror step on w and one on z, for the batches whose `loss()` has gone backward since the last step.

        Raises RuntimeError, before anything has changed, when there are gradients but none of them came from `loss()`.
        """
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        works = self._gather()
        if not any(work.params for work in works):
            return value
        if not self._pending:
            if all(float(work.lr) == 0 for work in works):  # how distributed checkpoints make an optimizer's state
                return value
            raise RuntimeError(
                "step() found gradients but no batch: RMD takes its gradients from "
                "optimizer.loss(losses, index).backward(), once for every step"
            )
        self._refuse_several_ranks()
        rate = self._rate(batch_size=sum(len(batch.index) for batch in self._pending))
        for work in works:
            if work.params:
                apply(work)
        if rate is not None:
            self._descend(rate)
        self._forget()
        return value

    def _rate(self, batch_size: int) -> float | Tensor | None:
        """η/λ; None where z stays (λ = ∞). Raises ValueError for one with which z diverges, where it is a number."""
        group = self.param_groups[0]
        if group["lam"] == math.inf:
            return None
        divisor: float = group["lam"]
        if group["momentum_rule"] == "scaled":
            divisor *= 1 - group["momentum"]
        lr: float | Tensor = group["lr"]
        if isinstance(lr, Tensor) and lr.device.type != "cpu":
            return lr.detach().reshape(()).to(self.aux.values.device, non_blocking=True) / divisor
        rate = float(lr) / divisor
        _check_rate(rate / (batch_size if group["lam_convention"] == "objective" else 1), "z's step lr/lam")
        return rate

    def _descend(self, rate: float | Tensor) -> None:
        """z_i ← z_i − c_i/λ for every batch that went backward; c_i/(λ|B|) in the convention of the objective."""
        group, batches = self.param_groups[0], self._pending
        one = len(batches) == 1
        index = batches[0].index if one else torch.cat([batch.index for batch in batches])
        slope = batches[0].slope if one else torch.cat([batch.slope for batch in batches])
        if group["lam_convention"] == "objective":
            # Divided before it enters the momentum, as the mean of w's gradients is.
            slope = slope / sum((batch.size for batch in batches[1:]), start=batches[0].size)
        found_inf = getattr(self, "found_inf", None)  # a GradScaler's skipped step, known to the device alone
        self.aux.descend(
            index,
            slope,
            rate,
            group["momentum"],
            dense=group["momentum_rule"] == "dense",
            skip=None if found_inf is None else found_inf.to(slope.device).reshape(()) != 0,
        )

    def _refuse_several_ranks(self) -> None:
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        if torch.distributed.get_world_size() > 1 and self.lam != math.inf:
            raise RuntimeError(
                f"RMD keeps z on one rank, but the process group has {torch.distributed.get_world_size()}: each rank "
                "would train with its own stale z. Train on one rank, or with lam=inf (SMD)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything, z included; plain data that `torch.load(..., weights_only=True)` takes.

        Raises RejectedSamplesError if samples were left out of z since the last report.
        """
        self.aux.check()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_pending", "_penalty", "_settings")
        return {**super().__getstate__(), **{key: self.__dict__[key] for key in mine}, "_witness": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state; z is copied in place, so that views and captured graphs of it stay valid."""
        loading = "param_groups" in self.__dict__
        group = state["param_groups"][0]
        if loading:
            aux = self.aux
            aux.check_fits(group)
            if group.get("penalty") == "custom" and self._penalty is None:
                raise ValueError(
                    "the state was made with a penalty of your own; make the optimizer with it before loading"
                )
            loaded = {key: group[key] for key in ("z", "z_momentum") if key in group}
        super().__setstate__(state)
        if loading:
            if "z_momentum" in loaded and aux.momentum is None:
                aux._store["z_momentum"] = torch.zeros_like(aux.values)
            aux.load_state_dict(loaded)
            for key in ("z", "z_rejected", "z_momentum"):
                if key in aux._store:
                    self.param_groups[0][key] = aux._store[key]
            self._forget()


def _finite(t: Tensor) -> Tensor:
    """0 in place of what is not finite."""
    return t.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _check_penalty(slope: Slope) -> None:
    """Refuse what can be seen at once: a function that is no ℓ̂', elementwise, increasing, and 0 at 0."""
    probe = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    try:
        values = slope(probe)
    except Exception as error:
        raise ValueError(f"penalty must take a tensor of residuals r and return the slope at each: {error}") from error
    if not isinstance(values, Tensor) or values.shape != probe.shape:
        raise ValueError("penalty must return the slope at each residual r, a tensor of the same shape")
    if values[2] != 0 or bool((values.diff() < 0).any()):
        raise ValueError(f"penalty must be 0 at r = 0 and never fall, got {values.tolist()} at {probe.tolist()}")


def _one_of(name: str, value: object, allowed: tuple[str, ...], or_else: str = "") -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name} must be one of {choices}{' ' + or_else if or_else else ''}, got {value!r}")


def _check_rate(rate: float, name: str) -> None:
    if not rate < 2:
        raise ValueError(f"{name} must be < 2, or z diverges; got {rate:.4g}: lower lr or raise lam")
