"""RMD against a literal float64 implementation of the paper's algorithms, its limits, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, Case, every_case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import linear_losses, rmd_step
from torch import Tensor, nn

import mirrordescent as md

N, P = 40, 60
SLOPES: dict[str, Callable[[Any], Any]] = {
    "square": lambda r: r,
    "huber": lambda r: np.clip(r, -1, 1),
    "logcosh": np.tanh,
}


def data(case: Case, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, P, generator=generator, dtype=torch.float64) / P**0.5
    y = torch.randn(N, generator=generator, dtype=torch.float64)
    return x, y, 0.5 * case.weights(P, seed=seed + 1)


def half_squares(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return (x @ w - y).square() / 2


def compare(case: Case, batch_size: int, *, steps: int = 200, lr: float = 0.02, **options: Any) -> None:
    """200 steps of both, on the same batches: w's dual and z to 1e-10."""
    x, y, start = data(case)
    psi = case.potential
    w = nn.Parameter(start.clone())
    optimizer = md.RMD([w], lr=lr, lam=1.5, num_samples=N, potential=psi, **options)
    v, z = start.numpy().copy(), np.zeros(N)
    generator = torch.Generator().manual_seed(5)

    def numpy_map(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        return lambda array: function(torch.from_numpy(array)).numpy()

    for _ in range(steps):
        index = torch.randint(N, (batch_size,), generator=generator)  # with repetitions
        optimizer.zero_grad()
        optimizer.loss(half_squares(x[index], y[index], w), index).backward()
        optimizer.step()
        v, z = rmd_step(
            v,
            z,
            index.tolist(),
            lambda batch, w: linear_losses(x.numpy()[batch], y.numpy()[batch], w),
            numpy_map(psi.gradient),
            numpy_map(case.inverse or psi.inverse),
            lr=lr,
            lam=1.5,
            reduction=options.get("reduction", "sample"),
            slope=SLOPES[options.get("penalty", "square")],
            per_batch=options.get("lam_convention") == "objective",
            eps=torch.finfo(torch.float64).eps,
        )
    dual, expected = psi.gradient(w.detach()), psi.gradient(torch.from_numpy(v))
    assert (dual - expected).norm() <= 1e-10 * expected.norm()
    assert (optimizer.aux.values - torch.from_numpy(z)).norm() <= 1e-10 * np.linalg.norm(z)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("reduction", ["sample", "batch"])
@every_case
def test_equals_the_literal_algorithm(case: Case, reduction: str, batch_size: int) -> None:
    compare(case, batch_size, reduction=reduction)


@pytest.mark.parametrize("reduction", ["sample", "batch"])
@pytest.mark.parametrize(
    "options", [{"penalty": "huber"}, {"penalty": "logcosh"}, {"lam_convention": "objective"}], ids=str
)
def test_penalties_and_conventions_equal_the_literal_algorithm(reduction: str, options: dict[str, Any]) -> None:
    compare(CASES[0], 7, reduction=reduction, **options)


def run(steps: int = 30, **options: Any) -> tuple[Tensor, md.RMD]:
    """A small run on the ℓ2 case, with what is asked for."""
    x, y, start = data(CASES[0])
    w = nn.Parameter(start.to(options.pop("dtype", torch.float64)))
    x, y = x.to(w.dtype), y.to(w.dtype)
    optimizer = md.RMD([w], **{"lr": 0.1, "lam": 1.5, "num_samples": N, **options})
    for k in range(steps):
        index = torch.arange(8 * k, 8 * k + 8) % N
        optimizer.zero_grad()
        optimizer.loss(half_squares(x[index], y[index], w), index).backward()
        optimizer.step()
    return w.detach(), optimizer


@every_case
@pytest.mark.parametrize("reduction", ["sample", "batch"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_infinite_lam_is_smd(case: Case, reduction: str, momentum: float) -> None:
    x, y, start = data(case)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    rmd = md.RMD(
        [ours], lr=0.05, lam=math.inf, num_samples=N, potential=case.potential, reduction=reduction, momentum=momentum
    )
    smd = md.SMD([theirs], lr=0.05, potential=case.potential, momentum=momentum)
    for k in range(20):
        index = torch.arange(8 * k, 8 * k + 8) % N
        rmd.zero_grad()
        smd.zero_grad()
        rmd.loss(half_squares(x[index], y[index], ours), index).backward()
        half_squares(x[index], y[index], theirs).mean().backward()
        rmd.step()
        smd.step()
    if reduction == "sample":
        assert torch.equal(ours, theirs)
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    assert not rmd.aux.values.any()
    assert rmd.objective_lam(8) == math.inf


def test_a_batch_of_one_is_the_same_in_both_reductions() -> None:
    def single(reduction: str) -> Tensor:
        x, y, start = data(CASES[0])
        w = nn.Parameter(start)
        optimizer = md.RMD([w], lr=0.1, lam=1.5, num_samples=N, reduction=reduction)
        for k in range(50):
            optimizer.zero_grad()
            optimizer.loss(half_squares(x[[k % N]], y[[k % N]], w), torch.tensor([k % N])).backward()
            optimizer.step()
        return w.detach()

    torch.testing.assert_close(single("sample"), single("batch"), rtol=1e-14, atol=0)


def test_value_is_the_mean_loss() -> None:
    _, optimizer = run(3)
    losses = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert optimizer.loss(losses, torch.arange(5)) == losses.mean()


def test_z_above_the_root_climbs_the_loss() -> None:
    w = nn.Parameter(torch.tensor([1.0]))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=1)
    optimizer.aux.values.fill_(3.0)
    optimizer.loss(w.square() / 2, torch.tensor([0])).backward()
    optimizer.step()
    assert w > 1
    assert optimizer.aux.values < 3


def test_a_penalty_of_ones_own() -> None:
    mine, optimizer = run(penalty=lambda r: r.clamp(-1, 1))
    theirs, _ = run(penalty="huber")
    assert torch.equal(mine, theirs)
    with pytest.raises(ValueError, match="penalty of your own"):
        run(1)[1].load_state_dict(optimizer.state_dict())


def test_every_setting_changes_the_result() -> None:
    start, base = data(CASES[0])[2], run()[0]
    for options in (
        {"lam": 3.0},
        {"lr": 0.2},
        {"reduction": "batch"},
        {"penalty": "huber", "lr": 0.05},
        {"lam_convention": "objective"},
        {"momentum": 0.5},
        {"eps": 0.1},
        {"potential": "q=3"},
    ):
        changed = run(**options)[0]
        assert not torch.allclose(changed, base, rtol=1e-6), options
        assert not torch.allclose(changed, start)
    dense, scaled = (run(momentum=0.5, momentum_rule=rule)[0] for rule in ("dense", "scaled"))
    assert not torch.allclose(dense, scaled, rtol=1e-6)


def test_z_is_float32_and_float64_beside_float64_parameters() -> None:
    assert run(1)[1].aux.values.dtype == torch.float64
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert run(1, dtype=dtype)[1].aux.values.dtype == torch.float32


def test_z_keeps_its_memory_and_no_parameter_has_state() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4)
    before = optimizer.aux.values.data_ptr()
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.loss(w.square(), torch.tensor([0, 1, 1])).backward()
        optimizer.step()
    assert optimizer.aux.values.data_ptr() == before
    assert optimizer.state_dict()["param_groups"][0]["z"].data_ptr() == before
    assert not optimizer.state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_loss_that_rounds_to_zero_moves_w_negligibly(dtype: torch.dtype) -> None:
    """Cross-entropy of a wide margin is exactly 0 while its gradient is not; z > 0 must not blow it up."""
    margin = {torch.float32: 17.0, torch.bfloat16: 9.0, torch.float16: 9.0}[dtype]
    logits = nn.Parameter(torch.tensor([[margin, 0.0]], dtype=dtype))
    optimizer = md.RMD([logits], lr=0.1, lam=16.0, num_samples=1)
    optimizer.aux.values.fill_(2.0)
    losses = nn.functional.cross_entropy(logits, torch.tensor([0]), reduction="none")
    assert losses == 0
    before = logits.detach().clone()
    optimizer.loss(losses, torch.tensor([0])).backward()
    assert logits.grad is not None
    assert logits.grad.any() or dtype == torch.float32
    optimizer.step()
    assert (logits - before).abs().max() <= 0.1 * 2 * torch.finfo(dtype).eps ** 0.5
    assert optimizer.aux.values < 2


@pytest.mark.filterwarnings("ignore:a loss is")
@pytest.mark.parametrize("reduction", ["sample", "batch"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_loss_that_is_not_finite_never_reaches_z(reduction: str, bad: float, momentum: float) -> None:
    w = nn.Parameter(torch.ones(4))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4, reduction=reduction, momentum=momentum)
    scale = torch.tensor([1.0, bad, 1.0, 1.0])
    optimizer.loss(w.square() * scale, torch.arange(4)).backward()
    optimizer.clip_grad_norm_(1.0)
    optimizer.step()
    assert bool(optimizer.aux.values.isfinite().all())
    assert optimizer.aux.values[1] == 0
    assert optimizer.aux.rejected == 0
    fresh = nn.Parameter(torch.ones(4))
    other = md.RMD([fresh], lr=0.1, lam=1.0, num_samples=4, reduction=reduction, momentum=momentum)
    other.loss(fresh.square() * scale, torch.arange(4)).backward()
    other.step()
    assert bool(other.aux.values.isfinite().all())
    if reduction == "sample":
        assert bool((other.aux.values[[0, 2, 3]] > 0).all())


def test_the_first_loss_that_is_not_finite_is_told() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=3)
    for bad in (math.nan, math.inf):
        with pytest.warns(UserWarning, match=f"a loss is {bad}: if that goes on, training has diverged"):
            md.RMD([w], lr=0.1, lam=1.0, num_samples=3).loss(w * torch.tensor([1.0, bad, 2.0]), torch.arange(3))
    with pytest.warns(UserWarning, match="a loss is nan"):
        optimizer.loss(w * math.nan, torch.arange(3))
    optimizer.loss(w * math.nan, torch.arange(3))  # told once
    with pytest.raises(ValueError, match="losses must be >= 0, got -2"):
        optimizer.loss(w * torch.tensor([math.nan, -2.0, 1.0]), torch.arange(3))


# Bad input: a clear error, and nothing has changed


@pytest.fixture
def ready() -> tuple[md.RMD, nn.Parameter]:
    w = nn.Parameter(torch.ones(3))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=3)
    optimizer.loss(w.square(), torch.arange(3)).backward()
    optimizer.step()
    return optimizer, w


