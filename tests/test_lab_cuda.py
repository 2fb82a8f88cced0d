"""The lab's loop on a GPU: what the CPU computes, repeatable, and without a wait inside a step."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mirrordescent.lab import captured as captures
from mirrordescent.lab import engine as engines
from mirrordescent.lab import stem as stems
from mirrordescent.lab.audit.auditing import Asked, audit_data
from mirrordescent.lab.bench import Bench, measured
from mirrordescent.lab.captured import WARM_UP, Captured
from mirrordescent.lab.captured import _tensors as tensors_of
from mirrordescent.lab.continual import Course, Lessons, learn
from mirrordescent.lab.continual.learning import Later
from mirrordescent.lab.continual.tasks import tasks_of
from mirrordescent.lab.data import Data
from mirrordescent.lab.engine import all_trained, engine, side_by_side
from mirrordescent.lab.half import halved
from mirrordescent.lab.job import Job
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.models import build
from mirrordescent.lab.norm import Norm
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import read
from mirrordescent.lab.runs import Run, settled
from mirrordescent.lab.stem import Stem, convolved
from mirrordescent.lab.sweep import Finished, Work
from mirrordescent.lab.train import train

pytestmark = pytest.mark.cuda
GPU = torch.cuda.is_available()
STANDIN, INTERPRETED = pytest.mark.standin, pytest.mark.standin(kernels=True)
RUNS = [
    Run(algorithm="sgd"),
    Run(algorithm="weight-decay", lam=0.1),
    Run(algorithm="smd", potential="q=3", lr=0.01),
    Run(lam=2),
    Run(lam=2, reduction="batch", potential="2 * l2", momentum=0.5),
    Run(lam=2, loss="elr"),
    Run(algorithm="sgd", loss="gce", momentum=0.9, acceleration="nesterov", decay=1e-3, schedule="cosine"),
    Run(algorithm="sgd", mixup=0.4),
]


@pytest.fixture(autouse=True)
def _whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def pictures(n: int = 256, side: int = 16) -> Data:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (n + 64, 3, side, side), generator=generator, dtype=torch.uint8)
    targets = torch.randint(10, (n + 64,), generator=generator)
    mean, std = (0.5, 0.5, 0.5), (0.3, 0.3, 0.3)
    parts = inputs[:n], targets[:n], inputs[n:], targets[n:]
    return Data("pictures", *parts, 10, mean=mean, std=std, model="cnn", augment="crop-flip")


def deep(run: Run) -> Run:
    """With batch norm."""
    return dataclasses.replace(run, model="deep-cnn")


def small(run: Run) -> Run:
    return settled(dataclasses.replace(run, corruption=0.3, epochs=2, batch_size=64), pictures())


@pytest.mark.parametrize("channels", [1, 3])
def test_the_stem_is_the_convolution_up_to_rounding(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    products: list[torch.Tensor] = []

    def spied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        products.append(convolved(x, weight))
        return products[-1]

    monkeypatch.setattr(stems, "convolved", spied)
    stem = Stem(channels, 64).cuda()
    x = torch.randn(64, channels, 32, 32, device="cuda")
    up = torch.randn(64, 64, 32, 32, device="cuda")
    found = []
    for way in (stem, lambda x: F.conv2d(x, stem.weight, padding=1)):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = way(x)
        found.append((out.detach(), *torch.autograd.grad(out, stem.weight, up.to(out.dtype))))
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == theirs.dtype
        assert float((ours - theirs).float().norm() / theirs.float().norm()) < 2**-8
    assert len(products) == 1
    assert torch.equal(stem.eval()(x), F.conv2d(x, stem.weight, padding=1))
    assert len(products) == 1


@INTERPRETED
@pytest.mark.parametrize(
    "shape", [(128 if GPU else 4, 3, 32, 32), (5, 3, 9, 11), (3, 1, 7, 5), (2, 4, 1, 1), (2, 40, 6, 6)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["rows", "channels last", "every other"])
def test_patches_by_a_kernel_are_the_same(
    shape: tuple[int, int, int, int], dtype: torch.dtype, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mirrordescent.lab import patches

    asked: list[torch.Tensor] = []

    def spied(x: torch.Tensor, spare: int) -> torch.Tensor:
        asked.append(x)
        return by_kernel(x, spare)

    by_kernel = patches.patches_by_kernel
    monkeypatch.setattr(patches, "patches_by_kernel", spied)
    x = torch.randn(*shape[:3], 2 * shape[3]).to(dtype)[..., ::2]
    if layout != "every other":
        x = x.contiguous(memory_format=torch.channels_last if layout == "channels last" else torch.contiguous_format)
    on_gpu = torch.empty_strided(x.shape, x.stride(), dtype=dtype, device="cuda").copy_(x)
    for spare in (0, -9 * shape[1] % 8):
        assert torch.equal(stems.patches(on_gpu, spare).cpu(), stems.patches(x, spare))
    assert len(asked) == 2


@STANDIN
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_the_gpu_computes_what_the_cpu_does(run: Run) -> None:
    """The order and the crops are the same; float32 sums are not."""
    run = dataclasses.replace(small(run), precision="float32")
    jobs = [Job(run, pictures(), Place(device)) for device in ("cpu", "cuda")]
    for job in jobs:
        job.begin(1)
        for _ in range(job.steps):
            job.step()
    for one, other in zip(jobs[0].model.parameters(), jobs[1].model.parameters(), strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(jobs[0].sums, jobs[1].sums.cpu(), rtol=1e-3, atol=2.0)


@STANDIN
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_a_deterministic_run_repeats_itself_and_goes_on_exactly(run: Run, tmp_path: Path) -> None:
    place = Place("cuda", deterministic=True)
    data = pictures()
    whole = train(small(run), Keeping(tmp_path / "whole"), place, data=data)
    asked = iter(range(1000))
    train(small(run), Keeping(tmp_path / "parts"), place, data=data, stop=lambda: next(asked) > 5)
    assert train(small(run), Keeping(tmp_path / "parts"), place, data=data).rows == whole.rows
    assert whole.environment["precision"] == "bfloat16"


@INTERPRETED
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.title)
def test_no_step_waits_for_the_device(run: Run) -> None:
    job = Job(small(run), pictures(), Place("cuda"))
    job.begin(1)
    job.step()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        job.step()
        job.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@STANDIN
def test_a_run_may_move_between_devices(tmp_path: Path) -> None:
    asked = iter(range(1000))
    data = pictures()
    run = small(Run(lam=2))
    train(run, Keeping(tmp_path), Place("cpu"), data=data, stop=lambda: next(asked) > 5)
    record = train(run, Keeping(tmp_path), Place("cuda"), data=data)
    assert (record.status, record.epochs) == ("done", 2)


def stepped(job: Job, count: int) -> Job:
    job.begin(1)
    for _ in range(count):
        job.step()
    return job


def replayed(job: Job, count: int, *, compile_forward: bool) -> Job:
    captured = Captured(job, compile_forward=compile_forward)
    captured.begin(1)
    for _ in range(count):
        captured.step()
    captured.wait()
    return job


def everything(job: Job) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors_of(job)}


@pytest.mark.parametrize(
    "run",
    [
        *(pytest.param(run, marks=STANDIN) for run in RUNS),
        *(pytest.param(deep(run), marks=INTERPRETED if run == RUNS[3] else ()) for run in RUNS),
        *(dataclasses.replace(run, model="resnet18") for run in RUNS),
    ],
    ids=lambda run: f"{run.title}-{run.model}",
)
def test_a_captured_step_is_the_plain_one_bit_for_bit(run: Run) -> None:
    place, data = Place("cuda", deterministic=True), pictures(side=16 if GPU else 8)
    run = dataclasses.replace(small(run), batch_size=32)
    with place.taken():
        plain = everything(stepped(Job(run, data, place), 7))
        graph = everything(replayed(Job(run, data, place), 7, compile_forward=False))
    assert plain.keys() == graph.keys()
    for name, tensor in plain.items():
        assert torch.equal(tensor, graph[name]), name


@STANDIN
@pytest.mark.parametrize("sticky", [False, True])
def test_a_capture_that_fails_waits_for_its_steps_and_says_why(sticky: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on another stream than what puts the job's tensors back; after a sticky error every call fails."""
    happened: list[str] = []

    class Broken(Job):
        def descend(self, *tables: torch.Tensor) -> None:
            happened.append("step")
            if len(happened) == 3:
                raise RuntimeError("it is full")
            super().descend(*tables)

    def wait(_: torch.device) -> None:
        happened.append("wait")
        if sticky:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def state(job: Job) -> Any:
        happened.append("state")
        return tensors_of(job)

    job = Broken(small(RUNS[3]), pictures(), Place("cuda"))
    before = everything(job)
    monkeypatch.setattr(captures, "_tensors", state)
    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    with pytest.raises(RuntimeError, match="it is full"):
        Captured(job)
    assert happened == ["state", "step", "step", "wait", *(["state"] if not sticky else [])]
    assert sticky or all(torch.equal(tensor, before[name]) for name, tensor in everything(job).items())


