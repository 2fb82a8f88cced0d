"""The loop: its mathematics is the core's, and its figures are what they say."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from training import ALGORITHMS, CPU, small, trained

import mirrordescent as md
from mirrordescent.lab import loop, records
from mirrordescent.lab.evaluation import COLUMNS, auroc, beyond_chance, histogram, predict, regularizer
from mirrordescent.lab.files import write_text
from mirrordescent.lab.job import Job, given_labels, network, optimizer_for, step_notes
from mirrordescent.lab.loop import Keeping, Progress, rule_for
from mirrordescent.lab.models import build
from mirrordescent.lab.noise import Noise
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import read
from mirrordescent.lab.runs import Run, derived, settled
from mirrordescent.lab.train import train
from mirrordescent.lab.visits import visits


def test_values_far_from_zero_are_learnt_with_crops(tmp_path: Path) -> None:
    """What is around an image is like it, whatever its values are: a shift of all of them changes next to nothing."""
    data = dataclasses.replace(small(images=True), augment="crop")
    far = {"inputs": data.inputs + 300, "test_inputs": data.test_inputs + 300, "mean": (300.0,), "std": (1.0,)}
    run = Run(model="cnn", augment="crop", epochs=3)
    near = trained(tmp_path / "near", run, data)
    other = trained(tmp_path / "far", run, dataclasses.replace(data, **far))  # type: ignore[arg-type]  # tensors, pairs
    assert other.final["test_loss"] == pytest.approx(near.final["test_loss"], rel=1e-3)


def test_small_networks_see_images_as_they_are() -> None:
    data = dataclasses.replace(small(images=True), augment="crop", model="deep-cnn")
    of = {name: settled(Run.from_dict({"model": name}), data).augment for name in ("auto", "resnet18", "cnn", "mlp")}
    assert of == {"auto": "crop", "resnet18": "crop", "cnn": "none", "mlp": "none"}
    assert settled(Run(model="cnn", augment="crop-flip"), data).augment == "crop-flip"


@pytest.mark.parametrize("algorithm", ["smd", "rmd"])
@pytest.mark.parametrize("q", [1.1, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("lr", [1e-30, 1e6])
def test_a_step_that_is_far_off_is_told_with_one_that_is_not(lr: float, q: float, algorithm: str) -> None:
    lam = {"lam": 1e9} if algorithm == "rmd" else {}
    run = settled(Run.from_dict({"algorithm": algorithm, "potential": f"q={q}", "lr": lr, **lam}), small())
    (note,) = step_notes(run, small())
    found = re.search(r"--lr (\S+) is like SGD's 0.1", note)
    assert found is not None
    weights = torch.cat([w.detach().flatten() for w in network(run, small()).parameters() if w.dim() > 1])
    usual = float(weights.square().mean().sqrt())
    assert float(found[1]) == pytest.approx(0.1 * (q - 1) * usual ** (q - 2), rel=0.5)  # it has one digit
    lr = float(found[1])
    better = dataclasses.replace(run, lr=lr, lam=20 * lr if algorithm == "rmd" else None)
    assert not step_notes(better, small())


def test_zeros_that_stay_zeros_are_told_before_training() -> None:
    run = settled(Run(potential="l1", model="cnn", start="near-zero", lr=0.01, lam=0.2), small(images=True))
    (note,) = step_notes(run, small(images=True))
    assert re.fullmatch(r"\d tensors start at 0, from where l1 hardly moves a weight: expect zeros there .*", note)
    assert not step_notes(dataclasses.replace(run, start="default"), small(images=True))
    optimizer_for(run, network(run, small(images=True)), 5)  # no second time, as a warning


def test_a_z_that_will_not_settle_is_told() -> None:
    run = settled(Run(lr=0.01, lam=20.0, epochs=100), small())
    assert not step_notes(run, small())
    (note,) = step_notes(dataclasses.replace(run, lam=20.1), small())
    assert note.startswith("z settles over lam/lr = 2.01e+03 epochs, but there are 100")
    assert not step_notes(dataclasses.replace(run, lam=float("inf")), small())  # SMD, and meant


def test_a_batch_of_more_than_all_is_told() -> None:
    n = len(small())
    assert not step_notes(settled(Run(batch_size=n), small()), small())
    (note,) = step_notes(settled(Run(batch_size=n + 1), small()), small())
    assert note == f"every batch holds all {n:,} samples; --batch-size {n + 1:,} is more than there are"


@pytest.mark.parametrize(
    "run",
    [
        Run(),
        Run(algorithm="sgd", lr=100.0),
        Run(potential="squarednorm=1.5", lr=1e-9, lam=2e-8),
        Run(potential="q=300"),  # whose curvature is beyond what numbers hold
        Run(potential="q=200", start="near-zero"),
    ],
)
def test_of_other_steps_nothing_is_told(run: Run) -> None:
    assert not step_notes(settled(run, small()), small())


@pytest.mark.parametrize("run", ALGORITHMS, ids=lambda run: run.title)
def test_one_epoch_is_the_plain_loop(tmp_path: Path, run: Run) -> None:
    """Against ten lines of PyTorch with the same order, to the last bit."""
    run = dataclasses.replace(run, model="mlp", augment="none", corruption=0.3, epochs=2, batch_size=16)
    data = small()
    record = trained(tmp_path, run, data)
    model = build("mlp", (5,), 3, seed=derived(0, "start"))
    labels = given_labels(run, data).labels
    n, lam, weights = len(data), run.lam or 0.0, list(model.parameters())
    plain: torch.optim.Optimizer
    if run.algorithm == "rmd":
        options = {"reduction": run.reduction, "momentum": run.momentum, "penalty": run.penalty}
        plain = md.RMD(weights, run.lr, lam, n, **options)  # type: ignore[arg-type]
    elif run.algorithm == "smd":
        plain = md.SMD(weights, run.lr, run.potential)
    else:
        plain = torch.optim.SGD(weights, run.lr, weight_decay=1 / (lam * n) if lam else 0.0)
    for epoch in (1, 2):
        for index in visits(n, 16, 0, epoch).index:
            losses = F.cross_entropy(model(data.inputs[index]), labels[index], reduction="none")
            loss = plain.loss(losses, index) if isinstance(plain, md.RMD) else losses.mean()
            torch.autograd.backward(loss)
            plain.step()
            plain.zero_grad()
    with torch.no_grad():
        hits = model(data.test_inputs).argmax(1) == data.test_targets
        loss = F.cross_entropy(model(data.test_inputs), data.test_targets, reduction="none").mean()
    assert record.final["test_accuracy"] == float(hits.double().mean())
    assert record.final["test_loss"] == float(loss)
    if isinstance(plain, md.RMD):
        state = torch.load(record.folder / "checkpoint.pt", weights_only=True)
        assert torch.equal(state["job"]["optimizer"]["param_groups"][0]["z"], plain.aux.values)


def test_the_usual_recipe_is_pytorchs(tmp_path: Path) -> None:
    """Nesterov, weight decay and a cosine from epoch to epoch, against PyTorch's own scheduler, to the last bit."""
    run = Run(
        algorithm="sgd", momentum=0.9, acceleration="nesterov", decay=1e-3, schedule="cosine", epochs=4, batch_size=16,
        model="mlp", augment="none", stop="never",
    )  # fmt: skip
    data = small()
    record = trained(tmp_path, run, data)
    model = build("mlp", (5,), 3, seed=derived(0, "start"))
    plain = torch.optim.SGD(model.parameters(), run.lr, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda epoch: (1 + math.cos(math.pi * epoch / 4)) / 2)
    for epoch in range(1, 5):
        for index in visits(len(data), 16, 0, epoch).index:
            plain.zero_grad()
            torch.autograd.backward(
                F.cross_entropy(model(data.inputs[index]), data.targets[index], reduction="none").mean()
            )
            plain.step()
        schedule.step()
    state = torch.load(record.folder / "checkpoint.pt", weights_only=True)["job"]["model"]
    assert all(torch.equal(state[name], w) for name, w in model.state_dict().items())


