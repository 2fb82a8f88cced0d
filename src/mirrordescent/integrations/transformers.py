"""RMD in `transformers.Trainer`; needs transformers and accelerate (`pip install 'mirrordescent[transformers]'`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.indexed import Indexed
from mirrordescent.rmd import RMD

try:
    from transformers import Trainer, TrainingArguments
except ImportError as error:
    raise ImportError("RMDTrainer needs transformers: pip install 'mirrordescent[transformers]'") from error

# from the model's outputs and the batch: the losses, (batch,), or a pair of these and signed residuals r, loss = r²/2
Losses = Callable[[Any, Mapping[str, Any]], Tensor | tuple[Tensor, Tensor]]
INDEX = "index"


class RMDTrainer(Trainer):  # type: ignore[misc]  # mypy does not read transformers
    """`transformers.Trainer` with RMD as its optimizer; takes what Trainer takes, and takes care of what RMD needs.

    optimizers: (a `md.RMD` over the model's parameters, and a scheduler or None).
    losses: a function of the model's outputs and the batch; it returns a loss for each sample, (batch,), or a pair of
        these and the signed residuals r with L = r²/2 (`root` of `RMD.loss`). Without it, the cross-entropy of
        `outputs.logits`, (batch, classes), and the batch's labels, as for classification. In training, and only there,
        the batch has the samples' "index", which the model does not get: for `md.Trace` or `md.EarlyLearning`.

    Each item of the training set, a dictionary, gets its index; accumulated batches are scaled as RMD's convention
    requires; `args.max_grad_norm` clips z's step too (0 for no clipping, whatever `max_norm` RMD was made with); and so
    that all batches have one size, a last batch that is not full is left out of training (unless
    `lam_convention="objective"`, where λ does not depend on it). A model without a loss of its own is evaluated by the
    mean of these losses. z is `trainer.rmd.aux.values`.
    Raises TypeError or ValueError for arguments that do not work with RMD.
    """

    loss_is_scaled_for_ga = False  # it is a mean over its batch, still to be divided by how many are accumulated

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        losses: Losses | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        train_dataset: Any = None,
        **others: Any,  # whatever else this version of Trainer takes
    ) -> None:
        self.rmd, self._losses = _checked(optimizers, model), losses
        if others.get("compute_loss_func") is not None:
            raise ValueError("compute_loss_func gives one loss per batch, but RMD needs one per sample: use losses=")
        if train_dataset is not None and not isinstance(train_dataset, Indexed):
            train_dataset = Indexed(train_dataset)
        known = self._rmd("num_samples")
        if train_dataset is not None and len(train_dataset) > known:
            counts = f"{len(train_dataset):,} samples, but md.RMD was made for {known:,}"
            raise ValueError(f"train_dataset has {counts}; give it num_samples=len(train_dataset)")
        args = copy.copy(args) if args is not None else TrainingArguments()  # the caller's own stay as they are
        if args.weight_decay:  # Trainer would ignore it without a word: it is for optimizers that Trainer makes
            told = f"weight_decay = {args.weight_decay} has no effect on RMD, whose regularizer is ψ, weighed by lam"
            raise ValueError(f"{told}; leave it out")
        self._max_norm, args.max_grad_norm = args.max_grad_norm or None, 0.0  # Trainer would clip w's gradient alone
        super().__init__(model, args, optimizers=optimizers, train_dataset=train_dataset, **others)
        self.model_accepts_loss_kwargs = False  # they would only change the model's own loss, which is not used

    def get_train_dataloader(self) -> Any:
        """Trainer's own; in the paper's convention, it leaves out a last batch that is not full."""
        if self._rmd("lam_convention") == "objective":
            return super().get_train_dataloader()
        least = self.args.train_batch_size * self.args.world_size
        if self.train_dataset is not None and len(self.train_dataset) < least:
            counts = f"{len(self.train_dataset):,} samples do not fill a batch of {least:,}"
            raise ValueError(f'{counts}; make the batch smaller, or use lam_convention="objective"')
        before = self.args.dataloader_drop_last
        self.args.dataloader_drop_last = True  # for this call alone, or evaluations would leave samples out, too
        try:
            return super().get_train_dataloader()
        finally:
            self.args.dataloader_drop_last = before

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """RMD's loss in training; in evaluation the model's own, or else the mean of the samples' losses."""
        del num_items_in_batch  # the means here are over samples
        inputs = dict(inputs)
        index = inputs.pop(INDEX, None)
        outputs = model(**inputs)
        if model.training:
            loss = self._training_loss(outputs, inputs, index)
        elif isinstance(outputs, Mapping) and outputs.get("loss") is not None:
            loss = outputs["loss"]
        else:
            loss = self._of_samples(outputs, inputs)[0].mean()
        return (loss, outputs) if return_outputs else loss

    def _training_loss(self, outputs: Any, inputs: Mapping[str, Any], index: Tensor | None) -> Tensor:
        if index is None:
            raise ValueError("a batch has no 'index': does the data collator drop keys that it does not know?")
        self.rmd.param_groups[0]["max_norm"] = self._max_norm  # a checkpoint may have changed it
        losses, root = self._of_samples(outputs, {**inputs, INDEX: index})
        loss = self.rmd.loss(losses, index, root=root)
        if self._rmd("lam_convention") == "paper":  # there w's step is smaller after a shorter last window
            loss = loss * (self.current_gradient_accumulation_steps / self.args.gradient_accumulation_steps)
        return loss

    def _of_samples(self, outputs: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
        """The samples' losses, and their signed residuals where there are any."""
        if self._losses is not None:
            found = self._losses(outputs, inputs)
            return found if isinstance(found, tuple) else (found, None)
        logits, labels = getattr(outputs, "logits", None), inputs.get("labels")
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor) or (logits.dim(), labels.dim()) != (2, 1):
            shapes = [tuple(t.shape) if isinstance(t, Tensor) else None for t in (logits, labels)]
            told = f"logits {shapes[0]} and labels {shapes[1]} do not fit a classification of samples"
            raise ValueError(f"{told}; define a sample's loss with losses=")
        if labels.dtype != torch.int64:
            raise ValueError(f"labels of a classification are int64, got {labels.dtype}; for other tasks use losses=")
        smoothing = float(self.args.label_smoothing_factor)
        return F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing), None

    def _rmd(self, setting: str) -> Any:
        return self.rmd.param_groups[0][setting]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self._signature_columns is not None and INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)


def _checked(optimizers: Any, model: Any) -> RMD:
    """The RMD in `optimizers`. Raises TypeError where there is none, ValueError where it is not over this model."""
    pair = isinstance(optimizers, (tuple, list)) and len(optimizers) == 2
    rmd = optimizers[0] if pair else None
    if not isinstance(rmd, RMD):
        kind = type(rmd).__name__ if pair else f"{type(optimizers).__name__} alone"
        raise TypeError(f"optimizers must be (a md.RMD over the model's parameters, a scheduler or None), got {kind}")
    if model is not None:
        own = {id(w) for w in model.parameters()}
        if not all(id(w) in own for group in rmd.param_groups for w in group["params"]):
            raise ValueError("md.RMD was made for parameters that are not the model's")
    return rmd
