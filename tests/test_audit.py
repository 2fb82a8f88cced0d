"""`rmd audit` and `rmd clean` from end to end: wrong labels are found, and cleaned copies are what was decided."""

from __future__ import annotations

import csv
import dataclasses
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mislabelled import animals, table

import mirrordescent as md
from mirrordescent.lab.audit.auditing import Asked, Audited, audit_data, audit_labels, run_for, works_of
from mirrordescent.lab.audit.cleaning import (
    Choice,
    Cleaning,
    by_audit,
    changes,
    clean,
    compared,
    copy_path,
    decided,
    recipe_for,
)
from mirrordescent.lab.audit.decisions import Decision, _survives, decisions_csv, read_decisions
from mirrordescent.lab.audit.rule import FEWEST, MOST, chosen
from mirrordescent.lab.audit.telling import findings, histogram, in_short, sentences, write_audit
from mirrordescent.lab.data import Data, DataError, Source
from mirrordescent.lab.data.split import split
from mirrordescent.lab.data.whole import load_whole
from mirrordescent.lab.display import show_cleaned
from mirrordescent.lab.kept import Check, audit_alone
from mirrordescent.lab.loop import Keeping, Progress
from mirrordescent.lab.place import Place
from mirrordescent.lab.records import RunError, read, read_all
from mirrordescent.lab.train import train

CPU = Place("cpu", threads=1)
ASKED = Asked(corruption=0.3, noise="pair")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audited, Keeping]:
    keeping = Keeping(tmp_path_factory.mktemp("digits"))
    return audit_data("digits", ASKED, keeping, CPU), keeping


NAMES = st.text("ab=+-@'\",;\n 1.é", min_size=1).map(str.strip).filter(bool)


class TestRule:
    """Settings from the data alone."""

    @pytest.mark.parametrize("model", ["mlp", "cnn", "deep-cnn", "resnet18"])
    @pytest.mark.parametrize("n", [1, 10, 300, 2000, 60_000, 10**7])
    def test_the_time_scale_of_z_is_the_run(self, n: int, model: str) -> None:
        choice = chosen(n, model)
        assert choice.lam == choice.lr * choice.epochs
        assert FEWEST <= choice.epochs <= MOST
        assert 1 <= choice.batch_size <= n

    @pytest.mark.parametrize("n", [2, 9, 40, 64, 100, 255, 256, 2000])
    def test_few_pictures_are_several_steps(self, n: int) -> None:
        batch = chosen(n, "deep-cnn").batch_size
        assert min(n, 8) <= batch <= 32
        assert n // batch >= min(8, n // 8)

    def test_what_is_given_stays(self) -> None:
        given: dict[str, Any] = {"lr": 0.05, "lam": 3.0, "epochs": 7, "batch_size": 11}
        assert dataclasses.asdict(chosen(500, "mlp", **given)) == given
        assert chosen(500, "mlp", epochs=40).lam == chosen(500, "mlp", epochs=40).lr * 40


