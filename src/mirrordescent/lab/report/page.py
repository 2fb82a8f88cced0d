"""A page of text, tables and pictures, as one self-contained HTML file and as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

PAPER, INK = "#ffffff", "#24292f"  # what pictures are drawn on and with; inline they become the page's own colours


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to type."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A heading within a section."""

    text: str


@dataclass(frozen=True)
class Table:
    """Headings and rows of text.

    label: what it is, for those who cannot see it. numbers: the columns to align on the right.
    strong: the cells (row, column) that stand out.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str
    numbers: frozenset[int] = frozenset()
    strong: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A picture, drawn on PAPER with INK. name: its files', without the ending; label: for those who cannot see it."""

    name: str
    label: str
    caption: str
    svg: str
    png: bytes


Block = Text | Code | Heading | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading, and what is under it."""

    heading: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """A title, what comes before the first section, and the sections."""

    title: str
    lead: list[Block]
    sections: list[Section]

    @property
    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]


def as_html(page: Page) -> str:
    """The page as one file that loads nothing else: style and pictures are in it, and there is no script."""
    body = [f"<h1>{_escaped(page.title)}</h1>", *map(_html, page.lead)]
    for section in page.sections:
        body += ["<section>", f"<h2>{_escaped(section.heading)}</h2>", *map(_html, section.blocks), "</section>"]
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        # Makes the browser itself keep the page from loading anything, whatever its texts contain.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{_escaped(page.title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    lines = ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", "<main>", *body]
    return "\n".join([*lines, "</main>", "</body>", "</html>", ""])


def as_markdown(page: Page, pictures: str) -> str:
    """The page as Markdown; it shows the PNGs in the folder `pictures` beside it."""
    parts = [f"# {_marked(page.title)}", *(_markdown(block, pictures) for block in page.lead)]
    for section in page.sections:
        parts += [f"## {_marked(section.heading)}", *(_markdown(block, pictures) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def inline_svg(svg: str, name: str, label: str) -> str:
    """An SVG file as an element of a page that holds others.

    Its ids get `name` in front, so that two pictures do not take each other's; ink and paper become the page's, in
    light and in dark; text takes the page's font; the namespaces and the style for everything, which HTML does not
    need, are left out.
    """
    body = svg[svg.index("<svg") :].strip()
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    root, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', root)
    assert box is not None, "matplotlib writes a viewBox"
    # Only tags are changed, never the text between them, which may look like one.
    rest = re.sub(r"<[^>]*>", lambda tag: _inline_tag(tag.group(), name), rest)
    return f'<svg role="img" aria-label="{_escaped(label)}" {box.group()}>{rest}'


def _inline_tag(tag: str, name: str) -> str:
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'\b(?:xlink:)?href="#', f'href="#{name}-', tag).replace("url(#", f"url(#{name}-")
    tag = tag.replace(INK, "currentColor").replace(f"fill: {PAPER}", "fill: none")
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", tag)


def _escaped(text: str) -> str:
    return html.escape(text, quote=True)


def _html(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{_escaped(block.text)}</p>"
    if isinstance(block, Code):
        return f"<pre><code>{_escaped(block.text)}</code></pre>"
    if isinstance(block, Heading):
        return f"<h3>{_escaped(block.text)}</h3>"
    if isinstance(block, Picture):
        # Those who use the keyboard can scroll what is wider than the screen.
        drawing = f'<div class="wide" tabindex="0">{inline_svg(block.svg, block.name, block.label)}</div>'
        return f"<figure>{drawing}<figcaption>{_escaped(block.caption)}</figcaption></figure>"
    return _html_table(block)


def _html_table(table: Table) -> str:
    def cell(tag: str, text: str, row: int, column: int) -> str:
        kind = ' class="number"' if column in table.numbers else ""
        scope = ' scope="col"' if tag == "th" else ""
        inner = f"<strong>{_escaped(text)}</strong>" if (row, column) in table.strong else _escaped(text)
        return f"<{tag}{scope}{kind}>{inner}</{tag}>"

    def line(tag: str, row: int, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, text, row, column) for column, text in enumerate(texts)) + "</tr>"

    rows = "\n".join(line("td", place, row) for place, row in enumerate(table.rows))
    head = line("th", -1, table.headings)
    region = f'<div class="wide" role="region" aria-label="{_escaped(table.label)}" tabindex="0">'
    return f"{region}<table>\n<thead>{head}</thead>\n<tbody>\n{rows}\n</tbody></table></div>"


def _marked(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", " ".join(text.split()))


def _markdown(block: Block, pictures: str) -> str:
    if isinstance(block, Text):
        return _marked(block.text)
    if isinstance(block, Code):
        return "".join(f"    {line}\n" for line in block.text.splitlines()).rstrip("\n")
    if isinstance(block, Heading):
        return f"### {_marked(block.text)}"
    if isinstance(block, Picture):
        return f"![{_marked(block.label)}]({pictures}/{block.name}.png)\n\n{_marked(block.caption)}"
    return _markdown_table(block)


def _markdown_table(table: Table) -> str:
    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    rule = ["---:" if column in table.numbers else "---" for column in range(len(table.headings))]
    rows = [
        [
            f"**{_marked(text)}**" if (place, column) in table.strong else _marked(text)
            for column, text in enumerate(row)
        ]
        for place, row in enumerate(table.rows)
    ]
    return "\n".join([line([_marked(text) for text in table.headings]), line(rule), *map(line, rows)])


STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #24292f; --soft: #59636e; --rule: #d1d9e0; --fill: #f6f8fa }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --ink: #e2e6ea; --soft: #9aa4ae; --rule: #3a4149; --fill: #1d2125 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, sans-serif }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .75rem; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--rule) }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere }
p { margin: .5rem 0 1rem; max-width: 46rem; overflow-wrap: anywhere }
.wide { overflow-x: auto }
.wide + p { margin-top: 1rem }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule) }
th { vertical-align: bottom; font-weight: 600; color: var(--soft) }
td { min-width: 3rem; max-width: 28rem; overflow-wrap: break-word }
td:first-child { white-space: nowrap }
td:last-child:not(:first-child) { min-width: 7rem }
.number { text-align: right }
td.number { white-space: nowrap }
figure { margin: 1rem 0 2rem }
figure svg { display: block; width: 100%; min-width: 35rem; max-width: 46rem; height: auto }
figure svg * { stroke-linejoin: round; stroke-linecap: butt }
figcaption { max-width: 46rem; margin-top: .5rem; color: var(--soft); font-size: .9rem }
pre { overflow-x: auto; padding: .75rem 1rem; background: var(--fill); border-radius: .4rem }
code { font-size: .875rem }
"""
