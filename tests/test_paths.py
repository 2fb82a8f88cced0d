"""The paths of a step: every weight is reached, in every type and layout, scaled gradients and all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mirrordescent as md

WEIGHTS = torch.linspace(0.5, 2, 12).reshape(3, 4)  # one for each element of a parameter


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("overflow", [False, True])
def test_scaled_gradients_that_only_the_device_has_seen(foreach: bool, overflow: bool) -> None:
    """What a GradScaler leaves to a step: scaled gradients, and whether one of them is infinite."""
    start, gradient = torch.rand(5) + 0.1, torch.randn(5)
    w = nn.Parameter(start.clone())
    w.grad = 8 * gradient
    optimizer = md.SMD([w], lr=0.1, potential="q=3", momentum=0.5, foreach=foreach)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(float(overflow))  # type: ignore[attr-defined]
    optimizer.step()
    expected = start if overflow else md.QNorm(3).step(start, -0.1 * gradient)
    torch.testing.assert_close(w.detach(), expected, rtol=1e-6, atol=0)
    assert bool(optimizer.state[w]["momentum_buffer"].any()) != overflow


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_fused_step_reaches_every_weight(dtype: torch.dtype, size: int, momentum: float) -> None:
    """Long enough for a processor to take several at once."""
    ends = []
    for fused in (True, None):
        w = nn.Parameter(torch.linspace(1, 2, size, dtype=dtype))
        optimizer = md.SMD([w], lr=0.1, momentum=momentum, fused=fused)
        for _ in range(3):
            w.grad = torch.full_like(w, 0.5)
            optimizer.step()
        ends.append(w.detach())
    torch.testing.assert_close(*ends)
    assert bool((ends[0] < torch.linspace(1, 2, size, dtype=dtype)).all())


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda w: w,
    lambda w: w.transpose(0, 1),
    lambda w: w.reshape(2, 2, 2, 2, 2).to(memory_format=torch.channels_last_3d),
]


@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
@pytest.mark.parametrize("max_norm", [None, 0.01])
@pytest.mark.parametrize("size", [1.0, 3.0])
def test_a_scale_that_float16_does_not_hold(layout: int, max_norm: float | None, size: float) -> None:
    """A GradScaler begins with 65,536, and leaves unscaling to a fused step."""
    ends = []
    for dtype in (torch.float16, torch.float32):
        w = nn.Parameter(LAYOUTS[layout](torch.zeros(4, 8, dtype=dtype)))
        optimizer = md.RMD([w], lr=0.5, lam=2.0, num_samples=4, fused=True, max_norm=max_norm)
        scaler = torch.amp.GradScaler("cpu")
        losses = (w.float() - size * torch.linspace(-0.1, 0.1, 32).reshape(w.shape)).flatten().square()
        scaler.scale(optimizer.loss(losses.reshape(4, 8).mean(1), torch.arange(4))).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536
        ends.append(w.detach().float())
        if max_norm is not None:
            assert float(ends[-1].norm()) <= 0.5 * max_norm * 1.001
    assert bool(ends[1].any())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("psi", [md.Quadratic(WEIGHTS), 3 * md.Quadratic(WEIGHTS)], ids=["", "3"])
@pytest.mark.parametrize("lr", [0.3, torch.tensor(0.3)], ids=["number", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_weight_for_each_element_is_one_division(psi: md.Potential, lr: float | Tensor, dtype: torch.dtype) -> None:
    w = nn.Parameter(torch.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4))
    start, w.grad = w.detach().clone(), torch.linspace(2, -1, 12, dtype=dtype).reshape(3, 4)
    w.grad[0, 0] = 0
    md.SMD([w], lr, psi).step()
    assert w[0, 0] == start[0, 0]
    expected = psi.step(start.double(), -0.3 * w.grad.double())
    torch.testing.assert_close(w.detach().double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


def test_a_scaler_leaves_its_work_to_the_step_only_where_every_group_does_it() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(2))], "fused": fused} for fused in (True, None)]
    assert md.SMD(groups[:1], lr=0.1)._step_supports_amp_scaling
    assert not md.SMD(groups, lr=0.1)._step_supports_amp_scaling


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="this PyTorch knows no gradients of another type")
def test_a_fused_step_by_a_gradient_of_another_type_is_the_plain_one() -> None:
    ends = []
    for fused in (True, None):
        w = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        w.grad_dtype = None  # any
        w.grad = torch.full((4,), 0.5)
        md.SMD([w], lr=0.5, fused=fused).step()
        ends.append(w.detach())
    assert torch.equal(*ends)
    assert ends[0].tolist() == [0.75] * 4