@STANDIN
def test_the_record_of_a_run_whose_capture_broke_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA itself says at the capture's end that there was an error before."""

    class Full(Job):
        steps_taken = 0

        def descend(self, *tables: torch.Tensor) -> None:
            self.steps_taken += 1
            if self.steps_taken > WARM_UP:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            super().descend(*tables)

    @contextlib.contextmanager
    def broken(graph: Any, **settings: Any) -> Iterator[None]:
        with capture(graph, **settings):
            try:
                yield
            finally:
                raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    capture = torch.cuda.graph
    monkeypatch.setattr(torch.cuda, "graph", broken)
    run = small(RUNS[3])
    with pytest.raises(torch.OutOfMemoryError):
        train(run, Keeping(tmp_path), Place("cuda"), data=pictures(), make=Full)
    assert read(tmp_path / run.id).reason == "CUDA out of memory. Tried to allocate 2.00 GiB"
    monkeypatch.setattr(engines, "Job", Full)
    [end] = side_by_side([Work(run, pictures(), tmp_path)], Keeping(), Place("cuda"))
    assert (end.status, end.error) == ("failed", "CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("run", [RUNS[0], RUNS[3]], ids=lambda run: run.title)
def test_a_compiled_step_is_close_to_the_plain_one(run: Run) -> None:
    """ResNet-18 in float32 as the paper trains it, over 20 steps: the compiler sums in another order."""
    place = Place("cuda", deterministic=True)
    run = dataclasses.replace(small(run), batch_size=128, precision="float32", model="resnet18", start="near-zero")
    data = pictures(2560, side=32)
    with place.taken():
        plain = stepped(Job(run, data, place), 20)
        graph = replayed(Job(run, data, place), 20, compile_forward=True)
    one, other = (torch.cat([w.detach().flatten() for w in job.model.parameters()]) for job in (plain, graph))
    assert float((one - other).norm() / one.norm()) < 1e-3


@STANDIN
def test_several_graphs_at_once_do_not_disturb_each_other() -> None:
    place = Place("cuda", deterministic=True)
    runs = [dataclasses.replace(small(run), batch_size=32, seed=seed) for seed, run in enumerate(RUNS)]
    with place.taken():
        alone = [everything(replayed(Job(run, pictures(), place), 8, compile_forward=False)) for run in runs]
        graphs = [Captured(Job(run, pictures(), place), compile_forward=False) for run in runs]
        for graph in graphs:
            graph.begin(1)
        for _ in range(8):
            for graph in graphs:
                graph.step()
        for graph in graphs:
            graph.wait()
        together = [everything(graph.job) for graph in graphs]
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.detach().double() - other.detach()).norm() / other.detach().norm())


