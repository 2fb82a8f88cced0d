"""Which labels are wrong: the estimates where the truth is known, their symmetries, and what is refused."""

from __future__ import annotations

import builtins
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import mirrordescent as md
from mirrordescent.lab.kept import audit_of_run
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.records import RunError
from mirrordescent.lab.runs import Run
from mirrordescent.lab.train import train
from mirrordescent.suspicion import log_odds, mixture_log_odds, noise_rates, share_wrong, with_share


def known(
    seed: int, n: int = 400, classes: int = 4, rate: float = 0.3, sharp: float = 4.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions that know the truth as well as `sharp` says, given labels, true labels."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randint(classes, (n,), generator=generator)
    chosen = torch.rand(n, generator=generator) < rate
    labels = torch.where(chosen, torch.randint(classes, (n,), generator=generator), true)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), true] += sharp
    return logits.softmax(1), labels, true


@pytest.mark.parametrize("heat", [(1.0,) * 4, (2.5,) * 4, (1.0, 2.0, 3.0, 4.0)], ids=str)
@pytest.mark.parametrize("wrong", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("pairs", [False, True])
def test_a_networks_mistakes_are_told_from_wrong_labels(pairs: bool, wrong: float, heat: tuple[float, ...]) -> None:
    """Classes that overlap, of samples the network has not seen, and a network that may be too sure of itself.

    heat: how much, by the class that it predicts.
    """
    generator = torch.Generator().manual_seed(0)
    n, classes = 4000, 4
    logits = 2.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    true = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    away = torch.ones(n, dtype=torch.int64) if pairs else torch.randint(1, classes, (n,), generator=generator)
    labels = torch.where(torch.rand(n, generator=generator) < wrong, (true + away) % classes, true)
    p = (torch.tensor(heat, dtype=torch.float64)[logits.argmax(1), None] * logits).softmax(1)
    contradicted = float((p.argmax(1) != labels).double().mean())
    assert contradicted > wrong + 0.1
    assert share_wrong(p, labels) == pytest.approx(float((labels != true).double().mean()), abs=0.02)


@given(st.integers(0, 10_000), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.floats(2.0, 8.0), st.floats(0.05, 0.5))
def test_of_z_alone_more_is_never_less_suspicious(
    seed: int, low: float, high: float, apart: float, share: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    upper = torch.rand(400, generator=generator) < share
    noise = torch.randn(400, generator=generator)
    z = torch.where(upper, apart + high * noise, low * noise).sort().values
    score = mixture_log_odds(z, torch.zeros(400, dtype=torch.int64), 1)
    assert bool((score.diff() >= -1e-9).all())


@given(st.integers(1, 50), st.floats(0.001, 0.5))
def test_a_rare_class_in_which_nothing_was_found_is_not_the_worst(rare: int, rate: float) -> None:
    labels = torch.tensor([0] * rare + [1] * 1000)
    moved = with_share(torch.tensor([0.0, rate]), labels, rate)
    assert moved[0] <= moved[1]
    assert float(moved[1]) == pytest.approx(rate, rel=0.1)


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 0.45), st.floats(0.01, 0.9))
def test_a_share_from_elsewhere_moves_all_classes_alike(seed: int, classes: int, rate: float, share: float) -> None:
    p, labels, _ = known(seed, classes=classes, rate=rate)
    rates = noise_rates(p, labels)
    moved = with_share(rates, labels, share)
    assert float(moved[labels].mean()) == pytest.approx(share, abs=1e-6)
    found_some = rates > 1 / (torch.bincount(labels, minlength=classes) + 2)
    more = (rates[:, None] > rates) & found_some[:, None] & found_some
    assert bool((moved[:, None] >= moved)[more].all())
    found = md.Audit(labels, log_odds(p, labels, rates), rates, p)
    again = found.with_share(share)
    assert again.noise == pytest.approx(share, abs=1e-4)
    assert torch.equal(again.given, labels)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 1.1"):
        found.with_share(1.1)
    with pytest.raises(ValueError, match="by z alone"):
        md.Audit(labels, found.score, rates).with_share(share)


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 0.45))
def test_where_the_network_knows_the_truth_the_rates_are_exact(seed: int, classes: int, rate: float) -> None:
    _, labels, true = known(seed, classes=classes, rate=rate)
    p = torch.nn.functional.one_hot(true, classes).double()
    for label, share in enumerate(noise_rates(p, labels).tolist()):
        here = labels == label
        if bool(((true == label) & here).any()):  # else nothing says what the class looks like
            assert share == pytest.approx(float((true[here] != label).double().mean()))


