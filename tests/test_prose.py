"""Columns of prose as inputs: what the words of the training rows say, whatever the number of threads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils import extmath
from tabled import Columns, prepared, write
from threadpoolctl import threadpool_info, threadpool_limits

from mirrordescent.lab.audit.auditing import Asked, audit_data
from mirrordescent.lab.audit.telling import LONG, findings
from mirrordescent.lab.data.base import DataError
from mirrordescent.lab.data.prose import MOST, ROWS_PER_NUMBER, STEP, VARIANCE, summed_up, words
from mirrordescent.lab.data.tables import prepare_table
from mirrordescent.lab.loop import Keeping
from mirrordescent.lab.place import Place

SAID = {
    "sport": ["match", "goal", "team", "player", "coach", "score", "league", "season", "cup", "fans"],
    "food": ["bread", "soup", "oven", "salt", "dinner", "chef", "taste", "fresh", "menu", "kitchen"],
    "law": ["court", "judge", "case", "appeal", "right", "claim", "lawyer", "trial", "sentence", "rule"],
}
COMMON = ["the", "a", "of", "and", "in", "was", "it", "that", "on", "with", "they", "when", "we", "after", "very"]


def sentence(kind: str, draw: random.Random) -> str:
    said = [draw.choice(SAID[kind]) for _ in range(draw.randint(2, 4))] + draw.choices(COMMON, k=6)
    draw.shuffle(said)
    return " ".join(said).capitalize() + "."


def reviews(rows: int, seed: int = 0) -> Columns:
    draw = random.Random(seed)
    kinds = [draw.choice(list(SAID)) for _ in range(rows)]
    return {"text": [sentence(kind, draw) for kind in kinds], "label": kinds}


TEXTS = st.lists(st.text("abc de.é東京ก\n", max_size=12), min_size=2, max_size=40)


@given(TEXTS, TEXTS)
@settings(max_examples=60, deadline=None)
def test_any_texts_become_finite_numbers_learnt_from_the_training_rows_alone(train: list[str], test: list[str]) -> None:
    x, test_x, (size,) = summed_up([train], [test])
    assert x.dtype == test_x.dtype == torch.float32
    assert x.shape[0] == len(train)
    assert test_x.shape == (len(test), x.shape[1])
    assert bool(x.isfinite().all() and test_x.isfinite().all())
    both = [word for word in {w for text in train for w in words(text)} if sum(word in words(t) for t in train) > 1]
    assert size == len(both)
    again, turned, _ = summed_up([train], [test[::-1]])
    assert torch.equal(again, x)
    assert torch.equal(turned, test_x.flip(0))
    loud, _, _ = summed_up([[text.upper() for text in train]], [test])
    assert torch.equal(loud, x)
    assert torch.equal(summed_up([train], [train])[1], x) or not size


def test_all_numbers_keep_the_distances_of_the_weighed_words() -> None:
    """Ten words leave nothing to sum up: ten numbers tell all, up to their unit."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(SAID["sport"], k=5)) for _ in range(400)]
    x, test_x, sizes = summed_up([texts[:300]], [texts[300:]])
    weights = TfidfVectorizer(sublinear_tf=True).fit(texts[:300])
    plain = torch.from_numpy(weights.transform(texts).toarray())
    assert sizes == [10]
    assert x.shape == (300, 10)
    found = torch.cdist(x, test_x).flatten().double()
    wanted = torch.cdist(plain[:300], plain[300:]).flatten()
    unit = float((found @ wanted) / (wanted @ wanted))
    assert float((found - unit * wanted).abs().max()) < 0.15 * unit
    assert float(torch.corrcoef(torch.stack([found, wanted]))[0, 1]) > 0.99


