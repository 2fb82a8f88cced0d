"""md.audit: its table, what it takes, and what is refused."""

from __future__ import annotations

import builtins
import csv
import dataclasses
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from predictions import known, traced

import mirrordescent as md
from mirrordescent.lab.kept import audit_of_run
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.records import RunError, load_checkpoint, save_checkpoint
from mirrordescent.lab.runs import Run
from mirrordescent.lab.train import train


def test_what_diverged_is_told() -> None:
    trace, labels = md.Trace(4, 2), torch.tensor([0, 1, 0, 1])
    trace(torch.full((4, 2), torch.nan), labels, torch.arange(4))
    with pytest.raises(ValueError, match="logits that are not finite: training diverged"):
        md.audit(trace, labels)


def test_a_bad_batch_now_and_then_is_no_divergence() -> None:
    """What the trace holds is what it would hold without that batch."""
    p, labels, _ = known(0)
    one, other = traced(p, labels), traced(p, labels)
    few = torch.arange(5)
    one(torch.full((5, p.shape[1]), torch.inf), labels[few], few)
    assert one.lost == 5
    assert torch.equal(md.audit(one, labels).score, md.audit(other, labels).score)
    for _ in range(len(labels)):
        one(torch.full((5, p.shape[1]), torch.nan), labels[few], few)
    with pytest.raises(ValueError, match="training diverged"):
        md.audit(one, labels)


def test_z_that_never_moved_is_told() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=4)
    with pytest.warns(UserWarning, match="z is 0 for every sample"):
        md.audit(optimizer, torch.tensor([0, 1, 0, 1]))


def stepped(epochs: int, **options: Any) -> md.RMD:
    """z of losses that do not change: 1 and 3 by turns, in batches of 5, at lam/lr = 20 epochs."""
    w, losses = torch.nn.Parameter(torch.zeros(1)), torch.tensor([1.0, 3.0]).repeat(10)
    optimizer = md.RMD([w], **{"lr": 0.1, "lam": 2.0, "num_samples": 20, **options})
    for index in torch.arange(20).split(5) * epochs:
        optimizer.loss(losses[index] + 0 * w, index).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}, {"penalty": "huber"}, {"penalty": "logcosh"}], ids=str)
def test_z_that_has_not_had_its_time_is_told(options: dict[str, Any]) -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    early = r"z has had at most 0\.25 of the time over which it settles: too early"
    with pytest.warns(UserWarning, match=early) as told:
        md.audit(stepped(5, **options), labels)
    assert told[0].filename == __file__
    md.audit(stepped(15, **options), labels)


def test_the_time_that_z_has_had_is_that_of_the_samples_that_were_visited() -> None:
    labels = torch.zeros(40, dtype=torch.int64)
    for epochs, early in ((5, [r"z has had at most 0\.25 of the time"]), (15, [])):
        optimizer = stepped(epochs, num_samples=40)
        with pytest.warns(UserWarning, match="^z has ") as told:
            md.audit(optimizer, labels)
        unseen = "z has never moved for 20 of 40 samples"
        assert len(told) == len(early) + 1
        for one, message in zip(told, [*early, unseen], strict=True):
            assert re.match(message, str(one.message))