def test_mixup_is_a_mixture_of_inputs_and_of_labels(tmp_path: Path) -> None:
    """Against soft labels by hand."""
    run = Run(algorithm="sgd", mixup=0.5, epochs=2, batch_size=16, model="mlp", augment="none", stop="never")
    data = small()
    record = trained(tmp_path, run, data)
    model = build("mlp", (5,), 3, seed=derived(0, "start"))
    plain = torch.optim.SGD(model.parameters(), run.lr)
    soft = F.one_hot(data.targets, 3).float()
    for epoch in (1, 2):
        plan = visits(len(data), 16, 0, epoch, mixup=0.5)
        for index, share in zip(plan.index, plan.share, strict=True):
            partner = index.flip(0)
            plain.zero_grad()
            x = share * data.inputs[index] + (1 - share) * data.inputs[partner]
            F.cross_entropy(model(x), share * soft[index] + (1 - share) * soft[partner]).backward()
            plain.step()
    state = torch.load(record.folder / "checkpoint.pt", weights_only=True)["job"]["model"]
    for name, w in model.state_dict().items():
        torch.testing.assert_close(state[name], w)


def test_the_metrics_are_what_they_say(tmp_path: Path) -> None:
    run = settled(Run(lam=4, corruption=0.4, epochs=3, batch_size=16), small())
    data = small()
    record = trained(tmp_path, run, data)
    job = Job(run, data, CPU)
    job.load_state_dict(torch.load(record.folder / "checkpoint.pt", weights_only=True)["job"])
    with torch.no_grad():
        predictions = job.model(data.inputs).argmax(1)
        losses = F.cross_entropy(job.model(data.inputs), job.targets, reduction="none")
    wrong = job.targets != data.targets
    weights = torch.cat([w.detach().flatten() for w in job.model.parameters()]).double()
    start = torch.cat([w.flatten() for w in job.start]).double()
    assert isinstance(job.optimizer, md.RMD)
    z = job.optimizer.aux.values
    assert job.notes.trace is not None
    margins = job.notes.trace.margins
    expected = {
        "epoch": 3,
        "train_accuracy": (predictions == job.targets).double().mean(),
        "clean_accuracy": (predictions == job.targets)[~wrong].double().mean(),
        "wrong_fitted": (predictions == job.targets)[wrong].double().mean(),
        "residual": (z - (2 * (losses + torch.finfo(torch.float32).eps)).sqrt()).abs().sum(),
        "potential": weights.square().sum() / 2,
        "divergence": (weights - start).square().sum() / 2,
        "z_auroc": (0.5 * (1 + (z[wrong][:, None] - z[~wrong]).sign().double())).mean(),  # a tie is a half
        "margin_auroc": (0.5 * (1 + (margins[~wrong] - margins[wrong][:, None]).sign().double())).mean(),
    }
    for name, value in expected.items():
        assert record.final[name] == pytest.approx(float(value), rel=1e-5), name
    assert set(record.final) == set(COLUMNS)
    assert record.data["wrong"] == int(wrong.sum())
    assert sum(record.histograms["z_wrong"]["counts"]) == int(wrong.sum())
    assert sum(record.histograms["weights"]["counts"]) == record.parameters == len(weights)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=6))
