"""Inside other libraries' trainers RMD ends at the same minimiser: accumulated, clipped, resumed, in any batch size."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mirrordescent as md

N, FEATURES, LAM = 24, 40, 2.0
# what they say of a machine, of themselves and of each other is theirs
pytestmark = pytest.mark.filterwarnings("ignore")


def problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, FEATURES, generator=generator) / FEATURES**0.5, torch.randn(N, generator=generator)


def minimiser(lam: float = LAM) -> Tensor:
    """Of λ Σ (xᵀw − y)²/2 + ½‖w‖²."""
    x, y = (part.double() for part in problem())
    dual: Tensor = torch.linalg.solve(x @ x.T + torch.eye(N).double() / lam, y)
    return x.T @ dual


def off(w: Tensor) -> float:
    exact = minimiser()
    return float((w.detach().double().flatten() - exact).norm() / exact.norm())


class Linear(nn.Module):
    """As transformers likes them: arguments by name, other ones too, and a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: Tensor, labels: Tensor | None = None, **_: Any) -> dict[str, Tensor]:
        outputs = x @ self.weight
        return {"loss": (outputs - labels).square().mean() if labels is not None else outputs.sum(), "logits": outputs}


def optimizer_for(params: Any, **settings: Any) -> md.RMD:
    """λ itself weighs the sum of the losses, in any batch size."""
    return md.RMD(params, lr=1.0, lam=LAM, num_samples=N, lam_convention="objective", **settings)


def test_the_exact_minimiser_is_not_that_of_another_lam() -> None:
    """So that a wrong factor would show."""
    assert off(minimiser(2 * LAM)) > 0.1


# transformers


