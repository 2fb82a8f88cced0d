"""Parameter groups: their potentials and rates, and what of them is in a state."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mirrordescent as md


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*shape or (3,), generator=torch.Generator().manual_seed(0)) + 0.5)


def group(potential: str | md.Potential, **more: Any) -> dict[str, Any]:
    return {"params": [weight()], "potential": potential, **more}


class Own(md.QNorm):
    """A user's class, all of whose members have one name."""

    def __init__(self, q: float) -> None:
        super().__init__(q)
        self.spec = "own"


@pytest.mark.parametrize(
    "pair",
    [
        (md.Convex(lambda w: w.cosh()), md.Convex(lambda w: w.square())),
        (md.Quadratic(torch.tensor(2.0)), md.Quadratic(torch.tensor(3.0))),
        (Own(3), Own(4)),
    ],
    ids=["functions", "weights", "objects"],
)
def test_potentials_of_one_name_are_not_mixed_up(pair: tuple[md.Potential, md.Potential]) -> None:
    optimizer = md.SMD([group(psi) for psi in pair], lr=0.1)
    copied = copy.deepcopy(optimizer)
    copied.load_state_dict(optimizer.state_dict())
    assert all(optimizer.potential_of(held) is psi for held, psi in zip(optimizer.param_groups, pair, strict=True))
    w = torch.ones(3)
    for held, psi in zip(copied.param_groups, pair, strict=True):
        assert torch.equal(copied.potential_of(held).gradient(w), psi.gradient(w))


def test_a_function_in_two_groups_is_kept_once() -> None:
    psi = md.Convex(torch.cosh)
    optimizer = md.SMD([group(psi), group(psi)], lr=0.1)
    optimizer.param_groups[1]["potential"] = psi
    optimizer.state_dict()
    assert len({held["potential"] for held in optimizer.param_groups}) == 1


@pytest.mark.parametrize("psi", [md.L1(0.3), md.LInf(8), 2 * md.L1(0.3), md.L2() + md.LInf(8)], ids=str)
def test_what_a_name_holds_goes_into_a_checkpoint_by_its_name(psi: md.Potential) -> None:
    state = md.SMD([weight()], lr=0.1, potential=psi).state_dict()
    assert md.potential(state["param_groups"][0]["potential"]) == psi


class Fivefold(md.QNorm):
    """5 times the q-norm under the q-norm's name, as a user might write it."""

    def _gradient(self, w: Tensor) -> Tensor:
        return 5 * super()._gradient(w)

    def _inverse(self, dual: Tensor) -> Tensor:
        return super()._inverse(dual / 5)

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return super()._step(w, delta / 5)


@pytest.mark.parametrize("around", [lambda psi: 2 * psi, lambda psi: psi + md.L2()], ids=["multiple", "sum"])
def test_what_holds_a_class_of_ones_own_is_not_taken_for_its_namesake(around: Any) -> None:
    mine, plain = around(Fivefold(3)), around(md.QNorm(3))
    optimizer = md.SMD([group(mine), group(plain)], lr=0.1)
    assert optimizer.potential_of(optimizer.param_groups[0]) is mine
    assert optimizer.potential_of(optimizer.param_groups[1]) is plain
    with pytest.raises(ValueError, match="cannot be stored in it"):
        md.SMD([group("l1"), group(plain)], lr=0.1).load_state_dict(optimizer.state_dict())


def test_a_name_may_have_a_hash_in_it() -> None:
    psi = md.Convex(torch.cosh, name="f#2")
    optimizer = md.SMD([weight()], lr=0.1, potential=psi)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.potential_of(optimizer.param_groups[0]) is psi


def test_a_potential_put_into_a_group_by_hand_is_saved_before_any_step() -> None:
    optimizer = md.SMD([weight()], lr=0.1)
    optimizer.param_groups[0]["potential"] = md.QNorm(3)
    assert optimizer.state_dict()["param_groups"][0]["potential"] == "q=3.0"


@pytest.mark.parametrize("key", ["lr", "momentum"])
@pytest.mark.parametrize("value", [-0.5, math.inf, math.nan])
def test_a_rate_is_a_finite_number_here_and_in_a_group(key: str, value: float) -> None:
    settings: dict[str, Any] = {"lr": 0.1, key: value}
    with pytest.raises(ValueError, match=f"{key} must be a finite number >= 0"):
        md.SMD([weight()], **settings)
    with pytest.raises(ValueError, match=f"{key} must be a finite number >= 0"):
        md.SMD([{"params": [weight()], key: value}], lr=0.1)


