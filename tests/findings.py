"""Findings of a small audit, for the tests of its page: pets, a few pictures or cells, and a hostile name."""

from __future__ import annotations

import dataclasses
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from mirrordescent.lab.audit import Findings, Histogram, Shown

HOSTILE = "</script><script>alert(1)</script><!-- \"'&amp;\u2028\u202egpj.exe\r\n"


def png(size: int, grey: int) -> bytes:
    """A square of one grey, random enough not to be smaller than a picture is."""
    rows = b"".join(b"\0" + random.Random(grey + row).randbytes(size) for row in range(size))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def findings(
    count: int = 12,
    classes: Sequence[str] = ("cat", "dog", "emu"),
    most: int = 8,
    pictures: bool = True,
    **changes: Any,
) -> Findings:
    """Sample i is given class i mod 3; every second one is suggested the next class; the first are the worst."""
    names = changes.pop("names", [f"row {i}" for i in range(count)])
    score = [1.0 - i / count for i in range(count)]
    given = [i % len(classes) for i in range(count)]
    held = Findings(
        title="pets",
        class_names=tuple(classes),
        given=given,
        suggested=[(label + (i + 1) % 2) % len(classes) for i, label in enumerate(given)],
        confidence=[0.5 + 0.5 * ((i * 7) % count) / count for i in range(count)],
        wrong=[value**2 for value in score],
        score=score,
        issue=[value > 0.5 for value in score],
        names=names,
        shown=[
            Shown(i, names[i], picture=png(8, i))
            if pictures
            else Shown(i, names[i], cells=(("age", str(i)), ("sex", "")))
            for i in range(most)
        ],
        sentences=("About four of twelve labels are wrong.", "Trust it a little."),
        histogram=Histogram([0, 0.25, 0.5, 0.75, 1], [3, 3, 3, 3], [3, 2, 1, 0.5], [0, 1, 2, 2.5], 0.5),
    )
    return dataclasses.replace(held, **changes)
