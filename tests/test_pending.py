"""Which batches count: those whose gradients are there when the step comes."""

from __future__ import annotations

import copy
import math
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import mirrordescent as md
from mirrordescent.pending import ASIDE


def one_weight(n: int = 4) -> tuple[nn.Parameter, md.RMD]:
    w = nn.Parameter(torch.ones(n))
    return w, md.RMD([w], lr=0.1, lam=1.0, num_samples=n)


def test_a_batch_in_a_pickle_is_of_no_pass_that_another_process_will_make() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w.square(), torch.arange(4)).backward()
    assert optimizer._pending.batches[0].task >= 0
    assert [batch.task for batch in pickle.loads(pickle.dumps(optimizer._pending)).batches] == [-1]
    assert [batch.task for batch in copy.deepcopy(optimizer._pending).batches] == [-1]


def test_micro_batches_of_heads_of_their_own_all_count() -> None:
    """The gradient of the other head stays as it was: that is no sign that nothing was added."""
    heads = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = md.RMD(heads, lr=0.1, lam=1.0, num_samples=8)
    for k in range(4):
        index = torch.tensor([2 * k, 2 * k + 1])
        (optimizer.loss(heads[k % 2].square(), index) / 4).backward()
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_a_witness_that_is_gone_is_not_missed() -> None:
    quiet, loud = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = md.RMD([quiet, loud], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(loud.square() + 0 * quiet, torch.arange(2)).backward()
    assert quiet.grad is not None
    loud.grad = None  # what is left is 0, so the batch's gradient has been thrown away
    optimizer.step()
    assert not optimizer.aux.values.any()


def test_a_gradient_replaced_by_zeros_has_lost_its_batch() -> None:
    """Also where a glance at its first row could not tell."""
    table = nn.Embedding(5, 2)
    optimizer = md.RMD(table.parameters(), lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(table(torch.tensor([3, 4])).square().sum(1), torch.arange(2)).backward()
    table.weight.grad = torch.zeros_like(table.weight)
    optimizer.step()
    assert not optimizer.aux.values.any()


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_gradients_cleared_through_data_are_noticed_wherever_they_were_not_0(zeros: int) -> None:
    w, optimizer = one_weight()
    mask = torch.arange(4) >= zeros
    optimizer.loss(w.square() * mask + 1, torch.arange(4)).backward()
    assert w.grad is not None
    w.grad.data.zero_()
    optimizer.step()
    assert not optimizer.aux.values.any()


def test_gradients_that_were_changed_count_though_some_are_0() -> None:
    """As torch's own clipping, or noise, changes them."""
    dead, w = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = md.RMD([dead, w], lr=0.1, lam=1.0, num_samples=2)
    optimizer.loss(w.square() + 0 * dead, torch.arange(2)).backward()
    nn.utils.clip_grad_value_([dead, w], 0.1)
    optimizer.step()
    assert bool(optimizer.aux.values.all())


def test_a_parameter_of_no_dimension_is_a_parameter() -> None:
    w = nn.Parameter(torch.tensor(2.0))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2)
    for _ in range(2):
        (optimizer.loss(w.square().expand(2), torch.arange(2)) / 2).backward()
    optimizer.step()
    assert bool(optimizer.aux.values.all())


class Breaking(torch.autograd.Function):
    """Runs out of something on its way back."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        raise MemoryError


def test_a_batch_whose_backward_pass_broke_off_moves_nothing() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w[:2].square(), torch.arange(2)).backward()
    held = optimizer.loss(Breaking.apply(w)[2:].square(), torch.arange(2, 4))  # type: ignore[no-untyped-call]  # torch gives it no types
    with pytest.raises(MemoryError):
        held.backward()
    optimizer.step()
    assert (optimizer.aux.values != 0).tolist() == [True, True, False, False]


def test_a_step_may_be_taken_by_a_hook_of_the_backward_pass() -> None:
    """As where an optimizer for each parameter frees its gradient at once."""
    w, plain = one_weight(), one_weight()

    def hook(p: Tensor) -> None:
        w[1].step()
        p.grad = None

    w[0].register_post_accumulate_grad_hook(hook)
    for _ in range(3):
        w[1].loss(w[0].square(), torch.arange(4)).backward()
        plain[1].zero_grad()
        plain[1].loss(plain[0].square(), torch.arange(4)).backward()
        plain[1].step()
    assert torch.equal(w[0], plain[0])
    assert torch.equal(w[1].aux.values, plain[1].aux.values)
    assert bool(w[1].aux.values.all())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_step_by_a_hook_goes_with_checkpointed_activations(reentrant: bool) -> None:
    model, moved = nn.Linear(3, 2), []
    optimizer = md.RMD(model.parameters(), lr=0.1, lam=1.0, num_samples=4)

    def hook(_: Tensor) -> None:
        optimizer.step()
        moved.append(bool(optimizer.aux.values.any()))

    model.weight.register_post_accumulate_grad_hook(hook)
    x = torch.ones(4, 3, requires_grad=True)
    out = checkpoint(model, x, use_reentrant=reentrant)
    optimizer.loss(out.square().sum(1), torch.arange(4)).backward()
    assert moved == [True]


@pytest.mark.filterwarnings("error")
def test_a_step_that_is_skipped_on_purpose_is_none_to_be_told_of() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w.square(), torch.arange(4)).backward()
    w.grad = None
    optimizer.step()
    assert not optimizer.aux.values.any()


def accumulated(factors: list[float]) -> md.RMD:
    w = nn.Parameter(torch.ones(4))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4)
    for _ in range(4):
        optimizer.zero_grad()
        for index, factor in zip(torch.arange(4).chunk(len(factors)), factors, strict=True):
            (optimizer.loss(w[index].square(), index) * factor).backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("factors", [[1.0, 1.0], [0.5, 1.5], [1.0] * 4])
def test_micro_batches_that_nobody_scaled_are_told(factors: list[float]) -> None:
    with pytest.warns(UserWarning, match=rf"of {len(factors)} batches .* add up to {sum(factors):g} and not to 1"):
        accumulated(factors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factors", [[0.5, 0.5], [0.25, 0.75], [1.0], [2.0], [0.25] * 2, [8.0, 8.0], [65536.0] * 2])
def test_micro_batches_by_their_shares_or_a_scalers_factor_are_as_they_should_be(factors: list[float]) -> None:
    assert bool(accumulated(factors).aux.values.any())


def test_micro_batches_are_looked_at_once() -> None:
    optimizer = accumulated([0.5, 0.5])
    assert optimizer._stability._steps == copy.deepcopy(optimizer)._stability._steps == [0, 3]


Passes = Callable[[md.RMD, nn.Parameter, Tensor, "list[Tensor]"], None]


def half(optimizer: md.RMD, outputs: Tensor, index: Tensor) -> Tensor:
    return optimizer.loss(outputs.square() / 2, index) / 2


def each_in_a_pass(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    for index in parts:
        half(optimizer, x[index] @ w, index).backward()


def checkpointed(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    """The loss goes backward in a pass within the pass."""
    for index in parts:
        checkpoint(half, optimizer, x[index] @ w, index, use_reentrant=True).backward()


def checkpointed_in_one(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    outputs = x @ w
    losses = [checkpoint(half, optimizer, outputs[index], index, use_reentrant=True) for index in parts]
    torch.stack(losses).sum().backward()


def partly_checkpointed(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    outputs = x @ w
    within = checkpoint(half, optimizer, outputs[parts[0]], parts[0], use_reentrant=True)
    (within + half(optimizer, outputs[parts[1]], parts[1])).backward()


def partly_checkpointed_later(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    partly_checkpointed(optimizer, w, x, parts[::-1])


def by_the_outputs_first(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    """Backward to the outputs, and from there to the weights, batch by batch."""
    for index in parts:
        outputs = x[index] @ w
        leaf = outputs.detach().requires_grad_()
        half(optimizer, leaf, index).backward()
        outputs.backward(leaf.grad)


def by_all_outputs_first(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    """The same with the gradients of all outputs kept, before any of them reaches the weights."""
    held = []
    for index in parts:
        outputs = x[index] @ w
        held.append((outputs, outputs.detach().requires_grad_()))
        half(optimizer, held[-1][1], index).backward()
    for outputs, leaf in held:
        outputs.backward(leaf.grad)


def in_two_threads(optimizer: md.RMD, w: nn.Parameter, x: Tensor, parts: list[Tensor]) -> None:
    gate = threading.Barrier(2)

    def one(index: Tensor) -> None:
        loss = half(optimizer, x[index] @ w, index)
        gate.wait()
        loss.backward()

    threads = [threading.Thread(target=one, args=(index,)) for index in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("zeros", [False, True], ids=["no gradients", "zeros"])
@pytest.mark.parametrize(
    "passes",
    [
        checkpointed,
        checkpointed_in_one,
        partly_checkpointed,
        partly_checkpointed_later,
        by_the_outputs_first,
        by_all_outputs_first,
        in_two_threads,
    ],
)
def test_a_batch_counts_however_its_gradient_comes_to_the_weights(passes: Passes, zeros: bool) -> None:
    """Whichever passes there are, w and z move as if each batch had gone backward by itself."""
    torch.manual_seed(0)
    x, parts = torch.randn(16, 5), list(torch.arange(16).split(8))
    ends = []
    for way in (each_in_a_pass, passes):
        w = nn.Parameter(torch.ones(5))
        optimizer = md.RMD([w], lr=0.1, lam=2.0, num_samples=16, lam_convention="objective")
        for _ in range(3):
            way(optimizer, w, x, parts)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not zeros)
        ends.append((w.detach(), optimizer.aux.values))
    torch.testing.assert_close(ends[1], ends[0])
    assert bool(ends[0][1].all())


@pytest.mark.parametrize("first", [False, True], ids=["between", "before"])
def test_a_look_at_inputs_with_frozen_weights_is_no_batch(first: bool) -> None:
    """An adversary's gradient, by backward: it leads to no weight, and none is to come."""
    w, optimizer = one_weight()
    if not first:
        (optimizer.loss(w[:2].square(), torch.arange(2)) / 2).backward()
    w.requires_grad_(False)
    x = torch.ones(2, requires_grad=True)
    optimizer.loss((x * w[2:]).square(), torch.arange(2)).backward()
    w.requires_grad_(True)
    (optimizer.loss(w[2:].square(), torch.arange(2, 4)) / 2).backward()
    assert [batch.index.tolist() for batch in optimizer._pending.batches] == [[0, 1]] * (not first) + [[2, 3]]


@pytest.mark.parametrize("losses", [1, 2])
def test_gradients_put_there_by_hand_are_stepped_by_every_time(losses: int) -> None:
    """The first time there are none before, later those of the step before."""
    torch.manual_seed(0)
    x, parts = torch.randn(8, 5), torch.arange(8).split(8 // losses)
    ends = []
    for by_hand in (False, True):
        w = nn.Parameter(torch.ones(5))
        optimizer = md.RMD([w], lr=0.1, lam=2.0, num_samples=8)
        for _ in range(3):
            found = [optimizer.loss((x[index] @ w - 1).square() / 2, index) / losses for index in parts]
            if by_hand:
                w.grad = sum((torch.autograd.grad(loss, w)[0] for loss in found), start=torch.zeros(5))
            else:
                optimizer.zero_grad()
                for loss in found:
                    loss.backward()
            optimizer.step()
        ends.append((w.detach(), optimizer.aux.values))
    torch.testing.assert_close(*ends)
    assert bool(ends[0][1].all())


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "max_norm"])
def test_gradients_put_there_by_hand_are_clipped_with_zs_step(clip: str) -> None:
    ends = []
    for by_hand in (False, True):
        w = nn.Parameter(torch.zeros(4))
        optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4, max_norm=0.01 if clip == "max_norm" else None)
        for _ in range(2):
            loss = optimizer.loss((w - 1).square() / 2, torch.arange(4))
            if by_hand:
                (w.grad,) = torch.autograd.grad(loss, w)
            else:
                optimizer.zero_grad()
                loss.backward()
            if clip == "clip_grad_norm_":
                optimizer.clip_grad_norm_(0.01)
            optimizer.step()
        ends.append((w.detach(), optimizer.aux.values))
    torch.testing.assert_close(*ends)


