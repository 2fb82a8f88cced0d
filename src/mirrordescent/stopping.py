"""When to stop: the rules of the paper's appendix, asked once per epoch."""

from __future__ import annotations

import math

from mirrordescent.inputs import number


class StopOnPlateau:
    """Stop when a value has not fallen by more than `relative` of its lowest over `patience` consecutive calls.

    Lower is better: of an accuracy, give 1 − accuracy. The paper watches Σ|z − √(2L)| for RMD and the total loss for
    weight decay, with 0.01 % and 500 epochs, for runs of up to thousands; shorter ones need less patience.

    `state_dict()` and `load_state_dict()` carry the rule over to a resumed run.

    Raises TypeError for settings and values that are no numbers, ValueError for a relative outside [0, 1) or a patience
    that is not a whole number >= 1.

    >>> import mirrordescent as md
    >>> stop = md.StopOnPlateau(relative=0.01, patience=2)
    >>> [stop(value) for value in (10.0, 9.0, 8.99, 8.98)]
    [False, False, False, True]
    """

    def __init__(self, relative: float = 1e-4, patience: int = 500) -> None:
        if not 0 <= number("relative", relative) < 1:
            raise ValueError(f"relative must be in [0, 1), got {relative}")
        if not 1 <= number("patience", patience) < math.inf or patience != int(patience):
            raise ValueError(f"patience must be a whole number >= 1, got {patience}")
        self.relative, self.patience = float(relative), int(patience)
        self.best, self.waited = math.inf, 0

    def __call__(self, value: float) -> bool:
        """Take this epoch's value (lower is better; NaN is no improvement); True means stop."""
        value = number("value", value)
        if value < self.best - self.relative * abs(self.best) or (self.best == math.inf and value < math.inf):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, float | int]:
        """Where the rule stands, so that a resumed run stops when an uninterrupted one would."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Go on from `state_dict()`."""
        self.best, self.waited = float(state["best"]), int(state["waited"])


class StopOnInterpolation:
    """Stop when the training accuracy, a fraction in [0, 1], is 1: the paper's rule for SGD.

    >>> import mirrordescent as md
    >>> stop = md.StopOnInterpolation()
    >>> stop(0.9999), stop(1.0)
    (False, True)
    """

    def __call__(self, value: float) -> bool:
        """Take this epoch's training accuracy; True means stop."""
        value = number("value", value)
        if value > 1 + 1e-4:  # a mean of float32 numbers may round to a little more than 1
            raise ValueError(f"the accuracy is a fraction in [0, 1], got {value} (a percentage? divide it by 100)")
        return value >= 1

    def state_dict(self) -> dict[str, float | int]:
        """Nothing: the rule has no memory. It is here so that every rule is saved the same way."""
        return {}

    def load_state_dict(self, state: dict[str, float | int]) -> None:
        """Nothing to restore."""