def three(w: Tensor) -> Tensor:
    return w.square()


INDEX = torch.arange(3)
BAD_CALLS: dict[str, tuple[Callable[[md.RMD, Tensor], Any], type[Exception], str]] = {
    "index too large": (lambda o, w: o.loss(three(w), torch.tensor([0, 1, 3])), IndexError, r"\[0, 3\), got 3"),
    "index negative": (lambda o, w: o.loss(three(w), torch.tensor([0, -1, 2])), IndexError, "got -1"),
    "index float": (
        lambda o, w: o.loss(three(w), torch.tensor([0.0, 1.0, 2.0])),
        TypeError,
        "integers, got torch.float32",
    ),
    "index bool": (lambda o, w: o.loss(three(w), torch.ones(3, dtype=torch.bool)), TypeError, "integers"),
    "index text": (lambda o, w: o.loss(three(w), "abc"), TypeError, "tensor of integers, got str"),  # type: ignore[arg-type]
    "index none": (lambda o, w: o.loss(three(w), None), TypeError, "tensor of integers, got NoneType"),  # type: ignore[arg-type]
    "index short": (
        lambda o, w: o.loss(three(w), torch.tensor([0, 1])),
        ValueError,
        r"per loss, shape \(3,\), got \(2,\)",
    ),
    "index scalar": (lambda o, w: o.loss(three(w), torch.tensor(0)), ValueError, "one sample number per loss"),
    "loss negative": (lambda o, w: o.loss(three(w) - 2, INDEX), ValueError, "losses must be >= 0, got -"),
    "loss scalar": (lambda o, w: o.loss(three(w).mean(), torch.tensor(0)), ValueError, 'reduction="none"'),
    "loss matrix": (
        lambda o, w: o.loss(three(w)[None], INDEX[None]),
        ValueError,
        r"shape \(batch,\), got shape \(1, 3\)",
    ),
    "loss detached": (lambda o, w: o.loss(three(w).detach(), INDEX), ValueError, "no graph"),
    "loss integer": (lambda o, w: o.loss(torch.ones(3, dtype=torch.int64), INDEX), TypeError, "floating-point"),
    "loss a number": (lambda o, w: o.loss(1.0, INDEX), TypeError, "floating-point tensor, got float"),  # type: ignore[arg-type]
    "loss empty": (lambda o, w: o.loss(three(w)[:0], INDEX[:0]), ValueError, "empty"),
    "root a list": (lambda o, w: o.loss(three(w), INDEX, root=[1.0]), TypeError, "root must be a tensor"),  # type: ignore[arg-type]
    "root shape": (lambda o, w: o.loss(three(w), INDEX, root=w[:2]), ValueError, "root must have the shape"),
    "root not a root": (lambda o, w: o.loss(three(w), INDEX, root=w), ValueError, "losses = root²/2"),
    "root detached": (lambda o, w: o.loss(w.square() / 2, INDEX, root=w.detach()), ValueError, "root has no graph"),
    "clip": (lambda o, w: o.clip_grad_norm_(0.0), ValueError, "max_norm must be > 0"),
    "batch size": (lambda o, w: o.objective_lam(0), ValueError, "batch_size must be >= 1"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_and_changes_nothing(ready: tuple[md.RMD, nn.Parameter], name: str) -> None:
    optimizer, w = ready
    call, error, message = BAD_CALLS[name]
    before = w.detach().clone(), optimizer.aux.values.clone()
    with pytest.raises(error, match=message):
        call(optimizer, w)
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(w.detach(), before[0])
    assert torch.equal(optimizer.aux.values, before[1])


def test_step_on_a_gradient_from_elsewhere(ready: tuple[md.RMD, nn.Parameter]) -> None:
    optimizer, w = ready
    before = w.detach().clone()
    optimizer.zero_grad()
    w.square().sum().backward()
    with pytest.raises(RuntimeError, match=r"optimizer\.loss\(losses, index\)\.backward\(\)"):
        optimizer.step()
    assert torch.equal(w.detach(), before)


def test_a_batch_counts_for_one_step(ready: tuple[md.RMD, nn.Parameter]) -> None:
    optimizer, _ = ready
    with pytest.raises(RuntimeError, match="no batch"):
        optimizer.step()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_samples": 0}, ValueError, "num_samples must be > 0, got 0"),
        ({"num_samples": -5}, ValueError, "num_samples must be > 0"),
        ({"num_samples": 2.5}, TypeError, "num_samples must be an integer, got 2.5"),
        ({"num_samples": True}, TypeError, "num_samples must be an integer"),
        ({"lam": 0.0}, ValueError, r"lam must be > 0 \(or inf for SMD\), got 0.0"),
        ({"lam": -1.0}, ValueError, "lam must be > 0"),
        ({"lam": math.nan}, ValueError, "lam must be > 0"),
        ({"lam": 0.05}, ValueError, "lr/lam must be < 2, or z diverges; got 2"),
        ({"eps": -1.0}, ValueError, "eps must be"),
        ({"potential": "l7"}, ValueError, "unknown potential 'l7'.*'l2', 'l1', 'linf'"),
        ({"reduction": "mean"}, ValueError, "reduction must be one of 'sample', 'batch', got 'mean'"),
        ({"penalty": "l1"}, ValueError, "penalty must be one of 'square', 'huber', 'logcosh' or a function"),
        ({"penalty": "custom"}, ValueError, "penalty must be the function itself"),
        ({"lam_convention": "sum"}, ValueError, "lam_convention must be one of"),
        ({"momentum": 1.0}, ValueError, r"momentum must be in \[0, 1\)"),
        (
            {"momentum": 0.9, "momentum_rule": "scaled", "lam": 0.4},
            ValueError,
            r"lr/\(lam \* \(1 - momentum\)\) must be < 2",
        ),
        ({"maximize": True}, TypeError, "maximize"),
        ({"lam": "2"}, TypeError, "lam must be a number, got '2'"),
        ({"lam": None}, TypeError, "lam must be a number, got None"),
        ({"lr": "0.1"}, TypeError, "lr must be a number"),
        ({"eps": "1"}, TypeError, "eps must be a number"),
        ({"momentum": "0.9"}, TypeError, "momentum must be a number"),
        ({"penalty": lambda r: 1.0}, ValueError, "a tensor of the same shape"),
        ({"penalty": torch.cos}, ValueError, "penalty must be 0 at r = 0"),
        ({"penalty": nn.HuberLoss()}, ValueError, "penalty must take a tensor of residuals"),
    ],
)
def test_bad_settings(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(0, **options)


def test_maximize_in_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="maximize has no meaning for RMD"):
        md.RMD([{"params": [nn.Parameter(torch.ones(2))], "maximize": True}], lr=0.1, lam=1.0, num_samples=1)


