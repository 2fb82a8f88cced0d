"""The trace of a network's predictions is the mean over a sample's visits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mirrordescent as md


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(1, 8))
def test_a_trace_is_the_mean_over_the_visits(seed: int, classes: int, batches: int) -> None:
    """A sample may come several times, even in one batch, and its label may change."""
    generator = torch.Generator().manual_seed(seed)
    trace = md.Trace(7, classes)
    margins: dict[int, list[float]] = {}
    shares: dict[int, list[torch.Tensor]] = {}
    for _ in range(batches):
        logits = 2 * torch.randn(4, classes, generator=generator)
        labels = torch.randint(classes, (4,), generator=generator)
        index = torch.randint(7, (4,), generator=generator)
        trace(logits, labels, index)
        for row, label, i in zip(logits, labels.tolist(), index.tolist(), strict=True):
            p = row.softmax(0)
            others = torch.cat([p[:label], p[label + 1 :]])
            margins.setdefault(i, []).append(float(p[label] - others.max()))
            shares.setdefault(i, []).append(p)
    for i in range(7):
        if i not in margins:
            assert not trace.margins[i]
            assert not trace.probabilities[i].any()
            continue
        assert float(trace.margins[i]) == pytest.approx(sum(margins[i]) / len(margins[i]), abs=1e-5)
        torch.testing.assert_close(trace.probabilities[i], torch.stack(shares[i]).mean(0), atol=1e-5, rtol=1e-5)
        assert int(trace.visits[i]) == len(margins[i])


def test_a_trace_goes_on_from_its_state() -> None:
    one, other = md.Trace(5, 3), md.Trace(5, 3)
    batch = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, 2, 3])
    one(*batch)
    other.load_state_dict(one.state_dict())
    one(*batch), other(*batch)
    assert torch.equal(one.margins[:4], other.margins[:4])


def test_a_trace_leaves_the_graph_alone() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    trace = md.Trace(5, 3)
    trace(logits, torch.tensor([0, 1, 2, 0]), torch.arange(4))
    assert not trace.margins.requires_grad


def test_half_precision_is_summed_in_float32() -> None:
    trace = md.Trace(1, 2)
    for _ in range(1000):
        trace(torch.tensor([[1.0, 0.0]], dtype=torch.bfloat16), torch.tensor([0]), torch.tensor([0]))
    p = torch.tensor([1.0, 0.0]).softmax(0)
    assert float(trace.margins[0]) == pytest.approx(float(p[0] - p[1]), rel=1e-4)


@pytest.mark.parametrize(("count", "classes"), [(0, 2), (5, 1)])
def test_a_trace_needs_samples_and_classes(count: int, classes: int) -> None:
    with pytest.raises(ValueError, match=f"got {count} and {classes}"):
        md.Trace(count, classes)


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("kept", [md.Trace(5, 3), md.EarlyLearning(5, 3)], ids=lambda kept: type(kept).__name__)
@pytest.mark.parametrize(
    ("logits", "labels", "index", "told"),
    [
        (torch.zeros(2, 4), LABELS, LABELS, r"logits must have shape \(2, 3\), got \(2, 4\)"),
        (torch.zeros(2), LABELS, LABELS, "logits must have shape"),
        (torch.zeros(2, 3), torch.tensor([0, -100]), LABELS, r"labels must lie in \[0, 3\), got -100"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), LABELS, "got 3"),
        (torch.zeros(2, 3), torch.eye(3)[:2], LABELS, "numbers of classes"),
        (torch.zeros(2, 3), torch.eye(3).long()[:2], LABELS, "numbers of classes"),
        (torch.zeros(2, 3), LABELS, torch.tensor([0]), "one sample number per label"),
    ],
)
def test_what_is_no_batch_is_refused_and_changes_nothing(
    kept: torch.nn.Module, logits: torch.Tensor, labels: torch.Tensor, index: torch.Tensor, told: str
) -> None:
    before = {name: held.clone() for name, held in kept.state_dict().items()}
    with pytest.raises(ValueError, match=told):
        kept(logits, labels, index)
    assert all(torch.equal(held, before[name]) for name, held in kept.state_dict().items())


@pytest.mark.parametrize(("index", "error"), [(0.0, TypeError), (3, IndexError), (-1, IndexError)])
def test_an_index_that_is_none_changes_nothing(index: float, error: type[Exception]) -> None:
    trace = md.Trace(3, 2)
    with pytest.raises(error):
        trace(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([index]))
    assert not trace.visits.any()


def test_a_state_without_visits_is_refused_as_any_module_refuses_it() -> None:
    with pytest.raises(RuntimeError, match=r"Missing key.*visits"):
        md.Trace(5, 3).load_state_dict({})


def test_not_one_of_many_visits_is_lost_by_counting() -> None:
    """float32 holds every whole number up to 2²⁴; their sum is larger."""
    trace = md.Trace(3, 2)
    trace.visits.copy_(torch.tensor([2.0**24, 1.0, 2.0]))
    trace.tried.fill_(2**24 + 3)
    assert trace.lost == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_of_any_integer_type(dtype: torch.dtype) -> None:
    logits, labels, index = torch.randn(4, 3), torch.tensor([0, 2, 1, 2]), torch.arange(4)
    one, other = md.Trace(4, 3), md.Trace(4, 3)
    one(logits, labels, index)
    other(logits, labels.to(dtype), index)
    assert torch.equal(one.margins, other.margins)
    losses = [md.EarlyLearning(4, 3)(logits, held, index) for held in (labels, labels.to(dtype))]
    assert torch.equal(*losses)


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16])
def test_a_trace_in_a_model_that_becomes_narrow_still_counts(narrow: torch.dtype) -> None:
    plain, held = md.Trace(2, 2), md.Trace(2, 2)
    model = torch.nn.Sequential(held).to(narrow)
    for k in range(300):  # which bfloat16 cannot count beyond 256
        logits = torch.tensor([[0.01 * k, 1.0]])
        for trace in (plain, held):
            trace(logits, torch.tensor([0]), torch.tensor([1]))
    assert model[0] is held
    for name, kept in plain.state_dict().items():
        assert torch.equal(held.state_dict()[name], kept)
        assert held.state_dict()[name].dtype == kept.dtype


def test_the_default_type_is_not_a_traces() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert md.Trace(2, 2).visits.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