@INTERPRETED
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)], ids=str
)
@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize(("relu", "add"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize(
    "shape",
    [(128, 64, 32, 32) if GPU else (36, 64, 12, 12), (7, 128, 5, 3), (2, 512, 1, 1), (33, 192, 4, 4)],
    ids=str,
)
def test_fused_norm_is_batch_norm(
    shape: tuple[int, int, int, int], relu: bool, add: bool, readers: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Output, gradients and buffers, against float64; the sizes do not fill the blocks."""
    torch.manual_seed(0)
    norm = Norm(shape[1], relu=relu)
    with torch.no_grad():
        for w in (norm.weight, norm.bias, norm.running_mean):
            assert w is not None
            w.normal_()
    exact = copy.deepcopy(norm).double().cuda()
    norm.cuda()

    def some() -> torch.Tensor:
        drawn = 2 * torch.randn(shape, device="cuda") + 1
        return drawn.to(dtype).to(memory_format=torch.channels_last).requires_grad_()

    x, added = some(), some() if add else None
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (x, added)]
    outputs = norm.twice(x, added)[:readers]
    assert wide[0] is not None
    expected = exact.plain(wide[0], wide[1])
    weights = [torch.randn_like(x) for _ in outputs]
    sum((out * g).sum() for out, g in zip(outputs, weights, strict=True)).backward()  # type: ignore[union-attr]
    sum((expected * g.double()).sum() for g in weights).backward()  # type: ignore[union-attr]
    pairs = [(out, expected) for out in outputs]
    pairs += [(a, b) for a, b in zip(norm.buffers(), exact.buffers(), strict=True) if a.is_floating_point()]
    for a, b in zip([x, added, *norm.parameters()], [*wide, *exact.parameters()], strict=True):
        if a is not None and b is not None:
            assert a.grad is not None
            assert b.grad is not None
            pairs.append((a.grad, b.grad))
    if shape[0] > 2:  # of two samples, the sign is all that batch norm leaves, and rounding is all of its gradient
        assert max(relative(a, b) for a, b in pairs) < tolerance
    assert norm.num_batches_tracked == exact.num_batches_tracked == 1
    norm.eval(), exact.eval()
    with torch.no_grad():
        assert relative(norm(x, added), exact(wide[0], wide[1])) < tolerance


@INTERPRETED
@pytest.mark.parametrize("room", [0, 40 * 1024])
def test_with_fewer_blocks_on_their_way_the_sums_are_the_same(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with less shared memory."""
    from mirrordescent.lab import passes

    torch.manual_seed(0)
    norm = Norm(64).cuda()
    side = 32 if GPU else 8
    x, added = (torch.randn(128, 64, side, side, device="cuda").bfloat16() for _ in range(2))
    found, stages = [], []
    for _ in range(2):
        one = copy.deepcopy(norm)
        leaves = [t.to(memory_format=torch.channels_last).requires_grad_() for t in (x.clone(), added.clone())]
        out = one(*leaves)
        (out * x).sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves), *(w.grad for w in one.parameters()), one.running_var])
        stages.append(passes.SUMS.launch(leaves[0], reads=3)[1]["STAGES"])
        monkeypatch.setattr(passes, "_room", lambda device: room)
    for ours, less in zip(*found, strict=True):
        assert ours is not None
        assert less is not None
        assert relative(ours, less.double()) < 1e-3
    assert stages[0] > stages[1] == 1


