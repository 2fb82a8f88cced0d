"""Losses that hold on to wrong labels less: their formulas, and that RMD can use them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import mirrordescent as md


def batch(seed: int = 0, n: int = 16, classes: int = 5, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return logits, torch.randint(classes, (n,), generator=generator)


def test_generalized_cross_entropy_lies_between_cross_entropy_and_absolute_error() -> None:
    logits, labels = batch()
    p = logits.softmax(1)[torch.arange(16), labels]
    torch.testing.assert_close(md.generalized_cross_entropy(logits, labels, 1.0), 1 - p)
    torch.testing.assert_close(md.generalized_cross_entropy(logits, labels), (1 - p**0.7) / 0.7)
    almost = md.generalized_cross_entropy(logits, labels, 1e-9)
    torch.testing.assert_close(almost, F.cross_entropy(logits, labels, reduction="none"), rtol=1e-6, atol=1e-6)


@given(st.integers(0, 1000), st.floats(0.01, 1), st.floats(0, 1e4))
def test_generalized_cross_entropy_is_bounded(seed: int, q: float, scale: float) -> None:
    losses = md.generalized_cross_entropy(*batch(seed, scale=scale), q)
    assert bool(((losses >= 0) & (losses <= 1 / q)).all())


@pytest.mark.parametrize("q", [0.0, -1.0, 1.1, math.nan])
def test_q_must_make_sense(q: float) -> None:
    with pytest.raises(ValueError, match="q must be in"):
        md.generalized_cross_entropy(*batch(), q)


def literal(logits: Tensor, label: int, t: Tensor, strength: float) -> Tensor:
    """One sample, as printed; away from where probabilities are cut off."""
    p = logits.softmax(0)
    return -p[label].log() + strength * ((1 - t @ p).log() - (1 - t.max()).log())


def test_early_learning_is_its_formula() -> None:
    """Over several visits, the averages as a plain running average; losses and gradients."""
    loss = md.EarlyLearning(20, 5, strength=2.0, memory=0.6).double()
    averages = torch.zeros(20, 5, dtype=torch.float64)
    for visit in range(5):
        logits, labels = batch(visit, scale=1.0)
        index = torch.randperm(20, generator=torch.Generator().manual_seed(visit))[:16]
        logits.requires_grad_()
        losses = loss(logits, labels, index)
        averages[index] = 0.6 * averages[index] + 0.4 * logits.detach().softmax(1)
        torch.testing.assert_close(loss.averages, averages)
        rows = zip(logits, labels.tolist(), averages[index], strict=True)
        expected = torch.stack([literal(row, label, t, 2.0) for row, label, t in rows])
        torch.testing.assert_close(losses, expected)
        before = loss.averages.clone()
        assert torch.equal(loss.at(logits, labels, index), losses)
        assert torch.equal(loss.eval()(logits, labels, index), losses)
        assert torch.equal(loss.train().averages, before)  # neither moves them
        for found, wanted in zip(*(torch.autograd.grad(x.sum(), logits) for x in (losses, expected)), strict=True):
            torch.testing.assert_close(found, wanted)


@given(st.integers(0, 1000), st.floats(0, 1e3), st.floats(0, 100), st.floats(0, 0.999))
def test_early_learning_is_never_negative(seed: int, scale: float, strength: float, memory: float) -> None:
    loss = md.EarlyLearning(16, 5, strength, memory)
    for visit in range(4):
        logits, labels = batch(seed + visit, scale=scale)
        losses = loss(logits.float(), labels, torch.arange(16))
        assert bool((losses >= 0).all())
        assert bool(losses.isfinite().all())


def test_early_learning_without_strength_is_cross_entropy() -> None:
    logits, labels = batch()
    losses = md.EarlyLearning(16, 5, strength=0.0)(logits, labels, torch.arange(16))
    torch.testing.assert_close(losses, F.cross_entropy(logits, labels, reduction="none"))


def test_early_learning_goes_on_from_its_state() -> None:
    one, other = md.EarlyLearning(16, 5), md.EarlyLearning(16, 5)
    logits, labels = batch()
    one(logits, labels, torch.arange(16))
    other.load_state_dict(one.state_dict())
    again, _ = batch(1)
    assert torch.equal(one(again, labels, torch.arange(16)), other(again, labels, torch.arange(16)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"num_samples": 0, "classes": 3}, ">= 1 samples"),
        ({"num_samples": 5, "classes": 1}, ">= 2 classes"),
        ({"num_samples": 5, "classes": 3, "strength": -1.0}, "strength must be >= 0"),
        ({"num_samples": 5, "classes": 3, "strength": math.nan}, "strength must be >= 0"),
        ({"num_samples": 5, "classes": 3, "memory": 1.0}, r"memory must be in \[0, 1\)"),
    ],
)
def test_early_learning_refuses_what_makes_no_sense(settings: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        md.EarlyLearning(**settings)  # type: ignore[arg-type]  # whole numbers among them


def test_an_index_must_be_one_of_the_samples() -> None:
    logits, labels = batch()
    with pytest.raises(IndexError, match=r"index must lie in \[0, 10\)"):
        md.EarlyLearning(10, 5)(logits, labels, torch.arange(16))


@pytest.mark.parametrize("name", ["gce", "elr"])
def test_rmd_takes_them(name: str) -> None:
    """Their gradients are RMD's: coefficient times gradient, sample by sample."""
    logits, labels = batch(classes=3)
    w = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.float64))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=16)
    optimizer.aux.values.uniform_(0, 1)
    z = optimizer.aux.values.double()
    early, index = md.EarlyLearning(16, 3).double(), torch.arange(16)
    early(logits, labels, index)

    def losses() -> Tensor:
        return (
            md.generalized_cross_entropy(logits @ w, labels) if name == "gce" else early.at(logits @ w, labels, index)
        )

    s = (2 * (losses().detach() + torch.finfo(torch.float64).eps)).sqrt()
    (expected,) = torch.autograd.grad(((s - z) / s * losses()).mean(), w)
    optimizer.loss(losses(), index).backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, expected)


def test_early_learning_is_set_as_its_authors_have_it() -> None:
    """Liu et al. 2020, for CIFAR-10: λ = 3, β = 0.7."""
    loss = md.EarlyLearning(1, 2)
    assert (loss.strength, loss.memory) == (3.0, 0.7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_early_learning_forgets_a_bad_batch(bad: float) -> None:
    """What is remembered is what would be remembered without it."""
    one, other = md.EarlyLearning(4, 3), md.EarlyLearning(4, 3)
    batch = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.arange(4)
    for loss in (one, other):
        loss(*batch)
    one(torch.full((2, 3), bad), torch.tensor([0, 1]), torch.arange(2))
    assert torch.equal(one.averages, other.averages)
    assert torch.equal(one(*batch), other(*batch))


def test_half_precision_is_computed_in_float32() -> None:
    logits, labels = torch.randn(8, 5).bfloat16(), torch.randint(5, (8,))
    exact = md.generalized_cross_entropy(logits.float(), labels)
    assert torch.equal(md.generalized_cross_entropy(logits, labels), exact)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_what_early_learning_remembers_are_probabilities(scale: float) -> None:
    """However sure the network is: none is 0, and they sum to 1 but for the memory of the start."""
    loss = md.EarlyLearning(8, 5, memory=0.6)
    for visit in range(1, 5):
        loss(scale * torch.randn(8, 5), torch.zeros(8, dtype=torch.int64), torch.arange(8))
        torch.testing.assert_close(loss.averages.sum(1), torch.full((8,), 1 - 0.6**visit))
        assert float(loss.averages.min()) > 0