def test_a_rate_of_0_is_one() -> None:
    w = weight()
    before, w.grad = w.detach().clone(), torch.ones(3)
    md.SMD([w], lr=0.0, potential="q=3").step()
    assert torch.equal(w.detach(), before)


def test_sparse_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match=r"parameter 0 of group 0 .* is sparse"):
        md.SMD([torch.eye(3).to_sparse()], lr=0.1)


def test_a_message_names_the_group() -> None:
    with pytest.raises(ValueError, match=r"parameter 1 of group 1 \(shape \(2,\)\): negative entropy"):
        md.SMD([group("l2"), {"params": [weight(), nn.Parameter(-weight(2).detach())], "potential": "entropy"}], lr=0.1)


@pytest.mark.parametrize("potential", ["l2", "q=3", "entropy", "l2 + q=3"])
def test_a_model_without_memory_is_taken_before_it_has_values(potential: str) -> None:
    w = nn.Parameter(torch.empty(3, device="meta"))
    md.SMD([w], lr=0.1, potential=potential, momentum=0.9)
    optimizer = md.SMD([w], lr=0.1, potential=potential, fused=True)
    w.grad = torch.empty(3, device="meta")
    with pytest.raises(RuntimeError, match=r"parameter 0 of group 0 .* is on the meta device"):
        optimizer.step()


def test_lazy_weights_are_looked_at_when_they_have_values() -> None:
    model = nn.LazyLinear(3)
    optimizer = md.SMD(model.parameters(), lr=0.1, potential="entropy")
    model(torch.ones(4, 5)).sum().backward()
    before = [w.detach().clone() for w in model.parameters()]
    for _ in range(2):
        with pytest.raises(ValueError, match="negative entropy needs every weight > 0"):
            optimizer.step()
    assert all(torch.equal(w, old) for w, old in zip(model.parameters(), before, strict=True))
    with torch.no_grad():
        for w in model.parameters():
            w.abs_()
    optimizer.step()
    assert not any(torch.equal(w, old.abs()) for w, old in zip(model.parameters(), before, strict=True))


def test_a_good_state_may_follow_one_whose_domain_the_weights_are_not_in() -> None:
    w = nn.Parameter(torch.tensor([0.5, -0.3]))
    optimizer = md.SMD([w], 0.1, "l2")
    good = optimizer.state_dict()
    optimizer.load_state_dict(md.SMD([weight(2)], 0.1, "entropy").state_dict())
    w.grad = torch.ones(2)
    with pytest.raises(ValueError, match="negative entropy needs every weight > 0"):
        optimizer.step()
    optimizer.load_state_dict(good)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.tensor([0.4, -0.4]))


def test_a_state_without_newer_settings_descends_and_without_momentum() -> None:
    w = weight()
    optimizer = md.SMD([w], lr=0.1)
    state = copy.deepcopy(optimizer.state_dict())
    for name in ("momentum", "maximize", "foreach", "fused"):
        del state["param_groups"][0][name]
    optimizer.load_state_dict(state)
    expected = w.detach() - 2 * 0.1 * torch.ones(3)
    for _ in range(2):
        w.grad = torch.ones(3)
        optimizer.step()
    torch.testing.assert_close(w.detach(), expected)


def test_the_momentum_lies_in_memory_as_its_parameter_does() -> None:
    w = nn.Parameter(torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last))
    optimizer = md.SMD([w], lr=0.1, momentum=0.9)
    assert optimizer.state[w]["momentum_buffer"].stride() == w.stride()