def test_halves_are_autocast_to_the_bit() -> None:
    model = build("cnn", (3, 16, 16), 10, seed=1).cuda()
    x = torch.randn(32, 3, 16, 16, device="cuda")
    found = []
    for forward in (lambda: model(x), lambda: halved(model, x)):
        model.zero_grad()
        with Place("cuda", deterministic=True).taken(), torch.autocast("cuda", dtype=torch.bfloat16):
            out = forward()
            out.float().square().sum().backward()
        found.append([out, *[w.grad for w in model.parameters() if w.grad is not None]])
    assert len(found[0]) == 1 + len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@INTERPRETED
def test_a_kernels_counters_are_ready_for_the_next_use() -> None:
    """The same sums again, to the bit, and nothing left behind."""
    norm = Norm(128).cuda()
    norm.momentum = 0.0  # the sums are taken about the running mean, which must not move
    x = torch.randn(64, 128, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    first = norm(x)
    assert all(torch.equal(norm(x), first) for _ in range(20 if GPU else 3))
    assert norm.count is not None
    assert not norm.count.any()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is on the same pictures."""
    monkeypatch.setattr("mirrordescent.lab.sweep.load", lambda *_: pictures())


@STANDIN
@pytest.mark.usefixtures("loaded")
def test_the_engines_runs_are_the_plain_loops(tmp_path: Path) -> None:
    """Runs of different length and algorithm, more of them than at once; bit for bit without compilation."""
    place = Place("cuda", deterministic=True)
    runs = [dataclasses.replace(small(run), epochs=1 + k % 3) for k, run in enumerate(RUNS)]
    plain = {run.id: train(run, Keeping(tmp_path / "plain"), place, data=pictures(), capture=False) for run in runs}
    alone = {run.id: train(run, Keeping(tmp_path / "alone"), place, data=pictures()) for run in runs}
    assert all(alone[name].rows == record.rows for name, record in plain.items())
    heard: list[object] = []
    settings = {"at_once": 2, "compile_forward": False}
    records, rest = engine(runs, Keeping(tmp_path / "engine"), place, watch=heard.append, **settings)  # type: ignore[arg-type]
    assert not rest
    assert len(records) == len(runs)
    for record in records:
        assert record.rows == plain[record.id].rows
        assert (record.status, record.reason) == ("done", plain[record.id].reason)
    again, _ = engine(runs, Keeping(tmp_path / "engine"), place)
    assert again == records


@STANDIN
@pytest.mark.usefixtures("loaded")
def test_the_engine_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    place = Place("cuda", deterministic=True)
    runs = [dataclasses.replace(small(run), epochs=3) for run in RUNS[2:]]
    whole, _ = engine(runs, Keeping(tmp_path / "whole"), place, at_once=2, compile_forward=False)

    def stop(event: object) -> None:
        if isinstance(event, Progress) and event.epoch == 1:  # told after every epoch, and now and then
            signal.raise_signal(signal.SIGTERM)

    keeping = Keeping(tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        engine(runs, dataclasses.replace(keeping), place, at_once=2, compile_forward=False, watch=stop)
    _, rest = engine(runs, keeping, place, at_once=2, compile_forward=False, minutes=0)
    assert {end.status for end in rest} <= {"waiting", "interrupted"}
    records, rest = engine(runs, keeping, place, at_once=3, compile_forward=False)
    assert not rest
    assert [record.rows for record in records] == [record.rows for record in whole]


@STANDIN
def test_one_run_on_several_data_sets_side_by_side(tmp_path: Path) -> None:
    """In folders of their own; each is what it is alone."""
    place, run = Place("cuda", deterministic=True), small(RUNS[3])
    sets = [pictures(n) for n in (256, 192, 128)]
    works = [Work(run, data, tmp_path / str(len(data))) for data in sets]
    ended = side_by_side(works, Keeping(), place, at_once=2)
    assert [end.status for end in ended] == ["done"] * 3
    assert not any(data._places for data in sets)  # nothing is left on the GPU
    for work in works:
        alone = train(run, Keeping(tmp_path / "alone" / work.root.name), place, data=work.data, capture=False)
        assert read(work.root / run.id).rows == alone.rows
    assert [end.status for end in side_by_side(works, Keeping(), place)] == ["done"] * 3


@STANDIN
def test_an_audit_and_its_check_are_trained_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each as it is alone."""
    sides: list[int] = []

    def spied(works: Sequence[Work], *more: Any, **named: Any) -> Any:
        sides.append(len(works))
        return side_by_side(works, *more, **named)

    monkeypatch.setattr("mirrordescent.lab.engine.side_by_side", spied)
    place, asked = Place("cuda", deterministic=True), Asked(model="cnn", corruption=0.4, epochs=3)
    both = audit_data("digits", asked, Keeping(tmp_path / "both"), place)
    alone = audit_data("digits", dataclasses.replace(asked, no_check=True), Keeping(tmp_path / "alone"), place)
    assert both.check is not None
    assert max(sides) == 2
    assert both.record.rows == alone.record.rows
    assert [*(both.record.folder / "check").glob("*/run.json")]


@STANDIN
def test_all_trained_tells_of_one_run_at_a_time(tmp_path: Path) -> None:
    place, run = Place("cuda", deterministic=True), small(RUNS[1])
    works = [Work(run, pictures(n), tmp_path / str(n)) for n in (128, 256)]
    heard: list[Progress] = []
    records = all_trained(works, Keeping(), place, watch=heard.append)
    assert [record.data["samples"] for record in records] == [128, 256]
    first = [event.folder for event in heard if event.epoch < run.epochs]
    assert first == sorted(first, key=[work.root / run.id for work in works].index)
    assert all_trained(works, Keeping(), place, watch=heard.append) == records


@STANDIN
def test_a_run_that_fails_says_so_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Captured):
        """Its second run breaks in its third step."""

        made = 0

        def __init__(self, job: Job, **more: bool) -> None:
            super().__init__(job, **more)
            Broken.made += 1
            self.broken, self.steps = Broken.made == 2, 0

        def step(self) -> None:
            self.steps += 1
            if self.broken and self.steps == 3:
                raise RuntimeError("it is full")
            super().step()

    monkeypatch.setattr(engines, "Captured", Broken)
    run, works = small(RUNS[1]), []
    for n in (128, 192, 256):
        works.append(Work(run, pictures(n), tmp_path / str(n)))
    ended = side_by_side(works, Keeping(), Place("cuda"), at_once=3)
    assert sorted(end.status for end in ended) == ["done", "done", "failed"]
    broken = read(works[1].root / run.id)
    assert (broken.status, broken.reason) == ("failed", "it is full")


