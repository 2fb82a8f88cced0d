"""Checks of what users pass in: every message names the argument, the rule and the value."""

from __future__ import annotations

import torch
from torch import Tensor


def working(t: Tensor) -> Tensor:
    """The tensor in the type to compute in: half precision as float32; float32 and float64 as they are."""
    return t if t.dtype == torch.float64 else t.float()


def checked_index(index: Tensor, losses: Tensor, num_samples: int, each: str = "loss") -> Tensor:
    """`index` as int64, one per loss; its values are checked only on the CPU, where that costs no waiting.

    each: what each index belongs to, for the message.

    Raises TypeError for a type that is not integer, ValueError for a wrong shape, IndexError for a bad value.
    """
    if not isinstance(index, Tensor):
        try:
            index = torch.as_tensor(index, device="cpu")
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"index must be a tensor of integers, got {type(index).__name__}") from None
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise TypeError(f"index must hold integers, got {index.dtype}")
    if index.shape != losses.shape:
        raise ValueError(
            f"index must hold one sample number per {each}, shape {tuple(losses.shape)}, got {tuple(index.shape)}"
        )
    index = index.long()
    if index.device.type == "cpu" and index.numel():
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= num_samples:
            bad = low if low < 0 else high
            raise IndexError(
                f"index must lie in [0, {num_samples}), got {bad}; num_samples is the length of the training set, and "
                "md.Indexed(dataset) gives each sample its index in it"
            )
    return index


def check_losses(losses: Tensor, root: Tensor | None, reduction: str) -> None:
    """Raises TypeError or ValueError if `losses` are not one per sample, or `root` is not their signed root."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        kind = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
        raise TypeError(f"losses must be a floating-point tensor, got {kind}")
    if losses.dim() != 1:
        raise ValueError(
            f"losses must hold one loss per sample, shape (batch,), got shape {tuple(losses.shape)}; compute them with "
            'reduction="none"' + ("" if losses.dim() < 2 else ", and take the mean over all but the first dimension")
        )
    if losses.numel() == 0:
        raise ValueError("losses is empty; a batch needs at least one sample")
    if root is None:
        return
    if reduction == "batch":
        raise ValueError('root goes with reduction="sample": Algorithm 2 has one root for the whole batch')
    if not isinstance(root, Tensor):
        raise TypeError(f"root must be a tensor, got {type(root).__name__}")
    if root.shape != losses.shape:
        raise ValueError(f"root must have the shape of losses, {tuple(losses.shape)}, got {tuple(root.shape)}")
    if losses.device.type == "cpu" and root.device.type == "cpu":
        half_square = working(root.detach()) ** 2 / 2
        finite = half_square.isfinite() & losses.detach().isfinite()
        gap = (half_square - working(losses.detach()))[finite].abs()
        scale = half_square[finite].clamp_min(1e-6)
        excess = gap - (0.05 * scale + 1e-6)
        if bool((excess > 0).any()):
            worst = int(excess.argmax())
            raise ValueError(
                f"root must satisfy losses = root²/2, but a loss of {losses.detach()[finite][worst].item():.4g} "
                f"came with a root of {root.detach()[finite][worst].item():.4g}"
            )


def check_outputs(logits: Tensor, labels: Tensor, classes: int) -> None:
    """Raises ValueError unless logits are (batch, classes), and labels integers of shape (batch,)."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be the numbers of classes, shape (batch,), got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if logits.shape != (len(labels), classes):
        raise ValueError(f"logits must have shape {(len(labels), classes)}, got {tuple(logits.shape)}")


def check_classes(labels: Tensor, classes: int) -> None:
    """Raises ValueError if a label is none of the classes; checked only on the CPU, where that costs no waiting."""
    if labels.device.type == "cpu" and labels.numel():
        low, high = (int(end) for end in labels.long().aminmax())
        if low < 0 or high >= classes:
            raise ValueError(
                f"labels must lie in [0, {classes}), got {low if low < 0 else high}; leave out samples without a class"
            )


def number(name: str, value: object) -> float:
    """A setting as a plain float. Raises TypeError if it is not a number."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """The value as a float. Raises ValueError unless it is finite and > 0."""
    value = number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be a finite number > 0, got {value}")
    return value


def one_of(name: str, value: object, allowed: tuple[str, ...], or_else: str = "") -> None:
    """Raises ValueError if a setting is none of the allowed values."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name} must be one of {choices}{' ' + or_else if or_else else ''}, got {value!r}")


def check_rate(rate: float, name: str) -> None:
    """Raises ValueError for a rate of z's step with which z diverges."""
    if not rate < 2:
        raise ValueError(f"{name} must be < 2, or z diverges; got {rate:.4g}: lower lr or raise lam")
