"""Reads JSON Lines, an object per line, and writes a line again with another label."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.textfile import decoded

ENDINGS = (".jsonl", ".ndjson")
HALF = re.compile("[\ud800-\udfff]")  # of a character; UTF-8 does not hold it
SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Lines:
    """The lines of such a file.

    lines: all of them, with their ends, as in the file. rows: the positions of those that are not blank.
    objects: what these hold.
    """

    lines: list[str]
    rows: list[int]
    objects: list[dict[str, Any]]


def read_json_lines(path: Path) -> Lines:
    """Read such a file; DataError names the first line that does not hold an object."""
    lines = decoded(path).split("\n")  # a JSON text may hold other ends of lines, such as U+2028
    lines = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    rows = [i for i, line in enumerate(lines) if line.strip()]
    objects = []
    hint = "write an object per line"
    if rows and lines[rows[0]].lstrip().startswith("["):
        hint = "one array of objects, it seems, and not an object per line: jq -c '.[]' FILE > FILE.jsonl makes these"
    elif rows and lines[rows[0]].strip() == "{":
        hint = "objects over several lines, it seems: jq -c . FILE > FILE.jsonl makes one line of each"
    for i in rows:
        try:
            found = json.loads(lines[i], object_pairs_hook=_object)
        except RecursionError:
            raise DataError(f"{path}, line {i + 1}: is nested too deeply; write a flat object per line") from None
        except json.JSONDecodeError as error:
            why = f"{error.msg}, character {error.colno}"
            raise DataError(f"{path}, line {i + 1}: is not JSON ({why}); {hint}") from None
        except _TwiceError as error:
            raise DataError(f"{path}, line {i + 1}: the key {error} is there twice; remove one") from None
        except ValueError as error:  # Python reads no number of more than 4,300 digits
            raise DataError(f"{path}, line {i + 1}: cannot be read ({error}); shorten it") from None
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {i + 1}: is not an object; {hint}")
        objects.append(found)
    if not rows:
        raise DataError(f"{path} is empty; write an object per line")
    return Lines(lines, rows, objects)


class _TwiceError(ValueError):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(repr(next(key for key in keys if keys.count(key) > 1)))
    return found


def without_halves(value: object) -> object:
    r"""A value; if it is a text, without halves of characters, which JavaScript writes where it cuts a text.

    >>> without_halves("a\ud83d") == "a\ufffd", without_halves(1.5)
    (True, 1.5)
    """
    return HALF.sub("\ufffd", value) if isinstance(value, str) else value


def as_text(value: object) -> str:
    """A value as JSON.

    >>> as_text({"a": [1, None]})
    '{"a": [1, null]}'
    """
    return json.dumps(value, ensure_ascii=False)


def with_value(line: str, key: str, value: object) -> str:
    r"""A line, which holds an object, with another value at a key; all else stays as it is written.

    >>> with_value('{"a":1,  "b":"\\u00e9", "n": 1.50}\n', "a", 2)
    '{"a":2,  "b":"\\u00e9", "n": 1.50}\n'
    """
    start, end = _span_of_value(line, key)
    said = json.dumps(value, ensure_ascii=False)
    if line.isascii() or HALF.search(said):
        said = json.dumps(value)
    return line[:start] + said + line[end:]


def _span_of_value(line: str, key: str) -> tuple[int, int]:
    """Where the value at a key of a line's object stands."""
    decoder, at = json.JSONDecoder(), line.index("{")
    while True:
        name, at = decoder.raw_decode(line, _after_space(line, at + 1))  # beyond the brace, or a comma
        start = _after_space(line, _after_space(line, at) + 1)  # beyond the colon
        _, end = decoder.raw_decode(line, start)
        if name == key:
            return start, end
        at = _after_space(line, end)


def _after_space(line: str, at: int) -> int:
    space = SPACE.match(line, at)
    assert space is not None  # none is a match, too
    return space.end()
