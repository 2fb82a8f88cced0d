"""Continual learning: how much each weight matters to the old tasks, and a ψ that keeps important ones in place."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from mirrordescent.inputs import working
from mirrordescent.potentials import Quadratic

Batch = tuple[Tensor, ...]  # tensors of one length, the inputs first
Losses = Callable[[Any, Any], Tensor]  # from the model's output and the batch, in the form it came in; (batch,)
Weights = dict[str, Tensor]  # by the names of model.named_parameters()
AT_ONCE = {"cpu": 2**21}  # how many numbers the gradients in memory at a time may have, by type of device
MANY = 2**25  # and on all other devices
ANSWERS = ("label", "labels", "label_ids", "index")  # keys of a dictionary batch that are no inputs
ALONE = 2**18  # weights; on a CPU a larger network is faster sample by sample


def fisher(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    losses: Losses | None = None,
    generator: torch.Generator | None = None,
) -> Weights:
    """How much each weight matters to the model's predictions: the diagonal of its Fisher information.

        F_k = mean over the samples x of (∂ log p(y|x) / ∂w_k)²,    y drawn from the model itself

    batches: the old task's inputs, or tuples that begin with them, as a DataLoader gives; or dictionaries, which are
        passed to the model by name: those that its `forward` takes, except for "label", "labels", "label_ids" and
        "index". They are moved to the model's device. The model returns the logits of classes, or an object that has
        them as `.logits`; labels are not needed.
    losses: for other models, a function of the output and the batch (a tuple or a dictionary of tensors) that returns
        each sample's −log p(y|x), with y drawn from the model, or taken from the data (the "empirical" Fisher
        information).
    generator: draws the classes; it must be on the model's device.

    Computed in evaluation mode, from each sample's own gradient, with no gradient left behind. Frozen parameters are
    left out. Raises ValueError if there are no samples, for other outputs, and for gradients that are not finite;
    TypeError for other batches, for samples in place of batches, and for complex parameters.

    >>> model = torch.nn.Linear(2, 3)
    >>> {name: tuple(weights.shape) for name, weights in fisher(model, [torch.randn(100, 2)]).items()}
    {'weight': (3, 2), 'bias': (3,)}
    """
    params = _trained(model)
    if isinstance(batches, TensorDataset) or (isinstance(batches, Tensor) and batches.dim() < 3):
        given, remedy = type(batches).__name__, "DataLoader(dataset, batch_size=100)"
        if isinstance(batches, Tensor):
            given, remedy = f"a tensor of shape {tuple(batches.shape)}", "inputs.split(100)"
        raise TypeError(f"batches must be batches of samples, such as {remedy}, got {given}, of single samples")
    for name, w in params.items():
        if w.is_complex():
            raise TypeError(f"{name} is complex; the Fisher information is of real parameters")
    inputs, sums, count = _inputs_of(model), _zeros(params), 0
    large = next(iter(params.values())).device.type == "cpu" and sum(w.numel() for w in params.values()) > ALONE
    squares = _squares_one_by_one if large else _squares_at_once
    with _evaluating(model):
        for given in batches:
            form, batch = _taken(given, inputs, next(iter(params.values())).device, whole=losses is not None)
            if not len(batch[0]):
                continue
            if losses is None:
                batch = (*batch, _drawn(form.called(model, batch), generator))
            try:
                found = squares(model, params, form, batch, losses)
            except RuntimeError:  # torch.func cannot take some models
                if squares is _squares_one_by_one:
                    raise
                squares = _squares_one_by_one
                found = squares(model, params, form, batch, losses)
            for name, total in sums.items():
                total += found[name]
            count += len(batch[0])
    if count == 0:
        raise ValueError("batches gave no samples")
    for name, total in sums.items():
        if not bool(total.isfinite().all()):
            raise ValueError(f"the gradient of {name} is not finite for some sample: has training diverged?")
    return {name: total / count for name, total in sums.items()}


def anchored(
    model: nn.Module, importance: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]], strength: float = 10.0
) -> list[dict[str, Any]]:
    """Parameter groups for RMD or SMD that keep the weights that mattered to old tasks close to where they are.

        ψ(w) = ½ Σ h w²,   h = 1 + strength · Σ over tasks of F / mean(F),   so D_ψ(w, w₀) = ½ Σ h (w − w₀)²

    with w₀ the weights at the start of training.

    importance: what `fisher` gave after the old task, or a list with one for each task so far. Each is divided by its
        mean over all weights, so that a task's weight does not depend on how far it was learnt. A parameter without an
        entry, such as a new head's, is as free as under ½‖w‖²; entries of parameters that are frozen now do nothing.
    strength: how much a weight of mean importance adds to its h, which is 1 for a weight that did not matter.
    Raises ValueError if an importance does not fit the model, or strength is negative or not finite; TypeError for
    parameters in place of the model.

    >>> import mirrordescent as md
    >>> model = torch.nn.Linear(2, 3)
    >>> importance = md.fisher(model, [torch.randn(100, 2)])  # after the old task
    >>> optimizer = md.RMD(md.anchored(model, importance), lr=0.1, lam=2.0, num_samples=50)  # for the new one
    """
    if not 0 <= strength < math.inf:
        raise ValueError(f"strength must be >= 0 and finite, got {strength}")
    params, tasks = _trained(model), [importance] if isinstance(importance, Mapping) else list(importance)
    if not tasks:
        raise ValueError("importance is empty: it must have one entry, from md.fisher, for each task so far")
    known = _bare(name for name, _ in model.named_parameters())
    shares = [_shares(weights, model, known) for weights in tasks]
    groups = []
    for name, w in params.items():
        held = [share[known[name]] for share in shares if known[name] in share]  # a new layer has none
        h = 1 + strength * sum(held[1:], start=held[0]) if held else torch.ones(w.shape)
        groups.append({"params": [w], "potential": Quadratic(h.to(w.device))})
    return groups


def _shares(weights: Mapping[str, Tensor], model: nn.Module, bare: Mapping[str, str]) -> Weights:
    """Each trained weight's importance as a multiple of the mean; no entry for parameters that the old task lacked.

    Computed on the CPU, with the mean rounded to float32, so that the same importance makes the same ψ on every
    machine, to the last bit: a checkpoint recognises ψ by its bits. bare: the model's parameter names, by `_bare`.
    """
    given = _bare(weights)
    known = {bare[name]: w for name, w in model.named_parameters()}
    for whole, name in given.items():
        part = weights[whole]
        if name not in known:
            raise ValueError(
                f"the importance has an entry for {name}, which this model does not have: is it of another model?"
            )
        if part.shape != known[name].shape:
            shapes = f"shape {tuple(part.shape)}, and the parameter {tuple(known[name].shape)}"
            raise ValueError(f"the importance of {name} has {shapes}; if it is a new layer, leave its entry out")
        if not bool(((part >= 0) & part.isfinite()).all()):
            raise ValueError(f"the importance of {name} must be finite and >= 0 everywhere")
    held = {name: working(weights[whole].detach()).cpu() for whole, name in given.items() if known[name].requires_grad}
    total = sum(float(part.sum(dtype=torch.float64)) for part in held.values())
    if total == 0:
        what = "is 0 everywhere" if held else "has nothing for any trained parameter"
        raise ValueError(f"the importance {what}: there is nothing to hold on to")
    mean = float(torch.tensor(total / sum(part.numel() for part in held.values()), dtype=torch.float32))
    return {name: part / max(mean, torch.finfo(torch.float32).tiny) for name, part in held.items()}


def _bare(names: Iterable[str]) -> dict[str, str]:
    """Each name without the prefixes that torch.compile and DataParallel add when they wrap a model or its parts."""
    found = {name: name.replace("_orig_mod.", "") for name in names}  # torch.compile's
    while found and all(name.startswith("module.") for name in found.values()):
        found = {whole: name.removeprefix("module.") for whole, name in found.items()}
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def _inputs_of(model: nn.Module) -> Callable[[str], bool]:
    """Whether a model takes the entry of a dictionary with this name as an input."""
    taken = _taken_by(model)
    return lambda name: name not in ANSWERS and (taken is None or name in taken)


def _taken_by(model: nn.Module) -> frozenset[str] | None:
    """The names of what a model's `forward` takes, or that of the model which it wraps; None for whatever there is."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # a scripted one
        return None
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        return frozenset(parameters)
    inside = dict(model.named_children())
    return _taken_by(*inside.values()) if inside.keys() in ({"module"}, {"_orig_mod"}) else None