def test_the_momentum_is_in_the_state_before_any_step() -> None:
    state = md.SMD([weight(), weight(2)], lr=0.1, momentum=0.9).state_dict()["state"]
    assert [state[k]["momentum_buffer"].tolist() for k in range(2)] == [[0, 0, 0], [0, 0]]
    assert not md.SMD([weight()], lr=0.1).state_dict()["state"]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_potential_that_is_known_is_checked_in_another_group_too(loaded: bool) -> None:
    """What is positive in the first group need not be in the second; weights may be loaded after the optimizer."""
    second = nn.Parameter(torch.tensor([-1.0]))
    optimizer = md.SMD([group("entropy"), {"params": [second], "potential": "l2"}], lr=0.1)
    if loaded:
        optimizer.load_state_dict(
            md.SMD([group("entropy"), {"params": [weight(1)], "potential": "entropy"}], lr=0.1).state_dict()
        )
    else:
        optimizer.param_groups[1]["potential"] = "entropy"
    second.grad = torch.ones(1)
    with pytest.raises(ValueError, match=r"parameter 0 of group 1 .* negative entropy needs every weight > 0"):
        optimizer.step()
    assert second.item() == -1
    with torch.no_grad():
        second.fill_(2.0)
    optimizer.step()
    torch.testing.assert_close(second.detach(), 2 * torch.exp(torch.tensor([-0.1])))


@pytest.mark.parametrize("copied", [False, True])
def test_weights_are_looked_at_once_after_a_change_of_potential(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the host would wait for it at every step."""
    w = nn.Parameter(torch.ones(2))
    optimizer = md.SMD([w], lr=0.1)
    optimizer.param_groups[0]["potential"] = "entropy"
    looks: list[str] = []

    def looked(self: md.Potential, weights: Tensor) -> None:
        looks.append(self.spec)

    monkeypatch.setattr(md.NegativeEntropy, "domain_error", looked)
    for _ in range(3):
        w.grad = torch.ones(2)
        optimizer.step()
    once = len(looks)
    assert once >= 1
    if copied:
        optimizer = pickle.loads(pickle.dumps(optimizer))
        [w] = optimizer.param_groups[0]["params"]
    for _ in range(3):
        w.grad = torch.ones(2)
        optimizer.step()
    assert len(looks) == once


class Tilted(md.Potential):
    """½ Σ h_k w_k², as a user might write it: with factors that go with rows."""

    def __init__(self, h: Tensor) -> None:
        self.h = h  # (rows, 1)

    def _terms(self, w: Tensor) -> Tensor:
        return self.h * w * w / 2

    def _gradient(self, w: Tensor) -> Tensor:
        return self.h * w

    def _inverse(self, dual: Tensor) -> Tensor:
        return dual / self.h

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return w + delta / self.h


class Alike(Tilted):
    """The same, which says that all weights are alike."""

    uniform = True


def test_a_users_potential_may_find_out_itself_whether_it_is_linear() -> None:
    class Found(Tilted):
        def _step(self, w: Tensor, delta: Tensor) -> Tensor:
            return w + delta / self.h

        @property
        def linear(self) -> float | None:  # type: ignore[override]  # the base class has an attribute
            return float(self.h[0]) if len(self.h) == 1 else None

    assert (Found(torch.ones(1, 1)).linear, Found(torch.ones(2, 1)).linear) == (1.0, None)


@pytest.mark.parametrize("shape", [(3, 5), (600, 600)])
def test_a_users_potential_sees_tensors_as_they_are(shape: tuple[int, int]) -> None:
    """Neither joined nor in pieces, unless its class says that this makes no difference."""
    torch.manual_seed(0)
    h = torch.rand(shape[0], 1) + 0.5
    params = [nn.Parameter(torch.randn(shape)) for _ in range(2)]
    before = [w.detach().clone() for w in params]
    for w in params:
        w.grad = torch.randn(shape)
    md.SMD(params, lr=0.1, potential=Tilted(h)).step()
    for w, start in zip(params, before, strict=True):
        assert w.grad is not None
        torch.testing.assert_close(w.detach(), start - 0.1 * w.grad / h)
    assert (Tilted(h).uniform, Alike(h).uniform) == (False, True)


def test_a_group_may_be_given_to_several_optimizers() -> None:
    """What an optimizer fills in is not the caller's."""
    mine, other = (md.Convex(function, name="mine") for function in (lambda w: w**4 + w**2, lambda w: w**2))
    group = {"params": [nn.Parameter(torch.ones(2))], "potential": mine}
    md.SMD([group], lr=0.1)
    assert group["potential"] is mine
    assert "lr" not in group
    second = md.SMD([{"params": [nn.Parameter(torch.ones(2))], "potential": other}], lr=0.2)
    second.add_param_group(group)
    assert [second.potential_of(held) for held in second.param_groups] == [other, mine]
    assert second.param_groups[1]["lr"] == 0.2
