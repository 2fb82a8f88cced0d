"""What every potential does once, and the potentials that are made of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import Case, every_case
from torch import Tensor, nn

import mirrordescent as md


def test_a_coupled_potential_of_ones_own_sees_whole_tensors() -> None:
    class Coupled(md.Potential):
        """½‖w‖_3², which says no more of itself than that it is not separable."""

        separable = False
        spec = "coupled"
        inner = md.SquaredNorm(3)

        def _terms(self, w: Tensor) -> Tensor:
            return self.inner._terms(w)

        def _gradient(self, w: Tensor) -> Tensor:
            return self.inner._gradient(w)

        def _inverse(self, dual: Tensor) -> Tensor:
            return self.inner._inverse(dual)

        def _step(self, w: Tensor, delta: Tensor) -> Tensor:
            return self.inner._step(w, delta)

    for foreach in (False, True):
        stepped = []
        for psi in (Coupled(), md.SquaredNorm(3)):
            torch.manual_seed(0)
            weights = [torch.randn(n, requires_grad=True) for n in (200_000, 1000)]
            for w in weights:
                w.grad = torch.randn_like(w)
            md.SMD(weights, lr=0.1, potential=psi, foreach=foreach).step()
            stepped.append(weights)
        assert all(torch.equal(a, b) for a, b in zip(*stepped, strict=True))


class Burg(md.Potential):
    """−Σ log w, as a user might write it."""

    spec, domain = "burg", (0.0, float("inf"))

    def _terms(self, w: Tensor) -> Tensor:
        return -w.log()

    def _gradient(self, w: Tensor) -> Tensor:
        return -1 / w

    def _inverse(self, dual: Tensor) -> Tensor:
        return -1 / dual

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return w / (1 - w * delta)


@pytest.mark.parametrize("psi", [Burg(), 2 * Burg(), Burg() + md.L2()], ids=["alone", "multiple", "sum"])
@pytest.mark.parametrize("outside", [-0.3, 0.0, float("inf"), float("nan")])
def test_weights_outside_a_users_domain_are_refused(psi: md.Potential, outside: float) -> None:
    with pytest.raises(ValueError, match=r"burg is defined on \(0.0, inf\), but the weights run from"):
        md.SMD([torch.nn.Parameter(torch.tensor([0.5, outside]))], 0.1, psi)
    for inside in (torch.tensor([0.5, 1e-30]), torch.empty(0), torch.tensor([1 + 2j])):
        assert psi.domain_error(inside) is None
    assert psi.domain_error(torch.tensor([1 - 2j])) is not None


def test_half_precision_is_computed_in_float32() -> None:
    w, delta = torch.randn(1000) * 0.1, torch.randn(1000) * 1e-3
    for dtype in (torch.float16, torch.bfloat16):
        x = w.to(dtype)
        expected = md.LInf().step(x.float(), delta).to(dtype)
        assert torch.equal(md.LInf().step(x, delta), expected)
        assert md.LInf().gradient(x).dtype == dtype


def test_wrong_types_are_refused() -> None:
    with pytest.raises(TypeError, match="potential must be a string"):
        md.potential(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="separable"):
        md.L2() + md.SquaredNorm(3)
    with pytest.raises(TypeError, match="real floating-point"):
        md.L2().value(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="callable"):
        md.Convex(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        md.L2() * "2"
    with pytest.raises(TypeError):
        md.L2() + 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_no_type_rounds_a_weight_onto_the_edge(dtype: torch.dtype) -> None:
    w = torch.full((2,), 1e-3, dtype=dtype)
    low = md.NegativeEntropy().step(w, torch.tensor([-20.0, -1e4]))
    assert bool((low > 0).all())
    assert bool((md.NegativeEntropy().step(low, torch.full((2,), 20.0)) > low).all())
    bounded = md.Convex(lambda x: -(1 - x).log() - (1 + x).log(), domain=(-1, 1))
    edge = bounded.step(torch.zeros(2, dtype=dtype), torch.tensor([1e5, -1e5]))
    assert bool((edge.abs() < 1).all())


def test_a_multiple_is_what_its_base_is() -> None:
    for base in (md.NegativeEntropy(), md.SquaredNorm(3), md.Convex(torch.cosh), md.Quadratic(torch.ones(2))):
        multiple = 0.5 * base
        for name in ("domain", "live", "separable", "uniform"):
            assert getattr(multiple, name) == getattr(base, name)
    small = torch.tensor([0.01], dtype=torch.float16)
    assert (0.5 * md.NegativeEntropy()).step(small, -100 * torch.ones_like(small)) > 0


def test_a_sum_is_as_uniform_as_all_of_its_parts() -> None:
    assert not (md.Quadratic(torch.tensor([1.0, 2.0])) + md.QNorm(3)).uniform


@every_case
def test_the_divergences_derivative_by_its_anchor_is_a_hessian_times_the_distance(case: Case) -> None:
    psi, w, a = case.potential, case.weights(50, seed=1), case.weights(50, seed=2).requires_grad_()
    (slope,) = torch.autograd.grad(psi.divergence(w, a), a)
    far = w - a.detach()
    along, h = far * a.detach().abs() / (1 + far.abs()), 1e-5
    change = (psi.gradient(a.detach() + h * along) - psi.gradient(a.detach() - h * along)) / (2 * h)
    torch.testing.assert_close(slope @ along, -change @ far, rtol=1e-6, atol=1e-9)


@every_case
def test_without_a_graph_nothing_has_one(case: Case) -> None:
    w = case.weights(5).requires_grad_()
    with torch.no_grad():
        found = [case.potential.gradient(w), case.potential.step(w, 0.1 * torch.ones_like(w))]
    assert not any(t.requires_grad for t in found)


@every_case
def test_a_step_has_its_derivative_everywhere_or_none(case: Case) -> None:
    """Through a root that was looked for there is none, and then not where δ is 0 either."""
    w = case.weights(4).requires_grad_()
    stepped = case.potential.step(w, torch.tensor([0.0, 0.01, 0.0, -0.01], dtype=torch.float64))
    assert stepped.requires_grad == (case.inverse is None)
    if stepped.requires_grad and case.potential.separable:
        (slope,) = torch.autograd.grad(stepped.sum(), w)
        assert slope[[0, 2]].tolist() == [1, 1]
        assert bool((slope > 0).all())


@every_case
def test_values_have_the_type_of_the_weights(case: Case) -> None:
    for dtype, found in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
    ):
        w = case.weights(5, dtype=dtype)
        assert case.potential.divergence(w, 2 * w).dtype == case.potential.value(w).dtype == found
        assert case.potential.step(w, w).dtype == case.potential.inverse(w).dtype == dtype


def test_a_number_that_is_not_0_is_no_potential() -> None:
    for number in (1, 2, 0.5):
        with pytest.raises(TypeError):
            number + md.L2()
    with pytest.raises(TypeError):
        True * md.L2()


@pytest.mark.parametrize("name", ["_terms", "_gradient", "_inverse", "_step"])
def test_a_subclass_that_changes_anything_takes_no_shortcut(name: str) -> None:
    def changed(self: md.Potential, *tensors: Tensor) -> Tensor:
        found: Tensor = getattr(super(kind, self), name)(*tensors)
        return found

    kind = type("Changed", (md.L2,), {name: changed, "__module__": "elsewhere"})
    assert md.L2().linear == 1
    assert kind().linear is None
    assert (2 * kind()).linear is None
    says_so = type("Said", (md.L2,), {name: changed, "__module__": "elsewhere", "linear": 2.0})
    assert says_so().linear == 2.0


@pytest.mark.parametrize("t", [10.0**-k for k in range(1, 13)])
def test_the_divergence_is_accurate_at_every_distance(t: float) -> None:
    """For q = 3 and w = a (1 + t) it is Σ a³ t² (1 + t/3), without a difference."""
    a = torch.linspace(0.5, 2, 16, dtype=torch.float64)
    w = a * (1 + t)
    t_rounded = (w - a) / a
    exact = (a**3 * t_rounded**2 * (1 + t_rounded / 3)).sum()
    torch.testing.assert_close(md.QNorm(3).divergence(w, a), exact, rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    "half", [0.5, torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), nn.Parameter(torch.tensor(0.5))]
)
def test_a_factor_is_any_single_number(half: Any) -> None:
    for psi in (md.QNorm(3), md.L2() + 3 * md.QNorm(3)):
        assert psi * half == half * psi == psi / (1 / half) == psi / 2
        assert md.potential((psi * half).spec) == psi / 2
    assert (md.L2() / 4).linear == 0.25
    assert md.L2() / torch.tensor(2) == 0.5 * md.L2()


def test_what_is_no_single_number_is_no_factor() -> None:
    with pytest.raises(TypeError, match=r"must be one number > 0, got torch\.float32 of shape \(2,\); md\.Quadratic"):
        md.L2() * torch.ones(2)
    with pytest.raises(TypeError, match=r"must be one number > 0, got torch\.bool"):
        md.L2() / torch.tensor(True)
    with pytest.raises(ValueError, match="a potential's divisor must be a finite number > 0, got 0"):
        md.L2() / 0
    with pytest.raises(ValueError, match="a potential's factor must be a finite number > 0, got -1"):
        md.L2() * torch.tensor(-1)
    others: list[Any] = [True, "2", md.L2(), None]
    for other in others:
        with pytest.raises(TypeError):
            md.L2() * other
        with pytest.raises(TypeError):
            md.L2() / other
