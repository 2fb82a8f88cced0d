"""Folders of images: every usual mode and layout is read, and every damaged file is named."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

Image = pytest.importorskip("PIL.Image")

from mirrordescent.lab.data import DataError, imagefolder  # noqa: E402
from mirrordescent.lab.data.imagefolder import prepare_folder  # noqa: E402


def save(path: Path, colour: object = (200, 100, 50), mode: str = "RGB", size: tuple[int, int] = (16, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of five images; the red channel tells which image it is."""
    for c, name in enumerate(("cat", "dog")):
        for i in range(5):
            save(tmp_path / "pets" / name / f"{i}.png", (10 * (5 * c + i), 100, 50))
    return tmp_path / "pets"


def test_files_and_pixels_go_together(folder: Path) -> None:
    prepared = prepare_folder(folder, test_share=0.4, split_seed=1)
    data = prepared.data
    assert (len(data), len(data.test_inputs), data.shape) == (6, 4, (3, 16, 16))
    assert (data.name, data.class_names) == ("pets", ("cat", "dog"))
    assert (data.model, data.augment) == ("deep-cnn", "crop")
    for file, pixels, target in zip(prepared.files, data.inputs, data.targets, strict=True):
        position = int(pixels[0, 0, 0]) // 10
        assert file == folder / ("cat", "dog")[position // 5] / f"{position % 5}.png"
        assert int(target) == position // 5
    seen = torch.cat([data.inputs, data.test_inputs])[:, 0, 0, 0].tolist()
    assert sorted(seen) == list(range(0, 100, 10))
    assert prepare_folder(folder, test_share=0.4, split_seed=1).data.digest == data.digest
    assert prepare_folder(folder, test_share=0.4, split_seed=2).files != prepared.files


@pytest.mark.parametrize("tests", ["test", "val"])
def test_train_and_test_folders(folder: Path, tests: str, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    shutil.copytree(folder, parts / "train")
    save(parts / tests / "dog" / "a.png")
    data = prepare_folder(parts).data
    assert (len(data), data.test_targets.tolist(), data.class_names) == (10, [1], ("cat", "dog"))
    assert f"test set: 1 images of {tests}/" in data.notes
    assert prepare_folder(folder, parts / tests).data.digest == data.digest
    with pytest.raises(DataError, match=f"has a test set of its own, {tests}/"):
        prepare_folder(parts, folder)
    save(parts / tests / "fish" / "a.png")
    with pytest.raises(
        DataError, match="fish: the label 'fish' does not occur in the training set, which has cat, dog"
    ):
        prepare_folder(parts)


def test_parts_beside_something_else_are_no_classes(folder: Path) -> None:
    parts = folder.parent / "parts"
    for name in ("Training", "Testing"):
        shutil.copytree(folder, parts / name)
    data = prepare_folder(parts).data
    assert (data.class_names, len(data), len(data.test_inputs)) == (("cat", "dog"), 10, 10)
    shutil.copytree(folder, parts / "train")
    with pytest.raises(DataError, match="holds train/ and Training/; name the folder of the classes"):
        prepare_folder(parts)
    shutil.rmtree(parts / "train")
    save(parts / "unlabelled" / "a.png")
    with pytest.raises(DataError, match="holds Training/ and Testing/ beside unlabelled/; name the folder"):
        prepare_folder(parts)


def test_a_test_set_may_write_accents_in_another_way(tmp_path: Path) -> None:
    for part, accent in (("train", "\u00e9"), ("test", "e\u0301")):
        for name in (f"caf{accent}", "tea"):
            for i in range(2):
                save(tmp_path / "pets" / part / name / f"{i}.png")
    prepared = prepare_folder(tmp_path / "pets")
    assert (prepared.data.test_targets.tolist(), prepared.data.class_names) == ([0, 0, 1, 1], ("caf\u00e9", "tea"))


def test_what_is_cut_off_and_what_is_all_alike_is_told(folder: Path) -> None:
    assert prepare_folder(folder).data.notes[-1] == "images resized to 16×16, RGB"
    for i in range(3):
        save(folder / "cat" / f"wide{i}.png", size=(33, 16))
    save(folder / "dog" / "less.png", size=(32, 16))
    told = "images resized to 16×16, RGB; of 3 of them training sees less than half, the square in the middle"
    assert prepare_folder(folder).data.notes[-1] == told
    for name in ("a", "b", "c"):
        save(folder.parent / "alike" / name / "1.png")
        save(folder.parent / "alike" / name / "2.png")
    assert (
        prepare_folder(folder.parent / "alike")
        .data.notes[-1]
        .endswith("; all look the same, so there is nothing to learn from")
    )


def test_images_that_contradict_each_other_are_counted(folder: Path) -> None:
    assert not any("same inputs" in note for note in prepare_folder(folder, whole=True).data.notes)
    Image.open(folder / "cat" / "1.png").save(folder / "dog" / "a copy.bmp")  # another file, the same pixels
    notes = prepare_folder(folder, whole=True).data.notes
    assert "images with the same inputs as others that have another label: 2" in notes
    assert not any("same label" in note for note in notes)


def test_a_class_may_be_called_train(folder: Path) -> None:
    save(folder / "train" / "a.png")
    assert prepare_folder(folder).data.class_names == ("cat", "dog", "train")


def test_junk_links_and_other_files(folder: Path) -> None:
    before = prepare_folder(folder).data
    for junk in (".DS_Store", "Thumbs.db", "desktop.ini", ".hidden/x.png"):
        (folder / "cat" / junk).parent.mkdir(exist_ok=True)
        (folder / "cat" / junk).write_bytes(b"junk")
    (folder / "__MACOSX").mkdir()
    (folder / "readme.txt").write_text("not a class")
    os.symlink(folder / "cat", folder / "dog" / "loop")
    assert prepare_folder(folder).data.digest == before.digest
    assert prepare_folder(folder).data.notes == before.notes
    (folder / "cat" / "list.csv").write_text("")
    os.symlink(folder / "cat", folder / "linked")
    data = prepare_folder(folder).data
    assert data.digest == before.digest
    assert "files that are no images, left out: list.csv" in data.notes
    assert "links to folders, not followed: linked" in data.notes


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "expected"),
    [
        ("L", 77, "png", (77, 77, 77)),
        ("1", 1, "png", (255, 255, 255)),
        ("P", 0, "gif", (0, 0, 0)),
        ("LA", (77, 0), "png", (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), "png", (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), "png", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "tif", (255, 0, 0)),
        ("I;16", 257 * 200, "png", (200, 200, 200)),
        ("I", 65535, "tif", (255, 255, 255)),
    ],
)
def test_every_mode_becomes_rgb(
    mode: str, colour: object, suffix: str, expected: tuple[int, int, int], folder: Path
) -> None:
    file = save(folder / "fish" / f"a.{suffix}", colour, mode)  # a class of one: surely in the training set
    prepared = prepare_folder(folder)
    pixels = prepared.data.inputs[prepared.files.index(file)]
    assert tuple(pixels[:, 8, 8].tolist()) == expected


