"""The page of an audit: one self-contained HTML file that shows the suspicious labels and takes a person's decisions.

What is the same for everyone who looks (sentences, shares, histogram) is written here; the list of samples, which a
person filters, sorts and decides on, is drawn by page.js from the JSON that is embedded in the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from mirrordescent.lab.files import write_text
from mirrordescent.lab.report.page import STYLE

IMAGES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp"}  # by their first bytes
JOINERS = "\u200c\u200d"  # invisible, but part of Persian words and of emoji
WIDTH, HEIGHT = 520, 240  # of the histogram, with its axes
LEFT, RIGHT, TOP, BOTTOM = 66, 10, 8, 46  # around the bars


@dataclass(frozen=True)
class Shown:
    """What the page shows of one sample.

    index: its position in the audited data. name: "row 17", or a file's relative name. picture: an encoded image
    (PNG, JPEG or WebP), for image data. cells: (column, value), for tables. Any text is safe, even a hostile one.
    """

    index: int
    name: str
    picture: bytes | None = None
    cells: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Histogram:
    """A histogram of the score: `edges` has one entry more than there are bins, the others one per bin.

    right, wrong: the expected numbers of right and of wrong labels.
    threshold: the score at which a label is as likely wrong as right, where there is a single one.
    """

    edges: Sequence[float]
    counts: Sequence[int]
    right: Sequence[float]
    wrong: Sequence[float]
    threshold: float | None

    def __post_init__(self) -> None:
        bins = len(self.edges) - 1
        if bins < 1 or not all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must be two numbers or more, ascending")
        for name in ("counts", "right", "wrong"):
            if len(values := getattr(self, name)) != bins:
                raise ValueError(f"{name} must have one entry per bin, {bins}, got {len(values)}")


@dataclass(frozen=True)
class Findings:
    """Everything that the page says about the data; sequences over samples have one entry per sample, in their order.

    title: the data set's name. given, suggested: classes by number, the same where nothing else is suggested.
    confidence: of the suggestion. wrong: the probability that the given label is wrong. score: higher is more
    suspicious. issue: flagged or not. names: of all samples. shown: the most suspicious samples, the worst first.
    sentences: what was found, and how far to trust it. notes: what was done to the data. fingerprints: of all rows, if
    it is a table. Any text is safe, even a hostile one.
    """

    title: str
    class_names: tuple[str, ...]
    given: Sequence[int]
    suggested: Sequence[int]
    confidence: Sequence[float]
    wrong: Sequence[float]
    score: Sequence[float]
    issue: Sequence[bool]
    names: Sequence[str]
    shown: Sequence[Shown]
    sentences: tuple[str, ...]
    histogram: Histogram
    notes: tuple[str, ...] = ()
    fingerprints: Sequence[str] = ()

    def __post_init__(self) -> None:
        count, classes = len(self.names), len(self.class_names)
        for name in ("given", "suggested", "confidence", "wrong", "score", "issue"):
            if len(values := getattr(self, name)) != count:
                raise ValueError(f"{name} must have one entry per sample, {count:,}, got {len(values):,}")
        for name, rule, values in (
            ("given", f"from 0 to {classes - 1}", [v for v in self.given if not 0 <= v < classes]),
            ("suggested", f"from 0 to {classes - 1}", [v for v in self.suggested if not 0 <= v < classes]),
            ("confidence", "in [0, 1]", [v for v in self.confidence if not 0 <= v <= 1]),
            ("wrong", "in [0, 1]", [v for v in self.wrong if not 0 <= v <= 1]),
            ("score", "finite", [v for v in self.score if not math.isfinite(v)]),
        ):
            if values:
                raise ValueError(f"{name} must be {rule}, got {values[0]}")
        for sample in self.shown:
            if not 0 <= sample.index < count or sample.name != self.names[sample.index]:
                raise ValueError(f"shown must be samples of `names`, got {sample.index}, {sample.name!r}")


def write_audit_page(findings: Findings, path: Path) -> None:
    """Write the page as one file that loads nothing else, so that a browser can show it from anywhere."""
    style, script = STYLE + _asset("page.css"), _asset("page.js")
    data = json.dumps(_data(findings), separators=(",", ":"), allow_nan=False)
    # The policy makes the browser load nothing and run this script alone, whatever the texts contain; in a browser with
    # trusted types, no text can become HTML at all.
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    text = Template(_asset("page.html")).substitute(
        policy=policy,
        title=_escaped(findings.title),
        style=style,
        sentences="\n".join(f"<p>{_escaped(sentence)}</p>" for sentence in findings.sentences),
        notes=_notes(findings.notes),
        shares=_shares(findings),
        histogram=_histogram(findings.histogram),
        threshold=_threshold(findings.histogram),
        key=hashlib.sha256(data.encode("ascii")).hexdigest()[:16],
        data=data.replace("<", "\\u003c"),  # no </script> and no <!-- can stand in it
        script=script,
    )
    write_text(path, text)


def visible(text: str) -> str:
    r"""The text, with characters that are invisible or reverse what follows as escapes; page.js does the same.

    >>> print(visible("cat\u202egpj.exe\n"), visible(""))
    cat\u{202e}gpj.exe\u{a} (empty)
    """
    return "".join(f"\\u{{{ord(c):x}}}" if _unseen(c) else c for c in text) or "(empty)"


def _unseen(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in JOINERS


def _escaped(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """What a content security policy calls a script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _data(findings: Findings) -> dict[str, Any]:
    """What page.js reads: an array per property, which is half the size of an object per sample."""
    columns = {name: place for place, name in enumerate(dict.fromkeys(c for s in findings.shown for c, _ in s.cells))}
    return {
        "title": findings.title,
        "classes": list(findings.class_names),
        "names": list(findings.names),
        "fingerprints": list(findings.fingerprints),
        "given": [int(value) for value in findings.given],
        "suggested": [int(value) for value in findings.suggested],
        "confidence": [round(float(value), 4) for value in findings.confidence],
        "wrong": [round(float(value), 4) for value in findings.wrong],
        "score": [float(f"{value:.6g}") for value in findings.score],
        "flagged": [index for index, flagged in enumerate(findings.issue) if flagged],
        "columns": list(columns),
        "shown": [
            [sample.index, _address(sample), [[columns[name], value] for name, value in sample.cells]]
            for sample in findings.shown
        ],
    }


