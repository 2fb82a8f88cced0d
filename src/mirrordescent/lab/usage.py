"""Reading a command line with tyro, and saying what is wrong with it in one line, with the nearest valid name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import tyro

from mirrordescent.lab.names import nearest
from mirrordescent.lab.runs import parsed

Result = TypeVar("Result")
# options from a dataclass have no prefix, and a bool is --name alone, without --no-name
CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
PLACES = ("--root", "--data", "--folder", "--name", "--path")  # what people may type before a word that goes without
LEAST = 40  # columns
REGISTRY = tyro.constructors.ConstructorRegistry()


@REGISTRY.primitive_rule
def _perhaps(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
    """An optional value, which the help then shows as the type that it has if given, not as `{None}|INT`."""
    options = get_args(info.type)
    if len(options) != 2 or options[1] is not type(None) or options[0] not in (int, float, str, Path):
        return None
    kind = options[0]
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=lambda words: None if words[0] == "None" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, kind),
        str_from_instance=lambda value: ["unset" if value is None else str(value)],
    )


class UsageError(ValueError):
    """A command that cannot be understood; the message is one line."""


def called(function: Callable[..., Result], arguments: Sequence[str], prog: str, examples: str) -> Result:
    """Call a function with arguments from the command line, or print its help with the examples, and leave.

    Raises UsageError where the arguments do not fit, ValueError where the settings that they make do not.
    """
    check(arguments, words_of(function), prog)
    text = (inspect.getdoc(function) or "").split("\n\nArgs:")[0]
    description = f"{text}\n\nExamples:\n{examples}"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), _wide_enough():
            make = tyro.cli(
                _later(function),
                args=list(arguments),
                prog=prog,
                description=description,
                config=CONFIG,
                registry=REGISTRY,
            )
    except SystemExit as leaving:
        if leaving.code:
            raise UsageError(f"{condensed(said.getvalue())}; see {prog} --help") from None
        raise
    return make()


@contextlib.contextmanager
def _wide_enough() -> Iterator[None]:
    """Let tyro see a terminal of at least LEAST columns: on one of a few columns it never ends its help."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(max(shutil.get_terminal_size().columns, LEAST))
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _later(function: Callable[..., Result]) -> Callable[..., Callable[[], Result]]:
    """A function that tyro reads like this one, but that only returns the call, so that tyro sees no errors of it."""

    def later(*positional: Any, **named: Any) -> Callable[[], Result]:
        return lambda: function(*positional, **named)

    later.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # any function may have one
    later.__annotations__ = hints_of(function)
    later.__doc__ = function.__doc__
    return later


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's types as they are written: Python 3.10 wraps Annotated ones in Optional if the default is None."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: next((part for part in get_args(hint) if hasattr(part, "__metadata__")), hint)
        for name, hint in hints.items()
    }


@dataclass(frozen=True)
class Words:
    """What a command takes: flags with their types, words without a flag, in order, and dataclasses made of flags."""

    flags: dict[str, Any]
    places: tuple[str, ...]
    settings: dict[type, dict[str, str]]  # a dataclass: its flags, and their fields


def words_of(function: Callable[..., Any]) -> Words:
    """What the command of a function takes; each field of a dataclass is a flag of its own."""
    flags: dict[str, Any] = {}
    places: list[str] = []
    settings: dict[type, dict[str, str]] = {}
    hints = hints_of(function)
    for name in inspect.signature(function).parameters:
        extras = getattr(hints[name], "__metadata__", ())
        kind = get_args(hints[name])[0] if extras else hints[name]
        if tyro.conf.Positional in extras:
            places.append(name)
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
            flags.update({_flag(field): hint for field, hint in get_type_hints(kind).items()})
            settings[kind] = {_flag(field): field for field in get_type_hints(kind)}
        else:  # `from_` is --from
            flags[_flag(name.rstrip("_"))] = kind
    return Words(flags, tuple(places), settings)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check(arguments: Sequence[str], words: Words, prog: str) -> None:
    """Look for a misspelt flag, a value that does not fit, a word too many or too few. Raises UsageError."""
    waiting, rest = list(words.places), list(arguments)
    found: dict[str, Any] = {}
    given: set[str] = set()
    while rest:
        token = rest.pop(0)
        if token in ("-h", "--help"):
            return
        if not token.startswith("-"):
            if not waiting:
                hint = f" (did you mean --data {token}?)" if {"--data"} & words.flags.keys() - given else ""
                raise UsageError(f"{token!r} is one word too many{hint}; see {prog} --help")
            waiting.pop(0)
            continue
        flag, equals, value = token.partition("=")
        flag = flag.replace("_", "-")
        if flag not in words.flags:
            raise UsageError(f"unknown option {flag!r}{_hint(flag, words)}; see {prog} --help")
        kind = words.flags[flag]
        if flag in given:
            raise UsageError(f"option {flag!r} is given twice; see {prog} --help")
        given.add(flag)
        if kind is bool:
            found[flag] = True
            continue
        if not equals and (not rest or rest[0].startswith("--")):
            raise UsageError(f"option {flag!r} needs a value; see {prog} --help")
        value = value if equals else rest.pop(0)
        if get_origin(kind) is tuple:
            while rest and not rest[0].startswith("--"):
                rest.pop(0)
        elif kind not in (Path, Path | None):
            found[flag] = _told(functools.partial(parsed, flag, value, kind))
    if waiting:
        raise UsageError(f"{waiting[0].upper()} is missing; see {prog} --help")
    for kind, fields in words.settings.items():  # values that are wrong together
        values = {fields[flag]: value for flag, value in found.items() if flag in fields}
        _told(functools.partial(kind, **values))


def _hint(flag: str, words: Words) -> str:
    """What may be meant by an unknown option."""
    if words.places and flag in PLACES:
        return f"; {words.places[0].upper()} goes without one"
    return nearest(flag, words.flags)


def _told(make: Callable[[], Result]) -> Result:
    """The result of `make`, with its ValueError turned into a UsageError."""
    try:
        return make()
    except ValueError as error:
        raise UsageError(str(error)) from None


def condensed(box: str) -> str:
    r"""A boxed message of tyro's as one line, without the help that follows it.

    >>> condensed("╭─ Error ─╮\n│ what is │\n│ wrong.  │\n│ ─────── │\n│ For help │\n╰────╯")
    'what is wrong'
    """
    lines = [line.strip(" │|") for line in box.splitlines() if not line.startswith(("╭", "╰", "+"))]
    text = " ".join(" ".join(lines).split("───")[0].split())
    text = re.sub(r"^Error parsing [\w-]+: ", "", text)  # the name of a dataclass, which nobody has typed
    return re.sub(r"\s*Got errors:.*$", "", text).rstrip(".") or "the command was not understood"
