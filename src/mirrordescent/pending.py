"""The batches that have gone backward since the last step, and whether their gradients are still there.

A batch counts when its loss goes backward, not when `loss()` is called: trainers log losses that they never
differentiate, skip steps, and clear gradients in their own order and by their own means.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import Node

from mirrordescent.caller import warn
from mirrordescent.eager import may_wait
from mirrordescent.ranks import Ranks
from mirrordescent.sharded import everywhere, own_part

ASIDE = 64  # batches that are set aside at most
HEAP = 64  # batches that reach no parameter, from which on there is a warning


class Pass:
    """A token for a backward pass: the autograd engine keeps it alive until the pass has ended or broken off."""


@dataclass
class Batch:
    """What z's step needs to know of a batch."""

    index: Tensor  # (batch,)
    slope: Tensor  # (batch,) ℓ̂'_i
    factor: Tensor  # of its loss in the backward pass: 1, or its share of several batches
    # 0 if its gradient turned out to have been thrown away, which only the device may know; else 1
    alive: Tensor | int = 1
    # its backward pass: the engine's number for it, a token that lives while it is under way, whether it has ended, and
    # whether it left any gradient
    task: int = -1
    going: weakref.ref[Pass] | None = None
    ended: bool = False
    reached: bool = True
    # whether its own graph reaches no parameter: a later pass carries its gradient there (the loss is checkpointed, or
    # goes backward to the outputs first)
    apart: bool = False
    # whether its gradient was added to those that the step before had used
    mixed: bool = False

    @property
    def broken_off(self) -> bool:
        """Whether its backward pass is over without having reached its end: out of memory, say."""
        return not self.ended and (self.going is None or self.going() is None)


class Seen(NamedTuple):
    """A gradient at an earlier time: which one, how often it was written to, and whether (on a CPU) a row was not 0."""

    place: int
    gradient: weakref.ref[Tensor]
    version: int
    lively: bool

    @classmethod
    def now(cls, grads: list[Tensor]) -> Seen:
        """Note the first gradient, or on a CPU the first whose leading row is not all 0 (an embedding's often is)."""
        lively = (k for k, g in enumerate(grads) if g.device.type == "cpu" and bool(_row(g).any()))
        first = next(lively, None)
        place = first or 0
        return cls(place, weakref.ref(grads[place]), grads[place]._version, first is not None)

    def is_as_it_was(self, grads: list[Tensor]) -> bool:
        """Whether it has not been written to since; zeros written through `.data` leave no trace but themselves."""
        if self.place >= len(grads):
            return False
        g = grads[self.place]
        same = self.gradient() is g and self.version == g._version
        return same and (not self.lively or bool(_row(g).any()))

    def was_added_to(self, grads: list[Tensor]) -> bool:
        """Whether it is still there and was written to since, as a backward pass does that adds to it."""
        held = self.gradient()
        return held is not None and held._version > self.version and any(held is g for g in grads)


