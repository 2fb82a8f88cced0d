"""The audit's page works in a browser by hand and by key, and what it exports reads back."""

from __future__ import annotations

import csv
import dataclasses
import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from findings import HOSTILE, findings, png

from mirrordescent.lab.audit import Decision, Shown, read_decisions, write_audit_page
from mirrordescent.lab.audit.page import visible
from mirrordescent.lab.data import DataError

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium or Chrome on the PATH")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.problems.clear()
    yield chromium
    chromium.call("Storage.clearDataForOrigin", origin="file://", storageTypes="all")
    assert chromium.problems == []


@needs_chromium
def test_filter_sort_decide_by_key_and_read_back(browser: Browser, tmp_path: Path) -> None:
    held = findings()
    write_audit_page(held, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    assert browser.listed() == [*range(8)]
    assert browser.text("#counts") == "8 of 8 shown; 0 decided"
    assert browser.run("[...document.images].every((image) => image.complete && image.width === 160)")

    browser.press("n", "k")  # the first
    browser.press("ArrowRight", "D")
    browser.press("n", "r")  # as suggested
    browser.press("n", "r")  # the model agrees: the list of classes waits for a choice
    assert browser.run("document.activeElement.matches('[data-index=\"3\"] select')")
    browser.press("ArrowDown", "ArrowDown", "ArrowUp", "ArrowDown")  # dog, emu, dog, emu; the sample is a cat
    assert [held.given[3], held.suggested[3]] == [0, 0]
    browser.press("Escape", "ArrowRight", "k", "k", "ArrowRight", "d", "u")  # both taken back
    assert browser.run("document.activeElement.dataset.index") == "5"
    assert browser.text("#counts") == "8 of 8 shown; 4 decided (1 keep, 1 drop, 2 relabel)"
    expected = [Decision(0, "keep"), Decision(1, "drop"), Decision(2, "relabel", "cat"), Decision(3, "relabel", "emu")]
    assert held.suggested[2] == 0
    assert read_decisions(browser.export(), 12, held.class_names, held.names) == expected
    assert browser.export().read_bytes().startswith(b"index,name,given_label,action,label\r\n0,row 0,cat,keep,\r\n")

    browser.choose("#sort", "confidence")
    assert browser.listed() == sorted(range(8), key=lambda i: -held.confidence[i])
    browser.click("#reverse")
    assert browser.listed() == sorted(range(8), key=lambda i: held.confidence[i])
    browser.click("#undecided")
    assert sorted(browser.listed()) == [4, 5, 6, 7]
    browser.click("#undecided")
    browser.choose("#given", "1")
    assert sorted(browser.listed()) == [1, 4, 7]
    browser.choose("#suggested", "2")
    assert browser.listed() == [4]
    browser.choose("#given", "")
    browser.choose("#suggested", "")
    browser.press("/", *"ROW 7")
    assert browser.listed() == [7]
    browser.press("Escape")
    assert browser.run("document.activeElement.dataset.index") == "7"
    assert browser.text("#counts").startswith("1 of 8 shown; 4 decided")


@needs_chromium
def test_what_is_in_a_row_is_found(browser: Browser, tmp_path: Path) -> None:
    cells = [(("town", "Oslo" if i == 5 else "Graz"),) for i in range(8)]
    held = findings(shown=[Shown(i, f"row {i}", cells=cells[i]) for i in range(8)])
    write_audit_page(held, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.press("/", *"oSLo")
    assert browser.listed() == [5]
    browser.press("Escape")
    browser.click("[name=view][value=rows]")
    assert browser.listed() == [5]  # of the other rows the page knows the names alone


@needs_chromium
def test_all_samples_as_a_list_and_all_at_once(browser: Browser, tmp_path: Path) -> None:
    held = findings(250, pictures=False)
    write_audit_page(held, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.click("[data-index='1'] [data-action=keep]")
    browser.click("[value=rows]")
    assert browser.listed() == [*range(100)]
    browser.click("#after")
    browser.click("#after")
    assert browser.listed() == [*range(200, 250)]
    browser.press("n")
    assert browser.run("document.activeElement.dataset.index") == "200"
    browser.press("ArrowUp")  # on the page before
    assert browser.run("document.activeElement.dataset.index") == "199"
    browser.click("#flagged")
    assert browser.text("#page") == "page 1 of 2"
    browser.click("[data-bulk=relabel]")
    question = browser.text("#question")
    assert question.startswith("Relabel 63 samples as suggested? The model agrees with the labels of 61 more")
    browser.click("#no")
    assert "; 1 decided" in browser.text("#counts")
    browser.click("[data-bulk=relabel]")
    browser.press("Enter")  # the answer that has the focus
    browser.until("decisions.size === 64")
    flagged = [i for i in range(250) if held.issue[i]]
    expected = [
        Decision(i, "keep") if i == 1 else Decision(i, "relabel", held.class_names[held.suggested[i]])
        for i in flagged
        if i == 1 or held.suggested[i] != held.given[i]
    ]
    assert read_decisions(browser.export(), 250, held.class_names, held.names) == expected
    browser.click("#undo")
    browser.until("decisions.size === 1")


@needs_chromium
def test_decisions_outlive_a_reload_where_the_browser_keeps_them(browser: Browser, tmp_path: Path) -> None:
    held = findings()
    write_audit_page(held, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.click("[data-index='2'] [data-action=relabel]")
    assert browser.run("$('notice').hidden")
    browser.open(tmp_path / "audit.html")
    assert browser.text("#counts").endswith("1 decided (1 relabel)")
    assert browser.run("document.querySelector('[data-index=\"2\"] [aria-pressed=true]').textContent") == "relabel"
    write_audit_page(findings(score=[1.0] * 12), tmp_path / "other.html")
    browser.open(tmp_path / "other.html")
    assert browser.text("#counts").endswith("0 decided")


@needs_chromium
def test_rows_are_exported_with_what_tells_them_from_others(browser: Browser, tmp_path: Path) -> None:
    prints = [f"r{i:08x}" for i in range(12)]
    write_audit_page(dataclasses.replace(findings(), fingerprints=prints), tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    browser.click("[data-index='2'] [data-action=drop]")
    path = browser.export()
    assert path.read_bytes().splitlines()[0] == b"index,name,given_label,action,label,fingerprint"
    classes = ("cat", "dog", "emu")
    assert read_decisions(path, 12, classes, fingerprints=prints) == [Decision(2, "drop")]
    with pytest.raises(DataError, match="line 2: sample 2 is another row than the one that was decided on"):
        read_decisions(path, 12, classes, fingerprints=prints[::-1])


@needs_chromium
@pytest.mark.parametrize("way", ["throw new DOMException('no', 'SecurityError')", "return null"])
def test_a_browser_that_keeps_nothing(browser: Browser, tmp_path: Path, way: str) -> None:
    write_audit_page(findings(), tmp_path / "audit.html")
    refuse = f"Object.defineProperty(window, 'localStorage', {{ get() {{ {way} }} }})"
    browser.open(tmp_path / "audit.html", before=refuse)
    assert not browser.run("$('notice').hidden")
    browser.click("[data-index='0'] [data-action=drop]")
    assert read_decisions(browser.export(), 12, ("cat", "dog", "emu")) == [Decision(0, "drop")]


@needs_chromium
def test_hostile_names_are_shown_and_read_back_exactly(browser: Browser, tmp_path: Path) -> None:
    draw = random.Random(0)
    alphabet = "'=+-@\",;\r\n\t <>&|\\$a1é😀\u202e\u200d\ufeff"
    texts = [HOSTILE, "'", "=cmd|' /C calc'!A0", "<img src=x onerror=alert(1)>", "0123", "\u202egnp.tac"]
    texts += ["".join(draw.choices(alphabet, k=draw.randint(1, 12))) for _ in range(150)]
    texts = [*dict.fromkeys(texts)]
    held = findings(len(texts), texts, len(texts), pictures=False, names=texts, title=HOSTILE)
    write_audit_page(held, tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    for text in (HOSTILE, "\u202egnp.tac"):
        index = texts.index(text)
        assert browser.text(f"[data-index='{index}'] .name bdi") == visible(text)
    assert browser.text("h1") == f"Labels of {visible(HOSTILE)}"
    # each is the new class of another
    browser.run("decide(data.names.map((_, i) => [i, {action: 'relabel', label: (i + 1) % data.names.length}]))")
    path = browser.export()
    expected = [Decision(i, "relabel", texts[(i + 1) % len(texts)]) for i in range(len(texts))]
    assert read_decisions(path, len(texts), texts, texts) == expected
    rows = list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True))[1:]
    for row, text in zip(rows, texts, strict=True):
        assert row[1] in (text, f"'{text}")
        assert not row[1].startswith(tuple("=+-@\t\r\n"))


@needs_chromium
def test_fifty_thousand_samples_are_there_at_once(browser: Browser, tmp_path: Path) -> None:
    names = [f"train/{i % 10}/image {i:05}.png" for i in range(50_000)]
    shown = [Shown(i, names[i], picture=png(56, i)) for i in range(1000)]
    write_audit_page(findings(50_000, names=names, shown=shown), tmp_path / "audit.html")
    browser.open(tmp_path / "audit.html")
    timing = "performance.getEntriesByType('navigation')[0].loadEventEnd"
    browser.until(f"{timing} > 0")
    loaded = browser.run(timing)
    took = {}
    for order in ("name", "class", "score"):
        code = (
            f"{{ const start = performance.now(); $('sort').value = '{order}'; filter(); performance.now() - start }}"
        )
        browser.click("[value=rows]")
        took[order] = browser.run(code)
    megabytes = (tmp_path / "audit.html").stat().st_size / 1e6
    times = ", ".join(f"by {order} {ms:.0f} ms" for order, ms in took.items())
    print(f"{megabytes:.1f} MB, shown after {loaded:.0f} ms; sorted {times}")  # noqa: T201
    assert loaded < 5000  # on a busy machine; about 300 on a quiet one
    assert max(took.values()) < 3000
