"""What only a GPU can show: the kernels, no waiting of the host, graph capture, samples rejected without an error."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch
from cases import CASES, Case, every_case
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent import fused
from mirrordescent.lab.timing import captured as capture

# cuBLAS is deterministic only with a fixed workspace, and reads this once.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("ignore:under .* lr = ")]  # one step for all potentials
GPU = torch.cuda.is_available()
STANDIN, INTERPRETED = pytest.mark.standin, pytest.mark.standin(kernels=True)

CLOSED_FORMS = [
    md.L1(),
    md.QNorm(1.5),
    md.QNorm(2.7),
    md.QNorm(3),
    md.LInf(),
    md.QNorm(20),
    0.5 * md.QNorm(3),
    md.NegativeEntropy(),
    md.HyperbolicEntropy(),
    md.HyperbolicEntropy(0.01),
]


def decades(n: int, low: float, high: float, seed: int) -> Tensor:
    """Random signs and sizes, spread evenly over the decades."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.rand(n, generator=generator) * (math.log10(high) - math.log10(low)) + math.log10(low)
    return torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0) * 10**exponent


@INTERPRETED
@pytest.mark.parametrize("psi", CLOSED_FORMS, ids=lambda psi: psi.spec)
def test_kernel_is_accurate_in_the_dual(psi: md.Potential) -> None:
    n = 1_000_003 if GPU else 50_003
    positive = isinstance(psi, md.NegativeEntropy)
    w = decades(n, 1e-8, 1e2, 0)
    w = w.abs() if positive else w
    delta = decades(n, 1e-12, 10.0 if positive or "hyp" in psi.spec else 1e3, 1)
    dual = psi.gradient(w.double())
    # a third close to cancellation, a third small beside the dual, and zeros of both
    delta[::3] = -(dual * (1 + 1e-3 * decades(n, 1e-3, 1, 2).double())).float()[::3]
    delta[1::3] = (dual * decades(n, 1e-9, 0.3, 3).double()).float()[1::3]
    delta[:100] = 0
    if not positive:
        w[50:150] = 0
    dual = psi.gradient(w.double())
    v = nn.Parameter(w.cuda())
    v.grad = -delta.cuda()
    assert fused.supports(psi, v)
    md.SMD([v], lr=1.0, potential=psi, fused=True).step()
    stepped = v.detach().cpu()
    assert torch.equal(stepped[delta == 0].view(torch.int32), w[delta == 0].view(torch.int32))
    size = dual.abs() + delta.double().abs()
    error = (psi.gradient(stepped.double()) - dual - delta.double()).abs()
    # The kernel counts numbers below 2^-126, weights or changes, as 0.
    floor = psi.gradient(torch.tensor(2.0**-126, dtype=torch.float64)) + 2.0**-125 if hasattr(psi, "q") else 1e-7
    representable = size.isfinite() & (w.abs().double() < 1e30)
    tolerance = 1e-5 * max(1.0, (getattr(psi, "q", 2.0) - 1) / 9)  # a digit of w is q − 1 digits of the dual
    assert bool((error <= tolerance * size + floor)[representable].all())
    if isinstance(psi, md.QNorm) and psi.q <= 10:
        assert bool(stepped.isfinite().all())


@INTERPRETED
@pytest.mark.parametrize("beta", [None, 1.0, 1e-30, 1e-25, 1e20])
@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e10])
def test_kernels_of_the_entropies_reach_as_far_as_numbers_do(beta: float | None, size: float) -> None:
    """Where an exponential is beyond any number, and its product with a weight is not; no beta is negative entropy."""
    psi = md.NegativeEntropy() if beta is None else md.HyperbolicEntropy(beta)
    w = decades(10_000, size, 1e3 * size, 0)
    w = w.abs() if beta is None else w
    delta = decades(10_000, 1e-3, 170.0, 1)
    expected = psi.step(w.double(), delta.double())
    v = nn.Parameter(w.cuda())
    v.grad = -delta.cuda()
    md.SMD([v], lr=1.0, potential=psi, fused=True).step()
    held = (expected.abs() < 1e38) & (expected.abs() > 1e-37)
    assert int(held.sum()) > 1000
    found, dual = v.detach().cpu().double()[held], psi.gradient(w.double())[held]
    error = (psi.gradient(found) - dual - delta.double()[held]).abs()
    assert bool((error <= 1e-5 * (dual.abs() + delta.double()[held].abs()) + 1e-7).all())


