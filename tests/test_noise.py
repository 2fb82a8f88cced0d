"""Label noise: the rates it promises, the same draws everywhere, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from mirrordescent.lab.noise import Noise, corrupt

TRUE = torch.arange(100_000) % 10


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize(("kind", "share"), [("uniform", 0.9), ("symmetric", 1.0), ("pair", 1.0)])
def test_the_share_of_wrong_labels(kind: str, share: float, rate: float) -> None:
    noisy = corrupt(TRUE, 10, Noise(kind, rate))
    expected = share * rate
    deviation = (expected * (1 - expected) / len(TRUE)) ** 0.5
    assert abs(float(noisy.changed.float().mean()) - expected) <= 5 * deviation
    assert torch.equal(noisy.changed, noisy.labels != TRUE)
    assert int(noisy.labels.min()) >= 0
    assert int(noisy.labels.max()) < 10


def test_where_wrong_labels_go() -> None:
    pair = corrupt(TRUE, 10, Noise("pair", 0.3))
    assert torch.equal(pair.labels[pair.changed], (TRUE[pair.changed] + 1) % 10)
    for kind in ("uniform", "symmetric"):  # evenly over the nine others
        noisy = corrupt(TRUE, 10, Noise(kind, 0.5))
        shift = (noisy.labels - TRUE)[noisy.changed] % 10
        counts = torch.bincount(shift, minlength=10)[1:].double()
        assert float((counts / counts.mean() - 1).abs().max()) < 0.06


def test_noise_by_instance_depends_on_the_inputs() -> None:
    """The rate is right, and equal inputs of one class are taken for the same other class more often than not."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(20, 30, generator=generator)
    which = torch.randint(20, (40_000,), generator=generator)
    true = which % 10
    noisy = corrupt(true, 10, Noise("instance", 0.3), kinds[which])
    for rate in (0.0, 0.02, 0.1, 0.3, 0.9, 1.0):
        changed = corrupt(true, 10, Noise("instance", rate), kinds[which]).changed
        assert float(changed.float().mean()) == pytest.approx(rate, rel=0.1, abs=1e-9)
    assert torch.equal(noisy.changed, noisy.labels != true)
    shares = []
    for kind in range(20):
        taken = noisy.labels[(which == kind) & noisy.changed]
        shares.append(float(torch.bincount(taken, minlength=10).max() / len(taken)))
    assert sum(shares) / 20 > 0.5  # 1/9 if it did not matter
    again = corrupt(true, 10, Noise("instance", 0.3), kinds[which])
    assert torch.equal(again.labels, noisy.labels)
    assert not torch.equal(corrupt(true, 10, Noise("instance", 0.3, seed=1), kinds[which]).labels, noisy.labels)
    with pytest.raises(ValueError, match="'instance' needs the inputs"):
        corrupt(true, 10, Noise("instance", 0.3))


def test_a_seed_decides_everything() -> None:
    one, same, other = (corrupt(TRUE, 10, Noise("uniform", 0.4, seed=seed)).labels for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    torch.manual_seed(123)  # the global generator has no say
    assert torch.equal(corrupt(TRUE, 10, Noise("uniform", 0.4, seed=3)).labels, one)


def test_no_noise_changes_nothing() -> None:
    assert torch.equal(corrupt(TRUE, 10, Noise()).labels, TRUE)
    assert corrupt(TRUE.to(torch.int32), 10, Noise()).labels.dtype == torch.int32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "unifrom"}, "noise kind must be one of"),
        ({"kind": "uniform", "rate": 1.2}, r"rate must be in \[0, 1\], got 1.2"),
        ({"kind": "file"}, "noise kind must be one of"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Noise(**settings)  # type: ignore[arg-type]


def test_bad_labels() -> None:
    with pytest.raises(ValueError, match=r"in \[0, 3\), got 0 to 5"):
        corrupt(torch.tensor([0, 5]), 3, Noise("pair", 0.1))
    with pytest.raises(ValueError, match="vector of integers"):
        corrupt(torch.tensor([0.5]), 3, Noise())
    with pytest.raises(ValueError, match="at least two classes"):
        corrupt(torch.tensor([0]), 1, Noise("symmetric", 0.5))


def test_a_label_beyond_the_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="2"):
        corrupt(torch.tensor([0, 2]), 2, Noise())


def test_one_class_has_no_other() -> None:
    with pytest.raises(ValueError, match="class"):
        corrupt(torch.zeros(3, dtype=torch.int64), 1, Noise("instance", 0.5), torch.randn(3, 2))
