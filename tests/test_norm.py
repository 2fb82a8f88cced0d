"""Batch norm with its sum and relu, the forward pass in halves, and the stem, by PyTorch's own operations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.lab.half import halved
from mirrordescent.lab.models import BasicBlock, ResNet18
from mirrordescent.lab.norm import Norm
from mirrordescent.lab.stem import Stem, convolved


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_norm_is_batch_norm_a_sum_and_relu(relu: bool, add: bool, training: bool) -> None:
    torch.manual_seed(0)
    norm, reference = Norm(6, relu=relu).train(training), nn.BatchNorm2d(6).train(training)
    x = torch.randn(4, 6, 5, 5)
    added = torch.randn(4, 6, 5, 5) if add else None
    expected = reference(x) if added is None else reference(x) + added
    expected = F.relu(expected) if relu else expected
    one, other = norm.twice(x, added)
    assert torch.equal(one, expected)
    assert torch.equal(other, expected)
    assert all(torch.equal(a, b) for a, b in zip(norm.buffers(), reference.buffers(), strict=True))
    assert norm.state_dict().keys() == reference.state_dict().keys()


def test_the_network_is_he_et_als() -> None:
    """Block by block from PyTorch's own operations, with the same weights."""
    model = ResNet18().eval()
    x = torch.randn(2, 3, 32, 32)
    out = F.relu(normed(model.bn1, model.conv1(x)))
    for block in model.blocks:
        assert isinstance(block, BasicBlock)
        inner = normed(block.bn2, block.conv2(F.relu(normed(block.bn1, block.conv1(out)))))
        short = out
        if isinstance(block.shortcut, nn.Sequential):
            conv, norm = block.shortcut
            assert isinstance(norm, Norm)
            short = normed(norm, conv(out))
        out = F.relu(inner + short)
    torch.testing.assert_close(model(x), model.linear(out.mean(dim=(2, 3))))


def normed(norm: Norm, x: Tensor) -> Tensor:
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


class Products(nn.Module):
    """Two matrices, without a product of matrices: not every CPU has that in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))
        self.three = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.one * x + self.two) * self.three).sum(1)


def test_halves_are_the_weights_in_bfloat16() -> None:
    model = Products()
    x = torch.randn(3, 4)
    half = [w.detach().bfloat16().requires_grad_() for w in (model.one, model.two)]
    expected = ((half[0] * x + half[1]) * model.three).sum(1)
    found = halved(model, x)
    assert torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for w, h in zip((model.one, model.two), half, strict=True):
        assert w.grad is not None
        assert h.grad is not None
        assert w.grad.dtype == torch.float32
        assert torch.equal(w.grad, h.grad.float())


def test_a_frozen_weight_has_no_gradient_in_halves() -> None:
    model = Products()
    model.one.requires_grad_(False)
    halved(model, torch.randn(3, 4)).sum().backward()
    assert model.one.grad is None
    assert model.two.grad is not None


@pytest.mark.parametrize("shape", [(3, 3, 8, 8), (2, 1, 5, 7), (1, 4, 1, 2)])
def test_a_product_of_patches_is_the_convolution(shape: tuple[int, int, int, int]) -> None:
    """With its gradient, whatever the layout of the weights."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = torch.randn(6, shape[1], 3, 3, dtype=torch.float64).to(memory_format=layout).requires_grad_()
        ours, theirs = convolved(x, weight), F.conv2d(x, weight, padding=1)
        torch.testing.assert_close(ours, theirs)
        assert ours.is_contiguous(memory_format=torch.channels_last)
        up = torch.randn_like(theirs)
        torch.testing.assert_close(*(torch.autograd.grad(out, weight, up)[0] for out in (ours, theirs)))


def test_the_stem_is_a_convolution_to_whoever_asks() -> None:
    torch.manual_seed(0)
    stem = Stem(3, 4)
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 4, 3, padding=1, bias=False)
    assert isinstance(stem, nn.Conv2d)
    assert stem.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(stem(x), plain(x))