def test_the_numbers_count_as_much_as_three_columns_and_have_mean_zero() -> None:
    texts = [str(text) for text in reviews(400)["text"]]
    x, _, _ = summed_up([texts, texts[::-1]], [[], []])
    assert x.shape == (400, 400 // ROWS_PER_NUMBER)
    assert float(x.double().square().sum(dim=1).mean()) == pytest.approx(VARIANCE, rel=1e-2)
    assert float(x.mean(dim=0).abs().max()) < STEP
    assert summed_up([[f"w{i % 900} w{i % 901}" for i in range(20_000)]], [[]])[0].shape[1] == MOST


def test_the_numbers_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose data have changed does not go on: the last bits of sums must not count."""
    texts, real = [str(text) for text in reviews(600)["text"]], extmath.randomized_svd
    threads: set[int] = set()

    def watched(*given: Any, **options: Any) -> Any:
        threads.update(pool["num_threads"] for pool in threadpool_info())
        return real(*given, **options)

    monkeypatch.setattr(extmath, "randomized_svd", watched)
    found = []
    for number in (1, 2):
        with threadpool_limits(number):
            found.append(summed_up([texts], [texts])[0])
    assert torch.equal(*found)
    assert threads == {1}


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        ([f"This is review {i} of a film" for i in range(90)], "prose"),
        ([f"This is review {i % 30} of a film" for i in range(30)] * 3, "levels"),  # three rows each, and few
        ([f"This is review {i % 60} of a film" for i in range(180)], "prose"),
        ([f"House {i % 60} of the old town" for i in range(900)], "levels"),
        ([f"本日の映画は素晴らしい{i}" for i in range(90)], "prose"),
        ([f"pictures/cats/{i}/a very/b.png".replace(" ", "_") for i in range(90)], "left out, every value different"),
        ([f"Ann Lee{i}" for i in range(90)], "left out, every value different"),
        ([f"meeting,team,agenda {i}" for i in range(90)], "prose"),
        ([f"2024-05-03T10:11:{i % 60:02}Z host sshd: failed for user {i}" for i in range(90)], "prose"),
        ([f"2024-05-03 10:11:{i % 60:02} UTC" for i in range(90)], "left out, dates"),
        ([f"[0.{i} 1.{i} 2.5 3.5 4.5]" for i in range(90)], "left out, objects or lists"),
        ([f'{{"user": "u{i}", "from": "de", "likes": {i % 5}}}' for i in range(90)], "left out, objects or lists"),
        (['["red", "a fine blue"]', "[]", '["red"]'] * 30, "levels"),
    ],
)
def test_prose_is_told_from_levels_paths_names_and_numbers(texts: list[str], kind: str, tmp_path: Path) -> None:
    n = len(texts)
    columns: Columns = {"text": texts, "a": [i * i % 7 for i in range(n)], "y": [i % 2 for i in range(n)]}
    table = prepare_table(write(tmp_path / "a.csv", columns), whole=True)
    starts = {"prose": "text by its words", "levels": "text columns as one-hot"}
    assert any(note.startswith(starts.get(kind, kind)) and "text" in note for note in table.data.notes)
    assert ("words 1" in table.features) == (kind == "prose")


def test_what_became_of_prose_is_told(tmp_path: Path) -> None:
    n = 64
    columns: Columns = {
        "title": [f"a good film {i}" for i in range(n)],
        "text": [f"I saw it {['twice', 'once'][i % 2]}, number {i}" if i % 8 else None for i in range(n)],
        "odd": [f"only{i} ever{i} here{i}" for i in range(n)],
        "y": [0, 1] * (n // 2),
    }
    table = prepare_table(write(tmp_path / "a.csv", columns), whole=True)
    # title: a, good, film; text: i, saw, it, twice, once, number
    assert "text by its words, summed up in 8 numbers: title (3 words), text (6 words)" in table.data.notes
    assert "left out, no word is in two rows: odd" in table.data.notes
    assert "without text: text (8 rows)" in table.data.notes
    assert table.features == tuple(f"words {i}" for i in range(1, 9))
    with pytest.raises(DataError, match=r"no column is left .* \(left out, no word is in two rows: odd\)"):
        prepared({name: columns[name] for name in ("odd", "y")})


def test_equal_texts_are_copies() -> None:
    """They go to the same side of the split, and their labels are compared."""
    columns = reviews(200)
    columns = {name: [*cells, *cells[:40]] for name, cells in columns.items()}
    notes = prepared(columns).data.notes
    assert any(note.endswith("with copies on the same side") for note in notes)


def test_wrong_labels_of_texts_are_found(tmp_path: Path) -> None:
    columns, draw = reviews(500), random.Random(1)
    bad = {i for i in range(500) if draw.random() < 0.15}
    given = [
        draw.choice([k for k in SAID if k != kind]) if i in bad else kind for i, kind in enumerate(columns["label"])
    ]
    long = f"{columns['text'][0]} {'the ' * LONG}".strip()
    path = write(tmp_path / "reviews.csv", {**columns, "text": [long, *columns["text"][1:]], "label": given})
    audited = audit_data(str(path), Asked(no_check=True), Keeping(tmp_path / "runs"), Place("cpu"))
    flagged = set(audited.found.issue.nonzero()[:, 0].tolist())
    assert len(flagged & bad) > 0.75 * len(bad)
    assert len(flagged & bad) > 0.75 * len(flagged)
    assert audited.whole.cells(0)[0] == ("text", long)
    cells = {one.index: dict(one.cells)["text"] for one in findings(audited).shown}
    assert cells[0] == f"{long[:LONG]} … ({len(long):,} characters)"  # the page stays small
    assert cells[1] == columns["text"][1]