@STANDIN
@pytest.mark.parametrize("when", [Progress, Finished])
def test_a_listener_that_fails_cuts_runs_off_and_fails_none(when: type, tmp_path: Path) -> None:
    """Whether it hears where a run is, or that one has ended; all that is not done goes on later."""

    def listener(event: Progress | Finished) -> None:
        if isinstance(event, when) and (isinstance(event, Finished) or event.epoch > 0):
            raise BrokenPipeError("the reader is gone")

    runs = [dataclasses.replace(small(RUNS[1]), epochs=epochs) for epochs in (1, 3)]
    works = [Work(run, pictures(), tmp_path) for run in runs]
    with pytest.raises(BrokenPipeError, match="the reader is gone"):
        side_by_side(works, Keeping(tmp_path), Place("cuda", deterministic=True), at_once=2, watch=listener)
    assert [read(tmp_path / run.id).status for run in runs] == ["done", "interrupted"]
    side_by_side(works, Keeping(tmp_path), Place("cuda", deterministic=True))
    again = [read(tmp_path / run.id).rows for run in runs]
    side_by_side(
        [dataclasses.replace(work, root=tmp_path / "whole") for work in works],
        Keeping(tmp_path / "whole"),
        Place("cuda", deterministic=True),
    )
    assert again == [read(tmp_path / "whole" / run.id).rows for run in runs]


