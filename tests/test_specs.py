"""A potential's name means that potential."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import CASES, Case
from torch import Tensor

import mirrordescent as md

inf, nan = float("inf"), float("nan")


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
    near = {"entrop": "entropy", "l2 + entrop": "entropy", "l-inf": "linf", "L_1": "l1", "hyp entropy": "hypentropy"}
    for spec, meant in near.items():
        with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
            md.potential(spec)


def test_sums_and_multiples_of_each_other_keep_a_name() -> None:
    assert sum([md.L2(), md.QNorm(3)]) == md.L2() + md.QNorm(3)
    psi = 2 * (md.L2() + 3 * (md.QNorm(3) + md.QNorm(4)))
    assert md.potential(psi.spec) == psi
    w = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(psi.gradient(w), 2 * w + 6 * w * w.abs() + 6 * w**3)
    assert md.potential("3*(l2 + q=3)") == 3 * (md.L2() + md.QNorm(3))


def test_what_a_name_does_not_hold_is_equal_to_itself_alone() -> None:
    psi, weighted = md.Convex(torch.cosh), md.Quadratic(torch.ones(2))
    assert psi == psi
    assert psi != md.Convex(torch.cosh)  # it may be another function of the same name
    assert weighted != md.Quadratic(2 * torch.ones(2))
    assert md.QNorm(3) == md.potential("q=3")


@pytest.mark.parametrize("number", [0.1, 0.3, 1.0, 2.0, 8.0, 10.0])
@pytest.mark.parametrize(
    "make", [lambda n: md.L1(n / 10), lambda n: md.LInf(n + 2), md.HyperbolicEntropy, md.Quadratic]
)
def test_a_spec_says_which_number_it_is_of(make: Callable[[float], md.Potential], number: float) -> None:
    w = torch.linspace(-2, 2, 9)
    assert torch.equal(md.potential(make(number).spec).gradient(w), make(number).gradient(w))


def test_equal_potentials_are_one_in_a_set() -> None:
    assert len({md.QNorm(3), md.potential("q=3"), md.LInf(3)}) == 1


@pytest.mark.parametrize("spec", ["Q=3", " q=3 ", "q = 3", "30E-1 * q=3e0", "1e0*q=3.0"])
def test_a_name_may_be_written_in_several_ways(spec: str) -> None:
    w = torch.linspace(-2, 2, 9)
    psi = md.potential(spec)
    torch.testing.assert_close(psi.gradient(w), (3 if spec.startswith("30") else 1) * md.QNorm(3).gradient(w))


def test_a_name_that_lacks_its_number_is_not_said_to_be_meant() -> None:
    with pytest.raises(ValueError, match="unknown potential 'q'") as caught:
        md.potential("q")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "psi",
    [
        2 * (md.L2() + md.QNorm(3)),
        2 * (md.L2() + 3 * (md.QNorm(3) + md.QNorm(4))),
        0.5 * (2 * md.HyperbolicEntropy(0.1)),
        3 * md.L1(0.3) + md.Quadratic(0.5),
    ],
    ids=str,
)
def test_a_spec_means_the_same_function(psi: md.Potential) -> None:
    """That the specs are equal says nothing here: it is what they mean."""
    w = torch.linspace(-2, 2, 9, dtype=torch.float64)
    torch.testing.assert_close(md.potential(psi.spec).gradient(w), psi.gradient(w), rtol=1e-14, atol=0)


def test_a_sum_is_live_where_one_of_its_parts_is() -> None:
    assert (md.L2() + md.Convex(torch.cosh)).live
    assert md.L2() + md.Convex(torch.cosh) != md.L2() + md.Convex(torch.cosh)
    assert md.Convex(torch.cosh, name="f") != md.QNorm(3)


class Own(md.Potential):
    """A class of a user's that says nothing about its name."""

    factor = 1.0

    def _terms(self, w: Tensor) -> Tensor:
        return self.factor * w**2 / 2

    def _gradient(self, w: Tensor) -> Tensor:
        return self.factor * w

    def _inverse(self, dual: Tensor) -> Tensor:
        return dual / self.factor

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return w + delta / self.factor


class Stronger(Own):
    factor = 100.0


class Named(Own):
    spec = "mine"


class L2(Own):
    """Called as one of ours."""


def test_potentials_of_a_users_are_told_apart() -> None:
    assert (Own().spec, Stronger().spec, Named().spec) == ("class Own", "class Stronger", "mine")
    assert Own() != Own()  # whatever they may hold
    assert Own() != Stronger()
    assert L2() != md.L2()
    one = Own()
    assert one == one
    assert Named() == Named()
    w = torch.nn.Parameter(torch.ones(2))
    state = md.SMD([w], 0.1, Own()).state_dict()
    md.SMD([w], 0.1, Own()).load_state_dict(state)
    with pytest.raises(ValueError, match="made with potential 'class Own'"):
        md.SMD([w], 0.1, Stronger()).load_state_dict(state)
    with pytest.raises(ValueError, match="made with potential 'class L2'"):
        md.SMD([w], 0.1, "l2").load_state_dict(md.SMD([w], 0.1, L2()).state_dict())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64, torch.float16, torch.float64])
def test_weights_of_any_type_make_a_quadratic_potential(dtype: torch.dtype) -> None:
    psi = md.Quadratic(torch.tensor([1, 2, 4], dtype=dtype))
    torch.testing.assert_close(psi.step(torch.ones(3), torch.ones(3)), torch.tensor([2.0, 1.5, 1.25]))