def test_grey_files_stay_grey(tmp_path: Path) -> None:
    for name, mode, colour in (("a", "L", 40), ("b", "I;16", 257 * 80)):
        for i in range(3):
            save(tmp_path / name / f"{i}.png", colour, mode, (20, 30))
    data = prepare_folder(tmp_path).data
    assert data.shape == (1, 20, 20)
    assert sorted(set(data.inputs.flatten().tolist())) == [40, 80]
    assert data.notes[-1] == "images resized to 20×20, grey; 16-bit images read as 16-bit"


@pytest.mark.parametrize(("brightest", "bits"), [(200, 8), (330, 10), (4000, 12), (16000, 14), (65535, 16)])
def test_the_brightest_pixel_says_how_many_bits_there_are(tmp_path: Path, brightest: int, bits: int) -> None:
    for name, share in (("a", 0.25), ("b", 0.5), ("c", 1.0)):
        for i in range(2):
            save(tmp_path / "scans" / name / f"{i}.png", round(share * brightest), "I;16")
    data = prepare_folder(tmp_path / "scans", whole=True).data
    assert f"images resized to 16×16, grey; 16-bit images read as {bits}-bit" in data.notes
    wanted = [255 * round(share * brightest) / (2**bits - 1) for share in (0.25, 0.5, 1.0) for _ in range(2)]
    assert data.inputs[:, 0, 0, 0].tolist() == pytest.approx(wanted, abs=0.51)