@STANDIN
@pytest.mark.parametrize("method", ["near", "ewc", "rmd", "anchored"])
def test_a_later_tasks_captured_step_is_the_plain_one(method: str) -> None:
    lessons = Lessons(kind="split", model="cnn", tasks=2, ewc_alpha=1.0)
    [_, task] = tasks_of(Course(lessons, method), dataclasses.replace(pictures(), class_names=tuple("abcdefghij")))
    lam = {"rmd": 2.0, "anchored": 2.0}.get(method)
    algorithm = {"algorithm": "sgd"} if lam is None else {"algorithm": "rmd", "lam": lam}
    run = Run.from_dict({**algorithm, "model": "cnn", "augment": "none", "precision": "float32", "batch_size": 16})
    place, found = Place("cuda", deterministic=True), []
    with place.taken():
        weights = Job(run, task, place).model.state_dict()
        importance = [{name: torch.rand_like(w).cpu() for name, w in weights.items()}]
        for capture in (False, True):
            job = Later(run, task, place, course=Course(lessons, method), weights=weights, importance=importance)
            stepper = Captured(job) if capture else job
            stepper.begin(1)
            for _ in range(5):
                stepper.step()
            stepper.wait()
            found.append([w.detach().clone() for w in job.model.parameters()])
    for plain, captured in zip(*found, strict=True):
        assert torch.equal(plain, captured)


def test_a_course_is_learnt_on_a_gpu(tmp_path: Path) -> None:
    course = Course(Lessons(tasks=2, epochs=5, samples=400), "anchored")
    on_gpu, on_cpu = (learn(course, Keeping(tmp_path / where), Place(where)) for where in ("cuda", "cpu"))
    for ours, theirs in zip(on_gpu.accuracies, on_cpu.accuracies, strict=True):
        assert ours == pytest.approx(theirs, abs=0.05)


def test_steps_are_timed_eagerly_and_as_graphs() -> None:
    costs = measured(Bench(model="cnn", batch_size=32, samples=100, seconds=1, blocks=3), Place("cuda"), ["l2", "q=3"])
    assert list(costs.sgd_ms) == ["eager", "graph"]
    for row in costs.rows:
        assert row.graph is not None
        assert 0 < row.graph.middle < 10
