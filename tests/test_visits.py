"""An epoch's visits: every sample at most once, drawn from the seed and the epoch alone; crops are crops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from mirrordescent.lab.visits import PADDING, cropped, edged, mixed, padded, visits


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 5))
def test_every_sample_at_most_once(n: int, batch: int, epoch: int) -> None:
    plan = visits(n, batch, seed=1, epoch=epoch)
    assert plan.index.shape == (n // batch, batch)
    assert len(plan.index.unique()) == plan.index.numel()
    assert torch.equal(plan.index, visits(n, batch, seed=1, epoch=epoch).index)


def test_epochs_and_seeds_differ_and_augmentation_leaves_the_order() -> None:
    plan = visits(100, 10, seed=0, epoch=1, augment="crop-flip")
    assert not torch.equal(plan.index, visits(100, 10, seed=0, epoch=2).index)
    assert not torch.equal(plan.index, visits(100, 10, seed=1, epoch=1).index)
    assert torch.equal(plan.index, visits(100, 10, seed=0, epoch=1).index)
    assert 0 < plan.flip.float().mean() < 1
    assert set(plan.top.flatten().tolist()) == set(range(2 * PADDING + 1))
    assert not visits(100, 10, seed=0, epoch=1, augment="crop").flip.any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_crop_is_the_image_moved_and_mirrored(dtype: torch.dtype) -> None:
    """Against a crop made by hand with slices."""
    images = torch.randint(1, 255, (6, 3, 5, 7)).to(dtype)
    whole = padded(images)
    index, flip = torch.tensor([4, 0, 4, 2]), torch.tensor([True, False, False, True])
    top, left = torch.tensor([0, 2, 4, 1]), torch.tensor([3, 2, 0, 4])
    out = cropped(whole, index, top, left, flip)
    assert out.dtype == dtype
    for k in range(4):
        wanted = whole[index[k], :, top[k] : top[k] + 5, left[k] : left[k] + 7]
        assert torch.equal(out[k], wanted.flip(2) if flip[k] else wanted)
    assert torch.equal(out[1], images[0])  # in the middle, not flipped: the image itself


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_around_an_image_its_edge_goes_on(dtype: torch.dtype) -> None:
    images = torch.randint(255, (4, 3, 5, 7)).to(dtype)
    expected = F.pad(images.double(), (PADDING,) * 4, mode="replicate")
    assert torch.equal(edged(images), expected.to(dtype))
    assert torch.equal(edged(images)[:, :, PADDING:-PADDING, PADDING:-PADDING], images)


def test_shares_are_drawn_apart_from_everything_else() -> None:
    plain, mixes = visits(1000, 2, seed=0, epoch=1, augment="crop"), visits(1000, 2, 0, 1, "crop", mixup=0.4)
    assert all(torch.equal(a, b) for a, b in zip(plain.tables[:4], mixes.tables[:4], strict=True))
    assert torch.equal(plain.share, torch.ones(500))
    assert 0.5 <= float(mixes.share.min()) < 0.6 < 0.99 < float(mixes.share.max()) <= 1
    beta = torch.distributions.Beta(0.4, 0.4)
    torch.testing.assert_close(
        (mixes.share * (1 - mixes.share)).mean(), beta.mean**2 - beta.variance, atol=0.01, rtol=0
    )
    assert not torch.equal(mixes.share, visits(1000, 2, 0, 2, "crop", mixup=0.4).share)


def test_mixtures_are_the_same_whichever_of_a_pair_comes_first() -> None:
    x, share = torch.randn(6, 3), torch.tensor(0.3)
    torch.testing.assert_close(mixed(x, share), mixed(x, 1 - share).flip(0))
    assert torch.equal(mixed(x, torch.tensor(1.0)), x)


def test_half_of_the_visits_are_flipped_and_places_are_independent() -> None:
    drawn = visits(10_000, 100, 0, 1, "crop-flip")
    assert abs(float(drawn.flip.double().mean()) - 0.5) < 5 * 0.5 / 100
    places = torch.stack([drawn.top.flatten(), drawn.left.flatten()]).double()
    assert abs(float(torch.corrcoef(places)[0, 1])) < 0.05


def test_without_augmentation_a_crop_is_the_picture() -> None:
    x, drawn = torch.rand(4, 1, 5, 5), visits(4, 4, 0, 1)
    assert torch.equal(cropped(padded(x), *(table[0] for table in drawn.tables[:4])), x[drawn.index[0]])