def test_samples_that_a_trace_has_not_seen_are_told() -> None:
    trace, labels = md.Trace(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    seen = torch.arange(4)
    trace(torch.eye(2)[labels[seen]] * 3, labels[seen], seen)
    with pytest.warns(UserWarning, match="the trace has not seen 2 of 6 samples") as told:
        md.audit(trace, labels)
    assert told[0].filename == __file__


@pytest.mark.parametrize(("seen", "told"), [(60, True), (91, False)])
def test_samples_whose_z_never_moved_are_left_out_of_the_mixture(seen: int, told: bool) -> None:
    """The others are judged as if they were alone, and those get what the others have on average."""
    labels, z = torch.arange(100) % 2, torch.zeros(100)
    z[:seen] = 1 + torch.randn(seen) * 0.1 + 2 * (torch.arange(seen) % 5 == 0)
    whole, part = (md.RMD([torch.nn.Parameter(torch.zeros(1))], 0.1, 1.0, n) for n in (100, seen))
    whole.aux.values.copy_(z)
    part.aux.values.copy_(z[:seen])
    unseen = f"z has never moved for {100 - seen} of 100 samples and can say nothing of their labels"
    with pytest.warns(UserWarning, match=unseen) if told else nullcontext() as warned:
        found = md.audit(whole, labels)
    assert not told or warned[0].filename == __file__  # type: ignore[index]
    alone = md.audit(part, labels[:seen])
    assert torch.equal(found.score[:seen], alone.score)
    assert torch.equal(found.issue.nonzero(), alone.issue.nonzero())
    assert alone.noise == pytest.approx(0.2, abs=0.01)
    torch.testing.assert_close(found.wrong[seen:], torch.full_like(found.wrong[seen:], alone.noise))
    torch.testing.assert_close(found.with_share(0.7).wrong[seen:], torch.full_like(found.wrong[seen:], 0.7))
    assert not found.with_share(0.7).issue[seen:].any()


@pytest.mark.parametrize("signed", [False, True])
def test_samples_that_fit_exactly_count_where_a_visit_may_leave_z_at_0(signed: bool) -> None:
    """Losses of exactly 0 do, with eps = 0 or a root: then 0 is no sign of a sample that was never visited."""
    w, r = torch.nn.Parameter(torch.zeros(1)), torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0]).repeat(8)
    optimizer = md.RMD([w], lr=0.1, lam=1.0, num_samples=40, eps=None if signed else 0.0)
    for index in torch.arange(40).split(8) * 30:
        root = r[index] + 0 * w
        optimizer.loss(root.square() / 2, index, root=root if signed else None).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = md.audit(optimizer, torch.zeros(40, dtype=torch.int64))
    assert found.issue.nonzero()[:, 0].tolist() == r.nonzero()[:, 0].tolist()
    assert found.noise == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("how", ["shifted", "mirrored", "as they were", "few corrected"])
def test_other_labels_than_those_that_were_trained_on_are_told(how: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (500,), generator=generator)
    trace = md.Trace(500, 3)
    for _ in range(5):
        logits = torch.randn(500, 3, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 3)
        trace(logits, labels, torch.arange(500))
    if how in ("as they were", "few corrected"):
        labels[: 4 * (how == "few corrected")] = 0
        md.audit(trace, labels)
    else:
        with pytest.warns(UserWarning, match="the trace was kept with other labels than these") as told:
            md.audit(trace, labels.roll(1) if how == "shifted" else 2 - labels)
        assert told[0].filename == __file__


def test_signs_of_residuals_make_no_label_less_suspicious() -> None:
    losses, labels = torch.linspace(0.1, 3.0, 20), torch.arange(20) % 2
    signs = torch.where(labels == 0, 1.0, -1.0)
    w = torch.nn.Parameter(torch.zeros(1))
    plain, rooted = (md.RMD([w], lr=0.1, lam=0.5, num_samples=20) for _ in range(2))
    for _ in range(40):
        plain.loss(losses + 0 * w, torch.arange(20)).backward()
        plain.step()
        rooted.loss(losses, torch.arange(20), root=signs * (2 * losses).sqrt() + 0 * w).backward()
        rooted.step()
        plain.zero_grad()
    fresh = md.RMD([w], lr=0.1, lam=0.5, num_samples=20)
    fresh.load_state_dict(rooted.state_dict())
    for optimizer in (rooted, fresh):
        found = md.audit(optimizer, labels)
        torch.testing.assert_close(found.score, md.audit(plain, labels).score)
        torch.testing.assert_close(found.z, signs * plain.aux.values)


def test_z_of_whole_batches_cannot_tell_how_many_are_wrong() -> None:
    labels = torch.zeros(20, dtype=torch.int64)
    optimizer = stepped(15, reduction="batch")
    with pytest.warns(UserWarning, match="^z ") as told:
        md.audit(optimizer, labels)
    assert [str(one.message).partition(":")[0] for one in told] == [
        "z of reduction='batch' ranks the labels, but does not tell how many are wrong",
        "z has had at most 0.15 of the time over which it settles",
    ]
    trace = md.Trace(20, 2)
    trace(torch.randn(20, 2), labels, torch.arange(20))
    md.audit(optimizer, labels, trace=trace)


@pytest.mark.parametrize("classes", [2, 5])
def test_a_class_with_one_member_and_one_with_none(classes: int) -> None:
    p, labels, _ = known(0, n=50, classes=classes)
    labels = labels.clamp(max=1)
    labels[labels == 1] = 0
    labels[7] = 1
    found = md.audit(traced(p, labels), labels)
    assert bool(found.score.isfinite().all())
    assert len(found.noise_by_class) == classes


