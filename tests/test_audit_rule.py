"""An audit holds long rows down: among hundreds of inputs, a row would be learnt by heart, wrong label and all."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrordescent.lab.audit.auditing import Asked, audit_data, held_down
from mirrordescent.lab.audit.rule import variance
from mirrordescent.lab.data import Data, Scaling
from mirrordescent.lab.data.builtin import digits
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place


@pytest.mark.parametrize("fading", [0.0, 0.5])
@pytest.mark.parametrize("rows", [300, 1000])
def test_more_wrong_labels_are_found_among_hundreds_of_inputs(
    rows: int, fading: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As embeddings have, in which the first inputs often say the most. Training sees the data as they were read."""
    draw = np.random.default_rng(0)
    right = draw.integers(0, 4, rows)
    wrong = draw.random(rows) < 0.15
    given = np.where(wrong, (right + draw.integers(1, 4, rows)) % 4, right)
    centres = 0.3 * draw.normal(size=(4, 200))
    x = (centres[right] + draw.normal(size=(rows, 200))) * (1 + np.arange(200)) ** -fading
    np.savez(tmp_path / "a.npz", x=x, y=given)
    found = []
    for kept in ("as the rule says", "as they are"):
        if kept == "as they are":
            monkeypatch.setattr("mirrordescent.lab.audit.auditing.variance", lambda *_: math.inf)
        asked, keeping = Asked(no_check=True), Keeping(tmp_path / kept)
        audited = audit_data(str(tmp_path / "a.npz"), asked, keeping, Place("cpu"))
        torch.testing.assert_close(audited.whole.data.inputs.std(dim=0, correction=0), torch.ones(200))
        found.append(audited.found)
    held, free = (
        (one.issue.numpy()[wrong].mean(), np.square(one.wrong.numpy() - wrong).mean(), abs(one.noise - wrong.mean()))
        for one in found
    )
    assert held[0] > free[0] + 0.1  # recall
    assert held[1] < free[1]  # the mean square of probabilities less truth
    assert held[2] < free[2]  # the estimated share less the true one


@given(st.integers(2, 60), st.integers(1, 80), st.floats(1e-3, 1e3), st.integers(0, 3))
def test_rows_are_brought_to_the_variance_of_the_rule(n: int, inputs: int, size: float, constant: int) -> None:
    """By one factor for all, test rows too; shorter rows stay as they are. Constant inputs do not count."""
    draw = torch.Generator().manual_seed(n)
    x = torch.cat([size * torch.randn(n, inputs, generator=draw), torch.zeros(n, constant)], dim=1)
    data = Data("a", x, torch.arange(n) % 2, -2 * x[:1], torch.tensor([1]), classes=2)
    held = held_down(data)
    scaled, test = (Scaling(held, torch.device("cpu"))(part) for part in (x, data.test_inputs))
    before, after = (float(part.double().var(dim=0, correction=0).sum()) for part in (x, scaled))
    assert after == pytest.approx(min(before, variance(n, inputs)), rel=1e-4)
    torch.testing.assert_close(test, -2 * scaled[:1])
    assert held_down(held) is held
    assert (held is data) == (before <= variance(n, inputs))


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_more_rows_may_be_longer_and_more_inputs_may_not(n: int, inputs: int) -> None:
    assert 0 < variance(n, inputs) <= variance(2 * n, inputs)
    assert variance(n, 2 * inputs) <= variance(n, inputs)
    assert n < 1000 * 50 or variance(n, 50) >= 50  # as they are: standardised


def test_images_and_rows_with_a_scale_of_their_own_stay_as_they_are() -> None:
    pixels = digits()
    assert held_down(pixels) is pixels
    data = Data("a", 100 * torch.randn(9, 30), torch.arange(9) % 2, torch.zeros(1, 30), torch.tensor([0]), classes=2)
    own = dataclasses.replace(data, mean=(0.0,) * 30, std=(1.0,) * 30)
    assert held_down(own) is own
    assert held_down(data) is not data