@settings(max_examples=50, deadline=None)
def test_agreement_beyond_chance_has_mean_0_and_deviation_1_over_all_orders(pairs: list[tuple[int, int]]) -> None:
    taken, labels = (torch.tensor(column) for column in zip(*pairs, strict=True))
    orders = [torch.tensor(order) for order in itertools.permutations(labels.tolist())]
    found = [beyond_chance(taken, order) for order in orders]
    if len(labels.unique()) == 1:
        assert set(found) == {None}
        return
    values = torch.tensor([value for value in found if value is not None], dtype=torch.float64)
    assert len(values) == len(found)
    assert float(values.mean()) == pytest.approx(0, abs=1e-9)
    agreements = {int((taken == order).sum()) for order in orders}
    assert float(values.std(correction=0)) == pytest.approx(1 if len(agreements) > 1 else 0, abs=1e-9)


def test_auroc_counts_ties_as_half() -> None:
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(5, (60,), generator=generator).float()
    positive = torch.rand(60, generator=generator) < 0.3
    pairs = score[positive][:, None] - score[~positive]
    wanted = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean()
    assert auroc(score, positive) == pytest.approx(float(wanted), abs=1e-12)
    assert auroc(score, torch.zeros(60, dtype=torch.bool)) is None


def test_the_record_on_disk_is_the_record(tmp_path: Path) -> None:
    record = trained(tmp_path, Run(corruption=0.4, epochs=5, every=2))
    assert [row["epoch"] for row in record.rows] == [2, 4, 5]
    assert read(record.folder) == record
    json.loads((record.folder / "run.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in run.json"))
    assert sorted(path.name for path in record.folder.iterdir()) == [
        "checkpoint.pt",
        "lock",
        "metrics.jsonl",
        "run.json",
    ]


