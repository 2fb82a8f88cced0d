from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mirrordescent as md


def epochs_until_stop(stop: md.StopOnPlateau, values: list[float]) -> int | None:
    return next((k for k, value in enumerate(values) if stop(value)), None)


def test_stops_after_patience_epochs_without_improvement() -> None:
    assert epochs_until_stop(md.StopOnPlateau(1e-4, 500), [1.0] * 2000) == 500


def test_slow_steady_improvement_goes_on() -> None:
    values = [math.exp(-1e-5 * k) for k in range(5000)]  # 0.5 % over 500 epochs
    assert epochs_until_stop(md.StopOnPlateau(1e-4, 500), values) is None


def test_improvement_below_the_threshold_stops() -> None:
    values = [math.exp(-1e-8 * k) for k in range(5000)]
    assert epochs_until_stop(md.StopOnPlateau(1e-4, 500), values) == 500


def test_an_improvement_below_zero_is_one() -> None:
    assert epochs_until_stop(md.StopOnPlateau(0.01, patience=2), [-10.0, -10.05, -10.2, -10.25, -10.26]) == 4


def test_nan_is_no_improvement() -> None:
    assert epochs_until_stop(md.StopOnPlateau(patience=3), [math.nan] * 10) == 2
    assert epochs_until_stop(md.StopOnPlateau(patience=3), [1.0, *[math.nan] * 10]) == 3


def test_resumed_rule_stops_at_the_same_epoch() -> None:
    first, second = md.StopOnPlateau(patience=5), md.StopOnPlateau(patience=5)
    for value in (3.0, 2.0, 2.0, 2.0):
        assert not first(value)
    second.load_state_dict(first.state_dict())
    assert [second(2.0) for _ in range(3)] == [False, False, True]


def test_interpolation() -> None:
    stop = md.StopOnInterpolation()
    assert not stop(0.99998)
    assert stop(1.0)
    assert stop(1.0000001)  # a mean in float32
    stop.load_state_dict(stop.state_dict())
    with pytest.raises(ValueError, match="fraction in"):
        stop(97.5)


@pytest.mark.parametrize("bad", [{"relative": -1}, {"relative": 1}, {"patience": 0}, {"patience": 1.5}])
def test_bad_settings(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        md.StopOnPlateau(**bad)  # type: ignore[arg-type]


def test_what_is_no_number_is_told() -> None:
    for name in ("relative", "patience"):
        with pytest.raises(TypeError, match=f"{name} must be a number, got '3'"):
            md.StopOnPlateau(**{name: "3"})  # type: ignore[arg-type]
    rules: list[Any] = [md.StopOnPlateau(), md.StopOnInterpolation()]
    for stop in rules:
        for value in ("0.5", True, None):
            with pytest.raises(TypeError, match=f"value must be a number, got {value!r}"):
                stop(value)
        assert stop(torch.tensor(0.5)) is False


def test_of_an_accuracy_its_complement_is_given() -> None:
    """Lower is better."""
    rising = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert epochs_until_stop(md.StopOnPlateau(patience=3), rising) == 3
    assert epochs_until_stop(md.StopOnPlateau(patience=3), [1 - accuracy for accuracy in rising]) is None


@pytest.mark.parametrize(("value", "relative"), [(0.0, 1e-4), (1.0, 0.0)])
def test_what_stays_is_no_improvement(value: float, relative: float) -> None:
    assert epochs_until_stop(md.StopOnPlateau(relative, patience=3), [value] * 10) == 3


def test_the_defaults_are_the_papers() -> None:
    stop = md.StopOnPlateau()
    assert (stop.relative, stop.patience) == (1e-4, 500)


def test_a_patience_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="patience must be a whole number >= 1, got inf"):
        md.StopOnPlateau(patience=math.inf)  # type: ignore[arg-type]