@pytest.mark.parametrize("key", ["lam", "num_samples", "reduction", "z", "momentum"])
def test_what_is_one_for_the_optimizer_is_refused_in_a_second_group(key: str) -> None:
    _, optimizer = run(0)
    with pytest.raises(ValueError, match=f"{key} is one for the whole optimizer"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], key: 0.5})
    assert len(optimizer.param_groups) == 1


def test_overshooting_warns_and_a_schedule_that_diverges_is_stopped() -> None:
    with pytest.warns(UserWarning, match="lr/lam = 1.5 is above 1"):
        md.RMD([nn.Parameter(torch.ones(2))], lr=1.5, lam=1.0, num_samples=1)
    with pytest.warns(UserWarning, match="momentum"):
        md.RMD([nn.Parameter(torch.ones(2))], lr=0.3, lam=1.0, num_samples=1, momentum=0.9)
    w, optimizer = run(1)
    optimizer.param_groups[0]["lr"] = 10.0
    (v,) = optimizer.param_groups[0]["params"]
    optimizer.zero_grad()
    optimizer.loss(v[:3].square(), torch.arange(3)).backward()
    with pytest.raises(ValueError, match="z diverges"):
        optimizer.step()
    assert torch.equal(v.detach(), w)


def test_z_settles_below_the_limit_and_diverges_above() -> None:
    """The reason for refusing lr/lam ≥ 2: with w held still, z is a geometric series of ratio 1 − lr/lam."""
    for ratio, settles in ((1.9, True), (2.1, False)):
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = md.RMD([w], lr=1.0, lam=1.0, num_samples=1)
        aux, index = optimizer.aux, torch.tensor([0])
        for _ in range(200):
            aux.descend(index, aux.values[index] - 1, ratio, 0.0)
        assert (abs(float(aux.values[0]) - 1) < 1e-5) == settles


