"""A function of a user's own: what is refused, what is told, and where a step ends that it cannot take."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mirrordescent as md

inf, nan = float("inf"), float("nan")


def test_a_function_may_return_the_sum() -> None:
    psi, expected = md.Convex(lambda w: w.cosh().sum() + 3), md.Convex(torch.cosh)
    w, a = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(psi.value(w), expected.value(w) + 3)
    torch.testing.assert_close(psi.gradient(w), expected.gradient(w))
    torch.testing.assert_close(psi.divergence(w, a), expected.divergence(w, a))
    torch.testing.assert_close(psi.step(w, a), expected.step(w, a))
    torch.testing.assert_close((psi + md.L2()).value(w), expected.value(w) + 3 + md.L2().value(w))
    assert psi.value(w[:0]) == 0


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


@pytest.mark.parametrize("w", [0.0, 1.0, -0.5, 1.5, nan])
def test_an_interval_is_open(w: float) -> None:
    psi = md.Convex(lambda x: x.square(), domain=(0, 1))
    assert psi.domain_error(torch.tensor([0.5, 1e-30])) is None
    assert "is defined on (0.0, 1.0)" in str(psi.domain_error(torch.tensor([0.5, w])))
    with pytest.raises(ValueError, match="no common interval"):
        psi + md.Convex(lambda x: x.square(), domain=(1, 2))


def test_a_function_whose_values_alone_depend_on_the_others_is_refused() -> None:
    with pytest.raises(ValueError, match="depends on the other weights"):
        md.Convex(lambda w: w.cosh() + w.detach().mean())


def test_a_function_that_overflows_beside_0_is_refused() -> None:
    with pytest.raises(ValueError, match=r"function has gradient -inf at -2; .*domain="):
        md.Convex(lambda w: (400 * w).cosh())


def test_a_function_that_is_not_convex_is_told_where() -> None:
    with pytest.raises(ValueError, match=r"its gradient goes from -0\.1 at -2 to -0\.1 at -1"):
        md.Convex(lambda w: torch.where(w.abs() < 0.1, w.square() / 2, 0.1 * w.abs()))


def test_a_callable_object_is_called_by_its_class() -> None:
    class Bowl:
        def __call__(self, w: Tensor) -> Tensor:
            return w.square()

    assert md.Convex(Bowl()).spec == "convex[Bowl]"


def test_a_slope_that_does_not_grow_is_told_once_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        md.Convex(lambda w: (1 + w * w).sqrt())
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("delta", [-inf, -1e300, 1e300, inf])
@pytest.mark.parametrize("domain", [(0.0, inf), (-inf, 1.0), (0.0, 1.0), (-inf, inf)], ids=str)
def test_no_step_leaves_the_domain(domain: tuple[float, float], delta: float) -> None:
    psi = md.Convex(lambda w: w.square() / 2, domain=domain)
    start = torch.tensor([0.5], dtype=torch.float64)
    for t in (start, start.float()):
        stepped = psi.step(t, torch.tensor([delta], dtype=torch.float64))
        assert domain[0] < float(stepped) < domain[1] or (math.isinf(float(stepped)) and inf in map(abs, domain))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("edge", [1.0, 0.75, 3.0, 0.1, -2.0])
def test_a_step_up_lowers_no_weight_and_none_reaches_the_edge(edge: float, dtype: torch.dtype) -> None:
    psi = md.Convex(lambda w: w.square() / 2, domain=(edge - 5, edge))
    below = torch.tensor([edge], dtype=dtype)
    while float(below) >= edge:
        below = torch.nextafter(below, torch.full_like(below, -inf))
    assert psi.step(below, torch.ones_like(below)).item() == below.item()
    mirrored = md.Convex(lambda w: w.square() / 2, domain=(-edge, 5 - edge))
    assert mirrored.step(-below, -torch.ones_like(below)).item() == -below.item()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: md.Convex(lambda w: -w.square()), "not strictly convex"),
        (lambda: md.Convex(lambda w: w**2 / 2 + 1e-3 * torch.cos(60 * w)), "not strictly convex"),
        (lambda: md.Convex(lambda w: (w.abs() - 0.01).relu() ** 2), "not strictly convex"),
        (
            lambda: md.Convex(lambda w: w**2 / 2 - 0.01 * w**4),
            "to 30 at -10; if it is for an interval",
        ),
        (lambda: md.Convex(lambda w: (w - 6) ** 2 - (w - 6) ** 4 / 1e6, domain=(5, inf)), "at 106 to -2000 at 1006"),
        (lambda: md.Convex(lambda w: w.abs() + 500 * w**2), "its slope jumps from -1 to 1"),
        (lambda: md.Convex(lambda w: torch.where(w < 3, w**2 / 2, 13.5 - w**2)), "from 1 at 1 to -20 at 10"),
        (lambda: md.Convex(lambda w: w.abs() + w**2 / 2), "corner at 0, where its slope jumps from -1 to 1"),
        (lambda: md.Convex(lambda w: torch.where(w < 0, -w, 2 * w) + w**2), "its slope jumps from -1 to 2"),
        (lambda: md.Convex(lambda w: torch.ones(9) * w**2), r"any shape: .* use md\.Quadratic\(weight\)"),
        (lambda: md.Convex(for_vectors), "any shape: assert 2 == 1"),
        (lambda: md.Convex(lambda w: w), "not strictly convex"),
        (lambda: md.Convex(lambda w: w.sum().square()), "must act elementwise"),
        (lambda: md.Convex(lambda w: w.square().mean()), "must act elementwise"),
        (lambda: md.Convex(lambda w: torch.ones(2) * w.square()), "must take a tensor of any shape"),
        (lambda: md.Convex(torch.exp, domain=(1, 1)), "low < high"),
        (lambda: md.Convex(lambda w: w * w.log()), "domain="),
        (lambda: md.Convex(lambda w: torch.ones_like(w)), "differentiable"),
        (lambda: md.Convex(torch.exp, domain=(0,)), "interval"),  # type: ignore[arg-type]
        (lambda: md.Convex(lambda w: (w - w.mean()) ** 2 + w**2), "depends on the other weights"),
        (lambda: md.Convex(lambda w: w.float() ** 2), "keep the type"),
    ],
)
def test_what_is_no_convex_function_of_one_weight_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "function",
    [
        lambda w: w**82,
        lambda w: w.abs() ** 100 / 100,
        lambda w: w**6 + w,
        lambda w: w.abs() ** 10 / 10 + 0.01 * w,
        lambda w: w.abs() ** 1.01,
        torch.cosh,
    ],
)
def test_a_slope_that_rounding_makes_flat_is_no_flat_slope(function: Callable[[Tensor], Tensor]) -> None:
    assert float(md.Convex(function).gradient(torch.tensor([1.0]))) > 0


@pytest.mark.parametrize("psi", [md.Convex(lambda w: w**2 / 2 + w**4), md.L2() + md.Convex(lambda w: w**2 + w**4)])
def test_inference_mode_changes_nothing(psi: md.Potential) -> None:
    w, other = torch.randn(2, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def all_of_it(w: Tensor, other: Tensor) -> list[Tensor]:
        return [psi.divergence(w, other), psi.gradient(w), psi.inverse(other), psi.step(w, other)]

    expected = all_of_it(w, other)
    with torch.inference_mode():
        inside = all_of_it(w.clone(), other.clone())  # tensors of inference mode
        outside = all_of_it(w, other)
        md.Convex(lambda w: w**2 / 2 + w**4)  # is looked at when it is made
    assert all(map(torch.equal, expected, inside))
    assert all(map(torch.equal, expected, outside))
