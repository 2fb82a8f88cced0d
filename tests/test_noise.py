"""Label noise: the rates it promises, the same draws everywhere, and what it refuses."""

from __future__ import annotations

from pathlib import Path

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


def test_labels_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("1\n0\n2\n")
    noisy = corrupt(torch.tensor([0, 0, 2]), 3, Noise("file", path=str(path)))
    assert noisy.labels.tolist() == [1, 0, 2]
    assert noisy.changed.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="holds 3 labels, but there are 2 samples"):
        corrupt(torch.tensor([0, 0]), 3, Noise("file", path=str(path)))
    path.write_text("1\n0\n7\n")
    with pytest.raises(ValueError, match=r"line 3: '7' is not a class in \[0, 3\)"):
        corrupt(torch.tensor([0, 0, 2]), 3, Noise("file", path=str(path)))


def test_a_file_may_name_the_classes_of_all_rows_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("red fox\nwolf\n\nwolf\nred fox\n\n", encoding="utf-8")
    noise, true, rows = Noise("file", path=str(path)), torch.tensor([0, 1, 0]), torch.tensor([0, 3, 4])

    def read(names: tuple[str, ...] = ("red fox", "wolf"), there: int = 6) -> list[int]:
        return corrupt(true, 2, noise, names=names, rows=rows, there=there).labels.tolist()

    assert read() == read(there=5) == [0, 1, 0]  # whether the last row has no label or the file an empty line
    with pytest.raises(ValueError, match="holds 5 labels, but there are 3 samples to train on, of 8 in the data's own"):
        read(there=8)
    with pytest.raises(ValueError, match=r"line 4: 'wolf' is not one of red fox, fox, nor a number in \[0, 2\)"):
        read(("red fox", "fox"))
    path.write_text("1\n2\n2\n")
    assert read(("1", "2")) == [0, 1, 1]  # their own names, before numbers
    path.write_text("1\n01\n0\n")
    assert read(("1", "2")) == [1, 1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "unifrom"}, "noise kind must be one of"),
        ({"kind": "uniform", "rate": 1.2}, r"rate must be in \[0, 1\], got 1.2"),
        ({"kind": "file"}, "path goes with kind 'file'"),
        ({"kind": "pair", "path": "x"}, "path goes with kind 'file'"),
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


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2"):
        corrupt(torch.tensor([0, 2]), 2, Noise())
    path = tmp_path / "labels.txt"
    for word in ("2", "²"):
        path.write_text(f"0\n{word}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=f"line 2: '{word}' is not a class"):
            corrupt(torch.tensor([0, 1]), 2, Noise("file", path=str(path)))


def test_one_class_has_no_other() -> None:
    with pytest.raises(ValueError, match="class"):
        corrupt(torch.zeros(3, dtype=torch.int64), 1, Noise("instance", 0.5), torch.randn(3, 2))
