"""A step of the size that `md.step_size` gives moves a weight as SGD's does, under every potential."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cases import CASES, Case
from standin import stand_in
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import mirrordescent as md
from mirrordescent.sizes import StuckWarning, curvature, usual_size

ALIKE = [case for case in CASES if case.potential.separable and not isinstance(case.potential, md.Quadratic)]


@pytest.mark.parametrize("case", ALIKE, ids=lambda case: case.name)
def test_weights_of_the_usual_size_move_as_by_sgd(case: Case) -> None:
    w = nn.Parameter(torch.full((3, 4), 0.3, dtype=torch.float64))
    lr = md.step_size([w], case.potential, sgd_lr=1e-4)
    w.grad = torch.ones_like(w)
    md.SMD([w], lr, case.potential).step()
    torch.testing.assert_close(0.3 - w.detach(), torch.full_like(w, 1e-4), rtol=5e-3, atol=0.0)


def test_the_usual_size_is_that_of_matrices() -> None:
    weight, bias = torch.tensor([[3.0, -4.0]]), torch.tensor([1e6])
    assert usual_size([weight, bias]) == pytest.approx(math.sqrt(12.5))
    assert usual_size([bias]) == 1e6
    with pytest.raises(ValueError, match="params is empty"):
        usual_size([])
    model = nn.Linear(3, 2)
    groups = [{"params": [model.weight]}, {"params": [("b", model.bias)]}]
    sizes = {usual_size(some) for some in (model.parameters(), model.named_parameters(), groups, model.weight)}
    assert len(sizes) == 1
    assert usual_size([torch.full((2, 2), 3 + 4j)]) == pytest.approx(5)


@pytest.mark.parametrize("size", [1e-30, 0.02, 1e30])
def test_the_usual_size_of_many_weights_is_theirs(size: float) -> None:
    """A float32 sum of so many squares is off by 1 %, or overflows."""
    assert usual_size([torch.full((5000, 2000), size)]) == pytest.approx(size, rel=1e-6)


def test_where_weights_are_negative_so_is_the_one_that_is_looked_at() -> None:
    def refusing(w: torch.Tensor) -> torch.Tensor:
        if bool((w >= 0).any()):
            raise ValueError("w must be < 0")
        return -(-w).log()

    with pytest.warns(UserWarning, match="does not go beyond"):
        psi = md.Convex(refusing, domain=(-math.inf, 0.0))
    w = nn.Parameter(torch.tensor([-1.0, -2.0]))
    w.grad = torch.ones(2)
    md.SMD([w], 0.1, psi).step()
    torch.testing.assert_close(-1 / w.detach(), torch.tensor([1.0, 0.5]) - 0.1)  # ∇ψ(w) = −1/w
    assert curvature(psi, 2.0) == pytest.approx(0.25, rel=1e-4)
    with pytest.raises(ValueError, match=r"is not defined at weights of the usual size, 2"):
        curvature(md.Convex(lambda w: (w**2 - 1) ** 2 / 4 + w**2, domain=(-1.0, 1.0)), 2.0)


def test_an_optimizer_can_be_made_without_memory() -> None:
    with FakeTensorMode():
        model = nn.Linear(3, 2)
        for potential in ("l2", "q=3", "entropy"):
            md.SMD(model.parameters(), 0.1, potential)


@pytest.mark.parametrize(("q", "weight"), [(1.1, 0.02), (3, 0.5), (10, 0.05)])
def test_the_curvature_of_a_q_norm_is_its_closed_form(q: float, weight: float) -> None:
    assert curvature(md.QNorm(q), weight) == pytest.approx((q - 1) * weight ** (q - 2), rel=1e-4)


@pytest.mark.parametrize("made", [md.SMD, lambda w, lr, psi: md.RMD(w, lr, 20 * lr, 1, psi)], ids=["SMD", "RMD"])
def test_a_step_that_is_absurdly_large_under_its_potential_is_told(made: Callable[..., md.SMD]) -> None:
    """At its start: each potential has its own scale of lr."""
    w = [nn.Parameter(torch.full((2, 3), 0.05))]
    with pytest.warns(UserWarning, match=r"under linf lr = 0\.1 .* as SGD does with lr = 3e\+08; lr = 4e-11 is like"):
        made(w, 0.1, "linf")
    made(w, md.step_size(w, "linf"), "linf")
    made(w, 0.1, "l1")
    made(w, 1e-12, "q=3")  # a small one may be meant
    made([nn.Parameter(torch.zeros(2, 2))], 0.1, "linf")  # of no size
    made([nn.Parameter(torch.ones(2, 2, device="meta"))], 0.1, "linf")
    sum_of_two = {"params": [nn.Parameter(w[0].detach().clone())], "potential": md.LInf() + md.L2(), "lr": 10.0}
    optimizer = md.SMD(w, 1e-11, "linf")
    with pytest.warns(UserWarning, match=r"under linf \+ l2 lr = 10 "):
        optimizer.add_param_group(sum_of_two)


def test_what_has_no_such_size_is_told() -> None:
    w = [torch.full((2, 2), 0.05)]
    with pytest.raises(ValueError, match=r"same for every weight; for each tensor w take .*QNorm\(3\)\) times ‖w‖_q"):
        md.step_size(w, "squarednorm=3")
    with pytest.raises(ValueError, match=r"same for every weight; begin with SGD's lr times ψ'' of .*md\.anchored"):
        md.step_size(w, md.Quadratic(torch.ones(2, 2)))
    with pytest.raises(ValueError, match=r"under q=300\.0 no lr is like 0\.1: ψ'' is 0 at weights of 0\.05"):
        md.step_size(w, "q=300")
    with pytest.raises(ValueError, match="the weights are all 0"):
        md.step_size([torch.zeros(2, 2)], "q=3")
    with pytest.raises(ValueError, match="sgd_lr must be > 0 and finite, got 0"):
        md.step_size(w, "l2", 0)
    with pytest.raises(TypeError, match=r"sgd_lr must be a number, got '0\.1'"):
        md.step_size(w, "l2", "0.1")  # type: ignore[arg-type]
    assert md.step_size(w, 2 * md.L2(), 0.2) == 0.4


@pytest.mark.parametrize("q", [1.5, 3.0])
def test_the_lr_that_is_named_for_a_squared_norm_moves_weights_as_sgd(q: float) -> None:
    w = nn.Parameter(torch.tensor([[0.3, 0.2], [-0.5, 0.3]], dtype=torch.float64))
    before, size = w.detach().clone(), usual_size([w])
    lr = md.step_size([w], md.QNorm(q), 1e-3) * float(torch.linalg.vector_norm(w.detach(), q)) ** (2 - q)
    w.grad = torch.tensor([[1.0, 0.0], [0.0, -1.0]]).double()  # which leaves the norm as it is
    md.SMD([w], lr, md.SquaredNorm(q)).step()
    assert float((before - w.detach())[0, 0]) == pytest.approx(1e-3 * (size / 0.3) ** (q - 2), rel=0.02)


@pytest.mark.parametrize(
    ("dtype", "least", "name"),
    [(torch.float32, 32, "float32"), (torch.bfloat16, 32, "float32"), (torch.float64, 240, "float64")],
)
def test_an_lr_that_the_weights_type_does_not_hold_is_told(dtype: torch.dtype, least: int, name: str) -> None:
    """With it, nothing would move."""
    w = nn.Parameter(torch.full((2, 2), 0.05, dtype=dtype))
    before, lr = w.detach().clone(), md.step_size([w], md.LInf(least - 1))
    with pytest.raises(
        ValueError, match=rf"like 0\.1 is \S+, which {name} does not hold; take a potential that is less"
    ):
        md.step_size([w], md.LInf(least))
    w.grad = torch.ones_like(w)
    md.SMD([w], lr, md.LInf(least - 1)).step()
    assert bool((w != before).all())
    assert md.step_size([w], 1e-60 * md.L2()) == pytest.approx(1e-61)  # a step is by lr over ψ'' there


def test_groups_with_potentials_of_their_own_are_asked_for_one_by_one() -> None:
    weights = {"params": [torch.full((2, 2), 0.05)], "potential": "linf"}
    biases = {"params": [torch.full((2,), 0.05)], "potential": md.L2()}
    with pytest.raises(ValueError, match="a group has the potential l2 of its own: ask for each group's lr by itself"):
        md.step_size([weights, biases], "linf")
    assert md.step_size([weights], "linf") == md.step_size([torch.full((2, 2), 0.05)], "linf")
    assert md.step_size(iter([biases]), "l2") == 0.1
    same = [{**weights, "potential": md.QNorm(10)}]  # by another name
    assert md.step_size(same, "linf") == md.step_size([weights], "linf")
    assert md.step_size([{**biases, "potential": "q=2"}], "l2") == 0.1


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))])
def test_a_model_in_place_of_its_parameters_is_refused_with_the_remedy(model: torch.nn.Module) -> None:
    with pytest.raises(TypeError, match=r"model\.parameters\(\)"):
        md.step_size(model, "linf")  # type: ignore[arg-type]


def test_weights_of_0_have_no_usual_size() -> None:
    w = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="all 0"):
        md.step_size([w], "linf")
    with pytest.raises(ValueError, match="all 0"):
        md.step_size([{"params": [w], "potential": "q=3"}], "l2")
    assert md.step_size([w], "l2", sgd_lr=0.1) == pytest.approx(0.1)  # whose curvature is the same everywhere


def test_zeros_that_stay_zeros_are_told_once() -> None:
    """Near ℓ1 a step from 0 is the tenth power of lr times the gradient, which float32 does not even hold."""

    def params() -> list[nn.Parameter]:
        torch.manual_seed(0)
        first, last = nn.Linear(100, 50), nn.Linear(50, 10)
        for layer in (first, last):
            nn.init.zeros_(layer.bias)
        model = nn.Sequential(first, nn.LayerNorm(50), last)
        return [*model.parameters(), nn.Parameter(torch.zeros(0, 3))]  # of nothing nothing stays

    lr = md.step_size(params(), "l1")
    told = r"under l1 zeros .* 3 of the 7 tensors .* a gradient of 0\.01 moves them by .*e-29, .* potential 'l2'"
    with pytest.warns(StuckWarning, match=told) as found:
        optimizer = md.SMD(params(), lr, "l1")
    assert len(found) == 1
    held = optimizer.param_groups[0]["params"]
    for _ in range(100):
        for w in held:
            w.grad = torch.full_like(w, 0.01)
        optimizer.step()
    assert [k for k, w in enumerate(held) if w.numel() and bool(w.abs().max() < 1e-6)] == [1, 3, 5]
    with pytest.warns(StuckWarning, match=r"under 2\.0 \* l1 zeros .* 3 of the 7 tensors"):
        md.RMD(params(), 2 * lr, 40 * lr, 5, 2 * md.L1())
    md.SMD([nn.Parameter(torch.zeros(10, 3))], 0.1, "l1")  # the minimum of ψ, meant so
    md.SMD([w.requires_grad_(bool(w.any())) for w in params()], lr, "l1")
    with pytest.warns(StuckWarning, match=r"under l1 \+ l2 zeros"):
        md.SMD(params(), lr, "l1 + l2")  # which is ℓ1 near 0
    for potential in ("l2", "quadratic=0.5", "q=1.5", "q=3", "linf", "hypentropy", "hypentropy=0.01"):
        md.SMD(params(), md.step_size(params(), potential), potential)
    md.SMD([w for w in params() if w.any() or not w.numel()], lr, "l1")
    md.SMD(params(), 0.0, "l1")  # a scheduler's beginning
    md.SMD(params(), 0.1, md.SquaredNorm(1.1))  # whose steps from 0 are of the usual size


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("potential", "looks"), [("l1", 1), ("linf", 1), ("l2", 0)])
def test_the_weights_are_looked_at_once(potential: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU makes the host wait at every look; ℓ2 has none to make."""
    seen, own = [], torch.Tensor.cpu

    def looking(t: torch.Tensor) -> torch.Tensor:
        if torch.cuda.get_sync_debug_mode():  # else the stand-in has asked itself
            seen.append(t.shape)
        torch.cuda.set_sync_debug_mode("default")
        here = own(t)
        torch.cuda.set_sync_debug_mode("error")
        return here

    with stand_in():
        params = [nn.Parameter(torch.full(shape, 0.05, device="cuda")) for shape in ((9, 9), (9,), (3, 9))]
        monkeypatch.setattr(torch.Tensor, "cpu", looking)
        torch.cuda.set_sync_debug_mode("error")
        md.SMD(params, 1e-11, potential)
    assert seen == [(3,)] * looks