class _Form(NamedTuple):
    """How a batch is passed on: by `names` if it was a dictionary, else the first tensor to a model, all to a loss."""

    names: tuple[str, ...] | None
    is_input: Callable[[str], bool]

    def arguments(self, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        if self.names is None:
            return batch[:1], {}
        return (), {name: part for name, part in zip(self.names, batch, strict=False) if self.is_input(name)}

    def called(self, model: nn.Module, batch: Batch) -> Any:
        args, named = self.arguments(batch)
        with torch.no_grad():
            return model(*args, **named)

    def losses(self, output: Any, batch: Batch, losses: Losses | None) -> Tensor:
        """Each sample's loss: the user's, or the cross-entropy of the drawn class, the batch's last tensor."""
        if losses is None:
            return F.cross_entropy(_logits(output), batch[-1], reduction="none")
        return losses(output, batch if self.names is None else dict(zip(self.names, batch, strict=True)))


def _squares_at_once(model: nn.Module, params: Weights, form: _Form, batch: Batch, losses: Losses | None) -> Weights:
    """Each parameter's squared gradients, summed over the samples, many of which are differentiated at once."""

    def loss(held: Weights, sample: Batch) -> Tensor:
        one = tuple(part[None] for part in sample)
        return form.losses(functional_call(model, held, *form.arguments(one)), one, losses).sum()

    held, found = {name: w.detach() for name, w in params.items()}, _zeros(params)
    size = max(1, AT_ONCE.get(batch[0].device.type, MANY) // sum(w.numel() for w in params.values()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # vmap does such an operation sample by sample
        for some in zip(*(part.split(size) for part in batch), strict=True):
            for name, g in vmap(grad(loss), (None, 0), randomness="different")(held, some).items():
                found[name] += working(g).square().sum(0)
    return found


def _squares_one_by_one(model: nn.Module, params: Weights, form: _Form, batch: Batch, losses: Losses | None) -> Weights:
    """What `_squares_at_once` gives, for any model: by one backward pass per sample."""
    found = _zeros(params)
    for one in zip(*(part.split(1) for part in batch), strict=True):
        args, named = form.arguments(one)
        with torch.enable_grad():
            loss = form.losses(model(*args, **named), one, losses).sum()
        for name, g in zip(params, torch.autograd.grad(loss, list(params.values()), allow_unused=True), strict=True):
            if g is not None:
                found[name] += working(g).square()
    return found


def _logits(output: Any) -> Any:
    return getattr(output, "logits", output)


def _drawn(output: Any, generator: torch.Generator | None) -> Tensor:
    """A class for each sample, drawn with the model's own probabilities."""
    logits = _logits(output)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model's output must be logits, (batch, classes), got {found}; for others give losses=")
    if not bool(logits.isfinite().all()):
        raise ValueError("the model's output is not finite for some sample: has training diverged?")
    return torch.multinomial(logits.float().softmax(1), 1, generator=generator)[:, 0]


def _taken(given: Any, is_input: Callable[[str], bool], device: torch.device, *, whole: bool) -> tuple[_Form, Batch]:
    """A batch that a loader gave, on the model's device; unless `whole`, its inputs alone."""
    names, parts = None, [given]
    if isinstance(given, Mapping):
        names = tuple(name for name in given if whole or is_input(name))
        if not any(map(is_input, names)):
            raise TypeError(f"the model takes none of {', '.join(map(repr, given))}, which the batch has")
        parts = [given[name] for name in names]
    elif isinstance(given, (tuple, list)):
        parts = list(given) if whole else list(given[:1])
    if not parts or not all(isinstance(part, Tensor) and part.dim() and len(part) == len(parts[0]) for part in parts):
        raise TypeError(
            "a batch must be a tensor of inputs, tensors of one length that begin with it, or a dictionary of them"
        )
    return _Form(names, is_input), tuple(part.to(device) for part in parts)


def _trained(model: nn.Module) -> Weights:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not its parameters, got {type(model).__name__}")
    params: Weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
    if not params:
        raise ValueError("the model has no parameters that are trained")
    return params


def _zeros(params: Weights) -> Weights:
    return {name: torch.zeros_like(working(w.detach())) for name, w in params.items()}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode; afterwards every part is back in its own mode."""
    training = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(training[model])  # the model's own method, which may do more than set a flag
        for part, before in training.items():
            part.training = before