@INTERPRETED
@pytest.mark.parametrize("psi", CLOSED_FORMS, ids=lambda psi: psi.spec)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("maximize", [False, True])
def test_kernel_equals_the_plain_path(psi: md.Potential, dtype: torch.dtype, momentum: float, maximize: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    start = 0.05 + torch.rand(3, 5, 7, 11, generator=generator)
    one, other = (nn.Parameter(start.to("cuda", dtype).to(memory_format=torch.channels_last)) for _ in range(2))
    settings: dict[str, Any] = {"lr": 0.01, "potential": psi, "momentum": momentum, "maximize": maximize}
    kernel = md.SMD([one], fused=True, **settings)
    plain = md.SMD([other], foreach=False, fused=False, **settings)
    for _ in range(5):
        one.grad = torch.randn(start.shape, generator=generator).to("cuda", dtype).to(memory_format=torch.channels_last)
        other.grad = one.grad.clone()
        kernel.step()
        plain.step()
    # In the dual, where the step is an addition; rounding w by ε is (q − 1) ε there.
    a, b = psi.gradient(one.detach().double()), psi.gradient(other.detach().double())
    steepness = max(1.0, getattr(psi, "q", 2.0) - 1)
    close = 20 * steepness * max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(a, b, rtol=close, atol=0.1 * close)


@INTERPRETED
def test_kernel_with_tensor_lr_weights_scale_and_overflow() -> None:
    start, gradient = torch.rand(1000).cuda() + 0.1, torch.randn(1000).cuda()
    weight = torch.rand(1000).cuda() + 0.5
    for psi in (md.QNorm(3), md.Quadratic(weight)):
        expected = psi.step(start, -0.1 * gradient)
        for lr in (0.1, torch.tensor(0.1), torch.tensor(0.1).cuda(), torch.tensor([[0.1]]).cuda()):
            w = nn.Parameter(start.clone())
            w.grad = gradient.clone()
            md.SMD([w], lr=lr, potential=psi, fused=True).step()
            torch.testing.assert_close(w.detach(), expected, rtol=1e-5, atol=1e-6)
        for overflow in (False, True):
            w = nn.Parameter(start.clone())
            w.grad = 8 * gradient
            optimizer = md.SMD([w], lr=0.1, potential=psi, fused=True, momentum=0.5)
            optimizer.grad_scale = torch.tensor(8.0).cuda()  # type: ignore[attr-defined]
            optimizer.found_inf = torch.tensor(float(overflow)).cuda()  # type: ignore[attr-defined]
            optimizer.step()
            torch.testing.assert_close(w.detach(), start if overflow else expected, rtol=1e-5, atol=1e-6)
            assert optimizer.state[w]["momentum_buffer"].any() != overflow


@INTERPRETED
@pytest.mark.parametrize("psi", [*CLOSED_FORMS, 2 * md.NegativeEntropy()], ids=lambda psi: psi.spec)
def test_kernel_hides_no_nan(psi: md.Potential) -> None:
    w = nn.Parameter(torch.ones(2).cuda())
    w.grad = torch.tensor([math.nan, 0.0]).cuda()
    md.SMD([w], lr=0.1, potential=psi, fused=True).step()
    assert w.isnan().cpu().tolist() == [True, False]


@STANDIN
@pytest.mark.parametrize("path", [{}, {"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_l2_is_sgd_bit_for_bit(path: dict[str, Any], momentum: float) -> None:
    ours, theirs = ([nn.Parameter(torch.linspace(-1, 1, 1000 + k).cuda()) for k in range(5)] for _ in range(2))
    smd = md.SMD(ours, lr=0.1, momentum=momentum, **path)
    sgd = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, **path)
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        smd.step()
        sgd.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@INTERPRETED
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_large_tensor_steps_like_sgd(momentum: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """There ℓ2 takes a kernel of its own: the same numbers, but for rounding."""
    monkeypatch.setattr(fused, "LARGE", 1 << 12)
    start, gradient = torch.randn(fused.LARGE + 5).cuda(), torch.randn(fused.LARGE + 5).cuda()
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    small = nn.Parameter(start[:100].clone())
    smd = md.SMD([ours, small], lr=0.1, momentum=momentum, fused=True)
    sgd = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, fused=True)
    for _ in range(3):
        ours.grad, theirs.grad, small.grad = gradient, gradient.clone(), gradient[:100].clone()
        smd.step()
        sgd.step()
    torch.testing.assert_close(ours, theirs, rtol=3e-7, atol=1e-6)
    torch.testing.assert_close(small, theirs[:100], rtol=3e-7, atol=1e-6)


class Task:
    """A small classification on the device, with everything in place so that it can be captured."""

    def __init__(self, case: Case, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
        with torch.no_grad():
            for k, w in enumerate(self.model.parameters()):
                w.copy_(0.2 * case.weights(*w.shape, seed=k, dtype=torch.float32))
        self.model.cuda()
        self.x, self.y = torch.randn(64, 20).cuda(), torch.randint(5, (64,)).cuda()
        self.index = torch.arange(16).cuda()
        settings = {"lr": 0.05, "lam": 1.0, "num_samples": 64, "potential": case.potential, **options}
        self.optimizer = md.RMD(self.model.parameters(), **settings)

    def step(self) -> None:
        logits = self.model(self.x[self.index])
        losses = nn.functional.cross_entropy(logits, self.y[self.index], reduction="none")
        self.optimizer.loss(losses, self.index).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> list[Tensor]:
        return [*(w.detach().clone() for w in self.model.parameters()), self.optimizer.aux.values.clone()]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"reduction": "batch"},
    {"momentum": 0.9},
    {"fused": True},
    {"foreach": True},
    {"foreach": False, "fused": False},
    {"penalty": "huber", "lam_convention": "objective"},
    {"max_norm": 0.1},
]


FEW = ["l2", "q=3", "squarednorm=3"]  # of each kind one whose step is of few operations


@STANDIN
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@every_case
def test_the_host_never_waits(case: Case) -> None:
    task = Task(case, momentum=0.5)
    task.step()  # compiles what has to be compiled
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        task.step()
        losses = nn.functional.cross_entropy(task.model(task.x[:8]), task.y[:8], reduction="none")
        (task.optimizer.loss(losses, task.index[:8]) / 2).backward()
        losses = nn.functional.cross_entropy(task.model(task.x[8:16]), task.y[8:16], reduction="none")
        (task.optimizer.loss(losses, task.index[8:]) / 2).backward()
        task.optimizer.clip_grad_norm_(0.1)
        task.optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@STANDIN
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_of_a_smaller_batch_whose_factor_nobody_may_look_at_there_is_no_warning() -> None:
    """It may well have been scaled by its share. Where one may look, one that was not is told."""
    task = Task(CASES[0])

    def step(size: int, share: float) -> None:
        losses = nn.functional.cross_entropy(task.model(task.x[:size]), task.y[:size], reduction="none")
        (task.optimizer.loss(losses, task.index[:size]) * share).backward()
        task.optimizer.step()
        task.optimizer.zero_grad()

    step(8, 1.0)
    try:
        torch.cuda.set_sync_debug_mode("error")
        step(4, 0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        step(4, 0.5)
    with pytest.warns(UserWarning, match="a batch of 4 after one of 8"):
        step(4, 1.0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=STANDIN) for name in FEW),
        pytest.param("hypentropy", marks=INTERPRETED),
        "sum",
        "convex",
    ],
)
def test_captured_step_equals_eager_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    case = next(c for c in CASES if c.name == name)
    if options.get("fused") and not fused.supports(case.potential, torch.zeros(1, device="cuda")):
        pytest.skip("no kernel for this potential")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        eager, captured = Task(case, **options), Task(case, **options)
        replay = capture(captured.step)  # after three steps
        for _ in range(3):
            eager.step()
        for k in range(5):
            fresh = torch.randperm(64)[:16].cuda()
            captured.index.copy_(fresh)
            eager.index.copy_(fresh)
            replay()
            eager.step()
            for a, b in zip(captured.state(), eager.state(), strict=True):
                assert torch.equal(a, b), k
    finally:
        torch.use_deterministic_algorithms(False)


