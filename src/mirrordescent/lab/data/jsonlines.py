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
    for i in rows:
        try:
            found = json.loads(lines[i])
        except RecursionError:
            raise DataError(f"{path}, line {i + 1}: is nested too deeply; write a flat object per line") from None
        except json.JSONDecodeError as error:
            why = f"{error.msg}, character {error.colno}"
            raise DataError(f"{path}, line {i + 1}: is not JSON ({why}); write an object per line") from None
        except ValueError as error:  # Python reads no number of more than 4,300 digits
            raise DataError(f"{path}, line {i + 1}: cannot be read ({error})") from None
        if not isinstance(found, dict):
            raise DataError(f'{path}, line {i + 1}: is not an object; write one per line, as in {{"text": "a"}}')
        objects.append(found)
    if not rows:
        raise DataError(f"{path} is empty; write an object per line")
    return Lines(lines, rows, objects)


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
    if line.isascii() or any("\ud800" <= c <= "\udfff" for c in said):  # half a character, which UTF-8 does not hold
        said = json.dumps(value)
    return line[:start] + said + line[end:]


def _span_of_value(line: str, key: str) -> tuple[int, int]:
    """Where the value at a key of a line's object stands; of a key that is there twice the last one counts."""
    decoder, found = json.JSONDecoder(), (0, 0)
    at = line.index("{") + 1
    while (at := _after_space(line, at)) < len(line) and line[at] != "}":
        name, at = decoder.raw_decode(line, _after_space(line, at + (line[at] == ",")))
        start = _after_space(line, _after_space(line, at) + 1)  # beyond the colon
        _, at = decoder.raw_decode(line, start)
        found = (start, at) if name == key else found
    return found


def _after_space(line: str, at: int) -> int:
    space = SPACE.match(line, at)
    assert space is not None  # none is a match, too
    return space.end()