@pytest.mark.parametrize("loss", ["ce", "elr"])
def test_looking_changes_nothing(tmp_path: Path, loss: str) -> None:
    """How often a run is evaluated has no part in what it learns."""
    finals = []
    for every in (1, 3):
        run = Run.from_dict({"epochs": 3, "batch_size": 8, "corruption": 0.4, "loss": loss, "every": every})
        finals.append(trained(tmp_path, run).final)
    assert finals[0] == finals[1]


def test_batch_norm_and_batches_of_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be >= 2 with batch norm"):
        trained(tmp_path, Run(model="resnet18", batch_size=1, epochs=1), small(images=True))
    assert trained(tmp_path, Run(batch_size=1000, epochs=1)).epochs == 1  # more than there are samples: all of them


def test_the_papers_rules(tmp_path: Path) -> None:
    assert trained(tmp_path, Run(algorithm="sgd", epochs=500, momentum=0.9)).reason == "interpolation"
    settled_run = trained(tmp_path, Run(lam=0.5, epochs=3000, every=10, patience=20, batch_size=30))
    assert settled_run.reason == "plateau"
    assert settled_run.epochs < 3000
    rule = rule_for(Run(patience=500, every=3), 3)
    assert isinstance(rule, md.StopOnPlateau)
    assert rule.patience == 167
    assert rule_for(Run(stop="never"), 3) is None


def test_weight_decay_stops_by_its_whole_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "objective", lambda *_: 1.0)  # which stands still, while the loss falls
    record = trained(tmp_path, Run(algorithm="weight-decay", lam=1.0, epochs=9, patience=3))
    assert (record.reason, record.epochs) == ("plateau", 4)
    losses = [row["train_loss"] for row in record.rows]
    assert losses == sorted(losses, reverse=True)  # type: ignore[type-var]


def test_a_diverging_run_says_so(tmp_path: Path) -> None:
    record = trained(tmp_path, Run(algorithm="sgd", model="linear", lr=1e30, epochs=50), small(None))
    assert (record.status, record.reason) == ("done", "diverged")
    assert record.final["train_loss"] is None
    assert read(record.folder) == record


def test_regression_reaches_the_minimiser_of_its_objective(tmp_path: Path) -> None:
    """Linear model, signed root, ψ = ½‖w‖²: RMD's end is the minimiser of (λ/B)·ΣL + ½‖w − start‖² (closed form)."""
    data = small(None, n=20)
    run = Run(lam=1.0, model="linear", batch_size=4, epochs=600, stop="never", every=600)
    record = trained(tmp_path, run, data)
    job = Job(settled(run, data), data, CPU)
    start = torch.cat([w.flatten() for w in job.start]).double()
    x = torch.cat([data.inputs, torch.ones(20, 1)], 1).double()
    weight = 1.0 / 4
    right = weight * x.T @ data.targets.double() + start
    wanted = torch.linalg.solve(weight * x.T @ x + torch.eye(6, dtype=torch.float64), right)
    job.load_state_dict(torch.load(record.folder / "checkpoint.pt", weights_only=True)["job"])
    found = torch.cat([w.detach().flatten() for w in job.model.parameters()]).double()
    assert (found - wanted).norm() < 1e-5
    assert record.final["residual"] is not None
    assert record.final["residual"] < 1e-4


def test_corruption_is_for_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="corruption is for classes"):
        trained(tmp_path, Run(corruption=0.1, epochs=1), small(None))
    with pytest.raises(ValueError, match="augment 'crop' is for images"):
        trained(tmp_path, Run(augment="crop", epochs=1))


def test_the_same_seed_has_the_same_noise_for_every_algorithm() -> None:
    runs = Run(algorithm="sgd", corruption=0.4), Run(lam=2, corruption=0.4)
    noise = {run.noise_of_labels for run in runs}
    assert noise == {Noise("uniform", 0.4, derived(0, "noise"))}


