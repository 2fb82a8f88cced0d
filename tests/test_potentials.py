"""Laws that hold for every potential, and the accuracy of the step in float32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from cases import CASES, Case, every_case
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import mirrordescent as md

inf, nan = float("inf"), float("nan")


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
    ],
)
def test_bad_settings_are_refused(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_entropy_never_leaves_its_domain() -> None:
    w = torch.full((3,), 1e-3)
    w = md.NegativeEntropy().step(w, torch.tensor([-1e3, -90.0, 1.0]))
    assert bool((w > 0).all())


def test_quadratic_with_a_tensor_of_weights() -> None:
    h = torch.tensor([1.0, 4.0])
    assert torch.equal(md.Quadratic(h).step(torch.ones(3, 2), torch.ones(3, 2)), torch.tensor([2.0, 1.25]).expand(3, 2))
    assert md.Quadratic(h).domain_error(torch.ones(3, 2)) is None
    assert "does not broadcast" in str(md.Quadratic(h).domain_error(torch.ones(3)))


def test_what_is_not_a_number_is_not_hidden() -> None:
    delta = torch.tensor([math.nan, math.inf, -math.inf])
    for psi in (md.L2(), md.QNorm(3), md.L2() + md.QNorm(3), md.Convex(torch.cosh)):
        stepped = psi.step(torch.ones(3), delta)
        assert bool(stepped[0].isnan())
        assert stepped[1] > 1e30
        assert stepped[2] < -1e30


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: md.Quadratic(torch.ones(0)), "empty"),
        (lambda: md.potential("q=1.2.3"), "unknown potential"),
        (lambda: md.NegativeEntropy() + md.Convex(lambda w: -(-w).log(), domain=(-1e9, 0)), "no common interval"),
    ],
)
def test_more_bad_settings(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=message):
        make()


def test_a_potential_has_weights_of_its_own() -> None:
    weight = torch.ones(2)
    psi = md.Quadratic(weight)
    weight.zero_()
    assert psi.gradient(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("q", [1.5, 2.0, 3.0])
def test_a_squared_norm_goes_to_0_and_no_further(q: float) -> None:
    psi, w = md.SquaredNorm(q), torch.tensor([1.0])
    assert psi.step(w, -psi.gradient(w)).tolist() == [0]


@pytest.mark.parametrize(
    "make", [md.HyperbolicEntropy, md.L1, md.Quadratic, md.L2().__mul__, lambda n: md.Quadratic(torch.tensor([1.0, n]))]
)
def test_no_number_of_a_potential_is_infinite(make: Callable[[float], md.Potential]) -> None:
    for number in (inf, nan):
        with pytest.raises(ValueError, match="finite"):
            make(number)


@pytest.mark.parametrize(
    "psi", [md.NegativeEntropy(), 0.5 * md.NegativeEntropy(), md.L2() + md.NegativeEntropy()], ids=str
)
@pytest.mark.parametrize("smallest", [0.0, -1.0, nan])
def test_entropy_takes_positive_weights_alone(psi: md.Potential, smallest: float) -> None:
    assert psi.domain_error(torch.tensor([1.0, 1e-30])) is None
    assert "negative entropy needs every weight > 0" in str(psi.domain_error(torch.tensor([1.0, smallest])))


def test_a_tensor_of_weights_larger_than_the_parameter_is_refused() -> None:
    assert "does not broadcast to (2,)" in str(md.Quadratic(torch.ones(3, 2)).domain_error(torch.ones(2)))


def test_a_wide_tensor_of_weights_leaves_the_type_of_the_parameter_alone() -> None:
    assert md.Quadratic(torch.ones(2, dtype=torch.float64)).value(torch.ones(2)).dtype == torch.float32


def test_the_squared_norm_of_what_is_infinite_is_infinite() -> None:
    assert md.SquaredNorm(3).value(torch.tensor([1.0, inf])) == inf


WIDE = [case for case in CASES if case.inverse is not None or not case.potential.separable]


@pytest.mark.parametrize("case", WIDE, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
def test_what_is_found_in_float64_is_rounded_once(case: Case, size: float) -> None:
    w, delta = case.weights(1000, dtype=torch.float32), size * torch.randn(1000)
    wide = case.potential.step(w.double(), delta.double())
    torch.testing.assert_close(case.potential.step(w, delta), wide.float(), rtol=6e-8, atol=0)


@pytest.mark.parametrize("w", [1e-5, 2e-5, -1e-5])
def test_a_dual_too_small_for_float32_still_counts(w: float) -> None:
    """1e-5⁹ is less than float32's smallest number; beside a change of its own size it is not nothing."""
    psi, least = md.QNorm(10), 2.0**-149
    x = torch.full((40,), w)
    delta = torch.arange(1, 41) * torch.tensor([-1.0, 1.0]).repeat(20) * least
    exact = psi.step(x.double(), delta.double())
    torch.testing.assert_close(psi.step(x, delta).double(), exact, rtol=1e-4, atol=0)


ENTROPIES: list[tuple[md.Potential, float]] = [
    *((psi, size) for psi in (md.HyperbolicEntropy(), md.HyperbolicEntropy(0.1)) for size in (1e-6, 1e-4, 1e-2)),
    *((md.NegativeEntropy(), size) for size in (1e-6, 1e-2, 1.0, 10.0)),
]


