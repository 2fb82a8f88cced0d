"""The networks of the experiments, and the two ways to start them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mirrordescent.lab.names import unknown
from mirrordescent.lab.norm import Norm
from mirrordescent.lab.stem import Stem


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut (He et al. 2016)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = Norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = Norm(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride=stride, bias=False), Norm(width, relu=False)
            )

    def forward(self, x: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:  # (batch, width_in, side, side)
        """The block's output, twice, (batch, width, side / stride, side / stride); `again` is x, for the shortcut.

        See `Norm.twice` for why there are two of each.
        """
        out = self.bn1(self.conv1(x))
        return self.bn2.twice(self.conv2(out), self.shortcut(again))


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images: a 3×3 stem and no max-pool; 62 tensors, 11,173,962 weights for 10 classes.

    >>> from mirrordescent.lab.models import ResNet18
    >>> sum(w.numel() for w in ResNet18().parameters()), len(list(ResNet18().parameters()))
    (11173962, 62)
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = Stem(channels, 64)
        self.bn1 = Norm(64)
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(width_in, width, stride), BasicBlock(width, width, 1)]
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:  # (batch, channels, 32, 32)
        """Logits, (batch, classes)."""
        out, again = self.bn1.twice(self.conv1(x))
        for block in self.blocks:
            out, again = block(out, again)
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One linear layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: tuple[int, ...], classes: int, width: int = 256) -> nn.Module:
    """Two hidden layers."""
    size = math.prod(shape)
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def cnn(shape: tuple[int, ...], classes: int, width: int = 32) -> nn.Module:
    """Two convolutions and a hidden layer, for small images on a CPU, with sides of at least 4 pixels."""
    channels = _image("cnn", shape, smallest=4)
    side = (shape[1] // 4) * (shape[2] // 4)  # after two poolings
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * side, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, classes),
    )


def deep_cnn(shape: tuple[int, ...], classes: int, width: int = 32) -> nn.Module:
    """Convolutions with batch norm, two for each halving, down to less than 8 pixels, for pictures on a CPU.

    >>> from mirrordescent.lab.models import deep_cnn
    >>> [layer.out_channels for layer in deep_cnn((3, 64, 64), 10) if hasattr(layer, "stride")]
    [32, 64, 64, 128, 128, 128, 128]
    """
    channels, side = _image("deep-cnn", shape, smallest=8), min(shape[1:])
    large = side >= 48  # then the first convolution halves it, too
    layers: list[nn.Module] = [*_convolution(channels, width, 5 if large else 3, 2 if large else 1)]
    side, widest = side // 2 if large else side, 4 * width
    while side >= 8:
        wider, side = min(2 * width, widest), side // 2
        layers += [*_convolution(width, wider, 3, 2), *_convolution(wider, wider, 3, 1)]
        width = wider
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _convolution(width_in: int, width: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(width_in, width, kernel, stride=stride, padding=kernel // 2, bias=False), Norm(width)


def resnet18(shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-18 as the paper trains it."""
    return ResNet18(classes, _image("resnet18", shape, smallest=8))


def _image(name: str, shape: tuple[int, ...], smallest: int) -> int:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ValueError(
            f"model {name!r} takes images (channels, height, width) of at least {smallest} pixels, but the samples "
            f"have shape {shape}; use 'mlp'"
        )
    return shape[0]


MODELS: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "deep-cnn": deep_cnn,
    "resnet18": resnet18,
}
STARTS = ("default", "near-zero")


def build(name: str, shape: tuple[int, ...], classes: int, *, start: str = "default", seed: int = 0) -> nn.Module:
    """A network by name, for samples of a shape, started from a seed.

    start: "default", PyTorch's; or "near-zero", the paper's (see `start_near_zero`).
    Raises ValueError for an unknown name (with the nearest known one), or a shape that the network does not take.

    >>> from mirrordescent.lab.models import build
    >>> build("mlp", (1, 8, 8), 10)[1]
    Linear(in_features=64, out_features=256, bias=True)
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {start!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MODELS[name](shape, classes)
        if start == "near-zero":
            start_near_zero(model)
    return model


@torch.no_grad()
def start_near_zero(model: nn.Module) -> None:
    """The start behind the paper's tables, close to the minimum of ψ.

    Convolutions and batch norm's factors are drawn from N(0, 0.01²), linear layers' weights from U(−0.01, 0.01) and
    their biases from U(−0.1, 0.1); batch norm's offsets are 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.normal_(0, 0.01)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.normal_(0, 0.01)
            module.bias.zero_()
        elif isinstance(module, nn.Linear):
            module.weight.uniform_(-0.01, 0.01)
            module.bias.uniform_(-0.1, 0.1)
