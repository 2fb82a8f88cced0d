"""Fisher weights are squared gradients of what a model says, and an anchored RMD ends where both tasks want it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import mirrordescent as md
from mirrordescent import importance as module


def classifier() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def labelled(output: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(output, batch[1], reduction="none")


def test_fisher_of_a_linear_softmax_is_its_closed_form() -> None:
    """E (p_c − y_c)² x_k² = p_c (1 − p_c) x_k² for y drawn from p."""
    torch.manual_seed(0)
    model, x = nn.Linear(3, 4), torch.randn(5, 3)
    p = model(x).softmax(1).detach()
    spread = p * (1 - p)
    found = md.fisher(model, x.repeat(4000, 1).split(2500), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found["weight"], (spread.T @ x.square()) / 5, rtol=0.05, atol=0.0)
    torch.testing.assert_close(found["bias"], spread.mean(0), rtol=0.05, atol=0.0)


@pytest.mark.parametrize(("at_once", "alone"), [(1, 10**9), (10**9, 10**9), (10**9, 0)])
def test_fisher_is_the_mean_of_squared_gradients(at_once: int, alone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", {"cpu": at_once})
    monkeypatch.setattr(module, "ALONE", alone)
    model, x, y = classifier(), torch.randn(7, 4).double(), torch.randint(3, (7,))
    found = md.fisher(model, [(x[:5], y[:5]), (x[5:], y[5:])], losses=labelled)
    expected = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    for k in range(7):
        gradients = torch.autograd.grad(F.cross_entropy(model(x[k : k + 1]), y[k : k + 1]), list(model.parameters()))
        for total, g in zip(expected.values(), gradients, strict=True):
            total += g.square() / 7
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=0.0)
        assert not found[name].requires_grad


class Stubborn(nn.Module):
    """A classifier with a branch that torch.func cannot take."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.unused = nn.Parameter(torch.ones(2).double())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out if out.sum().item() < 1e9 else -out


def test_models_that_torch_func_cannot_take_are_taken_one_by_one() -> None:
    model, batch = classifier(), (torch.randn(7, 4).double(), torch.randint(3, (7,)))
    plain, found = md.fisher(model, [batch], losses=labelled), md.fisher(Stubborn(model), [batch], losses=labelled)
    for name, value in plain.items():
        torch.testing.assert_close(found[f"inner.{name}"], value, rtol=1e-10, atol=0.0)
    assert not found["unused"].any()


def test_fisher_leaves_the_model_as_it_was() -> None:
    """No gradient, no running mean, no mode of any part, and no dropout in between."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(9, 4)
    draw = torch.Generator()
    one, other = (md.fisher(model, [x], generator=draw.manual_seed(3)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [part.training for part in model] == [True, False, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(w.grad is None for w in model.parameters())


def test_frozen_parameters_have_no_importance_and_no_group() -> None:
    model = classifier()
    model[0].requires_grad_(False)
    importance = md.fisher(model, [torch.randn(5, 4).double()])
    assert list(importance) == ["2.weight", "2.bias"]
    assert [group["params"][0] for group in md.anchored(model, importance)] == list(model[2].parameters())


def test_half_precision_is_summed_in_single() -> None:
    """Of many samples, which half precision could not count: beside 256 it has no 1."""
    model, x = nn.Linear(1, 2).bfloat16(), torch.ones(1000, 1).bfloat16()
    found = md.fisher(model, x.split(100), losses=lambda output, _: output.sum(1))
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert all(torch.equal(value, torch.ones_like(value)) for value in found.values())
    whole = md.fisher(model, [x], losses=lambda output, _: output.sum(1))
    assert all(torch.equal(value, torch.ones_like(value)) for value in whole.values())


def test_what_a_model_draws_is_drawn_for_each_sample() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            drawn: Tensor = self.weight * torch.randn_like(x)
            return drawn

    one = md.fisher(Noisy(), [torch.ones(2000, 1)], losses=lambda output, _: output[:, 0])
    assert float(one["weight"]) == pytest.approx(1, abs=0.15)  # the mean of many squares, not the square of one


@pytest.mark.parametrize(
    ("batches", "options", "error", "told"),
    [
        ([], {}, ValueError, "batches gave no samples"),
        ([torch.empty(0, 4).double()], {}, ValueError, "batches gave no samples"),
        ([torch.full((2, 4), float("nan")).double()], {}, ValueError, "not finite for some sample"),
        ([{"input": ["a", "b"]}], {}, TypeError, "a batch must be a tensor of inputs"),
        ([{"labels": torch.ones(2)}], {}, TypeError, "the model takes none of 'labels'"),
        ([{"x": torch.ones(2, 4).double(), "id": [1, 2]}], {}, TypeError, "takes none of 'x', 'id', which the batch"),
        ([(torch.ones(2, 4).double(), ["a", "b"])], {"losses": labelled}, TypeError, "tensors of one length"),
        ([(torch.ones(2, 4).double(), torch.ones(3))], {"losses": labelled}, TypeError, "tensors of one length"),
    ],
)
def test_bad_batches_are_told(batches: Any, options: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        md.fisher(classifier(), batches, **options)


class Named(nn.Module):
    """A classifier of two inputs by their names, with an output that has logits among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = classifier()

    def forward(self, left: Tensor, right: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.inner(left * right), hidden=left)