def test_progress_is_told(tmp_path: Path) -> None:
    heard: list[Progress] = []
    trained(tmp_path, Run(epochs=3), watch=heard.append)
    assert [event.epoch for event in heard if event.step == 0] == [1, 2, 3]
    assert heard[-1].row["epoch"] == 3


def test_tensorboard_has_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    asked = iter(range(1000))
    keeping = Keeping(tmp_path, tensorboard=True)
    train(Run(epochs=4, batch_size=10), Keeping(tmp_path), CPU, data=small(), stop=lambda: next(asked) > 8)
    train(Run(epochs=4, batch_size=10), keeping, CPU, data=small(), stop=lambda: next(asked) > 13)
    record = train(Run(epochs=4, batch_size=10), keeping, CPU, data=small())
    events = EventAccumulator(str(record.folder / "tensorboard"))
    events.Reload()
    written = [(event.step, event.value) for event in events.Scalars("test_loss")]
    assert [step for step, _ in written] == [1, 2, 3, 4]
    assert [value for _, value in written] == pytest.approx([row["test_loss"] for row in record.rows])


def test_a_place_leaves_no_trace() -> None:
    threads = torch.get_num_threads()
    with Place("cpu", threads=threads + 1, deterministic=True).taken():
        assert torch.get_num_threads() == threads + 1
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ValueError, match="device must be"):
        Place("gpu")
    with pytest.raises(ValueError, match="threads must be"):
        Place(threads=0)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="finds no GPU"):
            Place("cuda")


def test_to_evaluate_is_to_look_only() -> None:
    """Batch norm stays as it is, and a sample's outputs do not depend on what is beside it."""
    data = small(images=True)
    job = Job(settled(Run(model="deep-cnn", augment="none", batch_size=16), data), data, CPU)
    job.begin(1)
    job.step()
    before = {name: held.clone() for name, held in job.model.state_dict().items()}
    _, whole = predict(job, job.inputs, job.targets)
    _, part = predict(job, job.inputs[:7], job.targets[:7])
    torch.testing.assert_close(whole[:7], part)
    assert all(torch.equal(held, before[name]) for name, held in job.model.state_dict().items())


def test_the_divergence_is_from_the_start() -> None:
    """Not to it, which is another number for any potential but ℓ2."""
    data = small()
    job = Job(settled(Run(algorithm="smd", potential="q=3", lr=0.01, batch_size=16), data), data, CPU)
    job.begin(1)
    for _ in range(job.steps):
        job.step()
    psi = md.potential("q=3")
    parts = zip(job.model.parameters(), job.start, strict=True)
    exact = sum(float(psi.divergence(w.detach(), start)) for w, start in parts)
    assert regularizer(job)[1] == pytest.approx(exact, rel=1e-6)


SETTLES = Run(lam=1, epochs=60, batch_size=8, corruption=0.6, patience=2, lr=1.0)


def test_rmd_ends_where_its_residual_says(tmp_path: Path) -> None:
    record, stop = trained(tmp_path, SETTLES), md.StopOnPlateau(patience=2)
    assert record.reason == "plateau"
    told = [stop(float(row["residual"] or 0)) for row in record.rows]
    assert told == [False] * (len(told) - 1) + [True]


def test_a_run_in_pieces_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    whole, piece = trained(tmp_path / "whole", SETTLES), None
    while piece is None or piece.status != "done":
        asked = itertools.count()
        piece = trained(tmp_path / "pieces", SETTLES, stop=lambda asked=asked: next(asked) > 9)
    assert (piece.reason, piece.rows) == (whole.reason, whole.rows)


def test_what_the_record_says_the_checkpoint_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written first, then the rows, then the record that counts them."""
    order: list[str] = []

    def noted(path: Path, text: str) -> None:
        order.append(path.name)
        write_text(path, text)

    monkeypatch.setattr(loop, "save_checkpoint", lambda *_: order.append("checkpoint.pt"))
    monkeypatch.setattr(records, "write_text", noted)
    trained(tmp_path, Run(epochs=1))
    assert order[-3:] == ["checkpoint.pt", "metrics.jsonl", "run.json"]


def test_a_histogram_of_all_there_is_is_json() -> None:
    ends = torch.tensor([-3e38, 3e38])
    json.dumps(histogram(ends, ends), allow_nan=False)