@pytest.mark.parametrize(("psi", "size"), ENTROPIES, ids=str)
def test_a_float32_step_of_an_entropy_is_that_of_float64_rounded(psi: md.Potential, size: float) -> None:
    """No small change is lost, and what a large one leaves of a weight is right."""
    w, delta = torch.rand(2000) + 0.5, size * (2 * torch.rand(2000) - 1)
    exact = psi.step(w.double(), delta.double())
    error = (psi.step(w, delta).double() - exact).abs() / exact
    assert float(error.max()) < 2 * torch.finfo(torch.float32).eps


@every_case
def test_a_mirror_map_is_called_linear_where_it_is(case: Case) -> None:
    w = case.weights(20)
    ratio = case.potential.gradient(w) / w
    linear = bool(torch.allclose(ratio, ratio[0], rtol=1e-12))
    assert case.potential.linear == (pytest.approx(float(ratio[0])) if linear else None)


@pytest.mark.parametrize("q", [1.001, 1.0005, 1.01])
def test_a_squared_norm_near_the_edge_takes_ordinary_steps(q: float) -> None:
    psi, w, delta = md.SquaredNorm(q), torch.tensor([1.0, 0.5]), torch.tensor([2.0, 0.0])
    x, change = w.double(), delta.double()
    torch.testing.assert_close(psi.step(w, delta).double(), psi.inverse(psi.gradient(x) + change), rtol=1e-6, atol=0)


@pytest.mark.parametrize("q", [1.01, 1.05, 1.2, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("size", [1e-30, 1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("change", [1e-8, 0.1, 1e3])
def test_a_squared_norms_step_is_the_one_through_the_dual(q: float, size: float, change: float) -> None:
    """Also where δ is far larger than w, whose high powers leave every type."""
    psi = md.SquaredNorm(q)
    w = size * torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    delta = change * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
    dual = psi.gradient(w) + delta
    stepped = psi.step(w, delta)
    assert bool(stepped.isfinite().all())
    torch.testing.assert_close(psi.gradient(stepped), dual, rtol=1e-9, atol=1e-9 * float(dual.abs().max()))
    assert bool(psi.step(w.float(), delta.float()).isfinite().all())


@pytest.mark.parametrize(
    ("psi", "w", "delta", "result"),
    [
        (md.NegativeEntropy(), 1e-30, 89.0, 1e-30 * math.exp(89)),
        (md.NegativeEntropy(), 1e30, -100.0, 1e30 * math.exp(-100)),
        (md.HyperbolicEntropy(1e-3), 0.0, 90.0, 1e-3 * math.sinh(90)),
        (md.HyperbolicEntropy(1e-3), 0.0, -90.0, 1e-3 * math.sinh(-90)),
    ],
)
def test_an_exponential_beyond_float32_is_no_step_beyond_it(
    psi: md.Potential, w: float, delta: float, result: float
) -> None:
    stepped = psi.step(torch.tensor([w]), torch.tensor([delta]))
    torch.testing.assert_close(stepped.double(), torch.tensor([result], dtype=torch.float64), rtol=2e-5, atol=0)


@pytest.mark.parametrize(
    "psi",
    [md.NegativeEntropy() + md.L2(), md.Convex(lambda w: w * torch.log(w), domain=(0.0, float("inf")))],
    ids=["sum", "convex"],
)
@pytest.mark.parametrize("delta", [-1e10, -1e19, -1e30])
def test_a_step_that_no_weight_answers_ends_at_the_edge(psi: md.Potential, delta: float) -> None:
    """However far it is beyond: beside it the duals on the way there are all the same to rounding."""
    assert float(psi.step(torch.tensor([5.0]), torch.tensor([delta]))) < 1e-37


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quadratics_of_other_weights_have_other_names(dtype: torch.dtype) -> None:
    weights = torch.tensor([[1.0, 2, 3, 4], [4, 3, 2, 1], [1, 2, 4, 3], [8, 2, 3, 4]], dtype=dtype)
    assert len({md.Quadratic(weight).spec for weight in weights}) == 4


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: md.QNorm(None), "q must be a number, got None"),  # type: ignore[arg-type]
        (lambda: md.L1("a"), "eps must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: md.Quadratic("x"), "weight must be a number, got 'x'"),  # type: ignore[arg-type]
        (lambda: md.Convex(torch.cosh, domain=3), "domain must be an interval (low, high), got 3"),  # type: ignore[arg-type]
        (lambda: md.Convex(torch.cosh, domain=("a", 1)), "an end of domain must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: md.QNorm(3).step(torch.ones(2), 0.5), "real floating-point tensors, got float"),  # type: ignore[arg-type]
        (lambda: md.L2().value([1.0]), "real floating-point tensors, got list"),  # type: ignore[arg-type]
        (lambda: md.StopOnPlateau(patience="a"), "patience must be a number, got 'a'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_number_or_tensor_is_named(make: Callable[[], object], told: str) -> None:
    with pytest.raises(TypeError, match=re.escape(told)):
        make()