def test_the_columns() -> None:
    p, labels, _ = known(0)
    found = md.audit(traced(p, labels), labels, class_names=("a", "b", "c", "d"))
    columns = found.columns()
    assert {"given_label", "predicted_label", "is_label_issue", "label_quality"} <= columns.keys()
    assert columns["given_label"] == ["abcd"[label] for label in labels.tolist()]
    assert columns["predicted_label"] == ["abcd"[label] for label in found.suggested.tolist()]
    assert columns["confidence"] == found.confidence.tolist()
    assert sorted(columns["rank"]) == list(range(1, 401))
    worst = columns["rank"].index(1)
    assert columns["label_quality"][worst] == min(columns["label_quality"])
    assert columns["is_label_issue"] == [quality < 0.5 for quality in columns["label_quality"]]
    assert "z" not in columns
    assert found.order[0] == worst


def test_an_audit_is_printed_in_two_lines() -> None:
    p, labels, _ = known(0)
    found = md.audit(traced(p, labels), labels, class_names=("ant", "bee", "cat", "dog"))
    first, second = str(found).splitlines()
    share, flagged = 100 * found.noise, int(found.issue.sum())
    assert first == f"Audit of 400 labels: {share:.1f} % are probably wrong, {flagged} are flagged"
    columns = found.columns()
    worst = [columns["rank"].index(k) for k in (1, 2, 3)]
    assert all(found.issue[worst])
    told = [f"{k} ({columns['given_label'][k]} -> {columns['predicted_label'][k]})" for k in worst]
    assert second == f"most suspicious: {', '.join(told)}"
    alone = md.Audit(torch.tensor([1, 0]), torch.tensor([-2.0, 3.0]))
    assert str(alone).endswith("most suspicious: 1 (0), 0 (1)")


def test_by_z_alone_nothing_is_suggested() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=100)
    optimizer.aux.values.copy_(torch.cat([torch.randn(80) * 0.1, 3 + torch.randn(20) * 0.1]))
    found = md.audit(optimizer, torch.arange(100) % 2)
    assert found.columns()["predicted_label"] == [None] * 100
    assert found.issue.nonzero()[:, 0].tolist() == list(range(80, 100))
    assert found.noise == pytest.approx(0.2, abs=0.02)
    trace = md.Trace(100, 2)
    trace(torch.randn(100, 2), torch.arange(100) % 2, torch.arange(100))
    assert md.audit(optimizer, torch.arange(100) % 2, trace=trace).z is not None


def test_equal_scores_stand_in_the_order_of_the_samples() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=100)
    optimizer.aux.values.fill_(1)
    assert md.audit(optimizer, torch.arange(100) % 2).order.tolist() == list(range(100))


def test_by_z_alone_a_class_without_members_has_a_share_too() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=4)
    optimizer.aux.values.fill_(1)
    found = dataclasses.replace(md.audit(optimizer, torch.tensor([0, 1, 0, 1])), class_names=("a", "b", "c"))
    assert found.noise_by_class[2:].tolist() == [0]


