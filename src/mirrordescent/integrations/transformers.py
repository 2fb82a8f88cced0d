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

# of the model's outputs and inputs: the losses, (batch,), or these and the signed residuals whose half squares they are
Losses = Callable[[Any, Mapping[str, Any]], Tensor | tuple[Tensor, Tensor]]
INDEX = "index"


class RMDTrainer(Trainer):  # type: ignore[misc]  # transformers' types are not looked at
    """`transformers.Trainer` with RMD as its optimizer; takes what Trainer takes, and looks after what RMD needs.

    optimizers: (a `md.RMD` over the model's parameters, and a scheduler or None).
    losses: a loss for each sample, (batch,), from the model's outputs and the batch; or a pair, of them and of the
        signed residuals r with L = r²/2 (`root` of `RMD.loss`). Without it, the cross-entropy of `outputs.logits`,
        (batch, classes), and of the batch's labels, as for classification.

    The training set, whose items are dictionaries, gets their index; accumulated batches are scaled by their shares;
    `args.max_grad_norm` clips z's step too, and so that all batches have one size the last is left out unless it is
    full (`lam_convention="objective"` takes it). Evaluation is Trainer's own. z is `trainer.rmd.aux.values`.
    Raises TypeError or ValueError where something is given that RMD cannot go with.
    """

    loss_is_scaled_for_ga = False  # a mean over its batch, to be divided by how many are accumulated

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
        rmd = optimizers[0]
        if not isinstance(rmd, RMD):
            kind = type(rmd).__name__
            raise TypeError(
                f"optimizers must be (a md.RMD over the model's parameters, a scheduler or None), got {kind}"
            )
        if others.get("compute_loss_func") is not None:
            raise ValueError(
                "compute_loss_func returns one loss for a batch, and RMD needs one per sample: give losses"
            )
        if train_dataset is not None and not isinstance(train_dataset, Indexed):
            train_dataset = Indexed(train_dataset)
        held = rmd.param_groups[0]
        if train_dataset is not None and len(train_dataset) > held["num_samples"]:
            counts = f"{len(train_dataset):,} samples, and md.RMD was made for {held['num_samples']:,}"
            raise ValueError(f"train_dataset has {counts}; give it num_samples=len(train_dataset)")
        args = copy.copy(args) if args is not None else TrainingArguments()  # it is the caller's
        if args.max_grad_norm:  # w's gradient alone would be clipped by Trainer
            held["max_norm"] = held["max_norm"] or float(args.max_grad_norm)
            args.max_grad_norm = 0.0
        if held["lam_convention"] == "paper":
            args.dataloader_drop_last = True
        self.rmd, self._losses = rmd, losses
        super().__init__(model, args, optimizers=optimizers, train_dataset=train_dataset, **others)
        self.model_accepts_loss_kwargs = False  # what a model makes of them is its own loss, which is not used

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """RMD's loss while the model is trained, and otherwise its own."""
        inputs = dict(inputs)
        index = inputs.pop(INDEX, None)
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if index is None:
            raise ValueError("a batch has no 'index': does the data collator drop keys that it does not know?")
        outputs = model(**inputs)
        found = self._losses(outputs, inputs) if self._losses is not None else self._cross_entropy(outputs, inputs)
        losses, root = found if isinstance(found, tuple) else (found, None)
        loss = self.rmd.loss(losses, index, root=root)
        return (loss, outputs) if return_outputs else loss

    def _cross_entropy(self, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
        logits, labels = getattr(outputs, "logits", None), inputs.get("labels")
        fits = isinstance(logits, Tensor) and logits.dim() == 2 and isinstance(labels, Tensor) and labels.dim() == 1
        if not fits or labels.dtype != torch.int64:  # type: ignore[union-attr]  # it is a tensor where it fits
            shapes = [tuple(t.shape) if isinstance(t, Tensor) else None for t in (logits, labels)]
            told = f"logits {shapes[0]} and labels {shapes[1]} are not those of a classification of samples"
            raise ValueError(f"{told}; say what a sample's loss is with losses=")
        smoothing = float(self.args.label_smoothing_factor)
        return F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)  # type: ignore[union-attr,arg-type]

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self._signature_columns is not None and INDEX not in self._signature_columns:
            self._signature_columns.append(INDEX)
