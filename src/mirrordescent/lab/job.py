"""A run on a device: data, network, optimizer and one training step, the same for a plain loop and a captured one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab.data import Data, Scaling
from mirrordescent.lab.data.labelfile import labels_in
from mirrordescent.lab.half import halved
from mirrordescent.lab.models import build
from mirrordescent.lab.noise import Corrupted, corrupt
from mirrordescent.lab.place import Place, precision
from mirrordescent.lab.runs import Run, derived
from mirrordescent.lab.visits import Visits, cropped, edged, mixed, padded, visits
from mirrordescent.sizes import FarOffWarning, Sizes, StuckWarning, far_off, measured, stuck

SLOW = 20  # where z needs more than so many times the run's epochs to settle, a note says so


class Job:
    """Everything that a run needs on its device.

    sums: of the losses, and of the predictions that met the given label, over the current epoch's steps.
    """

    def __init__(self, run: Run, data: Data, place: Place) -> None:
        self.run, self.data, self.place, self.device = run, data, place, place.resolved
        self.batch = min(run.batch_size, len(data))
        corrupted = given_labels(run, data)
        self.targets, self.changed = corrupted.labels.to(self.device), corrupted.changed.to(self.device)
        self.inputs, self.test_inputs, self.test_targets = data.on(self.device)
        self.scaled = Scaling(data, self.device)
        self.crops = run.augment != "none"
        if self.crops and self.inputs.dim() != 4:
            raise ValueError(
                f"augment {run.augment!r} is for images, but samples of {data.name} have shape {data.shape}"
            )
        around = padded if data.black_around else edged
        self.pictures = data.made_on(self.device, around) if self.crops else self.inputs
        self.model = self.new_model()
        if self.batch < 2 and any(isinstance(module, nn.BatchNorm2d) for module in self.model.modules()):
            raise ValueError(f"batch_size must be >= 2 with batch norm, as in {run.model}, got {self.batch}")
        self.start = [w.detach().clone() for w in self.model.parameters()]
        self.optimizer = self.new_optimizer()
        self.notes = Notes(run, data).to(self.device)
        self.call: Callable[[nn.Module, Tensor], Tensor]  # the forward pass; a compiled one may take its place
        self.call = halved if precision(run, self.device) == "bfloat16" else call
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.visits: Visits | None = None
        self.next = 0

    def new_model(self) -> nn.Module:
        """The network with its initial weights."""
        model = network(self.run, self.data).to(self.device)
        if len(self.data.shape) == 3:  # convolutions are faster in this layout, on a GPU and on a CPU
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in torch's stubs
        return model

    def new_optimizer(self) -> torch.optim.Optimizer:
        """The run's algorithm, over the network's weights."""
        return optimizer_for(self.run, self.model, len(self.data))

    def added(self, loss: Tensor) -> Tensor:
        """What to differentiate: the loss; a subclass may add a penalty to it."""
        return loss

    @property
    def potentials(self) -> list[md.Potential]:
        """ψ of each of the network's weights, in their order; ½‖w‖² for SGD and weight decay."""
        if isinstance(self.optimizer, md.SMD):
            groups = self.optimizer.param_groups
            return [self.optimizer.potential_of(group) for group in groups for _ in group["params"]]
        return [md.potential(self.run.potential)] * len(self.start)

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.data) // self.batch

    def drawn(self, epoch: int) -> Visits:
        """The epoch's visits, on the device."""
        return visits(len(self.data), self.batch, self.run.seed, epoch, self.run.augment, self.run.mixup).to(
            self.device
        )

    def begin(self, epoch: int, first: int = 0) -> None:
        """Draw the epoch's visits; the next step will be its step `first`."""
        self.visits, self.next = self.drawn(epoch), first
        self.set_rate(epoch)

    def set_rate(self, epoch: int) -> None:
        """Set the epoch's step size; in place where it is a tensor, which a captured step reads."""
        if self.run.schedule == "constant":
            return
        rate = self.run.lr * (1 + math.cos(math.pi * (epoch - 1) / self.run.epochs)) / 2
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self) -> None:
        """Take the next step of the epoch."""
        assert self.visits is not None
        self.descend(*(table[self.next] for table in self.visits.tables))
        self.next += 1

    def wait(self) -> None:
        """Nothing to do: whoever reads a result waits for it anyway."""

    def descend(self, index: Tensor, top: Tensor, left: Tensor, flip: Tensor, share: Tensor) -> None:
        """One training step on the samples `index`; the host never waits for the device."""
        x = cropped(self.pictures, index, top, left, flip) if self.crops else self.pictures[index]
        x, y = self.scaled(x), self.targets[index]
        with self.place.autocast(self.run):
            outputs = self.call(self.model, mixed(x, share) if self.run.mixup else x)
        losses, root = self._losses(outputs, y, index)
        if self.run.mixup:  # losses of mixtures, not of single samples: only SGD's mean can use them
            losses = share * losses + (1 - share) * self._losses(outputs, y.flip(0), index.flip(0))[0]
        if isinstance(self.optimizer, md.RMD):
            loss = self.optimizer.loss(losses, index, root=root if self.run.reduction == "sample" else None)
        else:
            loss = losses.mean()
        self.added(loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            self.sums[0] += losses.detach().sum()
            if self.notes.trace is not None:
                self.sums[1] += (outputs.argmax(1) == y).sum()
                self.notes.trace(outputs, y, index)

    def _losses(self, outputs: Tensor, y: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """The losses that training minimises, (batch,), and for a regression the signed residuals."""
        if self.notes.early is not None:
            return self.notes.early(outputs, y, index), None
        if self.run.loss == "gce":
            return md.generalized_cross_entropy(outputs, y), None
        return per_sample(outputs, y, self.data.classes)

    def losses_at(self, outputs: Tensor) -> Tensor:
        """The losses of the whole training set, from its outputs; they change nothing."""
        index = torch.arange(len(self.targets), device=self.device)
        if self.notes.early is not None:
            return self.notes.early.at(outputs, self.targets, index)
        return self._losses(outputs, self.targets, index)[0]

    def state_dict(self) -> dict[str, Any]:
        """What a run needs in order to continue."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "notes": self.notes.state_dict(),
            "sums": self.sums,
            "given": self.targets,
            "changed": self.changed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.model.load_state_dict(state["model"])
        own = [(group["lr"], group.get("fused")) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        if self.run.schedule != "constant":  # lr stays what it is on this device, tensor or number; `begin` sets it
            for group, (rate, fused) in zip(self.optimizer.param_groups, own, strict=True):
                group["lr"], group["fused"] = rate, fused
        if "notes" in state:  # checkpoints of older versions have none
            self.notes.load_state_dict(state["notes"])
        self.sums.copy_(state["sums"])


def call(model: nn.Module, x: Tensor) -> Tensor:
    """The forward pass."""
    outputs: Tensor = model(x)
    return outputs


def given_labels(run: Run, data: Data) -> Corrupted:
    """The targets that training sees, and which of them are wrong."""
    if data.classes is not None and run.noise_file is not None:
        labels = labels_in(Path(run.noise_file), data)
        return Corrupted(labels, labels != data.targets)
    if data.classes is not None:
        scaled = Scaling(data, torch.device("cpu"))(data.inputs) if run.noise == "instance" else None
        return corrupt(data.targets, data.classes, run.noise_of_labels, scaled)
    if run.noise_of_labels.kind != "none" or run.noise_file is not None:
        raise ValueError(f"corruption is for classes, but {data.name} is a regression")
    return Corrupted(data.targets, torch.zeros(len(data), dtype=torch.bool))


class Notes(nn.Module):
    """What is kept about each sample beside z, for classes: a trace of the predictions, and what loss elr remembers."""

    def __init__(self, run: Run, data: Data) -> None:
        super().__init__()
        if data.classes is None and run.loss != "ce":
            raise ValueError(f"loss {run.loss!r} is for classes, but {data.name} is a regression")
        if data.classes is None and run.mixup:
            raise ValueError(f"mixup is for classes, but {data.name} is a regression")
        self.trace = None if data.classes is None else md.Trace(len(data), data.classes)
        early = data.classes is not None and run.loss == "elr"
        self.early = md.EarlyLearning(len(data), data.classes or 0, memory=run.memory) if early else None


def per_sample(outputs: Tensor, targets: Tensor, classes: int | None) -> tuple[Tensor, Tensor | None]:
    """The losses (batch,), and for a regression the signed residuals, of which they are half the squares."""
    if classes is not None:
        return F.cross_entropy(outputs.float(), targets, reduction="none"), None
    root = outputs.float()[:, 0] - targets
    return root**2 / 2, root


def network(run: Run, data: Data) -> nn.Module:
    """The run's network with its initial weights."""
    outputs = 1 if data.classes is None else data.classes
    return build(run.model, data.shape, outputs, start=run.start, seed=derived(run.seed, "start"))


def optimizer_for(run: Run, model: nn.Module, n: int) -> torch.optim.Optimizer:
    """The run's algorithm over n training samples."""
    with warnings.catch_warnings():
        for said in (FarOffWarning, StuckWarning):  # by `step_notes`
            warnings.simplefilter("ignore", said)
        return _optimizer(run, model, n)


def _optimizer(run: Run, model: nn.Module, n: int) -> torch.optim.Optimizer:
    weights = model.parameters()
    if run.algorithm == "sgd":
        return _sgd(run, model)
    if run.algorithm == "smd":
        return md.SMD(weights, lr=run.lr, potential=run.potential, momentum=run.momentum)
    assert run.lam is not None
    if run.algorithm == "weight-decay":  # λ·ΣL + ½‖w‖² has the minimiser of the mean loss + ‖w‖²/(2·λ·n)
        return torch.optim.SGD(weights, lr=run.lr, momentum=run.momentum, weight_decay=1 / (run.lam * n))
    return md.RMD(
        weights,
        lr=run.lr,
        lam=run.lam,
        num_samples=n,
        potential=run.potential,
        reduction=run.reduction,
        penalty=run.penalty,
        momentum=run.momentum,
    )


def step_notes(run: Run, data: Data) -> list[str]:
    """Notes on batches larger than the data, an lr that does not fit the potential, and a z or zeros that hardly move.

    A mirror step moves a weight by lr/ψ'' times its gradient, and ψ'' is different for every potential.
    """
    notes = []
    if run.batch_size > len(data):
        notes.append(
            f"every batch holds all {len(data):,} samples; --batch-size {run.batch_size:,} is more than there are"
        )
    sizes = measured(network(run, data).parameters()) if run.algorithm in ("smd", "rmd") else None
    if sizes is not None and (zeros := _zeros(run, sizes)):
        notes.append(zeros)
    if sizes is not None and (far := _far_off(run, sizes)):
        notes.append(far)
    elif run.algorithm == "rmd" and run.reduction == "sample" and run.lam is not None:
        settling = run.lam / run.lr
        if SLOW * run.epochs < settling < math.inf:
            notes.append(
                f"z settles over lam/lr = {settling:,.3g} epochs, but there are {run.epochs:,}: it will hardly move, "
                "and training is nearly SMD"
            )
    return notes


def _far_off(run: Run, sizes: Sizes) -> str:
    """A note where lr moves weights as an absurd lr of SGD would, with one that fits the potential; else nothing."""
    found = far_off(sizes, md.potential(run.potential), run.lr)
    if found is None:
        return ""
    return (
        f"under {run.potential} --lr {run.lr:g} moves weights of the usual size ({found.usual:.2g}) as SGD does with "
        f"lr {found.alike:.1g}; --lr {found.better:.1g} is like SGD's 0.1, and --lam scales with it"
    )


def _zeros(run: Run, sizes: Sizes) -> str:
    """A note where parameters start at 0 under a potential that keeps them there; else nothing."""
    found = stuck(sizes, md.potential(run.potential), run.lr)
    if found is None:
        return ""
    count = "a tensor starts" if found.tensors == 1 else f"{found.tensors} tensors start"
    return f"{count} at 0, from where {run.potential} hardly moves a weight: expect zeros there at the end, too"


def _sgd(run: Run, model: nn.Module) -> torch.optim.SGD:
    weights = list(model.parameters())
    nesterov = run.acceleration == "nesterov"
    # In a captured step, an lr that changes has to be a tensor, and of SGD's implementations the fused one takes that.
    fused = run.schedule != "constant" and weights[0].is_cuda
    lr = torch.tensor(run.lr, device=weights[0].device) if fused else run.lr
    momentum, decay = run.momentum, run.decay
    return torch.optim.SGD(weights, lr, momentum, weight_decay=decay, nesterov=nesterov, fused=fused or None)