@pytest.mark.parametrize("alone", [0, 10**9])
@pytest.mark.parametrize("drawn", [True, False])
def test_batches_with_names_are_those_without(alone: int, drawn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE", alone)
    left, right, y = torch.randn(6, 4).double(), torch.randn(6, 4).double(), torch.randint(3, (6,))
    draw = torch.Generator()

    def by_name(output: SimpleNamespace, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(output.logits, batch["labels"], reduction="none")

    batch = {"left": left, "labels": y, "right": right, "index": torch.arange(6), "target": y}
    found = md.fisher(Named(), [batch], losses=None if drawn else by_name, generator=draw.manual_seed(0))
    plain = (left * right, y)
    expected = md.fisher(classifier(), [plain], losses=None if drawn else labelled, generator=draw.manual_seed(0))
    for name, value in expected.items():
        torch.testing.assert_close(found[f"inner.{name}"], value, rtol=1e-10, atol=0.0)


def test_what_a_model_does_not_take_stays_behind() -> None:
    left, draw = torch.randn(6, 4).double(), torch.Generator()
    batch = {"left": left, "right": left, "id": ["a"] * 6, "target": torch.zeros(6)}
    found = md.fisher(Named(), [batch], generator=draw.manual_seed(0))
    expected = md.fisher(classifier(), [left * left], generator=draw.manual_seed(0))
    assert all(torch.equal(found[f"inner.{name}"], value) for name, value in expected.items())


def both(model: nn.Module) -> nn.Module:
    compiled: Any = torch.compile(model)
    return nn.DataParallel(compiled)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, both])
