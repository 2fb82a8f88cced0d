"""z itself: residual, moving, saving, loading."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

import mirrordescent as md


def make(n: int = 6, **options: Any) -> tuple[nn.Module, md.RMD]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, md.RMD(model.parameters(), lr=0.2, lam=1.0, num_samples=n, **options)


X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 0, 1, 2])


def train(model: nn.Module, optimizer: md.RMD, steps: int = 6) -> list[Tensor]:
    for k in range(steps):
        index = torch.tensor([k, k + 1, k + 3]) % 6
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(X[index]), Y[index], reduction="none")
        optimizer.loss(losses, index).backward()
        optimizer.step()
    return [*(w.detach().clone() for w in model.parameters()), optimizer.aux.values.clone()]


def test_residual_is_the_sum_of_gaps() -> None:
    _, optimizer = make()
    optimizer.aux.values.copy_(torch.arange(6.0))
    losses = torch.tensor([0.5, 2.0, 8.0], dtype=torch.float64)
    assert optimizer.aux.residual(losses, torch.tensor([0, 1, 5])).item() == pytest.approx(1 + 1 + 1)
    root = torch.tensor([1.0, -2.0, -4.0])
    assert optimizer.aux.residual(losses.float(), torch.tensor([0, 1, 5]), root=root).item() == pytest.approx(1 + 3 + 9)
    assert optimizer.aux.residual(torch.zeros(6)).item() == pytest.approx(15, abs=0.01)


def test_residual_refuses_what_does_not_fit() -> None:
    aux = make()[1].aux
    with pytest.raises(ValueError, match="one loss for each of the 6 samples, got 2"):
        aux.residual(torch.zeros(2))
    with pytest.raises(ValueError, match=">= 0"):
        aux.residual(-torch.ones(6))
    with pytest.raises(IndexError, match="got 6"):
        aux.residual(torch.zeros(2), torch.tensor([0, 6]))


def test_residual_of_a_settled_run_goes_to_zero() -> None:
    x, y = torch.eye(3), torch.tensor([1.0, 2.0, 3.0])
    w = nn.Parameter(torch.zeros(3))
    optimizer = md.RMD([w], lr=0.5, lam=1.0, num_samples=3)
    for _ in range(200):
        optimizer.zero_grad()
        optimizer.loss((x @ w - y).square() / 2, torch.arange(3)).backward()
        optimizer.step()
    assert optimizer.aux.residual((x @ w - y).square() / 2) < 1e-4


def test_duplicates_in_a_batch_add_up() -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2, eps=0.0)
    optimizer.loss((w.square() / 2).expand(3), torch.tensor([0, 0, 1])).backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.aux.values, torch.tensor([0.2, 0.1]))


def test_reset_and_repr() -> None:
    model, optimizer = make(momentum=0.5)
    train(model, optimizer)
    optimizer.aux.reset()
    assert not optimizer.aux.values.any()
    assert optimizer.aux.momentum is not None
    assert not optimizer.aux.momentum.any()
    assert "6 samples" in repr(optimizer.aux)
    assert len(optimizer.aux) == 6


def test_an_optimizer_is_written_as_torch_does_but_for_z() -> None:
    """Else z of 1,000 samples would be nearly all there is to see."""
    _, optimizer = make(momentum=0.5)
    plain = torch.optim.Optimizer.__repr__(optimizer)
    for key in ("z", "z_momentum"):
        assert f"    {key}: 6 numbers\n" in repr(optimizer)
        plain = plain.replace(f"    {key}: {torch.zeros(6)}\n", f"    {key}: 6 numbers\n")
    assert repr(optimizer) == plain


def test_its_own_state_dict_round_trip() -> None:
    model, optimizer = make(momentum=0.5)
    train(model, optimizer)
    _, other = make(momentum=0.5)
    view = other.aux.values
    other.aux.load_state_dict(copy.deepcopy(optimizer.aux.state_dict()))
    assert torch.equal(view, optimizer.aux.values)
    with pytest.raises(ValueError, match="num_samples=6"):
        other.aux.load_state_dict({"z": torch.zeros(5)})


@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"potential": "q=3", "reduction": "batch"}], ids=str)
@pytest.mark.parametrize("way", ["state_dict", "saved", "distributed", "deepcopy", "pickle"])
def test_resumed_training_is_the_same_bit_for_bit(options: dict[str, Any], way: str) -> None:
    model, optimizer = make(**options)
    train(model, optimizer)
    if way == "deepcopy":
        other, resumed = copy.deepcopy((model, optimizer))
    elif way == "pickle":
        other, resumed = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        other, resumed = make(**options)
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        view = resumed.aux.values
        if way == "distributed":
            state = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
            assert "z" in state["param_groups"][0]  # type: ignore[operator, index]
            set_optimizer_state_dict(other, resumed, state)
        else:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            resumed.load_state_dict(torch.load(file, weights_only=True))
        assert resumed.aux.values is view  # copied in place
    assert torch.equal(resumed.aux.values, optimizer.aux.values)
    assert resumed.aux.values.data_ptr() != optimizer.aux.values.data_ptr()
    for a, b in zip(train(model, optimizer), train(other, resumed), strict=True):
        assert torch.equal(a, b)


def with_momentum_in_a_group() -> tuple[nn.Module, md.RMD]:
    model, _ = make()
    groups = [{"params": [w], "momentum": 0.9} for w in model.parameters()]
    return model, md.RMD(groups, lr=0.2, lam=2.0, num_samples=6)


def with_momentum_by_a_scheduler() -> tuple[nn.Module, md.RMD]:
    model, optimizer = make()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=100)
    return model, optimizer


@pytest.mark.parametrize("make_one", [make, with_momentum_in_a_group, with_momentum_by_a_scheduler])
def test_flattened_distributed_state_carries_z(make_one: Callable[[], tuple[nn.Module, md.RMD]]) -> None:
    model, optimizer = make_one()
    train(model, optimizer)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=flat))
    other, resumed = make_one()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    set_optimizer_state_dict(other, resumed, state, options=flat)
    assert torch.equal(resumed.aux.values, optimizer.aux.values)
    for a, b in zip(train(model, optimizer), train(other, resumed), strict=True):
        assert torch.equal(a, b)


def test_a_held_view_sees_what_is_loaded() -> None:
    _, optimizer = make(eps=1.0, momentum=0.5)
    _, other = make()
    view = other.aux
    other.load_state_dict(optimizer.state_dict())
    assert view.residual(torch.zeros(6)) == other.aux.residual(torch.zeros(6)) == pytest.approx(6 * 2**0.5)
    assert view.momentum is other.aux.momentum is not None


def test_a_state_of_another_size_is_refused_and_changes_nothing() -> None:
    model, optimizer = make()
    train(model, optimizer)
    before = optimizer.aux.values.clone()
    _, larger = make(7)
    larger.param_groups[0]["lr"] = 0.7
    with pytest.raises(ValueError, match="z for 7 samples, but this optimizer was made with num_samples=6"):
        optimizer.load_state_dict(larger.state_dict())
    smd = md.SMD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no z"):
        optimizer.load_state_dict(smd.state_dict())
    assert torch.equal(optimizer.aux.values, before)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_a_state_with_a_setting_that_is_none_is_refused_and_changes_nothing() -> None:
    model, optimizer = make(momentum=0.5)
    train(model, optimizer)
    before = optimizer.aux.values.clone()
    for key, value, message in (
        ("penalty", "nonsense", "penalty must be one of"),
        ("reduction", "sum", "reduction must be one of"),
        ("z_momentum", torch.zeros(9), "z_momentum is for 9 samples"),
    ):
        state = copy.deepcopy(optimizer.state_dict())
        state["param_groups"][0][key] = value
        state["param_groups"][0]["z"].zero_()
        with pytest.raises(ValueError, match=message):
            optimizer.load_state_dict(state)
        assert torch.equal(optimizer.aux.values, before)
    state = copy.deepcopy(optimizer.state_dict())
    del state["param_groups"][0]["lam"]  # from before there was such a setting
    optimizer.load_state_dict(state)
    assert optimizer.lam == 1


def test_a_state_is_plain_data() -> None:
    _, optimizer = make(momentum=0.5)
    allowed = (int, float, str, bool, type(None), Tensor, list)
    for group in optimizer.state_dict()["param_groups"]:
        assert all(isinstance(value, allowed) for value in group.values())


def test_rejected_samples_are_reported_once() -> None:
    """The counter is filled on a GPU only; here by hand."""
    _, optimizer = make()
    optimizer.param_groups[0]["z_rejected"].add_(2)
    assert optimizer.aux.rejected == 2
    for error in (ValueError, IndexError):
        optimizer.param_groups[0]["z_rejected"].fill_(2)
        with pytest.raises(error, match="2 samples"):
            optimizer.aux.check()
        optimizer.aux.check()
    optimizer.param_groups[0]["z_rejected"].fill_(1)
    with pytest.raises(md.RejectedSamplesError):
        optimizer.aux.residual(torch.zeros(6))


def test_rejected_samples_keep_nobody_from_saving() -> None:
    _, optimizer = make()
    optimizer.param_groups[0]["z_rejected"].fill_(2)
    for save in (optimizer.state_dict, optimizer.aux.state_dict):
        with pytest.warns(UserWarning, match=r"2 samples came .* left out \(aux.check\(\) raises for them\)") as caught:
            assert torch.equal(save().get("z", optimizer.aux.values), optimizer.aux.values)
        assert caught[0].filename == __file__
    with pytest.raises(md.RejectedSamplesError):
        optimizer.aux.check()


def test_moves_with_to() -> None:
    _, optimizer = make(momentum=0.5)
    aux = optimizer.aux.to("meta")
    assert aux.values.device.type == "meta"
    assert optimizer.aux.momentum is not None
    assert optimizer.aux.momentum.device.type == "meta"


def test_objective_lam_in_both_conventions() -> None:
    assert make()[1].objective_lam(8) == 1 / 8
    assert make(lam_convention="objective")[1].objective_lam(8) == 1
    assert make()[1].lam == 1
    assert make()[1].objective_lam(1) == 1
    assert math.isfinite(make()[1].objective_lam(10**9))


def test_an_optimizer_made_before_its_model_has_memory() -> None:
    model = nn.Linear(2, 1, device="meta")
    optimizer = md.RMD(model.parameters(), lr=0.1, lam=1.0, num_samples=3)
    model.to_empty(device="cpu")
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.loss(model(torch.ones(3, 2))[:, 0].sub(1).square(), torch.arange(3)).backward()
    optimizer.step()
    assert bool((optimizer.aux.values > 0).all())


def test_a_state_is_loaded_into_an_optimizer_made_before_its_model_has_memory() -> None:
    w = nn.Parameter(torch.zeros(2, device="meta"))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=3)
    optimizer.aux.load_state_dict({"z": torch.tensor([1.0, 2.0, 3.0])})
    assert optimizer.aux.values.tolist() == [1, 2, 3]


def test_z_that_moved_during_a_validation_can_be_stepped_later() -> None:
    w = nn.Parameter(torch.zeros(2))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2)
    optimizer.aux.to("meta")  # anywhere but beside the losses
    with torch.inference_mode():
        optimizer.loss((w - 1).square(), torch.arange(2))
    optimizer.loss((w - 1).square(), torch.arange(2)).backward()
    optimizer.step()
    assert bool((optimizer.aux.values > 0).all())


def test_a_z_of_another_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"a z of shape \(3, 1\)"):
        make()[1].aux.load_state_dict({"z": torch.zeros(3, 1)})


def test_zs_momentum_travels_alone() -> None:
    w = nn.Parameter(torch.zeros(1))
    one, other = (md.RMD([w], lr=0.1, lam=1.0, num_samples=2, momentum=m) for m in (0.9, 0.0))
    one.loss((w - 1).square().expand(2), torch.arange(2)).backward()
    one.step()
    other.aux.load_state_dict(one.aux.state_dict())
    assert other.aux.state_dict().keys() == one.aux.state_dict().keys()
    assert all(torch.equal(other.aux.state_dict()[k], v) for k, v in one.aux.state_dict().items())


def test_what_is_loaded_takes_the_place_of_what_was() -> None:
    """A state without a momentum of z, from a run that had none: the momentum begins anew. So does the counter."""
    model, optimizer = make(momentum=0.5)
    train(model, optimizer)
    optimizer.param_groups[0]["z_rejected"].fill_(2)
    optimizer.aux.load_state_dict({"z": torch.ones(6)})
    assert optimizer.aux.values.tolist() == [1] * 6
    assert optimizer.aux.momentum is not None
    assert not optimizer.aux.momentum.any()
    assert optimizer.aux.rejected == 0


def test_a_batch_from_before_loading_is_forgotten() -> None:
    model, optimizer = make()
    losses = nn.functional.cross_entropy(model(X), Y, reduction="none")
    optimizer.loss(losses, torch.arange(6)).backward()
    optimizer.load_state_dict(optimizer.state_dict())
    with pytest.raises(RuntimeError, match="no batch"):
        optimizer.step()


def test_a_residual_takes_what_training_takes() -> None:
    """A loss that rounding, or its own ε, puts a little below 0."""
    _, optimizer = make(eps=0.5)
    assert optimizer.aux.residual(torch.full((6,), -0.375)) == 6  # z is 0 and s = √(2 (0 + ε)) = 1
    with pytest.raises(ValueError, match="losses must be >= 0"):
        optimizer.aux.residual(torch.full((6,), -0.75))


def test_the_residual_is_by_the_optimizers_own_epsilon() -> None:
    aux = md.RMD([nn.Parameter(torch.ones(1))], 0.1, 1.0, 2, eps=0.0).aux
    assert float(aux.residual(torch.zeros(2))) == 0
    with pytest.raises(ValueError, match="losses must be >= 0, got -1e-08"):  # as `loss` says, too
        aux.residual(torch.tensor([-1e-8, 0.0]))


def test_without_a_ball_the_momentum_stays() -> None:
    aux = md.RMD([nn.Parameter(torch.ones(1))], 0.1, 1.0, 2, momentum=0.9).aux
    assert aux.momentum is not None
    aux.momentum.fill_(5.0)
    aux.descend(torch.arange(2), torch.ones(2), 0.1, 0.0)
    torch.testing.assert_close(aux.values, torch.full((2,), -0.1))
    assert aux.momentum.tolist() == [5, 5]


CONSTANT = torch.tensor([0.5, 2.0, 0.5, 2.0, 0.5, 2.0])  # losses that do not change: s = 1 and 2


def followed(epochs: int, slope: float = 0.0, **options: Any) -> md.RMD:
    """z of these, in batches of two; slope: of w, for gradients that can be clipped, but move the losses hardly."""
    w = nn.Parameter(torch.zeros(1))
    optimizer = md.RMD([w], num_samples=6, **{"lr": 0.01, "lam": 1.0, **options})
    for index in torch.arange(6).split(2) * epochs:
        optimizer.loss(CONSTANT[index] + slope * (w - w.detach()), index).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lam_convention": "objective", "lam": 0.5},
        {"momentum": 0.5},
        {"momentum": 0.5, "momentum_rule": "scaled"},
        {"lr": torch.tensor(0.01)},
    ],
    ids=str,
)
def test_its_age_says_how_far_it_is(options: dict[str, Any]) -> None:
    """z/s = 1 − exp(−age), whatever the settings."""
    for epochs in (50, 200):
        aux = followed(epochs, **options).aux
        assert aux.age is not None
        expected = 1 - math.exp(-aux.age)
        torch.testing.assert_close(aux.values / (2 * CONSTANT).sqrt(), torch.full((6,), expected), atol=0.02, rtol=0.0)
        assert epochs / 110 < aux.age < epochs / 40


@pytest.mark.parametrize(
    "options",
    [{"penalty": "huber"}, {"penalty": "logcosh"}, {"max_norm": 1e-4}, {"momentum": 0.5, "max_norm": 1e-4}],
    ids=str,
)
def test_what_slows_z_down_leaves_it_as_an_upper_bound(options: dict[str, Any]) -> None:
    """z/s ≤ 1 − exp(−age), and less where residuals are large or gradients clipped; also after loading."""
    slow, plain = followed(50, slope=1.0, **options), followed(50, momentum=options.get("momentum", 0.0)).aux
    resumed = followed(0, slope=1.0, **options)
    resumed.load_state_dict(slow.state_dict())
    for aux in (slow.aux, resumed.aux):
        assert aux.age == plain.age is not None
        assert bool((aux.values[CONSTANT == 2] < 0.9 * plain.values[CONSTANT == 2]).all())
        assert bool((aux.values <= plain.values + 1e-6).all())


def test_a_penalty_of_your_own_may_be_faster_and_leaves_it_unknown() -> None:
    assert followed(2, penalty=lambda r: 3 * r).aux.age is None


@pytest.mark.parametrize("convention", ["paper", "objective"])
def test_its_age_under_batch_is_that_of_a_samples_own_residual(convention: str) -> None:
    """Drawn anew, a batch moves z by its mean residual, of which a sample's own is one part in |B|."""
    n, size, lam = 60, 4, 1.0 if convention == "paper" else 0.25
    losses, w = torch.tensor([0.5, 2.0]).repeat(n // 2), nn.Parameter(torch.zeros(1))
    optimizer = md.RMD([w], 0.1, lam, n, reduction="batch", lam_convention=convention)
    for _ in range(40):
        for index in torch.randperm(n).split(size):
            optimizer.loss(losses[index] + 0 * w, index).backward()
            optimizer.step()
            optimizer.zero_grad()
    z, s = optimizer.aux.values, (2 * losses).sqrt()
    assert optimizer.aux.age == pytest.approx(0.1 * 40 / size)
    apart = (z[s == 2].mean() - z[s == 1].mean()).item()  # of 1, when z has settled
    assert apart == pytest.approx(1 - math.exp(-0.1 * 40 / size), abs=0.1)


def test_a_step_that_the_device_may_have_skipped_leaves_it_unknown() -> None:
    model, optimizer = make(fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    losses = nn.functional.cross_entropy(model(X), Y, reduction="none")
    scaler.scale(optimizer.loss(losses, torch.arange(6))).backward()
    scaler.step(optimizer)
    assert optimizer.aux.age is None


def test_a_clipped_step_is_at_most_what_is_counted() -> None:
    ages = []
    for max_norm in (1e9, 1e-3):
        model, optimizer = make()
        losses = nn.functional.cross_entropy(model(X), Y, reduction="none")
        optimizer.loss(losses, torch.arange(6)).backward()
        optimizer.clip_grad_norm_(max_norm)
        optimizer.step()
        ages.append(optimizer.aux.age)
    assert ages[0] == ages[1] == pytest.approx(0.2)


def test_its_age_goes_where_it_goes() -> None:
    optimizer, other = followed(50), followed(0)
    other.load_state_dict(optimizer.state_dict())
    assert other.aux.age == optimizer.aux.age == pytest.approx(0.5)
    assert copy.deepcopy(optimizer).aux.age == optimizer.aux.age
    older = optimizer.state_dict()
    del older["param_groups"][0]["z_age"]
    other.load_state_dict(older)
    assert other.aux.age is None  # and nobody knows from then on
    other.aux.grow_older(1.0)
    assert other.aux.age is None
    other.aux.reset()
    assert other.aux.age == 0.0
    other.aux.load_state_dict(optimizer.aux.state_dict())  # z alone
    assert other.aux.age is None
    assert followed(50, lam=math.inf).aux.age == 0.0