def _address(sample: Shown) -> str | None:
    """The picture as a data URL."""
    if sample.picture is None:
        return None
    kind = next((kind for start, kind in IMAGES.items() if sample.picture.startswith(start)), None)
    if kind is None:
        raise ValueError(
            f"the picture of {sample.name!r} must be PNG, JPEG or WebP, but begins with {sample.picture[:8]!r}"
        )
    return f"data:image/{kind};base64,{base64.b64encode(sample.picture).decode('ascii')}"


def _notes(notes: Sequence[str]) -> str:
    """The notes as a list, open, so that a person reads it before the suspects."""
    if not notes:
        return ""
    items = "\n".join(f"<li>{_escaped(note)}</li>" for note in notes)
    return f"<details open>\n<summary>What was done to the data</summary>\n<ul>\n{items}\n</ul>\n</details>"


def _shares(findings: Findings) -> str:
    """The rows of the table of wrong labels: one for all, then one per given class, the worst first."""
    classes = len(findings.class_names)
    count, wrong, flagged = [0] * classes, [0.0] * classes, [0] * classes
    for given, probability, issue in zip(findings.given, findings.wrong, findings.issue, strict=True):
        count[given] += 1
        wrong[given] += float(probability)
        flagged[given] += bool(issue)
    order = sorted((c for c in range(classes) if count[c]), key=lambda c: -wrong[c] / count[c])
    rows = [_share("<strong>all</strong>", sum(count), sum(wrong), sum(flagged))] if order else []
    rows += [_share(f"<bdi>{_escaped(findings.class_names[c])}</bdi>", count[c], wrong[c], flagged[c]) for c in order]
    return "\n".join(rows)


def _share(name: str, count: int, wrong: float, flagged: int) -> str:
    cells = (f"{count:,}", f"{wrong:,.0f}", f"{wrong / count:.1%}".replace("%", " %"), f"{flagged:,}")
    numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
    return f'<tr><th scope="row">{name}</th>{numbers}</tr>'