def test_a_small_last_batch_does_no_harm_in_the_convention_of_the_objective() -> None:
    """The limit is that of the largest batch; a first batch beyond it is refused."""
    w = nn.Parameter(torch.zeros(1))
    optimizer = md.RMD([w], lr=0.1, lam=0.04, num_samples=129, lam_convention="objective")
    optimizer.loss((w - 1).square().expand(128), torch.arange(128)).backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.loss((w - 1).square(), torch.arange(1)).backward()
    with pytest.warns(
        UserWarning, match=r"lr/\(lam \* batch size\) = 2.5 in a batch of 1: z of samples that are always"
    ):
        optimizer.step()
    resumed = md.RMD([w], lr=0.1, lam=0.04, num_samples=129, lam_convention="objective")
    resumed.load_state_dict(optimizer.state_dict())
    resumed.zero_grad()
    resumed.loss((w - 1).square().expand(1), torch.arange(1)).backward()
    with pytest.warns(UserWarning, match="in a batch of 1"):
        resumed.step()
    small = md.RMD([w], lr=0.1, lam=0.04, num_samples=129, lam_convention="objective")
    small.loss((w - 1).square().expand(1), torch.arange(1)).backward()
    with pytest.raises(ValueError, match=r"lr/\(lam \* batch size\) must be < 2, or z diverges; got 2.5"):
        small.step()