def test_a_look_moves_no_z_where_gradients_are_cleared() -> None:
    w, optimizer = one_weight()
    torch.autograd.grad(optimizer.loss(w.square(), torch.arange(4)), w)
    w.grad = torch.zeros(4)
    optimizer.step()
    assert not optimizer.aux.values.any()


def test_looks_do_not_pile_up_and_one_survives_a_copy() -> None:
    w, optimizer = one_weight()
    for _ in range(200):
        torch.autograd.grad(optimizer.loss(w.square(), torch.arange(4)), w)
    assert len(optimizer._pending.aside) <= ASIDE
    optimizer.zero_grad()
    (slope,) = torch.autograd.grad(optimizer.loss(w.square(), torch.arange(4)), w)
    twin = copy.deepcopy(optimizer)
    twin.param_groups[0]["params"][0].grad = slope
    twin.step()
    assert bool(twin.aux.values.all())


def test_what_was_only_looked_at_moves_nothing() -> None:
    w, optimizer = one_weight()
    optimizer.loss(w.square(), torch.arange(4)).backward()
    optimizer.step()
    torch.autograd.grad(optimizer.loss(w.square(), torch.arange(4)), w)
    z, before = optimizer.aux.values.clone(), w.detach().clone()
    with pytest.raises(RuntimeError, match="no batch"):
        optimizer.step()  # by the gradients of the step before
    assert torch.equal(optimizer.aux.values, z)
    assert torch.equal(w.detach(), before)


