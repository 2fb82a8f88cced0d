"""Work for a few elements is the same work."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import mirrordescent as md
from mirrordescent.floating import FEW, except_where


@pytest.mark.parametrize("share", [0.0, 0.01, 1 / FEW, 0.5, 1.0])
@pytest.mark.parametrize("shape", [(0,), (), (1000,), (40, 25)])
def test_except_where_is_where(share: float, shape: tuple[int, ...]) -> None:
    x, y = torch.rand(shape), torch.rand(shape)
    there = torch.rand(shape) < share
    asked: list[int] = []

    def other(a: Tensor, b: Tensor) -> Tensor:
        asked.append(a.numel())
        return a * 2 + b

    found = except_where(there, x.exp(), other, x, y)
    assert torch.equal(found, torch.where(there, x * 2 + y, x.exp()))
    few = FEW * int(there.sum()) <= there.numel()
    assert sum(asked) == (int(there.sum()) if few else there.numel())


def test_except_where_has_the_derivatives_of_where() -> None:
    x = torch.rand(100, dtype=torch.float64, requires_grad=True)
    there = torch.arange(100) < 3
    found = except_where(there, x * 3, lambda a: a * a, x)
    (slope,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal(slope, torch.where(there, 2 * x, 3.0).detach())


@pytest.mark.parametrize("shapes", [[(300_000,)], [(50,)], [(50,), (20, 3)]], ids=["in pieces", "as it is", "joined"])
def test_an_optimizer_computes_for_few_weights_what_few_need(
    shapes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its weights ask for gradients, and none is to come of a step."""
    asked: list[int] = []
    plain = md.HyperbolicEntropy._far

    def counted(self: md.HyperbolicEntropy, w: Tensor, delta: Tensor) -> Tensor:
        asked.append(w.numel())
        return plain(self, w, delta)

    monkeypatch.setattr(md.HyperbolicEntropy, "_far", counted)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for w in params:
        w.grad = torch.zeros_like(w)
        w.grad.view(-1)[:2] = 100.0
    md.SMD(params, lr=0.1, potential="hypentropy").step()
    assert sum(asked) == 2 * len(params)


@pytest.mark.parametrize("name", ["q=3", "q=1.5", "linf", "l1", "hypentropy"])
def test_a_step_in_a_vmap_and_compiled_is_the_plain_one(name: str) -> None:
    """With few and with many large changes."""
    psi = md.potential(name)
    w, delta = torch.randn(8, 50), torch.randn(8, 50) * torch.logspace(-6, 0, 50)
    plain = psi.step(w, delta)
    torch.testing.assert_close(torch.func.vmap(psi.step)(w, delta), plain)
    torch.testing.assert_close(torch.compile(psi.step, backend="eager", fullgraph=True)(w, delta), plain)
    rows = torch.stack([psi.step(*row) for row in zip(w, delta, strict=True)])
    torch.testing.assert_close(rows, plain)


@pytest.mark.parametrize("name", ["q=3", "linf", "l1", "hypentropy"])
def test_a_trace_of_a_small_step_is_right_for_a_large_one(name: str) -> None:
    psi = md.potential(name)
    w, delta = torch.randn(50), torch.randn(50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the end of torch.jit
        traced: Any = torch.jit.trace(lambda w, d: psi.step(w, d), (w, delta * 1e-6), check_trace=False)
    plain = psi.step(w, delta)
    torch.testing.assert_close(traced(w, delta), plain)
    torch.testing.assert_close(make_fx(lambda w, d: psi.step(w, d))(w, delta * 1e-6)(w, delta), plain)
