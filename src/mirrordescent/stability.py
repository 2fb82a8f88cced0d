"""Whether z settles: a visit moves z_i by a share of its residual; at 2 or more z diverges, near 0 it stands still."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrordescent.caller import warn
from mirrordescent.eager import may_wait
from mirrordescent.inputs import check_rate

HABIT = 3  # steps, after which something is taken for the rule
MANY = 8  # samples, from which on a batch can tell whether its numbers are labels
ALIKE = 0.75  # share of different numbers in a batch up to which they may be labels
SCALED = 100.0  # a factor on the loss from which on it is a GradScaler's
FOREVER = 1e5  # epochs, longer than any training


class Stability:
    """Refuses settings and steps with which z diverges; warns, once per reason, if it overshoots or may diverge."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._steps = [0, 0]  # so far: of a single batch, of several
        self._looks, self._named = 0, set[int]()  # at the first batches, and the samples that these named
        self._shares = 0  # smaller batches so far whose loss was scaled by a share
        self._small = 0  # steps in a row whose batch is too small for z to settle
        self._largest = 0  # the largest batch so far

    def begin(self, rate: float, momentum: float, rule: str) -> None:
        """Check the settings of a new optimizer; rate: lr/λ. Raises ValueError if z diverges."""
        whole = in_all(rate, momentum)
        check_rate(rate, "lr/lam")
        if rule == "scaled":
            check_rate(whole, "lr/(lam * (1 - momentum))")
        self._look(rate, "lr/lam", whole, "lr/(lam * (1 - momentum))")
        if 0 < rate < 1 / FOREVER:
            self._warn(
                "still",
                f"z settles over lam/lr = {1 / rate:.2g} epochs, and until then RMD is nearly SMD (which lam=inf is): "
                "lam scales with lr, and where 2 suits lr = 0.1, it is 20 * lr",
            )

    def look_at_index(self, index: Tensor, num_samples: int) -> None:
        """Warn if the first batches name few samples, and these again and again: labels that were given as `index`.

        Checked where looking costs no waiting: on a CPU, from where loaders give them.
        """
        if self._looks >= HABIT or index.device.type != "cpu" or len(index) < MANY:
            return
        these = set(index.tolist())
        fresh, most = these - self._named if self._looks else set(), max(these)
        if len(these) > ALIKE * len(index) or 2 * len(fresh) > len(these) or 2 * most >= num_samples:
            self._looks = HABIT
            return
        self._looks += 1
        self._named |= these
        if self._looks == HABIT:
            self._warn(
                "labels",
                f"the first {HABIT} batches name {len(self._named)} of {num_samples:,} samples again and again, and "
                f"none beyond number {max(self._named)}: are these labels? index says which training sample each loss "
                "is of; md.Indexed(dataset) gives it. (If your sampler means to begin so, all is well.)",
            )

    def check(self, share: float, name: str, momentum: float, index: Tensor, *, refuse: bool) -> None:
        """Check a step; share: the part of its residual that a visit moves z by.

        With `refuse`, raises ValueError if z diverges.
        """
        if refuse:
            check_rate(share, f"z's step {name}")
        self._look(share, name, in_all(share, momentum), f"{name}/(1 - momentum)")
        self._look_for_repeats(index, share, name)

    def look_at_sizes(self, batches: Sequence[tuple[int, Tensor]]) -> None:
        """Under the paper's convention, warn of a batch smaller than an earlier one: its samples weigh more.

        batches: size and factor of each that is part of the step. If there are several, or the one was scaled down,
        nothing is checked: either may make up for the size.
        """
        if torch.compiler.is_compiling() or len(batches) != 1:
            return
        size, factor = batches[0]
        if 0 < size < self._largest and not self._may_be_scaled_down(factor):
            self._warn(
                "uneven",
                f"a batch of {size} after one of {self._largest}: its samples weigh more, as the loss has the weight "
                "lam / batch size in the objective. Make all batches of one size (drop_last=True leaves out a last, "
                "smaller one), or take lam_convention='objective', which weighs all samples alike (and has another "
                "scale of lam)",
            )
        self._largest = max(self._largest, size)

    def _may_be_scaled_down(self, factor: Tensor) -> bool:
        """Whether a loss went backward as a share, for all that is known: after a few that did, nobody looks again."""
        if self._shares >= HABIT or "uneven" in self._told or (factor.is_cuda and not may_wait()):
            return True
        scaled = not 1 <= float(factor) < SCALED  # a GradScaler's factor hides a share
        self._shares += scaled
        return scaled

    def look_at_small(self, share: float, name: str, size: int, *, refuse: bool) -> None:
        """Under the objective's convention, warn of a batch that is too small for z to settle.

        One now and then makes nothing diverge. With `refuse`, raises ValueError after more than HABIT in a row.
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

    def look_at_factors(self, factors: Sequence[Tensor]) -> None:
        """Warn if the batches of one step were not scaled by their shares, so that the factors add up to 1.

        Checked once for single batches and once for several, at the HABIT-th such step, as reading factors on a GPU
        makes the host wait. If the factors of several add up to their number, nobody has scaled them. Any other sum may
        be a GradScaler's doing, and the step undoes it: its factor is large, and nearly always a power of 2.
        """
        if not factors or torch.compiler.is_compiling():
            return
        several = len(factors) > 1
        if self._steps[several] >= HABIT or (any(factor.is_cuda for factor in factors) and not may_wait()):
            return
        self._steps[several] += 1
        if self._steps[several] < HABIT:
            return
        total = sum(float(factor) for factor in factors)
        if not several and 1 < total < SCALED and not math.log2(total).is_integer():
            self._warn(
                "factor",
                f"the loss went backward times {total:.3g}: w moves so many times as far, and z does not, as if lam "
                "were so many times as large. To weigh the loss, change lam",
            )
        if several and abs(total - len(factors)) < 0.01 * len(factors):
            self._warn(
                "factors",
                f"the losses of {len(factors)} batches went backward before one step, with factors that add up to "
                f"{total:.3g} and not to 1: w moves further than z accounts for, as if lam were {total:.3g} times as "
                "large. Scale each loss by its share (a trainer that accumulates gradients may leave that to you)",
            )

    def not_finite(self, loss: float) -> None:
        """Warn of the first loss that is not finite."""
        self._warn(
            "finite",
            f"a loss is {loss}: if that goes on, training has diverged, and a smaller lr (and lam) may help; z leaves "
            "such losses out, the weights take what gradients they give",
        )

    def gradients_stayed(self) -> None:
        """Warn of a step by gradients that were added to those of the step before."""
        self._warn(
            "stayed",
            "the gradients of the last step were still there when this step's were added to them, and w moves by their "
            "sum: call zero_grad() between step() and the next backward()",
        )

    def nothing_moves(self) -> None:
        """Warn of a step that has batches but no gradients."""
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
        """Warn of a sample k times in a batch: its z moves k times as far. On a CPU only, where it costs no waiting."""
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
            warn(told)


def in_all(share: float, momentum: float) -> float:
    """The part of its residual that a visit moves z by in all, momentum's tail included."""
    return share / (1 - momentum) if momentum < 1 else math.inf