class TestAudit:
    """What is found, and how it is told."""

    def test_corrupted_labels_are_found(self, digits: tuple[Audited, Keeping]) -> None:
        found, changed = digits[0].found, digits[0].changed
        assert changed is not None
        assert found.noise == pytest.approx(float(changed.double().mean()), abs=0.03)
        assert float(changed[found.issue].double().mean()) > 0.95
        assert float(found.issue[changed].double().mean()) > 0.9
        right = digits[0].whole.data.targets
        assert float((found.suggested == right)[changed & found.issue].double().mean()) > 0.95

    def test_again_it_is_only_read(self, digits: tuple[Audited, Keeping]) -> None:
        heard: list[Progress] = []
        again = audit_data("digits", ASKED, digits[1], CPU, watch=heard.append)
        assert not heard
        assert torch.equal(again.found.score, digits[0].found.score)

    @pytest.mark.parametrize("no_check", [False, True])
    def test_what_it_will_train_is_what_it_has_trained(self, digits: tuple[Audited, Keeping], no_check: bool) -> None:
        asked = dataclasses.replace(ASKED, no_check=no_check)
        works = works_of(digits[0].whole, asked, digits[1])
        assert len(works) == 2 - no_check
        for work in works:
            assert read(work.root / work.run.id).status == "done"

    def test_its_folder_says_the_same(self, digits: tuple[Audited, Keeping], tmp_path: Path) -> None:
        """The second network's opinion among it; without the check it is the first one's alone."""
        folder, found, check = digits[0].record.folder, digits[0].found, digits[0].check
        assert check is not None
        assert torch.equal(md.audit(folder).score, found.score)
        alone = audit_data("digits", dataclasses.replace(ASKED, no_check=True), digits[1], CPU)
        assert alone.found.noise == check.before != found.noise
        copy = shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns("check"))
        for bad in ("{", "[]", '{"wrong": 0.1}'):
            (copy / "check.json").write_text(bad)
            with pytest.raises(RunError, match=r"check\.json cannot be read; remove it"):
                md.audit(copy)
        for one in (copy, folder):  # nor does the folder have it, once an audit had none
            (copy / "check.json").unlink(missing_ok=True)
            assert torch.equal(md.audit(one).score, alone.found.score)
        audit_data("digits", ASKED, digits[1], CPU)
        assert torch.equal(md.audit(folder).score, found.score)

    def test_a_run_is_found_among_the_audits(
        self, digits: tuple[Audited, Keeping], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("mirrordescent.lab.kept.Keeping", lambda: digits[1])
        assert torch.equal(md.audit(digits[0].record.run).given, digits[0].found.given)

    def test_a_report_is_of_runs_and_not_of_checks(self, digits: tuple[Audited, Keeping]) -> None:
        assert digits[0].check is not None
        inside = [path.parent for path in digits[0].record.folder.rglob("run.json")]
        assert len(inside) > 1
        found = {record.folder for record in read_all(digits[1].root / "audits")}
        assert found & set(inside) == {digits[0].record.folder}
        with pytest.raises(RunError, match="holds no runs"):  # audits are judged by what they were trained on
            read_all(digits[1].root)

    def test_the_sentences_say_what_was_found(self, digits: tuple[Audited, Keeping]) -> None:
        told = " ".join(sentences(digits[0]))
        assert f"{int(digits[0].found.issue.sum()):,} are flagged as more likely wrong than right" in told
        check = digits[0].check
        assert check is not None
        assert f"contradicts {100 * check.contradicted:.1f} % of the other labels" in told
        assert check.wrong <= check.contradicted + 0.02
        assert check.there is not None
        assert digits[0].found.noise == pytest.approx(check.before + (check.wrong - check.there) / 2, abs=1e-4)
        _, others = split(digits[0].found.given, 0.2, 0, "digits")
        alone = audit_alone(digits[0].record)
        assert check.there == pytest.approx(float(alone.wrong[others].mean()))
        assert "far more of them" not in told
        learnt = dataclasses.replace(check, contradicted=digits[0].found.noise + 0.11)
        assert "far more of them" in " ".join(sentences(dataclasses.replace(digits[0], check=learnt)))
        assert f"About {100 * digits[0].found.noise:.1f} %" in told
        assert "were corrupted on purpose" in told
        assert "corrupted" not in " ".join(sentences(dataclasses.replace(digits[0], changed=None)))

    def test_in_short_the_estimate_and_every_doubt_are_told(self, digits: tuple[Audited, Keeping]) -> None:
        """Each in the same words as at length."""
        check, record = digits[0].check, digits[0].record
        assert check is not None
        learnt = dataclasses.replace(check, contradicted=digits[0].found.noise + 0.11)
        doubtful = {
            "There is no second opinion": dataclasses.replace(digits[0], check=None, unchecked="it diverged"),
            "what is flagged says nothing": dataclasses.replace(
                digits[0], check=dataclasses.replace(check, beyond_chance=0.0)
            ),
            "Do not rely on the number; the ranking may still be of use": dataclasses.replace(digits[0], check=learnt),
            "No second network has checked this estimate": dataclasses.replace(digits[0], check=None),
            "takes hardly any of the labels that it judged for wrong": dataclasses.replace(
                digits[0], check=dataclasses.replace(check, wrong=check.first / 5)
            ),
            "takes hardly any sample for '3', '7'": dataclasses.replace(
                digits[0], found=dataclasses.replace(digits[0].found, unlearnt=(3, 7))
            ),
            "was trained with a longer memory (0.97), so that it gives up no class": dataclasses.replace(
                digits[0],
                record=dataclasses.replace(record, run=dataclasses.replace(record.run, memory=0.97)),
            ),
        }
        assert in_short(digits[0]) == sentences(digits[0])[:1]
        for doubt, audited in doubtful.items():
            told = in_short(audited)
            assert ["estimated to be wrong;" in sentence for sentence in told].count(True) == 1
            assert [doubt in sentence for sentence in told].count(True) == len(told) - 1 == 1
            assert set(told) <= set(sentences(audited))
            assert sentences(audited)[0] == told[0]

    @pytest.mark.parametrize(
        ("flagged", "told"),
        [
            ({(3, 7): 0.2, (7, 3): 0.15}, [("3", "7", "20.0 % and 15.0 %")]),
            ({(3, 7): 0.2, (7, 3): 0.15, (3, 5): 0.1, (7, 5): 0.1}, [("3", "7", "20.0 % and 15.0 %")]),
            ({(3, 7): 0.2, (7, 3): 0.05}, []),  # wrong in one way, as by a mistake in the labels' making
            ({(3, 7): 0.2, (7, 5): 0.2, (5, 3): 0.2}, []),  # in a circle
            ({(a, b): 0.13 for a in (3, 5, 7) for b in (3, 5, 7) if a != b}, []),  # three classes, 40 % redrawn
        ],
    )
    def test_two_classes_that_are_flagged_for_each_other_are_told(
        self, flagged: dict[tuple[int, int], float], told: list[tuple[str, ...]], digits: tuple[Audited, Keeping]
    ) -> None:
        given = torch.arange(1000) % 10
        p = torch.full((1000, 10), 0.001, dtype=torch.float64)
        p[torch.arange(1000), given] = 0.991
        score = torch.full((1000,), -9.0, dtype=torch.float64)
        taken = dict.fromkeys(range(10), 0)
        for (a, b), share in flagged.items():
            some = (given == a).nonzero()[:, 0][taken[a] : taken[a] + round(100 * share)]
            taken[a] += len(some)
            p[some, a], p[some, b], score[some] = 0.001, 0.991, 9.0
        found = md.Audit(given, score, p)
        assert int(found.issue.sum()) == sum(taken.values())
        said = [s for s in sentences(dataclasses.replace(digits[0], found=found, changed=None)) if "each other" in s]
        assert len(said) == len(told)
        for sentence, (one, other, shares) in zip(said, told, strict=True):
            assert sentence.startswith(f"'{one}' and '{other}' are flagged for each other ({shares} of them)")

    def test_a_class_of_which_nothing_would_be_left_stays(
        self, digits: tuple[Audited, Keeping], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = digits[0].found.given
        gone = Choice((given != 3) & (torch.arange(len(given)) % 5 > 0), given)
        monkeypatch.setattr("mirrordescent.lab.audit.cleaning.by_audit", lambda *_: gone)
        choice = clean(digits[0], ASKED, Cleaning(), digits[1], CPU)
        assert choice.spared == (3,)
        assert torch.equal(choice.keep, gone.keep | (given == 3))
        show_cleaned(digits[0].whole, given, choice, [])
        assert "Every label of '3' is flagged: these stay as they are." in " ".join(capsys.readouterr().out.split())

    def test_a_class_that_cannot_be_told_from_another_is_left_to_a_person(self, tmp_path: Path) -> None:
        """It is told, its labels are flagged by nobody, and the check says nothing of them either."""
        draw = random.Random(0)
        kinds = draw.choices("abc", [0.5, 0.12, 0.38], k=600)
        rows = [f"{draw.gauss(6 * (kind == 'c'), 1):.3f},{draw.gauss(0, 1):.3f},{kind}" for kind in kinds]
        (tmp_path / "a.csv").write_text("\n".join(["x,y,label", *rows]))
        audited = audit_data(str(tmp_path / "a.csv"), Asked(epochs=20), Keeping(tmp_path / "runs"), CPU)
        assert [audited.whole.class_names[c] for c in audited.found.unlearnt] == ["b"]
        assert not audited.found.issue[audited.found.given == 1].any()
        assert audited.check is not None
        assert audited.check.contradicted < 0.03
        assert audited.found.noise < 0.03

    def test_few_wrong_labels_are_not_outvoted_by_chance(self, tmp_path: Path) -> None:
        """None of them may be among those that the second network judges, and they are as wrong as before."""
        path, draw, given = tmp_path / "a.csv", random.Random(0), [i % 3 for i in range(300)]
        _, others = split(torch.tensor(given), 0.2, 0, "a.csv")
        apart = sorted(set(range(300)) - set(others.tolist()))
        wrong = draw.sample(apart, 9)
        with path.open("w") as file:
            file.write("a,b,c,y\n")
            for i, label in enumerate(given):
                true = (label + 1) % 3 if i in wrong else label
                file.write(",".join([f"{draw.gauss(12 * (true == k), 1):.3f}" for k in range(3)] + [str(label)]) + "\n")
        audited = audit_data(str(path), Asked(), Keeping(tmp_path / "runs"), CPU)
        assert audited.check is not None
        assert audited.check.wrong < 0.01
        assert sum(bool(audited.found.issue[i]) for i in wrong) >= 8
        assert int(audited.found.issue.sum()) <= 10

    @pytest.mark.parametrize("seed", [0, 1])
    def test_a_small_class_beside_a_larger_one_is_not_given_up(self, seed: int, tmp_path: Path) -> None:
        """Neither by the network that judges nor by the one that checks it."""
        wrong = animals(tmp_path / "a.csv", seed=seed)
        asked = Asked(label="species", seed=seed)
        audited = audit_data(str(tmp_path / "a.csv"), asked, Keeping(tmp_path / "runs"), CPU)
        found = audited.found
        bad = torch.tensor([line in wrong for line in range(2, 656)])
        assert found.unlearnt == ()
        assert audited.check is not None
        assert found.noise == pytest.approx(float(bad.double().mean()), abs=0.05)
        assert float(bad[found.issue].double().mean()) > 0.7
        assert float(found.issue[bad].double().mean()) > 0.8
        short = dataclasses.replace(asked, no_check=True)
        first = run_for(audited.whole.data, str(tmp_path / "a.csv"), short)
        alone = audit_alone(train(first, Keeping(tmp_path / "again"), CPU, data=audited.whole.data))
        assert [audited.whole.class_names[c] for c in alone.unlearnt] == ["rabbit"]  # with the short memory

    @given(st.floats(0, 1), st.floats(0, 1))
    def test_the_share_stays_a_share(self, wrong: float, there: float) -> None:
        found = md.Audit(torch.tensor([0, 1, 0]), torch.tensor([-2.0, 0.0, 3.0], dtype=torch.float64))
        judged = Check(wrong, wrong, found.noise, None, there).judged(found)
        wanted = min(max(found.noise + (wrong - there) / 2, 1e-6), 1 - 1e-6)
        assert judged.noise == pytest.approx(wanted, abs=1e-6)
        old = Check(wrong, wrong, found.noise).judged(found)  # as it was written before
        assert old.noise == pytest.approx(min(max((found.noise + wrong) / 2, 1e-6), 1 - 1e-6), abs=1e-6)

    def test_chance_is_told_where_classes_were_given_up_as_well(self, tmp_path: Path) -> None:
        """Labels of many classes that have nothing to do with the inputs: a network learns the largest alone."""
        draw, path = random.Random(0), tmp_path / "a.csv"
        labels = [0 if draw.random() < 0.5 else draw.randrange(1, 40) for _ in range(1000)]
        path.write_text("a,b,c,y\n" + "".join(f"{draw.random()},{draw.random()},{draw.random()},{y}\n" for y in labels))
        audited = audit_data(str(path), Asked(epochs=10), Keeping(tmp_path / "runs"), CPU)
        assert audited.found.unlearnt
        assert audited.check is not None
        assert audited.check.in_vain
        with pytest.raises(DataError, match="no better than chance"):
            clean(audited, Asked(epochs=10), Cleaning(), Keeping(tmp_path / "runs"), CPU)

    def test_of_a_few_labels_nobody_can_say_that_nothing_was_learnt(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text(
            "a,b,y\n" + "".join(f"{20 * (i % 2) + 0.1 * (i % 7)},{i * i % 11},{i % 2}\n" for i in range(30))
        )
        audited = audit_data(str(path), Asked(), Keeping(tmp_path / "runs"), CPU)
        assert audited.check is not None
        assert not audited.check.in_vain
        assert clean(audited, Asked(), Cleaning(), Keeping(tmp_path / "runs"), CPU).keep.sum() >= 28

    def test_the_files(self, digits: tuple[Audited, Keeping], tmp_path: Path) -> None:
        paths = write_audit(digits[0], tmp_path / "deep" / "out", shown=5)
        assert [path.name for path in paths] == ["audit.csv", "audit.html"]
        with paths[0].open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["name"] for row in rows] == list(digits[0].whole.names)
        assert [row["is_label_issue"] == "True" for row in rows] == digits[0].found.issue.tolist()
        worst = findings(digits[0], shown=5).shown
        assert [shown.index for shown in worst] == digits[0].found.order[:5].tolist()
        assert all(shown.picture for shown in worst)

    def test_the_histogram_adds_up(self, digits: tuple[Audited, Keeping]) -> None:
        found = digits[0].found
        held = histogram(found.score, found.wrong)
        assert sum(held.counts) == len(found)
        assert sum(held.wrong) == pytest.approx(float(found.wrong.sum()))
        for count, right, wrong in zip(held.counts, held.right, held.wrong, strict=True):
            assert right + wrong == pytest.approx(count)
        flat = histogram(torch.zeros(7), torch.full((7,), 0.5))
        assert sum(flat.counts) == 7

    @pytest.mark.parametrize(("classes", "lonely"), [(2, False), (2, True), (3, True)])
    def test_a_table(self, tmp_path: Path, classes: int, lonely: bool) -> None:
        """Two classes, and a class with one member; every line is audited, and no accuracy on trained samples told."""
        path = tmp_path / "things.csv"
        bad = table(path, classes=classes, lonely=lonely)
        heard: list[Progress] = []
        asked = Asked(label="kind", epochs=40, no_check=True)
        audited = audit_data(str(path), asked, Keeping(tmp_path / "runs"), CPU, watch=heard.append)
        assert audited.check is None
        assert len(audited.found) == 300 + lonely
        told = "Nothing is flagged in classes with fewer than 5 samples, whatever their scores: alone."
        assert any(told in sentence for sentence in sentences(audited)) == lonely
        assert not lonely or not audited.found.issue[-1]
        assert not audited.whole.held_out
        assert heard
        assert not any(progress.row for progress in heard)
        flagged = {audited.whole.names[i] for i in audited.found.issue.nonzero()[:, 0].tolist()}
        hits = len(flagged & {f"line {line}" for line in bad})
        assert hits > 0.7 * len(bad)
        assert len(flagged) < 2 * len(bad)
        shown = findings(audited)
        assert dict(shown.shown[0].cells).keys() == {"kind", "a", "b", "colour"}
        assert shown.notes == audited.whole.data.notes

    def test_a_run_that_diverges_begins_again_with_a_smaller_step(
        self, digits: tuple[Audited, Keeping], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time scale of z stays; a step or a λ that was given stays too."""
        record, tried = digits[0].record, []
        samples: list[int] = []

        def diverging(run: Any, *_: Any, data: Data, **__: Any) -> Any:
            tried.append((run.lr, run.lam))
            samples.append(len(data))
            reason = "epochs" if run.lr < 0.5 else "diverged"
            return dataclasses.replace(record, run=run, reason=reason, epochs=7)

        monkeypatch.setattr("mirrordescent.lab.engine.train", diverging)
        run = dataclasses.replace(record.run, lr=0.9, lam=9.0)
        asked = Asked(no_check=True)
        judged = audit_labels(run, digits[0].whole.data, asked, digits[1], CPU)
        assert judged.record.run.lr == tried[-1][0] == pytest.approx(0.3)
        assert tried[-1][1] == pytest.approx(3.0)
        audit_labels(run, digits[0].whole.data, dataclasses.replace(asked, lam=9.0), digits[1], CPU)
        assert tried[-1] == (pytest.approx(0.3), 9.0)
        samples.clear()
        monkeypatch.setattr("mirrordescent.lab.audit.auditing._check", lambda *_: digits[0].check)
        audit_labels(run, digits[0].whole.data, Asked(), digits[1], CPU)
        assert samples == [1200, 1200, 960]  # no check of what diverged
        for fixed, lr in ((True, 0.9), (False, 90.0)):
            run = dataclasses.replace(record.run, lr=lr, lam=10 * lr)
            asked = Asked(no_check=True, lr=lr if fixed else None)
            with pytest.raises(RunError, match="diverged at epoch 7 with a step size of"):
                audit_labels(run, digits[0].whole.data, asked, digits[1], CPU)

    def test_a_check_that_is_lost_is_told(
        self, digits: tuple[Audited, Keeping], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def diverging(run: Any, keeping: Keeping, *more: Any, **named: Any) -> Any:
            found = train(run, keeping, *more, **named)
            return dataclasses.replace(found, reason="diverged") if keeping.root.name == "check" else found

        monkeypatch.setattr("mirrordescent.lab.engine.train", diverging)
        lost = audit_data("digits", ASKED, digits[1], CPU)
        assert lost.check is None
        assert "There is no second opinion: the second network's training diverged." in sentences(lost)
        assert torch.equal(md.audit(lost.record.folder).score, lost.found.score)

    def test_what_cannot_be_audited(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="regression has no classes"):
            audit_data("regression", Asked(), Keeping(tmp_path), CPU)
        path = tmp_path / "things.csv"
        table(path)
        with pytest.raises(DataError, match="no column called label, target, class or y; say which one is the label"):
            audit_data(str(path), Asked(), Keeping(tmp_path), CPU)


class TestChoice:
    """Which samples stay, with which labels."""

    def test_dropping_leaves_out_what_is_flagged(self, digits: tuple[Audited, Keeping]) -> None:
        found = digits[0].found
        choice = by_audit(found, Cleaning())
        assert torch.equal(choice.keep, ~found.issue)
        assert torch.equal(choice.labels, found.given)

    @pytest.mark.parametrize("confidence", [0.0, 0.8, 1.0])
    def test_relabelling_where_it_is_confident(self, digits: tuple[Audited, Keeping], confidence: float) -> None:
        found = digits[0].found
        choice = by_audit(found, Cleaning(relabel=True, confidence=confidence))
        changed = choice.labels != found.given
        assert bool(found.issue[changed].all())
        assert bool((found.confidence[changed] >= confidence).all())
        assert bool((choice.keep | found.issue).all())
        assert not (found.issue & choice.keep & ~changed).any()

    def test_decisions_alone_decide(self) -> None:
        given = torch.tensor([0, 1, 2, 0])
        made = [Decision(0, "drop"), Decision(1, "relabel", "c"), Decision(3, "keep")]
        choice = decided(given, made, ("a", "b", "c"))
        assert choice.keep.tolist() == [False, True, True, True]
        assert choice.labels.tolist() == [0, 2, 2, 0]

    def test_what_was_changed_can_be_done_again(self, digits: tuple[Audited, Keeping], tmp_path: Path) -> None:
        audited, path = digits[0], tmp_path / "changes.csv"
        choice = by_audit(audited.found, Cleaning(relabel=True, confidence=0.8))
        path.write_text(changes(choice, audited.found.given, audited.whole), newline="")
        names, given = audited.whole.class_names, audited.found.given
        again = decided(given, read_decisions(path, len(given), names, audited.whole.names, given.tolist()), names)
        assert torch.equal(again.keep, choice.keep)
        assert torch.equal(again.labels[again.keep], choice.labels[choice.keep])
        assert 0 < int((~again.keep).sum()) < int((choice.labels != given).sum() + (~again.keep).sum())

    @given(st.lists(NAMES, min_size=2, max_size=4, unique_by=_survives))
    def test_any_name_survives_the_list_of_changes(self, names: list[str]) -> None:
        made = [Decision(i, "relabel", name) for i, name in enumerate(names)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "changes.csv")
            path.write_bytes(decisions_csv(made, names, names, [0] * len(names)).encode())
            assert read_decisions(path, len(names), names, names, [0] * len(names)) == made

    def test_decisions_on_labels_that_have_changed_since(self, tmp_path: Path) -> None:
        path, names = tmp_path / "decisions.csv", ("a", "b")
        path.write_text("index,name,given_label,action,label\n1,sample 1,a,drop,\n")
        assert read_decisions(path, 2, names, given=[1, 0]) == [Decision(1, "drop")]
        with pytest.raises(DataError, match="line 2: sample 1 is labelled 'b', but was 'a' when it was decided on"):
            read_decisions(path, 2, names, given=[1, 1])

    def test_rounds_go_on_with_what_is_left(self, digits: tuple[Audited, Keeping]) -> None:
        audited, keeping = digits
        asked = Asked(corruption=0.3, noise="pair", epochs=20)
        one = clean(audited, asked, Cleaning(), keeping, CPU)
        other = clean(audited, asked, Cleaning(rounds=2, relabel=True), keeping, CPU)
        two = clean(audited, asked, Cleaning(rounds=2), keeping, CPU)
        assert bool((one.keep | ~two.keep).all())  # nothing comes back
        assert not torch.equal(two.keep, other.keep)
        assert len(list(audited.record.folder.glob("round-*"))) == 2  # other data, another folder

    @pytest.mark.parametrize(
        ("settings", "told"),
        [
            ({"confidence": 1.1}, r"confidence must be in \[0, 1\]"),
            ({"rounds": 0}, "rounds must be >= 1"),
            ({"retrain_epochs": 0}, "retrain_epochs must be >= 1"),
            ({"decisions": Path("a.csv"), "relabel": True}, "decisions alone decide"),
            ({"confidence": 0.8}, "confidence does nothing without relabel"),
            ({"mixup": -1}, "mixup must be >= 0"),
            ({"mixup": 0.4, "recipe": "rmd"}, "mixup is for recipe 'sgd'"),
            ({"no_compare": True, "mixup": 0.4}, "no_compare trains nothing again"),
            ({"no_compare": True, "retrain_epochs": 3}, "no_compare trains nothing again"),
        ],
    )
    def test_what_makes_no_sense(self, settings: dict[str, Any], told: str) -> None:
        with pytest.raises(ValueError, match=told):
            Cleaning(**settings)


class TestCompared:
    """Training again."""

    def test_cleaned_labels_are_better_than_all_and_no_better_than_the_right_ones(
        self, digits: tuple[Audited, Keeping]
    ) -> None:
        audited, keeping = digits
        cleaning = Cleaning(retrain_epochs=30)
        found = compared(audited, by_audit(audited.found, cleaning), ASKED, cleaning, keeping, CPU)
        assert [outcome.name for outcome in found] == ["all labels", "cleaned", "right labels only"]
        everything, cleaned, right = (outcome.record.final["test_accuracy"] or 0.0 for outcome in found)
        assert everything + 0.01 < cleaned < right + 0.02
        assert found[1].samples == int((~audited.found.issue).sum())

    def test_without_a_test_set_a_fifth_is_set_aside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path, keeping = tmp_path / "things.csv", Keeping(tmp_path / "runs")
        table(path)
        asked = Asked(label="kind", epochs=5, no_check=True)
        audited = audit_data(str(path), asked, keeping, CPU)
        seen = []

        def spy(run: Any, *arguments: Any, data: Any, **more: Any) -> Any:
            seen.append(data)
            return train(run, *arguments, data=data, **more)

        monkeypatch.setattr("mirrordescent.lab.engine.train", spy)  # the audit's too, which has not seen the others
        everything = Choice(torch.ones(300, dtype=torch.bool), audited.found.given)
        compared(audited, everything, asked, Cleaning(retrain_epochs=1), keeping, CPU)
        assert len(seen) == 3
        for data in seen:
            trained = {tuple(row) for row in data.inputs.tolist()}
            assert not trained & {tuple(row) for row in data.test_inputs.tolist()}
            assert len(data) + len(data.test_inputs) <= 300

    @pytest.mark.parametrize("recipe", ["sgd", "rmd"])
    def test_the_recipe_has_the_audits_network_and_seed(self, digits: tuple[Audited, Keeping], recipe: Any) -> None:
        audit = dataclasses.replace(digits[0].record.run, seed=3)
        run = recipe_for(digits[0].whole.data, audit, Cleaning(recipe=recipe, retrain_epochs=9))
        assert (run.model, run.seed, run.epochs, run.algorithm) == (audit.model, 3, 9, recipe)
        assert not run.corruption
        assert recipe_for(digits[0].whole.data, audit, Cleaning()).mixup > 0  # the recipe's own
        for mixup in (0.0, 0.2):
            assert recipe_for(digits[0].whole.data, audit, Cleaning(mixup=mixup)).mixup == mixup
        slow = dataclasses.replace(audit, lr=0.01, lam=0.5)  # what the audit had to do, RMD does again
        again = recipe_for(digits[0].whole.data, slow, Cleaning(recipe="rmd"))
        assert (again.lr, again.lam) == (0.01, 0.5)


def test_the_copys_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "things.csv")
    assert copy_path(load_whole(Source("digits")), None) == Path("digits-cleaned.npz")
    assert copy_path(load_whole(Source("things.csv", "kind")), None) == Path("things-cleaned.csv")
    assert copy_path(load_whole(Source("digits")), Path("x.npz")) == Path("x.npz")


def test_a_check_that_learnt_no_more_than_chance_is_in_vain() -> None:
    told = [Check(0.1, 0.1, 0.1, learnt).in_vain for learnt in (2.4, 2.5, None)]
    assert told == [True, False, False]
