"""The root finder converges on functions that defeat Newton's method."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mirrordescent import roots
from mirrordescent.roots import origin, solve_increasing


def kinked(x: Tensor) -> Tensor:
    return torch.where(x > 0, 1e6 * x, 1e-6 * x)


def cliff(x: Tensor) -> Tensor:
    return torch.atan(1e6 * (x - 0.3)) + 1e-3 * x


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x**3,
    lambda x: x.abs().pow(0.01).copysign(x),
    lambda x: x.abs().pow(21).copysign(x),
    torch.sinh,
    torch.asinh,
    kinked,
    cliff,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("k", range(len(FUNCTIONS)))
def test_result_brackets_the_target(k: int, dtype: torch.dtype) -> None:
    """The target lies between the values at the result's two neighbours, give or take the rounding of the function."""
    function = FUNCTIONS[k]
    generator = torch.Generator().manual_seed(k)
    start = torch.randn(300, generator=generator, dtype=dtype)
    delta = torch.randn(300, generator=generator, dtype=dtype) * 10 ** (torch.rand(300, generator=generator) * 6 - 5)
    delta = delta.to(dtype)
    x = solve_increasing(function, start, delta)
    target = function(start) + delta
    slack = 8 * torch.finfo(dtype).eps * (function(start).abs() + delta.abs())
    inf = torch.full_like(x, float("inf"))
    largest = torch.finfo(dtype).max
    assert bool(((function(torch.nextafter(x, -inf)) <= target + slack) | (x < -0.99 * largest)).all())
    assert bool(((function(torch.nextafter(x, inf)) >= target - slack) | (x > 0.99 * largest)).all())
    assert (x.abs() > 0.99 * largest).sum() < 0.1 * len(x)


def test_unreachable_target_ends_inside_the_domain() -> None:
    start, delta = torch.tensor([0.5, 0.5]), torch.tensor([100.0, -100.0])
    x = solve_increasing(torch.tanh, start, delta, (-1.0, 2.0))
    assert x[0] < 2
    assert x[0] > 1.999
    assert x[1] > -1
    assert x[1] < -0.999


def test_overflow_to_nan_counts_as_beyond() -> None:
    def fragile(x: Tensor) -> Tensor:
        return torch.where(x.abs() > 50, torch.nan, x)

    x = solve_increasing(fragile, torch.zeros(2), torch.tensor([49.0, -49.0]))
    torch.testing.assert_close(x, torch.tensor([49.0, -49.0]))


@pytest.mark.parametrize("k", range(FUNCTIONS.index(cliff)))
def test_a_small_step_takes_few_evaluations(k: int) -> None:
    """What training asks for at every step (beside a cliff no step is small)."""
    evaluations = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += 1
        return FUNCTIONS[k](x)

    generator = torch.Generator().manual_seed(k)
    start = torch.randn(300, generator=generator, dtype=torch.float64)
    delta = 1e-3 * FUNCTIONS[k](start) * torch.randn(300, generator=generator, dtype=torch.float64)
    solve_increasing(counted, start, delta)
    assert evaluations <= 14


def test_steps_of_a_rounding_or_two_are_taken() -> None:
    """Many of them in a row go somewhere."""
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(1000, generator=generator) + 0.5
    dual = start**3 + start
    moved = solve_increasing(lambda x: x**3 + x, start, 2 * torch.finfo(torch.float32).eps * dual)
    assert float((moved > start).float().mean()) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("k", range(len(FUNCTIONS)))
def test_where_it_stops_looking_changes_no_bit(k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU looks now and then whether all are there, and a captured graph never: the result is that of a CPU."""
    generator = torch.Generator().manual_seed(k)
    start = torch.randn(300, generator=generator, dtype=dtype)
    delta = torch.randn(300, generator=generator, dtype=dtype) * 10 ** (torch.rand(300, generator=generator) * 6 - 5)
    plain = solve_increasing(FUNCTIONS[k], start, delta.to(dtype))
    for every in (8, 0):
        monkeypatch.setattr(roots, "_looks_every", lambda _, every=every: every)
        assert torch.equal(solve_increasing(FUNCTIONS[k], start, delta.to(dtype)), plain)


ENDS = [(1.0, 3.0), (-3.0, -1.0), (-math.inf, -2.0), (2.0, math.inf), (0.0, 1.0), (-1.0, 0.0), (-math.inf, math.inf)]


@pytest.mark.parametrize(("low", "high"), ENDS)
def test_the_search_begins_inside(low: float, high: float) -> None:
    assert low < origin((low, high)) < high


inf = float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("domain", [(0.0, inf), (-inf, 1.0), (0.0, 1.0), (-inf, inf)], ids=str)
def test_an_infinite_step_ends_at_the_last_float_inside(domain: tuple[float, float], dtype: torch.dtype) -> None:
    start, delta = torch.full((2,), 0.5, dtype=dtype), torch.tensor([-inf, inf], dtype=dtype)
    low, high = solve_increasing(torch.tanh, start, delta, domain).tolist()
    largest = torch.finfo(dtype).max
    assert domain[0] < low < max(domain[0] + 1e-6, -0.999 * largest)
    assert min(domain[1] - 1e-6, 0.999 * largest) < high < domain[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_not_a_number_stays_none(dtype: torch.dtype) -> None:
    nan = float("nan")
    start, delta = torch.tensor([nan, 1.0, nan, nan], dtype=dtype), torch.tensor([1.0, nan, 0.0, inf], dtype=dtype)
    assert bool(solve_increasing(torch.sinh, start, delta).isnan().all())
