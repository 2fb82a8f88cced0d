"""The ways trainers call an optimizer: whatever the order, a batch moves w and z once, together, or not at all."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mirrordescent as md

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(2)), torch.arange(8) % 3
FIRST, SECOND = torch.arange(4), torch.arange(4, 8)


def make(**options: Any) -> tuple[nn.Module, md.RMD]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, md.RMD(model.parameters(), **{"lr": 0.2, "lam": 1.0, "num_samples": 8, **options})


def forward(model: nn.Module, optimizer: md.RMD, index: Tensor) -> Tensor:
    losses: Tensor = nn.functional.cross_entropy(model(X[index]), Y[index], reduction="none")
    return optimizer.loss(losses, index)


def plain_step(model: nn.Module, optimizer: md.RMD, index: Tensor) -> None:
    optimizer.zero_grad()
    forward(model, optimizer, index).backward()
    optimizer.step()


def state(model: nn.Module, optimizer: md.RMD) -> list[Tensor]:
    return [*(w.detach().clone() for w in model.parameters()), optimizer.aux.values.clone()]


def assert_same(left: list[Tensor], right: list[Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def expected(*batches: Tensor, **options: Any) -> list[Tensor]:
    model, optimizer = make(**options)
    for index in batches:
        plain_step(model, optimizer, index)
    return state(model, optimizer)


def test_zero_grad_between_forward_and_backward() -> None:
    model, optimizer = make()
    for index in (FIRST, SECOND):
        loss = forward(model, optimizer, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert_same(state(model, optimizer), expected(FIRST, SECOND))


def test_step_then_zero_grad_then_backward() -> None:
    model, optimizer = make()
    for index in (FIRST, SECOND):
        optimizer.step()  # the first one has nothing to do
        optimizer.zero_grad()
        forward(model, optimizer, index).backward()
    optimizer.step()
    assert_same(state(model, optimizer), expected(FIRST, SECOND))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_skipped_step_and_a_models_zero_grad(set_to_none: bool) -> None:
    """What a GradScaler does on overflow: no step() at all, and the trainer goes on."""
    model, optimizer = make()
    plain_step(model, optimizer, SECOND)
    forward(model, optimizer, FIRST).backward()
    model.zero_grad()
    forward(model, optimizer, FIRST).backward()
    model.zero_grad(set_to_none=set_to_none)
    before = state(model, optimizer)
    forward(model, optimizer, SECOND).backward()
    assert_same(state(model, optimizer), before)
    optimizer.step()
    assert_same(state(model, optimizer), expected(SECOND, SECOND))


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_grad_scaler(fused: bool | None, momentum: float) -> None:
    """Scaled gradients give the same step; an overflow moves neither w nor z, nor their momenta."""
    options = {"fused": fused, "momentum": momentum}
    model, optimizer = make(**options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for index, overflow in ((FIRST, False), (FIRST, True), (SECOND, False)):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(model(X[index]), Y[index], reduction="none")
        scaler.scale(optimizer.loss(losses, index)).backward()
        if overflow:
            for w in model.parameters():
                assert w.grad is not None
                w.grad[0] = float("inf")
        before = state(model, optimizer)
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert_same(state(model, optimizer), before)
    for a, b in zip(state(model, optimizer), expected(FIRST, SECOND, **options), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_autocast() -> None:
    model, optimizer = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = forward(model, optimizer, FIRST)
    loss.backward()
    optimizer.step()
    for a, b in zip(state(model, optimizer), expected(FIRST), strict=True):
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.02)


def test_closure() -> None:
    model, optimizer = make()

    def closure() -> float:
        optimizer.zero_grad()
        loss = forward(model, optimizer, FIRST)
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) > 0
    optimizer.step(closure)
    assert_same(state(model, optimizer), expected(FIRST, FIRST))


@pytest.mark.parametrize("convention", ["paper", "objective"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_four_micro_batches_are_one_batch(convention: str, momentum: float) -> None:
    options = {"lam_convention": convention, "momentum": momentum}
    whole = torch.arange(8)
    model, optimizer = make(**options)
    for _ in range(3):
        optimizer.zero_grad()
        for index in whole.split(2):
            (forward(model, optimizer, index) / 4).backward()
        optimizer.step()
    for a, b in zip(state(model, optimizer), expected(whole, whole, whole, **options), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_only_logged() -> None:
    model, optimizer = make()
    optimizer.zero_grad()
    logged = forward(model, optimizer, SECOND)
    forward(model, optimizer, FIRST).backward()
    optimizer.step()
    assert logged.item() > 0
    assert_same(state(model, optimizer), expected(FIRST))


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_copies_made_between_backward_and_step(copier: Any) -> None:
    model, optimizer = make()
    forward(model, optimizer, FIRST).backward()
    other, twin = copier((model, optimizer))
    for w, v in zip(model.parameters(), other.parameters(), strict=True):
        v.grad = w.grad  # a module's copy has no gradients
    optimizer.step()
    assert not twin.aux.values.any()
    twin.step()
    assert_same(state(model, optimizer), state(other, twin))


def test_clipping_scales_both_steps() -> None:
    model, optimizer = make()
    before = state(model, optimizer)
    forward(model, optimizer, FIRST).backward()
    norm = optimizer.clip_grad_norm_(0.01)
    optimizer.step()
    free = expected(FIRST)
    for start, clipped, whole in zip(before, state(model, optimizer), free, strict=True):
        torch.testing.assert_close(clipped - start, (whole - start) * (0.01 / norm), rtol=1e-3, atol=1e-7)
    plain_step(model, optimizer, SECOND)  # the factor is gone
    assert (optimizer.aux.values[SECOND] > 0.01).all()


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_clipping_at_every_step_is_clipping_before_it(momentum: float) -> None:
    """Also where the backward pass is part of the step, and a trainer could not clip between them."""
    by_hand, by_setting, closed = make(momentum=momentum), *(make(max_norm=0.01, momentum=momentum) for _ in range(2))
    for index in (FIRST, SECOND, FIRST):
        for model, optimizer in (by_hand, by_setting):
            optimizer.zero_grad()
            forward(model, optimizer, index).backward()
            if optimizer is by_hand[1]:
                assert float(optimizer.clip_grad_norm_(0.01)) > 0.01
            optimizer.step()
        model, optimizer = closed

        def closure(index: Tensor = index, model: nn.Module = model, optimizer: md.RMD = optimizer) -> float:
            optimizer.zero_grad()
            loss = forward(model, optimizer, index)
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)
    for other in (by_setting, closed):
        for one, two in zip(state(*by_hand), state(*other), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-8)
    assert any(not torch.equal(a, b) for a, b in zip(state(*by_hand), expected(FIRST, SECOND, FIRST), strict=True))


def test_clipping_is_part_of_the_state() -> None:
    model, optimizer = make(max_norm=0.01)
    other, twin = make()
    twin.load_state_dict(optimizer.state_dict())
    for one in ((model, optimizer), (other, twin)):
        plain_step(*one, FIRST)
    assert_same(state(model, optimizer), state(other, twin))
    wrong = optimizer.state_dict()
    wrong["param_groups"][0]["max_norm"] = -1.0
    with pytest.raises(ValueError, match=r"max_norm must be > 0 and finite, or None for no clipping, got -1\.0"):
        optimizer.load_state_dict(wrong)
    older = optimizer.state_dict()
    del older["param_groups"][0]["max_norm"]  # from before there was such a setting
    optimizer.load_state_dict(older)
    assert optimizer.param_groups[0]["max_norm"] == 0.01
    with pytest.raises(ValueError, match="max_norm is one for the whole optimizer"):
        md.RMD([{"params": [nn.Parameter(torch.ones(1))], "max_norm": 1.0}], 0.1, 1.0, 2)


@pytest.mark.parametrize("fused", [True, None])
def test_clipping_at_every_step_is_by_the_gradient_without_a_scalers_factor(fused: bool | None) -> None:
    """A fused step takes the factor out by itself, after the norm was measured."""
    found = []
    for scale in (1.0, 2.0**12):
        model, optimizer = make(max_norm=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for index in (FIRST, SECOND):
            optimizer.zero_grad()
            scaler.scale(forward(model, optimizer, index)).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(state(model, optimizer))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_clips_nothing_or_all_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be > 0 and finite, or None"):
        make(max_norm=wrong)


def test_clipping_that_does_not_bite_changes_nothing() -> None:
    model, optimizer = make()
    forward(model, optimizer, FIRST).backward()
    optimizer.clip_grad_norm_(1e6)
    optimizer.step()
    assert_same(state(model, optimizer), expected(FIRST))


def test_scheduler_moves_both_steps() -> None:
    model, optimizer = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    plain_step(model, optimizer, FIRST)
    scheduler.step()
    before = optimizer.aux.values.clone()
    plain_step(model, optimizer, SECOND)
    halved = optimizer.aux.values - before
    other, reference = make()
    plain_step(other, reference, FIRST)
    before = reference.aux.values.clone()
    plain_step(other, reference, SECOND)
    torch.testing.assert_close(halved, (reference.aux.values - before) / 2)


def test_tensor_lr() -> None:
    model, optimizer = make(lr=torch.tensor(0.2))
    plain_step(model, optimizer, FIRST)
    for a, b in zip(state(model, optimizer), expected(FIRST), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Skipping serialization")  # torch 2.6's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_step(backend: str) -> None:
    torch.compiler.reset()
    model, optimizer = make(potential="q=3")
    step = torch.compile(optimizer.step, backend=backend)
    for index in (FIRST, SECOND, FIRST):
        optimizer.zero_grad()
        forward(model, optimizer, index).backward()
        step()
    for a, b in zip(state(model, optimizer), expected(FIRST, SECOND, FIRST, potential="q=3"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_index_as_a_loader_gives_it() -> None:
    model, optimizer = make()
    losses = nn.functional.cross_entropy(model(X[FIRST]), Y[FIRST], reduction="none")
    optimizer.loss(losses, FIRST.to(torch.int32)).backward()
    optimizer.step()
    assert_same(state(model, optimizer), expected(FIRST))


def test_two_losses_that_go_backward_as_one() -> None:
    model, optimizer = make()
    optimizer.zero_grad()
    ((forward(model, optimizer, FIRST) + forward(model, optimizer, SECOND)) / 2).backward()
    optimizer.step()
    for a, b in zip(state(model, optimizer), expected(torch.arange(8)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_micro_batch_without_a_gradient_counts() -> None:
    """A dead unit gives a gradient of exactly 0: that is not a gradient that was thrown away."""
    w = nn.Parameter(torch.zeros(4))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4)
    for index, factor in ((torch.tensor([0, 1]), 0.0), (torch.tensor([2, 3]), 1.0)):
        losses = 0.5 + factor * (w[index] + w[index].square())
        (optimizer.loss(losses, index) / 2).backward()
    optimizer.step()
    assert bool((optimizer.aux.values > 0.05).all())


def test_clipping_one_micro_batch_leaves_the_next_alone() -> None:
    model, optimizer = make()
    optimizer.zero_grad()
    (forward(model, optimizer, FIRST) / 2).backward()
    optimizer.clip_grad_norm_(1e-3)
    (forward(model, optimizer, SECOND) / 2).backward()
    optimizer.step()
    z = optimizer.aux.values
    assert bool((z[FIRST] < 0.01).all())
    assert bool((z[SECOND] > 0.05).all())


def test_clipping_without_gradients() -> None:
    _, optimizer = make()
    assert optimizer.clip_grad_norm_(1.0) == 0


def test_a_scheduler_that_switches_momentum_on_keeps_both_together() -> None:
    """OneCycleLR cycles the momentum by default, also of an optimizer that was made without."""
    states = []
    for momentum in (0.0, 0.95):
        model, optimizer = make(lr=0.01, lam=2.0, momentum=momentum)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=20)
        for index in (FIRST, SECOND, FIRST):
            plain_step(model, optimizer, index)
            scheduler.step()
        states.append(state(model, optimizer))
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert_same(*states)


def test_an_index_changed_after_backward_is_harmless() -> None:
    model, optimizer = make()
    index = FIRST.clone()
    optimizer.zero_grad()
    forward(model, optimizer, index).backward()
    index.copy_(SECOND)
    optimizer.step()
    assert_same(state(model, optimizer), expected(FIRST))


def test_going_backward_twice_counts_twice() -> None:
    """With retain_graph w's gradient doubles, and so does z's step; clipping scales each of the two once."""
    model, optimizer = make()
    loss = forward(model, optimizer, FIRST)
    loss.backward(retain_graph=True)
    loss.backward()
    norm = optimizer.clip_grad_norm_(0.01)
    optimizer.step()
    once = expected(FIRST)[-1]
    torch.testing.assert_close(optimizer.aux.values, 2 * once * (0.01 / norm), rtol=1e-3, atol=1e-7)


def test_looking_at_a_gradient_between_micro_batches_counts_for_nothing() -> None:
    model, optimizer = make()
    optimizer.zero_grad()
    (forward(model, optimizer, FIRST) / 2).backward()
    torch.autograd.grad(forward(model, optimizer, FIRST), list(model.parameters()))
    (forward(model, optimizer, SECOND) / 2).backward()
    optimizer.step()
    for a, b in zip(state(model, optimizer), expected(torch.arange(8)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clear", ["module", "data"])
def test_gradients_cleared_in_place_move_nothing(clear: str) -> None:
    model, optimizer = make()
    plain_step(model, optimizer, SECOND)
    before = state(model, optimizer)
    optimizer.zero_grad()
    forward(model, optimizer, FIRST).backward()
    if clear == "module":
        model.zero_grad(set_to_none=False)
    else:
        for w in model.parameters():
            assert w.grad is not None
            w.grad.data.zero_()
    optimizer.step()
    assert_same(state(model, optimizer), before)
    forward(model, optimizer, SECOND).backward()
    optimizer.step()
    assert_same(state(model, optimizer), expected(SECOND, SECOND))


def test_a_backward_pass_that_breaks_off_counts_for_nothing() -> None:
    """Out of memory in the second half of a batch, say: what is tried again moves z once."""

    class Broken(torch.autograd.Function):
        """Breaks on the way back."""

        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *__: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("out of memory")

    moved = []
    for broken in (False, True):
        w = nn.Parameter(torch.zeros(1))
        optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4)
        optimizer.loss((w - 1).square().expand(2), torch.tensor([0, 1])).backward()
        if broken:
            with pytest.raises(RuntimeError, match="out of memory"):
                optimizer.loss(Broken.apply(w - 1).square().expand(2), torch.tensor([2, 3])).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.loss((w - 1).square().expand(2), torch.tensor([2, 3])).backward()
        optimizer.step()
        moved.append((optimizer.aux.values.clone(), w.detach().clone()))
    assert all(torch.equal(a, b) for a, b in zip(*moved, strict=True))


def test_gradients_cleared_through_data_below_an_embedding_move_nothing() -> None:
    """Row 0 of the first gradient, a padding's, says nothing."""
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 1))
    optimizer = md.RMD(model.parameters(), lr=0.1, lam=1.0, num_samples=3)
    optimizer.loss(model(torch.tensor([3, 4, 5]))[:, 0].sub(1).square(), torch.arange(3)).backward()
    for w in model.parameters():
        assert w.grad is not None
        w.grad.data.zero_()
    optimizer.step()
    assert not bool(optimizer.aux.values.any())


