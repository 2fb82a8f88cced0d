"""Parts of messages: the nearest valid name, lists that stay short, an error in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, known: Iterable[str]) -> str:
    """Say " (did you mean 'mnist'?)" for 'mnits', or nothing."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def unknown(what: str, word: str, known: Iterable[str]) -> ValueError:
    """The error for a word that is none of those known.

    >>> print(unknown("model", "ccn", ["cnn", "mlp"]))
    unknown model 'ccn' (did you mean 'cnn'?); known: cnn, mlp
    """
    known = list(known)
    return ValueError(f"unknown {what} {word!r}{nearest(word, known)}; known: {', '.join(known)}")


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some of the names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def first_line(error: BaseException) -> str:
    r"""What went wrong, in one line.

    >>> first_line(ValueError("lr must be > 0\nmore")), first_line(KeyError())
    ('lr must be > 0', 'KeyError')
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__
