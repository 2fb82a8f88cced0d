"""The networks of the experiments."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut (He et al. 2016)."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:  # (batch, width_in, side, side)
        """The block's output, (batch, width, side / stride, side / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return F.relu(out)


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images: a 3×3 stem and no max-pool; 62 tensors, 11,173,962 weights for 10 classes.

    >>> from mirrordescent.lab.models import ResNet18
    >>> sum(w.numel() for w in ResNet18().parameters()), len(list(ResNet18().parameters()))
    (11173962, 62)
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        width_in = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [BasicBlock(width_in, width, stride), BasicBlock(width, width, 1)]
            width_in = width
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:  # (batch, channels, 32, 32)
        """Logits, (batch, classes)."""
        out = self.blocks(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.linear(out.mean(dim=(2, 3)))
        return logits
