"""RMD's settings that hold for all groups: kept as plain data in the first parameter group, beside z."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from mirrordescent.inputs import number, one_of
from mirrordescent.rules import PENALTIES

REDUCTIONS = ("sample", "batch")
CONVENTIONS = ("paper", "objective")
MOMENTUM_RULES = ("dense", "scaled")
SETTINGS = ("lam", "num_samples", "reduction", "penalty", "lam_convention", "momentum_rule", "eps", "max_norm")
CUSTOM = "custom"  # stands for a user's own penalty, a function that plain data cannot hold


def checked_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, from the constructor or from a checkpoint, with their numbers as plain Python ones.

    Raises ValueError or TypeError if one makes no sense.
    """
    settings = {key: given[key] for key in SETTINGS}
    one_of("reduction", settings["reduction"], REDUCTIONS)
    one_of("lam_convention", settings["lam_convention"], CONVENTIONS)
    one_of("momentum_rule", settings["momentum_rule"], MOMENTUM_RULES)
    settings["lam"] = checked_lam(settings["lam"])
    settings["num_samples"] = samples = _integer("num_samples", settings["num_samples"])
    if samples <= 0:
        raise ValueError(f"num_samples must be > 0, got {samples}; it is the length of the training set")
    settings["eps"] = eps = _number_or_none("eps", settings["eps"])
    if eps is not None and not 0 <= eps < math.inf:
        raise ValueError(f"eps must be a finite number >= 0, or None for the losses' machine epsilon, got {eps}")
    settings["max_norm"] = max_norm = _number_or_none("max_norm", settings["max_norm"])
    if max_norm is not None and not 0 < max_norm < math.inf:
        raise ValueError(f"max_norm must be > 0 and finite, or None for no clipping, got {max_norm}")
    if settings["penalty"] != CUSTOM:
        one_of("penalty", settings["penalty"], tuple(PENALTIES), or_else="or a function that returns the slope")
    return settings


def checked_lam(lam: object) -> float:
    """λ as a float. Raises ValueError or TypeError for one that makes no sense."""
    value = number("lam", lam)
    if not value > 0:
        raise ValueError(f"lam must be > 0 (or inf for SMD), got {value}")
    return value


def check_momentum(momentum: float) -> None:
    """Raises ValueError for a momentum of 1 or more, which z cannot follow."""
    if momentum >= 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return operator.index(value)


def _number_or_none(name: str, value: object) -> float | None:
    return None if value is None else number(name, value)