def test_csv_and_parquet_hold_the_table(tmp_path: Path) -> None:
    p, labels, _ = known(0)
    names = ("plain", 'with "quotes"', "with, comma", "with\nnewline")
    found = md.audit(traced(p, labels), labels, class_names=names)
    found.to_csv(tmp_path / "audit.csv")
    with open(tmp_path / "audit.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = found.columns()
    assert [row["given_label"] for row in rows] == columns["given_label"]
    assert [float(row["score"]) for row in rows] == columns["score"]
    parquet = pytest.importorskip("pyarrow.parquet")
    found.to_parquet(tmp_path / "audit.parquet")
    assert parquet.read_table(tmp_path / "audit.parquet").to_pydict() == columns


def test_the_table_with_and_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    p, labels, _ = known(0)
    found = md.audit(traced(p, labels), labels)
    pytest.importorskip("pandas")
    assert found.table()["given_label"].tolist() == labels.tolist()
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert found.table() == found.columns()


def test_labels_and_names_may_be_columns_of_other_libraries() -> None:
    trace, labels = md.Trace(5, 3), torch.tensor([0, 1, 2, 0, 1])
    trace(torch.randn(5, 3), labels, torch.arange(5))
    names = ("a", "b", "c")
    wanted = md.audit(trace, labels, class_names=names)
    columns = pd.Series(labels.numpy(), index=range(7, 12)), pd.Index(names)
    for given, classes in ((labels.numpy(), np.array(names)), columns, (labels.tolist(), list(names))):
        found = md.audit(trace, given, class_names=classes)  # type: ignore[arg-type]  # they have no types in common
        assert found.columns() == wanted.columns()


def test_what_does_not_fit_is_told() -> None:
    trace, optimizer = md.Trace(5, 3), md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=7)
    labels = torch.zeros(5, dtype=torch.int64)
    with pytest.raises(ValueError, match="z is of 7 samples, but there are 5 labels"):
        md.audit(optimizer, labels)
    with pytest.raises(ValueError, match="the trace is of 5 samples, but there are 7 labels"):
        md.audit(optimizer, torch.zeros(7, dtype=torch.int64), trace=trace)
    with pytest.raises(ValueError, match="labels are missing"):
        md.audit(trace)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\), got 0 to 3"):
        md.audit(trace, torch.tensor([0, 1, 2, 3, 0]))
    with pytest.raises(ValueError, match=r"vector of classes, got torch\.float32"):
        md.audit(trace, torch.zeros(5))
    with pytest.raises(ValueError, match="nothing to audit"):
        md.audit(optimizer, torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="the trace has seen no sample"):
        md.audit(trace, labels)
    for bad in (["a"] * 5, np.array(["a"] * 5), [None] * 5):
        with pytest.raises(ValueError, match="labels must be the numbers of classes"):
            md.audit(trace, bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got one of 5,000,000,000"):
        md.audit(optimizer, 1_000_000_000 * torch.arange(7).clamp(max=5))
    trace(torch.randn(5, 3), labels, torch.arange(5))
    with pytest.raises(ValueError, match="class_names must name 3 classes, got 2"):
        md.audit(trace, labels, class_names=("a", "b"))
    with pytest.raises(TypeError, match="got Linear"):
        md.audit(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a run has its own"):
        md.audit("runs/x", labels)


def test_a_run_is_audited_from_its_folder_even_where_it_was_cut_off(tmp_path: Path) -> None:
    run = Run(lam=4, loss="elr", corruption=0.3, epochs=30, lr=0.3)
    asked = iter(range(10**6))
    cut = train(run, Keeping(tmp_path), stop=lambda: next(asked) > 400)
    assert cut.status == "interrupted"
    early = md.audit(cut)
    done = train(run, Keeping(tmp_path))
    found = md.audit(done.folder)
    assert len(found) == len(early) == done.data["samples"]
    assert found.z is not None
    assert found.noise == pytest.approx(done.data["wrong"] / len(found), abs=0.03)
    assert not torch.equal(found.score, early.score)
    assert found.class_names == tuple("0123456789")
    (done.folder / "checkpoint.pt").unlink()
    with pytest.raises(RunError, match="has no checkpoint"):
        audit_of_run(done.folder)
    with pytest.raises(RunError, match="not the folder of a run"):
        md.audit(tmp_path / "nowhere")
    with pytest.raises(RunError, match="regression: it has no classes"):
        md.audit(train(Run(data="regression", epochs=1), Keeping(tmp_path)))


def test_a_run_without_rmd_is_audited_by_its_trace(tmp_path: Path) -> None:
    found = md.audit(train(Run(algorithm="sgd", corruption=0.2, epochs=3), Keeping(tmp_path)))
    assert found.z is None
    assert found.margins is not None


@pytest.mark.parametrize(("members", "flagged"), [(4, False), (5, True)])
def test_nothing_is_flagged_in_a_class_of_four(members: int, flagged: bool) -> None:
    labels = torch.tensor([0] * 40 + [1] * 40 + [2] * members)
    p = torch.eye(3)[[2] + [0] * 39 + [1] * 40 + [0] * members] * 0.9 + 1 / 30  # the class is taken for once
    trace = md.Trace(len(labels), 3)
    trace(p.log(), labels, torch.arange(len(labels)))
    found = md.audit(trace, labels).with_share(0.2)
    assert bool((found.wrong[-members:] > 0.5).all())
    assert found.issue[-members:].tolist() == [flagged] * members


@pytest.mark.parametrize(("taken", "learnt"), [(0, False), (1, False), (2, False), (3, True), (10, True)])
def test_a_class_that_the_network_has_given_up_is_not_flagged(taken: int, learnt: bool) -> None:
    """An eighth of as many as are named is too few; it is told, and has the share of wrong labels of the others."""
    labels = torch.tensor([0] * 40 + [1] * 40 + [2] * 20)
    p = torch.eye(3)[[0] * 36 + [1] * 4 + [1] * 40 + [2] * taken + [0] * (20 - taken)] * 0.9 + 1 / 30
    trace = md.Trace(100, 3)
    trace(p.log(), labels, torch.arange(100))
    found = md.audit(trace, labels)
    assert found.unlearnt == (() if learnt else (2,))
    assert bool(found.issue[36:40].all())
    if learnt:
        assert bool(found.issue[80 + taken :].all())
    else:
        assert not found.issue[80:].any()
        assert found.suggested[80:].tolist() == [2] * 20
        for judged in (found, found.with_share(0.3)):
            assert float(judged.wrong[80:].mean()) == pytest.approx(float(judged.wrong[:80].mean()), abs=0.02)
        assert found.with_share(0.3).noise == pytest.approx(0.3)


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    with pytest.raises(RunError, match=r"a\.csv is a file, not the folder of a run; `rmd audit .*a\.csv` audits"):
        md.audit(tmp_path / "a.csv")
    with pytest.raises(TypeError, match="data are audited by `rmd audit`, or by the trace"):
        md.audit([[1.0]], [0])  # type: ignore[arg-type]


def test_a_table_has_the_line_ends_of_unix(tmp_path: Path) -> None:
    md.Audit(torch.arange(6) % 3, torch.zeros(6).double()).to_csv(tmp_path / "audit.csv")
    assert b"\r" not in (tmp_path / "audit.csv").read_bytes()


def test_even_odds_are_no_issue() -> None:
    assert not md.Audit(torch.arange(60) % 3, torch.zeros(60).double()).issue.any()


def test_sources_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    trace = md.Trace(2, 2)
    trace(torch.zeros(2, 2), torch.tensor([0, 1]), torch.arange(2))
    with pytest.raises(ValueError, match=r"vector of classes, got torch\.bool"):
        md.audit(trace, torch.tensor([True, False]))
    with pytest.raises(ValueError, match="leave the other one out"):
        md.audit(trace, [0, 1], trace=trace)
    with pytest.raises(ValueError, match="a run has its own"):
        md.audit(tmp_path, trace=trace)
    optimizer = md.RMD([torch.nn.Parameter(torch.ones(1))], 0.1, 1.0, 2)
    with pytest.raises(ValueError, match="got one of 1,000,000"):
        md.audit(optimizer, [0, 1_000_000])
    optimizer.aux.values[1] = torch.nan
    with pytest.raises(ValueError, match="z is not finite"):
        md.audit(optimizer, [0, 1])


def test_a_checkpoint_with_z_and_no_trace_is_audited_by_z(tmp_path: Path) -> None:
    """As one from before there were traces is; one whose trace has seen nothing is refused."""
    record = train(Run(corruption=0.3, epochs=1), Keeping(tmp_path))
    state = load_checkpoint(record.folder)
    assert state is not None
    for held in state["job"]["notes"].values():
        held.zero_()
    save_checkpoint(record.folder, state)
    with pytest.raises(RunError):
        audit_of_run(record.folder)
    state["job"].pop("notes")
    save_checkpoint(record.folder, state)
    assert audit_of_run(record.folder).probabilities is None


@pytest.mark.parametrize("kind", ["reversed", "big-endian", "object", "unsigned"])
def test_labels_of_any_array_of_whole_numbers_are_taken(kind: str) -> None:
    y = torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    trace = md.Trace(60, 3)
    trace(torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), y, torch.arange(60))
    arrays: dict[str, Any] = {
        "reversed": y.flip(0).numpy()[::-1],
        "big-endian": y.numpy().astype(">i8"),
        "object": y.numpy().astype(object),
        "unsigned": y.numpy().astype(np.uint64),
    }
    assert torch.equal(md.audit(trace, arrays[kind]).score, md.audit(trace, y).score)


def test_an_audit_does_not_follow_the_default_device() -> None:
    y = torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(2))], lr=0.1, lam=1.0, num_samples=60)
    optimizer.aux.values.copy_(torch.cat([torch.randn(50) * 0.1, 5 + torch.randn(10) * 0.1]))
    here = md.audit(optimizer, y)
    with torch.device("meta"):
        there = md.audit(optimizer, y.tolist())
        assert torch.equal(there.rank, here.rank)
    assert torch.equal(there.score, here.score)
