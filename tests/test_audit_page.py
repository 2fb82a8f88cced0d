"""The audit's page shows any text as text, and asks for nothing; decisions read back, or are refused by their line."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from findings import HOSTILE, findings
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mirrordescent.lab.audit import Decision, Findings, Histogram, Shown, read_decisions, write_audit_page
from mirrordescent.lab.audit.page import visible
from mirrordescent.lab.data import DataError


class Parsed(HTMLParser):
    """The page's tags in order, its texts, and the text of each script and style."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.inside: list[str] = []
        self.text = ""
        self.feed(path.read_bytes().decode("utf-8"))
        self.close()
        self.style, self.data, self.script = self.inside[0], json.loads(self.inside[1]), self.inside[2]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in ("script", "style"):
            self.inside.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("script", "style"):
            self.inside[-1] += data
        else:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")


def written(held: Findings, folder: Path) -> Parsed:
    write_audit_page(held, folder / "audit.html")
    return Parsed(folder / "audit.html")


# What is written


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
@example(HOSTILE)
@example("$data ${script} \\u003c")
@example("\udcff.png")
def test_any_text_is_only_text(tmp_path: Path, text: str) -> None:
    plain = written(findings(3, most=3, pictures=False, notes=("plain",)), tmp_path)
    names, classes = [text, f"{text}1", "row 2"], ("cat", text + "a", "emu")
    shown = [Shown(i, name, cells=((text, text), ("sex", text))) for i, name in enumerate(names)]
    words: dict[str, Any] = {"title": text, "sentences": (text, text), "notes": (text,)}
    page = written(findings(3, classes, 3, names=names, shown=shown, **words), tmp_path)
    assert page.data["names"] == names
    assert page.data["classes"] == [*classes]
    assert [[page.data["columns"][c], value] for c, value in page.data["shown"][0][2]] == [[text, text], ["sex", text]]
    assert page.tags == plain.tags
    assert visible(text + "a") in page.text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x09\x0b-\x1f]", page.text)