def test_a_copy_forgets_a_batch_whose_gradient_it_does_not_have() -> None:
    model, optimizer = make()
    forward(model, optimizer, FIRST).backward()
    other, twin = pickle.loads(pickle.dumps((model, optimizer)))
    twin._pending.batches[0].task = -1  # as in another process
    forward(other, twin, SECOND).backward()
    twin.step()
    assert_same(state(other, twin), expected(SECOND))


def one_weight(n: int = 4) -> tuple[nn.Parameter, md.RMD]:
    w = nn.Parameter(torch.ones(n))
    return w, md.RMD([w], lr=0.1, lam=1.0, num_samples=n)


def test_zero_grad_forgets_the_batch() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w.square(), torch.arange(4)).backward()
    optimizer.zero_grad()
    w.grad = torch.ones(4)
    with pytest.raises(RuntimeError, match="gradients but no batch"):
        optimizer.step()


def test_clipping_gradients_that_are_0_changes_nothing() -> None:
    """That they are 0 is no sign that they were thrown away."""
    found = []
    for clip in (False, True):
        w, optimizer = one_weight()
        optimizer.loss(w * 0 + 1, torch.arange(4)).backward()
        if clip:
            optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        found.append(optimizer.aux.values)
    assert torch.equal(*found)
    assert bool(found[0].all())