def test_a_loss_of_nothing_is_no_number_less_with_eps_0() -> None:
    for reduction in ("sample", "batch"):
        w = nn.Parameter(torch.tensor([1.0, 1.0]))
        optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2, eps=0.0, reduction=reduction)
        optimizer.loss((w - 1).square() / 2, torch.arange(2)).backward()
        optimizer.step()
        assert bool(w.isfinite().all())
        assert bool(optimizer.aux.values.isfinite().all())


def test_a_penalty_that_overflows_never_reaches_z() -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=1, penalty=lambda r: r**3)
    optimizer.loss(w * 1e30, torch.tensor([0])).backward()
    optimizer.step()
    assert optimizer.aux.values == 0


def test_a_root_may_be_as_inexact_as_its_type_and_no_more() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2)
    residual = (w * torch.tensor([3.14159, 1e3])).bfloat16()
    optimizer.loss(residual.square() / 2, torch.arange(2), root=residual)
    infinite = w * torch.tensor([1.0, float("inf")])
    with pytest.warns(UserWarning, match="a loss is inf"):
        optimizer.loss(infinite.square() / 2, torch.arange(2), root=infinite)  # w is lost, as with any optimizer
    with pytest.raises(ValueError, match="root must satisfy losses = root²/2, but a loss of 1 came with a root of 1"):
        optimizer.loss(w.square(), torch.arange(2), root=w)