def test_two_optimizers_for_one_loss_are_told_to_be_one_with_two_groups() -> None:
    body, head = (nn.Parameter(torch.ones(2)) for _ in range(2))
    one, other = (md.RMD([w], lr=0.1, lam=1.0, num_samples=2) for w in (body, head))
    one.loss((body * head).square(), torch.arange(2)).backward()
    one.step()
    with pytest.raises(RuntimeError, match=r"no batch.* parameter groups of one RMD, and not an RMD each.* RMDTrainer"):
        other.step()


def test_a_look_at_some_samples_moves_none_when_others_train() -> None:
    w, optimizer = one_weight()
    index = torch.arange(4)
    torch.autograd.grad(optimizer.loss((w[:2] - 2).square() / 2, index[:2]), w)
    optimizer.loss((w[2:] - 2).square() / 2, index[2:]).backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.aux.values, torch.tensor([0.0, 0.0, 0.1, 0.1]))
    w.grad = torch.ones(4)  # what was looked at before that step is no batch of the next one
    with pytest.raises(RuntimeError, match="no batch"):
        optimizer.step()


def test_a_batch_that_a_hook_has_stepped_by_is_not_one_of_the_next_step() -> None:
    w, optimizer = one_weight()

    def hook(p: Tensor) -> None:
        optimizer.step()
        p.grad = None

    handle = w.register_post_accumulate_grad_hook(hook)
    optimizer.loss((w - 2).square() / 2, torch.arange(4)).backward()
    handle.remove()
    z = optimizer.aux.values.clone()
    assert bool(z.all())
    w.grad = torch.ones(4)
    with pytest.raises(RuntimeError, match="no batch"):
        optimizer.step()
    assert torch.equal(optimizer.aux.values, z)


