"""Whether z settles: a visit moves z_i by a share of its residual; from 2 on it diverges, near 0 it stands still."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent.caller import outside
from mirrordescent.eager import may_wait
from mirrordescent.inputs import check_rate

HABIT = 3  # steps
FOREVER = 1e5  # epochs, longer than any training


class Stability:
    """Refuses a step with which z diverges; warns, once each, of one with which it overshoots or may diverge."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._several = 0  # steps so far that were taken for several batches
        self._small = 0  # steps in a row whose batch is too small for z to settle
        self._largest = 0  # batch so far

    def begin(self, rate: float, momentum: float, rule: str) -> None:
        """Look at the settings of a new optimizer; rate: lr/λ. Raises ValueError where z diverges."""
        whole = in_all(rate, momentum)
        check_rate(rate, "lr/lam")
        if rule == "scaled":
            check_rate(whole, "lr/(lam (1 - momentum))")
        self._look(rate, "lr/lam", whole, "lr/(lam (1 - momentum))")
        if 0 < rate < 1 / FOREVER:
            self._warn(
                "still",
                f"z settles over lam/lr = {1 / rate:.2g} epochs, and until then RMD is nearly SMD (which lam=inf is): "
                "lam scales with lr, and where 2 suits lr = 0.1, it is 20 * lr",
            )

    def check(self, share: float, name: str, momentum: float, index: Tensor, *, refuse: bool) -> None:
        """Look at a step; share: what one visit moves z by. Raises ValueError where z diverges, if it is to refuse."""
        if refuse:
            check_rate(share, f"z's step {name}")
        self._look(share, name, in_all(share, momentum), f"{name}/(1 - momentum)")
        self._look_for_repeats(index, share, name)

    def look_at_sizes(self, batches: Sequence[tuple[int, Tensor | None]]) -> None:
        """Under the paper's convention: whether a batch is smaller than others, so that its samples weigh more.

        batches: size and factor of each before the step. It does not look where there are several, or where the one
        was scaled down: either may make up for the size.
        """
        if torch.compiler.is_compiling() or len(batches) != 1:
            return
        size, factor = batches[0]
        if factor is not None and factor.device.type == "cpu" and float(factor) < 1:
            return
        if 0 < size < self._largest:
            self._warn(
                "uneven",
                f"a batch of {size} after one of {self._largest}: its samples weigh more, as the loss has the weight "
                "lam / batch size in the objective. Leave out a last, smaller batch (drop_last=True), or take "
                "lam_convention='objective', which weighs all samples alike (and has another scale of lam)",
            )
        self._largest = max(self._largest, size)

    def look_at_small(self, share: float, name: str, size: int, *, refuse: bool) -> None:
        """In the objective's convention: whether a batch that is smaller than others is too small for z to settle.

        One now and then makes nothing diverge. Raises ValueError where that has become a habit, if it is to refuse.
        """
        self._small = self._small + 1 if share >= 2 else 0
        if self._small > HABIT and refuse:
            check_rate(share, f"z's step {name}")
        if self._small:
            self._warn(
                "small",
                f"{name} = {share:.3g} in a batch of {size}: z of samples that are always in one so small diverges; "
                "leave it out (drop_last=True), or draw the batches anew in every epoch (shuffle=True)",
            )

    def look_at_factors(self, factors: Sequence[Tensor | None]) -> None:
        """Of several batches before one step: whether each was scaled by its share, so that the factors add up to 1.

        Looked at once, at a step where that has become a habit, as a GPU makes the host wait for it. Nobody has scaled
        them where there are as many batches as the factors add up to; another number may be a GradScaler's.
        """
        if len(factors) < 2 or self._several >= HABIT or torch.compiler.is_compiling():
            return
        known = [factor for factor in factors if factor is not None]
        if any(factor.is_cuda for factor in known) and not may_wait():
            return
        self._several += 1
        if self._several < HABIT or len(known) < len(factors):
            return
        total = sum(float(factor) for factor in known)
        if abs(total - len(factors)) < 0.01 * len(factors):
            self._warn(
                "factors",
                f"the losses of {len(factors)} batches went backward before one step, with factors that add up to "
                f"{total:.3g} and not to 1: w moves so much further than z is told, as if lam were {total:.3g} times "
                "as large. Scale each by its share (a trainer that accumulates gradients may leave it to you)",
            )

    def not_finite(self, loss: float) -> None:
        """Tell of the first loss that is not finite."""
        self._warn(
            "finite",
            f"a loss is {loss}: if that goes on, training has diverged, and a smaller lr (and lam) may help; z leaves "
            "such losses out, the weights take what gradients they give",
        )

    def nothing_moves(self) -> None:
        """Tell that a step has batches and no gradients."""
        self._warn(
            "unreached",
            "a loss has gone backward, and no parameter of this optimizer has a gradient: nothing moves. Is the model "
            "another one than RMD was given? (If the gradients were only to be looked at, all is well.)",
        )

    def _look(self, share: float, name: str, whole: float, of_all: str) -> None:
        if share > 1:
            self._warn("overshooting", f"{name} = {share:.3g} is above 1: z overshoots at every visit")
        elif whole >= 2:
            self._warn("momentum", f"{of_all} = {whole:.3g} is 2 or more: z diverges if batches are small")

    def _look_for_repeats(self, index: Tensor, share: float, name: str) -> None:
        """A sample that is in a batch k times moves z k times as far; to look for it costs no waiting on a CPU."""
        if share * len(index) < 2 or index.device.type != "cpu" or "repeats" in self._told:
            return
        if torch.compiler.is_compiling():
            return
        visits = index.tolist()
        if len(set(visits)) == len(visits):
            return
        most = Counter(visits).most_common(1)[0][1]
        if share * most >= 2:
            self._warn(
                "repeats",
                f"a sample is {most} times in a batch, and {most} times {name} = {share:.3g} is 2 or more: z diverges "
                "if that is the rule; take the mean of a sample's losses first",
            )

    def _warn(self, about: str, told: str) -> None:
        if about not in self._told and not torch.compiler.is_compiling():
            self._told.add(about)
            warnings.warn(told, stacklevel=outside())


def in_all(share: float, momentum: float) -> float:
    """What one visit moves z by, momentum's tail included."""
    return share / (1 - momentum) if momentum < 1 else math.inf