def test_the_callers_groups_stay_as_they_are() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(3))]}]
    for lam in (1.0, 2.0):
        assert md.RMD(groups, lr=0.1, lam=lam, num_samples=3).lam == lam
    assert [*groups[0]] == ["params"]


def test_the_default_device_is_no_concern_of_what_is_elsewhere() -> None:
    w = torch.ones(2)
    with torch.device("meta"):
        md.Convex(torch.cosh)
        assert (md.L2() + md.QNorm(3)).step(w, -2 * w).tolist() == [0, 0]
        optimizer = md.RMD([nn.Parameter(w)], lr=0.1, lam=1.0, num_samples=2, penalty=torch.tanh)
        assert optimizer.aux.residual(torch.full((2,), 2.0, device="cpu"), [0, 1]) == 4  # type: ignore[arg-type]


def test_z_is_float64_when_any_group_is() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1).double())]}]
    assert md.RMD(groups, lr=0.1, lam=1.0, num_samples=1).aux.values.dtype == torch.float64


def test_no_grad_gives_the_value_alone() -> None:
    _, optimizer = run(1)
    with torch.no_grad():
        value = optimizer.loss(torch.tensor([1.0, 3.0]), torch.tensor([0, 1]))
        with pytest.raises(ValueError, match="losses must be >= 0, got -1"):
            optimizer.loss(torch.tensor([-1.0, 3.0]), torch.tensor([0, 1]))
    assert value == 2
    assert not value.requires_grad


def test_without_an_epsilon_a_signed_root_may_be_0() -> None:
    w = nn.Parameter(torch.tensor([2.0, 1.0]))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2, eps=0.0)
    root = w - 2
    optimizer.loss(root.square() / 2, torch.arange(2), root=root).backward()
    optimizer.step()
    torch.testing.assert_close(optimizer.aux.values, torch.tensor([0.0, -0.1]))


@pytest.mark.filterwarnings("ignore:a loss is")
@pytest.mark.parametrize("penalty", ["square", "huber", "logcosh", torch.tanh])
def test_an_infinite_loss_moves_no_z(penalty: Any) -> None:
    """Also where the penalty's slope is bounded."""
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=2, penalty=penalty)
    optimizer.loss((w - 2).square() * torch.tensor([math.inf, 1.0]), torch.arange(2)).backward()
    optimizer.step()
    assert optimizer.aux.values[0] == 0
    assert optimizer.aux.values[1] > 0


