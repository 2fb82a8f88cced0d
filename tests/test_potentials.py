"""Laws that hold for every potential, and the accuracy of the step in float32."""

from __future__ import annotations

import math
import warnings
from functools import cache

import pytest
import torch
from cases import CASES, IDS, Case
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mirrordescent as md

every_case = pytest.mark.parametrize("case", CASES, ids=IDS)


@cache  # a strategy that is made anew for every example costs more than the example
def number(smallest: float, largest: float) -> st.SearchStrategy[float]:
    """0, or a size spread evenly over the decades, with a sign."""
    exponent = st.floats(math.log10(smallest), math.log10(largest))
    return st.one_of(st.just(0.0), st.builds(lambda e, s: s * 10**e, exponent, st.sampled_from([-1, 1])))


BOTH_ZEROS = st.one_of(number(1e-8, 1e2), st.just(-0.0))


@cache
def vector(case: Case, entry: st.SearchStrategy[float], size: int = 4) -> st.SearchStrategy[Tensor]:
    def build(values: list[float]) -> Tensor:
        w = torch.tensor(values, dtype=torch.float64)
        return w.abs() + 1e-3 if case.positive else w

    return st.lists(entry, min_size=size, max_size=size).map(build)


@every_case
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_inverse_undoes_gradient(case: Case, data: st.DataObject) -> None:
    w = data.draw(vector(case, number(1e-3, 1e1)))
    back = case.potential.inverse(case.potential.gradient(w))
    torch.testing.assert_close(back, w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if case.inverse is not None], ids=lambda case: case.name)
def test_roots_are_what_is_found_by_hand(case: Case) -> None:
    assert case.inverse is not None
    dual = torch.linspace(-30, 30, 601, dtype=torch.float64)
    torch.testing.assert_close(case.potential.inverse(dual), case.inverse(dual), rtol=1e-13, atol=1e-15)


@every_case
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_gradient_is_autograd_of_value(case: Case, data: st.DataObject) -> None:
    w = data.draw(vector(case, number(1e-3, 1e1)))
    x = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad(case.potential.value(x), x)
    torch.testing.assert_close(case.potential.gradient(w), expected, rtol=1e-10, atol=1e-12)


@every_case
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_divergence_is_zero_only_at_equality(case: Case, data: st.DataObject) -> None:
    a = data.draw(vector(case, number(1e-3, 1e1)))
    change = data.draw(st.lists(number(1e-6, 1e1), min_size=4, max_size=4))
    w = a + torch.tensor(change, dtype=torch.float64)
    assume(not case.positive or bool((w > 0).all()))
    assert case.potential.divergence(a, a) == 0
    divergence = case.potential.divergence(w, a)
    assert divergence > 0 if bool((w != a).any()) else divergence == 0


@every_case
def test_divergence_is_what_it_is_defined_as(case: Case) -> None:
    psi, w, a = case.potential, case.weights(50, seed=1), case.weights(50, seed=2)
    expected = psi.value(w) - psi.value(a) - psi.gradient(a) @ (w - a)
    torch.testing.assert_close(psi.divergence(w, a), expected, rtol=1e-9, atol=1e-9)
    near = a * (1 + 1e-7)  # where the definition cancels: second order, by the derivative of the gradient
    expected = 0.5 * ((psi.gradient(a * (1 + 1e-4)) - psi.gradient(a * (1 - 1e-4))) / 2e-4 * a).sum() * 1e-14
    torch.testing.assert_close(psi.divergence(near, a), expected, rtol=1e-3, atol=0)


@every_case
@pytest.mark.parametrize("distance", [0.0, 1e-7, 1.0])
def test_the_divergences_derivative_is_a_difference_of_mirror_maps(case: Case, distance: float) -> None:
    psi, a = case.potential, case.weights(50, seed=2)
    if not case.positive:
        a[:3] = 0
    w = (a + distance * (case.weights(50, seed=1) - a)).requires_grad_()
    (slope,) = torch.autograd.grad(psi.divergence(w, a), w)
    torch.testing.assert_close(slope, psi.gradient(w.detach()) - psi.gradient(a), rtol=1e-7, atol=1e-12)


