"""SMD as an optimizer: what it shares with torch.optim, and that no path, setting or state changes the mathematics."""

from __future__ import annotations

import copy
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, Case, every_case
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import mirrordescent as md


def parameters(case: Case | None = None, dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    make = Case("l2", md.L2()) if case is None else case
    return [
        nn.Parameter(make.weights(*shape, seed=k, dtype=dtype)) for k, shape in enumerate([(4, 3), (5,), (2, 2, 2)])
    ]


def set_gradients(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for w in params:
        w.grad = torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)


def trajectory(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int = 20) -> list[Tensor]:
    for k in range(steps):
        set_gradients(params, k)
        optimizer.step()
    return [w.detach().clone() for w in params]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"maximize": True}, {"momentum": 0.5, "maximize": True}], ids=str
)
@pytest.mark.parametrize("path", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_l2_is_sgd_bit_for_bit(settings: dict[str, Any], path: dict[str, Any], dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype=dtype), parameters(dtype=dtype)
    mine = trajectory(md.SMD(ours, lr=0.1, **settings, **path), ours)
    if dtype == torch.bfloat16 and path == {"fused": True}:  # where PyTorch's leaves most weights as they are
        path = {}
    assert_same(mine, trajectory(torch.optim.SGD(theirs, lr=0.1, **settings, **path), theirs))


@every_case
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"maximize": True}], ids=str)
def test_every_potential_is_the_dual_equation(case: Case, settings: dict[str, Any]) -> None:
    """∇ψ(w_t) = ∇ψ(w_0) − η Σ m, with the sum kept in the dual."""
    params = parameters(case)
    duals = [case.potential.gradient(w.detach()) for w in params]
    momenta = [torch.zeros_like(w) for w in params]
    optimizer = md.SMD(params, lr=0.02, potential=case.potential, **settings)
    for k in range(20):
        set_gradients(params, k)
        for w, dual, m in zip(params, duals, momenta, strict=True):
            assert w.grad is not None
            m.mul_(settings.get("momentum", 0)).add_(-w.grad if settings.get("maximize") else w.grad)
            dual.sub_(m, alpha=0.02)
        optimizer.step()
    for w, dual in zip(params, duals, strict=True):
        torch.testing.assert_close(case.potential.gradient(w.detach()), dual, rtol=1e-10, atol=1e-12)


@every_case
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_foreach_equals_single(case: Case, momentum: float) -> None:
    ours, theirs = parameters(case), parameters(case)
    settings: dict[str, Any] = {"lr": 0.02, "potential": case.potential, "momentum": momentum}
    single = trajectory(md.SMD(ours, foreach=False, **settings), ours)
    foreach = trajectory(md.SMD(theirs, foreach=True, **settings), theirs)
    for a, b in zip(single, foreach, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)


