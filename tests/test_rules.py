"""Algorithms 1 and 2, and what a penalty's slope has to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mirrordescent as md
from mirrordescent.rules import PENALTIES, batch_rule


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_has_no_favourite_side(name: str) -> None:
    r = torch.linspace(-5, 5, 41)
    torch.testing.assert_close(PENALTIES[name](-r), -PENALTIES[name](r))


@pytest.mark.parametrize("penalty", [lambda r: r + 1, lambda r: torch.cat([r, r])], ids=["not 0 at 0", "shape"])
def test_what_is_no_slope_is_refused(penalty: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="penalty"):
        md.RMD([nn.Parameter(torch.ones(1))], 0.1, 1.0, 1, penalty=penalty)


def test_a_batch_is_what_its_good_samples_are() -> None:
    losses, z, bad = torch.rand(5), torch.rand(5), torch.tensor([False, True, False, False, True])
    for some, good in zip(batch_rule(losses, z, 1e-7, bad), batch_rule(losses[~bad], z[~bad], 1e-7), strict=True):
        torch.testing.assert_close(some[:3], good)
    assert all(bool(found.isfinite().all()) for found in batch_rule(losses, z, 1e-7, torch.ones(5).bool()))
