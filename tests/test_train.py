"""The loop: the same run gives the same metrics, whatever happens on the way, and its mathematics is the core's."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import mirrordescent as md
from mirrordescent.lab import loop
from mirrordescent.lab.data import Data
from mirrordescent.lab.evaluation import COLUMNS, auroc, beyond_chance
from mirrordescent.lab.job import Job, given_labels
from mirrordescent.lab.loop import Keeping, Progress, rule_for
from mirrordescent.lab.models import build
from mirrordescent.lab.noise import Noise
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import BusyError, DamagedError, Record, RunError, held, read, read_all
from mirrordescent.lab.runs import Run, derived, settled
from mirrordescent.lab.train import train
from mirrordescent.lab.visits import visits

CPU = Place("cpu", threads=1)


def small(classes: int | None = 3, n: int = 60, images: bool = False) -> Data:
    generator = torch.Generator().manual_seed(0)
    shape = (1, 8, 8) if images else (5,)
    inputs = torch.randn(n + 30, *shape, generator=generator)
    targets = torch.randn(n + 30, generator=generator)
    if classes is not None:
        targets = inputs.flatten(1)[:, :classes].argmax(1)
    return Data("small", inputs[:n], targets[:n], inputs[n:], targets[n:], classes, model="cnn" if images else "mlp")


def trained(tmp_path: Path, run: Run, data: Data | None = None, **more: Any) -> Record:
    return train(run, Keeping(tmp_path), CPU, data=data or small(), **more)


ALGORITHMS = [
    Run(algorithm="sgd"),
    Run(algorithm="weight-decay", lam=0.1),
    Run(algorithm="smd", potential="q=3", lr=0.01),
    Run(lam=2),
    Run(lam=2, reduction="batch", momentum=0.5, penalty="huber"),
]


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


def test_a_run_that_is_done_is_only_read(tmp_path: Path) -> None:
    first = trained(tmp_path, Run(epochs=2))
    before = (first.folder / "checkpoint.pt").stat().st_mtime_ns
    assert trained(tmp_path, Run(epochs=2)) == first
    assert (first.folder / "checkpoint.pt").stat().st_mtime_ns == before


RECIPE = Run(algorithm="sgd", momentum=0.9, acceleration="nesterov", decay=1e-3, schedule="cosine")
OTHERS = [Run(lam=float("inf")), Run(lam=2, loss="elr"), Run(lam=2, loss="gce"), RECIPE]


@pytest.mark.parametrize("run", [*ALGORITHMS, *OTHERS], ids=lambda run: run.title)
def test_stopped_anywhere_it_ends_as_if_it_had_not_been(tmp_path: Path, run: Run) -> None:
    run = dataclasses.replace(run, corruption=0.3, epochs=4, batch_size=8, stop="never")
    whole = trained(tmp_path / "whole", run)
    left, draw = 0, random.Random(0)

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    for _ in range(40):
        left = draw.randrange(1, 9)
        record = trained(tmp_path / "parts", run, stop=stop)
        if record.status == "done":
            break
        assert record.status == "interrupted"
    assert record.rows == whole.rows
    assert record.histograms == whole.histograms


@pytest.mark.parametrize("loss", ["ce", "elr"])
def test_looking_changes_nothing(tmp_path: Path, loss: str) -> None:
    """How often a run is evaluated has no part in what it learns."""
    finals = []
    for every in (1, 3):
        run = Run.from_dict({"epochs": 3, "batch_size": 8, "corruption": 0.4, "loss": loss, "every": every})
        finals.append(trained(tmp_path, run).final)
    assert finals[0] == finals[1]


def test_images_with_crops_go_on_as_well(tmp_path: Path) -> None:
    run = Run(lam=2, epochs=2, batch_size=8, augment="crop-flip", start="near-zero")
    data = small(images=True)
    whole = trained(tmp_path / "whole", run, data)
    asked = iter(range(1000))
    trained(tmp_path / "parts", run, data, stop=lambda: next(asked) > 9)
    assert trained(tmp_path / "parts", run, data).rows == whole.rows
    assert whole.rows != trained(tmp_path / "plain", dataclasses.replace(run, augment="none"), data).rows


def test_killed_between_checkpoint_and_record_it_is_done(tmp_path: Path) -> None:
    record = trained(tmp_path, Run(epochs=2))
    held_record = json.loads((record.folder / "run.json").read_text())
    (record.folder / "run.json").write_text(json.dumps({**held_record, "status": "running", "histograms": {}}))
    (record.folder / "metrics.jsonl").write_text("")
    again = trained(tmp_path, Run(epochs=2))
    assert (again.rows, again.status, again.histograms) == (record.rows, "done", record.histograms)


SCRIPT = """
import sys
from pathlib import Path
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.train import train
train(Run(corruption=0.4, epochs={epochs}), Keeping(Path(sys.argv[1]), checkpoint_seconds={every}), Place("cpu", 1))
"""


def go(root: Path, epochs: int = 8, every: float = 0.0) -> subprocess.Popen[bytes]:
    script = SCRIPT.format(epochs=epochs, every=every)
    return subprocess.Popen([sys.executable, "-c", script, str(root)], stderr=subprocess.DEVNULL)


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """With SIGKILL, a checkpoint after every step."""
    run = Run(corruption=0.4, epochs=8)
    whole = train(run, Keeping(tmp_path / "whole"), CPU)
    draw = random.Random(1)
    for _ in range(3):
        process = go(tmp_path / "killed")
        folder = tmp_path / "killed" / whole.id
        while not (folder / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.5))
        process.kill()
        process.wait()
    record = train(run, Keeping(tmp_path / "killed", checkpoint_seconds=0), CPU)
    assert record.rows == whole.rows
    assert record.status == "done"
    assert read(folder) == record


def settled_id(epochs: int) -> str:
    return Run(corruption=0.4, epochs=epochs, model="mlp", augment="none").id


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_and_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    process = go(tmp_path, epochs=100_000, every=1000)
    folder = tmp_path / settled_id(100_000)
    while not (folder / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    assert process.wait(timeout=60) != 0
    record = read(folder)
    assert record.status == "interrupted"
    assert (folder / "checkpoint.pt").exists()


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    run = settled(Run(epochs=1), small())
    with held(tmp_path / run.id), pytest.raises(RunError, match="being trained by another process"):
        trained(tmp_path, run)
    context = multiprocessing.get_context("spawn")
    waiting = context.Process(target=wait_and_train, args=(tmp_path, run))
    with held(tmp_path / run.id):
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
    waiting.join(60)
    assert waiting.exitcode == 0
    assert read(tmp_path / run.id).status == "done"


def test_waiting_ends_when_it_is_told_to(tmp_path: Path) -> None:
    run = settled(Run(epochs=1), small())
    asked = iter(range(10))
    heard: list[Progress] = []
    keeping = Keeping(tmp_path, wait=True)
    with held(tmp_path / run.id), pytest.raises(BusyError):
        train(run, keeping, CPU, data=small(), stop=lambda: next(asked) > 2, watch=heard.append)
    assert heard == [Progress.waits(run, tmp_path / run.id)]  # once


def test_whoever_has_a_run_may_leave_nothing_behind(tmp_path: Path) -> None:
    folder, other = tmp_path / "run", contextlib.ExitStack()
    other.enter_context(held(folder))

    def leave() -> bool:
        other.close()
        assert not folder.exists()
        return False

    with held(folder, wait=True, stop=leave), pytest.raises(BusyError), held(folder):
        pass


def wait_and_train(root: Path, run: Run) -> None:
    train(run, Keeping(root, wait=True), CPU, data=small())


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    trained(tmp_path, Run(epochs=1))
    with pytest.raises(RunError, match="has changed since"):
        trained(tmp_path, Run(epochs=1), dataclasses.replace(small(), inputs=small().inputs + 1))


def test_damage_is_named(tmp_path: Path) -> None:
    asked = iter(range(1000))
    run = Run(epochs=3, batch_size=8)
    folder = trained(tmp_path, run, stop=lambda: next(asked) > 3).folder
    (folder / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"checkpoint\.pt cannot be read"):
        trained(tmp_path, run)
    (folder / "checkpoint.pt").unlink()
    (folder / "run.json").write_text("{")
    with pytest.raises(RunError, match=rf"run\.json cannot be read.*remove {folder} and train again"):
        trained(tmp_path, run)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", "{"),
        ("run.json", '{"run": {}, "data": []}'),
        ("metrics.jsonl", None),
        ("metrics.jsonl", ""),
        ("metrics.jsonl", "null\n"),
        ("metrics.jsonl", '{"epoch": 1'),
    ],
)
def test_a_damaged_record_is_refused_and_restored_from_its_checkpoint(
    tmp_path: Path, name: str, text: str | None
) -> None:
    record = trained(tmp_path, Run(epochs=2))
    path = record.folder / name
    whole = path.read_bytes()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(DamagedError, match=rf"{name} cannot be read: .* restores it from its checkpoint"):
        read(record.folder)
    heard: list[RunError] = []
    assert read_all(tmp_path, skip=heard.append) == []
    assert len(heard) == 1
    again = trained(tmp_path, Run(epochs=2))
    assert path.read_bytes() == whole
    assert (again.rows, again.status) == (record.rows, "done")


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    held_record = json.loads(path.read_text())
    change(held_record)
    path.write_text(json.dumps(held_record))


def test_a_checkpoint_of_another_network_is_refused_in_one_line(tmp_path: Path) -> None:
    run = Run(epochs=1)
    folder = trained(tmp_path, run).folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    state["status"] = "running"
    state["job"]["model"]["other"] = state["job"]["model"].popitem()[1]
    torch.save(state, folder / "checkpoint.pt")
    kept = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**kept, "status": "interrupted"}))
    with pytest.raises(RunError, match=r"checkpoint\.pt does not fit this run .*; remove") as refused:
        trained(tmp_path, run)
    assert "\n" not in str(refused.value)


def test_a_run_of_an_older_version_goes_on_and_one_of_a_newer_is_left_alone(tmp_path: Path) -> None:
    run = Run(epochs=3, batch_size=8)
    asked = iter(range(1000))
    folder = trained(tmp_path, run, stop=lambda: next(asked) > 9).folder
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    del state["run"]["precision"]  # a field that came later
    torch.save(state, folder / "checkpoint.pt")
    edited(folder / "run.json", lambda held_record: held_record["run"].pop("precision"))
    assert trained(tmp_path, run).rows == trained(tmp_path / "whole", run).rows
    edited(folder / "run.json", lambda held_record: held_record["run"].update(warmth=3))
    with pytest.raises(RunError, match="newer mirrordescent"):
        trained(tmp_path, run)


def test_a_changed_file_of_labels_is_noticed(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("0\n" * 60)
    run = Run(noise="file", noise_file=str(labels), epochs=1)
    assert trained(tmp_path, run).data["wrong"] == int((small().targets != 0).sum())
    labels.write_text("1\n" * 60)
    with pytest.raises(RunError, match="has changed since"):
        trained(tmp_path, run)


def test_a_run_that_is_refused_leaves_nothing_and_one_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs every weight > 0"):
        trained(tmp_path, Run(potential="entropy", epochs=1))
    assert list(tmp_path.iterdir()) == []

    def fail(_: Progress) -> None:
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        trained(tmp_path, Run(epochs=2), watch=fail)
    [folder] = tmp_path.iterdir()
    assert (read(folder).status, read(folder).reason) == ("failed", "the terminal is gone")
    assert trained(tmp_path, Run(epochs=2)).status == "done"


def test_ctrl_c_in_the_last_evaluation_is_not_forgotten(tmp_path: Path) -> None:
    def press(event: Progress) -> None:
        if event.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, Run(epochs=2), watch=press)
    [folder] = tmp_path.iterdir()
    assert read(folder).status == "done"


def test_batch_norm_and_batches_of_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch_size must be >= 2 with batch norm"):
        trained(tmp_path, Run(model="resnet18", batch_size=1, epochs=1), small(images=True))
    assert trained(tmp_path, Run(batch_size=1000, epochs=1)).epochs == 1  # more than there are samples: all of them


def test_what_a_killed_write_left_is_cleared(tmp_path: Path) -> None:
    folder = trained(tmp_path, Run(epochs=1)).folder
    dead, living = (folder / f".audit.html.{pid}.part" for pid in (2**31 - 1, os.getppid()))
    for part in (dead, living):
        part.write_bytes(b"half")
    trained(tmp_path, Run(epochs=1))
    assert not dead.exists()
    assert living.exists() == (os.name == "posix")  # somebody is writing it


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


def test_the_seconds_are_those_of_all_goes(tmp_path: Path) -> None:
    asked, run = iter(range(1000)), Run(epochs=3, batch_size=8)
    first = trained(tmp_path, run, stop=lambda: next(asked) > 6).seconds
    assert trained(tmp_path, run).seconds > first > 0


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


def test_a_record_keeps_what_earlier_goes_were_computed_with(tmp_path: Path) -> None:
    run = Run(epochs=2, batch_size=8)
    for threads, asked in ((1, iter([False, True])), (1, iter([False, True])), (2, iter([False] * 100))):
        record = train(run, Keeping(tmp_path), Place("cpu", threads), data=small(), stop=lambda: next(asked))  # noqa: B023  # called at once
    assert (record.status, record.environment["threads"]) == ("done", 2)
    assert [environment["threads"] for environment in read(record.folder).earlier] == [1]  # one of those that are alike


def test_checkpoints_are_rarer_where_they_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, run = [0.0], settled(Run(epochs=2), small())
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def takes(seconds: float) -> None:
        now[0] += seconds

    under_way = loop.Loop(Job(run, small(), CPU), Record(tmp_path / run.id, run), Keeping(tmp_path))
    for cost, pause in ((0.1, 10), (2.0, 40)):  # the 10 s of the settings, or 20 times what it costs
        monkeypatch.setattr(loop, "save_checkpoint", lambda *_, cost=cost: takes(cost))
        under_way.save()
        takes(pause - 0.5)
        assert not under_way.checkpoint.due()
        takes(0.6)
        assert under_way.checkpoint.due()