@pytest.mark.parametrize(("sides", "expected"), [((4, 4, 5), 8), ((20, 30, 90), 30), ((300, 200, 100), 64)])
def test_the_size_comes_from_the_images(sides: tuple[int, ...], expected: int, tmp_path: Path) -> None:
    for name in ("a", "b"):
        for i, side in enumerate(sides):
            save(tmp_path / "train" / name / f"{i}.jpg", size=(side, 2 * side))
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    assert prepare_folder(tmp_path).data.shape == (3, expected, expected)


def test_exif_turns_the_image(folder: Path) -> None:
    image = Image.new("RGB", (16, 16), "white")
    image.paste("black", (0, 0, 16, 8))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise: the upper half comes to the right
    (folder / "fish").mkdir()
    image.save(folder / "fish" / "a.jpg", exif=exif, quality=100)
    prepared = prepare_folder(folder)
    pixels = prepared.data.inputs[prepared.files.index(folder / "fish" / "a.jpg")]
    assert int(pixels[:, 2:14, 2:6].min()) > 200
    assert int(pixels[:, 2:14, 10:14].max()) < 50


def test_the_centre_is_kept(folder: Path) -> None:
    image = Image.new("RGB", (48, 16), "black")
    image.paste("white", (16, 0, 32, 16))
    (folder / "fish").mkdir()
    image.save(folder / "fish" / "a.png")
    prepared = prepare_folder(folder)
    assert int(prepared.data.inputs[prepared.files.index(folder / "fish" / "a.png")].min()) == 255


def test_one_damaged_file_is_named(folder: Path) -> None:
    path = save(folder / "cat" / "broken.png", size=(64, 64))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError) as caught:
        prepare_folder(folder)
    assert str(caught.value).startswith(f"{path} cannot be read as an image: ")
    assert str(caught.value).endswith("; remove or replace it")
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"broken\.png cannot be read as an image: it is empty"):
        prepare_folder(folder)


@pytest.mark.parametrize("whole", [True, False])
def test_a_few_damaged_files_are_left_out(folder: Path, whole: bool) -> None:
    for i in range(60):
        save(folder / "cat" / f"more {i}.png", colour=(4 * i, 4 * i, 0))
    before = prepare_folder(folder, whole=True)
    (folder / "cat" / "empty.png").write_bytes(b"")
    (folder / "dog" / "bad.jpg").write_bytes(b"no image")
    prepared = prepare_folder(folder, whole=whole)
    note = next(note for note in prepared.data.notes if "left out" in note)
    told = (
        "70 of 72 images are trained on, and none is set aside for testing"
        if whole
        else f"test set: {len(prepared.data.test_inputs)} of 72 images, split with seed 0"
    )
    assert prepared.data.notes[: prepared.data.notes.index(note)] == (told,)
    assert "all 70 images are trained on, and none is set aside" in before.data.notes
    assert f"{folder / 'cat' / 'empty.png'} (it is empty)" in note
    assert f"{folder / 'dog' / 'bad.jpg'} (its content is no image of a known format)" in note
    assert len(prepared.data) + (0 if whole else len(prepared.data.test_inputs)) == len(before.data)
    for file, pixels, target in zip(prepared.files, prepared.data.inputs, prepared.data.targets.tolist(), strict=True):
        at = before.files.index(file)
        assert torch.equal(pixels, before.data.inputs[at])
        assert target == int(before.data.targets[at])
    (folder / "fish").mkdir()
    (folder / "fish" / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match="no image of 'fish' can be read; add some"):
        prepare_folder(folder, whole=whole)