@given(
    index=st.lists(st.integers(-5, 8), min_size=1, max_size=6),
    losses=st.lists(st.floats(width=32), min_size=1, max_size=6),
)
@example(index=[0], losses=[math.inf])
@example(index=[0], losses=[math.nan])
@settings(max_examples=200, deadline=None)
@pytest.mark.filterwarnings("ignore:a loss is")
def test_anything_at_all_is_taken_or_refused_and_z_stays_finite(index: list[int], losses: list[float]) -> None:
    w = nn.Parameter(torch.ones(1))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4)
    L = w * torch.tensor(losses)
    try:
        optimizer.loss(L, torch.tensor(index)).backward()
    except (ValueError, IndexError):
        wrong = len(index) != len(losses) or not all(0 <= i < 4 for i in index)
        assert wrong or any(loss < 0 for loss in losses)
        return
    optimizer.step()
    assert bool(optimizer.aux.values.isfinite().all())


def test_a_step_that_breaks_off_takes_no_batch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part of w has moved then; a second step would move it again."""
    one, other = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    broken = md.Convex(lambda w: w.square() / 2)
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [other], "potential": broken}]
    optimizer = md.RMD(groups, lr=0.1, lam=1.0, num_samples=1)
    optimizer.loss((one + other).square(), torch.tensor([0])).backward()

    def breaks(*_: object) -> Tensor:
        raise ArithmeticError

    monkeypatch.setattr(broken, "_step", breaks)
    with pytest.raises(ArithmeticError):
        optimizer.step()
    moved = one.detach().clone()
    with pytest.raises(RuntimeError, match="gradients but no batch"):
        optimizer.step()
    assert torch.equal(one, moved)
    assert not optimizer.aux.values.any()


@pytest.mark.filterwarnings("ignore:a loss is")
def test_a_root_that_is_infinite_leaves_z_alone() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = md.RMD([w], 0.1, 1.0, 2)
    root = w * torch.tensor([1.0, -math.inf])
    optimizer.loss(root.square() / 2, torch.arange(2), root=root).backward()
    optimizer.step()
    assert optimizer.aux.values.tolist()[1] == 0


@pytest.mark.parametrize("values", [[1.0, -1.0, 1.0], [-1.0, -3.0, 2.0]])
def test_one_negative_loss_is_refused_by_its_value(values: list[float]) -> None:
    w = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=f"losses must be >= 0, got {min(values):g};"):
        md.RMD([w], 0.1, 1.0, 3).loss(w * torch.tensor(values), torch.arange(3))


def test_a_step_that_is_refused_has_moved_nothing() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = md.RMD([w], 0.1, 1.0, 3)
    optimizer.loss(w.square(), torch.arange(3)).backward()
    optimizer.param_groups[0]["lr"] = 2.5
    with pytest.raises(ValueError, match="z diverges"):
        optimizer.step()
    assert w.tolist() == [1, 1, 1]
    assert not optimizer.aux.values.any()


def test_half_precision_losses_are_taken_in_float32() -> None:
    found = []
    for cast in (False, True):
        w = nn.Parameter(torch.ones(4))
        optimizer = md.RMD([w], 0.1, 1.0, 4, eps=1e-3)
        losses = (w * torch.tensor([0.1, 0.3, 0.5, 0.7])).bfloat16()
        value = optimizer.loss(losses.float() if cast else losses, torch.arange(4))
        value.backward()
        optimizer.step()
        found.append((value.detach(), optimizer.aux.values))
    (value, z), (exact, exact_z) = found
    assert value.dtype == torch.float32
    assert torch.equal(value, exact)
    assert torch.equal(z, exact_z)


def test_eps_is_finite_and_z_is_wide_beside_wide_weights() -> None:
    with pytest.raises(ValueError, match="eps must be a finite number"):
        md.RMD([nn.Parameter(torch.ones(1))], 0.1, 1.0, 1, eps=math.inf)
    wide = nn.Parameter(torch.ones(1, dtype=torch.complex128))
    assert md.RMD([wide], 0.1, 1.0, 1).aux.values.dtype == torch.float64


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("lam", -1.0, "lam must be > 0"),
        ("momentum", 1.0, r"momentum must be in \[0, 1\)"),
        ("eps", -1.0, "eps must be a finite number >= 0"),
        ("num_samples", 99, "the state is of 99 samples, but num_samples is 2"),
        ("lr", -1.0, "lr must be a finite number >= 0"),
        ("max_norm", 0.0, "max_norm must be > 0"),
    ],
)
def test_a_state_with_a_number_that_makes_no_sense_is_refused(setting: str, value: float, told: str) -> None:
    optimizer = md.RMD([nn.Parameter(torch.ones(2))], lr=0.1, lam=1.0, num_samples=2)
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0][setting] = value
    with pytest.raises(ValueError, match=told):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0][setting] != value


def test_groups_with_momenta_of_their_own_are_refused_whoever_set_them() -> None:
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = md.RMD([{"params": [w]} for w in params], lr=0.1, lam=1.0, num_samples=2, momentum=0.9)
    optimizer.param_groups[1]["momentum"] = 0.5
    optimizer.loss((params[0] + params[1]).square(), torch.arange(2)).backward()
    with pytest.raises(ValueError, match="momentum is one for the whole optimizer"):
        optimizer.step()
    assert bool((params[0] == 1).all())


def test_groups_without_a_parameter_are_taken_as_torch_takes_them() -> None:
    optimizer = md.RMD([{"params": []}], lr=0.1, lam=1.0, num_samples=3)
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert optimizer.aux.values.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "batch"}, {"momentum": 0.5}, {"lam_convention": "objective", "max_norm": 1.0}],
    ids=str,
)
def test_a_lam_that_is_set_is_that_of_an_optimizer_made_with_it(options: dict[str, Any]) -> None:
    """From the weights, the z and the momenta that there are."""
    w = nn.Parameter(torch.ones(4))
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=4, **options)

    def step(optimizer: md.RMD, w: nn.Parameter, k: int) -> None:
        index = torch.tensor([k % 4, (k + 1) % 4])
        optimizer.loss((w[index] - 3).square() / 2, index).backward()
        optimizer.step()
        optimizer.zero_grad()

    for k in range(5):
        step(optimizer, w, k)
    fresh, before = nn.Parameter(w.detach().clone()), optimizer.aux.values.clone()
    optimizer.lam = 5
    assert optimizer.lam == optimizer.state_dict()["param_groups"][0]["lam"] == 5.0
    other = md.RMD([fresh], lr=0.1, lam=5.0, num_samples=4, **options)
    other.aux.load_state_dict(optimizer.aux.state_dict())
    if "momentum" in options:
        other.state[fresh]["momentum_buffer"].copy_(optimizer.state[w]["momentum_buffer"])
    for k in range(5):
        step(optimizer, w, k)
        step(other, fresh, k)
    assert torch.equal(w, fresh)
    assert torch.equal(optimizer.aux.values, other.aux.values)
    assert not torch.equal(optimizer.aux.values, before)


@pytest.mark.parametrize(
    ("lam", "options", "error", "message"),
    [
        (0.0, {}, ValueError, r"lam must be > 0 \(or inf for SMD\), got 0.0"),
        ("2", {}, TypeError, "lam must be a number, got '2'"),
        (0.05, {}, ValueError, "lr/lam must be < 2, or z diverges; got 2"),
        (0.3, {"momentum": 0.9, "momentum_rule": "scaled"}, ValueError, r"lr/\(lam \* \(1 - momentum\)\) must be < 2"),
        (0.08, {}, UserWarning, "lr/lam = 1.25 is above 1: z overshoots"),
        (1.0, {"lr": 0.0}, UserWarning, "the first parameter group's lr is 0"),
    ],
)
def test_a_lam_that_is_set_is_checked_as_the_constructor_does(
    lam: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    params = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    groups: list[dict[str, Any]] = [{"params": params[:1]}, {"params": params[1:], "lr": 0.1}]
    optimizer = md.RMD(groups, **{"lr": 0.1, "lam": math.inf, "num_samples": 1, **options})
    if issubclass(error, Warning):
        with pytest.warns(error, match=message) as told:
            optimizer.lam = lam
        assert told[0].filename == __file__
    else:
        with pytest.raises(error, match=message):
            optimizer.lam = lam
    assert optimizer.lam == (lam if issubclass(error, Warning) else math.inf)