def _histogram(histogram: Histogram) -> str:
    """The histogram as SVG: bars as counted, a line per component, the threshold.

    Counts are on a square-root scale, on which a few wrong labels can be seen beside many right ones.
    """
    low, high = float(histogram.edges[0]), float(histogram.edges[-1])
    top = max(1.0, *map(float, (*histogram.counts, *histogram.right, *histogram.wrong)))

    def x(score: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (score - low) / (high - low):.1f}"

    def y(number: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.sqrt(max(number, 0) / top):.1f}"

    def line(kind: str, x1: str, y1: str, x2: str, y2: str) -> str:
        return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'

    parts = []
    for tick in _count_ticks(top):
        parts.append(line("grid", str(LEFT), y(tick), str(WIDTH - RIGHT), y(tick)))
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick)}" dy=".35em" text-anchor="end">{tick:,}</text>')
    pairs = list(zip(histogram.edges, histogram.edges[1:], strict=False))
    for (left, right), count in zip(pairs, histogram.counts, strict=True):
        corners = f"M{x(left)} {y(0)}V{y(count)}H{x(right)}V{y(0)}z"
        parts.append(f'<path class="bar" d="{corners}"/>')
    for kind, numbers in (("right", histogram.right), ("wrong", histogram.wrong)):
        points = " ".join(f"{x((a + b) / 2)},{y(number)}" for (a, b), number in zip(pairs, numbers, strict=True))
        parts.append(f'<polyline class="{kind}" points="{points}"/>')
    if histogram.threshold is not None and low <= histogram.threshold <= high:
        parts.append(line("threshold", x(histogram.threshold), str(TOP), x(histogram.threshold), y(0)))
    parts.append(line("axis", str(LEFT), y(0), str(WIDTH - RIGHT), y(0)))
    for score in _score_ticks(low, high):
        parts.append(f'<text x="{x(score)}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{score:g}</text>')
    middle = f"{(HEIGHT - BOTTOM + TOP) / 2:.0f}"
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">score</text>')
    parts.append(
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">labels (root scale)</text>'
    )
    label = html.escape(_described(histogram), quote=True)
    body = "\n".join(parts)
    return f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">\n{body}\n</svg>'


def _threshold(histogram: Histogram) -> str:
    """The threshold's entry in the legend."""
    if histogram.threshold is None:
        return ""
    return f'<li><span class="swatch threshold"></span>as likely wrong as right at {histogram.threshold:.3g}</li>'


def _described(histogram: Histogram) -> str:
    """What the histogram shows, for people who cannot see it."""
    centres = [(a + b) / 2 for a, b in zip(histogram.edges, histogram.edges[1:], strict=False)]
    texts = [f"Histogram of the score of {sum(histogram.counts):,} labels"]
    for kind, numbers in (("right", histogram.right), ("wrong", histogram.wrong)):
        if (total := sum(numbers)) > 0:
            mean = sum(c * n for c, n in zip(centres, numbers, strict=True)) / total
            texts.append(f"about {total:,.0f} {kind} labels around {mean:.3g}")
    if histogram.threshold is not None:
        texts.append(f"as likely wrong as right at {histogram.threshold:.3g}")
    return "; ".join(texts) + "."


def _count_ticks(top: float) -> list[int]:
    """Round numbers up to `top`, about evenly spaced on the square-root scale, and not too close to each other.

    >>> _count_ticks(4312), _count_ticks(1), _count_ticks(1650)
    ([0, 200, 1000, 2000, 4000], [0, 1], [0, 100, 400, 1000])
    """
    parts = (top * step * step / 16 for step in range(4, 0, -1))
    ticks = [int(part // (unit := 10 ** math.floor(math.log10(part))) * unit) for part in parts if part >= 1]
    apart: list[int] = []
    for tick in [*ticks, 0]:
        if not apart or math.sqrt(apart[-1]) - math.sqrt(tick) > math.sqrt(top) / 10:
            apart.append(tick)
    return apart[::-1]


def _score_ticks(low: float, high: float) -> list[float]:
    """About six round numbers from `low` to `high`.

    >>> _score_ticks(-0.3, 1.02)
    [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    unit = 10 ** math.floor(math.log10((high - low) / 5))
    step = max(unit * factor for factor in (1, 2, 5) if unit * factor <= (high - low) / 5)
    places = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [float(f"{place * step:.6g}") + 0.0 for place in places]
