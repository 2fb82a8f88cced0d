"""How likely a label is wrong: the estimates where the truth is known, their laws and symmetries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from predictions import known, traced
from sklearn.metrics import average_precision_score
from torch import Tensor

import mirrordescent as md
from mirrordescent import suspicion
from mirrordescent.lab.evaluation import auroc
from mirrordescent.suspicion import (
    confident,
    evidence,
    log_odds,
    mistaken,
    mixture_log_odds,
    share_counted,
    share_wrong,
)


@pytest.mark.parametrize("margin", [4.0, 8.0])
@pytest.mark.parametrize("n", [60, 120, 600])
def test_contradictions_are_wrong_labels_where_a_network_is_sure_and_right(n: int, margin: float) -> None:
    """Equally sure of all samples: then most temperatures explain the labels about as well, and chance must not choose.

    Without a prior, half of the wrong labels and more were taken for the network's mistakes.
    """
    found, wrong = 0.0, 0.0
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        true = torch.randint(2, (n,), generator=draw)
        labels = torch.where(torch.rand(n, generator=draw) < 0.15, 1 - true, true)
        sure = margin + 0.1 * torch.randn(n, generator=draw, dtype=torch.float64)
        found += share_wrong(torch.sigmoid(torch.stack([sure, -sure], 1) * (1 - 2 * true[:, None])), labels)
        wrong += float((labels != true).double().mean())
    assert 0.8 * wrong < found <= wrong


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
    score = mixture_log_odds(z, torch.zeros(400, dtype=torch.int64))
    assert bool((score.diff() >= -1e-9).all())


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 0.45), st.floats(0.01, 0.9))
def test_a_share_from_elsewhere_moves_all_alike(seed: int, classes: int, rate: float, share: float) -> None:
    p, labels, _ = known(seed, classes=classes, rate=rate)
    found = md.Audit(labels, log_odds(p, labels), p)
    again = found.with_share(share)
    assert again.noise == pytest.approx(share, abs=1e-6)
    assert float((again.score - found.score).std()) < 1e-9
    assert torch.equal(again.given, labels)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\], got 1.1"):
        found.with_share(1.1)
    alone = md.Audit(labels, found.score).with_share(share)
    assert torch.equal(alone.score, again.score)


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 0.45))
def test_where_the_network_knows_the_truth_the_share_is_exact(seed: int, classes: int, rate: float) -> None:
    _, labels, true = known(seed, classes=classes, rate=rate)
    p = torch.nn.functional.one_hot(true, classes).double()
    right = labels == true
    if len(labels[right].unique()) == len(labels.unique()):  # else nothing says what a class looks like
        assert share_counted(p, labels) == pytest.approx(1 - float(right.double().mean()))
        found = md.Audit(labels, log_odds(p, labels), p)
        for label, share in enumerate(found.noise_by_class.tolist()):
            here = labels == label
            assert share == pytest.approx(1 - float(right[here].double().mean()) if bool(here.any()) else 0, abs=0.01)


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 0.4))
def test_probabilities_add_up(seed: int, classes: int, rate: float) -> None:
    p, labels, _ = known(seed, classes=classes, rate=rate)
    found = md.Audit(labels, log_odds(p, labels), p)
    assert found.noise == pytest.approx(max(share_counted(p, labels), 1e-6), abs=1e-9)
    members = torch.bincount(labels, minlength=classes)
    assert float((found.noise_by_class * members).sum() / 400) == pytest.approx(found.noise)
    assert bool((found.wrong[found.issue] > 0.5).all())
    assert bool((found.suggested != labels)[found.issue].all())
    agreed = found.suggested == labels
    torch.testing.assert_close(found.confidence[agreed], 1 - found.wrong[agreed])
    assert bool((found.confidence <= found.wrong + 1e-12)[~agreed].all())
    for label in range(classes):
        here = labels == label
        if classes == 2:  # then there is but one other class, and nothing to choose
            assert torch.equal(found.score[here].argsort(), p[here, label].argsort(descending=True))


@given(st.integers(0, 1000), st.integers(2, 5))
def test_the_odds_are_those_that_the_docstring_says(seed: int, classes: int) -> None:
    p, labels, _ = known(seed, n=60, classes=classes, sharp=2.0)
    lift, found = mistaken(confident(p, labels)), evidence(p, labels)
    average = [
        max(1 / classes, float(p[labels == c, c].mean())) if (labels == c).any() else 1.0 for c in range(classes)
    ]
    for i, y in enumerate(labels.tolist()):
        loud = [float(p[i, c]) / average[c] * float(lift[c, y]) for c in range(classes)]
        others = sum(loud) - loud[y]
        assert float(found.odds[i]) == pytest.approx(math.log(others / loud[y]), abs=1e-9)
        best = max((c for c in range(classes) if c != y), key=lambda c: loud[c])
        assert int(found.other[i]) == best
        assert float(found.part[i]) == pytest.approx(loud[best] / others)
        taken = int(p[i].argmax())
        assert int(found.taken[i]) == taken
        assert float(found.taken_part[i]) == pytest.approx(0 if taken == y else loud[taken] / others)


@pytest.mark.parametrize("own", [0.65, 0.9])
def test_a_rare_class_that_is_learnt_late_is_not_flagged_for_a_larger_share(own: float) -> None:
    """Twenty right labels of which the network is not so sure; elsewhere some are wrong."""
    p, labels, true = known(0, n=2000, classes=4, rate=0.2, sharp=6.0)
    rare = (true == 3).nonzero()[:, 0]
    keep = torch.ones(2000, dtype=torch.bool)
    keep[rare[20:]] = False
    labels[labels == 3] = 0
    labels[rare] = 3
    p[rare] = (1 - own) / 3
    p[rare, 3] = own
    p, labels, true = p[keep], labels[keep], true[keep]
    found = md.audit(traced(p, labels), labels)
    for times in (1.0, 1.1, 1.3):
        more = found.with_share(times * found.noise)
        assert not more.issue[labels == 3].any()
        assert float((labels != true)[more.issue].double().mean()) > 0.9


def test_classes_that_were_never_seen_change_nothing_for_the_others() -> None:
    p, labels, _ = known(0, n=2000, rate=0.3)
    seen = (labels < 2).nonzero()[:, 0]
    trace = md.Trace(2000, 4)
    trace(p[seen].log(), labels[seen], seen)
    with pytest.warns(UserWarning, match="the trace has not seen"):
        some = md.audit(trace, labels)
    alone = md.audit(traced(p[seen], labels[seen]), labels[seen])
    torch.testing.assert_close(some.wrong[seen], alone.wrong, atol=1e-6, rtol=1e-4)


@given(st.floats(0.01, 0.9))
def test_a_share_reaches_scores_of_any_width(share: float) -> None:
    score = torch.linspace(-3000, 2000, 501, dtype=torch.float64)
    moved = md.Audit(torch.zeros(501, dtype=torch.int64), score).with_share(share)
    assert moved.noise == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_odds_are_close_to_bayes_own(pairs: bool) -> None:
    """Predictions that are the probabilities of the truth, classes that overlap, a table that the audit is not told."""
    generator = torch.Generator().manual_seed(0)
    n, classes, rate = 20_000, 5, 0.3
    p = (2.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(1)
    true = torch.multinomial(p, 1, generator=generator)[:, 0]
    step = torch.eye(classes, dtype=torch.float64).roll(1, 1)
    table = (1 - rate) * torch.eye(classes) + rate * (step if pairs else torch.full_like(step, 1 / classes))
    labels = torch.multinomial(table[true], 1, generator=generator)[:, 0]
    joint = p * table.T[labels]
    exact = 1 - joint.gather(1, labels[:, None])[:, 0] / joint.sum(1)
    wrong, found = labels != true, md.audit(traced(p, labels), labels)
    judged = (exact, found.score, 1 - p.gather(1, labels[:, None])[:, 0])
    best, ours, plain = (auroc(score, wrong) or 0.0 for score in judged)
    assert ours > best - 0.015
    if pairs:  # 0.958, 0.945 and 0.926
        assert ours > plain + 0.015
    found = found.with_share(float(wrong.double().mean()))  # where classes overlap too many are counted
    guesses = (joint.argmax(1), torch.where(found.issue, found.suggested, labels), labels, p.argmax(1))
    best, ours, given, plain = (float((guess == true).double().mean()) for guess in guesses)
    assert ours > best - 0.04
    assert ours > max(given, plain) + 0.05


def test_three_mistakes_do_not_hide_a_fourth_of_another_kind() -> None:
    """Of ten classes fours were thrice called ones; a plain seven that is called one is as wrong as they are."""
    p, labels, true = known(0, n=5000, classes=10, rate=0.0, sharp=7.0)
    fours, seven = (true == 4).nonzero()[:3, 0], (true == 7).nonzero()[0, 0]
    labels[fours] = labels[seven] = 1
    p[seven] = torch.full((10,), 0.02 / 8, dtype=p.dtype)
    p[seven, 7], p[seven, 1] = 0.9, 0.08  # not as sure as of most sevens: it does not count itself
    assert float(mistaken(confident(p, labels))[4, 1]) > 2
    found = md.audit(traced(p, labels), labels)
    assert set(found.order[:4].tolist()) == {*fours.tolist(), int(seven)}
    assert found.suggested[seven] == 7


@pytest.mark.parametrize(("rate", "classes"), [(0.005, 10), (0.05, 10), (0.2, 50)])
def test_where_chance_chooses_the_wrong_labels_nothing_is_lost(rate: float, classes: int) -> None:
    """Against odds that know nothing of which class is mistaken for which."""
    for seed in range(3):
        p, labels, true = known(seed, n=5000, classes=classes, rate=rate, sharp=5.0)
        found, wrong = md.audit(traced(p, labels), labels), labels != true
        own = p.gather(1, labels[:, None])[:, 0]
        plain = p.scatter(1, labels[:, None], 0.0).amax(1) / own
        ours, theirs = (average_precision_score(wrong, score) for score in (found.score, plain))
        assert ours > theirs - 0.01


@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0, 5))
def test_what_chance_would_count_is_no_pattern(seed: int, classes: int, few: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(50, 5000, (classes, 1), generator=generator).double()
    even = sizes * torch.full((classes, classes), 0.01 * few)
    assert torch.allclose(mistaken(even), torch.ones(()).double(), atol=0.02)
    pairs = torch.diag(sizes[:, 0]) + torch.diag(0.5 * sizes[:, 0]).roll(1, 1)
    found = mistaken(pairs)
    if classes > 2:
        assert bool((found.diagonal(1) > 1).all())
        assert bool((found.diagonal(-1)[: classes - 2] < 0.5).all())


@pytest.mark.parametrize(("p_type", "score_type"), [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_ones_own_audit_may_mix_types(p_type: torch.dtype, score_type: torch.dtype) -> None:
    p, labels, _ = known(0)
    found = md.Audit(labels, log_odds(p, labels).to(score_type), p.to(p_type))
    assert bool((found.with_share(0.5).confidence > 0).all())
    assert len(found.columns()["confidence"]) == 400


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
    assert not (mixture_log_odds(z, labels) > 0).any()
    assert not (mixture_log_odds(-z, labels) > 0).any()  # nor is a tail to the other side a hill


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
    assert found.issue.nonzero()[:, 0].tolist() in ([], [5])


def test_a_sample_that_was_never_seen_has_the_share_of_all() -> None:
    p, labels, _ = known(0)
    trace = md.Trace(400, 4)
    trace(p[:390].log(), labels[:390], torch.arange(390))
    found = md.audit(trace, labels)
    assert torch.allclose(found.wrong[390:], torch.tensor(found.noise).double(), atol=1e-9)
    mostly = found.with_share(0.9)
    assert bool((mostly.wrong[390:] > 0.5).any())
    assert not mostly.issue[390:].any()
    assert torch.equal(mostly.suggested[390:], labels[390:])
    assert not mostly.confidence[390:].any()
    assert bool(mostly.confidence.isfinite().all())


@given(st.integers(0, 1000))
def test_neither_the_order_nor_the_classes_numbers_matter(seed: int) -> None:
    p, labels, _ = known(seed)
    generator = torch.Generator().manual_seed(seed)
    shuffle, renamed = torch.randperm(400, generator=generator), torch.randperm(4, generator=generator)
    score = log_odds(p, labels)
    other = log_odds(p[shuffle], labels[shuffle])
    torch.testing.assert_close(other, score[shuffle])
    names = renamed.argsort()  # class c is now called names[c]
    again = log_odds(p[:, renamed], names[labels])
    torch.testing.assert_close(again, score)


@given(st.integers(0, 1000), st.sampled_from([1, 5, 30, 300]), st.integers(1, 4), st.floats(0, 0.3))
def test_z_alone_ranks_the_labels_of_a_class(seed: int, n: int, classes: int, rate: float) -> None:
    """Whether or not the wrong ones are a hill of their own; where they are none, nothing is flagged."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    z = torch.randn(n, generator=generator) + 4 * (torch.rand(n, generator=generator) < rate) + labels
    score = mixture_log_odds(z, labels)
    for label in labels.unique().tolist():
        here = labels == label
        assert torch.equal(score[here].argsort(), z[here].argsort())