@STANDIN
@pytest.mark.parametrize("name", ["l2", "q=3"])
def test_a_captured_graph_reads_a_tensor_lr_anew(name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    lr = torch.tensor(0.05).cuda()
    captured, eager = Task(case, lr=lr), Task(case)
    replay = capture(captured.step)  # after three steps
    for _ in range(3):
        eager.step()
    lr.fill_(0.01)
    eager.optimizer.param_groups[0]["lr"] = 0.01
    replay()
    eager.step()
    for a, b in zip(captured.state(), eager.state(), strict=True):
        torch.testing.assert_close(a, b)


@STANDIN
@pytest.mark.parametrize("reduction", ["sample", "batch"])
def test_bad_samples_are_left_out_counted_and_reported(reduction: str) -> None:
    case = CASES[0]
    task = Task(case, reduction=reduction)
    losses = nn.functional.cross_entropy(task.model(task.x[:4]), task.y[:4], reduction="none")
    losses = losses * torch.tensor([1.0, 1.0, -1.0, 1.0]).cuda()
    task.optimizer.loss(losses, torch.tensor([0, 64, 2, -1]).cuda()).backward()
    task.optimizer.step()
    assert task.optimizer.aux.rejected == 3
    z = task.optimizer.aux.values
    assert z[0] > 0
    assert not z[1:].any()
    for error in (IndexError, ValueError):
        with pytest.warns(UserWarning, match="3 samples"):
            task.optimizer.state_dict()
        with pytest.raises(error, match="3 samples"):
            task.optimizer.aux.check()
        task.optimizer.aux.check()  # reported once
        task.optimizer.param_groups[0]["z_rejected"].fill_(3)


@STANDIN
def test_bad_samples_leave_w_to_the_good_ones() -> None:
    bad, good = Task(CASES[0]), Task(CASES[0])
    for task, index in ((bad, [0, 64]), (good, [0])):
        rows = torch.arange(len(index)).cuda()
        losses = nn.functional.cross_entropy(task.model(task.x[rows]), task.y[rows], reduction="none")
        (task.optimizer.loss(losses, torch.tensor(index).cuda()) * len(index)).backward()
        task.optimizer.step()
    for a, b in zip(bad.model.parameters(), good.model.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@STANDIN
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_never_reaches_z(bad: float) -> None:
    task = Task(CASES[0])
    losses = nn.functional.cross_entropy(task.model(task.x[:4]), task.y[:4], reduction="none")
    task.optimizer.loss(losses * torch.tensor([1.0, bad, 1.0, 1.0]).cuda(), torch.arange(4).cuda()).backward()
    task.optimizer.step()
    assert bool(task.optimizer.aux.values.isfinite().all())
    assert task.optimizer.aux.rejected == 0


@STANDIN
def test_an_index_on_the_cpu_is_checked_at_once() -> None:
    task = Task(CASES[0])
    losses = nn.functional.cross_entropy(task.model(task.x[:2]), task.y[:2], reduction="none")
    with pytest.raises(IndexError, match="got 64"):
        task.optimizer.loss(losses, torch.tensor([0, 64]))
    task.optimizer.loss(losses, torch.tensor([0, 1])).backward()
    task.optimizer.step()


def test_z_and_momentum_follow_a_model_that_moves() -> None:
    model = nn.Linear(3, 2)
    optimizer = md.RMD(model.parameters(), lr=0.1, lam=1.0, num_samples=4, momentum=0.5)
    model.cuda()
    losses = nn.functional.cross_entropy(
        model(torch.randn(4, 3).cuda()), torch.zeros(4).long().cuda(), reduction="none"
    )
    optimizer.loss(losses, torch.arange(4)).backward()
    optimizer.step()
    assert optimizer.aux.values.is_cuda
    assert optimizer.aux.values.any()


@STANDIN
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_look_from_the_cpu_leaves_z_to_the_captured_step() -> None:
    w = nn.Parameter(torch.ones(4, device="cuda"))
    optimizer, index = md.RMD([w], lr=0.1, lam=1.0, num_samples=4), torch.arange(4, device="cuda")
    z = optimizer.aux.values
    with torch.no_grad():
        assert optimizer.loss(torch.ones(2), torch.arange(2)) == 1
    assert optimizer.aux.values is z
    optimizer.loss((w - 2).square() / 2, index).backward()
    optimizer.step()
    assert bool(z.all())


@STANDIN
@pytest.mark.parametrize("reduction", ["sample", "batch"])
def test_gradients_zeroed_in_place_have_lost_their_batch(reduction: str) -> None:
    """|B| is then that of the batches that are left, too."""
    w, empty = (nn.Parameter(torch.ones(size, device="cuda")) for size in (4, 0))
    options: dict[str, Any] = {"reduction": reduction, "lam_convention": "objective"}
    optimizer, index = md.RMD([w, empty], lr=0.1, lam=1.0, num_samples=4, **options), torch.arange(4, device="cuda")
    optimizer.loss((w - 2).square() / 2 + empty.sum(), index).backward()
    assert w.grad is not None
    w.grad.zero_()
    optimizer.step()
    assert optimizer.aux.values.cpu().tolist() == [0, 0, 0, 0]
    optimizer.zero_grad()
    optimizer.loss((w[:2] - 2).square() / 2 + empty.sum(), index[:2]).backward()
    w.grad.zero_()
    optimizer.loss((w[2:] - 2).square() / 2, index[2:]).backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.aux.values.cpu(), torch.tensor([0.0, 0.0, 0.05, 0.05]))


@STANDIN
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("clip", [False, True])
def test_a_batch_that_was_only_looked_at_moves_no_z_where_gradients_are_zeros(clip: bool) -> None:
    """As on a CPU, where it is seen at once. Gradients that are no zeros do, and one without elements says nothing."""
    w, empty = (nn.Parameter(torch.ones(size, device="cuda")) for size in (4, 0))
    optimizer, index = md.RMD([w, empty], lr=0.1, lam=1.0, num_samples=4), torch.arange(4, device="cuda")
    for share, moves in ((0, False), (1, True)):
        found = torch.autograd.grad(optimizer.loss((w - 2).square() / 2 + empty.sum(), index), [w, empty])
        try:
            torch.cuda.set_sync_debug_mode("error")
            w.grad, empty.grad = (share * gradient for gradient in found)
            if clip:
                optimizer.clip_grad_norm_(10.0)
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert optimizer.aux.values.any() == moves
        assert (w != 1).any() == moves


@STANDIN
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_where_no_gradient_has_elements_nobody_waits_to_see_it_cleared() -> None:
    empty = nn.Parameter(torch.ones(0, device="cuda"))
    optimizer, index = md.RMD([empty], lr=0.1, lam=1.0, num_samples=4), torch.arange(4, device="cuda")
    optimizer.loss(empty.sum().square().expand(4) + 1, index).backward()
    assert empty.grad is not None
    empty.grad.zero_()
    try:
        torch.cuda.set_sync_debug_mode("error")
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not optimizer.aux.values.any()


@STANDIN
def test_a_checkpoint_crosses_devices() -> None:
    task = Task(CASES[0], momentum=0.5)
    task.step()
    saved = task.optimizer.state_dict()
    cpu = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    optimizer = md.RMD(cpu.parameters(), lr=0.1, lam=1.0, num_samples=64, momentum=0.5)
    optimizer.load_state_dict(saved)
    assert optimizer.aux.values.device.type == "cpu"
    assert torch.equal(optimizer.aux.values, task.optimizer.aux.values.cpu())


@pytest.mark.parametrize("fused_path", [None, True])
@pytest.mark.parametrize("name", ["l2", "q=3"])
def test_grad_scaler_in_float16(name: str, fused_path: bool | None) -> None:
    """The scale starts so high that the first steps overflow: they move neither w nor z."""
    case = next(c for c in CASES if c.name == name)
    task = Task(case, fused=fused_path)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
    start, skipped = task.state(), 0
    for _ in range(60):
        task.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            logits = task.model(task.x[task.index])
            losses = nn.functional.cross_entropy(logits, task.y[task.index], reduction="none")
        before, scale = task.state(), scaler.get_scale()
        scaler.scale(task.optimizer.loss(losses, task.index)).backward()
        scaler.step(task.optimizer)
        scaler.update()
        if scaler.get_scale() < scale:
            skipped += 1
            assert all(torch.equal(a, b) for a, b in zip(before, task.state(), strict=True))
    assert 0 < skipped < 60
    assert not torch.equal(start[-1], task.state()[-1])
    assert all(bool(t.isfinite().all()) for t in task.state())


@pytest.mark.parametrize("name", ["l2", "q=3", "hypentropy"])
def test_compiled_step_equals_eager(name: str) -> None:
    torch.compiler.reset()
    case = next(c for c in CASES if c.name == name)
    compiled, eager = Task(case), Task(case)
    step = torch.compile(compiled.optimizer.step)
    for _ in range(3):
        for task, update in ((compiled, step), (eager, eager.optimizer.step)):
            task.optimizer.zero_grad()
            losses = nn.functional.cross_entropy(task.model(task.x[task.index]), task.y[task.index], reduction="none")
            task.optimizer.loss(losses, task.index).backward()
            update()
    for a, b in zip(compiled.state(), eager.state(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_fused_step_needs_no_memory() -> None:
    for psi in ("l2", "q=3", "hypentropy"):
        w = nn.Parameter(torch.rand(1 << 24).cuda())
        w.grad = torch.rand_like(w)
        optimizer = md.SMD([w], lr=0.1, potential=psi, fused=True)
        optimizer.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        optimizer.step()
        torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() - before <= 1 << 20
        assert torch.cuda.memory_allocated() == before