def test_of_a_wrapped_model_it_is_asked_what_it_takes(wrap: Callable[[nn.Module], nn.Module]) -> None:
    left, draw = torch.randn(6, 4).double(), torch.Generator()
    with torch.compiler.set_stance("force_eager"):
        found = md.fisher(wrap(Named()), [{"left": left, "right": left, "id": left}], generator=draw.manual_seed(0))
    expected = md.fisher(classifier(), [left * left], generator=draw.manual_seed(0))
    for (_, value), plain in zip(sorted(found.items()), (expected[name] for name in sorted(expected)), strict=True):
        torch.testing.assert_close(value, plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_model_needs_no_names() -> None:
    x = torch.randn(6, 4).double()
    assert md.fisher(torch.jit.trace(classifier(), x), [x]).keys()


def test_a_model_that_takes_anything_is_given_it() -> None:
    class Anything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = classifier()

        def forward(self, **named: Tensor) -> Tensor:
            assert named.keys() == {"left", "id"}
            out: Tensor = self.inner(named["left"])
            return out

    md.fisher(Anything(), [{"left": torch.randn(6, 4).double(), "labels": torch.zeros(6), "id": torch.zeros(6)}])


def test_labels_are_not_looked_at() -> None:
    x, draw = torch.randn(6, 4).double(), torch.Generator()
    alone = md.fisher(classifier(), [x], generator=draw.manual_seed(0))
    beside = md.fisher(classifier(), [(x, ["a"] * 6)], generator=draw.manual_seed(0))
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_gradients_that_are_not_finite_are_told() -> None:
    def infinite(output: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        return output.sum(1) * float("inf")

    with pytest.raises(ValueError, match=r"the gradient of 0\.weight is not finite"):
        md.fisher(classifier(), [torch.randn(3, 4).double()], losses=infinite)


def test_outputs_that_are_no_logits_are_told() -> None:
    with pytest.raises(
        ValueError, match=r"must be logits, \(batch, classes\), got shape \(5, 1\); for others give losses="
    ):
        md.fisher(nn.Linear(4, 1), [torch.randn(5, 4)])
    with pytest.raises(ValueError, match="no parameters that are trained"):
        md.fisher(nn.ReLU(), [torch.randn(5, 4)])


@pytest.mark.parametrize("losses", [None, labelled])
def test_samples_in_place_of_batches_are_told(losses: Any) -> None:
    x, y = torch.randn(5, 4).double(), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"such as inputs\.split\(100\), got a tensor of shape \(5, 4\), of single"):
        md.fisher(classifier(), x, losses=losses)
    data: Any = TensorDataset(x, y)
    with pytest.raises(TypeError, match=r"such as DataLoader\(dataset, batch_size=100\), got TensorDataset, of"):
        md.fisher(classifier(), data, losses=losses)
    assert md.fisher(classifier(), DataLoader(data, batch_size=5), losses=losses)
    assert md.fisher(classifier(), [(x, y)], losses=losses)
    batched = md.fisher(classifier(), torch.stack([x, x])) if losses is None else None  # a batch per entry
    assert batched is None or batched.keys() == md.fisher(classifier(), [x, x]).keys()


def test_parameters_in_place_of_the_model_are_told() -> None:
    model = classifier()
    importance = md.fisher(model, [torch.randn(5, 4).double()])
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not its parameters, got generator"):
        md.anchored(model.parameters(), importance)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not its parameters, got list"):
        md.fisher(list(model.parameters()), [torch.randn(5, 4)])  # type: ignore[arg-type]


def test_every_task_counts_alike_however_far_it_was_learnt() -> None:
    model = classifier()
    first, second = ({name: torch.rand_like(w) for name, w in model.named_parameters()} for _ in range(2))
    faint = {name: value * 1e-9 for name, value in second.items()}
    for one, other in zip(
        md.anchored(model, [first, second], 5.0), md.anchored(model, [first, faint], 5.0), strict=True
    ):
        torch.testing.assert_close(one["potential"].weight, other["potential"].weight, rtol=1e-6, atol=0.0)
    weights = torch.cat([group["potential"].weight.flatten() for group in md.anchored(model, [first, second], 5.0)])
    torch.testing.assert_close(weights.mean(), torch.tensor(1 + 2 * 5.0).double(), rtol=1e-6, atol=0.0)
    assert float(weights.min()) >= 1


def test_each_weight_counts_beside_all_others_and_not_beside_its_own_tensors() -> None:
    model = classifier()
    importance = {name: torch.rand_like(w) * 10**k for k, (name, w) in enumerate(model.named_parameters())}
    mean = torch.cat([part.flatten() for part in importance.values()]).mean()
    for (name, part), group in zip(importance.items(), md.anchored(model, importance, 5.0), strict=True):
        torch.testing.assert_close(group["potential"].weight, 1 + 5 * part / mean, rtol=1e-6, atol=0.0, msg=name)


def test_a_new_layer_is_free_and_a_frozen_one_does_nothing() -> None:
    model = classifier()
    importance = md.fisher(model, [torch.randn(5, 4).double()])
    grown = nn.Sequential(*model, nn.Tanh(), nn.Linear(3, 2).double())
    *old, weight, bias = md.anchored(grown, importance, 5.0)
    for one, other in zip(old, md.anchored(model, importance, 5.0), strict=True):
        assert torch.equal(one["potential"].weight, other["potential"].weight)
    assert all(torch.equal(new["potential"].weight, torch.ones(new["params"][0].shape)) for new in (weight, bias))
    grown[0].requires_grad_(False)
    left = {name: part for name, part in importance.items() if not name.startswith("0.")}
    held, alone = md.anchored(grown, importance, 5.0), md.anchored(grown, left, 5.0)
    assert [id(group["params"][0]) for group in held] == [id(w) for w in grown.parameters() if w.requires_grad]
    assert all(torch.equal(a["potential"].weight, b["potential"].weight) for a, b in zip(held, alone, strict=True))
    larger = nn.Sequential(model[0], model[1], nn.Linear(6, 5).double())
    with pytest.raises(ValueError, match=r"2\.weight has shape .*; if it is a new layer, leave its entry out"):
        md.anchored(larger, importance)


def test_what_is_wrapped_around_a_model_does_not_count() -> None:
    model = classifier()
    importance = md.fisher(model, [torch.randn(5, 4).double()])
    wrapped = nn.DataParallel(model)
    for one, other in zip(md.anchored(wrapped, importance), md.anchored(model, importance), strict=True):
        assert torch.equal(one["potential"].weight, other["potential"].weight)
    for around in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."):
        wrapped_names = {f"{around}{name}": part for name, part in importance.items()}
        for one, other in zip(md.anchored(model, wrapped_names), md.anchored(model, importance), strict=True):
            assert torch.equal(one["potential"].weight, other["potential"].weight)
    compiled: Any = torch.compile(model[0], backend="eager")
    part = nn.Sequential(compiled, model[1], model[2])
    assert len(md.anchored(part, importance)) == 4


class Holding(nn.Module):
    """A model with a part that is called as a wrapper calls what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.module = nn.Linear(1, 3, bias=False)


def test_a_part_that_is_called_module_is_a_part() -> None:
    model = Holding()
    importance = {"weight": torch.tensor([1.0, 2.0, 3.0]), "module.weight": torch.tensor([[7.0], [8.0], [9.0]])}
    own, part = md.anchored(model, importance, 1.0)
    torch.testing.assert_close(own["potential"].weight, 1 + importance["weight"] / 5)
    torch.testing.assert_close(part["potential"].weight, 1 + importance["module.weight"] / 5)


def test_the_same_importance_makes_the_same_bits_whatever_the_sums_order() -> None:
    """A checkpoint knows ψ by its bits, and a sum of many depends on threads and devices."""
    torch.manual_seed(0)
    model = nn.Linear(400, 300).double()
    importance = {name: torch.rand_like(w) for name, w in model.named_parameters()}
    [weight, _] = md.anchored(model, importance)
    total = torch.Tensor.sum

    def other(self: Tensor, *dims: Any, **more: Any) -> Tensor:
        return total(self, *dims, **more) * (1 + 3e-16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "sum", other)
        [again, _] = md.anchored(model, importance)
    assert torch.equal(weight["potential"].weight, again["potential"].weight)


def test_batches_without_samples_count_for_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x = torch.randn(3, 1, 4, 4)
    found, beside = (
        md.fisher(model, some, generator=torch.Generator().manual_seed(0)) for some in ([x], [x[:0], x, x[:0]])
    )
    assert all(torch.equal(found[name], beside[name]) for name in found)
    with pytest.raises(ValueError, match="no samples"):
        md.fisher(model, [x[:0]])


class Merging(nn.Linear):
    """A layer that does something of its own when its mode changes, as adapters do."""

    merged = False

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            with torch.no_grad():
                self.weight.add_(-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)


def test_a_layer_that_changes_with_its_mode_is_as_it_was_afterwards() -> None:
    layer = Merging(4, 3)
    model = nn.Sequential(layer, nn.Dropout().eval())
    before = layer.weight.detach().clone()
    md.fisher(model, [torch.randn(5, 4)])
    torch.testing.assert_close(layer.weight.detach(), before)
    assert [part.training for part in model.modules()] == [True, True, False]


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(TypeError, match="weight is complex"):
        md.fisher(nn.Linear(3, 2, dtype=torch.complex64), [torch.randn(5, 3)])


def test_an_importance_of_another_model_is_told() -> None:
    model = classifier()
    good = {name: torch.ones_like(w) for name, w in model.named_parameters()}
    for change, told in (
        ({"0.weight": torch.ones(2, 2)}, r"0\.weight has shape \(2, 2\), and the parameter \(6, 4\)"),
        ({"0.bias": -torch.ones(6)}, r"0\.bias must be finite and >= 0"),
        ({"0.bias": torch.full((6,), float("inf"))}, r"0\.bias must be finite and >= 0"),
        ({"3.bias": torch.ones(6)}, r"entry for 3\.bias, which this model does not have"),
    ):
        with pytest.raises(ValueError, match=told):
            md.anchored(model, {**good, **change})
    with pytest.raises(ValueError, match="has nothing for any trained parameter"):
        md.anchored(model, {})
    with pytest.raises(ValueError, match=r"one entry, from md\.fisher, for each task"):
        md.anchored(model, [])
    with pytest.raises(ValueError, match="0 everywhere"):
        md.anchored(model, {name: 0 * value for name, value in good.items()})
    for strength in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="strength must be >= 0 and finite"):
            md.anchored(model, good, strength)


def test_anchored_rmd_ends_at_the_minimiser_of_both_tasks() -> None:
    """Where the old task's Fisher information is diagonal, D_ψ from its minimiser is its loss: nothing is forgotten.

    ½ Σ h (w − w_A)² = ½ ‖X_A w − y_A‖² − const for h = diag(X_AᵀX_A), so λ ΣL_B + D_ψ is the loss on A and λ times B's.
    """
    generator = torch.Generator().manual_seed(0)
    scale = torch.linspace(1, 3, 6, dtype=torch.float64)
    old_x = torch.linalg.qr(torch.randn(20, 6, dtype=torch.float64, generator=generator))[0] * scale
    old_y = torch.randn(20, dtype=torch.float64, generator=generator)
    new_x = torch.randn(12, 6, dtype=torch.float64, generator=generator)
    new_y = torch.randn(12, dtype=torch.float64, generator=generator)
    model = nn.Linear(6, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(old_x, old_y[:, None]).solution.T)
    lam = 0.7
    groups = [{"params": [model.weight], "potential": md.Quadratic(scale.square())}]
    optimizer = md.RMD(groups, 0.3, lam, 12, lam_convention="objective")
    for _ in range(500):
        for index in torch.randperm(12, generator=generator).split(4):
            r = model(new_x[index])[:, 0] - new_y[index]
            optimizer.zero_grad()
            optimizer.loss(r.square() / 2, index, root=r).backward()
            optimizer.step()
    both_x, both_y = torch.cat([old_x, lam**0.5 * new_x]), torch.cat([old_y, lam**0.5 * new_y])
    expected = torch.linalg.lstsq(both_x, both_y[:, None]).solution.T
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-9, atol=1e-9)


def test_an_anchored_network_remembers_what_plain_training_forgets() -> None:
    """Two tasks of their own inputs: after the second, the first is known as before, and the second too."""
    torch.manual_seed(0)
    x, y = torch.randn(200, 4), torch.randint(2, (200,))
    x[:, :2] += 2.0 * (2 * y[:, None] - 1)
    old, new = torch.cat([x, torch.zeros(200, 4)], 1), torch.cat([0.5 * x.flip(0), x], 1)  # the new one has noise there
    model = nn.Linear(8, 2)

    def train(optimizer: torch.optim.Optimizer, inputs: Tensor) -> None:
        for index in torch.randperm(200).repeat(30).split(20):
            losses = F.cross_entropy(model(inputs[index]), y[index], reduction="none")
            optimizer.zero_grad()
            (optimizer.loss(losses, index) if isinstance(optimizer, md.RMD) else losses.mean()).backward()
            optimizer.step()

    train(torch.optim.SGD(model.parameters(), 0.1), old)
    importance, state = md.fisher(model, [old]), {name: v.clone() for name, v in model.state_dict().items()}

    def drift(groups: Any) -> float:
        model.load_state_dict(state)
        train(md.RMD(groups, 0.1, 2.0, 200), new)
        assert float((model(new).argmax(1) == y).float().mean()) > 0.95
        return float((model.weight - state["weight"])[:, :4].detach().norm())

    assert drift(md.anchored(model, importance, 100.0)) < 0.2 * drift(model.parameters())
