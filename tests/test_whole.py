"""A data set with all its labels: every sample is there in its order, and each is found again where it came from."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mirrordescent.lab.data import Data, DataError, Source, load
from mirrordescent.lab.data.split import divided, split, told_of_parts
from mirrordescent.lab.data.whole import Whole, load_whole

N = 12
LABELS = np.arange(N) % 3
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 6), dtype=np.uint8)
ROWS = "".join(f'{i * i % 7},"a ""{"x" if i % 2 else "y"}"", b",{"pqr"[i % 3]}\n' for i in range(N))
TABLE = "size,what,label\n" + ROWS


def images(folder: Path, per_class: int = 3, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    image = pytest.importorskip("PIL.Image")
    for c, name in enumerate(classes):
        for i in range(per_class):
            path = folder / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.new("RGB", (200, 100), (20 * i, 50 * c, 9)).save(path)
    return folder


def whole_of(path: Path, **settings: Any) -> Whole:
    return load_whole(Source(str(path), **settings))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text(TABLE)
    return tmp_path / "a.csv"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "a.npz", x=PIXELS, y=LABELS)
    return tmp_path / "a.npz"


def check_whole(whole: Whole, n: int) -> None:
    """All samples are trained on, and the test samples are a few of them, and it is told."""
    data = whole.data
    assert len(data) == len(whole.names) == len(set(whole.names)) == n
    assert not whole.held_out
    samples = {tuple(x.flatten().tolist()) for x in data.inputs}
    assert {tuple(x.flatten().tolist()) for x in data.test_inputs} <= samples
    assert len(data.test_inputs) < n
    assert any("none is set aside" in note for note in data.notes)


def test_a_table_is_whole_and_in_order(table: Path) -> None:
    whole = whole_of(table)
    check_whole(whole, N)
    assert (whole.kind, whole.names[0], whole.names[-1]) == ("table", "line 2", "line 13")
    assert whole.data.targets.tolist() == LABELS.tolist()
    assert whole.cells(1) == (("size", "1"), ("what", 'a "x", b'), ("label", "q"))
    assert whole.cells(-1) == whole.cells(N - 1)
    with pytest.raises(IndexError):
        whole.cells(N)
    assert whole.picture(0) is None
    # in units of all rows, not of those that `load` would train on
    sizes = torch.tensor([float(i * i % 7) for i in range(N)])
    torch.testing.assert_close(whole.data.inputs[:, 0], (sizes - sizes.mean()) / sizes.std(correction=0))
    test_rows = split(whole.data.targets, 0.2, 0)[1]
    assert torch.equal(whole.data.test_inputs, whole.data.inputs[test_rows])
    assert torch.equal(whole.data.test_targets, whole.data.targets[test_rows])


def test_what_is_told_of_a_table_is_told_once(tmp_path: Path) -> None:
    rows = "".join(f"{'' if i == 3 else 'odd' if i == 5 else i * i % 17},{'xy'[i % 2]}\n" for i in range(40))
    (tmp_path / "a.csv").write_text(f"a,label\n{rows}")
    for seed in range(4):  # whichever rows the test set repeats
        notes = whole_of(tmp_path / "a.csv", split_seed=seed).data.notes
        assert "missing numbers replaced by the median: a (2)" in notes
        assert sum("'odd' is not a number" in note for note in notes) == 1


def test_cells_are_as_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(';n;label;t;u\n0;1,50;a; x ;1\n1;"2\n3";b;;2\n2;2,5;a;y;4\n3;7;b;;8\n')
    whole = whole_of(tmp_path / "a.csv")
    assert whole.cells(0) == (("n", "1,50"), ("label", "a"), ("t", "x "), ("u", "1"))
    assert whole.cells(1) == (("n", "2\n3"), ("label", "b"), ("t", ""), ("u", "2"))
    assert whole.names == ("line 2", "line 3", "line 5", "line 6")


def test_a_parquet_table(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    content = {"a": [1.5, None, 3.0, 4.0], "label": [1, 2, 2, 1]}
    parquet.write_table(pyarrow.table(content), tmp_path / "a.parquet")
    whole = whole_of(tmp_path / "a.parquet")
    check_whole(whole, 4)
    assert whole.names == ("row 1", "row 2", "row 3", "row 4")
    assert whole.cells(1) == (("a", ""), ("label", "2"))


def test_arrays_are_whole_and_in_order(arrays: Path) -> None:
    whole = whole_of(arrays)
    check_whole(whole, N)
    assert (whole.kind, whole.names[0], whole.names[-1], whole.cells(0)) == ("arrays", "sample 0", "sample 11", ())
    assert np.array_equal(whole.data.inputs.numpy(), PIXELS)
    assert whole.data.targets.tolist() == LABELS.tolist()


def test_a_folder_is_whole_and_in_order(tmp_path: Path) -> None:
    whole = whole_of(images(tmp_path / "pets"))
    check_whole(whole, 6)
    assert (whole.kind, whole.cells(0)) == ("folder", ())
    assert whole.names == ("cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png", "dog/2.png")
    assert whole.data.targets.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_test_set_of_its_own_stays_apart(table: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("size,what,label\n1,a,p\n")
    np.savez(tmp_path / "b.npz", x=PIXELS, y=LABELS, x_test=PIXELS[:2], y_test=LABELS[:2])
    images(tmp_path / "pets" / "train")
    images(tmp_path / "pets" / "test", 1)
    for source in (
        Source(str(table), test=str(tmp_path / "t.csv")),
        Source(str(tmp_path / "b.npz")),
        Source(str(tmp_path / "pets")),
    ):
        whole = load_whole(source)
        assert whole.held_out
        assert whole.data.digest == load(source).digest
        assert not any("none is set aside" in note for note in whole.data.notes)
    assert whole.names[0] == "train/cat/0.png"


def test_known_sets() -> None:
    whole = load_whole(Source("digits"))
    assert (whole.kind, whole.held_out, len(whole.names), whole.cells(3)) == ("known", True, 1200, ())
    assert whole.data.digest == load(Source("digits")).digest
    with pytest.raises(DataError, match=r"^regression has no classes, and so no labels to look at; name data"):
        load_whole(Source("regression"))


def test_the_root_reaches_official_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def official(name: str, root: Path) -> Data:
        asked.append(root)
        return load(Source("digits"))

    monkeypatch.setattr("mirrordescent.lab.data.official.load_official", official)
    assert load_whole(Source("mnist"), tmp_path).kind == "known"
    assert asked == [tmp_path]


def test_what_load_refuses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size,price\n1,0.5\n2,0.7\n3,0.9\n4,1.5\n")
    with pytest.raises(DataError, match="say which one is the label"):
        whole_of(tmp_path / "a.csv")
    with pytest.raises(DataError, match=r"the label 0\.5 is not a whole number"):
        whole_of(tmp_path / "a.csv", label="price")
    with pytest.raises(ValueError, match="there is no file or folder"):
        whole_of(tmp_path / "gone.csv")
    with pytest.raises(DataError, match="is of no known kind"):
        whole_of(Path(__file__))


def test_single_members_and_two_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,label\n1,x\n2,y\n")  # `load` could set nothing aside
    whole = whole_of(tmp_path / "a.csv")
    assert (len(whole.data), len(whole.data.test_inputs)) == (2, 2)
    (tmp_path / "a.csv").write_text("a,label\n1,x\n2,y\n3,x\n4,lonely\n")
    whole = whole_of(tmp_path / "a.csv")
    assert [whole.data.class_names[c] for c in whole.data.targets] == ["x", "y", "x", "lonely"]


def test_the_note_on_a_split_without_one() -> None:
    train, test, how = divided(torch.arange(10) % 2, lambda: torch.empty(0), 0.2, 0, "a", whole=True)
    assert train.tolist() == list(range(10))
    assert test.tolist() == split(torch.arange(10) % 2, 0.2, 0)[1].tolist()
    assert told_of_parts(10, 2, 10, "rows", how) == "all 10 rows are trained on, and none is set aside"


def decoded(png: bytes | None) -> Any:
    assert png is not None
    with pytest.importorskip("PIL.Image").open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        image.load()
        return image


def test_pictures_of_files(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = images(tmp_path / "pets")
    exif = image.Exif()
    exif[0x0112] = 6  # a quarter turn
    image.new("RGB", (600, 300), "red").save(folder / "cat" / "a.jpg", exif=exif)
    image.new("RGBA", (10, 4), (0, 0, 0, 0)).save(folder / "cat" / "b.png")
    image.new("I;16", (30, 20), 257 * 40).save(folder / "cat" / "c.png")
    image.new("I;16", (30, 20), 65535).save(folder / "cat" / "d.png")  # as bright as it gets, so c is dark
    whole = whole_of(folder)
    at = {name: i for i, name in enumerate(whole.names)}
    assert decoded(whole.picture(at["dog/1.png"])).size == (128, 64)
    assert decoded(whole.picture(at["dog/1.png"])).getpixel((5, 5)) == (20, 50, 9)
    assert decoded(whole.picture(at["dog/1.png"], side=20)).size == (20, 10)
    turned = decoded(whole.picture(at["cat/a.jpg"]))
    assert turned.size == (64, 128)
    assert turned.getpixel((5, 5))[0] > 200
    assert decoded(whole.picture(at["cat/b.png"])).getpixel((1, 1)) == (255, 255, 255)  # never larger than it is
    assert decoded(whole.picture(at["cat/b.png"])).size == (10, 4)
    assert decoded(whole.picture(at["cat/c.png"])).getpixel((1, 1)) == 40
    (folder / "dog" / "1.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"1\.png cannot be read as an image"):
        whole.picture(at["dog/1.png"])
    with pytest.raises(ValueError, match="side must be ≥ 1, got 0"):
        whole.picture(0, side=0)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGB")])
@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1), (np.float32, 1), (np.float64, 1 / 255)])
def test_pictures_of_arrays(channels: int, mode: str, dtype: type, scale: float, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (N, channels, 9, 9))
    pixels[:, 3:] = 255
    pixels[0, 0, 0, 0], pixels[1, 0, 0, 0] = 0, 255
    np.savez(tmp_path / "a.npz", x=(pixels * scale).astype(dtype), y=LABELS)
    shown = decoded(whole_of(tmp_path / "a.npz").picture(4))
    assert (shown.mode, shown.size) == (mode, (9, 9))
    expected = pixels[4, 0] if channels == 1 else pixels[4, :3].transpose(1, 2, 0)
    assert np.array_equal(np.asarray(shown), expected)


def test_pictures_of_values_of_any_range_and_of_vectors(tmp_path: Path) -> None:
    x = np.linspace(-3, 5, N * 16).reshape(N, 4, 4)
    np.savez(tmp_path / "a.npz", x=x, y=LABELS)
    whole = whole_of(tmp_path / "a.npz")
    assert decoded(whole.picture(0)).getpixel((0, 0)) == 0
    assert decoded(whole.picture(N - 1)).getpixel((3, 3)) == 255
    np.savez(tmp_path / "a.npz", x=x[:, 0], y=LABELS)
    assert whole_of(tmp_path / "a.npz").picture(0) is None
    assert decoded(load_whole(Source("digits")).picture(0)).size == (8, 8)


def test_a_file_that_changes_is_noticed(table: Path) -> None:
    whole = whole_of(table)
    table.write_text(TABLE + "1,a,p\n")
    with pytest.raises(DataError, match=r"a\.csv has changed since it was read; start again"):
        whole.cells(0)


def test_file_names_that_are_no_text(tmp_path: Path) -> None:
    folder = images(tmp_path / "pets")
    odd = folder / "cat" / "\udcff.png"
    try:
        (folder / "cat" / "0.png").rename(odd)
    except OSError:
        pytest.skip("this file system has text for names only")
    assert whole_of(folder).names[2] == "cat/\\xff.png"


def test_pillow_and_pyarrow_are_not_needed_to_import_it() -> None:
    code = "import sys, mirrordescent.lab.data.whole; print({'PIL', 'pyarrow', 'sklearn'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