def test_a_few_outliers_are_first_and_nothing_is_flagged() -> None:
    z = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(2000) % 2
    z[7], z[1000] = 6.0, 5.0
    score = mixture_log_odds(z + 3 * labels, labels)
    assert score.argsort(descending=True)[:2].tolist() == [7, 1000]
    assert not (score > 0).any()


@pytest.mark.parametrize("width", [0.3, 1.0, 1.5])
def test_a_class_without_wrong_labels_is_not_flagged_by_what_others_have(width: float) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4000) % 10
    noisy = (labels < 8) & (torch.rand(4000, generator=generator) < 0.2)
    z = torch.randn(4000, generator=generator) * torch.where(labels < 8, 0.3, width) + 3.0 * noisy
    score = mixture_log_odds(z, labels)
    assert not (score[labels >= 8] > 0).any()
    assert float((score > 0).eq(noisy).double().mean()) > 0.99


def test_what_most_have_is_no_hill_of_wrong_labels() -> None:
    """Of two parts the second may come to lie below the first."""
    z = torch.cat([torch.zeros(960), torch.rand(40, generator=torch.Generator().manual_seed(0))])
    assert not (mixture_log_odds(z, torch.zeros(1000, dtype=torch.int64))[:960] > 0).any()


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_mixture_of_z(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(3000, generator=generator) < share
    labels = torch.randint(3, (3000,), generator=generator)
    z = torch.randn(3000, generator=generator) + 5 * wrong + labels  # each class has a level of its own
    probability = torch.sigmoid(mixture_log_odds(z, labels))
    assert float(probability.mean()) == pytest.approx(float(wrong.double().mean()), abs=0.02)
    assert float((probability > 0.5).eq(wrong).double().mean()) > 0.97


@pytest.mark.parametrize(
    "z", [torch.zeros(30), torch.zeros(1), torch.tensor([0.0] * 29 + [1e6])], ids=["0", "one", "far"]
)
def test_a_mixture_of_nearly_nothing(z: Tensor) -> None:
    assert bool(mixture_log_odds(z, torch.zeros(len(z), dtype=torch.int64)).isfinite().all())


@pytest.mark.parametrize("many", [4, 400, 1601])
def test_many_samples_are_judged_piece_by_piece(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p, labels, _ = known(0)
    whole = evidence(p, labels)
    monkeypatch.setattr(suspicion, "MANY", many)
    for piece, expected in zip(evidence(p, labels), whole, strict=True):
        torch.testing.assert_close(piece, expected, rtol=1e-12, atol=0)


def test_a_share_is_counted_on_samples_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many, some are drawn; the first ones may all be of one class."""
    p, true, _ = known(0, n=3000, rate=0.0)
    labels = torch.where((true == 2) & (torch.arange(3000) % 2 == 0), 3, true)  # wrong in the last class alone
    order = labels.argsort()
    monkeypatch.setattr(suspicion, "MANY", 4000)
    found = share_wrong(p[order], labels[order])
    assert found == pytest.approx(float((labels != true).double().mean()), abs=0.05)


def test_an_exact_tie_counts_for_the_other_class() -> None:
    p = torch.full((2, 2), 0.5, dtype=torch.float64)
    assert suspicion.confident(p, torch.tensor([0, 1]))[0, 1] == 1


def test_more_samples_than_a_quantile_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so manieth is enough to begin with, and the fit is about the same."""
    z = torch.cat([torch.randn(4000), 6 + torch.randn(1000)]).double()
    y = torch.zeros(5000, dtype=torch.int64)
    exact = suspicion.mixture_log_odds(z, y)
    monkeypatch.setattr(suspicion, "MANY", 700)
    assert float((suspicion.mixture_log_odds(z, y).sigmoid() - exact.sigmoid()).abs().mean()) < 0.01