def test_batches_of_another_network_are_told_of() -> None:
    w, optimizer = one_weight()
    probe = nn.Parameter(torch.ones(4))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(100):
            w.grad = probe.grad = None
            optimizer.loss(probe.square(), torch.arange(4)).backward()
    assert ["Are they of another network?" in str(warning.message) for warning in told] == [True]
    assert told[0].filename == __file__


def left(_: md.RMD, __: nn.Module) -> None:
    """Nobody clears them."""


def by_the_optimizer(optimizer: md.RMD, _: nn.Module) -> None:
    optimizer.zero_grad()


def by_the_optimizer_to_zeros(optimizer: md.RMD, _: nn.Module) -> None:
    optimizer.zero_grad(set_to_none=False)


def by_the_model(_: md.RMD, model: nn.Module) -> None:
    model.zero_grad()


def by_the_model_to_zeros(_: md.RMD, model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def by_hand(_: md.RMD, model: nn.Module) -> None:
    for w in model.parameters():
        w.grad = None


def by_zeros(_: md.RMD, model: nn.Module) -> None:
    for w in model.parameters():
        w.grad = torch.zeros_like(w)


def through_data(_: md.RMD, model: nn.Module) -> None:
    for w in model.parameters():
        if w.grad is not None:
            w.grad.data.zero_()


def where_they_are_trained(_: md.RMD, model: nn.Module) -> None:
    for w in model.parameters():
        if w.requires_grad:
            w.grad = None


CLEARED = [by_the_optimizer, by_the_optimizer_to_zeros, by_the_model, by_the_model_to_zeros, by_hand, by_zeros]
CLEARED += [through_data, where_they_are_trained]
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.standin])]