def test_a_function_may_return_the_sum() -> None:
    psi, expected = md.Convex(lambda w: w.cosh().sum() + 3), md.Convex(torch.cosh)
    w, a = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(psi.value(w), expected.value(w) + 3)
    torch.testing.assert_close(psi.gradient(w), expected.gradient(w))
    torch.testing.assert_close(psi.divergence(w, a), expected.divergence(w, a))
    torch.testing.assert_close(psi.step(w, a), expected.step(w, a))
    torch.testing.assert_close((psi + md.L2()).value(w), expected.value(w) + 3 + md.L2().value(w))
    assert psi.value(w[:0]) == 0


@every_case
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_mirror_map_is_monotone(case: Case, data: st.DataObject) -> None:
    w, v = (data.draw(vector(case, number(1e-3, 1e1))) for _ in range(2))
    assume(bool((w != v).any()))
    assert (case.potential.gradient(w) - case.potential.gradient(v)) @ (w - v) > 0


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_step_by_zero_is_the_identity_bit_for_bit(case: Case, dtype: torch.dtype, data: st.DataObject) -> None:
    w = data.draw(vector(case, BOTH_ZEROS)).to(dtype)
    bits = {8: torch.int64, 4: torch.int32, 2: torch.int16}[w.element_size()]
    for zero in (0.0, -0.0):
        stepped = case.potential.step(w, torch.full_like(w, zero))
        assert torch.equal(stepped.view(bits), w.view(bits))


@every_case
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_step_is_inverse_of_gradient_plus_delta(case: Case, data: st.DataObject) -> None:
    w = data.draw(vector(case, number(1e-3, 3)))
    delta = torch.tensor(data.draw(st.lists(number(1e-6, 3), min_size=4, max_size=4)), dtype=torch.float64)
    dual = case.potential.gradient(w)
    after = case.potential.gradient(case.potential.step(w, delta))
    size = dual.abs() + delta.abs() if case.potential.separable else (dual.abs() + delta.abs()).max()
    assert bool(((after - dual - delta).abs() <= 1e-12 * size).all())


@pytest.mark.parametrize("q", [1.1, 1.5, 2, 3, 10])
@given(w=number(1e-8, 1e2), delta=number(1e-30, 1e3))
@settings(max_examples=400, deadline=None)
def test_float32_step_is_accurate_in_the_dual(q: float, w: float, delta: float) -> None:
    psi = md.QNorm(q)
    x, change = torch.tensor([w]), torch.tensor([delta])  # float32
    stepped = psi.step(x, change)
    assert bool(stepped.isfinite().all())
    dual = psi.gradient(x.double())
    error = (psi.gradient(stepped.double()) - dual - change.double()).abs()
    # Below float32's smallest number there is nothing to round to: (1.4e-45)^0.1 is still 3e-5 in the dual.
    floor = psi.gradient(torch.tensor([2.0**-149], dtype=torch.float64))
    assert error <= 1e-5 * (dual.abs() + change.double().abs()) + floor