@given(st.integers(0, 1000), st.floats(0, 0.4))
def test_probabilities_add_up_to_the_rates_and_keep_the_order(seed: int, rate: float) -> None:
    p, labels, _ = known(seed, rate=rate)
    rates = torch.rand(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    score = log_odds(p, labels, rates)
    own = p.gather(1, labels[:, None])[:, 0]
    other = p.scatter(1, labels[:, None], -1.0).amax(1)
    for label in range(4):
        here = labels == label
        assert float(torch.sigmoid(score[here]).mean()) == pytest.approx(float(rates[label]), abs=1e-5)
        assert torch.equal(score[here].argsort(), (other / own)[here].log().argsort())


def test_the_estimated_noise_is_close_and_the_probabilities_mean_something() -> None:
    for seed in range(5):
        p, labels, true = known(seed, n=4000, rate=0.3)
        trace = traced(p, labels)
        found = md.audit(trace, labels)
        wrong = labels != true
        assert found.noise == pytest.approx(float(wrong.double().mean()), abs=0.04)
        assert float((found.wrong - wrong.double()).square().mean()) < 0.03  # 0.17 for the rate alone
        assert float((labels != true)[found.issue].double().mean()) > 0.9


def test_nothing_is_flagged_where_nothing_is_wrong() -> None:
    p, labels, _ = known(0, n=2000, rate=0.0, sharp=6.0)
    assert float(md.audit(traced(p, labels), labels).issue.double().mean()) < 0.02
    z = torch.randn(2000, generator=torch.Generator().manual_seed(0)).abs()
    assert not (mixture_log_odds(z, labels, 4) > 0).any()
    assert not (mixture_log_odds(-z, labels, 4) > 0).any()  # nor is a tail to the other side a hill


def test_a_class_that_was_not_learnt_makes_no_label_wrong() -> None:
    """One member, which the network takes for another class: its low average says nothing about the others."""
    p, labels, true = known(0, n=1000, classes=4, rate=0.0, sharp=6.0)
    p[:, 3] = 1e-3
    p = p / p.sum(1, keepdim=True)
    labels[labels == 3] = 0
    keep = true != 3
    p, labels = p[keep], labels[keep]
    labels[5] = 3
    found = md.audit(traced(p, labels), labels)
    assert found.noise < 0.02
    assert bool((found.suggested != found.given)[found.issue].all())


def test_a_sample_that_was_never_seen_has_its_classs_rate() -> None:
    p, labels, _ = known(0)
    trace = md.Trace(400, 4)
    trace(p[:390].log(), labels[:390], torch.arange(390))
    found = md.audit(trace, labels)
    assert torch.allclose(found.wrong[390:], found.noise_by_class[labels[390:]], atol=1e-5)
    assert not found.issue[390:].any()


def test_what_diverged_is_told() -> None:
    trace, labels = md.Trace(4, 2), torch.tensor([0, 1, 0, 1])
    trace(torch.full((4, 2), torch.nan), labels, torch.arange(4))
    with pytest.raises(ValueError, match="the trace is not finite: training diverged"):
        md.audit(trace, labels)


@given(st.integers(0, 1000))
def test_neither_the_order_nor_the_classes_numbers_matter(seed: int) -> None:
    p, labels, _ = known(seed)
    generator = torch.Generator().manual_seed(seed)
    shuffle, renamed = torch.randperm(400, generator=generator), torch.randperm(4, generator=generator)
    score = log_odds(p, labels, noise_rates(p, labels))
    other = log_odds(p[shuffle], labels[shuffle], noise_rates(p[shuffle], labels[shuffle]))
    torch.testing.assert_close(other, score[shuffle])
    names = renamed.argsort()  # class c is now called names[c]
    again = log_odds(p[:, renamed], names[labels], noise_rates(p[:, renamed], names[labels]))
    torch.testing.assert_close(again, score)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_mixture_of_z(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(3000, generator=generator) < share
    labels = torch.randint(3, (3000,), generator=generator)
    z = torch.randn(3000, generator=generator) + 5 * wrong + labels  # each class has a level of its own
    probability = torch.sigmoid(mixture_log_odds(z, labels, 3))
    assert float(probability.mean()) == pytest.approx(float(wrong.double().mean()), abs=0.02)
    assert float((probability > 0.5).eq(wrong).double().mean()) > 0.97


@pytest.mark.parametrize(
    "z", [torch.zeros(30), torch.zeros(1), torch.tensor([0.0] * 29 + [1e6])], ids=["0", "one", "far"]
)
def test_a_mixture_of_nearly_nothing(z: Tensor) -> None:
    assert bool(mixture_log_odds(z, torch.zeros(len(z), dtype=torch.int64), 2).isfinite().all())


def traced(p: Tensor, labels: Tensor) -> md.Trace:
    trace = md.Trace(*p.shape)
    trace(p.log(), labels, torch.arange(len(p)))
    return trace


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
    assert columns["predicted_label"] == ["abcd"[label] for label in p.argmax(1).tolist()]
    assert sorted(columns["rank"]) == list(range(1, 401))
    worst = columns["rank"].index(1)
    assert columns["label_quality"][worst] == min(columns["label_quality"])
    assert columns["is_label_issue"] == [quality < 0.5 for quality in columns["label_quality"]]
    assert "z" not in columns
    assert found.order[0] == worst


def test_by_z_alone_nothing_is_suggested() -> None:
    optimizer = md.RMD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, lam=1.0, num_samples=100)
    optimizer.aux.values.copy_(torch.cat([torch.randn(80) * 0.1, 3 + torch.randn(20) * 0.1]))
    found = md.audit(optimizer, torch.arange(100) % 2)
    assert found.columns()["predicted_label"] == [None] * 100
    assert found.issue.nonzero()[:, 0].tolist() == list(range(80, 100))
    assert found.noise == pytest.approx(0.2, abs=0.02)
    with_trace = md.audit(optimizer, torch.arange(100) % 2, trace=md.Trace(100, 2))
    assert with_trace.z is not None


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
