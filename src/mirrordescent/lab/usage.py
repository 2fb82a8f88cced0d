"""What was typed wrong, in one line with the nearest valid name."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from mirrordescent.lab.names import nearest
from mirrordescent.lab.runs import parsed

Result = TypeVar("Result")
# a flag is --name, on or off is --name alone, and settings inside settings have no prefix
CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)


class UsageError(ValueError):
    """A command that cannot be understood; the message is one line."""


def called(function: Callable[..., Result], arguments: Sequence[str], prog: str, examples: str) -> Result:
    """Call a function with arguments from the command line, or print its help with the examples, and leave.

    Raises UsageError where the arguments do not fit, ValueError where the settings that they make do not.
    """
    check(arguments, flags_of(function), prog)
    text = (inspect.getdoc(function) or "").split("\n\nArgs:")[0]
    description = f"{text}\n\nExamples:\n{examples}"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            make = tyro.cli(_later(function), args=list(arguments), prog=prog, description=description, config=CONFIG)
    except SystemExit as leaving:
        if leaving.code:
            raise UsageError(f"{condensed(said.getvalue())}; see {prog} --help") from None
        raise
    return make()


def _later(function: Callable[..., Result]) -> Callable[..., Callable[[], Result]]:
    """The function as tyro reads it, but called after tyro is through, so that its own errors are its own."""

    def later(*positional: Any, **named: Any) -> Callable[[], Result]:
        return lambda: function(*positional, **named)

    later.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    later.__annotations__ = get_type_hints(function, include_extras=True)
    later.__doc__ = function.__doc__
    return later


def flags_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The flags that a function's parameters make, and their types; what is in a dataclass counts as its own."""
    flags: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name in inspect.signature(function).parameters:
        kind = hints[name]
        plain = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
        if dataclasses.is_dataclass(plain):
            fields = get_type_hints(plain)
            flags.update({field.name: fields[field.name] for field in dataclasses.fields(plain)})
        elif get_origin(kind) is None or tyro.conf.Positional not in getattr(kind, "__metadata__", ()):
            flags[renamed(name, kind)] = plain
    return flags


def renamed(name: str, kind: Any) -> str:
    """A parameter's flag where `tyro.conf.arg` gives it another name."""
    for extra in getattr(kind, "__metadata__", ()):
        if getattr(extra, "name", None):
            return str(extra.name)
    return name


def check(arguments: Sequence[str], flags: dict[str, Any], prog: str) -> None:
    """Look for a misspelt flag, and for a value that does not fit. Raises UsageError."""
    known = {"--" + name.replace("_", "-"): kind for name, kind in flags.items()}
    for place, token in enumerate(arguments):
        if token in ("-h", "--help") or not token.startswith("--"):
            continue
        flag, equals, value = token.partition("=")
        flag = flag.replace("_", "-")
        if flag not in known:
            raise UsageError(f"unknown option {flag!r}{nearest(flag, known)}; see {prog} --help")
        if known[flag] is bool:
            continue
        if not equals:
            value = arguments[place + 1] if place + 1 < len(arguments) else "--"
        if value.startswith("--"):
            raise UsageError(f"option {flag!r} needs a value; see {prog} --help")
        if get_origin(known[flag]) is not tuple and known[flag] not in (Path, Path | None):
            try:
                parsed(flag, value, known[flag])
            except ValueError as error:
                raise UsageError(str(error)) from None


def condensed(box: str) -> str:
    r"""A boxed message of several lines as one line, without the help that follows it.

    >>> condensed("╭─ Error ─╮\n│ what is │\n│ wrong.  │\n│ ─────── │\n│ For help │\n╰────╯")
    'what is wrong'
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    text = " ".join(" ".join(lines).split("───")[0].split())
    text = re.sub(r"^Error parsing [a-z-]+: |\s*Got errors:.*$", "", text)
    return text.rstrip(".") or "the command was not understood"