def test_the_browser_is_told_to_run_this_script_alone_and_ask_for_nothing(tmp_path: Path) -> None:
    page = written(findings(), tmp_path)
    policy = next(value for tag, name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none';")
    for kind, text in (("style-src", page.style), ("script-src", page.script)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert "unsafe" not in policy
    assert not [a for a in page.attributes if a[1] in ("src", "href", "action", "style") or a[1].startswith("on")]
    assert not re.search(r"https?:|@import|url\(", page.style + page.script)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", page.script)


def test_labels_of_controls_and_ids(tmp_path: Path) -> None:
    page = written(findings(), tmp_path)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {v for _, name, v in page.attributes if name == "aria-labelledby"} <= set(ids)
    assert set(re.findall(r'\$\("([\w-]+)"\)', page.script)) <= set(ids)


def test_the_shares_are_of_the_labels_as_given(tmp_path: Path) -> None:
    held = findings(4, ("cat", "dog", "none"), 0, given=[0, 0, 0, 1], wrong=[0.5, 0.25, 0.0, 1.0])
    text = " ".join(written(held, tmp_path).text.split())
    write_audit_page(held, tmp_path / "a.html")
    rows = re.findall('<tr><th scope="row">(.*?)</tr>', (tmp_path / "a.html").read_text(encoding="utf-8"))
    cells = [re.sub("<[^>]*>", "|", row).replace("||", "|").strip("|").split("|") for row in rows]
    assert [[c for c in row if c] for row in cells] == [
        ["all", "4", "2", "43.8 %", "2"],
        ["dog", "1", "1", "100.0 %", "0"],
        ["cat", "3", "1", "25.0 %", "2"],
    ]
    assert "About four of twelve labels are wrong. Trust it a little." in text


@pytest.mark.parametrize(
    "histogram",
    [
        findings().histogram,
        Histogram([0, 1], [0], [0.0], [0.0], None),
        Histogram([-1e-9, 0, 3e-9], [50_000, 1], [49_000.0, 0.2], [0.1, 0.9], 99.0),
    ],
)
def test_the_histogram_is_whole_and_described(tmp_path: Path, histogram: Histogram) -> None:
    write_audit_page(findings(histogram=histogram), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    kinds = [part.get("class") for part in svg]
    assert kinds.count("bar") == len(histogram.counts)
    assert kinds.count("right") == kinds.count("wrong") == 1
    inside = histogram.threshold is not None and histogram.threshold <= histogram.edges[-1]
    assert kinds.count("threshold") == inside
    assert f"score of {sum(histogram.counts):,} labels" in svg.get("aria-label", "")
    numbers = re.findall(r"-?\d+\.\d", " ".join(part.get("points", "") + part.get("d", "") for part in svg))
    assert all(0 <= float(number) <= 640 for number in numbers)


def test_two_pages_are_the_same_bytes_and_other_findings_have_another_key(tmp_path: Path) -> None:
    for name, held in (("a", findings()), ("b", findings()), ("c", findings(score=[2.0] * 12))):
        write_audit_page(held, tmp_path / name)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert len({re.search(rb'data-key="(\w+)"', page).group(1) for page in (a, c)}) == 2  # type: ignore[union-attr]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wrong": [0.5]}, "wrong must have one entry per sample, 12, got 1"),
        ({"wrong": [1.5] * 12}, r"wrong must be in \[0, 1\], got 1.5"),
        ({"confidence": [float("nan")] * 12}, r"confidence must be in \[0, 1\], got nan"),
        ({"score": [float("inf")] * 12}, "score must be finite, got inf"),
        ({"given": [3] * 12}, "given must be from 0 to 2, got 3"),
        ({"shown": [Shown(12, "row 12")]}, "shown must be samples of `names`, got 12, 'row 12'"),
        ({"shown": [Shown(1, "row 2")]}, "shown must be samples of `names`, got 1, 'row 2'"),
    ],
)
def test_findings_that_do_not_fit_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        findings(**changes)


def test_histograms_and_pictures_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="edges must be"):
        Histogram([1.0, 1.0], [1], [1.0], [0.0], None)
    with pytest.raises(ValueError, match="right must have one entry per bin, 1, got 2"):
        Histogram([0.0, 1.0], [1], [1.0, 2.0], [0.0], None)
    with pytest.raises(ValueError, match="the picture of 'row 0' must be PNG, JPEG or WebP"):
        write_audit_page(findings(shown=[Shown(0, "row 0", picture=b"<svg>")]), tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


# What is read back

HEADER = "index,name,given_label,action,label"
CLASSES = ("cat", "dog", "=emu", "007")
NAMES = ["row 0", "a, b\r\nc", "-1", "row 3"]


@pytest.mark.parametrize(
    "content",
    [
        HEADER + "\r\n0,row 0,cat,keep,\r\n1,\"a, b\r\nc\",dog,relabel,'=emu\r\n2,'-1,dog,drop,\r\n",
        "\ufeff" + HEADER + '\n0,row 0,cat,keep,\n1,"a, b\nc",dog,relabel,=emu\n2,-1,dog,drop,\n',
        # saved again by spreadsheets: other separators, empty lines and cells gone, numbers rewritten
        HEADER.replace(",", ";")
        + '\r\n0;row 0;cat;keep\r\n1,0;"a, b\nc";dog;relabel;\'=emu\r\n'.replace("1,0", "1.0")
        + "2;'-1;dog;drop\r\n;;;;\r\n",
        HEADER.replace(",", "\t").upper()
        + '\n0\trow 0\tcat\tKeep\t\n1\t"a, b\nc"\t\trelabel\t\'=emu\n2\t-1.0\t\tdrop\n\n',
        "\nsep=;\n" + HEADER.replace(",", ";") + ';"who, when"\n'
        '0;row 0;cat;keep;;\n1;"a, b\nc";dog;relabel;=emu;"me, today"\n2;-1;dog;drop;;\n3;row 3;cat;;;\n',
        "note," + HEADER + ',more\n,0,row 0,cat,keep,,\nx,1,"a, b\nc",dog,relabel,=emu,1\n,2,\'-1,dog,drop,ignored,\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_decisions_read_back(tmp_path: Path, content: str, encoding: str) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes((content.removeprefix("\ufeff") if encoding == "utf-16" else content).encode(encoding))
    expected = [Decision(0, "keep"), Decision(1, "relabel", "=emu"), Decision(2, "drop")]
    assert read_decisions(path, 4, CLASSES, NAMES) == expected
    assert read_decisions(path, 4, CLASSES) == expected


def test_a_label_that_a_spreadsheet_changed_is_known_where_only_one_is_like_it(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text(f"{HEADER}\n0,row 0,cat,relabel,7\n", encoding="utf-8")
    assert read_decisions(path, 4, CLASSES) == [Decision(0, "relabel", "007")]
    with pytest.raises(DataError, match="unknown class '7'"):
        read_decisions(path, 4, (*CLASSES, "07"))
    assert read_decisions(path, 4, (*CLASSES, "07", "7")) == [Decision(0, "relabel", "7")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: without the columns index, name, given_label, action, label;"),
        ("index,name,given_label,label\n", "line 1: without the columns action; it must have index, name,"),
        (HEADER + "\n0,row 0,cat,keep,\n4,row 4,cat,keep,\n", "line 3: index must be from 0 to 3, got 4;"),
        (HEADER + "\n-1,row 0,cat,keep,\n", "line 2: index must be from 0 to 3, got -1;"),
        (HEADER + "\n0.5,row 0,cat,keep,\n", "line 2: index must be a whole number, got '0.5'"),
        (HEADER + "\n,row 0,cat,keep,\n", "line 2: index must be a whole number, got ''"),
        (HEADER + "\nnan,row 0,cat,keep,\n", "line 2: index must be a whole number, got 'nan'"),
        (HEADER + '\n1,"a, b\nc",cat,keep,\n1,"a, b\nc",cat,drop,\n', "line 4: index 1 is on line 2 already;"),
        (
            HEADER + "\n0,row 0,cat,relable,dog\n",
            "line 2: unknown action 'relable' (did you mean 'relabel'?); known: keep",
        ),
        (HEADER + "\n0,row 0,cat,,\n", "every line: without an action"),
        (HEADER + "\n0,row 0,cat,,dog\n", "line 2: unknown action ''; known: keep, drop, relabel"),
        (
            HEADER + "\n0,row 0,cat,relabel,dgo\n",
            "line 2: unknown class 'dgo' (did you mean 'dog'?); known: 'cat'",
        ),
        (HEADER + "\n0,row 0,cat,relabel, \n", "line 2: relabel needs a label"),
        (HEADER + "\n0,row 0,cat,relabel\n", "line 2: relabel needs a label"),
        (
            HEADER + "\n0,row 1,cat,keep,\n",
            "line 2: sample 0 is called 'row 0', but 'row 1' in the file: the index is another",
        ),
        (HEADER + '\n0,"row 0,cat,keep,\n', "line 2: unexpected end of data; export the decisions again"),
        (HEADER + "\n0,row\udce9,cat,keep,\n", "line 2: not UTF-8; save it as 'CSV UTF-8', or export it again"),
    ],
)
def test_decisions_that_cannot_be_followed(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "decisions.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as raised:
        read_decisions(path, 4, CLASSES, NAMES)
    assert str(raised.value).startswith(f"{path}, {message}")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"decisions.csv cannot be read: No such file or directory$"):
        read_decisions(tmp_path / "decisions.csv", 4, CLASSES)
    with pytest.raises(ValueError, match="names must have one entry per sample, 4, got 1"):
        read_decisions(tmp_path / "decisions.csv", 4, CLASSES, ["a"])


def test_accents_may_be_written_in_another_way(tmp_path: Path) -> None:
    path = tmp_path / "decisions.csv"
    path.write_text(HEADER + "\n0,row 0,tea,relabel,cafe\u0301\n", encoding="utf-8")
    assert read_decisions(path, 1, ("caf\u00e9", "tea")) == [Decision(0, "relabel", "caf\u00e9")]
