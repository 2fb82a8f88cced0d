"""The networks: their sizes, the shapes they take, and the two ways to start them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mirrordescent.lab.models import MODELS, build


def size(model: nn.Module) -> int:
    return sum(w.numel() for w in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_logits_have_one_column_per_class(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7)
    assert model(torch.randn(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 47), (1, 48, 48), (3, 64, 64), (3, 20, 100), (2, 33, 16)])
def test_a_deep_cnn_looks_at_the_whole_picture(shape: tuple[int, ...]) -> None:
    picture = torch.randn(1, *shape, requires_grad=True)
    build("deep-cnn", shape, 3).eval()(picture).square().sum().backward()
    seen = picture.grad
    assert seen is not None
    assert bool((seen != 0).all())


def test_resnet_is_the_papers() -> None:
    assert size(build("resnet18", (3, 32, 32), 10)) == 11_173_962
    assert len(list(build("resnet18", (3, 32, 32), 10).parameters())) == 62


def test_a_table_row_is_enough_for_an_mlp() -> None:
    assert build("mlp", (5,), 2)(torch.randn(3, 5)).shape == (3, 2)
    assert build("linear", (5,), 2)(torch.randn(3, 5)).shape == (3, 2)


@pytest.mark.parametrize("start", ["default", "near-zero"])
def test_a_seed_decides_the_start_and_leaves_the_global_generator_alone(start: str) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, same, other = (build("cnn", (1, 8, 8), 3, start=start, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    weights = [next(model.parameters()) for model in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_near_zero_is_the_papers_recipe() -> None:
    model = build("resnet18", (3, 32, 32), 10, start="near-zero").requires_grad_(False)
    convolutions = torch.cat([m.weight.flatten() for m in model.modules() if isinstance(m, nn.Conv2d)])
    assert float(convolutions.std()) == pytest.approx(0.01, rel=0.01)
    factors = torch.cat([m.weight for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    offsets = torch.cat([m.bias for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
    assert float(factors.std()) == pytest.approx(0.01, rel=0.1)
    assert not offsets.any()
    head = next(m for m in model.modules() if isinstance(m, nn.Linear))
    assert 0.009 < float(head.weight.abs().max()) <= 0.01
    assert 0.03 < float(head.bias.abs().max()) <= 0.1


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'resnet' \(did you mean 'resnet18'\?\)"):
        build("resnet", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"'cnn' takes images .* shape \(5,\); use 'mlp'"):
        build("cnn", (5,), 2)
    with pytest.raises(ValueError, match="start must be one of"):
        build("mlp", (5,), 2, start="zero")
