"""SMD: stochastic mirror descent as a `torch.optim.Optimizer`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Set
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer, ParamsT

from mirrordescent.base import Potential
from mirrordescent.caller import warn
from mirrordescent.fused import supports as has_kernel
from mirrordescent.inputs import number
from mirrordescent.paths import Work, apply, elementwise
from mirrordescent.sharded import is_sharded
from mirrordescent.sizes import GRADIENT, HIGHEST, FarOffWarning, StuckWarning, far_off, measured, stuck
from mirrordescent.specs import is_named
from mirrordescent.specs import potential as as_potential

# settings of torch's optimizers that do nothing here, and what there is instead
NOT_OURS = {
    "weight_decay": "ψ that regularizes, by RMD's lam",
    "nesterov": "always the heavy ball",
    "dampening": "always 0",
}


class SMD(Optimizer):
    """Stochastic mirror descent: ∇ψ(w) ← ∇ψ(w) − η g, with heavy-ball momentum in the dual.

    params: parameters, named parameters or groups; a group may set its own `lr`, `potential` and `momentum`.
    lr: η, a number or a one-element tensor (which a captured CUDA graph reads anew at every replay).
    potential: ψ, a name such as "l2", "l1", "linf", "q=3", "entropy", "hypentropy", or a `md.Potential`.
    momentum: μ in m ← μ m + g, ∇ψ(w) ← ∇ψ(w) − η m.
    maximize: climb instead of descend.
    foreach, fused: which implementation. By default ℓ2 takes the one that `torch.optim.SGD` takes by default, and other
        potentials a kernel of their own on a GPU, where there is one, or few joined operations.

    Raises ValueError if a setting makes no sense, or a starting weight lies outside ψ's domain.

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
        # By the keys that groups hold: the spec, or, where that cannot hold everything (a user's function, a tensor of
        # weights), the spec and a number.
        self._potentials: dict[str, Potential] = {}
        self._within: dict[int, str] = {}  # by group number, the potential in whose domain its weights were found
        defaults: dict[str, Any] = {
            "lr": lr,
            "potential": self._register(potential),
            "momentum": momentum,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
        }
        defaults["lr"], defaults["momentum"] = _check_numbers(lr, momentum)
        super().__init__(params, defaults)

    # Potentials are kept as strings in the groups, so that a checkpoint holds plain data.

    def _register(self, potential: str | Potential) -> str:
        if isinstance(potential, str) and potential in self._potentials:
            return potential
        psi = as_potential(potential)
        key = psi.spec
        if not is_named(psi):
            mine = (key for key, known in self._potentials.items() if known is psi)
            key = next(mine, f"{psi.spec}#{len(self._potentials)}")
        self._potentials[key] = psi
        return key

    def potential_of(self, group: dict[str, Any]) -> Potential:
        """The potential of a parameter group, as an object (the group itself holds its name)."""
        key = group["potential"]
        if not isinstance(key, str) or key not in self._potentials:  # put there by hand, or by a checkpoint
            key = group["potential"] = self._register(key)
        return self._potentials[key]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, checked as in the constructor; on an error nothing is added."""
        # a copy: what is filled in below must not reach the caller, who may give the dict to another optimizer too
        super().add_param_group(dict(param_group) if isinstance(param_group, dict) else param_group)
        try:
            self._check_group(self.param_groups[-1])
        except Exception:
            self.param_groups.pop()
            raise
        self._note_domain(len(self.param_groups) - 1)
        self._make_state(self.param_groups[-1])
        self._look_at_rate(self.param_groups[-1])

    def _check_group(self, group: dict[str, Any]) -> None:
        _check_keys(group, {"params", "param_names", *self.defaults})
        group["lr"], group["momentum"] = _check_numbers(group["lr"], group["momentum"])
        if group["foreach"] and group["fused"]:
            raise ValueError("foreach and fused cannot both be True")
        group["potential"] = self._register(group["potential"])
        psi = self.potential_of(group)
        for k, w in enumerate(group["params"]):
            dense = w.layout == torch.strided
            if not dense or not (w.is_floating_point() or w.is_complex()):
                kind = str(w.dtype) if dense else "sparse"
                raise TypeError(
                    f"{self._name(group, k)} is {kind}; mirror descent takes dense real or complex parameters"
                )
            if group["fused"] and _has_values(w) and not has_kernel(psi, w):
                raise ValueError(
                    f"fused=True has no kernel for potential {psi.spec!r} on {w.device.type} ({w.dtype}); "
                    "leave fused=None"
                )
        self._check_domain(group, psi)

    def _check_domain(self, group: dict[str, Any], psi: Potential) -> None:
        for k, w in enumerate(group["params"]):
            error = psi.domain_error(w.detach()) if _has_values(w) else None
            if error is not None:
                raise ValueError(f"{self._name(group, k)}: {error}")

    def _note_domain(self, place: int) -> None:
        """Remember that a group's weights lie in its potential's domain; those without values are checked later."""
        group = self.param_groups[place]
        if all(map(_has_values, group["params"])):
            self._within[place] = group["potential"]

    def _look_at_rate(self, group: dict[str, Any]) -> None:
        """Warn of an lr that acts like an absurdly large one of SGD's, and of tensors of zeros that would stay so."""
        psi, params = self.potential_of(group), group["params"]
        if psi.linear == 1 or not psi.uniform:  # ψ is SGD's, or takes only tensors that fit its own
            return
        if torch.compiler.is_compiling() or not params or not all(map(_has_values, params)):
            return
        lr = float(group["lr"])
        if lr == 0:
            return
        sizes = measured(params)  # the only look at the weights, for which a GPU has to be waited for
        far = far_off(sizes, psi, lr)
        if far is not None and far.alike > HIGHEST:
            warn(
                f"under {psi.spec} lr = {lr:.3g} moves weights of the usual size ({far.usual:.2g}) "
                f"as SGD does with lr = {far.alike:.1g}; lr = {far.better:.1g} is like SGD's 0.1 (see "
                "md.step_size), and lam scales with it",
                FarOffWarning,
            )
        found = stuck(sizes, psi, lr)
        if found is not None:
            warn(
                f"under {psi.spec} zeros hardly move, and {found.tensors} of the {len(params)} tensors of a parameter "
                f"group have nothing else: a gradient of {GRADIENT:g} moves them by {found.step:.0e}, and weights of "
                f"the usual size by {found.other:.0e}; start them from small random numbers, or give them a group of "
                "their own with potential 'l2' and an lr for that",
                StuckWarning,
            )

    def _name(self, group: dict[str, Any], k: int) -> str:
        names = group.get("param_names")
        where = next((i for i, g in enumerate(self.param_groups) if g is group), len(self.param_groups))
        shape = tuple(group["params"][k].shape)
        return f"parameter {names[k]!r}" if names else f"parameter {k} of group {where} (shape {shape})"

    def _make_state(self, group: dict[str, Any]) -> None:
        # Made at once, not at the first step: a distributed checkpoint asks for the state before there is a step.
        for w in group["params"]:
            if group["momentum"] != 0 and not is_lazy(w):
                self._buffer(w)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_potentials": self._potentials, "_within": self._within}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state, from a pickle, a copy or `load_state_dict`; refuse one that names an unknown potential."""
        for k, group in enumerate(state["param_groups"]):
            if "param_groups" in self.__dict__:  # loading into an existing optimizer
                if "z" in group and "z" not in self.param_groups[0]:
                    raise ValueError("the state is RMD's, with a z that md.SMD has no use for; load it into md.RMD")
                if "potential" not in group:  # another optimizer's state; in our own such keys do nothing
                    _check_keys(group)
                self._adopt_potential(group, self.param_groups[k])
            group.setdefault("momentum", 0.0)
            group.setdefault("maximize", False)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)
            if "lr" in group:
                _check_numbers(group["lr"], group["momentum"])
        super().__setstate__(state)

    def _adopt_potential(self, saved: dict[str, Any], here: dict[str, Any]) -> None:
        """Find the potential of a loaded group: by its name, or, if it is live, in the same group of this optimizer."""
        mine = self.potential_of(here)
        key = saved.setdefault("potential", here["potential"])
        if "#" not in key:
            as_potential(key)
            return
        spec = key.rpartition("#")[0]
        if spec != mine.spec:
            raise ValueError(
                f"the checkpoint was made with potential {spec!r}, which cannot be stored in it, and this optimizer's "
                f"group has {mine.spec!r}; make the optimizer with that potential before loading"
            )
        saved["potential"] = here["potential"]

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data that `torch.load(..., weights_only=True)` takes; potentials by their names."""
        for group in self.param_groups:
            self.potential_of(group)
        state = super().state_dict()
        for group in state["param_groups"]:
            # a scheduler may have left numbers of NumPy's or of another library's
            group.update({key: x.item() for key, x in group.items() if _is_foreign(x)})
        return state

    def _gather(self) -> list[Work]:
        """Everything the step will touch, checked before anything is touched."""
        works: list[Work] = []
        for place, group in enumerate(self.param_groups):
            psi = self.potential_of(group)
            if self._within.get(place) != group["potential"]:  # another potential, set by hand or loaded
                self._check_domain(group, psi)
                self._note_domain(place)
            members = [k for k, w in enumerate(group["params"]) if w.grad is not None]
            params = [group["params"][k] for k in members]
            for k, w in zip(members, params, strict=True):
                if w.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{self._name(group, k)} has a sparse gradient ({w.grad.layout}), which mirror descent does "
                        "not take; use sparse=False in the embedding"
                    )
                if is_sharded(w) and not elementwise(psi):
                    raise RuntimeError(
                        f"{self._name(group, k)} is sharded (a DTensor), and potential {psi.spec!r} does not treat "
                        "all elements alike; use one that does, such as 'l2' or 'q=3'"
                    )
                if group["fused"] and w.is_meta:
                    raise RuntimeError(
                        "`fused=True` requires all the params to be floating point Tensors on a device with memory, "
                        f"but {self._name(group, k)} is on the meta device"
                    )
            buffers = [self._buffer(w) for w in params] if group["momentum"] != 0 else []
            works.append(
                Work(
                    potential=psi,
                    params=params,
                    grads=[w.grad for w in params],
                    buffers=buffers,
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
        if self.state[w].get("momentum_buffer") is None:  # a scheduler has switched momentum on
            self.state[w]["momentum_buffer"] = torch.zeros_like(w, memory_format=torch.preserve_format)
        buffer: Tensor = self.state[w]["momentum_buffer"]
        if buffer.device != w.device or buffer.dtype != w.dtype:  # the model has moved since
            buffer = self.state[w]["momentum_buffer"] = buffer.to(w)
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
        self._move()
        return loss

    def _move(self) -> None:
        """The step itself, after the closure, if any."""
        for work in self._gather():
            if work.params:
                apply(work)


def _is_foreign(x: object) -> bool:
    """Whether x is a single number of NumPy's or another array library's, and not a tensor."""
    return not isinstance(x, Tensor) and hasattr(x, "item") and getattr(x, "shape", None) == ()


def _has_values(w: Tensor) -> bool:
    """Whether w has values: not on the meta device, in a lazy module before its first use, or in FakeTensorMode."""
    fakes = sys.modules.get("torch._subclasses.fake_tensor")  # loaded by whoever makes some
    return not (w.is_meta or is_lazy(w) or (fakes is not None and isinstance(w, fakes.FakeTensor)))


def _check_keys(group: Mapping[str, Any], known: Set[str] = frozenset()) -> None:
    """Refuse settings of other optimizers that would do nothing here, and what looks like a setting misspelt."""
    for key, value in group.items():
        if key in NOT_OURS and isinstance(value, (bool, int, float)) and value:
            raise ValueError(f"{key} = {value} does nothing in mirror descent: it is {NOT_OURS[key]}")
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.85)
        if near and key not in known:
            raise ValueError(f"a parameter group has no setting {key!r}; did you mean {near[0]!r}?")


def _check_numbers(lr: float | Tensor, momentum: float) -> tuple[float | Tensor, float]:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if not 0 <= number("lr", lr) < float("inf"):
        raise ValueError(f"lr must be a finite number >= 0, got {float(lr)}")
    momentum = number("momentum", momentum)
    if not 0 <= momentum < float("inf"):
        raise ValueError(f"momentum must be a finite number >= 0, got {momentum}")
    return (lr if isinstance(lr, Tensor) else float(lr)), momentum
