"""The lab's loop on a GPU: what the CPU computes, repeatable, and without a wait inside a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from mirrordescent.lab.data import Data
from mirrordescent.lab.job import Job
from mirrordescent.lab.place import Place
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.train import Keeping, train

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUNS = [
    Run(algorithm="sgd"),
    Run(algorithm="weight-decay", lam=0.1),
    Run(algorithm="smd", potential="q=3", lr=0.01),
    Run(lam=2),
    Run(lam=2, reduction="batch", potential="2 * l2", momentum=0.5),
]


def pictures(n: int = 256) -> Data:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (n + 64, 3, 16, 16), generator=generator, dtype=torch.uint8)
    targets = torch.randint(10, (n + 64,), generator=generator)
    mean, std = (0.5, 0.5, 0.5), (0.3, 0.3, 0.3)
    parts = inputs[:n], targets[:n], inputs[n:], targets[n:]
    return Data("pictures", *parts, 10, mean=mean, std=std, model="cnn", augment="crop-flip")


def small(run: Run) -> Run:
    return settled(dataclasses.replace(run, corruption=0.3, epochs=2, batch_size=64), pictures())


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_the_gpu_computes_what_the_cpu_does(run: Run) -> None:
    """The order and the crops are the same; float32 sums are not."""
    run = dataclasses.replace(small(run), precision="float32")
    jobs = [Job(run, pictures(), Place(device)) for device in ("cpu", "cuda")]
    torch.backends.cudnn.allow_tf32 = False
    for job in jobs:
        job.begin(1)
        for k in range(job.steps):
            job.step(k)
    for one, other in zip(jobs[0].model.parameters(), jobs[1].model.parameters(), strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(jobs[0].sums, jobs[1].sums.cpu(), rtol=1e-3, atol=2.0)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_a_deterministic_run_repeats_itself_and_goes_on_exactly(run: Run, tmp_path: Path) -> None:
    place = Place("cuda", deterministic=True)
    data = pictures()
    whole = train(small(run), Keeping(tmp_path / "whole"), place, data=data)
    asked = iter(range(1000))
    train(small(run), Keeping(tmp_path / "parts"), place, data=data, stop=lambda: next(asked) > 5)
    assert train(small(run), Keeping(tmp_path / "parts"), place, data=data).rows == whole.rows
    assert whole.environment["precision"] == "bfloat16"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_no_step_waits_for_the_device(run: Run) -> None:
    job = Job(small(run), pictures(), Place("cuda"))
    job.begin(1)
    job.step(0)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        job.step(1)
        job.step(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_run_may_move_between_devices(tmp_path: Path) -> None:
    asked = iter(range(1000))
    data = pictures()
    run = small(Run(lam=2))
    train(run, Keeping(tmp_path), Place("cpu"), data=data, stop=lambda: next(asked) > 5)
    record = train(run, Keeping(tmp_path), Place("cuda"), data=data)
    assert (record.status, record.epochs) == ("done", 2)