@every_case
@pytest.mark.parametrize("foreach", [False, True])
def test_tensor_lr_equals_number(case: Case, foreach: bool) -> None:
    ours, theirs = parameters(case), parameters(case)
    rate = torch.tensor(0.02, dtype=torch.float64)
    tensor = trajectory(md.SMD(ours, lr=rate, potential=case.potential, foreach=foreach), ours)
    plain = trajectory(md.SMD(theirs, lr=0.02, potential=case.potential, foreach=foreach), theirs)
    for a, b in zip(tensor, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_groups_have_their_own_settings() -> None:
    a, b = parameters()[:2]
    second: dict[str, Any] = {"params": [b], "lr": 0.2, "potential": md.QNorm(3), "momentum": 0.5}
    optimizer = md.SMD([{"params": [a]}, second], lr=0.1)
    alone = copy.deepcopy([a, b])
    mine = trajectory(optimizer, [a, b])
    one, other = md.SMD(alone[:1], lr=0.1), md.SMD(alone[1:], lr=0.2, potential="q=3", momentum=0.5)
    for k in range(20):
        set_gradients(alone, k)
        one.step()
        other.step()
    assert_same(mine, [w.detach() for w in alone])


def test_scheduler_moves_the_step() -> None:
    (w,) = parameters()[:1]
    optimizer = md.SMD([w], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for expected in (1.0, 0.5, 0.25):
        before = w.detach().clone()
        w.grad = torch.ones_like(w)
        optimizer.step()
        scheduler.step()
        torch.testing.assert_close(before - w.detach(), torch.full_like(w, expected))


def test_one_cycle_turns_the_momentum() -> None:
    params = parameters()
    optimizer = md.SMD(params, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    set_gradients(params, 0)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] != 0.9


def test_closure_is_evaluated_with_gradients() -> None:
    w = nn.Parameter(torch.tensor([3.0]))
    optimizer = md.SMD([w], lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 9
    torch.testing.assert_close(w.detach(), torch.tensor([2.4]))


def test_hooks_run() -> None:
    params, seen = parameters(), []
    optimizer = md.SMD(params, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    trajectory(optimizer, params, steps=1)
    assert seen == ["before", "after"]


@pytest.mark.parametrize("case", [c for c in CASES if not c.positive], ids=lambda case: case.name)
def test_complex_parameters_are_pairs_of_real_ones(case: Case) -> None:
    w = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
    pair = nn.Parameter(torch.view_as_real(w.detach().clone()))
    complex_optimizer = md.SMD([w], lr=0.05, potential=case.potential, momentum=0.5)
    real_optimizer = md.SMD([pair], lr=0.05, potential=case.potential, momentum=0.5)
    for _ in range(3):
        w.grad = torch.randn_like(w)
        pair.grad = torch.view_as_real(w.grad.clone())
        complex_optimizer.step()
        real_optimizer.step()
    assert torch.equal(torch.view_as_real(w.detach()), pair.detach())


def test_a_gradient_that_is_still_to_be_conjugated() -> None:
    """Autograd leaves that to who reads it."""
    w, c = nn.Parameter(torch.randn(3, dtype=torch.complex128)), torch.randn(3, dtype=torch.complex128)
    before = w.detach().clone()
    (w.conj() * c).real.sum().backward()
    assert w.grad is not None
    lazy = nn.Parameter(before.clone())
    lazy.grad = w.grad.resolve_conj().conj().resolve_conj().conj()
    assert lazy.grad.is_conj()
    md.SMD([lazy], lr=0.1).step()
    torch.testing.assert_close(lazy.detach(), before - 0.1 * c)


def test_complex_is_refused_where_the_potential_is_not_defined() -> None:
    w = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for psi in (md.NegativeEntropy(), md.Quadratic(torch.ones(2))):
        with pytest.raises(ValueError, match="not defined for complex"):
            md.SMD([w], lr=0.1, potential=psi)


def test_memory_layout_and_overlap_with_views() -> None:
    w = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
    v = nn.Parameter(w.detach().clone().contiguous())
    w.grad = torch.randn(2, 3, 4, 4)
    v.grad = w.grad.clone()
    for foreach in (False, True):
        md.SMD([w], lr=0.1, potential="q=3", foreach=foreach).step()
        md.SMD([v], lr=0.1, potential="q=3", foreach=foreach).step()
        assert torch.equal(w.detach(), v.detach())
        assert w.is_contiguous(memory_format=torch.channels_last)


def test_the_callers_tensors_are_only_read() -> None:
    params = parameters()
    set_gradients(params, 0)
    gradients = [w.grad.clone() for w in params if w.grad is not None]
    for path in ({"foreach": True}, {"foreach": False}, {"fused": True}):
        for maximize in (False, True):
            md.SMD(params, lr=0.1, momentum=0.9, maximize=maximize, **path).step()  # type: ignore[arg-type]
    assert_same(gradients, [w.grad for w in params if w.grad is not None])


def test_without_momentum_there_is_no_state_per_parameter() -> None:
    params = parameters()
    optimizer = md.SMD(params, lr=0.1, potential="l1")
    trajectory(optimizer, params, steps=2)
    assert not optimizer.state


# Bad input


def test_domain_error_names_the_parameter_and_the_way_out() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"parameter 'weight': negative entropy needs every weight > 0.*'hypentropy'"):
        md.SMD(model.named_parameters(), lr=0.1, potential="entropy")
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 \(shape \(2, 3\)\): negative entropy"):
        md.SMD(model.parameters(), lr=0.1, potential="entropy")
    with pytest.raises(ValueError, match="negative entropy"):
        md.SMD(model.parameters(), lr=0.1, potential=md.NegativeEntropy() + md.L2())
    with pytest.raises(ValueError, match=r"convex\[barrier\] is defined on \(0.0, inf\)"):
        md.SMD(model.parameters(), lr=0.1, potential=next(c.potential for c in CASES if c.name.startswith("convex on")))


def test_a_refused_group_changes_nothing() -> None:
    a, b = parameters()[:2]
    optimizer = md.SMD([a], lr=0.1)
    with pytest.raises(ValueError, match="negative entropy"):
        optimizer.add_param_group({"params": [b], "potential": "entropy"})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [b]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -0.1}, "lr must be a finite number >= 0, got -0.1"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr": torch.ones(2)}, "1-element"),
        ({"momentum": -0.5}, "momentum must be"),
        ({"potential": "l3"}, "unknown potential"),
        ({"foreach": True, "fused": True}, "cannot both"),
        ({"potential": "q=3", "fused": True}, "no kernel for potential 'q=3.0' on cpu"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        md.SMD(parameters(), **{"lr": 0.1, **settings})


def test_sparse_gradients_are_refused_before_anything_moves() -> None:
    dense, table = nn.Parameter(torch.ones(3)), nn.Embedding(5, 2, sparse=True)
    dense.grad = torch.ones(3)
    table(torch.tensor([1])).sum().backward()
    optimizer = md.SMD([dense, table.weight], lr=0.1)
    with pytest.raises(RuntimeError, match=r"parameter 1 of group 0 .* sparse gradient"):
        optimizer.step()
    assert torch.equal(dense.detach(), torch.ones(3))


def test_integer_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        md.SMD([torch.ones(3, dtype=torch.int64)], lr=0.1)


# State


STATEFUL: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"potential": "0.5 * q=3 + l2", "momentum": 0.9},
    {"potential": md.Convex(torch.cosh), "momentum": 0.9},
    {"potential": md.Quadratic(torch.tensor(0.5, dtype=torch.float64)), "momentum": 0.9},
]


@pytest.mark.parametrize("settings", STATEFUL, ids=lambda s: str(s.get("potential", "l2")))
@pytest.mark.parametrize("way", ["state_dict", "saved", "distributed", "deepcopy", "pickle"])
def test_resumed_training_is_the_same_bit_for_bit(settings: dict[str, Any], way: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    params = list(model.parameters())
    optimizer = md.SMD(params, lr=0.05, **settings)
    trajectory(optimizer, params, steps=3)
    if way in ("deepcopy", "pickle"):
        both = (model, optimizer)
        other, resumed = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    else:
        other = copy.deepcopy(model)
        resumed = md.SMD(other.parameters(), lr=1.0, **settings)
        if way == "distributed":
            state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
            set_optimizer_state_dict(other, resumed, state)
        else:
            state = copy.deepcopy(optimizer.state_dict())
            if way == "saved":
                file = io.BytesIO()
                torch.save(state, file)
                file.seek(0)
                state = torch.load(file, weights_only=True)
            resumed.load_state_dict(state)
    assert_same(trajectory(optimizer, params), trajectory(resumed, list(other.parameters())))


def test_a_state_with_an_unknown_potential_is_refused_and_one_of_fewer_settings_taken() -> None:
    optimizer = md.SMD(parameters(), lr=0.1)
    state = optimizer.state_dict()
    state["param_groups"][0]["potential"] = "l7"
    with pytest.raises(ValueError, match="unknown potential 'l7'"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["potential"] == "l2"
    for name in ("momentum", "maximize", "foreach", "fused"):  # as torch's own, which came later than some states
        del state["param_groups"][0][name]
    state["param_groups"][0]["potential"] = "l2"
    optimizer.load_state_dict(state)
    trajectory(optimizer, optimizer.param_groups[0]["params"], steps=1)


def test_a_state_with_a_function_needs_that_function() -> None:
    params = parameters()
    state = md.SMD(params, lr=0.1, potential=md.Convex(torch.cosh)).state_dict()
    other = md.SMD(params, lr=0.3, potential="l2")
    with pytest.raises(ValueError, match=r"convex\[cosh\].*cannot be stored in it.*group has 'l2'"):
        other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.3


def test_a_state_with_weights_needs_those_weights() -> None:
    """As a function of one's own does: the potential itself is not in the checkpoint."""
    w = nn.Parameter(torch.ones(3))
    weights = torch.tensor([1.0, 2.0, 3.0])
    state = md.SMD([w], lr=0.1, potential=md.Quadratic(weights)).state_dict()
    for others in (weights.flip(0), weights * (1 + 1e-6), weights.repeat(2, 1)[:, :3]):
        with pytest.raises(ValueError, match=r"quadratic\[tensor .* cannot be stored in it"):
            md.SMD([nn.Parameter(torch.ones_like(others))], lr=0.1, potential=md.Quadratic(others)).load_state_dict(
                state
            )
    md.SMD([w], lr=0.1, potential=md.Quadratic(weights.clone())).load_state_dict(state)
    half = weights.bfloat16()
    assert md.Quadratic(half).spec == md.Quadratic(half.clone()).spec


def test_a_state_of_rmds_is_not_smds() -> None:
    params = parameters()
    state = md.RMD(params, lr=0.1, lam=2.0, num_samples=5).state_dict()
    with pytest.raises(ValueError, match=r"the state is RMD's.*load it into md\.RMD"):
        md.SMD(params, lr=0.1).load_state_dict(state)


class Nameless(md.Potential):
    """A user's own that says no spec."""

    def _terms(self, w: Tensor) -> Tensor:
        return w**2

    def _gradient(self, w: Tensor) -> Tensor:
        return 2 * w

    def _inverse(self, dual: Tensor) -> Tensor:
        return dual / 2

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return w + delta / 2


def test_a_potential_without_a_name_has_its_classs() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = md.SMD([w], lr=1.0, potential=Nameless())
    w.grad = torch.ones(2)
    optimizer.step()
    assert w.tolist() == [0.5, 0.5]
    assert optimizer.state_dict()["param_groups"][0]["potential"].startswith("class Nameless")


@pytest.mark.parametrize(
    ("potential", "told"),
    [
        (md.L1, r"not the class: md\.L1\(\.\.\.\)"),
        (lambda w: w**2, r"goes into md\.Convex"),
        (3, "a string or a md.Potential"),
    ],
)
def test_what_is_no_potential_is_told(potential: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        md.SMD(parameters(), lr=0.1, potential=potential)


def test_loading_takes_the_potential_of_the_checkpoint() -> None:
    params = parameters()
    other = md.SMD(params, lr=0.1, potential="l2")
    other.load_state_dict(md.SMD(params, lr=0.1, potential="q=3").state_dict())
    assert other.potential_of(other.param_groups[0]) == md.QNorm(3)


def test_a_potential_put_into_a_group_by_hand_is_used() -> None:
    (w,) = parameters()[:1]
    optimizer = md.SMD([w], lr=0.1)
    optimizer.param_groups[0]["potential"] = md.QNorm(3)
    expected = md.QNorm(3).step(w.detach(), torch.full_like(w, -0.1))
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert torch.equal(w.detach(), expected)
    assert optimizer.state_dict()["param_groups"][0]["potential"] == "q=3.0"


# torch.compile


@pytest.mark.parametrize("name", ["l2", "q=3", "hypentropy", "entropy"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_compiled_step_equals_eager(name: str, momentum: float) -> None:
    case = next(c for c in CASES if c.name == name)
    ours, theirs = parameters(case), parameters(case)
    optimizer = md.SMD(ours, lr=0.02, potential=name, momentum=momentum)
    compiled = torch.compile(optimizer.step, backend="aot_eager")
    for k in range(3):
        set_gradients(ours, k)
        compiled()
    eager = trajectory(md.SMD(theirs, lr=0.02, potential=name, momentum=momentum), theirs, steps=3)
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a.detach(), b, rtol=1e-12, atol=1e-13)


def test_functions_go_back_to_their_own_groups() -> None:
    """Two functions without a name: loading into an optimizer made in another order must not swap them."""
    a, b = parameters()[:2]
    f, g = md.Convex(torch.cosh, name="f"), md.Convex(torch.cosh, name="g")
    saved = md.SMD([{"params": [a], "potential": f}, {"params": [b], "potential": g}], lr=0.1).state_dict()
    groups: list[dict[str, Any]] = [{"params": [a], "potential": f}, {"params": [b]}]
    other = md.SMD(groups, lr=0.1, potential=g)
    other.load_state_dict(saved)
    assert [other.potential_of(group) for group in other.param_groups] == [f, g]
    swapped = md.SMD([{"params": [a], "potential": g}, {"params": [b], "potential": f}], lr=0.1)
    with pytest.raises(ValueError, match="this optimizer's group has"):
        swapped.load_state_dict(saved)


def test_a_state_of_sgd_leaves_the_potential_alone() -> None:
    params = parameters()
    optimizer = md.SMD(params, lr=0.1, potential="q=3")
    optimizer.load_state_dict(torch.optim.SGD(params, lr=0.5).state_dict())
    assert optimizer.potential_of(optimizer.param_groups[0]) == md.QNorm(3)
    assert optimizer.param_groups[0]["lr"] == 0.5


class Mine(md.QNorm):
    """A potential class of a user's: its spec is no name that the library knows."""

    def __init__(self) -> None:
        super().__init__(3)
        self.spec = "mine"


def test_a_potential_class_of_ones_own_travels() -> None:
    params = parameters()
    optimizer = md.SMD(params, lr=0.1, potential=Mine())
    again = copy.deepcopy(optimizer)
    assert again.potential_of(again.param_groups[0]).spec == "mine"
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    trajectory(optimizer, params, steps=1)


@pytest.mark.parametrize("path", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_strides_are_respected(path: dict[str, Any]) -> None:
    base = torch.ones(3, 4)
    every_other = nn.Parameter(base[:, ::2])
    every_other.grad = torch.ones(3, 2)
    transposed = nn.Parameter(torch.zeros(2, 3).t())
    transposed.grad = torch.arange(6.0).view(3, 2)
    expanded = nn.Parameter(torch.zeros(3))
    expanded.grad = torch.ones(1).expand(3)
    md.SMD([every_other, transposed, expanded], lr=1.0, **path).step()
    assert torch.equal(base, torch.tensor([0.0, 1.0, 0.0, 1.0]).expand(3, 4))
    assert torch.equal(transposed.detach(), -torch.arange(6.0).view(3, 2))
    assert torch.equal(expanded.detach(), -torch.ones(3))


def test_a_potential_put_in_by_hand_is_checked() -> None:
    optimizer = md.SMD([nn.Parameter(-torch.ones(2))], lr=0.1)
    optimizer.param_groups[0]["potential"] = md.NegativeEntropy()
    with pytest.raises(ValueError, match="negative entropy"):
        optimizer.step()


def test_numpy_numbers_are_saved_as_plain_ones() -> None:
    file = io.BytesIO()
    torch.save(md.SMD(parameters(), lr=np.float64(0.1), momentum=np.float64(0.5)).state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)


def test_shapes_at_the_edge() -> None:
    empty, scalar = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.tensor(2.0))
    for psi in ("l2", "q=3", "hypentropy", "l2 + q=3", "squarednorm=3"):
        for foreach in (False, True):
            optimizer = md.SMD([empty, scalar], lr=0.1, potential=psi, foreach=foreach)
            empty.grad, scalar.grad = torch.ones(0, 3), torch.tensor(1.0)
            before = scalar.item()
            optimizer.step()
            assert scalar.item() < before


@pytest.mark.parametrize("name", ["q=3", "hypentropy", "sum"])
def test_a_large_tensor_in_pieces_is_the_same_tensor(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    start, gradient = case.weights(300_001, dtype=torch.float32), torch.randn(300_001)
    w = nn.Parameter(start.clone())
    w.grad = gradient
    md.SMD([w], lr=0.1, potential=case.potential).step()
    torch.testing.assert_close(w.detach(), case.potential.step(start, -0.1 * gradient), rtol=1e-6, atol=1e-7)


class Fivefold(md.QNorm):
    """5 times the q-norm, as a user might write it."""

    def _gradient(self, w: Tensor) -> Tensor:
        return 5 * super()._gradient(w)

    def _inverse(self, dual: Tensor) -> Tensor:
        return super()._inverse(dual / 5)

    def _step(self, w: Tensor, delta: Tensor) -> Tensor:
        return super()._step(w, delta / 5)


@pytest.mark.parametrize("q", [2, 3])
@pytest.mark.parametrize("path", [{}, {"foreach": True}], ids=str)
def test_a_subclass_steps_by_its_own_mathematics(q: int, path: dict[str, Any]) -> None:
    for mine, same in ((Fivefold(q), 5 * md.QNorm(q)), (2 * Fivefold(q), 10 * md.QNorm(q))):
        ours, theirs, plain = (parameters()[:1] for _ in range(3))
        groups: list[dict[str, Any]] = [{"params": plain, "potential": 2 * md.QNorm(q)}]
        groups.append({"params": ours, "potential": mine})
        optimizer = md.SMD(groups, lr=0.1, **path)
        reference = md.SMD(theirs, lr=0.1, potential=same, **path)
        for w in (*ours, *theirs, *plain):
            w.grad = torch.ones_like(w)
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours[0], theirs[0])
        assert not torch.allclose(ours[0], plain[0])


def test_an_old_state_without_a_buffer_is_taken() -> None:
    params = parameters()
    optimizer = md.SMD(params, lr=0.1, momentum=0.9)
    state = optimizer.state_dict()
    for entry in state["state"].values():
        entry["momentum_buffer"] = None
    optimizer.load_state_dict(state)
    trajectory(optimizer, params, steps=1)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_tensor_lr_on_the_cpu_is_sgds(foreach: bool) -> None:
    ours, theirs = parameters(dtype=torch.float32), parameters(dtype=torch.float32)
    mine = trajectory(md.SMD(ours, lr=torch.tensor(0.1), foreach=foreach), ours)
    assert_same(mine, trajectory(torch.optim.SGD(theirs, lr=torch.tensor(0.1), foreach=foreach), theirs))


@pytest.mark.parametrize("make", [lambda groups: md.SMD(groups, lr=0.1), lambda g: md.RMD(g, 0.1, 1.0, 4)])
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"weight_decay": 0.5}, "weight_decay = 0.5 does nothing in mirror descent: it is ψ that regularizes"),
        ({"nesterov": True}, "nesterov = True does nothing"),
        ({"dampening": 0.1}, "dampening = 0.1 does nothing"),
        ({"potental": "l1"}, "no setting 'potental'; did you mean 'potential'"),
        ({"momentun": 0.9}, "did you mean 'momentum'"),
    ],
)
def test_a_group_that_asks_for_what_is_not_done_is_refused(make: Any, setting: dict[str, Any], told: str) -> None:
    w = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=told):
        make([{"params": [w], **setting}])


