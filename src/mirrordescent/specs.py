"""The names of potentials: what `potential="2 * l2 + q=3"` means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any

from mirrordescent.base import Potential, Scaled, Sum
from mirrordescent.potentials import (
    L1,
    L2,
    HyperbolicEntropy,
    LInf,
    NegativeEntropy,
    QNorm,
    Quadratic,
    SquaredNorm,
)

# name: (constructor without a number, constructor with `name=number`)
_NAMES: dict[str, tuple[Callable[[], Potential] | None, Callable[[float], Potential] | None]] = {
    "l2": (L2, None),
    "l1": (L1, L1),
    "linf": (LInf, LInf),
    "q": (None, QNorm),
    "entropy": (NegativeEntropy, None),
    "hypentropy": (HyperbolicEntropy, HyperbolicEntropy),
    "quadratic": (None, Quadratic),
    "squarednorm": (None, SquaredNorm),
}
_CLASSES = {make for makes in _NAMES.values() for make in makes}
_KNOWN = "'l2', 'l1', 'linf', 'q=3' (any number > 1), 'entropy', 'hypentropy', 'quadratic=0.5', 'squarednorm=1.5'"
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_TERM = re.compile(rf"\s*(?:({_NUMBER})\s*\*\s*)?(?:\(([^()]*)\)|([a-z][a-z0-9]*)\s*(?:=\s*({_NUMBER}))?)\s*")


def _unknown(spec: str, name: str = "") -> ValueError:
    joined = re.sub("[-_ ]", "", spec)  # l-inf is linf
    near = [joined] if joined in _NAMES else difflib.get_close_matches(name or spec, _NAMES, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near and near[0] != name else ""
    return ValueError(
        f"unknown potential {spec!r}{hint}. Known: {_KNOWN}, their sums 'l2 + q=3' and multiples '2 * l2', "
        "or a md.Potential object"
    )


def _parse(spec: str) -> Potential:
    parts: list[Potential] = []
    position = 0
    while True:
        match = _TERM.match(spec, position)
        if match is None or not match.group(0).strip():
            raise _unknown(spec)
        factor, inner, name, number = match.groups()
        if inner is not None:
            part = _parse(inner)
        else:
            plain, with_number = _NAMES.get(name, (None, None))
            make: Any = with_number if number is not None else plain
            if make is None:
                raise _unknown(spec, name)
            part = make(float(number)) if number is not None else make()
        parts.append(part if factor is None else float(factor) * part)
        position = match.end()
        if position == len(spec):
            return parts[0] if len(parts) == 1 else Sum(parts)
        if spec[position] != "+":
            raise _unknown(spec)
        position += 1


def potential(spec: str | Potential) -> Potential:
    """A `Potential` from its name, or the potential itself, passed through.

    Raises ValueError for an unknown name (the message lists the known ones), TypeError for anything else.

    >>> import mirrordescent as md
    >>> md.potential("q=3")
    <potential q=3.0>
    >>> md.potential("2 * l2 + linf").spec
    '2.0 * l2 + linf'
    """
    if isinstance(spec, Potential):
        return spec
    if isinstance(spec, type) and issubclass(spec, Potential):
        ours = "md." if spec.__module__.partition(".")[0] == "mirrordescent" else ""
        raise TypeError(f"potential must be an object, not the class: {ours}{spec.__name__}(...)")
    if callable(spec):
        raise TypeError("potential must be a string or a md.Potential; a function of your own goes into md.Convex(...)")
    if not isinstance(spec, str):
        raise TypeError(f"potential must be a string or a md.Potential, got {type(spec).__name__}. Known: {_KNOWN}")
    return _parse(spec.strip().lower())


def is_named(psi: Potential) -> bool:
    """Whether the spec alone restores the potential from a checkpoint (not so for a user's own class)."""
    if isinstance(psi, Sum):
        return all(map(is_named, psi.parts))
    return is_named(psi.base) if isinstance(psi, Scaled) else not psi.live and type(psi) in _CLASSES