def test_an_embedding_whose_gradient_was_set_to_0_has_lost_its_batch() -> None:
    table = nn.Embedding(5, 2)
    optimizer = md.RMD(table.parameters(), lr=0.1, lam=1.0, num_samples=4)
    for samples in ([0, 1], [2, 3]):
        table.zero_grad(set_to_none=False)  # the first row is 0 before and after
        optimizer.loss(table(torch.tensor([3, 4])).square().sum(1), torch.tensor(samples)).backward()
    optimizer.step()
    assert optimizer.aux.values.bool().tolist() == [False, False, True, True]


@pytest.mark.filterwarnings("ignore:Using backward")
def test_micro_batches_that_keep_their_graph_all_count() -> None:
    w, optimizer = one_weight()
    for i in range(4):
        (optimizer.loss(w.square().sum().reshape(1), torch.tensor([i])) / 4).backward(create_graph=True)
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_gradients_that_are_put_there_by_hand_count() -> None:
    w, optimizer = one_weight()
    (w.grad,) = torch.autograd.grad(optimizer.loss(w.square(), torch.arange(4)), [w])
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_parameters_without_elements_or_without_a_gradient_any_more() -> None:
    empty, gone, w = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = md.RMD([empty, w, gone], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(w.square() + gone + empty.sum(), torch.arange(2)).backward()
    gone.grad = None
    optimizer.step()
    assert bool(optimizer.aux.values.all())