@dataclass
class Pending:
    """The batches that the next step will move z for; emptied and filled in place, so that torch.compile can follow."""

    batches: list[Batch] = field(default_factory=list)
    # At most one: a gradient as the last backward pass left it.
    witness: list[Seen] = field(default_factory=list)
    # Batches whose backward pass changed no .grad (torch.autograd.grad), and the gradients that were there at the time.
    aside: list[tuple[Batch, list[weakref.ref[Tensor]]]] = field(default_factory=list)
    # At most one: a gradient as the last step left it, which is to be cleared before the next backward pass.
    used: list[Seen] = field(default_factory=list)
    # Whether one on a GPU, which may not have been, has been looked at.
    looked: bool = False

    def __bool__(self) -> bool:
        return bool(self.batches)

    def __getstate__(self) -> dict[str, list[Batch]]:
        # Another process numbers its backward passes anew, and has neither these passes nor these gradients.
        aside = [batch for batch, refs in self.aside if not refs]
        kept = {"batches": self.batches, "aside": aside}
        return {key: [replace(batch, task=-1, going=None) for batch in batches] for key, batches in kept.items()}

    def __setstate__(self, state: dict[str, list[Batch]]) -> None:
        self.batches, self.witness = list(state["batches"]), []
        self.used, self.looked = [], False
        self.aside = [(batch, []) for batch in state.get("aside", ())]

    def add(self, batch: Batch, params: list[Tensor], node: Node) -> None:
        """Add a batch whose loss, `node`, goes backward now; drop those whose gradients are gone."""
        task, this = torch._C._current_graph_task_id(), Pass()
        self.drop_what_broke_off()
        if self.batches and self.batches[-1].task != task:  # several losses may go backward in one pass
            self.drop_what_was_thrown_away(gradients(params))
        batch.task, batch.going = task, weakref.ref(this)
        self.batches.append(batch)
        there = gradients(params)
        before, left = [(weakref.ref(g), g._version) for g in there], self._left_by_the_last_step(there)
        # Only when the whole pass has ended do the parameters have their gradients.
        later = torch.autograd.Variable._execution_engine.queue_callback
        end = partial(self._end_of_pass, this, batch, params, before, node, left)
        # With several ranks a callback of DistributedDataParallel's writes them; one that ours queues runs after it.
        later(partial(later, end) if Ranks().number > 1 else end)

    def _end_of_pass(
        self,
        _: Pass,
        batch: Batch,
        params: list[Tensor],
        before: list[tuple[weakref.ref[Tensor], int]],
        node: Node,
        left: Seen | None,
    ) -> None:
        """The pass has ended: see where the batch's gradient went, and set the batch aside if it changed no .grad."""
        grads = gradients(params)
        batch.mixed = left is not None and left.was_added_to(grads)
        batch.ended, batch.reached = True, bool(grads)
        if len(before) == len(grads) and all(
            ref() is g and version == g._version for (ref, version), g in zip(before, grads, strict=True)
        ):
            batch.apart = any(w.requires_grad for w in params) and not _leads_to(node, params)
            if not batch.apart and any(held is batch for held in self.batches):  # no step in a hook has used it
                # No .grad that it leads to has changed: torch.autograd.grad, to look at, or to be assigned by hand.
                self.batches[:] = [held for held in self.batches if held is not batch]
                self.aside[:] = [*self.aside[1 - ASIDE :], (batch, [ref for ref, _ in before])]
            self._look_for_a_heap()
        self.remember(grads)

    def remember(self, grads: list[Tensor]) -> None:
        """Note the gradients as they are now."""
        self.witness[:] = [Seen.now(grads)] if grads else []

    def note_as_used(self) -> None:
        """A step has used the gradients: note how it has left one of them. (A compiled step leaves that out.)"""
        if not torch.compiler.is_compiling():
            held = [(seen, seen.gradient()) for seen in self.witness]
            self.used[:] = [seen._replace(version=g._version) for seen, g in held if g is not None]

    def _left_by_the_last_step(self, grads: list[Tensor]) -> Seen | None:
        """A gradient that the last step has used and that nobody has cleared since; None where that is not known.

        Only its values tell if it was cleared through `.data`. Those on a GPU are looked at only once, if all else says
        that it was not cleared, as the host waits.
        """
        left = next((seen for seen in self.used if seen.is_as_it_was(grads)), None)
        if left is None or left.lively:
            return left
        g = grads[left.place]
        if self.looked or not g.is_cuda or not may_wait():
            return None
        self.looked = True
        return left if bool(own_part(g).any()) else None

    def drop_what_was_thrown_away(self, grads: list[Tensor]) -> None:
        """Drop the batches whose gradients were cleared without a step: by a module's zero_grad, say.

        Not those whose gradients are still to come.
        """
        settled = [batch for batch in self.batches if batch.ended and not batch.apart]
        if not settled or any(seen.is_as_it_was(grads) for seen in self.witness):
            return
        if _are_zero(grads):
            self.batches[:] = [batch for batch in self.batches if batch.apart or not batch.ended]
            self.witness.clear()
        else:
            _drop_if_zero(settled, grads)

    @property
    def mixed(self) -> bool:
        """Whether the gradients are, in part, those that the step before has used."""
        return any(batch.mixed for batch in self.batches)

    @property
    def unreached(self) -> bool:
        """Whether a loss has gone backward and left no gradient."""
        return any(not batch.reached for batch in (*self.batches, *(batch for batch, _ in self.aside)))

    def take_what_was_put_there_by_hand(self, grads: list[Tensor]) -> None:
        """If there is no other batch, take those set aside, unless a gradient is one of those that were there then.

        All of them: nothing tells a batch whose gradient was only looked at from one whose gradient was assigned.
        """
        if self.batches or not self.aside or any(ref() is g for _, refs in self.aside for ref in refs for g in grads):
            return
        if _are_zero(grads):  # cleared
            return
        self.batches[:] = [batch for batch, _ in self.aside]
        self.aside.clear()
        _drop_if_zero(self.batches, grads)

    def _look_for_a_heap(self) -> None:
        """Warn of many batches that reach no parameter: those that a later pass carries there are few."""
        if sum(batch.apart for batch in self.batches) == HEAP:
            warn(
                f"the losses of {HEAP} batches have gone backward without reaching this optimizer's parameters, and no "
                "step was taken: the next one will move z for all of them. Are they of another network? Then do not "
                "pass them to this optimizer's loss()"
            )

    def drop_what_broke_off(self) -> None:
        """Drop the batches whose backward pass did not reach its end."""
        if not all(batch.ended for batch in self.batches):
            self.batches[:] = [batch for batch in self.batches if not batch.broken_off]

    def scale(self, factor: Tensor) -> None:
        """Scale z's next step for these batches, as w's gradient was scaled."""
        for batch in self.batches:
            batch.slope = batch.slope * factor.to(batch.slope)

    def clear(self) -> None:
        """Forget everything."""
        self.batches.clear()
        self.witness.clear()
        self.aside.clear()

    def union(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """index and slope of all batches, joined; empty if only other ranks have batches."""
        if not self.batches:
            return torch.zeros(0, dtype=torch.int64, device=z.device), z.new_zeros(0)
        if len(self.batches) == 1:
            return self.batches[0].index, self.batches[0].slope
        return torch.cat([b.index for b in self.batches]), torch.cat([b.slope for b in self.batches])

    def count(self) -> Tensor | int:
        """|B|, the number of samples whose gradients are there; at least 1, as slopes are divided by it."""
        total = sum(batch.alive * len(batch.index) for batch in self.batches)
        return total.clamp_min(1) if isinstance(total, Tensor) else max(total, 1)


def gradients(params: list[Tensor]) -> list[Tensor]:
    """The gradients that are there."""
    return [g for w in params if (g := w.grad) is not None]


def _are_zero(grads: list[Tensor]) -> bool:
    """Whether gradients are known to be 0: on a GPU only where they have no elements, as nobody looks at them there."""
    return all(not g.numel() or (g.device.type == "cpu" and not bool(g.any())) for g in grads)


def _drop_if_zero(batches: list[Batch], grads: list[Tensor]) -> None:
    """Drop batches if their gradients are 0, which only the device knows; those on a CPU are not."""
    filled = [g for g in grads if g.numel()]  # of nothing there is no largest element
    if all(g.device.type == "cpu" for g in filled):
        return
    alive = (everywhere(torch.nn.utils.get_total_norm(filled, math.inf)) != 0).to(batches[0].slope)
    for batch in batches:
        batch.slope, batch.alive = batch.slope * alive, batch.alive * alive
        batch.mixed = False  # for all that is known


def _leads_to(node: Node, params: list[Tensor]) -> bool:
    """Whether the graph behind a node reaches one of the parameters."""
    wanted = {id(w) for w in params}
    known, todo = {node}, [node]
    while todo:
        for following, _ in todo.pop().next_functions:
            if following is not None and following not in known:
                if id(getattr(following, "variable", None)) in wanted:
                    return True
                known.add(following)
                todo.append(following)
    return False


def _row(g: Tensor) -> Tensor:
    """The first few elements, of this rank's part if sharded: enough to see that it was set to 0, and cheap."""
    g = own_part(g)
    while g.dim() > 1 and g.numel():
        g = g[0]
    return g[:1024] if g.dim() else g
