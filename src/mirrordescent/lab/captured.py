"""A job's training step as a CUDA graph: captured once, then replayed on a stream of its own, without any waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from mirrordescent.lab.job import Job, call
from mirrordescent.lab.memory import IN_CAPTURE

WARM_UP = 3  # steps before the capture: libraries choose their kernels, the compiler compiles


_compiled: Callable[[nn.Module, Tensor], Tensor] | None = None


def compiled() -> Callable[[nn.Module, Tensor], Tensor]:
    """A forward pass that is compiled once and shared by all networks of the same shape."""
    global _compiled
    if _compiled is None:
        _compiled = torch.compile(call, dynamic=False)
    return _compiled


class Captured:
    """A job's step, captured, with the job's own `begin`, `step` and `wait`; the results are in the job.

    The graph reads which samples come next from tables that `begin` fills, at a place that it moves on by itself, so
    that a step is one launch. It works at fixed addresses: whatever writes to the job's tensors must do so in place.
    """

    def __init__(self, job: Job, *, compile_forward: bool = False) -> None:
        if job.device.type != "cuda":
            raise ValueError(f"a step is captured on a GPU, but the job is on {job.device}")
        self.job = job
        self.stream = torch.cuda.Stream(job.device)
        self.place = torch.zeros(1, dtype=torch.int64, device=job.device)
        self.table = self._drawn(1)
        if compile_forward:
            job.call = compiled()
        with kept(job), torch.cuda.stream(self.stream):
            self.stream.wait_stream(torch.cuda.default_stream(job.device))
            for _ in range(WARM_UP):
                self._step()
            torch.cuda.synchronize(job.device)
            self.graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self._step()
            except RuntimeError as error:
                if IN_CAPTURE not in str(error) or error.__context__ is None:
                    raise
                # what went wrong, of which the capture's end only says that something has
                raise error.__context__ from error.__context__.__cause__

    def begin(self, epoch: int, first: int = 0) -> None:
        """Draw the epoch's visits; the next step will be its step `first`."""
        self.stream.wait_stream(torch.cuda.current_stream(self.job.device))  # it may still be setting the sums to 0
        with torch.cuda.stream(self.stream):  # the draws too: another stream's memory could be reused too early
            for held, new in zip(self.table, self._drawn(epoch), strict=True):
                held.copy_(new)
            self.place.fill_(first)
            self.job.set_rate(epoch)

    def step(self) -> None:
        """Launch the next step, without waiting for it."""
        with torch.cuda.stream(self.stream):
            self.graph.replay()

    def wait(self) -> None:
        """Wait until everything that was launched is done."""
        self.stream.synchronize()

    def _drawn(self, epoch: int) -> tuple[Tensor, ...]:
        return self.job.drawn(epoch).tables

    def _step(self) -> None:
        place = self.place.clamp(max=len(self.table[0]) - 1)  # warm-up may go past the end of a short epoch
        self.job.descend(*[rows.index_select(0, place)[0] for rows in self.table])
        self.place.add_(1)


@contextmanager
def kept(job: Job) -> Iterator[None]:
    """Undo, in place, whatever the block does to a job's tensors, when all that it has launched is done."""
    before = {name: tensor.clone() for name, tensor in _tensors(job)}
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # of CUDA, after some of whose errors every call fails; the first one says why
            _restore(job, before)
        raise
    _restore(job, before)


def _restore(job: Job, before: dict[str, Tensor]) -> None:
    torch.cuda.synchronize(job.device)  # the block's stream is another one
    for name, tensor in _tensors(job):
        if name in before:
            tensor.copy_(before[name])
        else:  # a momentum buffer that the block has created, and that starts at 0
            tensor.zero_()


def _tensors(job: Job) -> Iterator[tuple[str, Tensor]]:
    """All tensors that a step may write to, by name."""
    yield "sums", job.sums
    for name, tensor in job.notes.state_dict(keep_vars=True).items():
        yield f"notes.{name}", tensor
    for name, tensor in job.model.state_dict(keep_vars=True).items():
        yield f"model.{name}", tensor.detach()
    for number, state in enumerate(job.optimizer.state.values()):
        yield from _of(f"state.{number}", state)
    for number, group in enumerate(job.optimizer.param_groups):
        yield from _of(f"group.{number}", {name: value for name, value in group.items() if name != "params"})


def _of(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in values.items():
        if isinstance(value, Tensor):
            yield f"{prefix}.{name}", value