@pytest.mark.parametrize("q", [1.01, 1.03, 1.07, 1.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_of_a_sharp_q_norm_loses_no_weight(q: float, dtype: torch.dtype) -> None:
    """Where a small change of the dual takes most of a weight, what is left is right, and not 0."""
    psi, w = md.QNorm(q), torch.full((2001,), 0.01, dtype=dtype)
    dual = psi.gradient(w.double())
    delta = (torch.linspace(-0.5, 0.5, 2001, dtype=torch.float64) * dual).to(dtype)
    stepped = psi.step(w, delta)
    exact = dual + delta.double()
    there = exact.pow(1 / (q - 1)) > torch.finfo(dtype).tiny
    assert int(there.sum()) > 1000
    error = (psi.gradient(stepped.double()) - exact).abs() / exact
    assert float(error[there].max()) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("psi", "q"),
    [
        *((md.QNorm(q), q) for q in (1.1, 1.5, 3, 10)),
        (md.L1() + 1e-6 * md.L2(), 1.1),
        (md.Convex(lambda w: w.abs() ** 1.5 / 1.5, name="like q=1.5"), 1.5),
    ],
    ids=str,
)
def test_float32_step_follows_many_small_changes(psi: md.Potential, q: float) -> None:
    """1,000 steps add up to what one float64 step of their sum gives: no change is lost, none has a bias."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2000, generator=generator) * 0.1
    delta = 2e-5 * (q - 1) * start.abs().pow(q - 1) * torch.randn(2000, generator=generator)
    w = start
    for _ in range(1000):
        w = psi.step(w, delta)
    exact = psi.step(start.double(), delta.double() * 1000)
    moved = (exact - start.double()).abs().mean()
    assert (w.double() - exact).abs().mean() < 0.01 * moved
    assert (w.double() - exact).mean().abs() < 0.002 * moved


@pytest.mark.parametrize("size", [1e-30, 1e-5, 1e5, 1e30])
@pytest.mark.parametrize("q", [1.1, 3, 10])
def test_the_squared_norm_stays_in_float32(q: float, size: float) -> None:
    psi, w = md.SquaredNorm(q), size * torch.randn(50, generator=torch.Generator().manual_seed(0))
    for way in ("gradient", "inverse"):
        exact = getattr(psi, way)(w.double())
        assert torch.allclose(getattr(psi, way)(w).double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
        assert float(exact.abs().max()) > 0
    assert psi.gradient(torch.zeros(0)).shape == (0,)


def test_a_weight_of_float16_is_not_raised_by_a_step_down() -> None:
    w = torch.tensor([1e-5, 3e-6], dtype=torch.float16)
    stepped = md.NegativeEntropy().step(w, torch.tensor([-0.5, -40.0], dtype=torch.float16))
    assert bool(((stepped > 0) & (stepped < w)).all())


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


def test_half_precision_is_computed_in_float32() -> None:
    w, delta = torch.randn(1000) * 0.1, torch.randn(1000) * 1e-3
    for dtype in (torch.float16, torch.bfloat16):
        x = w.to(dtype)
        expected = md.LInf().step(x.float(), delta).to(dtype)
        assert torch.equal(md.LInf().step(x, delta), expected)
        assert md.LInf().gradient(x).dtype == dtype


@pytest.mark.parametrize("case", [case for case in CASES if case.exact_specs], ids=lambda case: case.name)
def test_spec_gives_the_potential_back(case: Case) -> None:
    again = md.potential(case.potential.spec)
    assert again == case.potential
    assert again.spec == case.potential.spec
    w, delta = case.weights(20), 0.1 * case.weights(20, seed=3)
    assert torch.equal(again.step(w, delta), case.potential.step(w, delta))


def test_names_of_the_interface() -> None:
    for name in ("l2", "l1", "linf", "q=3", "entropy", "hypentropy"):
        assert isinstance(md.potential(name), md.Potential)
    assert md.potential("l2").linear == 1
    assert (md.L2() + md.Quadratic(0.5)).linear == 1.5
    psi = md.QNorm(3)
    assert md.potential(psi) is psi
    assert md.L1().spec == "l1"


@pytest.mark.parametrize("spec", ["l3", "", "q", "q=", "2*", "l2+", "l2 l2", "entropy=2", "-1*l2", "(l2", "convex[f]"])
def test_unknown_names_list_the_known_ones(spec: str) -> None:
    with pytest.raises(ValueError, match=r"unknown potential .*'l2', 'l1', 'linf', 'q=3'"):
        md.potential(spec)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'entropy'"):
        md.potential("entrop")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: md.QNorm(1), "q must be a finite number > 1, got 1"),
        (lambda: md.QNorm(float("nan")), "q must be a finite number > 1, got nan"),
        (lambda: md.QNorm(float("inf")), "q must be"),
        (lambda: md.L1(0), "eps must be a finite number > 0, got 0"),
        (lambda: md.HyperbolicEntropy(-1), "beta must be a finite number > 0, got -1"),
        (lambda: md.Quadratic(0.0), "weight must be a finite number > 0"),
        (lambda: md.Quadratic(torch.tensor([1.0, 0.0])), "weight must be finite and > 0 everywhere"),
        (lambda: 0 * md.L2(), "factor must be a finite number > 0"),
        (lambda: md.Convex(lambda w: -w.square()), "not strictly convex"),
        (lambda: md.Convex(lambda w: w**2 / 2 + 1e-3 * torch.cos(60 * w)), "not strictly convex"),
        (lambda: md.Convex(lambda w: (w.abs() - 0.01).relu() ** 2), "not strictly convex"),
        (lambda: md.Convex(lambda w: w**2 / 2 - 0.01 * w**4), "from -0.96 at -1 to 30 at -10"),
        (lambda: md.Convex(lambda w: torch.where(w < 3, w**2 / 2, 13.5 - w**2)), "from 1 at 1 to -20 at 10"),
        (lambda: md.Convex(lambda w: w.abs() + w**2 / 2), "corner at 0, where its slope jumps from -1 to 1"),
        (lambda: md.Convex(lambda w: torch.where(w < 0, -w, 2 * w) + w**2), "its slope jumps from -1 to 2"),
        (lambda: md.Convex(lambda w: torch.ones(9) * w**2), r"any shape: .* there is md\.Quadratic\(weight\)"),
        (lambda: md.Convex(for_vectors), "any shape: assert 2 == 1"),
        (lambda: md.Convex(lambda w: w), "not strictly convex"),
        (lambda: md.Convex(lambda w: w.sum().square()), "must act elementwise"),
        (lambda: md.Convex(lambda w: w.square().mean()), "must act elementwise"),
        (lambda: md.Convex(lambda w: torch.ones(2) * w.square()), "must take a tensor of any shape"),
        (lambda: md.Convex(torch.exp, domain=(1, 1)), "low < high"),
    ],
)
def test_bad_settings_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


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


def test_entropy_never_leaves_its_domain() -> None:
    w = torch.full((3,), 1e-3)
    w = md.NegativeEntropy().step(w, torch.tensor([-1e3, -90.0, 1.0]))
    assert bool((w > 0).all())


def test_quadratic_with_a_tensor_of_weights() -> None:
    h = torch.tensor([1.0, 4.0])
    assert torch.equal(md.Quadratic(h).step(torch.ones(3, 2), torch.ones(3, 2)), torch.tensor([2.0, 1.25]).expand(3, 2))
    assert md.Quadratic(h).domain_error(torch.ones(3, 2)) is None
    assert "does not broadcast" in str(md.Quadratic(h).domain_error(torch.ones(3)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_no_type_rounds_a_weight_onto_the_edge(dtype: torch.dtype) -> None:
    w = torch.full((2,), 1e-3, dtype=dtype)
    low = md.NegativeEntropy().step(w, torch.tensor([-20.0, -1e4]))
    assert bool((low > 0).all())
    assert bool((md.NegativeEntropy().step(low, torch.full((2,), 20.0)) > low).all())
    bounded = md.Convex(lambda x: -(1 - x).log() - (1 + x).log(), domain=(-1, 1))
    edge = bounded.step(torch.zeros(2, dtype=dtype), torch.tensor([1e5, -1e5]))
    assert bool((edge.abs() < 1).all())


def test_what_is_not_a_number_is_not_hidden() -> None:
    delta = torch.tensor([math.nan, math.inf, -math.inf])
    for psi in (md.L2(), md.QNorm(3), md.L2() + md.QNorm(3), md.Convex(torch.cosh)):
        stepped = psi.step(torch.ones(3), delta)
        assert bool(stepped[0].isnan())
        assert stepped[1] > 1e30
        assert stepped[2] < -1e30


def test_sums_and_multiples_of_each_other_keep_a_name() -> None:
    assert sum([md.L2(), md.QNorm(3)]) == md.L2() + md.QNorm(3)
    psi = 2 * (md.L2() + 3 * (md.QNorm(3) + md.QNorm(4)))
    assert md.potential(psi.spec) == psi
    w = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(psi.gradient(w), 2 * w + 6 * w * w.abs() + 6 * w**3)
    assert md.potential("3*(l2 + q=3)") == 3 * (md.L2() + md.QNorm(3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: md.Convex(lambda w: w * w.log()), "domain="),
        (lambda: md.Convex(lambda w: torch.ones_like(w)), "differentiable"),
        (lambda: md.Convex(torch.exp, domain=(0,)), "interval"),  # type: ignore[arg-type]
        (lambda: md.Quadratic(torch.ones(0)), "empty"),
        (lambda: md.Convex(lambda w: (w - w.mean()) ** 2 + w**2), "depends on the other weights"),
        (lambda: md.Convex(lambda w: w.float() ** 2), "keep the type"),
        (lambda: md.potential("q=1.2.3"), "unknown potential"),
        (lambda: md.NegativeEntropy() + md.Convex(lambda w: -(-w).log(), domain=(-1e9, 0)), "no common interval"),
    ],
)
def test_more_bad_settings(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_a_multiple_is_what_its_base_is() -> None:
    for base in (md.NegativeEntropy(), md.SquaredNorm(3), md.Convex(torch.cosh), md.Quadratic(torch.ones(2))):
        multiple = 0.5 * base
        for name in ("domain", "live", "separable", "uniform"):
            assert getattr(multiple, name) == getattr(base, name)
    small = torch.tensor([0.01], dtype=torch.float16)
    assert (0.5 * md.NegativeEntropy()).step(small, -100 * torch.ones_like(small)) > 0


def test_what_a_name_does_not_hold_is_equal_to_itself_alone() -> None:
    psi, weighted = md.Convex(torch.cosh), md.Quadratic(torch.ones(2))
    assert psi == psi
    assert psi != md.Convex(torch.cosh)  # it may be another function of the same name
    assert weighted != md.Quadratic(2 * torch.ones(2))
    assert md.QNorm(3) == md.potential("q=3")


def test_a_potential_has_weights_of_its_own() -> None:
    weight = torch.ones(2)
    psi = md.Quadratic(weight)
    weight.zero_()
    assert psi.gradient(torch.ones(2)).tolist() == [1, 1]


def for_vectors(w: Tensor) -> Tensor:
    assert w.dim() == 1
    return w**2


def test_a_function_for_float64_alone_serves_weights_of_any_type() -> None:
    def function(w: Tensor) -> Tensor:
        assert w.dtype == torch.float64
        return w.cosh()

    psi, w = md.Convex(function, domain=None), torch.tensor([0.5, -1.0])
    assert psi.value(w).dtype == psi.gradient(w).dtype == torch.float32
    torch.testing.assert_close(psi.inverse(psi.gradient(w)), w)
    w.requires_grad_()
    (curvature,) = torch.autograd.grad(psi.gradient(w).sum(), w)
    torch.testing.assert_close(curvature, w.detach().cosh())


def test_what_is_out_of_reach_ends_at_the_largest_number() -> None:
    with pytest.warns(UserWarning, match="does not go beyond"):
        psi = md.Convex(lambda w: -w.log(), domain=(0.0, math.inf))
    found = psi.step(torch.tensor([0.5, math.nan]), torch.tensor([9.0, 0.0]))
    assert found[0].item() == torch.finfo(torch.float32).max
    assert found[1].isnan()


def test_a_slope_beside_a_steep_one_is_no_corner() -> None:
    md.Convex(lambda w: w.abs() ** 1.01 + w**2)
    md.Convex(lambda w: (w**2 + 1e-12).sqrt() + w**2)
    md.Convex(lambda w: w.abs() + w**2, domain=(0.0, math.inf))


FLAT = {
    "root": lambda w: (1 + w * w).sqrt(),
    "log cosh": lambda w: torch.logaddexp(w, -w),
    "log cosh that overflows": lambda w: w.cosh().log(),
    "half flat": lambda w: torch.where(w > 0, (1 + w * w).sqrt(), 1 + w * w / 2),
}


def only_for_small(w: Tensor) -> Tensor:
    if bool((w.abs() > 100).any()):
        raise ArithmeticError("a weight is too large")
    return w.square() / 2


@pytest.mark.parametrize("name", FLAT)
def test_a_slope_that_does_not_grow_for_ever_is_told(name: str) -> None:
    with pytest.warns(UserWarning, match="does not go beyond -?1: a step that asks for more"):
        psi = md.Convex(FLAT[name])
    with pytest.warns(UserWarning, match="does not go beyond -1e-06"):
        md.Convex(lambda w: -w.log(), domain=(0.0, math.inf))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        md.Convex(FLAT[name], domain=(-3.0, 3.0))
        assert md.potential(psi + 0.01 * md.L2()).inverse(torch.tensor([4.0])).item() > 100
        for grows in (lambda w: w.abs() ** 1.1, lambda w: w.cosh(), lambda w: 100 * w + (1 + w * w) ** 0.505):
            md.Convex(grows)
        md.Convex(only_for_small)
        md.Convex(lambda w: w * w.log(), domain=(0.0, math.inf))


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0])
def test_a_squared_norm_goes_to_0_and_no_further(q: float) -> None:
    psi, w = md.SquaredNorm(q), torch.tensor([1.0])
    assert psi.step(w, -psi.gradient(w)).tolist() == [0]


def test_a_sum_is_as_uniform_as_all_of_its_parts() -> None:
    assert not (md.Quadratic(torch.tensor([1.0, 2.0])) + md.QNorm(3)).uniform