class Items(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        x, y = problem()
        return {"x": x[i], "labels": y[i], "note": "not for the model"}


def signed(outputs: Any, inputs: Any) -> tuple[Tensor, Tensor]:
    r = outputs["logits"] - inputs["labels"]
    return r.square() / 2, r


def trainer(folder: Path, epochs: int = 250, model: nn.Module | None = None, **settings: Any) -> Any:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from transformers import TrainingArguments

    from mirrordescent.integrations.transformers import RMDTrainer

    model = model or Linear()
    rmd = settings.pop("rmd", None) or optimizer_for(model.parameters())
    own = ("losses", "eval_dataset", "compute_loss_func", "train_dataset")
    more: dict[str, Any] = {"losses": signed, "train_dataset": Items()}
    more |= {name: settings.pop(name) for name in own if name in settings}
    usual: dict[str, Any] = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    usual |= {"logging_strategy": "no", "lr_scheduler_type": "constant", "num_train_epochs": epochs}
    return RMDTrainer(model, TrainingArguments(str(folder), **{**usual, **settings}), optimizers=(rmd, None), **more)


@pytest.mark.parametrize("convention", ["objective", "paper"])
@pytest.mark.parametrize(
    "settings",
    [
        {"per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},  # the last window is shorter
        {"per_device_train_batch_size": 8, "max_grad_norm": 0.1},
        {"per_device_train_batch_size": 7},  # and the last batch
    ],
    ids=lambda settings: " ".join(f"{name}={value}" for name, value in settings.items()),
)
def test_transformers_trainer_ends_at_the_minimiser(tmp_path: Path, settings: dict[str, Any], convention: str) -> None:
    model = Linear()
    size = settings["per_device_train_batch_size"] * settings.get("gradient_accumulation_steps", 1)
    rmd = optimizer_for(model.parameters())
    if convention == "paper":
        rmd = md.RMD(model.parameters(), lr=1.0, lam=LAM * size, num_samples=N)
    made = trainer(tmp_path, model=model, rmd=rmd, **settings)
    made.train()
    assert off(model.weight) < 1e-4
    # what is not full is left out where it would weigh more
    steps = N // size if convention == "paper" and N % settings["per_device_train_batch_size"] else -(-N // size)
    assert made.state.global_step == 250 * steps


def test_transformers_trainer_goes_on_with_z(tmp_path: Path) -> None:
    """Where it was, as if it had not been cut off."""
    saved: dict[str, Any] = {"save_strategy": "epoch", "per_device_train_batch_size": 8}
    whole = trainer(tmp_path / "whole", epochs=6, **saved)
    whole.train()
    trainer(tmp_path / "cut", epochs=3, **saved).train()
    rest = trainer(tmp_path / "cut", epochs=6, **saved)
    rest.train(resume_from_checkpoint=True)
    assert torch.equal(rest.rmd.aux.values, whole.rmd.aux.values)
    assert torch.equal(rest.model.weight, whole.model.weight)


def test_transformers_trainer_evaluates_as_ever(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=1, eval_dataset=Items(), per_device_train_batch_size=8)
    before = made.rmd.aux.values.clone()
    _, y = problem()
    assert made.evaluate()["eval_loss"] == pytest.approx(float(y.square().mean()), rel=1e-5)
    assert torch.equal(made.rmd.aux.values, before)


@pytest.mark.parametrize("convention", ["objective", "paper"])
def test_transformers_trainer_predicts_every_sample(tmp_path: Path, convention: str) -> None:
    model = Linear()
    rmd = md.RMD(model.parameters(), lr=0.1, lam=2.0, num_samples=N, lam_convention=convention)
    made = trainer(
        tmp_path, epochs=1, model=model, rmd=rmd, per_device_train_batch_size=7, per_device_eval_batch_size=7
    )
    made.train()
    found = made.predict(md.Indexed(Items()))  # an index of theirs is none of RMD's business
    torch.testing.assert_close(torch.as_tensor(found.predictions), problem()[0] @ model.weight.detach())
    assert made.args.dataloader_drop_last is False


def test_transformers_trainer_clips_as_its_arguments_say(tmp_path: Path) -> None:
    """Whatever RMD was made with, and whatever a checkpoint brings."""
    saved: dict[str, Any] = {"save_strategy": "epoch", "per_device_train_batch_size": 8, "epochs": 1}
    model = Linear()
    rmd = optimizer_for(model.parameters(), max_norm=0.5)
    for given, expected in ((0.25, 0.25), (2.0, 2.0), (0.0, None)):
        made = trainer(tmp_path, model=model, rmd=rmd, max_grad_norm=given, **saved)
        made.train()
        assert rmd.param_groups[0]["max_norm"] == expected
    resumed = trainer(tmp_path, max_grad_norm=0.125, **{**saved, "epochs": 2})
    resumed.train(resume_from_checkpoint=True)
    assert resumed.rmd.param_groups[0]["max_norm"] == 0.125


class Silent(nn.Module):
    """A model that says nothing about its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": x @ self.weight}


def test_transformers_trainer_evaluates_a_model_without_a_loss(tmp_path: Path) -> None:
    model = Silent()
    made = trainer(tmp_path, epochs=1, model=model, eval_dataset=Items(), per_device_train_batch_size=8)
    expected = float(problem()[1].square().mean()) / 2
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)
        self.config = SimpleNamespace(problem_type=None)  # which Trainer looks at

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        from transformers.modeling_outputs import SequenceClassifierOutput

        return SequenceClassifierOutput(logits=self.layer(x))


class Classes(Items):
    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": problem()[0][i], "labels": i % 3}


def test_transformers_trainer_takes_the_cross_entropy_of_classes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = Classifier()
    twin = Classifier()
    twin.load_state_dict(model.state_dict())
    settings: dict[str, Any] = {"lr": 0.1, "lam": 2.0, "num_samples": N}
    made = trainer(
        tmp_path,
        epochs=2,
        model=model,
        rmd=md.RMD(model.parameters(), **settings),
        losses=None,
        train_dataset=Classes(),
        per_device_train_batch_size=N,
        label_smoothing_factor=0.1,
        max_grad_norm=0.0,
    )
    made.train()
    x, y, index = problem()[0], torch.arange(N) % 3, torch.arange(N)
    optimizer = md.RMD(twin.parameters(), **settings)
    for _ in range(2):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(twin.layer(x), y, reduction="none", label_smoothing=0.1)
        optimizer.loss(losses, index).backward()
        optimizer.step()
    torch.testing.assert_close(model.layer.weight, twin.layer.weight)
    torch.testing.assert_close(made.rmd.aux.values, optimizer.aux.values)


def test_transformers_trainer_tells_the_losses_which_samples_they_are_of(tmp_path: Path) -> None:
    """In training, for a trace or a loss that remembers; the model gets no index, nor do the losses of others."""
    pytest.importorskip("transformers")
    model, trace, seen = Classifier(), md.Trace(N, 3), []

    def losses(outputs: Any, inputs: dict[str, Tensor]) -> Tensor:
        seen.append((model.training, "index" in inputs))
        if "index" in inputs:
            x, y = problem()[0], torch.arange(N) % 3
            assert torch.equal(inputs["x"], x[inputs["index"]])
            assert torch.equal(inputs["labels"], y[inputs["index"]])
            trace(outputs.logits, inputs["labels"], inputs["index"])
        return nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")

    made = trainer(
        tmp_path,
        epochs=2,
        model=model,
        rmd=md.RMD(model.parameters(), lr=0.1, lam=2.0, num_samples=N),
        losses=losses,
        train_dataset=Classes(),
        eval_dataset=md.Indexed(Classes()),
        per_device_train_batch_size=8,
    )
    made.train()
    made.evaluate()
    assert trace.visits.tolist() == [2.0] * N
    assert set(seen) == {(True, True), (False, False)}


def test_transformers_trainer_says_what_it_cannot_go_with(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model = Linear()
    with pytest.raises(TypeError, match=r"optimizers must be \(a md.RMD .*, got SGD"):
        trainer(tmp_path, rmd=torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"24 samples, but md\.RMD was made for 5"):
        trainer(tmp_path, model=model, rmd=md.RMD(model.parameters(), 0.1, 1.0, 5))
    with pytest.raises(ValueError, match="compute_loss_func gives one loss per batch"):
        trainer(tmp_path, compute_loss_func=lambda *_: None)
    with pytest.raises(ValueError, match=r"weight_decay = 0\.01 has no effect on RMD"):
        trainer(tmp_path, weight_decay=0.01)
    with pytest.raises(ValueError, match="parameters that are not the model's"):
        trainer(tmp_path, rmd=optimizer_for(Linear().parameters()))
    rmd = md.RMD(model.parameters(), 0.1, 1.0, N)
    with pytest.raises(ValueError, match="24 samples do not fill a batch of 25"):
        trainer(tmp_path, epochs=1, model=model, rmd=rmd, per_device_train_batch_size=25).train()
    from mirrordescent.integrations.transformers import RMDTrainer

    with pytest.raises(TypeError, match="got RMD alone"):
        RMDTrainer(model, optimizers=rmd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"logits None and labels \(8,\) do not fit a classification"):
        trainer(tmp_path, epochs=1, losses=None, per_device_train_batch_size=8).train()


def test_transformers_trainer_leaves_the_callers_arguments_alone(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import TrainingArguments

    from mirrordescent.integrations.transformers import RMDTrainer

    model = Linear()
    arguments = TrainingArguments(str(tmp_path), report_to="none", max_grad_norm=0.5, use_cpu=True)
    rmd = md.RMD(model.parameters(), 0.1, 1.0, N)
    made = RMDTrainer(model, arguments, train_dataset=Items(), optimizers=(rmd, None))
    assert arguments.max_grad_norm == 0.5
    assert made.args.max_grad_norm == 0.0


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "mirrordescent.integrations.transformers", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'mirrordescent\[transformers\]'"):
        import mirrordescent.integrations.transformers  # noqa: F401


# Lightning and Accelerate: nothing but what docs/trainers.md says


def loader(batch: int) -> DataLoader[Any]:
    return DataLoader(md.Indexed(TensorDataset(*problem())), batch_size=batch, shuffle=True)


@pytest.mark.parametrize(("batch", "windows", "max_norm"), [(8, 1, None), (4, 2, None), (8, 1, 0.1), (7, 1, None)])
def test_lightning_ends_at_the_minimiser(tmp_path: Path, batch: int, windows: int, max_norm: float | None) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]  # its types are not looked at
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(FEATURES))

        def training_step(self, batch: Any, _: int) -> Tensor:
            x, y, index = batch
            r = x @ self.weight - y
            loss: Tensor = self.optimizers().loss(r.square() / 2, index, root=r)
            return loss

        def configure_optimizers(self) -> md.RMD:
            return optimizer_for(self.parameters(), max_norm=max_norm)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    made = lightning.Trainer(
        max_epochs=250,
        accumulate_grad_batches=windows,
        accelerator="cpu",
        devices=1,
        default_root_dir=tmp_path,
        **quiet,
    )
    module = Module()
    made.fit(module, loader(batch))
    assert off(module.weight) < 1e-4
    assert bool(made.optimizers[0].aux.values.any())


@pytest.mark.parametrize(("batch", "windows", "max_norm"), [(8, 1, None), (4, 2, None), (8, 1, 0.1), (7, 1, None)])
def test_accelerate_ends_at_the_minimiser(batch: int, windows: int, max_norm: float | None) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=windows)
    module = Linear()
    rmd = optimizer_for(module.parameters(), max_norm=max_norm)
    model, optimizer, batches = accelerator.prepare(module, rmd, loader(batch))
    for _ in range(250):
        for x, y, index in batches:
            with accelerator.accumulate(model):
                r = model(x)["logits"] - y
                accelerator.backward(rmd.loss(r.square() / 2, index, root=r))
                optimizer.step()
                optimizer.zero_grad()
    assert off(module.weight) < 1e-4