def test_a_damaged_file_of_a_test_folder_is_not_tested(folder: Path, tmp_path: Path) -> None:
    for i in range(20):
        save(folder / "cat" / f"more {i}.png", colour=(4 * i, 4 * i, 0))
    save(tmp_path / "test" / "dog" / "a.png")
    (tmp_path / "test" / "dog" / "b.png").write_bytes(b"")
    data = prepare_folder(folder, tmp_path / "test").data
    assert len(data.test_inputs) == 1
    assert "test set: 1 images of test/" in data.notes


def test_all_damaged_files_are_counted(folder: Path) -> None:
    for i in range(7):
        (folder / "dog" / f"bad {i}.jpg").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"^7 files cannot be read as images: .* and 2 more; remove or replace"
    ) as caught:
        prepare_folder(folder)
    assert str(caught.value).count("bad ") == 5


def test_huge_images_are_not_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder / "cat" / "huge.png", size=(400, 300))
    monkeypatch.setattr(imagefolder, "MOST_PIXELS", 100_000)
    with pytest.raises(DataError, match=r"huge\.png cannot be read as an image: 400×300 pixels are more than 100,000"):
        prepare_folder(folder)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Pillow's own guard comes first
    with pytest.raises(DataError, match=r"huge\.png cannot be read as an image: more than 100,000 pixels"):
        prepare_folder(folder)


def test_fractions_as_pixels_are_refused(folder: Path) -> None:
    save(folder / "cat" / "a.tif", 0.5, "F")
    with pytest.raises(DataError, match=r"a\.tif cannot be read as an image: its pixels are fractions"):
        prepare_folder(folder)
    save(folder / "cat" / "a.tif", 100_000, "I")
    with pytest.raises(DataError, match=r"a\.tif cannot be read as an image: its pixels have more than 16 bits"):
        prepare_folder(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are always text")
def test_a_class_whose_name_is_no_text(folder: Path) -> None:
    os.rename(folder / "cat", os.fsencode(folder / "caf") + b"\xe9")
    with pytest.raises(DataError, match="has a name that is not UTF-8; rename it"):
        prepare_folder(folder)


def test_folders_that_are_no_classes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cat has no sub-folders; put the images of each class .* of its own$"):
        prepare_folder(folder / "cat")
    (folder.parent / "all" / "test").mkdir(parents=True)
    shutil.copytree(folder, folder.parent / "all" / "train")
    with pytest.raises(DataError, match=r"test has no sub-folders; .*, or give .*train alone as data$"):
        prepare_folder(folder.parent / "all")
    with pytest.raises(DataError, match=r"gone cannot be read: No such file or directory"):
        prepare_folder(folder / "gone")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images \(\.bmp, .*\); add some, or remove the folder"):
        prepare_folder(folder)
    shutil.rmtree(folder / "empty")
    shutil.rmtree(folder / "dog")
    with pytest.raises(DataError, match="only one class, 'cat'; there must be at least two sub-folders"):
        prepare_folder(folder)
    save(folder / "dog" / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"needs Pillow, which is not installed; pip install 'mirrordescent\[lab\]'"):
        prepare_folder(folder)


def test_many_images_take_little_time(folder: Path) -> None:
    for i in range(300):
        shutil.copyfile(folder / "cat" / "1.png", folder / "cat" / f"copy {i}.png")
    start = time.perf_counter()
    prepare_folder(folder)
    assert time.perf_counter() - start < 3