def small(device: str = "cpu", **options: Any) -> tuple[nn.Module, md.RMD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
    return model, md.RMD(model.parameters(), lr=0.1, lam=1.0, num_samples=8, **options)


def backward(model: nn.Module, optimizer: md.RMD, part: float = 1.0) -> Tensor:
    x = torch.randn(8, 3, device=next(model.parameters()).device)
    loss = optimizer.loss(model(x)[:, 0].square(), torch.arange(8)) * part
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.1, "momentum": 0.9}, {"foreach": False}], ids=str)
def test_gradients_that_nobody_clears_are_told_once(device: str, options: dict[str, Any]) -> None:
    model, optimizer = small(device, **options)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            backward(model, optimizer)
            optimizer.step()
    assert ["call zero_grad() between step() and the next backward()" in str(one.message) for one in told] == [True]
    assert told[0].filename == __file__


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clear", CLEARED)
def test_gradients_that_somebody_clears_are_not_told(clear: Callable[[md.RMD, nn.Module], None], device: str) -> None:
    """In any way and order, with several backward passes for a step, steps that are skipped and passes in between."""
    model, optimizer = small(device)
    for before in (False, True):
        for k in range(4):
            if before:
                clear(optimizer, model)
            backward(model, optimizer, 0.5)
            backward(model, optimizer, 0.5)
            if k != 2:  # as a GradScaler skips one
                optimizer.step()
            if not before:
                clear(optimizer, model)
        backward(model, optimizer)  # to look at the inputs' gradients, say
        clear(optimizer, model)


@pytest.mark.parametrize("clear", CLEARED)
def test_gradients_of_layers_that_are_frozen_later_are_not_told(clear: Callable[[md.RMD, nn.Module], None]) -> None:
    """They may stay, as no pass adds to them."""
    model, optimizer = small()
    backward(model, optimizer)
    optimizer.step()
    first, second = model[0], model[2]  # type: ignore[index]
    first.requires_grad_(False)
    for _ in range(3):
        clear(optimizer, model)
        backward(model, optimizer)
        optimizer.step()
    second.requires_grad_(False)
    first.requires_grad_(True)
    clear(optimizer, model)
    if clear is not where_they_are_trained:  # it has left those of the second layer, and clears the first one's now
        backward(model, optimizer)
        optimizer.step()


def test_other_passes_over_gradients_that_are_still_there_are_not_told() -> None:
    model, optimizer = small()
    w = model[2].bias  # type: ignore[index]
    loss = optimizer.loss((w - 1).square().expand(8), torch.arange(8)) / 2
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    torch.autograd.grad(optimizer.loss((w - 1).square().expand(8), torch.arange(8)), w)  # a look, which adds to nothing
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    for w in model.parameters():
        assert w.grad is not None
        w.grad.mul_(0.5)  # whoever does this means to keep them
    backward(model, optimizer)
    optimizer.step()


@pytest.fixture
def alone_in_a_group(tmp_path: Path) -> Iterator[None]:
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("needs gloo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone_in_a_group")
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("clear", [left, *CLEARED])
def test_gradients_in_the_buckets_of_distributed_training(
    clear: Callable[[md.RMD, nn.Module], None], view: bool
) -> None:
    """As views of a bucket they have one memory and one version for as long as the model lives."""
    model, optimizer = small()
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=view)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(4):
            backward(wrapped, optimizer)
            optimizer.step()
            clear(optimizer, wrapped)
    assert len([one for one in told if "call zero_grad()" in str(one.message)]) == (clear is left)


def test_a_closure_that_clears_is_not_told_and_one_that_does_not_is() -> None:
    model, optimizer = small()

    def closure() -> float:
        optimizer.zero_grad()
        return float(backward(model, optimizer))

    for _ in range(3):
        optimizer.step(closure)
    with pytest.warns(UserWarning, match="the gradients of the last step were still there"):
        optimizer.step(lambda: float(backward(model, optimizer)))


@pytest.mark.parametrize("fused", [False, True])
def test_a_scalers_steps_are_not_told(fused: bool) -> None:
    model, optimizer = small(fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(4):
        factor = math.inf if k == 1 else 1.0
        x = torch.randn(8, 3)
        scaler.scale(optimizer.loss(model(x)[:, 0].square(), torch.arange(8)) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=k % 2 == 0)