def test_a_group_may_carry_what_is_not_ours() -> None:
    """Schedulers, trainers and people keep things there; a decay of 0 is what is done."""
    keys = {"name": "head", "initial_lr": 0.1, "max_lr": 1, "max_momentum": 0.9, "base_momentum": 0, "lr_scale": 1}
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = md.SMD([{"params": [w], "weight_decay": 0.0, "nesterov": False, **keys}], lr=0.1)
    assert optimizer.param_groups[0]["name"] == "head"


def test_another_optimizers_state_is_refused_where_it_does_more() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = md.SMD([w], lr=0.1)
    with pytest.raises(ValueError, match=r"weight_decay = 0\.5 does nothing"):
        optimizer.load_state_dict(torch.optim.SGD([w], lr=0.2, weight_decay=0.5).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    optimizer.load_state_dict(torch.optim.SGD([w], lr=0.2).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.2
    own = optimizer.state_dict()
    own["param_groups"][0]["weight_decay"] = 0.5  # of an older version, which took it and did nothing
    optimizer.load_state_dict(own)


@pytest.mark.parametrize("kind", [torch.float16, torch.float64])
def test_the_momentum_goes_with_a_model_that_changes_its_type(kind: torch.dtype) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = md.SMD(model.parameters(), lr=0.1, momentum=0.9)
    for dtype in (torch.float32, kind):
        model.to(dtype)
        optimizer.zero_grad()
        model(torch.ones(1, 3, dtype=dtype)).sum().backward()
        optimizer.step()
    assert optimizer.state[model.weight]["momentum_buffer"].dtype == kind


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_lazy_modules_weights_are_taken_before_they_are_there(momentum: float) -> None:
    ends = []
    for lazy in (True, False):
        torch.manual_seed(0)
        layer: nn.Linear = nn.LazyLinear(3) if lazy else nn.Linear(4, 3)
        optimizer = md.SMD(layer.parameters(), lr=0.1, potential="q=3", momentum=momentum) if lazy else None
        layer(torch.ones(2, 4))
        with torch.no_grad():
            for w in layer.parameters():
                w.fill_(0.5)
        optimizer = optimizer or md.SMD(layer.parameters(), lr=0.1, potential="q=3", momentum=momentum)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
        ends.append([w.detach() for w in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_small_tensors_are_stepped_together_on_a_cpu_to_the_same_bits() -> None:
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in ((64,), (3, 5), (), (200_000,), (7, 2, 2), (0,))]
    slopes = [torch.randn_like(w) for w in start]
    ends = []
    for foreach in (None, False):
        params = [nn.Parameter(w.clone()) for w in start]
        for w, g in zip(params, slopes, strict=True):
            w.grad = g.clone()
        md.SMD(params, lr=0.01, potential="q=3", foreach=foreach).step()
        ends.append([w.detach() for w in params])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert not torch.equal(ends[0][0], start[0])


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_a_state_holds_plain_numbers_whatever_a_scheduler_leaves(kind: Any) -> None:
    optimizer = md.SMD([nn.Parameter(torch.ones(2))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: kind(np.cos(epoch / 10)))
    optimizer.step()
    scheduler.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    held = torch.load(file, weights_only=True)["param_groups"][0]
    assert held["lr"] == float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1 * math.cos(0.1))
    assert type(held["lr"]) is float
